"""What a training stage is made of: `Stage`, `Objective`, `Update`, `Preparation`, and losses summed over items.

A stage is a subclass of `Stage` in a file of its own; `config/stages.py` lists it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from myxtts.audio.augment import Change, change_speed, draw_change, limit_speed
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES, StageConfig
from myxtts.data.batch import WAVE_DTYPES, WAVE_RANKS, WaveBatch
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.machine import runs_on_cpu
from myxtts.distributed.workers import current_workers
from myxtts.models.xtts import XTTS, named_weights
from myxtts.storage.checkpoint import assign_by_name
from myxtts.training.loop.switches import LedgerRow, Switches

if TYPE_CHECKING:
    from myxtts.training.loop.step import TrainStep


class Objective(ABC):
    """A weighted sum of losses, and the weights that are trained to minimize it.

    Each loss is a sum over items. The train step divides it by the number of items over all replicas and accumulated
    batches, so that they share one mean.
    """

    loss_weights: dict[str, float]
    """Weight of each loss, by name."""
    phase = ""
    """The stage's phase that is being traced; see `Stage.phase`."""

    @abstractmethod
    def trainable(self) -> dict[str, Any]:
        """Returns the variables that the update changes, by name."""

    @abstractmethod
    def counts(self, batch) -> dict[str, tf.Tensor]:
        """Returns the number of items of each loss, scalar float32 by name."""

    @abstractmethod
    def loss_sums(self, batch, seed=None) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the sum of each loss over a prepared batch, and statistics for `apply_statistics`.

        `seed` is the dropout seed, `(2,)` int32; None, at validation, turns dropout off.
        """

    def apply_statistics(self, statistics: dict[str, tf.Tensor]) -> None:
        """Applies the statistics of one step, summed over batches and replicas."""


class Update(NamedTuple):
    """One update of a step. The updates of a stage run in order, each on the weights that the one before left."""

    name: str
    """Prefix of its state in checkpoints and of its figures; empty for the main update."""
    objective: Objective
    settings: StageConfig
    """Its optimizer and clipping; its learning rate keeps its ratio to the stage's."""
    phases: tuple[str, ...] | None = None
    """Phases of the stage in which it runs; None: all."""
    averaged: bool = True
    """Whether moving averages of the weights that it updates are kept, if the run keeps any."""


