"""Saves and resumes the training of a stage, and loads the models of earlier stages that the stage depends on.

Checkpoints contain no random state: random values depend only on the seed and a position (docs/architecture.md).
"""

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import myxtts
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.batch import BatchOrder, EpochStart
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import CLIPS, SpeechDataset
from myxtts.data.doctor import id_hash
from myxtts.data.shards import PreparedClips
from myxtts.devices.machine import read_processor
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.checkpoint_writer import CheckpointWriter
from myxtts.storage.files import digest_bytes, new_hasher
from myxtts.storage.run_folder import chosen_step, is_start, require_trained
from myxtts.storage.saved_state import config_of, is_count, refusing_damage
from myxtts.training.stages.base import arrays_of
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.watch import OvertrainingDetector

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

ClipRecord = tuple[dict[str, np.ndarray], dict]
"""Training clips and their batch order as stored in a checkpoint: arrays and JSON values, see `OrderedClips.record`."""
_ARRAYS = {"identity": ("uint64", 1), "heard_at_start": ("uint8", 1), "heard": ("uint8", 1)}


@dataclass
class TrainingState:
    """Progress of a stage's training; only the trainer changes it."""

    lineage: dict = field(default_factory=dict)
    """Digests of the models that the stage depends on, by stage name. A resumed checkpoint must have equal digests."""
    follows: tuple[str, ...] = ()
    """Stages in `lineage` that may be trained further, so their digests may differ from those in the checkpoint."""
    step: int = 0
    """Number of optimizer steps taken."""
    position: int = 0
    """Number of batches used so far, which is the position in the batch order."""
    clips: "OrderedClips | None" = None
    """Training clips and the order of their batches; None before training begins."""
    record: ClipRecord | None = None
    """Clips and batch order of the resumed checkpoint; None if no checkpoint was resumed or it contains no record."""
    validation: str | None = None
    """Digest (`data_digest`) of the validation clips with which `best` was computed; None before training begins."""
    history: list[dict] = field(default_factory=list)
    """One dictionary per validation: `step`, and the losses and metrics by name."""
    best: tuple[float, int] | None = None
    """`(value, step)`: lowest value so far of the criterion `best_by`, and its step; None before the first value."""
    best_by: str = "loss"
    """Criterion that selects the best checkpoint: `loss` (validation loss) or `evaluation` (score of the speech)."""
    stale_evaluations: int = 0
    """Number of speech evaluations since the best score (`least_score`)."""
    least_score: float | None = None
    """Best score of a speech evaluation so far (lower is better); None before the first one."""
    finished: bool = False
    """Whether training is complete (last step taken, or ended early), as recorded in the last checkpoint."""
    parts: dict[str, Any] = field(default_factory=dict)
    """Other objects to save, by name. Each has `state()`, which returns JSON values, and `restore(state)`."""

    def improves(self, by: str, value: float) -> bool:
        """Updates `best` if `best_by` is the criterion `by` and `value` is a new minimum. Returns whether it did so."""
        is_less = math.isfinite(value) and (self.best is None or value < self.best[0])
        if improves := by == self.best_by and is_less:
            self.best = (value, self.step)
        return improves

    def scored(self, score: float) -> bool:
        """Records the score of a speech evaluation. Returns whether the score is the new `best` (see `improves`)."""
        self.stale_evaluations += 1
        if math.isfinite(score) and (self.least_score is None or score < self.least_score):
            self.least_score, self.stale_evaluations = score, 0
        return self.improves("evaluation", score)

    def as_dict(self) -> dict:
        """Returns the state, except for `step`, `follows`, `clips` and `record`, as JSON values for a checkpoint."""
        names = ("finished", "lineage", "best", "best_by", "stale_evaluations", "least_score", "position", "validation")
        parts = {name: part.state() for name, part in self.parts.items()}
        return {name: getattr(self, name) for name in names} | {"history": list(self.history), "parts": parts}

    def restore(self, step: int, saved: dict, where: str) -> None:
        """Sets `step`, and restores the fields in `saved` (from `as_dict`). `where` names the checkpoint in errors.
        Raises `CheckpointError` if the state is missing or damaged, or if the model of an earlier stage that is not in
        `follows` has changed since the checkpoint."""
        if "position" not in saved:
            raise CheckpointError(f"{where} has weights, but no training state. Start from it with --init-from.")
        moved = [name for name in self.lineage if saved["lineage"].get(name) != self.lineage[name]]
        if saved["lineage"].keys() != self.lineage.keys() or set(moved) - set(self.follows):
            raise CheckpointError(f"{where} was trained on the codes of another DVAE. --reset-training starts over.")
        self.step, self.position, self.history = step, saved["position"], saved["history"]
        self.best = tuple(saved["best"]) if saved["best"] and saved["best_by"] == self.best_by else None
        self.stale_evaluations, self.least_score = saved["stale_evaluations"], saved["least_score"]
        # With another model, validation losses differ, as with other clips: `take_up` then resets `best`.
        self.finished, self.validation = saved["finished"], "another model" if moved else saved.get("validation")
        with refusing_damage(where):
            for name, part in self.parts.items():
                part.restore(saved["parts"][name])

    def take_up(self, dataset: SpeechDataset, stage: str) -> SpeechDataset:
        """Sets `clips`, and returns `dataset` with the batch order for `stage`. After resuming, this order continues
        where the checkpoint ended (see `record`). If validation clips or earlier stages have changed since the
        checkpoint, resets `best` and early stopping, because losses before and after the change are not comparable."""
        before, self.validation = self.validation, data_digest(dataset.validation)
        if before not in (None, self.validation):
            logger.warning("The validation clips changed, or an earlier stage was trained; the best values are reset.")
            self.best, self.least_score, self.stale_evaluations = None, None, 0
            self.parts["overtraining"].restore(OvertrainingDetector(0).state())
        self.clips, start = OrderedClips(dataset.train, dataset.order(stage)), EpochStart()
        if self.record is not None:
            start, changed = self.clips.continuing(self.record)
            if changed:
                logger.warning("%s", changed)
        dataset = replace(dataset, starts={**dataset.starts, stage: start})
        self.clips.order = dataset.order(stage)
        return dataset


