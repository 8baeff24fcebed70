"""Base classes of training stages, and functions for summed losses. `config/stages.toml` lists the stages."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from myxtts.audio.augment import Change, change_speed, draw_change, limit_speed
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
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
    """A weighted sum of losses, and the variables that are trained to minimize this sum.

    An objective returns each loss as a sum over items, such as tokens. The train step divides the sum by the number
    of items in all replicas and accumulated batches, which gives the mean over the effective batch.
    """

    loss_weights: dict[str, float]
    name = ""
    """Prefix of the names of the objective's variables and losses in checkpoints and logs; empty for the main one."""
    phases: tuple[str, ...] | None = None
    """Phases of the stage in which the objective's variables are trained; None means all."""
    averaged = True
    """Whether to keep moving averages of the trained weights, if weight averaging is on."""
    phase = ""
    """Current phase of the stage (`Stage.phase`), which may select losses. It is set before the losses are traced."""
    compiles_blocks = False
    """Whether the objective itself compiles its blocks with XLA. If so, the train step does not compile gradients."""
    network: keras.Layer
    """Model whose weights are trained."""
    highest_rates: dict[str, float] = {}
    """Maximum learning rates by layer (the first part of a weight's name). Layers not listed here have no maximum."""

    def trainable(self) -> dict[str, Any]:
        """Returns the variables to train, by name. By default, these are the trainable weights of `network`."""
        return {name: v for name, v in named_weights(self.network).items() if v.trainable}

    def counts(self, batch) -> dict[str, tf.Tensor]:
        """Returns, by loss name, the number of items to average over (scalar float32). By default, items are clips."""
        return dict.fromkeys(self.loss_weights, tf.cast(tf.shape(batch[0])[0], tf.float32))

    @abstractmethod
    def loss_sums(self, batch, seed=None) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the sum of each loss over a prepared batch, and statistics for `apply_statistics`, both by name.

        `seed` is the dropout seed, `(2,)` int32. During validation, `seed` is None and dropout is off.
        """

    def apply_statistics(self, statistics: dict[str, tf.Tensor]) -> None:
        """Updates moving averages, if any, with the statistics from `loss_sums`, summed over batches and replicas."""


class Stage(ABC):
    """Base class of training stages. `foundations` are the frozen models that the stage depends on, by stage name."""

    name: str
    """Key in `config.stages.STAGES`."""
    part: str
    """Part of `XTTS` that the stage trains and saves."""
    switches: tuple[str, ...] = ("precision", "tf32", "xla", "ema")
    """Names of the training switches (`config.training.SWITCHES`) that apply to the stage."""

    def __init__(self, config: XTTSConfig, foundations: dict[str, XTTS]):
        if missing := [name for name in STAGES[self.name].builds_on if name not in foundations]:
            raise ValueError(f"The {self.name} stage needs trained models as foundations. Missing: {missing}.")
        self.config, self.foundations = config, foundations
        self.model: XTTS | None = None

    def choose_clips(self, dataset: SpeechDataset, known: Collection[int] = ()) -> SpeechDataset:
        """Returns `dataset` with the clips to use (default: all). `known`: the `id_hash` of clips trained on before."""
        return dataset

    @staticmethod
    def nothing_to_learn(dataset: SpeechDataset) -> str | None:
        """Returns a log message with the reason if the stage cannot be trained on the data set, else None (default)."""
        return None

    def outputs_to_score(self, batch: NamedTuple) -> tuple[np.ndarray, ...] | None:
        """Returns the arrays that `score` needs from a validation batch (default: None). Called on the model device."""

    def score(self, outputs: list) -> dict[str, float]:
        """Returns more validation metrics (default: none). `outputs` are `outputs_to_score` results, one per batch."""
        return {}

    def resynthesize(self, batch: NamedTuple) -> tf.Tensor | None:
        """Resynthesizes the recordings in a prepared validation batch, on the model device. Returns log-mels
        `(B, T, num_mels)`, audio at 24 000 Hz `(B, S)`, or None (default) if the stage cannot resynthesize."""

    def build(self, model: XTTS | None, switches: Switches, starting: dict[str, np.ndarray] | None) -> None:
        """Creates the model unless `model` is given. Called in the strategy's scope, on the model device.

        `starting` contains pretrained weights to load, by name, or is None. `self.foundations` may still be untrained.
        """
        self.model = model or XTTS(self.config.model, parts=(self.part,), precision=switches.precision)
        if starting is not None:
            assign_by_name(self.model.part_weights(self.part), starting, "--init-from")

    def measure(self, dataset: SpeechDataset) -> None:
        """Sets weights after `build`, before the first step; by default, does nothing. A subclass may copy weights from
        `self.foundations` or compute weights from recordings. All workers must get equal values."""

    @abstractmethod
    def updates(self) -> list[Objective]:
        """Returns the updates' objectives; called after `build`, in the strategy's scope, on the model device."""

    def phase(self, step: int, total: int) -> str:
        """Returns the phase at `step` of `total` steps, by default `""`. The phase selects updates and losses."""
        return ""

    def validated(self, objectives: list[Objective]) -> list[Objective]:
        """Returns the objectives for validation. By default, these are `objectives`, the objectives of the updates."""
        return objectives

    @abstractmethod
    def make_preparation(self, device: str) -> Callable[[WaveBatch, int | None], NamedTuple]:
        """Creates the stage's `Preparation` on the data device. Called after `build`."""

    def prepare_step(self, batch, step: int, seed: tuple[int, int]) -> None:
        """Prepares a step on the model device (default: does nothing). `batch` is the first batch of the step."""

    def report(self) -> dict[str, float]:
        """Returns additional metrics for log lines, by name (default: none)."""
        return {}

    def advise(self, figures: dict[str, float]) -> Iterable[str]:
        """Yields warnings with hints (default: none). `figures` are values of a log line, or metrics from `score`."""
        return ()

    def helpers(self) -> dict[str, dict[str, Any]]:
        """Returns the weights used only in training, as `{checkpoint file: {name: variable}}` (default: none)."""
        return {}

    def weight_files(self) -> dict[str, dict[str, Any]]:
        """Returns the weights as `{checkpoint file: {name: variable}}`. Later stages load only the file `model`."""
        return {"model": self.model.part_weights(self.part), **self.helpers()}

    def weight_arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the values of `weight_files`, copied to the host for a checkpoint: `{file: {name: array}}`."""
        return {file: arrays_of(variables) for file, variables in self.weight_files().items()}

    def assign_weights(self, tensors: dict[str, dict[str, np.ndarray]], where: str) -> None:
        """Assigns `tensors`, saved from `weight_arrays`, to the weights. `where` names the checkpoint in errors."""
        for file, variables in self.weight_files().items():
            assign_by_name(variables, tensors[file], where)

    def all_weights(self) -> dict[str, Any]:
        """Returns all variables of the stage's models by name, including frozen ones."""
        helpers = {f"{file}/{name}": v for file, named in self.helpers().items() for name, v in named.items()}
        return named_weights(self.model) | helpers

    def ledger_rows(self, step: "TrainStep", switches: Switches) -> Iterable[LedgerRow]:
        """Yields more rows for the switch report (default: none). Called after the first step that changes weights."""
        return ()


