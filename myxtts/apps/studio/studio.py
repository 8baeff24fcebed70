"""What the buttons of the page do. Nothing here knows how a page is drawn."""

import dataclasses
import functools
import random
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.apps.studio.data_sets import DataSets
from myxtts.apps.studio.processes import process_of, require_free, said, start_training, stop_training
from myxtts.apps.studio.run_view import RunView, run_folder, runs_in, view_run
from myxtts.apps.studio.tasks import Tasks
from myxtts.apps.studio.training_form import RELEASED_SIZE, XTTS_V2, Preset, preset_for, training_flags
from myxtts.apps.studio.votes import Votes
from myxtts.audio.files import load_samples
from myxtts.config.checks import UserError
from myxtts.config.stages import STAGES
from myxtts.data.corpora import load_corpus
from myxtts.storage.speakers import read_speakers

MOST_CHARACTERS = 4096
CLIP_RATE = 22_050
"""Of clips to hear, in Hz: that at which training hears them."""
EXPORTS, EVALUATION = "_exports", "_evaluation"
"""Beside the runs; no run can have such a name."""


class Wish(NamedTuple):
    """What is to be said, and how."""

    run: str
    text: str
    language: str
    recording: str | None = None
    """A file to take the voice from; without it, of the `speaker`."""
    speaker: str | None = None
    seed: int = 0
    temperature: float = 0.0
    """Of the draws; 0 takes the run's own."""
    speed: float = 1.0


