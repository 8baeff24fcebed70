"""Callbacks of the trainer that show its progress: progress bar, log lines, final report, TensorBoard."""

import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from myxtts.config.checks import console_log, counted, read_toml
from myxtts.config.config import XTTSConfig
from myxtts.storage.files import AnyPath
from myxtts.utils.commons import folded, folded_on_terminal, shows_bars, tqdm

STALL_WARNING = 0.05
"""Share of time spent waiting for data above which data, not computing, is reported as the bottleneck."""
MINUTE = 60.0
"""Interval of progress lines if there is no progress bar. A stage reports its bottleneck after this time, too."""
TRIAL_SECONDS = 10.0
"""With gradient accumulation, the expected duration of a step is printed once if it exceeds this number of seconds."""
HINTS = read_toml(__file__, "hints.toml")
"""Advice for the user, by bottleneck: computing, or a phase of the data pipeline."""
logger = logging.getLogger(__name__)


class StageStart(NamedTuple):
    """Description of a stage when its training starts, or resumes after `step` optimizer steps.

    `num_weights` counts the trained parameters, `batch_size` is in clips, `accumulation` in batches per optimizer step.
    `preset` is the preset of the training switches. `placement` is a line that describes the devices of the variables.
    """

    stage: str
    step: int
    total_steps: int
    model_size: str
    num_weights: int
    batch_size: int
    accumulation: int
    preset: str
    placement: str


class StageEnd(NamedTuple):
    """Results of a stage at the end of its training.

    `timing` has the values of `Callback.on_log`, over the whole run. `traces` counts traces of the train step,
    `skipped_steps` the updates that were not finite. `loss_scale` is None without dynamic loss scaling.
    """

    stage: str
    step: int
    timing: dict
    traces: int
    loss_scale: float | None
    skipped_steps: int


class Callback:
    """Base class of callbacks. The trainer calls these methods, all of which are optional:

    - `on_start(start: StageStart)`: before the first step.
    - `on_waiting(seconds)`: in Multi-GPU Mode, before training waits `seconds` to give the data pipeline a head start.
    - `on_running()`: in Multi-GPU Mode, when the pipeline is filled.
    - `on_ledger(ledger: Ledger)`: after the first step that changed the weights.
    - `on_micro_batch(what, done, count)`: after `done` of a step's `count` batches; `what` is `read` or `computed`.
    - `on_step(step)`: after every step.
    - `on_log(step, losses, timing)`: every `training.log_every_steps`. `losses` are means since the last call; `timing`
      has `StepClock.report`, memory in MB (`host_mb`, `model_gpu_mb`) and GPU utilization (`model_gpu_percent`).
    - `on_validation(step, losses, is_best)`: after each validation; the model still has the averaged weights.
    - `on_evaluation(step, figures, is_best)`: after each evaluation of speech; in `figures`, a lower `score` is better.
    - `on_sample(step)`: every `training.sample_every_steps`; the model has the averaged weights.
    - `on_end(end: StageEnd)`: after the last step.
    """


def losses_text(losses: dict[str, float]) -> str:
    """Formats losses as `loss 3.1234 | text 1.2000 | lr 1.0e-03`."""
    formats = {"learning_rate": "lr {:.1e}", "skipped_steps": "skipped {:d}"}
    return " | ".join(formats.get(name, name + " {:.4f}").format(value) for name, value in losses.items())


def timing_lines(timing: dict[str, float]) -> list[str]:
    """Returns lines with step time, throughput and variation; none before the first timed step."""
    if "avg_ms" not in timing:
        return []
    return [
        f"Avg: {timing['avg_ms']:.1f}ms, Std: {timing['std_ms']:.1f}ms",
        f"Throughput: {timing['steps_per_second']:.2f} steps/sec",
        f"Variation: {100 * timing['variation']:.1f}%",
    ]


def machine_lines(timing: dict[str, float]) -> list[str]:
    """Returns lines with memory and GPU utilization, in the format that `utilities/compare_logs.py` reads."""
    lines = [f"Host memory: {timing['host_mb']:.0f}MB"] if "host_mb" in timing else []
    if roles := [role for role in ("data", "model") if f"{role}_gpu_mb" in timing]:
        busy = {role: timing.get(f"{role}_gpu_percent") for role in roles}
        shown = ", ".join(f"{role} {'n/a' if percent is None else f'{percent:.0f}%'}" for role, percent in busy.items())
        memory = ", ".join(f"{role} {timing[f'{role}_gpu_mb']:.0f}MB" for role in roles)
        lines += [f"GPU util: {shown}", f"GPU memory: {memory}"]
    return lines


