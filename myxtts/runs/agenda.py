"""Agenda of a run: which steps of which stages it will train, and how much memory, disk and time they need."""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import UserError, counted, require
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_for
from myxtts.devices.gpu_monitor import BYTES_PER_MB, NVMLUnavailable, list_gpus
from myxtts.devices.machine import BYTES_PER_GB, choose_precision, read_memory, resident_bytes
from myxtts.memory.estimates import FLOAT, RESERVED_GB, Shapes, count_adapted
from myxtts.memory.report import ESTIMATES, requested_optimizations
from myxtts.runs.origin import tuned_stages
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.run_folder import TAKEN_FROM, is_start
from myxtts.storage.saved_state import refusing_damage
from myxtts.training.loop.batching import with_batch
from myxtts.training.loop.updates import total_steps
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.callbacks import Callback
from myxtts.training.watching.measurement import try_stage
from myxtts.training.watching.watch import has_stopped

logger = logging.getLogger(__name__)

WARMUP_STEPS, TIMED_STEPS = 3, 5
"""The first `WARMUP_STEPS` steps of a stage are not timed. The time left is estimated `TIMED_STEPS` steps later."""
LEAST_TO_TRY, MOST_TO_TRY = 40, 8 * BYTES_PER_GB
"""`try_run` makes trial steps if a run has at least `LEAST_TO_TRY` steps and needs at most `MOST_TO_TRY` bytes."""
OPENING, STOP_SECONDS, CLOSING_SECONDS = 22, 3, 25
"""Constants for `try_run`, fitted to fine-tuning of `base` (docs/benchmarks.md). Opening a stage takes as long as
`OPENING` eager steps on one clip. A validation takes `STOP_SECONDS` of CPU time, final samples `CLOSING_SECONDS`."""
CPU_RUNTIME_BYTES, CPU_SCRATCH, BYTES_PER_SECOND, MOST_KEPT = int(0.4 * BYTES_PER_GB), 0.2, 5_000_000, BYTES_PER_GB
"""Constants for the memory estimate on a CPU. TensorFlow takes `CPU_RUNTIME_BYTES` after tracing. Scratch buffers take
`CPU_SCRATCH` times a step's temporary memory. Data preparation takes `BYTES_PER_SECOND` per second of audio in a batch.
These three were fitted to ten runs (docs/benchmarks.md). Earlier stages leave at most `MOST_KEPT` bytes allocated."""


@dataclass(frozen=True)
class StageWork:
    """Progress of one stage of a run, and what the run will do in this stage."""

    stage: str
    step: int | None
    """Number of optimizer steps so far; None if the stage has no checkpoint."""
    total: int
    """Requested total number of steps, including those already taken; 0 if the data set cannot train the stage."""
    finished: bool = False
    """Whether the stage has already been trained to the end."""
    needed_by: tuple[str, ...] = ()
    """Stages that were trained on the weights of this stage and would be unusable if these weights changed."""
    stays: str = ""
    """Reason, other than `needed_by`, why the stage cannot continue, as text for `describe`. "" if there is none."""
    origin: str | None = None
    """Model from which the initial weights come; None for random weights."""

    @property
    def trains(self) -> bool:
        """Whether the run trains this stage. Also True if no steps are left and the run only marks it as finished."""
        return self.step is None or not self.finished or (self.step < self.total and self.can_continue)

    @property
    def can_continue(self) -> bool:
        """Whether the training would continue if more steps were requested."""
        return not (self.needed_by or self.stays)

    def describe(self) -> str:
        """Returns a line for the user that tells what the run will do in this stage."""
        if self.step is None:
            doing = f"steps 1 to {self.total}" + (f", from the weights in {self.origin}" if self.origin else "")
            doing = doing if self.total else "nothing to train"
        elif self.trains and self.step >= self.total:
            doing = f"finished at step {self.step}, because {self.total} were requested"
        elif self.trains:
            verb = "was trained for" if self.finished else "stopped after"
            doing = f"{verb} {counted(self.step, 'step')} and continues to step {self.total}"
        else:
            doing = f"already trained, {self.stays or counted(self.step, 'step')}"
            if not self.stays and self.step < self.total:
                because, restart = self.obstacle
                doing += f". Not extended to {self.total}, because {because}.\n  {restart}"
        return f"Stage {self.stage}: {doing}"

    @property
    def obstacle(self) -> tuple[str, str]:
        """Two message texts: which stages depend on the weights of this stage, and how to start this stage over."""
        stages = f"{listed(self.needed_by)} {'was' if len(self.needed_by) == 1 else 'were'}"
        restart = f"--reset-training --stage {self.stage} starts it over and sets aside what depends on it"
        return f"{stages} trained on it", restart


