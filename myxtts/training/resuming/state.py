"""The state of a stage's training, as a checkpoint keeps it.

All random draws are functions of the seed and a position (docs/architecture.md), so weights, optimizer state and
positions are enough. Whatever else must survive a stop is one of `TrainingState.parts`.
"""

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import myxtts
from myxtts.config.config import XTTSConfig
from myxtts.data.buckets import BatchOrder, EpochStart
from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import Clip
from myxtts.devices.machine import read_processor
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import digest_bytes, new_hasher
from myxtts.storage.saved_state import config_of, refusing_damage

logger = logging.getLogger(__name__)

CLIPS = "clips"
"""Tensor file of a checkpoint that holds `ClipRecord.arrays`."""
_IDENTITY_BYTES = 8
_ARRAYS = {"identity": "uint64", "heard_at_start": "uint8", "heard": "uint8"}


@dataclass
class TrainingState:
    """Progress of a stage's training; only the trainer changes it."""

    lineage: dict = field(default_factory=dict)
    """What the stage builds on, as JSON values; a checkpoint made on something else is not resumed."""
    follows: tuple[str, ...] = ()
    """Names in `lineage` that may have been trained on since a checkpoint: `StageEntry.follows`."""
    step: int = 0
    """Optimizer steps taken."""
    position: int = 0
    """Batches trained on, which is the place in the order of the data."""
    data_digest: str | None = None
    """Identifies the training clips that the position counts in."""
    clips: "OrderedClips | None" = None
    """These clips in their order, once training has begun."""
    record: "ClipRecord | None" = None
    """What the resumed checkpoint says about its clips; None where it says nothing."""
    history: list[dict] = field(default_factory=list)
    """Validation losses: `step` and each loss by name."""
    best: tuple[float, int] | None = None
    """`(main validation loss or score of an evaluation, step)` so far."""
    best_by: str = "loss"
    """Which of the two: `training.best_by`."""
    stale_evaluations: int = 0
    """Evaluations in a row without a better score."""
    least_score: float | None = None
    """The best score of an evaluation so far."""
    finished: bool = False
    """Whether the stage's last step was taken, at the checkpoint written or read last."""
    parts: dict[str, Any] = field(default_factory=dict)
    """Other objects that a checkpoint keeps, by name, through their `state()`, JSON values, and `restore(state)`."""

    def improves(self, by: str, value: float) -> bool:
        """Records a figure of this step, lower is better; returns whether this is the best step so far."""
        if by != self.best_by or not math.isfinite(value) or self.best is not None and value >= self.best[0]:
            return False
        self.best = (value, self.step)
        return True

    def scored(self, score: float) -> bool:
        """Records an evaluation's score; returns as `improves`."""
        is_less = math.isfinite(score) and (self.least_score is None or score < self.least_score)
        self.least_score = score if is_less else self.least_score
        self.stale_evaluations = 0 if is_less else self.stale_evaluations + 1
        return self.improves("evaluation", score)

    def as_dict(self) -> dict:
        """The state as JSON values."""
        names = "finished lineage best best_by stale_evaluations least_score position".split()
        parts = {name: part.state() for name, part in self.parts.items()}
        found = {name: getattr(self, name) for name in names}
        return {**found, "history": list(self.history), "data": self.data_digest, "parts": parts}

    def restore(self, step: int, saved: dict, where: str) -> None:
        """Inverse of `as_dict` at `step`; `where` names the checkpoint.

        Raises:
            CheckpointError: It is of no run, of another lineage, or lacks one of `parts`.
        """
        if "position" not in saved:
            raise CheckpointError(f"{where} holds weights but no run to continue. Start from them with --init-from.")
        moved = [name for name in self.lineage if saved["lineage"].get(name) != self.lineage[name]]
        if saved["lineage"].keys() != self.lineage.keys() or set(moved) - set(self.follows):
            raise CheckpointError(
                f"{where} was trained on the codes of another DVAE, which mean something else. Restore that DVAE, or "
                "train the stage from the start with --reset-training."
            )
        if moved:
            logger.info("Trained on since %s: the %s. Its validation losses are not compared.", where, ", ".join(moved))
        missing = ", ".join(sorted(self.parts.keys() - saved["parts"].keys()))
        if missing:
            raise CheckpointError(f"{where} was written without {missing}. Start over with --reset-training.")
        self.step, self.position, self.history = step, saved["position"], saved["history"]
        same = saved["best_by"] == self.best_by and not moved
        self.best = tuple(saved["best"]) if saved["best"] and same else None
        self.stale_evaluations, self.least_score = saved["stale_evaluations"], saved["least_score"]
        self.data_digest, self.finished = saved["data"], saved["finished"]
        with refusing_damage(where):
            for name, part in self.parts.items():
                part.restore(saved["parts"][name])

    def take_up(self, dataset: SpeechDataset, stage: str) -> SpeechDataset:
        """The data set with its clips in an order that continues from this state."""
        clips, start = OrderedClips(dataset.train, dataset.order(stage)), EpochStart()
        if self.record is not None:
            start, changed = clips.continuing(self.record)
            if changed:
                logger.warning("%s", changed)
        dataset = replace(dataset, starts={**dataset.starts, stage: start})
        clips.order = dataset.order(stage)
        self.data_digest, self.clips = data_digest(dataset.train), clips
        return dataset