def verdict(timing: dict[str, float]) -> str:
    """Returns sentences with the bottleneck of the run, the share of time spent waiting for data, and advice."""
    stall, bound = timing["stall"], "computing"
    seen = f"the model device waited for data {100 * stall:.1f}% of the time"
    if stall > STALL_WARNING:
        bound = max(("reading", "preparing", "copying"), key=timing.get)
        seen += f", and {bound} batches took {100 * timing[bound]:.0f}% of it"
    return f"Bound by {bound}: {seen}. {HINTS[bound]}"


class ConsoleProgress(Callback):
    """Prints and logs the progress of training, with a progress bar on a terminal. With `quiet`, only logs it."""

    def __init__(self, quiet: bool = False):
        self.quiet, self._bar, self._shown_at, self._ledger = quiet, None, 0.0, {}

    def on_start(self, start):
        self._start, self._verdict_at = start, time.monotonic() + MINUTE
        self._told = self._is_warned = False
        done = f"{counted(start.total_steps, 'step')}, {start.step} done"
        self._say(f"Stage {start.stage}: {done}, model {start.model_size}, {start.num_weights:,} weights")
        self._say(start.placement)
        accumulated = f" x {start.accumulation} accumulated" if start.accumulation > 1 else ""
        wait = ". The first step takes longer than the others" * (start.step < start.total_steps)
        self._say(f"Batch size: {start.batch_size}{accumulated}{wait}")
        if shows_bars() and not self.quiet and start.step < start.total_steps:
            look = dict(unit="step", dynamic_ncols=True, smoothing=0.05)
            self._bar = tqdm(total=start.total_steps, initial=start.step, desc=start.stage, **look)

    def on_waiting(self, seconds):
        self._say(f"Multi-GPU Mode: Waiting {seconds}s for data pipeline to warm up...")

    def on_running(self):
        self._say("Model training starting now")

    def on_ledger(self, ledger):
        seen = f"{self._start.stage} optimizations (preset {self._start.preset}), as seen in the first step"
        known, self._ledger = self._ledger, ledger
        is_new = lambda row: not row.as_requested or row[:3] != known.get(row.optimization, ())[:3]
        new = type(ledger)({name: row for name, row in ledger.items() if is_new(row)})
        rest = "; the others are as in the stage before" if len(new) < len(ledger) else ""
        self._say(f"{seen}{rest}:\n{new}", f"{seen}:\n{ledger}")

    def on_micro_batch(self, what, done, count):
        now = time.monotonic()
        if done == 1:
            self._first_at = now  # the first batch includes tracing
        elif what == "computed" and not self._told and (done == count or now - self._first_at > TRIAL_SECONDS):
            self._told, seconds = True, (now - self._first_at) / (done - 1) * count
            if seconds > TRIAL_SECONDS:
                self._say(f"Computing a step of {count} batches takes about {tqdm.format_interval(seconds)}")
        if now - self._shown_at > (MINUTE if self._bar is None else 1.0):
            self._shown_at = now
            show = self._say if self._bar is None else self._bar.set_postfix_str
            show(f"batches {what}: {done} of {count}")

    def on_step(self, step):
        if self._bar is not None:
            self._bar.update(step - self._bar.n)  # negative after a return to an earlier checkpoint
            self._shown_at = time.monotonic()
        elif time.monotonic() - self._shown_at > MINUTE:
            self._say(f"{self._start.stage} step {step}/{self._start.total_steps}")

    def _say(self, text, logged=None):
        """Prints a text, above the progress bar if there is one, and logs it or the longer text `logged`."""
        is_step = "\n" not in text and " | " in text
        shown = folded(text, 80) if is_step else folded_on_terminal(text, sys.stdout)
        with suppress(OSError):  # the disk of a log is full, or Ctrl-C has ended `tee`: training continues
            if self._bar is not None:
                self._bar.write(shown)
            elif not self.quiet:
                print(shown, flush=True)
        console_log.info("%s", (logged or text).lstrip("\n"))
        self._shown_at = time.monotonic()

    def on_log(self, step, losses, timing):
        if self._bar is not None:
            self._bar.set_postfix_str(losses_text({name: losses[name] for name in list(losses)[:3]}))
        total, lines = self._start.total_steps, timing_lines(timing)
        # Losses of an update that is not part of the current phase are zero, as are most counts of skipped steps.
        always = ("loss", "gradient_norm", "learning_rate")
        seen = {name: value for name, value in losses.items() if value or name in always}
        parts = [f"{self._start.stage} step {step}/{total}", losses_text(seen), *lines]
        if lines:
            parts.append(f"stall {100 * timing['stall']:.1f}%")
            parts.append(f"buffer {timing['buffer']:.0f}/{timing['buffer_capacity']}")
            left = timing.get("stage_seconds_left", (total - step) / timing["steps_per_second"])
            times = {" in this stage": left, " in the run": timing.get("seconds_left", left)}
            times = times if times[" in the run"] >= left + 1 else {"": left}
            parts += [f"{tqdm.format_interval(seconds)} left{where}" for where, seconds in times.items()]
        self._say(" | ".join(filter(None, [*parts, *machine_lines(timing)])))
        # Step times on a CPU vary with the load of its cores, so they are ignored unless data is the bottleneck.
        varies = "model_gpu_mb" in timing or timing.get("stall", 0.0) > STALL_WARNING
        if lines and timing["variation"] > 0.3 and varies and not self._is_warned:
            self._is_warned = True
            self._say(
                "High timing variation - possible bottleneck! Try --enable-static-shapes, a larger --buffer-size "
                "or more --num-workers; utilities/dual_gpu_bottleneck_profiler.py names the phase."
            )
        if lines and time.monotonic() > self._verdict_at:
            self._verdict_at = float("inf")
            self._say(verdict(timing))

    def on_validation(self, step, losses, is_best, kind="validation"):
        best = " (best so far)" if is_best else ""
        self._say(f"{self._start.stage} {kind} at step {step}: {losses_text(losses)}{best}")

    def on_evaluation(self, step, figures, is_best):
        self.on_validation(step, figures, is_best, "speech")

    def on_end(self, end):
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        timing, lines = end.timing, timing_lines(end.timing)
        if lines:
            waits = f"Stall: {100 * timing['stall']:.1f}%"
            buffer = f"Buffer: {timing['buffer']:.1f} of {timing['buffer_capacity']} batches ready on average"
            lines = [" | ".join([*lines, waits]), buffer, verdict(timing)]
        lines.append(f"Traces of the train step: {end.traces}")
        if end.loss_scale is not None:
            lines.append(f"Loss scale: {end.loss_scale:g}, steps skipped: {end.skipped_steps}")
        self._say("\n  ".join([f"FINAL REPORT, stage {end.stage}", *lines, *machine_lines(timing)]))


