"""Fine-tunes by the command line, Python and the web page, and compares the speech of exports and servers.

    pip install -e ".[test,ui]"
    python utilities/walk_doors.py --work runs/doors
    python utilities/walk_doors.py --work runs/doors --sources base --doors page --languages fa

A source is what training starts from: random weights, the bundled model, a run, or a tiny checkpoint in Coqui's layout.
A door is an interface to start training: the command line, Python, or the functions of the web page. Each run takes two
steps per stage on a few clips, and must have the settings of the recipe of its source. `speak.py`, the server with the
exported folder and the server with the run must produce the same 16-bit samples, up to differences of at most two.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from released_model import MINIMAL, write_release  # noqa: E402

from myxtts.apps.studio.processes import failure, process_of, start_training  # noqa: E402
from myxtts.apps.studio.studio import Studio  # noqa: E402
from myxtts.config.config import XTTSConfig, config_from_dict  # noqa: E402
from myxtts.data.sample_corpus import make_sample_corpus, unheard_sentences  # noqa: E402
from myxtts.storage.speakers import read_speakers  # noqa: E402
from utilities.benchmarks.serving import Server  # noqa: E402

SOURCES = {
    "nothing": None,
    "base": "finetune_base.yaml",
    "run": "finetune_base.yaml",
    "release": "finetune_xtts_v2.yaml",
}
"""Configuration file (recipe) for training from each source; None for the default settings."""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Environment variables for subprocesses, so that they import this checkout."""
DOORS, LANGUAGES, STEPS, MOST_DIFFERENCE = ("command", "python", "page"), ("en", "fa", "am"), 2, 2


def train(door: str, source: str, language: str, work: Path) -> Path:
    """Trains through `door`, one of the interfaces `DOORS`, and returns the folder of the run."""
    home, recipe = work / "runs", SOURCES[source]
    data = make_sample_corpus(work / f"recordings_{language}", num_clips=24, languages=(language,))
    name = f"{source}_{door}_{language}"
    asked = {"train_data": str(data), "language": language, "max_steps": STEPS, "checkpoint_dir": str(home / name)}
    asked |= {"init_from": {"base": "base", "run": str(home / "first"), "release": str(work / "XTTS-v2")}.get(source)}
    asked |= {} if recipe else {"model_size": "nano", "g2p": "am" if language == "am" else None}
    asked = {key: value for key, value in asked.items() if value is not None}
    if door == "python":
        options = asked | ({"config": recipe} if recipe else {}) | {"quiet": True}
        run(sys.executable, "-c", f"import myxtts; myxtts.train(**{options!r})")
    elif door == "command":
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in asked.items()]
        run(sys.executable, "-m", "myxtts", "train", *([f"--config={recipe}"] if recipe else []), *flags)
    else:
        studio = Studio(home)
        preset = studio.preset(name, asked.get("init_from"))
        values = preset.values | {key: value for key, value in asked.items() if key != "checkpoint_dir"}
        start_training(home / name, studio.flags(name, preset.recipe, values))
        while process_of(home / name):
            time.sleep(0.5)
        if said := failure(home / name):
            raise RuntimeError(said)
    return home / name


def check_settings(folder: Path, source: str) -> None:
    """Raises AssertionError if learning rates or batch sizes of a run differ from those of its recipe."""
    found = config_from_dict(json.loads((folder / "config.json").read_text("utf-8")))
    expected = XTTSConfig.from_yaml(SOURCES[source]) if SOURCES[source] else XTTSConfig()
    for name, stage in found.training.stages.items():
        wanted = expected.training.stages[name]
        assert (stage.learning_rate, stage.batch_size) == (wanted.learning_rate, wanted.batch_size), (name, stage)


def say(folder: Path, language: str, work: Path) -> str:
    """Exports a run and compares the speech of `speak.py` and of two servers; returns a summary for the table."""
    exported = folder.with_name(f"{folder.name}_exported")
    run(sys.executable, "-m", "myxtts", "export", f"--checkpoint={folder}", f"--output={exported}")
    voices = {name: one.language for name, one in read_speakers(folder).items()}
    voice = next((name for name, own in voices.items() if own == language), next(iter(voices)))
    text = unheard_sentences(language)[0]
    spoken = [serve(exported, text, voice, language), serve(folder, text, voice, language)]
    wav = work / "speak.wav"
    words = [f"--text={text}", f"--voice={voice}", f"--language={language}", f"--output={wav}"]
    run(sys.executable, str(exported / "speak.py"), *words)
    spoken.append(np.frombuffer(wav.read_bytes()[44:], "<i2"))
    difference = max(np.abs(one.astype(int) - spoken[0]).max() for one in spoken if len(one) == len(spoken[0]))
    assert len({len(one) for one in spoken}) == 1 and difference <= MOST_DIFFERENCE, [len(one) for one in spoken]
    return f"{len(spoken[0]) / 24_000:.2f} s from {len(spoken)} doors, largest difference {difference}"


def serve(model: Path, text: str, voice: str, language: str) -> np.ndarray:
    """Starts `myxtts serve`, requests the speech of a text, and returns the samples, `(S,)` int16."""
    body = dict(model="tts-1", input=text, voice=voice, language=language, response_format="pcm", stream=False)
    with Server(str(model), "--warm=none") as server:
        url, kind = f"http://127.0.0.1:{server.port}/v1/audio/speech", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), kind)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return np.frombuffer(answer.read(), "<i2")


def run(*words: str) -> None:
    """Runs a command; raises RuntimeError with its error output if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[1:5])} … ended with {done.returncode}: {done.stderr[-600:]}")


def main() -> int:
    """Fine-tunes from each source by each interface, and prints a line for each run; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for data and runs")
    for name, choices in (("sources", tuple(SOURCES)), ("doors", DOORS), ("languages", LANGUAGES)):
        parser.add_argument(f"--{name}", nargs="+", choices=choices, default=choices)
    parser.add_argument("--all", action="store_true", help="all combinations, not one language per source and door")
    arguments = parser.parse_args()
    work, failed = arguments.work.resolve(), 0
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "XTTS-v2").is_dir():
        write_release(work / "XTTS-v2", replace(MINIMAL, num_text_tokens=23, max_text_tokens=200, max_audio_tokens=260))
    if "run" in arguments.sources and not (work / "runs/first/decoder").is_dir():
        train("command", "base", "en", work).rename(work / "runs/first")
    walked = list(itertools.product(arguments.sources, arguments.doors, arguments.languages))
    if not arguments.all and len(arguments.languages) > 1:
        turns = itertools.product(enumerate(arguments.sources), enumerate(arguments.doors))
        walked = [(s, d, arguments.languages[(i + j) % len(arguments.languages)]) for (i, s), (j, d) in turns]
    for source, door, language in walked:
        began = time.monotonic()
        try:
            folder = train(door, source, language, work)
            check_settings(folder, source)
            result = say(folder, language, work)
        except (RuntimeError, AssertionError, OSError, SystemExit) as error:  # SystemExit: a server did not start
            failed, result = failed + 1, f"FAILED: {error}"
        print(f"{source:8} {door:8} {language}  {time.monotonic() - began:4.0f} s  {result}", flush=True)
    print(f"{len(walked)} combinations, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
