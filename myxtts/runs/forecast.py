"""What a run takes: memory and disk before its first step, and the time left once steps have been timed."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import current_plan
from myxtts.devices.gpu_monitor import BYTES_PER_MB, NVMLUnavailable, list_gpus
from myxtts.devices.machine import BYTES_PER_GB, read_memory, resident_bytes
from myxtts.memory import ESTIMATES
from myxtts.memory.estimates import RESERVED_GB, Shapes
from myxtts.memory.report import asked_for
from myxtts.runs.agenda import StageWork
from myxtts.training.watching.callbacks import Callback

WARMUP_STEPS, TRIAL_STEPS = 3, 5
"""Steps of a stage that trace and compile, and those after which its time is told."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a run takes at most, and what there is."""

    memory: int
    memory_free: int
    memory_in_all: int
    on_gpu: bool
    disk: int
    disk_free: int

    def describe(self) -> str:
        """A line for the user."""
        size = lambda count: f"{count / BYTES_PER_GB:.1f} GB"
        where = "GPU memory" if self.on_gpu else "memory"
        more = ", more than is free: see --batch-size" if self.memory > self.memory_free else ""
        return (
            f"Needs about {size(self.memory)} of {where} ({size(self.memory_free)} free{more}) "
            f"and {size(self.disk)} of disk ({size(self.disk_free)} free)"
        )


def find_needs(config: XTTSConfig, works: Sequence[StageWork], dataset: SpeechDataset) -> Needs | None:
    """What the stages that will be trained take; None where none will.

    Raises:
        UserError: The machine, its GPU or the disk has less.
    """
    memory, disk, largest = 0, 0, 0
    longest = max(clip.num_samples for clip in dataset.train) / MODEL_SAMPLE_RATE
    optimizations, training = asked_for(config.training)[0], config.training
    for work in works:
        estimate, settings = ESTIMATES.get(work.stage), config.stage(work.stage)
        if not work.trains or estimate is None:
            continue
        batch = 1 if training.automatic_batch_size else settings.batch_size
        shapes = Shapes.of_data(config.data, batch, min(longest, settings.crop_seconds or longest))
        shapes = replace(shapes, slice_frames=training.decoder.frames)
        found = estimate(config.model, shapes, optimizations, True)
        frozen = sum(ESTIMATES[name](config.model, shapes).parameters for name in STAGES[work.stage].builds_on)
        memory, checkpoint = max(memory, found.peak + frozen), found.resident - found.accumulators
        largest = max(largest, checkpoint)
        disk += checkpoint * (training.keep_checkpoints + 1) * (work.step is None)
    if not largest:
        return None
    needs = Needs(*_memory(memory), disk + largest, shutil.disk_usage(_there(training.checkpoint_dir)).free)
    if needs.disk > needs.disk_free:
        way_out = "Free the disk, lower --keep, or name a --checkpoint-dir on another disk"
        raise UserError(f"{needs.describe()}: the checkpoints do not fit. {way_out}.")
    if needs.memory > needs.memory_in_all:
        way_out = "Lower --batch-size, give --batch-size auto, or see `myxtts plan` for what saves memory"
        raise UserError(f"{needs.describe()}: it does not fit. {way_out}.")
    return needs


def _memory(needed):
    """Needed, free and in all, in bytes, and whether that is a GPU's."""
    plan = current_plan()
    if plan.visible_ids:
        try:
            gpus = [gpu.memory_mb for gpu in list_gpus() if gpu.id in plan.visible_ids]
        except NVMLUnavailable:
            gpus = []
        room = int(min(gpus, default=10**6) * BYTES_PER_MB - RESERVED_GB * BYTES_PER_GB)
        return needed, room, room, True
    ram, own = read_memory(), resident_bytes()
    return needed + own, ram.usable + own, min(ram.total, ram.limit or ram.total), False


def _there(folder):
    """The folder, or the first above it that is there."""
    path = Path(folder).resolve()
    return next(place for place in (path, *path.parents) if place.exists())


class TimeLeft(Callback):
    """Adds `seconds_left`, that of the whole run, to the timing of each log line, for the callbacks after it.

    Stages still to come are judged by the one in training: steps, clips in a step and `StageEntry.cost`.
    """

    def __init__(self, config: XTTSConfig):
        self.config = config
        """That of the run; to be replaced when it is settled."""
        self._later: dict[str, int] = {}
        self._began = self._opening = 0.0
        self._stage, self._total, self._marked = "", 0, (0, 0.0)

    def on_agenda(self, works: Sequence[StageWork]):
        self._later = {work.stage: max(0, work.total - (work.step or 0)) for work in works if work.trains}

    def on_stage(self, stage: str, order):
        self._began = time.monotonic()

    def on_start(self, start):
        self._later.pop(start.stage, None)
        self._stage, self._total, self._first, self._marked = start.stage, start.total_steps, start.step, None

    def on_step(self, step: int):
        if self._marked is None and step >= self._first + WARMUP_STEPS:
            now = time.monotonic()
            self._opening, self._marked = now - self._began, (step, now)

    def on_log(self, step: int, losses: dict, timing: dict):
        if timing and (left := self.seconds_left(step)) is not None:
            timing["seconds_left"] = left

    def seconds_left(self, step: int) -> float | None:
        """Seconds until the last step of the last stage, at a step of this one; None before `TRIAL_STEPS` of it."""
        if self._marked is None or step < self._marked[0] + TRIAL_STEPS:
            return None
        each = (time.monotonic() - self._marked[1]) / (step - self._marked[0])
        later = sum(count * self._cost(stage) for stage, count in self._later.items()) / self._cost(self._stage)
        return each * (self._total - step + later) + self._opening * len(self._later)

    def _cost(self, stage):
        return STAGES[stage].cost * self.config.stage(stage).batch_size