def data_digest(clips: Iterable) -> str:
    """Returns one digest of the ids, audio and tokens of all clips, which shows whether a data set has changed."""
    hasher = new_hasher()
    for clip in clips:  # one by one, because a corpus can have millions
        hasher.update(json.dumps([clip.id, clip.audio, clip.tokens]).encode())
    return hasher.hexdigest()


def versions() -> dict[str, str]:
    """Returns library versions and the number of CPU threads, by name. If one changes, losses may round differently."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS")
    found = {"myxtts": myxtts.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}
    return found | {"threads": str(threads or read_processor().cores)}


def differences(saved: dict, config: XTTSConfig, where: str) -> Iterator[str]:
    """Yields log messages about settings and versions that changed since checkpoint `where`; `saved` is its state."""
    before, now = (config_of(saved, where) or config).recipe(), config.recipe()
    changed = [name for name, value in now.items() if value != before.get(name) and not name.startswith("sampling.")]
    if changed:
        changes = (f"{name} {before.get(name)!r} -> {now[name]!r}" for name in changed)
        yield f"Settings changed since the checkpoint: {'; '.join(changes)}"
    then = saved["versions"]
    now = {name: value for name, value in versions().items() if name in then}
    if then != now:
        listed = lambda found: ", ".join(f"{name} {value}" for name, value in found.items())
        used = f"written with {listed(then):.300}, this run uses {listed(now)}"
        yield f"The checkpoint was {used}: losses may round differently."


class OrderedClips:
    """Training clips of a run, and the order of a stage's batches. Each batch is a list of indices into `clips`."""

    def __init__(self, clips: Sequence[Utterance], order: BatchOrder):
        self.clips, self.order = clips, order
        self.identities = np.array([id_hash(clip.id) for clip in clips], np.uint64)
        # Two runs with equal digests and equal `start` have equal batches.
        self._digest = digest_bytes(self.identities.tobytes() + order.digest().encode())

    def record(self, position: int) -> ClipRecord:
        """Returns the record for a checkpoint after `position` batches: arrays for the file `CLIPS`, and JSON values.

        JSON: `start` is where this order begins the current epoch; `cut` is where the batch at `position` begins. Both
        are lists `[position, epoch, offset]`. `digest` is a digest of clips and batches. A resumed run with the same
        digest rebuilds the order from `start`. Other runs continue at `cut`.
        Arrays, `(N,)`: `identity` contains the hashed clip ids. `heard_at_start` and `heard` (uint8) are 1 for clips
        that this epoch has already used at `start` and at `cut`, respectively.
        """
        start, cut = self.order.start_at(position), self.order.cut(position)
        heard_at_start, heard = np.zeros((2, len(self.identities)), np.uint8)
        heard_at_start[start.heard] = heard[cut.heard] = 1
        arrays = {"identity": self.identities, "heard_at_start": heard_at_start, "heard": heard}
        state = {name: [one.position, one.epoch, one.offset] for name, one in (("start", start), ("cut", cut))}
        return arrays, {"digest": self._digest, **state}

    def continuing(self, record: ClipRecord) -> tuple[EpochStart, str | None]:
        """Returns where the epoch of `record` continues, and a warning if the training data has changed, else None."""
        arrays, state = record
        if state.get("digest") == self._digest:
            return EpochStart(*state["start"], np.flatnonzero(arrays["heard_at_start"])), None
        before, count = arrays["identity"], len(self.identities)
        heard = np.flatnonzero(np.isin(self.identities, before[arrays["heard"] > 0]))
        new = np.isin(self.identities, before, invert=True).sum()
        gone = np.isin(before, self.identities, invert=True).sum()
        return EpochStart(*state["cut"], heard), (
            f"The training set or its batches changed since the checkpoint: {new} clips are new, and {gone} are gone. "
            f"The epoch continues with the {count - len(heard)} of {count} clips that it has not used yet."
        )