def arrays_of(variables: dict[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Returns the values of variables as arrays on the host, by name."""
    return {name: variable.numpy() for name, variable in variables.items()}


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy of each target: `(..., V)` float32, `(...)` int32 -> `(...)` float32.

    `tf.nn.sparse_softmax_cross_entropy_with_logits` cannot be used: it adds assertions with strings to the graph, and
    strings cannot be placed on a GPU without soft placement.
    """
    if is_op_determinism_enabled():  # GPUs have no deterministic kernel for the fused operation
        return -tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=len(targets.shape))
    shape, classes = tf.shape(targets), logits.shape[-1]
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, (-1, classes)), labels=tf.reshape(targets, (-1,))
    )
    return tf.reshape(losses, shape)


def masked_cross_entropy(logits: tf.Tensor, targets: tf.Tensor, mask: tf.Tensor, label_smoothing=0.0) -> tf.Tensor:
    """Sums the cross-entropy of targets where `mask` is True: `(B, T, V)`, `(B, T)` int32, `(B, T)` bool -> scalar.

    `label_smoothing` is the probability spread evenly over the vocabulary (Szegedy et al. 2016, section 7).
    """
    logits = tf.cast(logits, tf.float32)
    losses = cross_entropy(logits, targets)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return tf.reduce_sum(tf.where(mask, losses, 0.0))


