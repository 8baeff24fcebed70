"""What a run prints: the lines that users look for."""

import shlex
from contextlib import ExitStack
from pathlib import Path

from myxtts.config.checks import UNPRINTABLE, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.devices.device_plan import DevicePlan
from myxtts.runs.agenda import Agenda
from myxtts.runs.run import Run, RunListener
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.training.callbacks import ConsoleProgress
from myxtts.utils.progress import clip_progress


class RunConsole(ConsoleProgress, RunListener):
    """Prints what happens to the run that has it among its `callbacks`, and the progress of each stage."""

    def __init__(self, run: Run):
        super().__init__(run.monitor, run.plan.gpu_roles)
        self.run: Run = run
        self._inspection, self._bar_of_clips = ExitStack(), None

    def on_pipeline(self, config: XTTSConfig, plan: DevicePlan):
        buffer_size, models = config.data.pipeline_buffer_size, ", ".join(plan.model_devices)
        if plan.is_dual:
            print(f"Intelligent GPU Pipeline: Multi-GPU Mode\nData Processing GPU: {plan.data_gpu}")
        else:
            print("Intelligent GPU Pipeline: Single-GPU Buffered Mode")
            print(f"Buffer Size: {buffer_size}\nSmart Prefetching: Enabled")
        print(f"Prefetching to {plan.data_device} with buffer_size={buffer_size}")
        if plan.is_dual:
            print(f"Multi-GPU Mode: Model will be placed on {models}")
            for gpu, device in zip(plan.model_gpus, plan.model_devices):
                print(f"(Original GPU {gpu} is now mapped to {device.lstrip('/')})")
        print(f"Creating model on device: {models}")

    def on_inspection(self, done: int, total: int):
        if self._bar_of_clips is None:
            self._bar_of_clips = self._inspection.enter_context(clip_progress("checking recordings"))
        self._bar_of_clips(done, total)

    def on_corpus(self, dataset):
        self._inspection.close()
        counts = f"Training clips: {len(dataset.train)}, validation clips: {len(dataset.validation)}"
        speakers = len({clip.speaker for clip in dataset.train})
        print(f"{counts}, speakers: {speakers}, text tokens: {dataset.tokenizer.num_tokens}")

    def on_agenda(self, agenda: Agenda):
        print(*map(printable, "\n".join(agenda.lines()).split("\n")), sep="\n")

    def on_stage(self, stage: str, order):
        print(f"Padding: {100 * order.padding_share():.1f}% of the batches' samples, {len(order.shapes)} shapes")

    def on_set_aside(self, stage: str, folder: Path):
        print(f"Earlier {stage} checkpoints were set aside in {folder}")

    def on_stopped(self, stage: str):
        print(f"Stopped. Run the same command again to resume from {self.run.folder}/{stage}")

    def on_finished(self, dataset):
        home, logs = self.run.folder, self.run.config.training.tensorboard_log_dir
        samples = sorted((home / "samples").glob("*.wav"))
        trained = [stage for stage in STAGES if CheckpointStore(home / stage).steps()]
        print(f"\nCheckpoints:  {', '.join(f'{home}/{stage}' for stage in trained)}")
        print(f"TensorBoard:  tensorboard --logdir {_quoted(logs or home / 'tensorboard')}")
        if samples:
            newest = printable(samples[-1].name)
            print(f"Spoken:       {home}/samples/ ({len(samples)} wav files, the newest {newest})")
            print(f"Mel pictures: {home}/samples/*.png")
        if any(STAGES[stage].load().speaks for stage in trained) and dataset.validation:
            clip = dataset.validation[0]
            voice = f"--reference-audio {_quoted(clip.wav_path)} --language {_quoted(clip.language)}"
            print(f"Speak with it:\n  myxtts say --checkpoint {_quoted(home)} {voice} \\")
            # With `=`, as a text that begins with a hyphen would be taken for an option.
            print(f"    --text={_quoted(dataset.texts[clip.id])} --output out.wav")


def _quoted(text):
    """`text` for a command line that a user may paste into a shell: what recordings say must not run."""
    return shlex.quote(UNPRINTABLE.sub("", str(text)))
