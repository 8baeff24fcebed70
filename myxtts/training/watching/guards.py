"""Detectors of divergence (losses that are not finite) and of overtraining (only validation losses rise)."""

import math
from collections import deque

import numpy as np

from myxtts.config.checks import UserError, counted

WARN_AFTER = 5
"""Rising validations before a warning, if no patience is set."""


class TrainingDiverged(UserError):
    """Too many consecutive steps had a loss or gradient that is not finite; none of them was applied."""


class DivergenceGuard:
    """Counts consecutive steps whose loss or gradient is not finite; after `limit` of them, the run has diverged."""

    def __init__(self, limit: int):
        self.limit, self.rate_scale, self.returns = limit, 1.0, 0
        """Learning-rate factor, lowered at each return to a checkpoint, and the number of returns."""
        self._in_row, self._row = 0, deque(maxlen=limit)

    def state(self) -> dict:
        return {"rate_scale": self.rate_scale, "returns": self.returns, "in_row": self._in_row}

    def restore(self, state: dict) -> None:
        self.rate_scale = float(state["rate_scale"])
        self.returns, self._in_row = int(state["returns"]), int(state["in_row"])
        self._row.clear()

    def record(self, step: int, clips: list[np.ndarray], losses: dict[str, float]) -> None:
        """Records a step: indices of its clips, and the results of the train step."""
        if losses["finite"]:
            self._in_row = 0
            self._row.clear()
            return
        broken = [name for name, value in losses.items() if not math.isfinite(value)]
        self._in_row += 1
        self._row.append({"step": step, "clips": np.concatenate(clips).tolist(), "not_finite": broken})

    def bad_steps(self) -> list[dict]:
        """If the run has diverged, its last bad steps (`step`, `clips`, names of losses `not_finite`); else empty."""
        return list(self._row) if self._in_row >= self.limit else []


class OvertrainingDetector:
    """Early stopping (Prechelt 1998) that distinguishes overtraining from a plateau.

    Counts validations whose loss is above the best so far while the mean training loss since the last validation is
    below its value at that best. A new best resets the count. After `patience` of them, `update` sets `stopped` (0:
    never), and after half as many it warns.
    """

    def __init__(self, patience: int):
        self.patience, self.diverging, self.stopped = patience, 0, False
        self._best = self._training_at_best = math.inf
        self._best_step, self._sum, self._count = 0, 0.0, 0

    def record(self, loss: float) -> None:
        """Records the main loss of a training step that was applied."""
        self._sum += loss
        self._count += 1

    def update(self, step: int, loss: float) -> str | None:
        """Records a validation; returns a warning at half the patience, the reason for a stop at its end, or None."""
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
            return f"{seen} The stage ends with the best checkpoint, of step {self._best_step}."
        then = f"The stage ends after {self.patience}" if self.patience else "--overtraining-patience N ends it after N"
        return f"{seen} {then}. More data, more dropout or a smaller model helps."

    def state(self) -> dict:
        """JSON values for a checkpoint; None stands for infinity."""
        best, training = (x if math.isfinite(x) else None for x in (self._best, self._training_at_best))
        counts = {"diverging": self.diverging, "stopped": self.stopped, "sum": self._sum, "count": self._count}
        return {**counts, "best_step": self._best_step, "best": best, "training_at_best": training}

    def restore(self, state: dict) -> None:
        """Inverse of `state`; with a larger patience, a stopped run continues."""
        self.diverging, self._best_step = int(state["diverging"]), int(state["best_step"])
        losses = state["best"], state["training_at_best"]
        self._best, self._training_at_best = (math.inf if x is None else float(x) for x in losses)
        self._sum, self._count = float(state["sum"]), int(state["count"])
        self.stopped = has_stopped(state, self.patience)


def has_stopped(state: dict, patience: int) -> bool:
    """Whether early stopping ended the run that saved this `OvertrainingDetector.state`, also with this patience."""
    return bool(state["stopped"]) and 0 < patience <= int(state["diverging"])
