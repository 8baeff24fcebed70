"""What a model in training makes of validation clips, in a folder and in TensorBoard, and what it says at the end."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.encoding import write_audio
from myxtts.audio.files import load_samples
from myxtts.audio.griffin_lim import log_mel_to_wav
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.audio.resample import resample
from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import Clip
from myxtts.inference.synthesizer import Synthesizer
from myxtts.runs.figures import draw_sounds
from myxtts.training.loop.batching import with_batch
from myxtts.training.loop.device_pipeline import copy_to
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.watching.callbacks import Callback, EventFile

logger = logging.getLogger(__name__)


class Sample(NamedTuple):
    """What was made of a clip."""

    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    """In Hz."""
    mels: dict[str, np.ndarray]
    """What the picture shows, by name: log-mels `(T, num_mels)`."""
    attention: np.ndarray | None = None
    """See `Synthesizer.attention`."""


class SampleFolder:
    """Keeps samples of some validation clips, with their recordings, as wav files, pictures and in TensorBoard.

    Args:
        kind: First word of file names.
        what: The samples, to people and in TensorBoard's tags.
    """

    def __init__(self, dataset: SpeechDataset, folder: Path, log_folder: Path, num_samples: int, kind: str, what: str):
        self.folder: Path = folder
        self._events = EventFile(log_folder)
        self._texts, self._kind, self._what, self._has_recordings = dataset.texts, kind, what, False
        count = min(num_samples, len(dataset.validation))
        spread = np.linspace(0, len(dataset.validation) - 1, count).round().astype(int)
        self.clips: list[Clip] = [dataset.validation[index] for index in spread]

    def keep(self, step: int, samples: list[Sample]) -> None:
        """Writes a sample for each of `clips`; logs what a disk does not take."""
        try:
            pictures = [self._write(step, *pair) for pair in zip(self.clips, samples)]
        except (OSError, UserError) as error:  # a full disk; sound that is not finite
            message = "The %s of step %d could not be written to %s: %s. Training continues."
            logger.error(message, self._what, step, self.folder, error)
        else:
            self._events.write(step, lambda: self._show(samples, pictures))
            self._has_recordings = True

    def _write(self, step, clip, sample):
        """Writes wavs and picture; returns the path of the picture."""
        self.folder.mkdir(exist_ok=True)  # in the run's folder, which is not created again after it was moved
        name = clip.id.replace("/", "_")
        stem, recording = self.folder / f"{self._kind}_{step:06d}_{name}", self.folder / f"recording_{name}.wav"
        if not recording.is_file():
            write_audio(recording, load_samples(clip.wav_path, DECODER_SAMPLE_RATE), DECODER_SAMPLE_RATE)
        write_audio(f"{stem}.wav", sample.samples, sample.sample_rate)
        draw_sounds(f"{stem}.png", self._texts[clip.id], sample.mels, sample.attention)
        return f"{stem}.png"

    def _show(self, samples, pictures):
        for clip, sample, picture in zip(self.clips, samples, pictures):
            # TensorBoard shows one kind of thing under a tag.
            tf.summary.audio(f"{self._what}/{clip.id}", sample.samples[None, :, None], sample.sample_rate)
            tf.summary.image(f"{self._what}, mel/{clip.id}", tf.io.decode_png(tf.io.read_file(picture))[None])
            if not self._has_recordings:
                recording = load_samples(clip.wav_path, DECODER_SAMPLE_RATE)
                tf.summary.audio(f"recording/{clip.id}", recording[None, :, None], DECODER_SAMPLE_RATE)


class SampleSpeaker(Callback):
    """Speaks validation sentences, each in the voice of another recording of its speaker where there is one.

    Args:
        make_synthesizer: Gives one that shares the weights in training; not called before the first samples.
        device: To speak on: the model device, as the data device is preparing the next batches meanwhile.
        folder: For wav files and mel pictures; TensorBoard's go into `log_folder`.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        make_synthesizer: Callable[[], Synthesizer],
        device: str,
        folder: Path,
        log_folder: Path,
        config: XTTSConfig,
    ):
        self._dataset, self._device, self._make_synthesizer = dataset, device, make_synthesizer
        self._seed, count = config.training.seed, config.training.num_samples
        self._folder = SampleFolder(dataset, folder, log_folder, count, "step", "sample sentences")

    def on_sample(self, step: int):
        clips = self._folder.clips
        if not clips:
            return
        speaking, samples = self._make_synthesizer(), []
        texts = [self._dataset.texts[clip.id] for clip in clips]
        with tf.device(self._device):
            voices = [speaking.voice(reference_of(self._dataset, clip)) for clip in clips]
            speeches = speaking.batch(texts, voices, [clip.language for clip in clips], seed=self._seed)
            for clip, voice, speech in zip(clips, voices, speeches):
                mels = {"recording": mel_of(load_samples(clip.wav_path)), "spoken": speech.mel}
                attention = speaking.attention(speech, voice, clip.language)
                samples.append(Sample(speech.samples, speech.sample_rate, mels, attention))
        self._folder.keep(step, samples)


