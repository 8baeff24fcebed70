"""What a run shows while it trains: progress bar or lines, TensorBoard, the final report."""

import sys

import tensorflow as tf
from tqdm import tqdm

from myxtts.training.step_clock import VARIATION_WARNING


class Callback:
    """Methods that a trainer calls; a callback has those that it needs."""

    def on_start(self, trainer, total_steps, placement):
        """Before the first step; `placement` is the line of the placement audit."""

    def on_ledger(self, ledger):
        """After the first step that was applied; `ledger` says what the training switches do."""

    def on_step(self, step):
        """After every step."""

    def on_log(self, step, losses, timing):
        """Every `training.log_every_steps`: mean losses and `StepClock.report` since the last time."""

    def on_validation(self, step, losses, is_best):
        """After each validation."""

    def on_sample(self, trainer):
        """Every `training.sample_every_steps`."""

    def on_end(self, trainer):
        """After the last step."""


def losses_text(losses):
    """`loss 3.1234 | text 1.2000 | mel 3.1000` and so on."""
    shown = []
    for name, value in losses.items():
        if name == "learning_rate":
            shown.append(f"lr {value:.1e}")
        elif name == "skipped_steps":
            if value:
                shown.append(f"skipped {value:d}")
        else:
            shown.append(f"{name} {value:.4f}")
    return " | ".join(shown)


def timing_text(timing):
    """The timing part of a log line; empty before the first timed step."""
    if not timing:
        return ""
    return (
        f"Avg: {timing['avg_ms']:.1f}ms, Std: {timing['std_ms']:.1f}ms | Throughput: "
        f"{timing['steps_per_second']:.2f} steps/sec | Variation: {100 * timing['variation']:.1f}% | stall "
        f"{100 * timing['stall']:.1f}% | buffer {timing['buffer']:.0f}/{timing['buffer_capacity']}"
    )


class ConsoleProgress(Callback):
    """A progress bar with stage, step, losses, steps/s and time left; plain lines where output is no terminal.

    Args:
        monitor: `GPUMonitor` that is running, or None.
        roles: Roles of the monitored GPUs, for its figures.
    """

    def __init__(self, monitor=None, roles=()):
        self.monitor = monitor
        self.roles = roles
        self._bar = None
        self._trainer = None

    def on_start(self, trainer, total_steps, placement):
        self._trainer, self._total = trainer, total_steps
        config = trainer.config
        print(
            f"Stage {trainer.stage}: {total_steps} steps, {trainer.step} done, model {config.model.size}, "
            f"{sum(int(tf.size(v)) for v in trainer.train_step.variables):,} weights"
        )
        print(placement)
        print(
            f"Batch size: {trainer.stage_config.batch_size}"
            + (
                f" x {config.training.gradient_accumulation} accumulated"
                if config.training.gradient_accumulation > 1
                else ""
            )
        )
        if sys.stdout.isatty() and trainer.step < total_steps:
            self._bar = tqdm(
                total=total_steps,
                initial=trainer.step,
                desc=trainer.stage,
                unit="step",
                dynamic_ncols=True,
                smoothing=0.05,
            )

    def on_ledger(self, ledger):
        preset = self._trainer.config.training.optimizations
        self._say(f"{self._trainer.stage} optimisations (preset {preset}), as seen in the first step:\n{ledger}")

    def on_step(self, step):
        if self._bar is not None:
            self._bar.update(step - self._bar.n)  # a run that went back counts anew

    def _say(self, line):
        if self._bar is not None:
            self._bar.write(line)
        else:
            print(line, flush=True)

    def on_log(self, step, losses, timing):
        if self._bar is not None:
            self._bar.set_postfix_str(losses_text({name: losses[name] for name in list(losses)[:3]}))
        left = (self._total - step) / timing["steps_per_second"] if timing else None
        parts = [f"step {step}/{self._total}", losses_text(losses), timing_text(timing)]
        if left is not None:
            parts.append(f"{tqdm.format_interval(left)} left")
        if self.monitor is not None:
            parts.append(self.monitor.report().log_fields(self.roles))
        self._say(f"{self._trainer.stage} " + " | ".join(part for part in parts if part))
        if timing and timing["variation"] > VARIATION_WARNING:
            self._say(
                "High timing variation - possible bottleneck! Try --enable-static-shapes, a larger --buffer-size "
                "or more --num-workers; utilities/dual_gpu_bottleneck_profiler.py names the phase."
            )

    def on_validation(self, step, losses, is_best):
        self._say(
            f"{self._trainer.stage} validation at step {step}: {losses_text(losses)}"
            + (" (best so far)" if is_best else "")
        )

    def on_end(self, trainer):
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        timing = trainer.clock.report(whole_run=True)
        print(f"FINAL REPORT, stage {trainer.stage}")
        if timing:
            print(f"  Avg: {timing['avg_ms']:.1f}ms, Std: {timing['std_ms']:.1f}ms")
            print(f"  Throughput: {timing['steps_per_second']:.2f} steps/sec")
            print(f"  Variation: {100 * timing['variation']:.1f}%")
            print(f"  Stall: {100 * timing['stall']:.1f}%")
            print(f"  Buffer: {timing['buffer']:.1f} of {timing['buffer_capacity']} batches ready on average")
        print(f"  Traces of the train step: {trainer.train_step.traces}")
        if trainer.train_step.compilations:
            print(f"  Programs compiled by XLA: {trainer.train_step.compilations}")
        if trainer.train_step.scaled:
            print(
                f"  Loss scale: {float(trainer.train_step.loss_scale):g}, "
                f"steps skipped: {int(trainer.train_step.bad_steps)}"
            )
        if self.monitor is not None:
            print(f"  {self.monitor.report().log_fields(self.roles)}")


class TensorBoardWriter(Callback):
    """Writes losses, learning rate and timing to TensorBoard, by stage.

    Args:
        folder: Log folder.
    """

    def __init__(self, folder):
        self.folder = folder
        self._writer = None

    def on_start(self, trainer, total_steps, placement):
        self._writer = tf.summary.create_file_writer(f"{self.folder}/{trainer.stage}")

    def _write(self, step, values, group):
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f"{group}/{name}", value)

    def on_log(self, step, losses, timing):
        self._write(step, losses, "train")
        self._write(step, timing, "timing")

    def on_validation(self, step, losses, is_best):
        self._write(step, losses, "validation")

    def on_end(self, trainer):
        self._writer.close()
