"""Console output of a run: devices, recordings, the stages to train, progress and results."""

import csv
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from tqdm import tqdm

from myxtts.config.checks import UNPRINTABLE, counted, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.model import ModelConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import BYTES_PER_GB, peak_resident_bytes
from myxtts.runs.agenda import StageWork, describe_works, listed
from myxtts.runs.origin import tuned_stages
from myxtts.runs.run import Run, RunListener
from myxtts.runs.samples import held_out_voice
from myxtts.storage.base_model import is_base, model_name
from myxtts.training.loop.device_pipeline import prefetch_depth
from myxtts.training.watching.callbacks import ConsoleProgress
from myxtts.utils.commons import folded_on_terminal, progress_bar


class RunConsole(ConsoleProgress, RunListener):
    """Callback that prints the events of a run and the progress of its stages; with `quiet`, only logs them."""

    def __init__(self, run: Run, quiet: bool = False):
        super().__init__(quiet)
        self.run: Run = run
        self._inspection, self._clip_bar = ExitStack(), None
        self._began, self._seconds, self._needs, self._expected = 0.0, {}, None, None
        self._process = psutil.Process()
        psutil.cpu_percent(), self._process.cpu_percent()  # later calls return the CPU use since this one

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
        if self._clip_bar is None:
            self._clip_bar = self._inspection.enter_context(progress_bar("checking recordings"))
        self._clip_bar(done, total)

    def on_corpus(self, dataset):
        self._inspection.close()
        counts = f"Training clips: {len(dataset.train)}, validation clips: {len(dataset.validation)}"
        speakers = len({clip.speaker for clip in dataset.train})
        self._say(f"{counts}, speakers: {speakers}, text tokens: {dataset.tokenizer.num_tokens}")
        seconds = lambda clips: sum(clip.num_samples for clip in clips) / MODEL_SAMPLE_RATE
        minutes, held = (f"{seconds(clips) / 60:.1f} min" for clips in (dataset.train, dataset.validation))
        languages = Counter(clip.language for clip in dataset.train).most_common()
        spoken = ", ".join(language for language, _ in languages)
        self._say(f"Speech: {minutes} for training, {held} held out; {counted(len(languages), 'language')}: {spoken}")
        if is_base(dataset.config.training.init_from) and "dvae" in tuned_stages(dataset.config):
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
        self._expect(sum(whole for _, whole in times.values()), f" (by a trial of {listed([*times])})")

    def on_step(self, step: int):
        super().on_step(step)
        if self._expected is None and (left := self.run.time_left.seconds_left(step)) is not None:
            self._expect(left)

    def _expect(self, left, how=""):
        self._expected = left, time.monotonic()
        ends = time.strftime("%H:%M", time.localtime(time.time() + left))
        others = psutil.cpu_percent() - self._process.cpu_percent() / psutil.cpu_count()
        if others > 50:
            how += f". Other programs use about {others:.0f}% of the cores, which slows the run"
        self._say(f"Estimated time for the whole run: {tqdm.format_interval(left)}, until {ends}{how}")

    def on_stage(self, stage: str, order):
        self._began = time.monotonic()
        shapes = counted(len(order.shapes), "shape")
        self._say(f"Padding: {100 * order.padding_share():.1f}% of the batches' samples, {shapes}")

    def on_end(self, end):
        super().on_end(end)
        self._seconds[end.stage] = time.monotonic() - self._began
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
        rows = [row for path in lists for row in csv.DictReader(path.read_text("utf-8").split("\n"))]
        if reasons := Counter(row["reason"] for row in rows if row["verdict"] == "rejected"):
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
        """Returns a list of one line that compares used time, memory and disk with estimates; [] without estimates."""
        if self._needs is None or self._expected is None:
            return []
        expected, began = self._expected
        took = f"{tqdm.format_interval(time.monotonic() - began)} (expected {tqdm.format_interval(expected)})"
        disk = max(0, self._disk() - self._disk_before)  # the estimate excludes files of earlier runs
        sizes = (peak_resident_bytes(), self._needs.memory, "memory"), (disk, self._needs.disk, "disk")
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
            result += f", {by_step[best]:.4f} at its best, step {best}" + ", which speaks" * entry.speaks
            if best == last and len(by_step) > 1 and entry.speaks:
                result += f".\n  It was still falling: --stage {stage} and a larger --max-steps continue the training"
        return result


def _quoted(text):
    """Quotes an untrusted text for a shell command that users may copy from the output."""
    return shlex.quote(UNPRINTABLE.sub("", str(text)))
