"""What a run says when it ends: new sentences by the whole model, as `myxtts say` would speak them."""

import logging
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import Clip
from myxtts.inference.synthesizer import Synthesizer

logger = logging.getLogger(__name__)


class LastWords(NamedTuple):
    """One sentence, spoken into a file."""

    text: str
    speaker: str
    path: Path
    doubts: tuple[str, ...]
    """What the self-check holds against it; none where it seems right."""


def speak_last_words(config: XTTSConfig, dataset: SpeechDataset, device: str) -> list[LastWords]:
    """Speaks `training.closing_texts`, or else texts of validation clips, with the run's best checkpoints.

    The voices are those of the validation clips, each taken from the longest training clip of its speaker.
    Files are `samples/final_1.wav` and so on in the run's folder. What goes wrong, such as a full disk or a text that
    cannot be spoken, is told in the log and costs the sounds only.
    """
    settings = config.training
    voices_of = {clip.speaker: clip for clip in reversed(dataset.validation)}
    if texts := list(settings.closing_texts):
        voices = [voices_of[speaker] for speaker in sorted(voices_of)]
        clips = [voices[number % len(voices)] for number in range(len(texts))]
    else:
        others = (clip for clip in dataset.validation if clip not in voices_of.values())
        clips = [*voices_of.values(), *others][: settings.num_samples]
        texts = [dataset.texts[clip.id] for clip in clips]
    folder = Path(settings.checkpoint_dir)
    try:
        with tf.device(device):
            synthesizer = Synthesizer.load(folder)
            voices = [synthesizer.voice(reference_of(dataset, clip)) for clip in clips]
            speeches = synthesizer.batch(texts, voices, [clip.language for clip in clips], seed=settings.seed)
    except (UserError, OSError, tf.errors.OpError) as error:
        logger.error("The model could not speak at the end of the run: %s", error)
        return []
    spoken = []
    for number, (text, clip, speech) in enumerate(zip(texts, clips, speeches), 1):
        path = folder / "samples" / f"final_{number}.wav"
        try:
            path.parent.mkdir(exist_ok=True)
            speech.save(path)
        except OSError as error:
            logger.error("%s could not be written: %s.", path, error)
            break
        doubts = dict.fromkeys(doubt for doubts in speech.doubts.values() for doubt in doubts)
        spoken.append(LastWords(text, clip.speaker, path, tuple(doubts)))
    return spoken


def reference_of(dataset: SpeechDataset, clip: Clip) -> str:
    """The longest recording of the clip's speaker that was trained on, or its own: what its voice is taken from."""
    voice = clip.speaker, clip.language
    same = [other for other in dataset.train if (other.speaker, other.language) == voice]
    return max(same or [clip], key=lambda other: other.num_samples).wav_path


def held_out_voice(dataset: SpeechDataset, language: str | None = None) -> list[Clip]:
    """The longest validation clip of a length that conditioned the model, in `language` where one is.

    Where all are shorter, the longest, and others of its speaker until they are as long as that together.
    """
    low, high = dataset.config.data.conditioning_seconds
    seconds = lambda clip: clip.num_samples / MODEL_SAMPLE_RATE
    held = [clip for clip in dataset.validation if clip.language == language] or dataset.validation
    fitting = [clip for clip in held if low <= seconds(clip) <= high]
    chosen = [max(fitting or held, key=seconds)]
    for side in (dataset.validation, dataset.train):
        for other in sorted(side, key=seconds, reverse=True):
            if sum(map(seconds, chosen)) >= low:
                return chosen
            if other.speaker == chosen[0].speaker and other not in chosen:
                chosen.append(other)
    return chosen
