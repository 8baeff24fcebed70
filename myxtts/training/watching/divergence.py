"""Notices that a run has diverged, says what broke in which batch, and finds its last good checkpoint."""

import logging
from collections import deque

import numpy as np
import tensorflow as tf

from myxtts.config.checks import UserError
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, write_json
from myxtts.storage.provenance import is_start

logger = logging.getLogger(__name__)


class TrainingDiverged(UserError):
    """Too many steps in a row had a loss or gradient that is not finite; none of them was applied."""


class DivergenceGuard:
    """Counts steps in a row whose loss or gradient is not finite.

    After `limit` of them the run has diverged. Whether a step was finite is read a few steps later and for several at
    once, so that the device is not waited for after each; divergence is noticed at most a quarter of the limit late.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.rate_scale = 1.0
        """Factor on the learning rate, lowered each time the run goes back."""
        self.returns = 0
        """Times that the run has gone back."""
        self._every = max(1, limit // 4)
        self._unread, self._in_row = [], 0
        self._row = deque(maxlen=limit)

    def state(self) -> dict:
        """What goes into a checkpoint, as JSON values."""
        return {"rate_scale": self.rate_scale, "returns": self.returns, "in_row": self._counted()}

    def restore(self, state: dict) -> None:
        """Takes up what `state` gave."""
        self.rate_scale = float(state["rate_scale"])
        self.returns, self._in_row = int(state["returns"]), int(state["in_row"])
        self._unread.clear()
        self._row.clear()

    def watch(self, step: int, clips: list[np.ndarray], losses: dict[str, tf.Tensor]) -> list[dict] | None:
        """Takes note of a step: indices of its clips, and what the train step returned.

        Returns:
            None, or where the run has diverged what is known of the last bad steps: dictionaries of `step`, `clips`
            (indices) and `not_finite` (names of what broke).
        """
        self._unread.append((step, clips, losses))
        if step % self._every or self._counted() < self.limit:
            return None
        return [self._described(*bad) for bad in self._row]

    def error(self, step: int, found: str) -> TrainingDiverged:
        """What to raise after the last bad step, whose clips are listed in `found`."""
        return TrainingDiverged(
            f"{self.limit} steps in a row had a loss or gradient that is not finite; step {step} was the last. The "
            f"clips and the terms that broke are listed in {found}. Lower --lr, train in float32, or take the clips "
            "out; the last good checkpoint is untouched."
        )

    @staticmethod
    def _described(step, clips, losses):
        broken = [name for name, value in losses.items() if not np.isfinite(float(value))]
        return {"step": step, "clips": np.concatenate(clips).tolist(), "not_finite": broken}

    def _counted(self):
        for step in self._unread:
            if bool(step[2]["finite"]):
                self._in_row = 0
                self._row.clear()
            else:
                self._in_row += 1
                self._row.append(step)
        self._unread.clear()
        return self._in_row


def write_divergence(
    folder: str, stage: str, step: int, learning_rate: float, weights: dict, bad_steps: list[dict]
) -> str:
    """Writes a file into a run's folder that names the clips of the last bad steps and what was not finite.

    `weights` are those that are trained, `bad_steps` are from `DivergenceGuard.watch`, with the ids of clips. Returns
    in words where it is: the file, or the log where that cannot be written.
    """
    path = f"{folder}/diverged_{stage}_step_{step}.json"
    not_finite = [name for name, v in weights.items() if not np.isfinite(v.numpy()).all()]
    found = {"stage": stage, "step": step, "learning_rate": learning_rate}
    found |= {"weights_not_finite": not_finite, "bad_steps": bad_steps}
    try:
        write_json(path, found)
    except OSError as error:
        logger.error("%s could not be written: %s. What it would say: %s", path, error, found)
        return "the log"
    return path


def last_good_step(store: CheckpointStore) -> int | None:
    """The newest checkpoint that is sound and not of a bad step; newer ones are renamed to `diverged_step_…`."""
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
