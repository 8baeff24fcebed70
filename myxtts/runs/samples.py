"""What a model in training makes of validation clips, beside their recordings, in a folder and in TensorBoard."""

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
from myxtts.runs.last_words import reference_of
from myxtts.runs.pictures import draw_sounds
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

    def __init__(
        self,
        dataset: SpeechDataset,
        folder: str | Path,
        log_folder: str | Path,
        config: XTTSConfig,
        kind: str,
        what: str,
    ):
        self.folder: Path = Path(folder)
        self._figures = EventFile(log_folder)
        self._texts, self._kind, self._what, self._has_recordings = dataset.texts, kind, what, False
        count = min(config.training.num_samples, len(dataset.validation))
        spread = np.linspace(0, len(dataset.validation) - 1, count).round().astype(int)
        self.clips: list[Clip] = [dataset.validation[index] for index in spread]

    def keep(self, step: int, samples: list[Sample]) -> None:
        """Writes a sample for each of `clips`. What a disk does not take is told, and nothing ends."""
        try:
            paths = self._write(step, samples)
        except (OSError, UserError) as error:  # a full disk; sound that is not finite
            message = "The %s of step %d could not be written to %s: %s. Training goes on."
            logger.error(message, self._what, step, self.folder, error)
        else:
            self._figures.write(step, lambda: self._show(samples, paths))
            self._figures.flush()
            self._has_recordings = True

    def _write(self, step, samples):
        """Writes wavs and pictures; returns the paths of the pictures."""
        self.folder.mkdir(exist_ok=True)  # in the run's folder, which is not made anew where it was moved
        stems = [self.folder / f"{self._kind}_{step:06d}_{_file_name(clip)}" for clip in self.clips]
        for stem, clip, sample in zip(stems, self.clips, samples):
            recording = self.folder / f"recording_{_file_name(clip)}.wav"
            if not recording.is_file():
                write_audio(recording, load_samples(clip.wav_path, DECODER_SAMPLE_RATE), DECODER_SAMPLE_RATE)
            write_audio(f"{stem}.wav", sample.samples, sample.sample_rate)
            draw_sounds(f"{stem}.png", self._texts[clip.id], sample.mels, sample.attention)
        return [f"{stem}.png" for stem in stems]

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
        make_synthesizer: Gives one that shares the weights in training. Called once, since its traced functions cost
            seconds to make, and not before the first samples.
        device: To speak on: the model device, as the data device is preparing the next batches meanwhile.
        folder: For wav files and mel pictures; TensorBoard's go into `log_folder`.
    """

    def __init__(
        self,
        dataset: SpeechDataset,
        make_synthesizer: Callable[[], Synthesizer],
        device: str,
        folder: str | Path,
        log_folder: str | Path,
        config: XTTSConfig,
    ):
        self._dataset, self._device = dataset, device
        self._make_synthesizer, self._synthesizer = make_synthesizer, None
        self._seed = config.training.seed
        self._folder = SampleFolder(dataset, folder, log_folder, config, "step", "sample sentences")

    def on_sample(self, step: int):
        clips = self._folder.clips
        if not clips:
            return
        if self._synthesizer is None:
            self._synthesizer = self._make_synthesizer()
        speaking, samples = self._synthesizer, []
        texts = [self._dataset.texts[clip.id] for clip in clips]
        languages = [clip.language for clip in clips]
        with tf.device(self._device):
            voices = [speaking.voice(reference_of(self._dataset, clip)) for clip in clips]
            speeches = speaking.batch(texts, voices, languages, seed=self._seed)
            for clip, voice, speech in zip(clips, voices, speeches):
                mels = {"recording": mel_of(load_samples(clip.wav_path)), "spoken": speech.mel}
                attention = speaking.attention(speech, voice, clip.language)
                samples.append(Sample(speech.samples, speech.sample_rate, mels, attention))
        self._folder.keep(step, samples)


class Copier(Callback):
    """Lets a stage that rebuilds recordings do so with validation clips, after each validation."""

    def __init__(self, dataset: SpeechDataset, trainer: StageTrainer, folder: str | Path, log_folder: str | Path):
        self._trainer, self._stage = trainer, trainer.stage
        name = self._stage.name
        self._folder = SampleFolder(dataset, folder, log_folder, trainer.config, name, f"{name} copies")
        alone = replace(dataset, config=with_batch(dataset.config, name, 1, 1)).validation_loader(name)
        places = {dataset.validation[alone.order.batch(i).indices[0]].id: i for i in range(len(dataset.validation))}
        self._loader, self._positions = alone, [places[clip.id] for clip in self._folder.clips]

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


def _file_name(clip):
    return clip.id.replace("/", "_")