def describe_works(works: Sequence[StageWork]) -> str:
    """Returns the agenda as text for the user, with a line or two per stage."""
    lines = [work.describe() for work in works]
    if not any(work.trains for work in works):
        more = listed([work.stage for work in works if work.can_continue])
        hint = f"Raise --max-steps to continue with {more}, or use" if more else "Use"
        lines.append(f"Already trained. {hint} --reset-training to start over.")
    return "\n".join(lines)


def listed(names: Sequence[str]) -> str:
    """Joins names to a text such as `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def make_agenda(
    config: XTTSConfig, dataset: SpeechDataset, reset: Sequence[str] = (), taken: Sequence[str] = ()
) -> list[StageWork]:
    """Returns a `StageWork` for each stage in `training.stage`. Renames damaged checkpoints.

    `reset` lists stages to start over. `taken` lists trained stages that the run will copy from `training.init_from`.
    If `training.stage` is `all`, untrained stages in `training.leave_out` are omitted. Raises `UserError` if the run
    would train `training.stage` further, and other stages that depend on its weights would become unusable.
    """
    training = config.training
    stores = {name: CheckpointStore(f"{training.checkpoint_dir}/{name}") for name in STAGES}
    states = {}
    for name, store in stores.items():
        step = None if name in reset else store.newest_sound(logger.warning)
        if name in taken:
            states[name] = {"step": 0, "finished": True, TAKEN_FROM: training.init_from}
        elif step is not None and not is_start(state := store.read_state(step)):
            states[name] = state
    if training.stage == "all":
        stages = [name for name in STAGES if name in states or name not in training.leave_out]
        return [_work(config, name, dataset, states, stores) for name in stages]
    work = _work(config, training.stage, dataset, states, stores)
    # If no steps are left, the stage is only marked as finished.
    if work.step is not None and work.step < work.total and work.needed_by:
        because, restart = work.obstacle
        if work.stage in taken:
            raise UserError(f"--stage {work.stage} with --init-from needs --tune {','.join(TUNABLE)}: {because}.")
        raise UserError(
            f"--stage {work.stage} (training.stage) stays at {work.step} of {work.total} steps: {because}. Leave out "
            f"--stage to continue with the last stage, or give another --checkpoint-dir; {restart}."
        )
    return [work]


def _work(config, stage, dataset, states, stores):
    """Returns the `StageWork` of `stage`. `states` contains the newest state of each trained or copied stage."""
    state, training = states.get(stage), config.training
    tuned = tuned_stages(config) if training.init_from else []
    if training.automatic_batch_size and (sizes := ((state or {}).get("parts") or {}).get("micro_batches")):
        config = with_batch(config, stage, sizes["batch_size"], sizes["accumulation"])
    max_steps = config.stage(stage).max_steps
    batches = max_steps or replace(dataset, config=config).order(stage).batches_per_epoch
    total = total_steps(max_steps, training.epochs, batches, config.training.gradient_accumulation)
    needed_by = []
    for name in [name for name, entry in STAGES.items() if stage in {*entry.builds_on} - {*entry.follows}]:
        if state and name in states:
            built_on = states[name].get("lineage", {}).get(stage)
            needs = built_on is not None and built_on == stores[stage].digest(state["step"])
        else:  # the weights of `name` come from another run, where they were trained on this stage
            needs = name in tuned and stage not in tuned
        if needs:
            needed_by.append(name)
    if state is None:
        origin = training.init_from if stage in tuned else None
        total = 0 if STAGE_CLASSES[stage].nothing_to_learn(dataset) else total
        return StageWork(stage, None, total, needed_by=tuple(needed_by), origin=origin)
    stays = _stays(training, stage, states, stores)
    return StageWork(stage, state["step"], total, state["finished"], tuple(needed_by), stays)


def _stays(training, stage, states, stores):
    """Returns the reason why a stage with a checkpoint cannot continue, for `StageWork.stays`; "" if there is none."""
    state = states[stage]
    # Copied from another run, or without trainable weights.
    if "position" not in state or state["step"] == 0 or TAKEN_FROM in state:
        return "and used unchanged"
    lineage, steps = state.get("lineage", {}), counted(state["step"], "step")
    below = [name for name in lineage if name in states and name not in STAGES[stage].follows]
    if others := [name for name in below if stores[name].digest(states[name]["step"]) != lineage[name]]:
        hint = f"--reset-training --stage {stage} trains it again"
        return f"{steps}, on another {' and '.join(others)}, so it cannot continue.\n  {hint}"
    detector = state.get("parts", {}).get("overtraining")
    with refusing_damage(f"{training.checkpoint_dir}/{stage}"):
        if 0 < training.evaluation_patience <= int(state.get("stale_evaluations", 0)):
            return f"{steps}: the evaluation had stopped improving; --evaluation-patience 0 continues it"
        if detector is not None and has_stopped(detector, training.overtraining_patience):
            return f"{steps}: the validation loss had risen; --overtraining-patience 0 continues it"
    return ""


class Needs(NamedTuple):
    """Estimated memory and disk space that a run needs, the free amounts, and the total memory, all in bytes."""

    memory: int
    memory_free: int
    memory_in_all: int
    disk: int
    disk_free: int

    def describe(self) -> str:
        """Returns a line for the user with the needed and the free memory and disk space."""
        memory, free, _, disk, disk_free = (f"{count / BYTES_PER_GB:.1f} GB" for count in self)
        more = ", less than that: see --batch-size" if self.memory > self.memory_free else ""
        return f"Needs about {memory} of memory ({free} free{more}) and {disk} of disk ({disk_free} free)"


def find_needs(config: XTTSConfig, works: Sequence[StageWork], dataset: SpeechDataset) -> Needs | None:
    """Estimates the memory and disk space needed for training; returns None if no stage is to be trained. Raises
    `UserError` if the run does not fit into the free disk space or the total memory."""
    training, plan = config.training, plan_for()
    shares = max(1, len(training.workers)) * len(plan.model_devices)
    longest = max((clip.num_samples for clip in dataset.train), default=config.max_samples) / MODEL_SAMPLE_RATE
    peaks, extras, checkpoints, disk, may_use_xla = [], [], [], 0, False
    for work in works:
        estimate, settings = ESTIMATES.get(work.stage), config.stage(work.stage)
        if not work.trains or estimate is None:
            continue
        rule = f"a multiple of the number of training devices, {shares}"
        require(settings.batch_size % shares == 0, "--batch-size", rule, settings.batch_size)
        batch = 1 if training.automatic_batch_size else -(-settings.batch_size // shares)
        shapes = Shapes.of_data(config.data, batch, longest, settings)
        optimizations, assumed = requested_optimizations(training, work.stage)
        may_use_xla |= "xla" in assumed
        if "precision" in assumed:
            optimizations = replace(optimizations, precision=choose_precision("auto", plan.model_device)[0])
        found = estimate(config.model, shapes, optimizations)
        below = [ESTIMATES[name] for name in STAGES[work.stage].builds_on if name in ESTIMATES]
        frozen = sum(estimate(config.model, shapes).parameters for estimate in below)
        peaks.append(found.peak + frozen * (bool(plan.visible_ids) and plan.data_gpu in plan.model_gpus))
        extras.append(frozen + int(CPU_SCRATCH * (found.peak - found.resident) + BYTES_PER_SECOND * batch * longest))
        twice = count_adapted(config.model, optimizations) if work.stage == "gpt" and optimizations.lora_rank else 0
        checkpoints.append(found.resident - found.accumulators + FLOAT * twice)
        if work.step is None:
            written = -(-work.total // min(training.checkpoint_every_steps, training.validate_every_steps))
            disk += checkpoints[-1] * min(written, training.keep_checkpoints + 1)
    if not peaks:
        return None
    memory = max(peaks)
    if plan.visible_ids:
        free = total = memory
        trains = {gpu for gpu, role in zip(plan.visible_ids, plan.gpu_roles) if role == "model"}
        with suppress(NVMLUnavailable):
            if sizes := [gpu.memory_mb * BYTES_PER_MB for gpu in list_gpus() if gpu.id in trains]:
                free, total = min(sizes) - int(RESERVED_GB * BYTES_PER_GB), min(sizes)
                free = min(free, plan.model_memory_mb * BYTES_PER_MB) if plan.model_memory_mb else free
    else:
        ram, own = read_memory(), resident_bytes()
        memory += min(sum(peaks) - max(peaks), MOST_KEPT) + max(extras) + own + CPU_RUNTIME_BYTES
        free, total = ram.usable + own, min(ram.total, ram.limit or ram.total)
    home = Path(training.checkpoint_dir).resolve()
    there = next(place for place in (home, *home.parents) if place.exists())
    needs = Needs(memory, free, total, disk, shutil.disk_usage(there).free)
    if needs.disk + max(checkpoints) > needs.disk_free:  # the next checkpoint is written before the oldest is removed
        raise UserError(f"{needs.describe()}: the checkpoints do not fit. Free disk space, or lower --keep.")
    # On a GPU, `auto` may choose XLA, which needs a fraction of the memory; if it does not, batches are split.
    if needs.memory > needs.memory_in_all and not (plan.visible_ids and may_use_xla):
        raise UserError(f"{needs.describe()}: it does not fit. Lower --batch-size, or see `myxtts plan`.")
    return needs


def try_run(works: Sequence[StageWork], dataset: SpeechDataset, needs: Needs, notify: Callable) -> dict[str, tuple]:
    """Estimates training time, without speech evaluations, from trial steps. Returns `{stage: (seconds per step, those
    of the stage)}`. If no trial is made (as on a GPU), calls `notify("on_no_trial", reason)` and returns {}."""
    training, plan = dataset.config.training, plan_for()
    steps = {work.stage: max(0, work.total - (work.step or 0)) for work in works if work.trains}
    is_cpu = not plan.visible_ids and len(plan.model_devices) == 1
    reasons = {
        "trial steps are for one CPU, not for a GPU or several devices": not is_cpu,
        "the run has workers": training.workers,
        "the batch size is auto": training.automatic_batch_size,
        f"the run takes fewer than {LEAST_TO_TRY} steps": sum(steps.values()) < LEAST_TO_TRY,
        "trial steps would need too much memory": needs.memory > min(MOST_TO_TRY, needs.memory_free),
    }
    if why := next((why for why, holds in reasons.items() if holds), None):
        notify("on_no_trial", why)
        return {}
    notify("on_trial_start", [stage for stage, count in steps.items() if count])
    began, used = time.monotonic(), time.process_time()
    tried = {stage: try_stage(dataset, stage, plan) for stage, count in steps.items() if count}
    share = max(1.0, (time.monotonic() - began) / (time.process_time() - used))  # other programs slow this one down
    tried, times = {stage: found for stage, found in tried.items() if found is not None}, {}
    for stage, (alone, each) in tried.items():
        step, stops = each * training.gradient_accumulation, steps[stage] / training.validate_every_steps
        ends = bool(training.sample_every_steps) and STAGES[stage].speaks
        rest = share * (STOP_SECONDS * stops + CLOSING_SECONDS * ends)
        times[stage] = step, step * steps[stage] + OPENING * alone + rest
    return times


class TimeLeft(Callback):
    """Callback that estimates the remaining time of the stage and of the run. `on_log` stores both in `timing`.

    If `try_run` has estimated the times of all stages, its estimates for later stages are multiplied by a correction
    factor: measured time divided by estimated time. The factor stays near 1 for the first steps. Without estimates from
    `try_run`, the time per step is assumed to be proportional to the clips per step times `StageEntry.cost`.
    """

    def __init__(self, config: XTTSConfig):
        self._config, self._later, self._opening = config, {}, 0.0

    def on_agenda(self, works: Sequence[StageWork]):
        for work in (work for work in works if work.trains):
            cost = STAGES[work.stage].cost * self._config.stage(work.stage).batch_size
            self._later[work.stage] = cost, cost * max(0, work.total - (work.step or 0))

    def on_trial(self, times: dict[str, tuple[float, float]]):
        self._later, self._opening = {**times}, None  # the trial's times include opening

    def on_stage(self, stage: str, order):
        self._began, self._own = time.monotonic(), self._later.pop(stage, (0, 0))[0]

    def on_start(self, start):
        self._total, self._first, self._marked = start.total_steps, start.step, None

    def on_step(self, step: int):
        if self._marked is None and step >= self._first + WARMUP_STEPS:
            self._marked = step, time.monotonic()
            if self._opening is not None:
                self._opening = self._marked[1] - self._began

    def on_log(self, step: int, losses: dict, timing: dict):
        if timing and (left := self.seconds_left(step)) is not None:
            timing |= {"stage_seconds_left": self._each * (self._total - step), "seconds_left": left}

    def seconds_left(self, step: int) -> float | None:
        """Returns the estimated seconds from `step` to the end of the run; None in the first steps of a stage."""
        if self._marked is None or step < self._marked[0] + TIMED_STEPS:
            return None
        taken, passed = step - self._marked[0], time.monotonic() - self._marked[1]
        self._each, later = passed / taken, sum(whole for _, whole in self._later.values())
        ratio = self._each / self._own if self._own else 1.0
        if self._opening is None and self._own:  # after a trial; a few short steps say little about long stages
            ratio = (passed + later) / (self._own * taken + later)
        return self._each * (self._total - step) + ratio * later + (self._opening or 0.0) * len(self._later)