class EventFile:
    """Writes TensorBoard event files to a folder. Creates the folder; its parent must exist.

    Values that cannot be written are lost; only the first error is logged. Later values are written to a new file,
    because TensorBoard stops at a truncated record.
    """

    def __init__(self, folder: AnyPath):
        self.folder: Path = Path(folder)
        self._writer, self._has_failed = None, False

    def write(self, step: int, write: Callable[[], None]) -> None:
        """Calls `write()`, whose `tf.summary` calls are recorded for `step`, and flushes the file."""
        try:
            if self._writer is None:
                # Without parents, so that the folder of a run that was moved is not created again.
                self.folder.mkdir(exist_ok=True)
                with tempfile.TemporaryFile(dir=self.folder) as file:  # raises on a full disk, before a file is left
                    file.write(bytes(4096))
                self._writer = tf.summary.create_file_writer(str(self.folder))
            with self._writer.as_default(step=step):
                write()
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            self._writer = None
            if not self._has_failed:
                first_line = getattr(error, "message", str(error)).partition("\n")[0]
                reason = re.sub(r"^\{\{.*?\}\} *", "", first_line)  # without the name of the operation
                logger.error("TensorBoard cannot write to %s: %s. Training continues.", self.folder, reason)
            self._has_failed = True


class TensorBoardWriter(Callback):
    """Writes losses, learning rate, timing and the settings to TensorBoard, in a folder per stage."""

    def __init__(self, folder: AnyPath, config: XTTSConfig):
        self.folder: Path = Path(folder)
        self._settings = f"```\n{json.dumps(config.to_dict(), indent=1, ensure_ascii=False)}\n```"

    def on_start(self, start):
        self._file = EventFile(self.folder / start.stage)
        self._file.write(start.step, lambda: tf.summary.text("settings", self._settings))

    def _write(self, step, values, group):
        def write():
            for name, value in values.items():
                tf.summary.scalar(f"{group}/{name}", value)

        self._file.write(step, write)

    def on_log(self, step, losses, timing):
        self._write(step, losses, "train")
        self._write(step, timing, "timing")

    def on_validation(self, step, losses, is_best):
        self._write(step, losses, "validation")

    def on_evaluation(self, step, figures, is_best):
        self._write(step, figures, "evaluation")