class Stage(ABC):
    """One stage of a training run; `foundations` are the frozen models it depends on, by stage, on the data device."""

    name: str
    """Key in `config.stages.STAGES`."""
    part: str
    """Part of `XTTS` that it trains; its checkpoints hold the weights of that part."""
    main_loss: str
    """Validation loss that decides which checkpoint is the best."""
    switches: tuple[str, ...] = ("precision", "tf32", "xla", "ema")
    """Switches of `config.training.SWITCHES` that apply to it."""
    default_ema = 0.0
    """Decay of the weight averages if neither settings nor preset give one."""
    speaks = False
    """Whether samples can be synthesized while it trains."""
    takes_init_from = False
    """Whether a new run may start from another run's weights of this part."""
    tuned_with_all = True
    """Whether a run of all stages fine-tunes weights from `--init-from`; otherwise it keeps them unchanged."""

    def __init__(self, config: XTTSConfig, foundations: dict[str, XTTS]):
        missing = [name for name in STAGES[self.name].builds_on if name not in foundations]
        if missing:
            raise ValueError(f"The {self.name} stage needs trained models as foundations. Missing: {missing}.")
        self.config, self.foundations = config, foundations
        self.model: XTTS | None = None

    def choose_clips(self, dataset: SpeechDataset) -> SpeechDataset:
        """Returns the data set with the clips to train and validate on."""
        return dataset

    @staticmethod
    def nothing_to_learn(dataset: SpeechDataset) -> str | None:
        """Returns why these clips cannot train the stage, as a sentence for the log; None if they can."""
        return None

    def look(self, batch: NamedTuple) -> Any:
        """Returns what `judge` needs of a prepared validation batch, arrays or None; called on the model device."""

    def judge(self, looks: list) -> dict[str, float]:
        """Returns validation figures other than losses, computed from the results of `look`."""
        return {}

    def copies(self, batch: NamedTuple) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Returns the recordings of a prepared validation batch and their resynthesis, or None if there is none.

        Both are log-mels `(B, T, num_mels)` or audio at 24 000 Hz, `(B, S)`. Called on the model device.
        """
        return None

    def build(self, model: XTTS | None, switches: Switches, starting: dict[str, np.ndarray] | None) -> None:
        """Makes the model, or adopts the one given; called in the strategy's scope, on the model device.

        `starting` are pretrained weights by name; they replace the random initialization of a new run.
        """
        self.model = model or XTTS(self.config.model, parts=(self.part,), precision=switches.precision)
        if starting is not None:
            assign_by_name(self.model.part_weights(self.part), starting, "--init-from")

    def measure(self, dataset: SpeechDataset) -> None:
        """Sets initial weights that depend on the recordings, unless the model has them."""

    def begin(self) -> None:
        """Called before the first step of a run, when the weights are set and equal on all workers."""

    @abstractmethod
    def updates(self, settings: StageConfig) -> list[Update]:
        """Returns the updates of one step; called after `build`, in the strategy's scope, on the model device."""

    def phase(self, step: int, total: int) -> str:
        """Returns the phase of a step, which decides its updates and losses. The step is traced once per phase."""
        return ""

    def validated(self, objectives: list[Objective]) -> list[Objective]:
        """Returns the objectives to validate with, given those of the updates."""
        return objectives

    @abstractmethod
    def make_preparation(self, device: str, shares_device: bool) -> Callable[[WaveBatch, int | None], NamedTuple]:
        """Makes the `Preparation` on the data device; `shares_device` if the model is trained there as well."""

    def prepare_step(self, batch, step: int, seed: tuple[int, int]) -> None:
        """Runs on the model device before each step, with its first batch, distributed over replicas."""

    def report(self) -> dict[str, float]:
        """Returns figures other than losses for a log line."""
        return {}

    def advise(self, figures: dict[str, float]) -> Iterable[str]:
        """Yields warnings about a log line's figures, each with what to change."""
        return ()

    def helpers(self) -> dict[str, dict[str, Any]]:
        """Returns the weights that only training needs, `{file in a checkpoint: {name: variable}}`."""
        return {}

    def weight_arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the weights for a checkpoint, `{file: {name: array}}`; other stages load `model`."""
        own = {"model": self.model.part_weights(self.part), **self.helpers()}
        return {file: arrays_of(variables) for file, variables in own.items()}

    def weight_files(self) -> Iterable[str]:
        """Returns the file names of `weight_arrays`."""
        return "model", *self.helpers()

    def assign_weights(self, tensors: dict[str, dict[str, np.ndarray]], where: str) -> None:
        """Assigns what `weight_arrays` returned; `where` names the checkpoint in messages."""
        for file, variables in {"model": self.model.part_weights(self.part), **self.helpers()}.items():
            assign_by_name(variables, tensors[file], where)

    def all_weights(self) -> dict[str, Any]:
        """Returns every variable of the stage's models by name, trained or not."""
        helpers = {f"{file}/{name}": v for file, named in self.helpers().items() for name, v in named.items()}
        return named_weights(self.model) | helpers

    def ledger_rows(self, step: "TrainStep", switches: Switches) -> Iterable[LedgerRow]:
        """Yields ledger rows for the switches that only this stage applies, as seen in its first step."""
        return ()


def arrays_of(variables: dict[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Copies variables to the host, by name."""
    return {name: variable.numpy() for name, variable in variables.items()}


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of each target: `(..., V)` float32, `(...)` int32 -> `(...)` float32.

    `tf.nn.sparse_softmax_cross_entropy_with_logits` cannot be used: it adds assertions to the graph, whose strings
    cannot be placed on a GPU without soft placement.
    """
    if is_op_determinism_enabled():  # GPUs have no deterministic kernel of the fused operation
        return -tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=len(targets.shape))
    shape, classes = tf.shape(targets), logits.shape[-1]
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, (-1, classes)), labels=tf.reshape(targets, (-1,))
    )
    return tf.reshape(losses, shape)


