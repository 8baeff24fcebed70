"""How long steps take, how evenly, and how long they waited for data."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from myxtts.distributed.workers import Workers

VARIATION_WARNING = 0.30
"""Standard deviation over mean of the step time past which a run warns of a bottleneck."""
STALL_WARNING = 0.05
"""Share of the time spent waiting for data from which, without a GPU, that is taken for one."""
OF_EACH = ("avg_ms", "stall", "buffer")
"""Figures that several workers tell of each."""


class StepClock:
    """Times optimizer steps. Validation, checkpoints and samples are left out through `paused`."""

    def __init__(self, warmup_steps: int = 3):
        self.warmup_steps = warmup_steps
        self.step_times: list[float] = []
        """Seconds of each step after the first few, which trace and compile."""
        self._pipeline = self._last = None
        self._skipped = self._reported = 0
        self._fills = []

    @property
    def has_ticked(self) -> bool:
        """Whether a step has ended."""
        return self._skipped > 0

    def start(self, pipeline) -> None:
        """Starts timing the steps fed by `pipeline`."""
        self._pipeline = pipeline
        self._last = time.perf_counter()
        self._wait_before = pipeline.wait_seconds

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self._skipped < self.warmup_steps:
            self._skipped += 1
            self._wait_before = self._pipeline.wait_seconds
        else:
            self.step_times.append(now - self._last)
            self._fills.append(self._pipeline.fill())
        self._last = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside belongs to no step."""
        began = time.perf_counter()
        yield
        if self._last is not None:
            self._last += time.perf_counter() - began

    def report(self, whole_run: bool = False) -> dict[str, float]:
        """Figures since the last report, or of the whole run.

        Returns:
            `avg_ms`, `std_ms`, `steps_per_second`, `variation`, `stall` (share of the time spent waiting for data,
            since the start) and `buffer` (mean fill) with `buffer_capacity`; empty before the first timed step.
        """
        first = 0 if whole_run else self._reported
        times = np.array(self.step_times[first:])
        if not whole_run:
            self._reported = len(self.step_times)
        if not len(times):
            return {}
        waited = self._pipeline.wait_seconds - self._wait_before
        return {
            **{"avg_ms": 1e3 * times.mean(), "std_ms": 1e3 * times.std(), "steps_per_second": 1.0 / times.mean()},
            "variation": times.std() / times.mean(),
            "stall": min(1.0, waited / sum(self.step_times)),
            "buffer": float(np.mean(self._fills[first:])),
            "buffer_capacity": self._pipeline.capacity,
        }


def timing_of_all(timing: dict[str, float], workers: Workers) -> dict[str, float]:
    """A report of this worker with what tells whom the others wait for, of each; all of them must call this."""
    for index, one in enumerate(workers.gather(timing) if workers.count > 1 else ()):
        timing = timing | {f"worker_{index}_{name}": one[name] for name in OF_EACH if timing and one}
    return timing
