"""Runs the commands and Python blocks of README.md and docs/, page by page, and lists those that fail.

    pip install -e ".[test,recordings]"
    python utilities/walk_docs.py --work runs/walk
    python utilities/walk_docs.py --work runs/walk --pages speaking serving

The folder starts with what README's first command leaves (it is run there, if it was not yet), a data set of a few
clips and files under the names that the pages use. Trainings take a few steps. What a block needs and this machine
lacks, such as a GPU or a hub, is replaced by `STAND_INS` or skipped by `SKIPPED`; both are listed. README must come
before other pages, which use its `runs/mine`.
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from released_model import MINIMAL, write_release  # noqa: E402

from myxtts.data.sample_corpus import make_sample_corpus  # noqa: E402

PAGES = ("README", "speaking", "evaluation", "export", "serving", "studio", "python", "text", "optimizations")
PAGES += ("finetune", "migration", "make-dataset", "scaling", "troubleshooting", "devices")
FIRST_COMMAND = "python train_main.py --config first_words.yaml"
STEPS = "--max-steps 4"
RECOGNIZER = "./hear.sh {wav}"
STAND_INS = (
    (r"pip install [^&\n]+&& ", "", "installed before"),
    (r"pip install [^\n&]+", "true", "installed before"),
    (r"hf://coqui/XTTS-v2", "XTTS-v2", "release of a minimal shape with random weights"),
    (r"--data-gpu 0 --model-gpu 1", "--data-gpu 0 --model-gpu 1 --virtual-devices 2", "logical CPU devices"),
    (r"--recognizer base", f'--recognizer "{RECOGNIZER}"', "recognizer without a download"),
    (r'open_recognizer\(\s*"base"\s*\)', f'open_recognizer("{RECOGNIZER}")', "recognizer without a download"),
    (r"talk\.mp4", "talk.wav", "audio instead of video"),
    (r"\| aplay[^\n]*", "> /dev/null", "no loudspeaker"),
    (r"--language (fa|de)", "--language en", "the recordings are English"),
    (r'"سلام[^"]*"', '"a dog sees the sea"', "the recordings are English"),
    (r"  +#[^\n]*", "", ""),
    (r"((?:myxtts train|train_main\.py|-- train) [^\n&|]*)", rf"\1 {STEPS}", "few steps"),
    (r"max_steps(=|\": )\d+", r"max_steps\g<1>4", "few steps"),
    (r"\b(train_main|utilities/)", rf"{ROOT}/\1", ""),
)
"""Pattern, replacement and the reason for it."""
SKIPPED = (
    (r"python -m pytest$", "CI runs the tests"),
    (r"^myxtts push", "needs an account"),
    (r"--to-coqui", "needs weights of the released shape"),
    (r"host1:2222", "needs two machines; `myxtts launch` runs the same on one"),
    (r"^import subprocess", "needs a Ray cluster"),
    (r"execute_notebook", "a test runs the notebook"),
    (r"utilities/base/|utilities/benchmarks/", "takes hours, or another recognizer"),
    (r"--transcript", "needs a recognizer that tells the times of words"),
    (r"gpu_acceptance", "needs GPUs"),
    (r'^"""Swedish', "a test adds this language"),
)
OWN_RUNS = ("python", "finetune", "migration")
"""Pages that start `runs/mine` by themselves, each from another model."""
SERVERS = {"serve": 8000, "ui": 7860}
"""Commands that run until the page ends, and the port they listen on."""
LONGEST_SECONDS = 900


def environment(folder: Path) -> dict[str, str]:
    """Commands of this Python and of the folder come first, and this checkout's package."""
    path = f"{Path(sys.executable).parent}:{folder}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "PATH": path}


