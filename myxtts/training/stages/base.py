"""A stage of training: which part of the model it trains, on what, and by which updates.

A stage is a subclass of `Stage` in a file of its own; `config/stages.py` names it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES, StageConfig
from myxtts.data.batch import WaveBatch
from myxtts.data.dataset import SpeechDataset
from myxtts.models.xtts import XTTS, named_weights
from myxtts.storage.checkpoint import assign_by_name
from myxtts.training.loop.optimizations import Switches
from myxtts.training.watching.ledger import LedgerRow

if TYPE_CHECKING:
    from myxtts.training.loop.step import TrainStep


class Objective(ABC):
    """What one update minimizes, and the weights that it may change.

    Losses are sums over items, so that batches of several replicas and accumulation steps share one mean: the train
    step divides the sum of each loss by the number of items over all of them.
    """

    loss_weights: dict[str, float]
    """Weight of each loss, by name."""
    phase = ""
    """The stage's phase that is being traced; see `Stage.phase`."""

    @abstractmethod
    def trainable(self) -> dict[str, Any]:
        """Variables that the update changes, by name."""

    @abstractmethod
    def counts(self, batch) -> dict[str, tf.Tensor]:
        """Number of items that each loss is over, scalar float32 by name."""

    @abstractmethod
    def loss_sums(self, batch, seed=None) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Sum of each loss over a prepared batch, and statistics for `apply_statistics`.

        `seed` is `(2,)` int32, of dropout; None at validation, without dropout.
        """

    def apply_statistics(self, statistics: dict[str, tf.Tensor]) -> None:
        """Applies the statistics of one step, summed over batches and replicas."""


class Update(NamedTuple):
    """One update of a step. Those of a stage take turns: each sees the weights that the one before left."""

    name: str
    """Prefix of its state in checkpoints and of its figures; empty for the only update of a stage."""
    objective: Objective
    settings: StageConfig
    """Its optimizer and clipping; its learning rate keeps its ratio to the stage's."""
    phases: tuple[str, ...] | None = None
    """Phases of the stage in which it has its turn; None: all."""
    averaged: bool = True
    """Whether averages of its weights are kept where the run has any."""


