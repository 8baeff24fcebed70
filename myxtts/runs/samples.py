"""Samples of a model in training, in the folder of its run and in TensorBoard, and its sentences at the end."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.encoding import write_audio
from myxtts.audio.files import load_samples
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram, log_mel_to_wav, resample
from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import Clip
from myxtts.hearing.measuring import spread
from myxtts.inference.synthesizer import Synthesizer
from myxtts.runs.figures import draw_sounds
from myxtts.training.loop.batching import with_batch
from myxtts.training.loop.device_pipeline import copy_to
from myxtts.training.stage_trainer import StageTrainer
from myxtts.training.watching.callbacks import Callback, EventFile

logger = logging.getLogger(__name__)
Maker = Callable[[], Synthesizer]


class Sample(NamedTuple):
    """Audio made from a clip, `(S,)` float32, and what its picture shows: log-mels `(T, num_mels)` and attention."""

    samples: np.ndarray
    sample_rate: int
    mels: dict[str, np.ndarray]
    attention: np.ndarray | None = None


class SampleWriter(Callback):
    """Base of callbacks that write samples of validation clips: WAV files and pictures, and TensorBoard summaries.

    File names begin with `kind`; TensorBoard and messages call the samples `title`.
    """

    def __init__(self, dataset: SpeechDataset, folder: Path, log_folder: Path, kind: str, title: str):
        self._dataset, self._folder, self._kind, self._title = dataset, folder, kind, title
        self._events, self._shown = EventFile(log_folder), set()
        self.clips: list[Clip] = spread(dataset.validation, dataset.config.training.num_samples)

    def keep(self, step: int, samples: list[Sample]) -> None:
        """Writes a sample for each of `clips`; logs errors of the disk."""
        try:
            for clip, sample in zip(self.clips, samples):
                self._write(step, clip, sample)
        except (OSError, UserError) as error:  # UserError: audio that is not finite
            message = "The %s of step %d could not be written to %s: %s. Training continues."
            logger.error(message, self._title, step, self._folder, error)

    def _write(self, step, clip, sample):
        self._folder.mkdir(exist_ok=True)  # not its parent, the run's folder: it may have been moved
        name, is_first = clip.id.replace("/", "_"), clip.id not in self._shown
        stem, recording = self._folder / f"{self._kind}_{step:06d}_{name}", self._folder / f"recording_{name}.wav"
        if not recording.is_file():
            write_audio(recording, load_samples(clip.wav_path, DECODER_SAMPLE_RATE), DECODER_SAMPLE_RATE)
        write_audio(f"{stem}.wav", sample.samples, sample.sample_rate)
        draw_sounds(f"{stem}.png", self._dataset.texts[clip.id], sample.mels, sample.attention)

        def show():
            # TensorBoard needs different tags for audio and images.
            tf.summary.audio(f"{self._title}/{clip.id}", sample.samples[None, :, None], sample.sample_rate)
            tf.summary.image(f"{self._title}, mel/{clip.id}", tf.io.decode_png(tf.io.read_file(f"{stem}.png"))[None])
            if is_first:
                original = load_samples(clip.wav_path, DECODER_SAMPLE_RATE)
                tf.summary.audio(f"recording/{clip.id}", original[None, :, None], DECODER_SAMPLE_RATE)

        self._events.write(step, show)
        self._shown.add(clip.id)


class SampleSpeaker(SampleWriter):
    """Speaks validation sentences, in the voice of another recording of the speaker if there is one.

    `make_synthesizer` returns a synthesizer with the current weights; it is not called before the first samples.
    """

    def __init__(self, dataset: SpeechDataset, make_synthesizer: Maker, device: str, folder: Path, log_folder: Path):
        super().__init__(dataset, folder, log_folder, "step", "sample sentences")
        self._device, self._make_synthesizer, self._seed = device, make_synthesizer, dataset.config.training.seed

    def on_sample(self, step: int):
        if not self.clips:
            return
        speaking, samples = self._make_synthesizer(), []
        texts = [self._dataset.texts[clip.id] for clip in self.clips]
        with tf.device(self._device):
            voices = [speaking.voice(reference_of(self._dataset, clip)) for clip in self.clips]
            speeches = speaking.batch(texts, voices, [clip.language for clip in self.clips], seed=self._seed)
            for clip, voice, speech in zip(self.clips, voices, speeches):
                mels = {"recording": mel_of(load_samples(clip.wav_path)), "spoken": speech.mel}
                attention = speaking.attention(speech, voice, clip.language)
                samples.append(Sample(speech.samples, speech.sample_rate, mels, attention))
        self.keep(step, samples)


class Copier(SampleWriter):
    """Resynthesizes validation clips after each validation, with a stage that reconstructs recordings."""

    def __init__(self, dataset: SpeechDataset, trainer: StageTrainer, folder: Path, log_folder: Path):
        self._trainer, self._stage, name = trainer, trainer.stage, trainer.stage.name
        super().__init__(dataset, folder, log_folder, name, f"{name} copies")
        self._loader = replace(dataset, config=with_batch(dataset.config, name, 1, 1)).validation_loader(name)
        order, numbers = self._loader.order, range(len(dataset.validation))
        places = {dataset.validation[order.batch(number).indices[0]].id: number for number in numbers}
        self._positions = [places[clip.id] for clip in self.clips]

    def on_validation(self, step: int, losses: dict, is_best: bool):
        samples = [self._sample(position) for position in self._positions]
        if None not in samples:
            self.keep(step, samples)

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
    """Returns the log-mel `(T, num_mels)` of `DVAE_MEL` of audio at 22 050 Hz, `(S,)`."""
    return np.array(MelSpectrogram(DVAE_MEL)(samples[None])[0])


class LastWords(NamedTuple):
    """A sentence spoken at the end of a run, its file, and the findings of the self-check."""

    text: str
    speaker: str
    path: Path
    doubts: tuple[str, ...]


def speak_last_words(config: XTTSConfig, dataset: SpeechDataset, device: str) -> list[LastWords]:
    """Speaks `training.closing_texts`, by default texts of validation clips, with the best checkpoints.

    The voices are those of the validation clips, taken from the longest training clip of each speaker. The files are
    `samples/final_1.wav` and so on. Errors, such as a full disk, are logged.
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
    """Returns the longest training recording of the clip's speaker and language, else the clip's own."""
    voice = clip.speaker, clip.language
    same = [other for other in dataset.train if (other.speaker, other.language) == voice]
    return max(same or [clip], key=lambda other: other.num_samples).wav_path


def held_out_voice(dataset: SpeechDataset, language: str | None = None) -> list[Clip]:
    """Returns the longest validation clip within the conditioning lengths, preferably in `language`.

    If all are shorter, returns the longest, with more clips of its speaker up to the minimum conditioning length.
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