def checked_record(record: ClipRecord, position: int, where: str) -> ClipRecord:
    """Returns `record` if it is valid for `position`, else raises `CheckpointError`. `where` names the checkpoint."""
    arrays, state = record
    start, cut = state.get("start"), state.get("cut")
    is_place = lambda found: isinstance(found, list) and len(found) == 3 and all(map(is_count, found))
    kinds = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
    has_arrays = kinds == _ARRAYS and len({array.size for array in arrays.values()}) == 1
    if not (has_arrays and is_place(start) and is_place(cut) and start[0] <= cut[0] == position):
        raise CheckpointError(f"{where} is damaged: its record of clips is not valid.")
    return record


TRAINED = "trained"
"""Checkpoint file with the trained weights if the run averages weights. The file `model` then contains the averages."""


class Checkpointer:
    """Saves and loads a trainer's checkpoints. Worker 0 saves them, and selects the step that all workers load."""

    def __init__(self, trainer: "StageTrainer"):
        self.trainer, self.workers = trainer, trainer.workers
        self.state, self.stage, self.train_step = trainer.state, trainer.stage, trainer.train_step
        self.store, self.writer = trainer.store, CheckpointWriter(trainer.store)
        self.companions: dict[str, bytes] = {}
        """Contents of additional checkpoint files that synthesis needs, such as the vocabulary, by file name."""

    def save(self, last: bool, finished: bool) -> None:
        """Saves a checkpoint of the current step and marks it as the best if `state.best` is from this step.

        Args:
            last: Whether to wait until the checkpoint is written, and to try again after errors. If False, `writer`
                writes the checkpoint in a thread and reports errors later.
            finished: Whether the training of the stage is complete.
        """
        with self.trainer.clock.paused():
            self.writer.wait()  # so that at most one checkpoint is in memory
            self.state.finished = finished
            if self.workers.is_chief:
                best = self.state.best is not None and self.state.best[1] == self.state.step
                write = self.writer.write_last if last else self.writer.start
                write(self.state.step, *self.snapshot(), best, self.companions)
            if last:
                self.workers.gather()  # the next stage may read it

    def snapshot(self) -> tuple[dict, dict]:
        """Returns the tensors and state for `CheckpointStore.write`, copied to the host. Call it only between steps."""
        trainer, step = self.trainer, self.train_step
        trainer.watch.read()
        tensors = {"optimizer": arrays_of(step.state_variables)}
        with step.averaged_weights():
            tensors |= self.stage.weight_arrays()
        if step.averages:
            tensors[TRAINED] = arrays_of(step.averaged)
        saved = {"stage": self.stage.name, **self.state.as_dict(), "averaged": TRAINED in tensors}
        saved |= {"bad_steps_in_row": trainer.watch.divergence.in_row, "versions": versions()}
        ledger = [row._asdict() for row in trainer.ledger.values()] if trainer.ledger else None
        saved |= {"ledger": ledger, "switches": trainer.switches.applied(), "config": trainer.config.to_dict()}
        if self.state.clips is not None:
            tensors[CLIPS], saved["order"] = self.state.clips.record(self.state.position)
        return tensors, saved

    def resume(self, store: CheckpointStore) -> None:
        """Loads the newest intact checkpoint in `store`, if any, unless it has only starting weights (see `is_start`).
        If it does not fit this run, or if another run's `store` has none to load, raises `CheckpointError`."""
        step = self.workers.ask(lambda: store.newest_sound(logger.warning))
        if step is not None and not is_start(store.read_state(step)):
            self._restore(store, step)
            logger.info("Resumed the %s stage at step %d from %s", self.stage.name, step, store.path(step))
        elif store is not self.store:
            raise CheckpointError(f"{store.folder.parent} has no checkpoint of the {self.stage.name} stage to resume.")

    def _restore(self, store, step):
        saved, where = store.read_state(step), str(store.path(step))
        self.state.restore(step, saved, where)
        if before := config_of(saved, where):  # its `stage` decides the decoder's phases
            training = replace(self.trainer.config.training, stage=before.training.stage)
            self.trainer.config = self.stage.config = replace(self.trainer.config, training=training)
            scorers = {(one.evaluation_recognizer, one.evaluation_sentences) for one in (before.training, training)}
            if training.evaluate_every_steps and len(scorers) > 1 and self.state.least_score is not None:
                logger.warning("The recognizer or the evaluation sentences changed; the best speech score is reset.")
                self.state.least_score, self.state.stale_evaluations = None, 0
                self.state.best = None if self.state.best_by == "evaluation" else self.state.best
        self.trainer.adopt_batching()
        record = (dict(store.open(step, CLIPS)), saved["order"]) if "order" in saved else None
        self.state.record = record and checked_record(record, self.state.position, where)
        self.stage.assign_weights({name: store.open(step, name) for name in self.stage.weight_files()}, where)
        assign_by_name(self.train_step.state_variables, store.open(step, "optimizer"), where)
        if (before := (saved.get("switches") or {}).get("precision")) and before != self.trainer.switches.precision:
            for rule in self.train_step.rules:
                rule.loss_scale.assign(rule.first_loss_scale)
        self.train_step.restart_averages()
        if saved.get("averaged"):
            trained = store.open(step, TRAINED)
            # Averages may be turned off in the resumed run.
            assign_by_name({key: v for key, v in self.train_step.trainable.items() if key in trained}, trained, where)
        for line in differences(saved, self.trainer.config, where):
            logger.info("%s", line)

    def go_back(self, error: Exception) -> None:
        """After divergence, loads the newest checkpoint with finite losses and lowers the learning rate. Raises `error`
        if no checkpoint has finite losses, or if training already went back `divergence_returns` times."""
        settings, guard = self.trainer.config.training, self.trainer.watch.divergence
        self.writer.wait()
        may_return = guard.returns < settings.divergence_returns
        step = self.workers.ask(lambda: last_good_step(self.store)) if may_return else None
        if step is None:
            raise error
        returns, rate_scale = guard.returns + 1, guard.rate_scale * settings.divergence_rate  # `_restore` sets both
        self._restore(self.store, step)
        guard.returns, guard.rate_scale = returns, rate_scale
        logger.error(
            "%s Returning to the checkpoint of step %d with %g times the learning rate (return %d of %d).",
            *(error, step, rate_scale, returns, settings.divergence_returns),
        )

    def go_back_to_best(self) -> None:
        """After early stopping, loads the best checkpoint, if any. Renames later checkpoints. Keeps `state.history`."""
        self.writer.wait()
        state, detector = self.state, self.trainer.watch.overtraining
        kept = state.history, state.stale_evaluations, detector.state()
        if (best := self.workers.ask(self.store.best_step)) is None:
            logger.warning("Stage %s ends early, at step %d.", self.stage.name, state.step)
            return
        self._restore(self.store, best)  # first, because it may be damaged
        if self.workers.is_chief:
            for step in filter(lambda step: step > best, self.store.steps()):
                self.store.put_away(step, "overtrained")
        state.history, state.stale_evaluations, stopped = kept
        detector.restore(stopped)
        logger.warning("Stage %s ends early, with its best checkpoint, of step %d.", self.stage.name, best)