class Stage(ABC):
    """One stage of training, for one run; `foundations` are frozen models by stage, on the data device."""

    name: str
    """Key in `config.stages.STAGES`."""
    part: str
    """Part of `XTTS` that it trains; the stage's checkpoints hold the weights of that part."""
    main_loss: str
    """Loss that decides which checkpoint is the best."""
    switches: tuple[str, ...] = ("precision", "tf32", "xla", "ema")
    """Which of `config.optimizations.SWITCHES` apply to it."""
    default_ema = 0.0
    """Decay of the weight averages where neither settings nor preset ask for one."""
    speaks = False
    """Whether its samples can be spoken while it is trained."""
    takes_init_from = False
    """Whether a fresh run may start from another run's weights of this part."""
    tuned_with_all = True
    """Whether it does so in a run of all stages, too; otherwise they are kept there unchanged."""

    def __init__(self, config: XTTSConfig, foundations: dict[str, XTTS]):
        missing = [name for name in STAGES[self.name].builds_on if name not in foundations]
        if missing:
            raise ValueError(
                f"The {self.name} stage builds on a trained {missing[0].upper()}. Give it as "
                f"foundations={{{missing[0]!r}: model}}, an XTTS with that part on the data device."
            )
        self.config, self.foundations = config, foundations
        self.model: XTTS | None = None

    @classmethod
    def measure(cls, dataset) -> Any:
        """What a fresh start measures on the training clips of a `SpeechDataset`; `begin` takes it."""
        return None

    def choose_clips(self, dataset: SpeechDataset) -> SpeechDataset:
        """The data set with the clips that the stage is trained and validated on."""
        return dataset

    def nothing_to_learn(self, dataset: SpeechDataset) -> str | None:
        """The reason, as a sentence, why the stage cannot learn from these clips and ends at once; else None."""
        return None

    def look(self, batch: NamedTuple) -> Any:
        """What `judge` needs of a prepared validation batch, arrays or None; called on the model device."""

    def judge(self, looks: list) -> dict[str, float]:
        """Validation figures beyond the means of losses, from the results of `look`."""
        return {}

    def copies(self, batch: NamedTuple) -> tuple[tf.Tensor, tf.Tensor] | None:
        """The recordings of a prepared validation batch and their resynthesis, on the model device; None if neither.

        Both are log-mels `(B, T, num_mels)`, or audio at 24 000 Hz, `(B, S)`.
        """
        return None

    def build(self, model: XTTS | None, switches: Switches, measured: Any, starting: dict[str, np.ndarray] | None):
        """Makes the model or takes the one given; to be called in the strategy's scope, on the model device.

        `measured` is from `measure`, or None where a checkpoint brings it; `starting` are the weights by name that a
        fresh run starts from instead of random ones.
        """
        self.model = model or XTTS(self.config.model, parts=(self.part,), precision=switches.precision)
        self.begin(switches, measured)
        if starting is not None:
            assign_by_name(self.model.part_weights(self.part), starting, "--init-from")

    def lacks_measurement(self) -> bool:
        """Whether a fresh start must still `measure` the recordings; asked before the first step."""
        return False

    def begin(self, switches: Switches, measured: Any) -> None:
        """Prepares the model for training, before starting weights are assigned."""

    @abstractmethod
    def updates(self, settings: StageConfig) -> list[Update]:
        """The updates of one step; to be called in the strategy's scope, on the model device, after `build`."""

    def phase(self, step: int, total: int) -> str:
        """The phase of a step, which decides which updates and losses take part. The step is traced once for each."""
        return ""

    def validated(self, objectives: list[Objective]) -> list[Objective]:
        """Objectives of the validation, given those of the updates."""
        return objectives

    @abstractmethod
    def make_preparation(self, device: str, shares_device: bool) -> Callable[[WaveBatch, int | None], NamedTuple]:
        """The `Preparation` on the data device, which `shares_device` if the model is trained there as well."""

    def prepare_step(self, batch, step: int, seed: tuple[int, int]) -> None:
        """Called on the model device before each step, with its (first) batch, which is distributed over replicas."""

    def report(self) -> dict[str, float]:
        """Figures beyond the losses for a log line."""
        return {}

    def advise(self, figures: dict[str, float]) -> Iterable[str]:
        """Warnings for the user about a log line's figures, each with what to change."""
        return ()

    def helpers(self) -> dict[str, dict[str, Any]]:
        """Weights that only training needs, by name, by their file in a checkpoint."""
        return {}

    def weight_arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """The weights as a checkpoint keeps them, `{file: {name: array}}`; `model` is what other stages load."""
        own = {"model": self.model.part_weights(self.part), **self.helpers()}
        return {file: arrays_of(variables) for file, variables in own.items()}

    def weight_files(self) -> Iterable[str]:
        """Files of `weight_arrays`."""
        return "model", *self.helpers()

    def assign_weights(self, tensors: dict[str, dict[str, np.ndarray]], where: str) -> None:
        """Inverse of `weight_arrays`; `where` names the checkpoint in messages."""
        for file, variables in {"model": self.model.part_weights(self.part), **self.helpers()}.items():
            assign_by_name(variables, tensors[file], where)

    def all_weights(self) -> dict[str, Any]:
        """Every variable of the stage's models by name, trained or not."""
        helpers = {f"{file}/{name}": v for file, named in self.helpers().items() for name, v in named.items()}
        return named_weights(self.model) | helpers

    def ledger_rows(self, step: "TrainStep", switches: Switches) -> Iterable[LedgerRow]:
        """Rows of the ledger about the switches that this stage alone applies, seen in its first step."""
        return ()


def arrays_of(variables: dict[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Copies of variables on the host, by name."""
    return {name: variable.numpy() for name, variable in variables.items()}