def prepare(folder: Path) -> None:
    """Creates the files that the pages name."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "checkpoints/samples").is_dir():
        command = [sys.executable, str(ROOT / "train_main.py"), *FIRST_COMMAND.split()[2:]]
        subprocess.run(command, cwd=folder, check=True)
    if (folder / "recordings").is_dir():
        return
    data = make_sample_corpus(folder / "DIR", num_clips=40)
    for name in ("recordings", "finetune_models/dataset"):
        shutil.copytree(data, folder / name)
    release = replace(MINIMAL, num_text_tokens=23, max_text_tokens=200, max_audio_tokens=260)
    write_release(folder / "XTTS-v2", release)
    paths = sorted((data / "wavs").glob("*.wav"))[:12]
    lines = (data / "metadata.csv").read_text(encoding="utf-8").splitlines()
    known = dict(line.split("|")[:2] for line in lines)
    texts, rate = [known[path.stem] for path in paths], soundfile.info(paths[0]).samplerate
    clips = [soundfile.read(path)[0] for path in paths]
    for name in ("voice", "me", "me_again", "a", "b", "other"):
        shutil.copyfile(paths[0], folder / f"{name}.wav")
    for name in ("talk.wav", "book.wav", "notes.flac"):
        with_pauses = [part for clip in clips for part in (clip, np.zeros(rate))]
        soundfile.write(folder / name, np.concatenate(with_pauses), rate)
    starts, cues = np.cumsum([0, *(len(clip) / rate + 1 for clip in clips)]), []
    for number, text in enumerate(texts):
        times = (f"00:{at // 60:02.0f}:{at % 60:06.3f}" for at in (starts[number], starts[number + 1] - 1))
        cues.append(f"{number + 1}\n{' --> '.join(times).replace('.', ',')}\n{text}\n")
    files = {"talk.srt": "\n".join(cues), "book.txt": " ".join(texts), "FILE": "data: {augment: false}\n"}
    files["lines.txt"] = "".join(f"{path.stem}|{text}\n" for path, text in zip(paths[:3], texts))
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    for name in ("hear.sh", "my-recognizer"):
        (folder / name).write_text(f"#!/bin/sh\necho '{texts[0]}'\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    shutil.copytree(folder / "checkpoints", folder / "runs/a")
    shutil.copytree(folder / "checkpoints", folder / "runs/b")
    for name in ("before", "after"):
        (folder / "runs" / name).mkdir()
        shutil.copyfile(folder / "checkpoints/train.log", folder / "runs" / name / "train.log")
    shutil.copyfile(folder / "checkpoints/vocab.json", folder / "vocab.json")
    spoken = folder / "spoken_by_others"
    spoken.mkdir()
    for path in paths[:3]:
        shutil.copyfile(path, spoken / path.name)
    rows = (f"{path.name}|{text}\n" for path, text in zip(paths[:3], texts))
    (spoken / "metadata.csv").write_text("file|text\n" + "".join(rows), encoding="utf-8")


def parts_of(page: str) -> list[tuple[str, str, str]]:
    """What to run of a page: first line, interpreter, and code.

    The lines of a shell block run one by one. The Python blocks of a page share names, so they run as one program.
    """
    file = ROOT / (f"{page}.md" if page == "README" else f"docs/{page}.md")
    found = re.findall(r"```(sh|python)\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
    blocks = [(language, re.sub(r" *\\\n *", " ", code).strip()) for language, code in found]
    parts = [(line, "sh", line) for language, code in blocks if language == "sh" for line in code.splitlines()]
    python = [code for language, code in blocks if language == "python"]
    parts += [(code.partition("\n")[0], "python", code) for code in python if reason_to_skip(code)]
    if program := "\n\n".join(code for code in python if not reason_to_skip(code)):
        parts.append(("blocks of Python", "python", program))
    return parts


def reason_to_skip(code: str) -> str | None:
    """Why a part cannot run here."""
    return next((why for pattern, why in SKIPPED if re.search(pattern, code)), None)


def adapted(page: str, code: str) -> tuple[str, list[str]]:
    """The code for this machine, and what stands in for what."""
    reasons = []
    for pattern, replacement, reason in STAND_INS:
        code, count = re.subn(pattern, replacement, code)
        reasons += [reason] if count and reason and reason not in reasons else []
    return code.replace("runs/mine", f"runs/{page}") if page in OWN_RUNS else code, reasons


def run(code: str, interpreter: str, folder: Path) -> tuple[int, str]:
    """Exit code and the last lines of what was printed."""
    command = ["bash", "-euo", "pipefail", "-c", code] if interpreter == "sh" else [sys.executable, "-c", code]
    options = dict(capture_output=True, text=True, timeout=LONGEST_SECONDS)
    try:
        done = subprocess.run(command, cwd=folder, env=environment(folder), **options)
    except subprocess.TimeoutExpired:
        return 124, f"not done after {LONGEST_SECONDS} s"
    return done.returncode, (done.stdout + done.stderr)[-1500:]


def serve(code: str, folder: Path, port: int) -> tuple[subprocess.Popen, int, str]:
    """Starts a server and waits until it listens: its process, exit code 0 or 1, and what went wrong."""
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process = subprocess.Popen(["bash", "-c", f"exec {code}"], cwd=folder, env=environment(folder), **quiet)
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return process, 0, ""
        time.sleep(1)
    return process, 1, f"nothing listens on port {port}"


def walk(page: str, folder: Path) -> list[str]:
    """Runs a page and prints a line for each part; returns the first lines of those that failed."""
    failures, server = [], None
    for name in ("exported", "exported-int8", "set"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for first, interpreter, code in parts_of(page):
        start, skipped, (command, reasons) = time.monotonic(), reason_to_skip(code), adapted(page, code)
        status, printed = 0, ""
        if not skipped and (match := re.search(rf"myxtts ({'|'.join(SERVERS)})\b", command)):
            stop(server)
            server, status, printed = serve(command, folder, SERVERS[match[1]])
        elif not skipped:
            status, printed = run(command, interpreter, folder)
        outcome = f"{f'FAILED {status}' if status else 'ok'} {time.monotonic() - start:.0f} s"
        notes = f"  [{skipped or '; '.join(reasons)}]" if skipped or reasons else ""
        print(f"{page:15} {'skipped' if skipped else outcome:12} {first[:90]}{notes}", flush=True)
        if status:
            failures.append(f"{page}: {first}")
            print(printed.strip(), flush=True)
    stop(server)
    return failures


def stop(process: subprocess.Popen | None) -> None:
    """Ends a server as Ctrl-C does."""
    if process:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def main() -> int:
    """1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder to run the commands in")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    arguments = parser.parse_args()
    folder = arguments.work.resolve()
    prepare(folder)
    failures = [failure for page in arguments.pages for failure in walk(page, folder)]
    print(f"{len(failures)} failed", *failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
