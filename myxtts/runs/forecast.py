"""Forecast of a run: memory and disk before its first step, and the time left once steps have been timed."""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_for
from myxtts.devices.gpu_monitor import BYTES_PER_MB, NVMLUnavailable, list_gpus
from myxtts.devices.machine import BYTES_PER_GB, read_memory, resident_bytes
from myxtts.memory import ESTIMATES
from myxtts.memory.estimates import RESERVED_GB, Shapes
from myxtts.memory.report import asked_for
from myxtts.runs.agenda import StageWork
from myxtts.training.watching.callbacks import Callback

WARMUP_STEPS, TRIAL_STEPS = 3, 5
"""Steps of a stage that trace and compile, and timed steps before the first estimate."""
CPU_RUNTIME_BYTES, CPU_SCRATCH = int(0.8 * BYTES_PER_GB), 0.2
"""On a CPU: TensorFlow's own memory once a step is traced, and the share that kernels add to the activations; fitted to
three fine-tunes of `base` (docs/benchmarks.md)."""


class Needs(NamedTuple):
    """Bytes that a run needs at most, and bytes that are available."""

    memory: int
    memory_free: int
    memory_in_all: int
    disk: int
    disk_free: int

    def describe(self) -> str:
        """Returns a line for the user."""
        memory, free, _, disk, disk_free = (f"{count / BYTES_PER_GB:.1f} GB" for count in self)
        more = ", less than that: see --batch-size" if self.memory > self.memory_free else ""
        return f"Needs about {memory} of memory ({free} free{more}) and {disk} of disk ({disk_free} free)"


def find_needs(config: XTTSConfig, works: Sequence[StageWork], dataset: SpeechDataset) -> Needs | None:
    """Estimates the memory and disk for the stages to train; None if there are none.

    Raises:
        UserError: The machine, its GPU or the disk has less than that.
    """
    memory, disk, largest, training = 0, 0, 0, config.training
    shares = max(1, len(training.workers)) * plan_for().num_replicas
    longest = max((clip.num_samples for clip in dataset.train), default=config.max_samples) / MODEL_SAMPLE_RATE
    for work in works:
        estimate, settings = ESTIMATES.get(work.stage), config.stage(work.stage)
        if not work.trains or estimate is None:
            continue
        batch = 1 if training.automatic_batch_size else -(-settings.batch_size // shares)
        shapes = Shapes.of_data(config.data, batch, longest, settings)
        found = estimate(config.model, shapes, asked_for(training)[0])
        below = [ESTIMATES[name] for name in STAGES[work.stage].builds_on if name in ESTIMATES]
        frozen = sum(estimate(config.model, shapes).parameters for estimate in below)
        scratch = 0 if plan_for().visible_ids else int(CPU_SCRATCH * (found.peak - found.resident))
        memory, checkpoint = max(memory, found.peak + scratch + frozen), found.resident - found.accumulators
        largest = max(largest, checkpoint)
        disk += checkpoint * (training.keep_checkpoints + 1) * (work.step is None)
    if not largest:
        return None
    home = Path(training.checkpoint_dir).resolve()
    there = next(place for place in (home, *home.parents) if place.exists())
    needs = Needs(*_memory(memory), disk + largest, shutil.disk_usage(there).free)
    if needs.disk > needs.disk_free:
        hint = "Free disk space, lower --keep, or name a --checkpoint-dir on another disk."
        raise UserError(f"{needs.describe()}: the checkpoints do not fit. {hint}")
    if needs.memory > needs.memory_in_all:
        hint = "Lower --batch-size, give --batch-size auto, or see `myxtts plan` for what saves memory."
        raise UserError(f"{needs.describe()}: it does not fit. {hint}")
    return needs


def _memory(needed):
    """Bytes needed, free and in total: of the plan's smallest GPU, else of the machine."""
    plan = plan_for()
    if plan.visible_ids:
        with suppress(NVMLUnavailable):
            room = min(gpu.memory_mb for gpu in list_gpus() if gpu.id in plan.visible_ids) * BYTES_PER_MB
            return needed, room - int(RESERVED_GB * BYTES_PER_GB), room
        return needed, needed, needed
    ram, own = read_memory(), resident_bytes()
    return needed + own + CPU_RUNTIME_BYTES, ram.usable + own, min(ram.total, ram.limit or ram.total)


class TimeLeft(Callback):
    """Adds `seconds_left` of the whole run to the timing of each log line, for the callbacks after it.

    The time of later stages is extrapolated from the current one by steps, clips per step and `StageEntry.cost`.
    """

    def __init__(self, config: XTTSConfig):
        self.config: XTTSConfig = config
        """Settings of the run; replaced once they are settled."""
        self._later, self._opening = {}, 0.0

    def on_agenda(self, works: Sequence[StageWork]):
        self._later = {work.stage: max(0, work.total - (work.step or 0)) for work in works if work.trains}

    def on_stage(self, stage: str, order):
        self._began = time.monotonic()
        self._later.pop(stage, None)

    def on_start(self, start):
        self._stage, self._total, self._first, self._marked = start.stage, start.total_steps, start.step, None

    def on_step(self, step: int):
        if self._marked is None and step >= self._first + WARMUP_STEPS:
            now = time.monotonic()
            self._opening, self._marked = now - self._began, (step, now)

    def on_log(self, step: int, losses: dict, timing: dict):
        if timing and (left := self.seconds_left(step)) is not None:
            timing["seconds_left"] = left

    def seconds_left(self, step: int) -> float | None:
        """Returns the seconds until the run ends, at a step of the current stage; None before `TRIAL_STEPS` of it."""
        if self._marked is None or step < self._marked[0] + TRIAL_STEPS:
            return None
        each = (time.monotonic() - self._marked[1]) / (step - self._marked[0])
        later = sum(count * self._cost(stage) for stage, count in self._later.items()) / self._cost(self._stage)
        return each * (self._total - step + later) + self._opening * len(self._later)

    def _cost(self, stage):
        return STAGES[stage].cost * self.config.stage(stage).batch_size
