"""Notices that a model learns its training set by heart: the training loss falls on while validation turns up."""

import math

WARN_AFTER = 5
"""Diverging validations before a warning, where no patience is set."""


class OvertrainingDetector:
    """Counts validations in which the two losses diverge.

    A validation diverges when its loss is above the best so far and the mean training loss since the validation before is
    below the one at that best: early stopping (Prechelt 1998) that tells overtraining from a plateau, where neither moves.
    A new best sets the count back; a validation that is neither leaves it.

    Args:
        patience: Diverging validations before `update` says to stop; 0 never does. Half as many give a warning.
    """

    def __init__(self, patience):
        self.patience = patience
        self.diverging = 0
        """Diverging validations since the best one."""
        self.stopped = False
        """Whether the patience has run out."""
        self._best = math.inf
        self._best_step = 0
        self._training_at_best = math.inf
        self._unread = []
        self._sum, self._count = 0.0, 0

    def watch(self, loss, finite):
        """Takes note of a training step; the tensors are read later, so the device is not waited for.

        Args:
            loss: Training loss of the kind that is validated, scalar tensor.
            finite: Whether the step was applied, scalar tensor.
        """
        self._unread.append((loss, finite))

    def update(self, step, loss):
        """Takes note of a validation.

        Args:
            step: Its step.
            loss: Validation loss.

        Returns:
            What to tell the user, at the validation that half the patience is used up at and at the one that ends it, at
            which `stopped` is set; else None.
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
        count = "1 validation has" if self.diverging == 1 else f"{self.diverging} validations have"
        seen = (
            f"Overtraining: {count} a loss above the {self._best:.4f} of step "
            f"{self._best_step}, the last {loss:.4f}, while the training loss fell on."
        )
        if self.stopped:
            return f"{seen} The stage ends with the checkpoint of step {self._best_step}, the best."
        way_out = (
            f"It ends after {self.patience}" if self.patience else "--overtraining-patience N would end it after N"
        )
        return f"{seen} {way_out}; more data, a larger dropout or a smaller model helps."

    def _read(self):
        for loss, finite in self._unread:
            if bool(finite):
                self._sum += float(loss)
                self._count += 1
        self._unread.clear()

    def state(self):
        """What goes into a checkpoint, as JSON values."""
        self._read()
        return {
            "diverging": self.diverging,
            "stopped": self.stopped,
            "best_step": self._best_step,
            "best": _number(self._best),
            "training_at_best": _number(self._training_at_best),
            "sum": self._sum,
            "count": self._count,
        }

    def restore(self, state):
        """Takes up what `state` gave; a raised patience lets a run that was stopped go on."""
        self.diverging, self._best_step = state["diverging"], state["best_step"]
        self._best = math.inf if state["best"] is None else state["best"]
        self._training_at_best = math.inf if state["training_at_best"] is None else state["training_at_best"]
        self._sum, self._count = state["sum"], state["count"]
        self._unread.clear()
        self.stopped = has_stopped(state, self.patience)


def has_stopped(state, patience):
    """Whether a run with this `OvertrainingDetector.state` was stopped, and would be again with this patience."""
    return state["stopped"] and 0 < patience <= state["diverging"]


def _number(value):
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