def masked_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, mask: tf.Tensor, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Sum of the cross-entropy over unmasked targets: `(B, T, V)`, `(B, T)` int32, `(B, T)` bool -> scalar.

    `label_smoothing` is the probability spread evenly over the vocabulary (Szegedy et al. 2016, section 7).
    """
    logits = tf.cast(logits, tf.float32)
    losses = cross_entropy(logits, targets)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return tf.reduce_sum(tf.where(mask, losses, 0.0))


def masked_squared_error(predicted: tf.Tensor, target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of the squared differences over unmasked rows: `(B, T, C)`, `(B, T, C)`, `(B, T)` bool -> scalar."""
    difference = tf.cast(predicted, tf.float32) - tf.cast(target, tf.float32)
    return tf.reduce_sum(tf.where(mask, tf.reduce_sum(tf.square(difference), axis=-1), 0.0))


class Preparation(ABC):
    """Turns a `WaveBatch` into a stage's batch; each stage has its own `make_batch`.

    Args:
        model: Mel scale and frozen parts, on the data device.
        device: Name of the data device.
        augment: Whether to change voices at random (`audio/augment.py`), a clip and its conditioning clip alike.
        seed: Seed of the augmentation.
    """

    def __init__(self, model: XTTS, device: str, augment: bool, seed: int):
        self.model, self.device = model, device
        self.augment, self.seed, workers = augment, seed, current_workers()
        self.share = (workers.index, workers.count)
        """Index and number of the parts that the workers split each batch into; see `augment.draw_rows`."""
        self.mel = MelSpectrogram(DVAE_MEL)
        # Unknown sizes: one trace serves all shapes.
        wave = WaveBatch(*(tf.TensorSpec([None] * rank, dtype) for rank, dtype in zip(WAVE_RANKS, WAVE_DTYPES)))
        self._prepare = tf.function(self.make_batch, input_signature=[wave, tf.TensorSpec((), tf.int32)])

    def __call__(self, batch: WaveBatch, position: int | None = None) -> NamedTuple:
        """Prepares a batch from any device. Its training position seeds the augmentation; None turns that off."""
        seed_position = tf.constant(-1 if position is None else position, tf.int32)
        with tf.device(self.device):
            return self._prepare(batch, seed_position)

    @abstractmethod
    def make_batch(self, batch: WaveBatch, position: tf.Tensor) -> NamedTuple:
        """Returns the stage's batch; `position` is scalar int32, below 0 for no augmentation. Traced once."""

    def change_voice(self, batch: WaveBatch, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Change]:
        """Returns waveforms and lengths with the voices changed, and the change."""
        size = tf.shape(batch.wav)[0], self.mel.spec.num_mels
        if not self.augment:
            unchanged = Change(tf.ones(size[:1]), tf.zeros((size[0], 1, size[1])))
            return batch.wav, batch.wav_lengths, unchanged
        change = draw_change(*size, self.seed, position, position >= 0, self.share)
        change = change._replace(speed=limit_speed(change.speed, batch.wav_lengths, tf.shape(batch.wav)[1]))
        return *change_speed(batch.wav, batch.wav_lengths, change.speed), change

    def log_mel(self, extractor: MelSpectrogram, wav: tf.Tensor, change: Change) -> tf.Tensor:
        """Returns the normalized log-mel of `wav`, `(B, T, num_mels)`, with the gain and equalization of `change`."""
        log_mel = extractor(wav, in_chunks=runs_on_cpu(self.device))
        floor = math.log(extractor.spec.log_floor)
        # Silence stays silence at any level.
        changed = tf.where(log_mel > floor + 1e-3, tf.maximum(log_mel + change.offset, floor), log_mel)
        return self.model.normalize_mel(changed if self.augment else log_mel)