def last_good_step(store: CheckpointStore) -> int | None:
    """Returns the step of the newest intact checkpoint with finite losses, or None. Renames all newer checkpoints."""
    while (step := store.newest_sound(logger.warning)) is not None:
        if is_start(state := store.read_state(step)):
            return None
        if state.get("bad_steps_in_row") == 0:
            return step
        aside = store.put_away(step, "diverged")
        logger.warning("The checkpoint of step %d cannot be used and was renamed to %s", step, aside)
    return None


def untrained_foundations(config: XTTSConfig, stage: str, device: str) -> dict[str, XTTS]:
    """Creates models with random weights on `device` for the stages that `stage` depends on. Returns them by stage."""
    with tf.device(device):
        return {name: XTTS(config.model, parts=(STAGE_CLASSES[name].part,)) for name in STAGES[stage].builds_on}


def load_foundations(
    config: XTTSConfig, stage: str, device: str, models: dict[str, XTTS] | None = None
) -> tuple[dict[str, XTTS], dict[str, str]]:
    """Loads the trained models that `stage` depends on, into the given `models` or into new models on `device`.

    Returns the models and the digests of their weights, both by the name of the stage that trained the model.
    Raises `CheckpointError` if a model is missing in the run's folder or not trained to the end, and `UserError` if the
    codes in `data.prepared` or `data.val_prepared` are from another DVAE.
    """
    models, lineage = models or untrained_foundations(config, stage, device), {}
    for name, model in models.items():
        store = CheckpointStore(Path(config.training.checkpoint_dir) / name)
        store.newest_sound(logger.warning)  # renames damaged checkpoints
        require_trained(store.folder, f"The {stage} stage")
        part = STAGE_CLASSES[name].part
        step = chosen_step(store, part)  # the best checkpoint is the stage's result
        assign_by_name(model.part_weights(part), store.open(step), str(store.path(step)))
        lineage[name] = store.digest(step)
    if STAGES[stage].codes and not config.data.augment:
        for folder, flag in ((config.data.prepared, "--prepared"), (config.data.val_prepared, "--val-prepared")):
            if folder:
                PreparedClips.open(folder, flag).require_dvae(lineage["dvae"])
    return models, lineage
