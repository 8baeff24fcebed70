"""What a run of a stage has come to, as a checkpoint keeps it.

Everything that is drawn is a function of the seed and a position (docs/architecture.md), so weights, optimizer state
and positions are all there is. Whatever else must survive a stop is one of `TrainingState.parts`.
"""

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

import myxtts
from myxtts.config.config import XTTSConfig
from myxtts.config.settings import flat, run_settings
from myxtts.data.buckets import EpochStart
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.machine import read_processor
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import new_hasher
from myxtts.storage.saved_state import config_of, refusing_damage
from myxtts.training.resuming.clip_record import ClipRecord, OrderedClips

logger = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """Where a stage's training is; the trainer owns it and nobody else changes it."""

    lineage: dict = field(default_factory=dict)
    """What the stage builds on, as JSON values; a checkpoint made on something else is not resumed."""
    follows: tuple[str, ...] = ()
    """What of it may have been trained on since a checkpoint: `StageEntry.follows`."""
    step: int = 0
    """Optimizer steps taken."""
    position: int = 0
    """Batches trained on, which is the place in the order of the data."""
    data_digest: str | None = None
    """Identifies the training clips that the position counts in."""
    clips: OrderedClips | None = None
    """These clips in their order, once training has begun."""
    record: ClipRecord | None = None
    """What the checkpoint that was taken up says about its clips; None where it says nothing."""
    history: list[dict] = field(default_factory=list)
    """Validation losses: `step` and each loss by name."""
    best: tuple[float, int] | None = None
    """`(main validation loss or score of an evaluation, step)` so far."""
    best_by: str = "loss"
    """Which of the two: `training.best_by`."""
    stale_evaluations: int = 0
    """Evaluations in a row without a better score."""
    least_score: float | None = None
    """Of the evaluations so far."""
    finished: bool = False
    """Whether the stage's last step was taken, at the checkpoint written or read last."""
    parts: dict[str, Any] = field(default_factory=dict)
    """What else a checkpoint keeps, by name: `state()` gives it as JSON values, `restore(state)` takes it up."""

    def improves(self, by: str, value: float) -> bool:
        """Takes note of a figure of this step, lower is better; whether it makes this the best step so far."""
        if by != self.best_by or not math.isfinite(value) or self.best is not None and value >= self.best[0]:
            return False
        self.best = (value, self.step)
        return True

    def scored(self, score: float) -> bool:
        """Takes note of an evaluation's score; returns as `improves`."""
        is_less = math.isfinite(score) and (self.least_score is None or score < self.least_score)
        self.least_score = score if is_less else self.least_score
        self.stale_evaluations = 0 if is_less else self.stale_evaluations + 1
        return self.improves("evaluation", score)

    def is_stale(self, patience: int) -> bool:
        """Whether as many evaluations as `patience`, if it is not 0, have brought nothing better."""
        return 0 < patience <= self.stale_evaluations

    def as_dict(self) -> dict:
        """The state as JSON values."""
        data = {"position": self.position, "data": self.data_digest}
        losses = {"history": list(self.history), "best": self.best, "best_by": self.best_by}
        losses |= {"stale_evaluations": self.stale_evaluations, "least_score": self.least_score}
        parts = {name: part.state() for name, part in self.parts.items()}
        return {"finished": self.finished, "lineage": self.lineage, **losses, **data, "parts": parts}

    def restore(self, step: int, saved: dict, where: str) -> None:
        """Takes up what `as_dict` gave at `step`.

        Raises:
            CheckpointError: It is of no run, of another lineage, or lacks a part that is registered.
        """
        if "position" not in saved:
            raise CheckpointError(f"{where} holds weights but no run to continue. Start from them with --init-from.")
        moved = [name for name in self.lineage if saved["lineage"].get(name) != self.lineage[name]]
        if saved["lineage"].keys() != self.lineage.keys() or set(moved) - set(self.follows):
            raise CheckpointError(
                f"{where} was trained on the codes of another DVAE than the one there is now, so training on would "
                "teach another language of codes. Train the stage anew with --reset-training, or bring the DVAE back."
            )
        if moved:
            logger.info("Trained on since %s: the %s. Its validation losses are not compared.", where, ", ".join(moved))
        missing = ", ".join(sorted(self.parts.keys() - saved["parts"].keys()))
        if missing:
            way_out = "Turn that off, or start anew with --reset-training."
            raise CheckpointError(f"{where} was written without {missing}. {way_out}")
        self.step, self.position, self.history = step, saved["position"], saved["history"]
        same = saved.get("best_by", "loss") == self.best_by and not moved
        self.best = tuple(saved["best"]) if saved["best"] and same else None
        # Checkpoints from before there were evaluations say nothing of them.
        self.stale_evaluations, self.least_score = saved.get("stale_evaluations", 0), saved.get("least_score")
        self.data_digest, self.finished = saved["data"], saved["finished"]
        with refusing_damage(where):
            for name, part in self.parts.items():
                part.restore(saved["parts"][name])

    def take_up(self, dataset: SpeechDataset, stage: str) -> SpeechDataset:
        """The data set with its clips in an order that goes on where this state is."""
        digest, start, told = data_digest(dataset.train), EpochStart(), None
        clips = OrderedClips(dataset.train, dataset.order(stage))
        if self.record is not None:
            start, told = clips.continuing(self.record)
        elif self.data_digest not in (None, digest):
            told = (
                "The training set has changed since the checkpoint, and with it the order of clips: in this epoch some "
                "may come twice or not at all, for the checkpoint is of a version that did not keep which it has had."
            )
        if told:
            logger.warning("%s", told)
        dataset = replace(dataset, starts={**dataset.starts, stage: start})
        clips.order = dataset.order(stage)
        self.data_digest, self.clips = digest, clips
        return dataset


def data_digest(clips: Iterable) -> str:
    """Identifies a list of `Clip`s in their order, on which the order of batches rests."""
    hasher = new_hasher()
    for clip in clips:
        hasher.update(json.dumps([clip.id, clip.num_samples, clip.tokens]).encode())
    return hasher.hexdigest()


def versions() -> dict[str, str]:
    """Of what decides the last bits of a loss; a CPU's threads share sums, and so their number does, too."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS")
    found = {"myxtts": myxtts.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}
    return found | {"threads": str(threads or read_processor().cores)}


def differences(saved: dict, config: XTTSConfig, where: str) -> Iterator[str]:
    """Lines on what makes the losses from here on other than those of an unbroken run; `where` names the checkpoint."""
    if changed := changed_settings(saved, config, where):
        yield f"Settings changed since the checkpoint: {'; '.join(changed.values())}"
    then = saved["versions"]
    now = {name: value for name, value in versions().items() if name in then}
    if then != now:
        then, now = (", ".join(f"{name} {value}" for name, value in found.items()) for found in (then, now))
        yield f"The checkpoint was written with {then:.300}; now it is {now}: last bits may differ."


def changed_settings(saved: dict, config: XTTSConfig, where: str) -> dict[str, str]:
    """The settings of the recipe that are other than in a checkpoint: `name before -> now` by dotted name."""
    both = config_of(saved, where) or config, config
    before, now = (flat(json.loads(json.dumps(one.to_dict()))) for one in both)
    without_effect = run_settings(XTTSConfig)
    return {
        name: f"{name} {before.get(name)!r} -> {value!r}"
        for name, value in now.items()
        if value != before.get(name) and name not in without_effect and not name.startswith("sampling.")
    }