def masked_squared_error(predicted: tf.Tensor, target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sums the squared differences of rows where `mask` is True: `(B, T, C)`, `(B, T, C)`, `(B, T)` bool -> scalar."""
    difference = tf.cast(predicted, tf.float32) - tf.cast(target, tf.float32)
    return tf.reduce_sum(tf.where(mask, tf.reduce_sum(tf.square(difference), axis=-1), 0.0))


class Preparation(ABC):
    """Converts a `WaveBatch` into a stage's batch, on the data device; subclasses define `make_batch`.

    Args:
        model: Model with the mel scale and the frozen parts, on the data device; None if the stage needs no such model.
        device: Name of the data device.
        augment: Whether to augment voices (`audio/augment.py`). A clip and its conditioning clip get the same change.
        seed: Seed of the augmentation.
    """

    def __init__(self, model: XTTS | None, device: str, augment: bool, seed: int):
        self.model, self.device = model, device
        self.augment, self.seed, workers = augment, seed, current_workers()
        self.share = (workers.index, workers.count)
        """`(worker index, number of workers)`, which selects this worker's random numbers in `augment.draw_rows`."""
        self.mel = MelSpectrogram(DVAE_MEL)
        # Unknown sizes: one trace serves all shapes.
        wave = WaveBatch(*(tf.TensorSpec([None] * rank, dtype) for rank, dtype in zip(WAVE_RANKS, WAVE_DTYPES)))
        signature = [wave, tf.TensorSpec((), tf.int32)]
        self._prepare = tf.function(self.make_batch, input_signature=signature, autograph=False)

    def __call__(self, batch: WaveBatch, position: int | None = None) -> NamedTuple:
        """Prepares a batch. Its `position` in the batch order seeds the augmentation; None turns augmentation off."""
        seed_position = tf.constant(-1 if position is None else position, tf.int32)
        with tf.device(self.device):
            return self._prepare(batch, seed_position)

    @abstractmethod
    def make_batch(self, batch: WaveBatch, position: tf.Tensor) -> NamedTuple:
        """Creates the stage's batch in a `tf.function`. A negative `position` (scalar int32) turns augmentation off."""

    def change_voice(self, batch: WaveBatch, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Change]:
        """Returns the augmented waveforms `(B, S)`, their lengths `(B,)`, and the `Change` that was applied."""
        size = tf.shape(batch.wav)[0], self.mel.spec.num_mels
        if not self.augment:
            return batch.wav, batch.wav_lengths, Change(tf.ones(size[:1]), tf.zeros((size[0], 1, size[1])))
        change = draw_change(*size, self.seed, position, position >= 0, self.share)
        change = change._replace(speed=limit_speed(change.speed, batch.wav_lengths, tf.shape(batch.wav)[1]))
        return *change_speed(batch.wav, batch.wav_lengths, change.speed), change

    def log_mel(self, extractor: MelSpectrogram, wav: tf.Tensor, change: Change) -> tf.Tensor:
        """Returns the normalized log-mel `(B, T, num_mels)` of `wav`. Applies the gain and equalization in `change`."""
        log_mel = extractor(wav, by_clip=runs_on_cpu(self.device))
        floor = math.log(extractor.spec.log_floor)
        # A gain must not raise silence above the floor.
        changed = tf.where(log_mel > floor + 1e-3, tf.maximum(log_mel + change.offset, floor), log_mel)
        return self.model.normalize_mel(changed if self.augment else log_mel)
