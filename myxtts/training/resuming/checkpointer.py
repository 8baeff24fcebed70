"""A run's checkpoints: written while it trains, restored when it is resumed, returned to when it goes wrong."""

import logging
from typing import TYPE_CHECKING

from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.checkpoint_writer import CheckpointWriter
from myxtts.storage.provenance import is_start
from myxtts.training.resuming.state import CLIPS, ClipRecord, differences, versions
from myxtts.training.stages.base import arrays_of

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

logger = logging.getLogger(__name__)

TRAINED = "trained"
"""Tensor file of a run with weight averages: the weights that training continues with. `model`, which everything else
reads, then holds the averages: what was validated and what speaks."""


class Checkpointer:
    """Writes and reads the checkpoints of a trainer.

    Of several workers only the chief writes and decides what is read; all read it.
    """

    def __init__(self, trainer: "StageTrainer"):
        self.trainer, self.workers = trainer, trainer.workers
        self.state, self.stage, self.train_step = trainer.state, trainer.stage, trainer.train_step
        training = trainer.config.training
        self.store = CheckpointStore(f"{training.checkpoint_dir}/{self.stage.name}", training.keep_checkpoints)
        self.writer = CheckpointWriter(self.store)
        self.companions: dict[str, bytes] = {}
        """Files that belong to the weights of what speaks, by name, once they are known."""

    def save(self, last: bool, finished: bool, ledger: list | None) -> None:
        """Writes a checkpoint of this step; it is marked best when the last validation was the best so far.

        The `last` one is on the disk when this returns, after several tries if need be. Otherwise training waits only
        for the copy to the host, and a write that fails is reported by the next call. `finished` says whether the
        stage's last step has been taken; `ledger` has the rows of the switches' ledger.
        """
        self.writer.wait()  # before the copy: no more than one is held
        self.state.finished = finished
        if self.workers.is_chief:
            best = self.state.best is not None and self.state.best[1] == self.state.step
            write = self.writer.write_last if last else self.writer.start
            write(self.state.step, *self.snapshot(ledger), best, self.companions if self.stage.speaks else {})
        if last:
            self.workers.gather()  # the next stage may read it

    def snapshot(self, ledger: list | None) -> tuple[dict, dict]:
        """Copies the run's tensors and state to the host, between two steps, for `CheckpointStore.write`."""
        tensors = {"optimizer": arrays_of(self.train_step.state_variables())}
        with self.train_step.averaged_weights():
            tensors |= self.stage.weight_arrays()
        keeps_averages = bool(self.train_step.averages())
        if keeps_averages:
            tensors[TRAINED] = arrays_of(self.train_step.averaged())
        saved = {"stage": self.stage.name, **self.state.as_dict(), "averaged": keeps_averages, "ledger": ledger}
        saved |= {"bad_steps_in_row": self.train_step.bad_steps_in_row, "versions": versions()}
        saved["switches"] = self.trainer.switches.applied()
        if self.state.clips is not None:
            record = self.state.clips.record(self.state.position)
            tensors[CLIPS], saved["order"] = record.arrays(), record.state()
        return tensors, {**saved, "config": self.trainer.config.to_dict()}

    def resume(self, folder: str | None = None) -> None:
        """Restores the newest intact checkpoint, if there is one.

        `folder` is of another run, which must have one; None for the run's own. A checkpoint of another model, or one
        trained on the codes of another DVAE, raises a `CheckpointError`.
        """
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
        kept = (tensors[CLIPS], saved["order"], self.state.position, where) if clips else None
        self.state.record = kept and ClipRecord.restore(*kept)
        self.stage.assign_weights(tensors, where)
        assign_by_name(self.train_step.state_variables(), tensors["optimizer"], where)
        self.train_step.restart_averages()
        if trained:
            # Averages may have been turned off since.
            averaged = {name: v for name, v in self.train_step.trainable().items() if name in tensors[TRAINED]}
            assign_by_name(averaged, tensors[TRAINED], where)
        for line in differences(saved, self.trainer.config, where):
            logger.info("%s", line)

    def go_back(self, error: Exception) -> None:
        """Returns a run that has diverged to its last good checkpoint, with a lower learning rate.

        Raises `error` where there is no good checkpoint, or the run has gone back as often as the settings allow.
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
            "%s Going back to the checkpoint of step %d with %g times the learning rate; time %d of %d.",
            *(error, step, rate_scale, returns, settings.divergence_returns),
        )

    def go_back_to_best(self) -> None:
        """Returns a run to its best checkpoint, if it has one, with its history and its record of overtraining.

        Later checkpoints are renamed to `overtrained_step_…`.
        """
        self.writer.wait()
        history, stale = self.state.history, self.state.stale_evaluations
        detector = self.trainer.watch.overtraining
        stopped = detector.state()
        best = self.workers.ask(self._leave_best)
        if best is not None:
            self._restore(self.store, best)
            self.state.history, self.state.stale_evaluations = history, stale
            detector.restore(stopped)

    def _leave_best(self):
        best = self.store.best_step()
        for step in self.store.steps() if best is not None else ():
            if step > best:
                self.store.put_away(step, "overtrained")
        return best


def last_good_step(store: CheckpointStore) -> int | None:
    """The newest checkpoint that is intact and not of a bad step; newer ones are renamed to `diverged_step_…`."""
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
        logger.warning("The checkpoint of step %d cannot be used; it was kept as %s", step, aside)
    return None
