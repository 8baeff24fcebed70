"""Checkpoints of a stage: saving, resuming, returning to an earlier one; loading the models of earlier stages."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.shards import PreparedClips
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.checkpoint_writer import CheckpointWriter
from myxtts.storage.run_folder import chosen_step, is_start
from myxtts.training.resuming.state import CLIPS, ClipRecord, differences, versions
from myxtts.training.stages.base import arrays_of
from myxtts.training.stages.classes import STAGE_CLASSES

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

TRAINED = "trained"
"""Name of the tensor file with the trained weights, in runs with weight averages. The file `model` then has the
averages, which are used for validation and synthesis."""


class Checkpointer:
    """Saves and loads the checkpoints of a trainer. Only the chief worker saves, and it selects the one to load."""

    def __init__(self, trainer: "StageTrainer"):
        self.trainer, self.workers = trainer, trainer.workers
        self.state, self.stage, self.train_step = trainer.state, trainer.stage, trainer.train_step
        training = trainer.config.training
        self.store = CheckpointStore(f"{training.checkpoint_dir}/{self.stage.name}", training.keep_checkpoints)
        self.writer = CheckpointWriter(self.store)
        self.companions: dict[str, bytes] = {}
        """Contents of other files that synthesis needs, by name."""

    def save(self, last: bool, finished: bool) -> None:
        """Saves a checkpoint of this step, marked as the best if it is.

        Args:
            last: Whether to wait until the checkpoint is written, with several attempts. Otherwise, a thread writes it,
                and the next call raises its errors.
            finished: Whether the stage's last step was taken.
        """
        with self.trainer.clock.paused():
            self.writer.wait()  # at most one copy is in memory
            self.state.finished = finished
            if self.workers.is_chief:
                best = self.state.best is not None and self.state.best[1] == self.state.step
                write = self.writer.write_last if last else self.writer.start
                write(self.state.step, *self.snapshot(), best, self.companions if self.stage.speaks else {})
            if last:
                self.workers.gather()  # the next stage may read it

    def snapshot(self) -> tuple[dict, dict]:
        """Copies tensors and state to the host, for `CheckpointStore.write`; must be called between two steps."""
        trainer, step = self.trainer, self.train_step
        trainer.watch.read()
        tensors = {"optimizer": arrays_of(step.state_variables())}
        with step.averaged_weights():
            tensors |= self.stage.weight_arrays()
        if step.averages():
            tensors[TRAINED] = arrays_of(step.averaged())
        saved = {"stage": self.stage.name, **self.state.as_dict(), "averaged": TRAINED in tensors}
        saved |= {"bad_steps_in_row": step.bad_steps_in_row, "versions": versions(), "config": trainer.config.to_dict()}
        ledger = trainer.ledger and [row._asdict() for row in trainer.ledger.rows]
        saved |= {"ledger": ledger, "switches": trainer.switches.applied()}
        if self.state.clips is not None:
            tensors[CLIPS], saved["order"] = self.state.clips.record(self.state.position).saved()
        return tensors, saved

    def resume(self, folder: str | None = None) -> None:
        """Loads the newest intact checkpoint of the run or of `folder`; raises `CheckpointError` if it does not fit."""
        store = CheckpointStore(f"{folder}/{self.stage.name}") if folder else self.store
        step = self.workers.ask(lambda: store.newest_sound(logger.warning))
        if step is not None and not is_start(store.read_state(step)):
            self._restore(store, step)
            logger.info("Resumed the %s stage at step %d from %s", self.stage.name, step, store.path(step))
        elif folder:
            raise CheckpointError(f"{folder} has no checkpoint of the {self.stage.name} stage to resume from.")

    def _restore(self, store, step):
        saved, where = store.read_state(step), str(store.path(step))
        self.state.restore(step, saved, where)
        trained, clips = [TRAINED] if saved.get("averaged") else [], [CLIPS] if "order" in saved else []
        tensors, _ = store.read(step, (*self.stage.weight_files(), "optimizer", *trained, *clips))
        record = (tensors[CLIPS], saved["order"], self.state.position, where) if clips else None
        self.state.record = record and ClipRecord.restore(*record)
        self.stage.assign_weights(tensors, where)
        assign_by_name(self.train_step.state_variables(), tensors["optimizer"], where)
        self.train_step.restart_averages()
        if trained:
            # Averages may be turned off in the resumed run.
            averaged = {name: v for name, v in self.train_step.trainable().items() if name in tensors[TRAINED]}
            assign_by_name(averaged, tensors[TRAINED], where)
        for line in differences(saved, self.trainer.config, where):
            logger.info("%s", line)

    def go_back(self, error: Exception) -> None:
        """Loads the last good checkpoint and lowers the learning rate.

        Raises `error` if there is no such checkpoint, or after `training.divergence_returns` such returns.
        """
        settings, guard = self.trainer.config.training, self.trainer.watch.divergence
        self.writer.wait()
        returns, rate_scale = guard.returns + 1, guard.rate_scale * settings.divergence_rate
        may = guard.returns < settings.divergence_returns
        step = self.workers.ask(lambda: last_good_step(self.store) if may else None)
        if step is None:
            raise error
        self._restore(self.store, step)
        guard.returns, guard.rate_scale = returns, rate_scale
        logger.error(
            "%s Returning to the checkpoint of step %d with %g times the learning rate; return %d of %d.",
            *(error, step, rate_scale, returns, settings.divergence_returns),
        )

    def go_back_to_best(self) -> None:
        """Loads the best checkpoint, if any, but keeps the history; renames later ones to `overtrained_step_…`."""
        self.writer.wait()
        state, detector = self.state, self.trainer.watch.overtraining
        kept = state.history, state.stale_evaluations, detector.state()
        best = self.workers.ask(self.store.best_step)
        if best is None:
            return
        for step in self.store.steps() if self.workers.is_chief else ():
            if step > best:
                self.store.put_away(step, "overtrained")
        self._restore(self.store, best)
        state.history, state.stale_evaluations, stopped = kept
        detector.restore(stopped)
        logger.warning("Stage %s ends early, at its best checkpoint, that of step %d.", self.stage.name, best)


def last_good_step(store: CheckpointStore) -> int | None:
    """Returns the newest intact step with finite losses; later checkpoints are renamed to `diverged_step_…`."""
    for step in reversed(store.steps()):
        try:
            store.verify(step)
            state = store.read_state(step)
            if is_start(state):
                return None
            if state["bad_steps_in_row"] == 0:
                return step
        except CheckpointError as damage:
            logger.warning("%s", damage)
        aside = store.put_away(step, "diverged")
        logger.warning("The checkpoint of step %d cannot be used and was renamed to %s", step, aside)
    return None


def load_foundations(config: XTTSConfig, stage: str, device: str) -> tuple[dict[str, XTTS], dict[str, str]]:
    """Loads the models that a stage depends on from the run's folder to a device.

    Returns:
        The models, and the digests of their weights (the stage's lineage), both by the name of the model's stage.

    Raises:
        CheckpointError: A model is missing or not trained to the end.
        UserError: The prepared codes are of another DVAE.
    """
    models, lineage = {}, {}
    for name in STAGES[stage].builds_on:
        store = CheckpointStore(Path(config.training.checkpoint_dir) / name)
        step = store.newest_sound(logger.warning)
        if step is None:
            raise CheckpointError(
                f"The {stage} stage needs a trained {name}, and {store.folder} has none. Leave out --stage, or train "
                f"it first with --stage {name}."
            )
        part = STAGE_CLASSES[name].part
        tensors, state = store.read(step, ["model"])
        if not state["finished"]:
            accept = f", or accept it as it is with --stage {name} --max-steps {step}" * bool(step)
            raise CheckpointError(
                f"The {stage} stage needs a {name} that is trained to the end. The one in {store.folder} stopped at "
                f"step {step}. Resume it with --stage {name}{accept}."
            )
        if (best := chosen_step(store, part)) != step:
            step, tensors = best, store.read(best, ["model"])[0]  # the best checkpoint is the stage's result
        with tf.device(device):
            models[name] = XTTS(config.model, parts=(part,))
            assign_by_name(models[name].part_weights(part), tensors["model"], str(store.path(step)))
        lineage[name] = store.digest(step)
    if STAGES[stage].codes and not config.data.augment:
        for folder in filter(None, (config.data.prepared, config.data.val_prepared)):
            PreparedClips.open(folder).require_dvae(lineage["dvae"])
    return models, lineage