class Copier(Callback):
    """Lets a stage that rebuilds recordings do so with validation clips, after each validation."""

    def __init__(self, dataset: SpeechDataset, trainer: StageTrainer, folder: Path, log_folder: Path):
        self._trainer, self._stage = trainer, trainer.stage
        name, count = self._stage.name, trainer.config.training.num_samples
        self._folder = SampleFolder(dataset, folder, log_folder, count, name, f"{name} copies")
        self._loader = replace(dataset, config=with_batch(dataset.config, name, 1, 1)).validation_loader(name)
        order, numbers = self._loader.order, range(len(dataset.validation))
        places = {dataset.validation[order.batch(number).indices[0]].id: number for number in numbers}
        self._positions = [places[clip.id] for clip in self._folder.clips]

    def on_validation(self, step: int, losses: dict, is_best: bool):
        samples = [self._sample(position) for position in self._positions]
        if None not in samples:
            self._folder.keep(step, samples)

    def _sample(self, position):
        wave = tf.nest.map_structure(tf.constant, self._loader(position))
        batch, device = self._trainer.preparation(wave), self._trainer.model_device
        with tf.device(device):
            copies = self._stage.copies(copy_to(batch, device))
            if copies is None:
                return None
            original, copy = (np.array(one[0], np.float32) for one in copies)
            if original.ndim == 2:
                return Sample(log_mel_to_wav(copy), MODEL_SAMPLE_RATE, {"recording": original, "copy": copy})
            mels = (mel_of(resample(one[None], DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE)[0]) for one in (original, copy))
            return Sample(copy, DECODER_SAMPLE_RATE, dict(zip(("recording", "copy"), mels)))


def mel_of(samples: np.ndarray) -> np.ndarray:
    """Log-mel `(T, num_mels)` of `DVAE_MEL` of sound at 22 050 Hz, `(S,)`."""
    return np.array(MelSpectrogram(DVAE_MEL)(samples[None])[0])


class LastWords(NamedTuple):
    """One sentence at the end of a run, spoken into a file."""

    text: str
    speaker: str
    path: Path
    doubts: tuple[str, ...]
    """Findings of the self-check; none where the sentence seems right."""


def speak_last_words(config: XTTSConfig, dataset: SpeechDataset, device: str) -> list[LastWords]:
    """Speaks `training.closing_texts`, or else texts of validation clips, with the run's best checkpoints.

    The voices are those of the validation clips, each taken from the longest training clip of its speaker.
    Files are `samples/final_1.wav` and so on in the run's folder. What goes wrong, such as a full disk or a text that
    cannot be spoken, is logged and costs the sounds only.
    """
    settings, folder = config.training, Path(config.training.checkpoint_dir)
    voices_of = {clip.speaker: clip for clip in reversed(dataset.validation)}
    if texts := settings.closing_texts:
        voices = [voices_of[speaker] for speaker in sorted(voices_of)]
        clips = [voices[number % len(voices)] for number in range(len(texts))]
    else:
        others = (clip for clip in dataset.validation if clip not in voices_of.values())
        clips = [*voices_of.values(), *others][: settings.num_samples]
        texts = [dataset.texts[clip.id] for clip in clips]
    spoken = []
    try:
        with tf.device(device):
            synthesizer = Synthesizer.load(folder)
            voices = [synthesizer.voice(reference_of(dataset, clip)) for clip in clips]
            speeches = synthesizer.batch(list(texts), voices, [clip.language for clip in clips], seed=settings.seed)
        (folder / "samples").mkdir(exist_ok=True)
        for number, (text, clip, speech) in enumerate(zip(texts, clips, speeches), 1):
            path = folder / "samples" / f"final_{number}.wav"
            speech.save(path)
            doubts = dict.fromkeys(doubt for doubts in speech.doubts.values() for doubt in doubts)
            spoken.append(LastWords(text, clip.speaker, path, tuple(doubts)))
    except (UserError, OSError, tf.errors.OpError) as error:
        logger.error("The model could not speak at the end of the run: %s", error)
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
    chosen = [max([clip for clip in held if low <= seconds(clip) <= high] or held, key=seconds)]
    for side in (dataset.validation, dataset.train):
        for other in sorted(side, key=seconds, reverse=True):
            if sum(map(seconds, chosen)) < low and other.speaker == chosen[0].speaker and other not in chosen:
                chosen.append(other)
    return chosen
