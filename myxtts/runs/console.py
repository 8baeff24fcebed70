"""Console output of a run: devices, recordings, the stages to train, progress and results."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from myxtts.config.checks import UNPRINTABLE, console_log, counted, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.model import ModelConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import BYTES_PER_GB, peak_resident_bytes
from myxtts.runs.agenda import StageWork, describe_works, listed
from myxtts.runs.run import Run, RunListener
from myxtts.runs.samples import held_out_voice
from myxtts.storage.base_model import is_base, model_name
from myxtts.storage.files import read_csv
from myxtts.training.loop.device_pipeline import prefetch_depth
from myxtts.utils.commons import folded, folded_on_terminal, progress_bar, shows_bars, tqdm

STALL_WARNING = 0.05
"""If a larger fraction of the time is spent waiting for data, the bottleneck is reported as data, not computing."""
MINUTE = 60.0
"""Seconds between progress lines without a progress bar. A stage also reports its bottleneck after this time."""
TRIAL_SECONDS = 10.0
"""With gradient accumulation, the expected duration of a step is printed once if it exceeds this number of seconds."""
HINTS = {
    "computing": "Data is ready in time. Faster: --optimizations auto or, with enough clips, a larger --batch-size.",
    "reading": "Raise --num-workers, use a faster disk, or read the samples of `myxtts prepare` (--prepared).",
    "preparing": "Prepare codes once (`myxtts prepare`), or give data work a GPU of its own (--data-gpu, --model-gpu).",
    "copying": "Choose two GPUs with a faster link: `nvidia-smi topo -m` shows it.",
}
"""Advice for the user, by bottleneck: computing, or a phase of the data pipeline."""


def losses_text(losses: dict[str, float]) -> str:
    """Formats losses as `loss 3.1234 | text 1.2000 | lr 1.0e-03`."""
    formats = {"learning_rate": "lr {:.1e}", "skipped_steps": "skipped {:d}"}
    return " | ".join(formats.get(name, name + " {:.4f}").format(value) for name, value in losses.items())


def timing_lines(timing: dict[str, float]) -> list[str]:
    """Returns lines with the step time (mean and variation) and throughput; [] before the first timed step."""
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
    """Returns sentences with the bottleneck of the run, the fraction of time spent waiting for data, and advice."""
    stall, bound = timing["stall"], "computing"
    seen = f"the model device waited for data {100 * stall:.1f}% of the time"
    if stall > STALL_WARNING:
        bound = max(("reading", "preparing", "copying"), key=timing.get)
        seen += f", and {bound} batches took {100 * timing[bound]:.0f}% of it"
    return f"Bound by {bound}: {seen}. {HINTS[bound]}"


class RunConsole(RunListener):
    """Callback that prints and logs the events of a run and the progress of its stages, with a progress bar on a
    terminal. With `quiet`, it only logs, and prints nothing."""

    def __init__(self, run: Run, quiet: bool = False):
        self.run: Run = run
        self.quiet, self._bar, self._shown_at, self._ledger = quiet, None, 0.0, {}
        self._inspection = ExitStack()
        self._began, self._seconds, self._needs, self._expected, self._peak = 0.0, {}, None, None, 0
        self._process = psutil.Process()
        psutil.cpu_percent(), self._process.cpu_percent()  # later calls return the CPU use since this one

    def _say(self, text, logged=None):
        """Prints a text, above the progress bar if there is one. Logs `logged` if given, else the same text."""
        shown = folded(text, 80) if "\n" not in text and " | " in text else folded_on_terminal(text, sys.stdout)
        with suppress(OSError):  # the disk of a log is full, or Ctrl-C has ended `tee`: training continues
            if self._bar is not None:
                self._bar.write(shown)
            elif not self.quiet:
                print(shown, flush=True)
        console_log.info("%s", (logged or text).lstrip("\n"))
        self._shown_at = time.monotonic()

    def on_pipeline(self, config: XTTSConfig, plan: DevicePlan):
        stage = "gpt" if config.training.stage == "all" else config.training.stage
        buffer_size, models = prefetch_depth(config, plan, stage), ", ".join(plan.model_devices)
        single = f"Single-GPU Buffered Mode\nBuffer Size: {buffer_size}\nSmart Prefetching: Enabled"
        dual = f"Multi-GPU Mode\nData Processing GPU: {plan.data_gpu}"
        self._say(f"Intelligent GPU Pipeline: {dual if plan.is_dual else single}")
        self._say(f"Prefetching to {plan.data_device} with buffer_size={buffer_size}")
        if plan.is_dual:
            self._say(f"Multi-GPU Mode: Model will be placed on {models}")
            for gpu, device in zip(plan.model_gpus, plan.model_devices):
                self._say(f"(Original GPU {gpu} is now mapped to {device.lstrip('/')})")
        self._say(f"Creating model on device: {models}")

    def on_inspection(self, done: int, total: int):
        if self.quiet:
            return
        if done == 1:
            self._show_checked = self._inspection.enter_context(progress_bar("checking recordings"))
        self._show_checked(done, total)
        if done == total:
            self._inspection.close()

    def on_corpus(self, dataset):
        counts = f"Training clips: {len(dataset.train)}, validation clips: {len(dataset.validation)}"
        self._say(f"{counts}, speakers: {len(dataset.speakers)}, text tokens: {dataset.tokenizer.num_tokens}")
        seconds = lambda clips: sum(clip.num_samples for clip in clips) / MODEL_SAMPLE_RATE
        minutes, held = (f"{seconds(clips) / 60:.1f} min" for clips in (dataset.train, dataset.validation))
        languages = Counter(clip.language for clip in dataset.train).most_common()
        spoken = ", ".join(language for language, _ in languages)
        self._say(f"Speech: {minutes} for training, {held} held out; {counted(len(languages), 'language')}: {spoken}")
        if is_base(dataset.config.training.init_from) and "dvae" in dataset.config.training.tune:
            self._say("Expect speech that is hard to understand: 5.5 min of a German voice on base had a CER of 47 %.")
            self._say("For a voice that is understood, start from XTTS v2 (docs/finetune.md).")
        usual = XTTSConfig(model=ModelConfig(size=dataset.config.model.size)).recipe()
        changed = (f"{name} {value}" for name, value in dataset.config.recipe().items() if value != usual[name])
        self._say(f"Settings other than the defaults: {printable(', '.join(changed))}")

    def on_agenda(self, works: Sequence[StageWork]):
        self._say("\n".join(map(printable, describe_works(works).split("\n"))))

    def on_needs(self, needs):
        self._needs, self._disk_before = needs, self._disk()
        self._say(needs.describe())

    def on_trial_start(self, stages):
        self._say(f"Measuring the time of a step of {listed(stages)}; this can take a minute...")

    def on_trial(self, times):
        without = ", without speech evaluations and samples" * (self.run.config.training.evaluate_every_steps > 0)
        self._expect(sum(whole for _, whole in times.values()), f" (by a trial of {listed([*times])}{without})")

    def _expect(self, left, how=""):
        self._expected = left, time.monotonic()
        ends = time.strftime("%H:%M", time.localtime(time.time() + left))
        if (others := psutil.cpu_percent() - self._process.cpu_percent() / psutil.cpu_count()) > 50:
            how += f". Other programs use about {others:.0f}% of the cores, which slows the run"
        self._say(f"Estimated time for the whole run: {tqdm.format_interval(left)}, until {ends}{how}")

    def on_stage(self, stage: str, order):
        self._began, self._peak = time.monotonic(), max(self._peak, peak_resident_bytes())
        shapes = counted(len(order.shapes), "shape")
        self._say(f"Padding: {100 * order.padding_share():.1f}% of the batches' samples, {shapes}")

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
        self._say(f"{seen}{rest}:\n{new}" if new else f"{seen}: as in the stage before", f"{seen}:\n{ledger}")

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
        if self._expected is None and (left := self.run.time_left.seconds_left(step)) is not None:
            self._expect(left)

    def on_log(self, step, losses, timing):
        if self._bar is not None:
            self._bar.set_postfix_str(losses_text({name: losses[name] for name in list(losses)[:3]}))
        total, lines = self._start.total_steps, timing_lines(timing)
        # Losses that are not part of the current phase are zero, as are most counts of skipped steps.
        always = ("loss", "discriminator/loss", "gradient_norm", "learning_rate")
        seen = {name: value for name, value in losses.items() if value or name in always}
        parts = [f"{self._start.stage} step {step}/{total}", losses_text(seen), *lines]
        if lines:
            parts += [f"stall {100 * timing['stall']:.1f}%", "buffer {buffer:.0f}/{buffer_capacity}".format(**timing)]
            left = timing.get("stage_seconds_left", (total - step) / timing["steps_per_second"])
            times = {" in this stage": left, " in the run": timing.get("seconds_left", left)}
            times = times if times[" in the run"] >= left + 1 else {"": left}
            parts += [f"{tqdm.format_interval(seconds)} left{where}" for where, seconds in times.items()]
        self._say(" | ".join(filter(None, [*parts, *machine_lines(timing)])))
        # Step times on a CPU vary with the load of its cores, so they are ignored unless data is the bottleneck.
        varies = "GPU" in self.run.plan.model_device or timing.get("stall", 0.0) > STALL_WARNING
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
        self._say(f"{self._start.stage} {kind} at step {step}: {losses_text(losses)}{' (best so far)' * is_best}")

    def on_evaluation(self, step, figures, is_best):
        self.on_validation(step, figures, is_best, "speech")

    def on_end(self, end):
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        timing, lines = end.timing, timing_lines(end.timing)
        if lines:
            lines.append(f"Stall: {100 * timing['stall']:.1f}%")
            lines.append(f"Buffer: {timing['buffer']:.1f} of {timing['buffer_capacity']} batches ready on average")
            lines.append(verdict(timing))
        lines.append(f"Traces of the train step: {end.traces}")
        if end.loss_scale is not None:
            lines.append(f"Loss scale: {end.loss_scale:g}, steps skipped: {end.skipped_steps}")
        self._say("\n  ".join([f"FINAL REPORT, stage {end.stage}", *lines, *machine_lines(timing)]))
        self._seconds[end.stage] = time.monotonic() - self._began
        self._peak = max(self._peak, peak_resident_bytes())  # `--batch-size auto` of a later stage resets it
        self._say(self._result(end.stage))

    def on_set_aside(self, stage: str, folder: Path):
        self._say(f"Earlier {stage} checkpoints were set aside in {folder}")

    def on_stopped(self, stage: str):
        self._say(f"Stopped. Run the same command again to resume from {self.run.folder}/{stage}")

    def on_spoken(self, spoken: list):
        if spoken:
            self._say("\nSample sentences:")
        for words in spoken:
            self._say(f'  {words.path}  {words.speaker}: "{printable(words.text)}"')
            self._say(f"    self-check: {'; '.join(words.doubts) or 'no fault found'}")

    def on_finished(self, dataset):
        home, logs = self.run.folder, self.run.config.training.tensorboard_log_dir
        samples = [path for kind in ("step", "final") for path in (home / "samples").glob(f"{kind}_*.wav")]
        trained = [*self.run.last_steps]
        results = folded_on_terminal("\n".join(map(self._result, trained)), sys.stdout)
        lines, lists = ["", results, *self._reached()], sorted(home.glob("clips_*.csv"))
        rows = [row for path in lists for row in read_csv(path)]
        if reasons := Counter(row.get("reason", "") for row in rows if row.get("verdict") == "rejected"):
            common = ", ".join(f"{printable(reason)} {count}" for reason, count in reasons.most_common(3))
            left, named = f"{reasons.total()} of {len(rows)} clips", " and ".join(map(str, lists))
            lines.append(f"Left out:     {left} ({common}); see {named}")
        lines.append(f"Checkpoints:  {', '.join(f'{home}/{stage}' for stage in trained)}")
        lines.append(f"TensorBoard:  tensorboard --logdir {_quoted(logs or home / 'tensorboard')}")
        if samples:
            newest = printable(max(samples, key=lambda path: (path.stat().st_mtime_ns, path.name)).name)
            count = counted(len(samples), "wav file")
            lines.append(f"Samples:      {home}/samples/ ({count} of speech, the newest is {newest})")
        if (home / "samples").is_dir():
            lines.append(f"Pictures:     {home}/samples/*.png, mel spectrograms of samples and recordings")
        if (home / "curves.png").is_file():
            lines.append(f"Loss curves:  {home}/curves.png")
        if any(STAGES[stage].speaks for stage in trained) and dataset.validation:
            clip = dataset.validation[0]
            voice = " ".join(_quoted(one.wav_path) for one in held_out_voice(dataset, clip.language))
            voice = f"--reference-audio {voice} --language {_quoted(clip.language)}"
            lines.append(f"Speak with it:\n  myxtts say --checkpoint {_quoted(model_name(home))} {voice} \\")
            # With `=`, because the text can begin with a hyphen.
            lines.append(f"    --text={_quoted(clip.text)} --output out.wav")
        self._say("\n".join(lines))

    def _disk(self):
        return sum(file.stat().st_size for file in self.run.folder.rglob("*") if file.is_file())

    def _reached(self):
        """Returns a list of one line that compares time, memory and disk usage with estimates; [] without estimates."""
        if self._needs is None or self._expected is None:
            return []
        expected, began = self._expected
        took = f"{tqdm.format_interval(time.monotonic() - began)} (expected {tqdm.format_interval(expected)})"
        disk = max(0, self._disk() - self._disk_before)  # the estimate excludes files of earlier runs
        sizes = (max(self._peak, peak_resident_bytes()), self._needs.memory, "memory"), (disk, self._needs.disk, "disk")
        sizes = sizes[bool(self.run.plan.visible_ids) :]  # the memory of a GPU is not measured
        used = (f"{n / BYTES_PER_GB:.1f} GB of {what} (expected {most / BYTES_PER_GB:.1f})" for n, most, what in sizes)
        return [f"Took:         {', '.join([took, *used])}"]

    def _result(self, stage):
        """Returns text with a stage's steps, time and validation losses, and a hint if the loss was still falling."""
        entry, best = STAGES[stage], self.run.best.get(stage)
        result = f"Stage {stage}: " + (f"step {step}" if (step := self.run.last_steps[stage]) else "used as it is")
        if stage in self._seconds:
            result += f", {tqdm.format_interval(self._seconds[stage])} in this run"
        by_step = {one["step"]: one[entry.main_loss] for one in self.run.history[stage]}
        if best in by_step:
            last = max(by_step)
            result += f"; validation {entry.main_loss} {by_step[last]:.4f} at the end"
            result += f", {by_step[best]:.4f} at the best step ({best})" + ", used for speech" * entry.speaks
            if best == last and len(by_step) > 1 and entry.speaks:
                result += f".\n  It was still falling: --stage {stage} and a larger --max-steps continue the training"
        return result


def _quoted(text):
    """Quotes an untrusted text for a shell command that users may copy from the output."""
    return shlex.quote(UNPRINTABLE.sub("", str(text)))
