"""Nine people who come to the project, each from their first command to sound or to the sentence that helps them on.

    python tests/roles.py --folder /tmp/roles
    python tests/roles.py --folder /tmp/roles --only wrong_inputs windows

Every step is the command that they would type, in a process of its own, with a tiny model and few steps. What it
prints is kept in FOLDER/ROLE.txt; a step that ends otherwise than expected ends the role. Roles that need recordings
or the checkpoint from ../shared are left out where it is missing. Exit code 1 where a role failed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import soundfile

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_corpus_formats import audiofolder, common_voice, libritts, vctk  # noqa: E402  the tests must be on the path
from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402

COPIES = 38
"""Of 0.8 minutes of Persian: half an hour."""
MYXTTS = (sys.executable, "-m", "myxtts")
WRONG = (
    ("train --train-data nowhere", "nowhere"),
    ("train --batch-size 0", "batch"),
    ("train --data-gpu 0", "needs both"),
    ("train --model-gpu 0 --data-gpu 7 --train-data recordings", "GPU"),
    ("train --lora-rank 4 --train-data recordings", "--init-from"),
    ("train --languag fa", "--language"),
    ("train --train-data recordings --language klingon", "klingon"),
    ("say --checkpoint nowhere --text Hello --reference-audio me.wav", "nowhere"),
    ("say --checkpoint runs --text Hello", "voice"),
    ("say --checkpoint recordings --text Hello --reference-audio me.wav --output out.xyz", ".wav"),
    ("convert --from-coqui nothing.pth --output here", "nothing.pth"),
    ("plan --model-size huge", "huge"),
    ("serv", "serve"),
)
"""What people mistype, and a word of the sentence that they get."""


class StepFailed(Exception):
    """A step ended otherwise than expected."""


class Desk:
    """Where one role works: a folder with a tiny configuration, and a transcript of its commands."""

    def __init__(self, folder: Path, steps: int, quick: bool):
        self.folder, self.steps = folder, steps
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.transcript = folder.with_suffix(".txt")
        self.transcript.write_text("")
        settings = tiny_run_config(model={"layers": 1, "num_latents": 2}, data={"num_buckets": 1}).to_dict()
        for section, name in (("data", "train_data"), ("training", "checkpoint_dir")):
            settings[section].pop(name)
        every = ("log_every_steps", "validate_every_steps", "checkpoint_every_steps", "sample_every_steps")
        settings["training"] |= dict.fromkeys(every, steps) | {"num_samples": 1, "keep_checkpoints": 9}
        settings["training"]["leave_out"] = ["speaker", "decoder"] if quick else []
        settings["data"] |= {"max_seconds": 6.0, "max_text_length": 200}
        settings["model"] |= {"max_text_tokens": 200, "max_audio_tokens": 160}
        for stage in ("dvae", "gpt", "speaker", "decoder"):
            settings["training"][stage] |= {"max_steps": steps, "crop_seconds": None}
        (folder / "tiny.yaml").write_text(json.dumps(settings))  # JSON is YAML

    def run(self, *command, code: int = 0, has: str = "", stop_after: str = "") -> str:
        """Runs a command, which must end with `code` and print `has`; after printing `stop_after` it gets a Ctrl-C."""
        command = [str(word) for word in command]
        shown = " ".join("myxtts" if word is MYXTTS[-1] else word for word in command if word not in MYXTTS[:2])
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110"}
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        process, lines = subprocess.Popen(command, cwd=self.folder, env=environment, **pipes), []
        for line in process.stdout:
            lines.append(line)
            if stop_after and stop_after in line:
                process.send_signal(signal.SIGINT)
        told = "".join(lines)
        with open(self.transcript, "a", encoding="utf-8") as file:
            file.write(f"$ {shown}\n{told}[exit code {process.wait()}]\n\n")
        if process.returncode != code or has not in told or "Traceback" in told:
            raise StepFailed(f"{shown}\nended with {process.returncode}, expected {code} and {has!r}:\n{told[-800:]}")
        return told

    def train(self, data: str, *more, run: str = "run", **expected) -> str:
        """Trains with the tiny configuration."""
        folder = ("--checkpoint-dir", f"runs/{run}", "--config", "tiny.yaml")
        return self.run(*MYXTTS, "train", "--train-data", data, *folder, *more, **expected)

    def say(self, text: str, *more, run: str = "run") -> None:
        """Speaks with a run; the sound must be there."""
        output = self.folder / f"{run}.wav"
        self.run(*MYXTTS, "say", "--checkpoint", f"runs/{run}", "--text", text, "--output", output.name, *more)
        self.need(output)

    def need(self, *paths: Path) -> None:
        """Fails unless files are there and not empty."""
        for path in paths:
            if not path.is_file() or not path.stat().st_size:
                raise StepFailed(f"{path} is not there")


def own_lists(desk):
    """Own recordings in one folder, a list to train and one to validate, with commas."""
    corpus = make_tiny_corpus(desk.folder / "recordings")
    rows = [line.split("|")[:2] for line in (corpus / "metadata.csv").read_text().splitlines()]
    for name, part in (("train", rows[0:1] + rows[2:3] + rows[4:]), ("eval", [rows[1], rows[3]])):
        lines = ["audio,text", *(f"wavs/{clip}.wav,{text}" for clip, text in part)]
        (corpus / f"{name}.csv").write_text("\n".join(lines) + "\n")
    for extra in ("metadata.csv", "speakers.csv"):
        (corpus / extra).unlink()
    desk.run(*MYXTTS, "doctor", "data", "recordings/train.csv")
    desk.train("recordings/train.csv", "--val-data", "recordings/eval.csv", has="validation clips: 2")
    desk.say("one two", "--reference-audio", "recordings/wavs/low_one.wav")


def persian_speaker(desk):
    """A Persian speaker with thirty minutes in a folder: eight recordings again and again, each time less loud."""
    recordings = desk.folder / "recordings"
    shutil.copytree(SHARED / "data/persian_mini", recordings)
    lines = (recordings / "metadata.csv").read_text(encoding="utf-8").splitlines()
    with open(recordings / "metadata.csv", "a", encoding="utf-8") as file:
        for copy in range(1, COPIES):
            for line in lines:
                name, _, texts = line.partition("|")
                samples, rate = soundfile.read(recordings / f"wavs/{name}.wav")
                soundfile.write(recordings / f"wavs/{name}_{copy}.wav", samples * (1 - copy / 2 / COPIES), rate)
                file.write(f"{name}_{copy}|{texts}\n")
    desk.run(*MYXTTS, "doctor", "data", "recordings", "--language", "farsi")
    desk.train("recordings", "--language", "farsi")
    voice = recordings / f"wavs/{lines[0].partition('|')[0]}.wav"
    desk.say("سلام دنیا", "--language", "fa", "--reference-audio", voice)


def owner_of_xtts_v2(desk):
    """A released checkpoint: converted, tuned, spoken with, and given back. A tiny one of the same form stands in."""
    model, config = SHARED / "reference/parity/model.pth", SHARED / "reference/parity/config.json"
    make_tiny_corpus(desk.folder / "recordings")
    desk.run(*MYXTTS, "convert", "--from-coqui", model, "--config", config, "--output", "runs/released")
    desk.say("Hello.", "--reference-audio", SHARED / "reference/parity/ref1_22k.wav", run="released")
    tuning = ("--init-from", "runs/released", "--stage", "gpt", "--lora-rank", "2", "--max-steps", desk.steps)
    command = (*MYXTTS, "train", "--train-data", "recordings", "--batch-size", "2", *tuning)
    # It reads 80 tokens and 117 codes, where XTTS v2 reads 402 and 605.
    desk.run(*command, "--checkpoint-dir", "runs/tuned", "--sample-every", "0", has="max_seconds is 5.4 instead of")
    desk.say("Hello.", "--speaker", "low", run="tuned")
    desk.run(*MYXTTS, "convert", "--to-coqui", "runs/tuned", "--output", "back/model.pth")
    desk.need(desk.folder / "back/model.pth")


def notebook_user(desk):
    """The quickstart notebook, cell by cell."""
    make_tiny_corpus(desk.folder / "recordings")
    notebook = (ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8")
    tiny = json.dumps('config="tiny.yaml", train_data="recordings", ')[1:-1]
    notebook = notebook.replace("max_steps=100", f"max_steps={desk.steps}")
    (desk.folder / "mine.ipynb").write_text(notebook.replace("myxtts.train(", f"myxtts.train({tiny}"))
    desk.run(sys.executable, ROOT / "utilities/execute_notebook.py", "mine.ipynb", "--folder", ".")
    desk.need(desk.folder / "evening.flac")


def long_run(desk):
    """A run that is stopped, taken up, and then asked for more."""
    make_tiny_corpus(desk.folder / "recordings")
    desk.train("recordings", "--max-steps", 500, stop_after="dvae step", has="Run the same command again")
    desk.train("recordings", "--max-steps", desk.steps, has="Checkpoints:")
    told = desk.train("recordings", "--max-steps", 3 * desk.steps, "--stage", "gpt", has="Checkpoints:")
    if "Stage gpt: step" not in told:
        raise StepFailed("the GPT was not trained on")
    desk.say("one two", "--speaker", "low")


def formats(desk):
    """Common Voice, LibriTTS, VCTK and an audiofolder."""
    for make in (common_voice, libritts, vctk, audiofolder):
        make(desk.folder / make.__name__)
        desk.run(*MYXTTS, "doctor", "data", make.__name__)
        desk.train(make.__name__, run=make.__name__)
        told = desk.run(*MYXTTS, "say", "--checkpoint", f"runs/{make.__name__}", "--list-speakers")
        speaker, _, language = told.splitlines()[0].partition("\t")
        desk.say("Please say sentence normal.", "--speaker", speaker, "--language", language, run=make.__name__)


def wrong_inputs(desk):
    """Somebody who mistypes: each time one sentence that helps, at once, and nothing lost."""
    make_tiny_corpus(desk.folder / "recordings")
    shutil.copy(desk.folder / "recordings/wavs/low_one.wav", desk.folder / "me.wav")
    for command, word in WRONG:
        desk.run(*MYXTTS, *command.split(), code=2, has=word)


def watcher(desk):
    """Somebody who watches a run: log, figures, curves, pictures, TensorBoard."""
    make_tiny_corpus(desk.folder / "recordings")
    desk.train("recordings", "--max-steps", str(8 * desk.steps), has="Loss curves:")  # the first steps are not timed
    home = desk.folder / "runs/run"
    desk.need(home / "curves.png", home / "metrics.jsonl", *(home / "samples").glob("*.png"))
    if not any((home / "tensorboard/gpt").glob("events.*")):
        raise StepFailed("TensorBoard has nothing")
    desk.run(sys.executable, ROOT / "utilities/compare_logs.py", home / "train.log", home / "train.log")


def windows(desk):
    """A system without `fcntl`: training says that it cannot lock its folder, goes through, and the run speaks."""
    make_tiny_corpus(desk.folder / "recordings")
    script = "import sys; sys.modules['fcntl'] = None; from myxtts.__main__ import main; sys.exit(main(sys.argv[1:]))"
    without, flags = (sys.executable, "-c", script), ("--config", "tiny.yaml", "--checkpoint-dir", "runs/run")
    desk.run(*without, "train", "--train-data", "recordings", *flags, has="cannot be locked on this system")
    spoken = ("--checkpoint", "runs/run", "--text", "one two", "--speaker", "low", "--output", "run.wav")
    desk.run(*without, "say", *spoken)
    desk.need(desk.folder / "run.wav")


ROLES: dict[str, Callable[[Desk], None]] = {
    role.__name__: role
    for role in (
        own_lists,
        persian_speaker,
        owner_of_xtts_v2,
        notebook_user,
        long_run,
        formats,
        wrong_inputs,
        watcher,
        windows,
    )
}
NEEDS = {"persian_speaker": "data/persian_mini", "owner_of_xtts_v2": "reference/parity/model.pth"}


def main(argv: list[str] | None = None) -> int:
    """Plays the roles; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for transcripts and what the roles make")
    parser.add_argument("--only", nargs="+", choices=ROLES, default=list(ROLES))
    parser.add_argument("--steps", type=int, default=2, help="of each stage")
    parser.add_argument("--quick", action="store_true", help="without speaker encoder and waveform decoder")
    asked, failed = parser.parse_args(argv), 0
    for name in asked.only:
        began = time.monotonic()
        if name in NEEDS and not (SHARED / NEEDS[name]).exists():
            print(f"{name}: left out, {SHARED / NEEDS[name]} is not there")
            continue
        try:
            ROLES[name](Desk(asked.folder.resolve() / name, asked.steps, asked.quick))
        except StepFailed as error:
            failed += 1
            print(f"{name}: FAILED. {error}")
        else:
            print(f"{name}: went through in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
