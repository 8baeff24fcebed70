"""What the buttons of the page do. Nothing here knows how a page is drawn."""

import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np

from myxtts.config.checks import UserError
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import stored_voice
from myxtts.storage.speakers import read_speakers
from myxtts.webui.processes import said, start_training, stop_training
from myxtts.webui.run_view import RunView, run_folder, runs_in, view_run

MOST_CHARACTERS = 4096


class Studio:
    """Runs in one folder.

    Args:
        home: The folder; each run is a folder in it.
    """

    def __init__(self, home: Path):
        self.home: Path = home
        self._load = functools.lru_cache(2)(lambda folder, changed: Synthesizer.load(folder))

    def runs(self) -> list[str]:
        """Names of the runs, newest first."""
        return runs_in(self.home)

    def check_data(self, folder: str, language: str) -> str:
        """The doctor's report on a folder of recordings."""
        if not folder.strip():
            raise UserError("Name a folder of recordings on this machine.")
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "doctor.csv"
            flags = ["--language", language, "--report", str(report)]
            told = said("doctor", *flags_after_subject("data", folder, flags))
            return told.replace(f"every clip and its reason: {report}", "").strip()

    def plan(self, flags: list[str]) -> str:
        """What training with these flags would take."""
        return said("plan", *flags)

    def start(self, name: str, flags: list[str]) -> None:
        """Starts a run, or resumes it."""
        start_training(run_folder(self.home, name), flags)

    def stop(self, name: str) -> None:
        """Stops a run after its step."""
        stop_training(run_folder(self.home, name))

    def view(self, name: str) -> RunView:
        """What there is to see of a run."""
        return view_run(run_folder(self.home, name))

    def speakers(self, name: str) -> list[str]:
        """Names of the speakers that a run was trained on."""
        return list(read_speakers(run_folder(self.home, name)))

    def speak(
        self,
        name: str,
        text: str,
        language: str,
        recording: str | None = None,
        speaker: str | None = None,
        seed: int = 0,
        temperature: float = 0.0,
        speed: float = 1.0,
    ) -> tuple[int, np.ndarray]:
        """Sample rate in Hz, and 16-bit samples `(S,)`.

        Raises:
            UserError: The model cannot speak this; the message says why.
        """
        if len(text) > MOST_CHARACTERS:
            raise UserError(f"A text has at most {MOST_CHARACTERS} characters here. Received: {len(text)}.")
        folder = run_folder(self.home, name)
        synthesizer = self._load(folder, _changed(folder))
        voice = recording
        if not voice:
            voice = stored_voice(folder, speaker, synthesizer.as_voice)
        sampling = synthesizer.config.sampling
        if temperature:
            sampling = dataclasses.replace(sampling, temperature=temperature)
        speech = synthesizer.speak(text, voice, language, sampling, int(seed), speed, retries=1)
        return speech.sample_rate, np.round(np.clip(speech.samples, -1, 1) * 32767).astype(np.int16)


def flags_after_subject(subject: str, value: str, flags: list[str]) -> list[str]:
    """`data -- FOLDER` with the flags before it, so that no folder is taken for a flag."""
    return [subject, *flags, "--", value]


def training_flags(
    train_data: str,
    language: str,
    size: str,
    stage: str,
    batch_size: int,
    epochs: int,
    max_steps: int,
    accumulation: int,
    save_every: int,
    amharic_g2p: bool,
    switches: dict[str, bool],
) -> list[str]:
    """The flags of `myxtts train` for what the page was given; `switches` by their flags, those on are given."""
    flags = [f"--train-data={train_data.strip()}"] if train_data.strip() else []
    flags += [f"--language={language}", f"--model-size={size}", f"--stage={stage}", f"--batch-size={int(batch_size)}"]
    flags += [f"--epochs={int(epochs)}", f"--grad-accum={int(accumulation)}", f"--save-every={int(save_every)}"]
    flags += [f"--max-steps={int(max_steps)}"] if max_steps else []
    flags += ["--g2p=am"] if amharic_g2p else []
    return flags + [flag for flag, is_on in switches.items() if is_on]


def _changed(folder):
    """When something that speaks was last written, so that a newer checkpoint is loaded anew."""
    files = [path.stat().st_mtime_ns for path in (folder / "config.json", *folder.glob("*/best.json")) if path.exists()]
    return max(files, default=0)
