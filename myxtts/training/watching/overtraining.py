"""Notices that a model learns its training set by heart: the training loss falls on while validation turns up."""

import math

import tensorflow as tf

from myxtts.config.checks import counted

WARN_AFTER = 5
"""Diverging validations before a warning, where no patience is set."""


class OvertrainingDetector:
    """Counts validations in which the two losses diverge.

    A validation diverges when its loss is above the best so far and the mean training loss since the validation before
    is below the one at that best: early stopping (Prechelt 1998) that tells overtraining from a plateau, where neither
    moves. A new best sets the count back; a validation that is neither leaves it.

    After `patience` diverging validations `update` says to stop, 0 never does; half as many give a warning.
    """

    def __init__(self, patience: int):
        self.patience = patience
        self.diverging = 0
        """Diverging validations since the best one."""
        self.stopped = False
        """Whether the patience has run out."""
        self._best = self._training_at_best = math.inf
        self._best_step, self._unread = 0, []
        self._sum, self._count = 0.0, 0

    def watch(self, loss: tf.Tensor, finite: tf.Tensor) -> None:
        """Takes note of a training step: its loss of the kind that is validated, and whether it was applied.

        The scalars are read later, so the device is not waited for.
        """
        self._unread.append((loss, finite))

    def update(self, step: int, loss: float) -> str | None:
        """Takes note of a validation.

        Returns:
            What to tell the user, at the validation that uses up half the patience and at the one that ends it, which
            sets `stopped`; else None.
        """
        self._read()
        training = self._sum / self._count if self._count else math.inf
        self._sum, self._count = 0.0, 0
        if loss < self._best:
            self._best, self._best_step, self._training_at_best, self.diverging = loss, step, training, 0
        elif math.isfinite(loss) and loss > self._best and training < self._training_at_best:
            self.diverging += 1
            self.stopped = 0 < self.patience <= self.diverging
            if self.stopped or self.diverging == (max(1, self.patience // 2) if self.patience else WARN_AFTER):
                return self._describe(loss)
        return None

    def _describe(self, loss):
        best = f"{self._best:.4f} of step {self._best_step}, last {loss:.4f}"
        seen = f"Overtraining: {counted(self.diverging, 'validation')} above the best ({best}) while training fell."
        if self.stopped:
            return f"{seen} The stage ends with the checkpoint of step {self._best_step}, the best."
        then = f"It ends after {self.patience}" if self.patience else "--overtraining-patience N would end it after N"
        return f"{seen} {then}; more data, a larger dropout or a smaller model helps."

    def _read(self):
        for loss, finite in self._unread:
            if bool(finite):
                self._sum += float(loss)
                self._count += 1
        self._unread.clear()

    def state(self) -> dict:
        """What goes into a checkpoint, as JSON values, which know no infinity."""
        self._read()
        best, training = (x if math.isfinite(x) else None for x in (self._best, self._training_at_best))
        counted = {"diverging": self.diverging, "stopped": self.stopped, "sum": self._sum, "count": self._count}
        return {**counted, "best_step": self._best_step, "best": best, "training_at_best": training}

    def restore(self, state: dict) -> None:
        """Takes up what `state` gave; a raised patience lets a run that was stopped go on."""
        self.diverging, self._best_step = int(state["diverging"]), int(state["best_step"])
        losses = state["best"], state["training_at_best"]
        self._best, self._training_at_best = (math.inf if x is None else float(x) for x in losses)
        self._sum, self._count = float(state["sum"]), int(state["count"])
        self._unread.clear()
        self.stopped = has_stopped(state, self.patience)


def has_stopped(state: dict, patience: int) -> bool:
    """Whether a run with this `OvertrainingDetector.state` was stopped, and would be again with this patience."""
    return bool(state["stopped"]) and 0 < patience <= int(state["diverging"])
