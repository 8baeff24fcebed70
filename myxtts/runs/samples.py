"""Sample sentences spoken during training, into a folder and into TensorBoard."""

import logging
from pathlib import Path

import matplotlib
import numpy as np
import tensorflow as tf

from myxtts.audio.files import write_wav
from myxtts.data.pipeline import load_samples
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import XTTS
from myxtts.storage.files import write_whole
from myxtts.training.callbacks import Callback

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  the backend must be chosen first

logger = logging.getLogger(__name__)


class SampleSpeaker(Callback):
    """Speaks validation sentences, each in the voice of another recording of its speaker where there is one.

    Args:
        dataset: `SpeechDataset`.
        tokenizer_model: `XTTS` with the DVAE.
        folder: For wav files and mel pictures.
        log_folder: For TensorBoard.
    """

    def __init__(self, dataset, tokenizer_model, folder, log_folder):
        self.dataset = dataset
        self.tokenizer_model = tokenizer_model
        self.folder = Path(folder)
        self.log_folder = log_folder
        self._writer = None
        self._synthesizer = None

    def on_start(self, trainer, total_steps, placement):
        count = min(trainer.config.training.num_samples, len(self.dataset.validation))
        spread = np.linspace(0, len(self.dataset.validation) - 1, count).round().astype(int)
        self._clips = [self.dataset.validation[index] for index in spread]
        self._writer = tf.summary.create_file_writer(self.log_folder)

    def _reference(self, clip):
        voice = (clip.speaker, clip.language)
        same = [other for other in self.dataset.train if (other.speaker, other.language) == voice]
        return load_samples((same or [clip])[0].wav_path)

    def on_sample(self, trainer):
        if not self._clips:
            return
        if self._synthesizer is None:
            # Once: it shares the weights that training changes, and its traced functions cost seconds to make.
            model = XTTS.assemble(trainer.config.model, self.tokenizer_model, trainer.model)
            self._synthesizer = Synthesizer(model, self.dataset.tokenizer, trainer.config)
        texts = [self.dataset.texts[clip.id] for clip in self._clips]
        # The data device, which TensorFlow would take, is preparing the next batches meanwhile.
        with tf.device(trainer.model_device):
            voices = [self._synthesizer.voice(self._reference(clip)) for clip in self._clips]
            speeches = self._synthesizer.speak_batch(
                texts, voices, [clip.language for clip in self._clips], seed=trainer.config.training.seed
            )
        try:
            self._write(trainer.step, speeches)
        except OSError as error:
            logger.error(
                "The sample sentences of step %d could not be written to %s: %s. Training goes on.",
                trainer.step,
                self.folder,
                error,
            )

    def _write(self, step, speeches):
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._writer.as_default(step=step):
            for clip, speech in zip(self._clips, speeches):
                stem = self.folder / f"step_{step:06d}_{clip.id.replace('/', '_')}"
                write_wav(f"{stem}.wav", speech.samples, speech.sample_rate)
                draw_mel(speech.mel, clip.id, f"{stem}.png")
                picture = pyplot.imread(f"{stem}.png")[None]
                # TensorBoard shows one kind of thing under a tag.
                tf.summary.audio(f"speech/{clip.id}", speech.samples[None, :, None], speech.sample_rate)
                tf.summary.image(f"mel/{clip.id}", picture)
        self._writer.flush()


def draw_mel(mel, title, path):
    """Writes a picture of a log-mel `(T, num_mels)`."""
    figure, axes = pyplot.subplots(figsize=(8, 3), dpi=80)
    image = axes.imshow(
        mel.T,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0, len(mel) * 256 / 22050, 0, mel.shape[1]),
    )
    axes.set(xlabel="seconds", ylabel="mel band")
    axes.set_title(title[:80], parse_math=False)  # a text may hold dollar signs
    figure.colorbar(image, ax=axes, label="log power")
    figure.tight_layout()
    with write_whole(path) as temporary:
        figure.savefig(temporary, format="png")
    pyplot.close(figure)