def data_digest(clips: Iterable) -> str:
    """Identifies a list of `Clip`s in their order, on which the order of batches depends."""
    hasher = new_hasher()
    for clip in clips:
        hasher.update(json.dumps([clip.id, clip.num_samples, clip.tokens]).encode())
    return hasher.hexdigest()


def versions() -> dict[str, str]:
    """Versions that determine the last bits of a loss; a CPU's threads share sums, so their number counts, too."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS")
    found = {"myxtts": myxtts.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}
    return found | {"threads": str(threads or read_processor().cores)}


def differences(saved: dict, config: XTTSConfig, where: str) -> Iterator[str]:
    """Lines on what makes the losses differ from those of an unbroken run; `where` names the checkpoint."""
    before, now = (one.recipe() for one in (config_of(saved, where) or config, config))
    changed = [name for name, value in now.items() if value != before.get(name) and not name.startswith("sampling.")]
    if changed:
        told = (f"{name} {before.get(name)!r} -> {now[name]!r}" for name in changed)
        yield f"Settings changed since the checkpoint: {'; '.join(told)}"
    then = saved["versions"]
    now = {name: value for name, value in versions().items() if name in then}
    if then != now:
        then, now = (", ".join(f"{name} {value}" for name, value in found.items()) for found in (then, now))
        yield f"The checkpoint was written with {then:.300}; now it is {now}: last bits may differ."


@dataclass(frozen=True, eq=False)
class ClipRecord:
    """What a checkpoint keeps of the order of clips."""

    identities: np.ndarray
    """`(N,)` uint64, a digest of each clip's id."""
    digest: str
    """Identifies the order but for its start: where it is the same, so are the batches."""
    start: EpochStart
    """Where the order began."""
    cut: EpochStart
    """Where it was at the checkpoint; another order continues from there."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors of the file `CLIPS`."""
        marks = np.zeros((2, len(self.identities)), np.uint8)
        for row, place in zip(marks, (self.start, self.cut)):
            row[place.heard] = 1
        return dict(zip(_ARRAYS, (self.identities, *marks)))

    def state(self) -> dict:
        """JSON values for the checkpoint's state."""
        numbers = ([place.position, place.epoch, place.offset] for place in (self.start, self.cut))
        return {"digest": self.digest, **dict(zip(("start", "cut"), numbers))}

    @classmethod
    def restore(cls, arrays: dict[str, np.ndarray], state: dict, position: int, where: str) -> "ClipRecord":
        """Inverse of `arrays` and `state`, at a position; raises `CheckpointError` where they are of none."""
        dtypes = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
        lengths = {array.size for array in arrays.values()}
        numbers = [state.get(name) for name in ("start", "cut")]
        counts = [isinstance(place, list) and len(place) == 3 and all(map(_is_count, place)) for place in numbers]
        is_whole = dtypes == {name: (dtype, 1) for name, dtype in _ARRAYS.items()} and len(lengths) == 1 and all(counts)
        if not is_whole or not numbers[0][0] <= numbers[1][0] == position:
            raise CheckpointError(f"{where} is damaged: it does not say which clips the run has had.")
        identities, *marks = (arrays[name] for name in _ARRAYS)
        places = (EpochStart(*place, np.flatnonzero(row)) for place, row in zip(numbers, marks))
        return cls(identities, state.get("digest"), *places)


def _is_count(value):
    return type(value) is int and 0 <= value < 2**62


class OrderedClips:
    """The clips of a run in the order of a stage's batches, whose indices count in `clips`."""

    def __init__(self, clips: Sequence[Clip], order: BatchOrder):
        digests = (digest_bytes(clip.id.encode("utf-8", "surrogatepass"), _IDENTITY_BYTES) for clip in clips)
        self.identities = np.array([int(digest, 16) for digest in digests], np.uint64)
        self.order = order
        hasher = new_hasher()
        hasher.update(self.identities.tobytes() + order.digest().encode())
        self._digest = hasher.hexdigest()

    def record(self, position: int) -> ClipRecord:
        """The record of a checkpoint at `position`."""
        return ClipRecord(self.identities, self._digest, self.order.start_at(position), self.order.cut(position))

    def continuing(self, record: ClipRecord) -> tuple[EpochStart, str | None]:
        """Where the order has to begin to continue from a record, and a warning if it is another order."""
        if record.digest == self._digest:
            return record.start, None
        heard = np.flatnonzero(np.isin(self.identities, record.identities[record.cut.heard]))
        start = EpochStart(record.cut.position, record.cut.epoch, record.cut.offset, heard)
        new = int((~np.isin(self.identities, record.identities)).sum())
        gone = int((~np.isin(record.identities, self.identities)).sum())
        if new or gone:
            changed = f"The training set has changed since the checkpoint: {new} clips are new, and {gone} are gone."
        else:
            changed = "Recordings, transcripts or batches have changed since the checkpoint, and with them the order."
        if new and gone == len(record.identities):
            changed += " None is left: to begin from this model with others, name it as --init-from elsewhere."
        count = len(self.identities)
        rest = f"The epoch continues with the {count - len(heard)} of {count} clips that it has not had."
        return start, f"{changed} {rest}"