class Studio:
    """Runs in one folder.

    Args:
        home: The folder; each run is a folder in it.
    """

    def __init__(self, home: Path):
        self.home: Path = home
        self.data: DataSets = DataSets(home)
        self.tasks: Tasks = Tasks()
        self.votes: Votes = Votes(home)
        self._loading = threading.Lock()
        self._load = functools.lru_cache(2)(_load)

    def runs(self) -> list[str]:
        """Names of the runs, newest first."""
        return runs_in(self.home)

    def training(self) -> list[str]:
        """Names of the runs that train now, whoever started them."""
        return [name for name in self.runs() if process_of(self.home / name)]

    def check_data(self, folder: str, language: str) -> str:
        """The doctor's report on a folder of recordings."""
        if not folder.strip():
            raise UserError("Name a folder of recordings on this machine.")
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "doctor.csv"
            flags = ["--language", language, "--report", str(report)]
            told = said("doctor", *flags_after_subject("data", folder, flags))
            if "accepted: 0 " in told:  # no data set, perhaps somebody's file: nothing of it is quoted
                told = re.sub(r" \(first: .*\)", "", told)
            return told.replace(f"every clip and its reason: {report}", "").strip()

    def random_clips(self, folder: str, language: str, count: int) -> list[tuple[str, tuple[int, np.ndarray]]]:
        """Clips of a data set to hear: text, and sample rate in Hz with 16-bit samples; fewer where it has fewer.

        Raises:
            UserError: It is no data set, or a recording cannot be read.
        """
        clips = load_corpus(folder, language).utterances
        chosen = random.sample(clips, min(count, len(clips)))
        return [(clip.text, (CLIP_RATE, _as_pcm16(load_samples(clip.wav_path, CLIP_RATE)))) for clip in chosen]

    def make_data_set(self, name: str, files: list[str], is_long: bool, language: str) -> Iterator[str]:
        """Keeps dropped files as a data set, cutting them first where they are long; yields what is told of it."""
        if not is_long:
            yield str(self.data.keep(name, files))
            return
        recordings, folder = self.data.keep_long(name, files)
        flags = [str(recordings), "--output", str(folder), "--language", language]
        yield from self.tasks.follow(f"data {name}", "make-dataset", *flags)

    def preset(self, name: str | None, source: str | None, recipe: str | None = None) -> Preset:
        """The training form for a run that starts from a model; a run that is there shows its own settings."""
        folder = run_folder(self.home, name) if name else self.home
        return preset_for(self.source(source), folder, recipe)

    def source(self, named: str | None) -> str:
        """What `--init-from` takes for a name in the form: the folder of a run, else the name as it is."""
        named = (named or "").strip()
        return str((self.home / named).resolve()) if named in self.runs() else named

    def flags(self, name: str | None, recipe: str, values: dict[str, Any]) -> list[str]:
        """The flags of `myxtts train` for the form."""
        folder = run_folder(self.home, name) if name else self.home
        return training_flags(recipe, folder, values | dict(init_from=self.source(values["init_from"])))

    def plan(self, flags: list[str]) -> str:
        """What training with these flags would take."""
        is_released = f"--init-from={XTTS_V2}" in flags  # the plan does not fetch it to learn its size
        return said("plan", *flags, *[f"--model-size={RELEASED_SIZE}"] * is_released)

    def check_free(self, name: str) -> None:
        """Raises `UserError` where the name is none, or a run of it trains already."""
        require_free(run_folder(self.home, name))

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

    def speak(self, wish: Wish, which: str = "best") -> tuple[int, np.ndarray]:
        """Sample rate in Hz, and 16-bit samples `(S,)`; of doubtful sentences a second try.

        Raises:
            UserError: The model cannot speak this; the message says why.
        """
        synthesizer, *options = self._opened(wish, which)
        speech = synthesizer.speak(wish.text, *options, retries=1)
        return speech.sample_rate, _as_pcm16(speech.samples)

    def stream(self, wish: Wish) -> Iterator[tuple[int, np.ndarray]]:
        """As `speak`, piece by piece while it is made, with no second try."""
        synthesizer, *options = self._opened(wish)
        for samples in synthesizer.stream(wish.text, *options, check=False):
            yield synthesizer.sample_rate, _as_pcm16(samples)

    def _opened(self, wish, which="best"):
        """The run's `Synthesizer`, and its options up to the speed."""
        if len(wish.text) > MOST_CHARACTERS:
            raise UserError(f"A text has at most {MOST_CHARACTERS} characters here. Received: {len(wish.text)}.")
        folder = run_folder(self.home, wish.run)
        with self._loading:
            synthesizer = self._load(folder, which, _changed(folder))
        from myxtts.inference.voices import stored_voice

        if wish.recording:
            voice = synthesizer.as_voice(wish.recording)
        else:
            voice = stored_voice(folder, wish.speaker, synthesizer.as_voice)
        sampling = synthesizer.config.sampling
        sampling = dataclasses.replace(sampling, temperature=wish.temperature or sampling.temperature)
        return synthesizer, voice, wish.language, sampling, int(wish.seed), wish.speed

    def export(self, name: str, file_format: str, weights: str) -> Iterator[str]:
        """Exports a run beside the runs; yields what is told of it."""
        flags = ["--checkpoint", str(run_folder(self.home, name)), "--format", file_format, "--weights", weights]
        folder = self.export_folder(name, file_format, weights)
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield from self.tasks.follow("export", "export", *flags, "--output", str(folder))

    def export_folder(self, name: str, file_format: str, weights: str) -> Path:
        """Where an export goes."""
        return self.home / EXPORTS / f"{name}-{file_format}-{weights}"

    def convert(self, source: str, name: str) -> Iterator[str]:
        """Makes a run of a released `model.pth`; yields what is told of it."""
        target = run_folder(self.home, name)
        if not source.strip():
            raise UserError("Name the model.pth of XTTS v2, or of a fine-tune of it, on this machine.")
        flags = [f"--from-coqui={source.strip()}", f"--output={target}"]
        yield from self.tasks.follow("convert", "convert", *flags)

    def evaluate(self, sides: list[str], sentences: int) -> Iterator[str]:
        """Judges models `NAME@best` or `NAME@last` side by side; yields what is told of it, at last the table."""
        folders = [f"{run_folder(self.home, side.rpartition('@')[0])}@{side.rpartition('@')[2]}" for side in sides]
        flags = [f"--sentences={int(sentences)}", "--seeds=1", f"--output={self.home / EVALUATION}"]
        yield from self.tasks.follow("evaluate", "evaluate", *flags, "--", *folders)


def _load(folder, which, changed):
    # Here, so that the page is there at once: TensorFlow takes seconds, and only speaking needs it.
    from myxtts.interchange.onnx.engines import load_synthesizer

    return load_synthesizer(folder, which)


def _as_pcm16(samples: np.ndarray) -> np.ndarray:
    return np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)


def flags_after_subject(subject: str, value: str, flags: list[str]) -> list[str]:
    """`data -- FOLDER` with the flags before it, so that no folder is taken for a flag."""
    return [subject, *flags, "--", value]


def _changed(folder):
    """When something that speaks was last written, so that a newer checkpoint is loaded anew."""
    told = (folder / "config.json", *folder.glob("*/best.json"), *(folder / part for part in STAGES))
    files = [path.stat().st_mtime_ns for path in told if path.exists()]
    return max(files, default=0)
