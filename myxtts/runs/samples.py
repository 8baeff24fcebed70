"""Sample sentences spoken during training, into a folder and into TensorBoard."""

import logging
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import tensorflow as tf

from myxtts.audio.files import write_wav
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.data.dataset import SpeechDataset
from myxtts.inference.synthesizer import Synthesizer
from myxtts.runs.last_words import reference_of
from myxtts.storage.files import write_whole
from myxtts.training.callbacks import Callback, EventFile

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  the backend must be chosen first

logger = logging.getLogger(__name__)


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
        self.folder: Path = Path(folder)
        self._dataset, self._device = dataset, device
        self._make_synthesizer, self._synthesizer = make_synthesizer, None
        self._figures = EventFile(log_folder)
        self._seed = config.training.seed
        count = min(config.training.num_samples, len(dataset.validation))
        spread = np.linspace(0, len(dataset.validation) - 1, count).round().astype(int)
        self._clips = [dataset.validation[index] for index in spread]

    def on_sample(self, step: int):
        if not self._clips:
            return
        if self._synthesizer is None:
            self._synthesizer = self._make_synthesizer()
        texts = [self._dataset.texts[clip.id] for clip in self._clips]
        languages = [clip.language for clip in self._clips]
        with tf.device(self._device):
            voices = [self._synthesizer.voice(reference_of(self._dataset, clip)) for clip in self._clips]
            speeches = self._synthesizer.batch(texts, voices, languages, seed=self._seed)
        try:
            paths = self._write(step, speeches)
        except OSError as error:
            message = "The sample sentences of step %d could not be written to %s: %s. Training goes on."
            logger.error(message, step, self.folder, error)
        else:
            self._figures.write(step, lambda: self._show(speeches, paths))
            self._figures.flush()

    def _write(self, step, speeches):
        """Writes wavs and pictures; returns the paths of the pictures."""
        self.folder.mkdir(exist_ok=True)  # in the run's folder, which is not made anew where it was moved
        stems = [self.folder / f"step_{step:06d}_{clip.id.replace('/', '_')}" for clip in self._clips]
        for stem, clip, speech in zip(stems, self._clips, speeches):
            write_wav(f"{stem}.wav", speech.samples, speech.sample_rate)
            draw_mel(speech.mel, clip.id, f"{stem}.png")
        return [f"{stem}.png" for stem in stems]

    def _show(self, speeches, pictures):
        for clip, speech, picture in zip(self._clips, speeches, pictures):
            # TensorBoard shows one kind of thing under a tag.
            tf.summary.audio(f"speech/{clip.id}", speech.samples[None, :, None], speech.sample_rate)
            tf.summary.image(f"mel/{clip.id}", pyplot.imread(picture)[None])


def draw_mel(mel: np.ndarray, title: str, path: str | Path):
    """Writes a picture of a log-mel `(T, num_mels)`."""
    figure, axes = pyplot.subplots(figsize=(8, 3), dpi=80)
    extent = (0, len(mel) * MEL_HOP_SAMPLES / MODEL_SAMPLE_RATE, 0, mel.shape[1])
    image = axes.imshow(mel.T, origin="lower", aspect="auto", interpolation="nearest", extent=extent)
    axes.set(xlabel="seconds", ylabel="mel band")
    axes.set_title(title[:80], parse_math=False)  # a text may hold dollar signs
    figure.colorbar(image, ax=axes, label="log power")
    figure.tight_layout()
    try:
        with write_whole(path) as temporary:
            figure.savefig(temporary, format="png")
    finally:
        pyplot.close(figure)
