"""Runs the commands and Python blocks of README.md and docs/, page by page, and lists those that fail.

    pip install -e ".[test,recordings]"
    python utilities/walk_docs.py --work runs/walk
    python utilities/walk_docs.py --work runs/walk --pages speaking serving

The folder starts with what README's first command leaves (it is run there, if it was not yet), a data set of a few
clips and files under the names that the pages use. Trainings take a few steps. What a block needs and this machine
lacks, such as a GPU or a hub, is replaced by `STAND_INS` or skipped by `SKIPPED`; both are listed.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from myxtts.data.sample_corpus import make_sample_corpus  # noqa: E402

PAGES = ("README", "speaking", "evaluation", "export", "serving", "studio", "python", "text", "optimizations")
PAGES += ("finetune", "migration", "make-dataset", "scaling", "troubleshooting", "devices")
FIRST_COMMAND = "python train_main.py --config first_words.yaml"
STEPS = "--max-steps 4"
STAND_INS = (
    (r"pip install [^&\n]+&& ", "", "installed before"),
    (r"pip install [^\n&]+", "true", "installed before"),
    (r"hf://coqui/XTTS-v2", "XTTS-v2", "release of a minimal shape with random weights"),
    (r"--data-gpu 0 --model-gpu 1", "--data-gpu 0 --model-gpu 1 --virtual-devices 2", "logical CPU devices"),
    (r"talk\.mp4", "talk.wav", "audio instead of video"),
    (r"\| aplay[^\n]*", "> /dev/null", "no loudspeaker"),
    (r"--language (fa|de)", "--language en", "the recordings are English"),
    (r'"سلام[^"]*"', '"a dog sees the sea"', "the recordings are English"),
    (r"lang(uage)?=\"(fa|de)\"", 'language="en"', "the recordings are English"),
    (r"  +#[^\n]*", "", ""),
    (r"((?:myxtts train|train_main\.py|-- train) [^\n&|]*)", rf"\1 {STEPS}", "few steps"),
    (r"max_steps(=|\": )\d+", r"max_steps\g<1>4", "few steps"),
    (r"\b(train_main|utilities/)", rf"{ROOT}/\1", ""),
    (r"--minutes 20", "--minutes 0.2", "shorter"),
)
"""Pattern, replacement and the reason for it."""
SKIPPED = (
    (r"python -m pytest$", "CI runs the tests"),
    (r"^myxtts push", "needs an account"),
    (r"--to-coqui", "needs weights of the released shape"),
    (r"host1:2222", "needs two machines; `myxtts launch` runs the same on one"),
    (r"^import ray|^import subprocess", "needs a Ray cluster"),
    (r"execute_notebook", "a test runs the notebook"),
    (r"utilities/base/|utilities/benchmarks/", "takes hours"),
    (r"gpu_acceptance", "needs GPUs"),
    (r'^"""Swedish', "a test adds this language"),
)
SERVERS = {"serve": 8000, "ui": 7860}
"""Commands that run until the page ends, and the port they listen on."""
LONGEST_SECONDS = 900


def environment(folder: Path) -> dict[str, str]:
    """Commands of this Python and of the folder come first, and this checkout's package."""
    path = f"{Path(sys.executable).parent}:{folder}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "PATH": path}


def prepare(folder: Path) -> None:
    """Creates the files that the pages name."""
    from dataclasses import replace

    import numpy as np
    import soundfile
    from released_model import MINIMAL, write_release

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "checkpoints/samples").is_dir():
        subprocess.run(
            [sys.executable, str(ROOT / "train_main.py"), *FIRST_COMMAND.split()[2:]], cwd=folder, check=True
        )
    if (folder / "recordings").is_dir():
        return
    make_sample_corpus(folder / "DIR", num_clips=40)
    shutil.copytree(folder / "DIR", folder / "recordings")
    write_release(folder / "XTTS-v2", replace(MINIMAL, num_text_tokens=23, max_text_tokens=200, max_audio_tokens=260))
    clips = [soundfile.read(path) for path in sorted((folder / "DIR/wavs").glob("*.wav"))[:12]]
    lines = (folder / "DIR/metadata.csv").read_text(encoding="utf-8").splitlines()[:12]
    rate, texts = clips[0][1], [line.split("|")[1] for line in lines]
    for name in ("voice", "me", "me_again", "a", "b", "other"):
        soundfile.write(folder / f"{name}.wav", clips[0][0], rate)
    pause = np.zeros(rate)
    starts = np.cumsum([0, *(len(clip) / rate + 1 for clip, _ in clips)])
    for name in ("talk.wav", "book.wav", "notes.flac"):
        soundfile.write(folder / name, np.concatenate([part for clip, _ in clips for part in (clip, pause)]), rate)
    stamp = "{:02d}:{:02d}:{:06.3f}".format
    times = [
        [stamp(0, int(at // 60), at % 60).replace(".", ",") for at in (a, b - 1)] for a, b in zip(starts, starts[1:])
    ]
    cues = [f"{number}\n{a} --> {b}\n{text}\n" for number, ((a, b), text) in enumerate(zip(times, texts), 1)]
    (folder / "talk.srt").write_text("\n".join(cues), encoding="utf-8")
    (folder / "book.txt").write_text(" ".join(texts), encoding="utf-8")
    (folder / "lines.txt").write_text("\n".join(texts[:3]), encoding="utf-8")
    for name in ("hear.sh", "my-recognizer"):
        (folder / name).write_text(f"#!/bin/sh\necho '{texts[0]}'\n", encoding="utf-8")
        (folder / name).chmod(0o755)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and code of each block of a page, continued lines joined."""
    file = ROOT / (f"{page}.md" if page == "README" else f"docs/{page}.md")
    found = re.findall(r"```(sh|python)\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
    return [(language, re.sub(r" *\\\n *", " ", code).strip()) for language, code in found]


def adapted(code: str) -> tuple[str, list[str]]:
    """The code for this machine, and what stands in for what."""
    reasons = []
    for pattern, replacement, reason in STAND_INS:
        code, count = re.subn(pattern, replacement, code)
        reasons += [reason] if count and reason and reason not in reasons else []
    return code, reasons


def run(code: str, language: str, folder: Path) -> tuple[int, str]:
    """Exit code and the last lines of what was printed."""
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "sh" else [sys.executable, "-c", code]
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
    """Runs the blocks of a page; its failures.

    The lines of a shell block run one by one. The Python blocks of a page share names, so they run as one program.
    """
    failures, server, found = [], None, blocks(page)
    parts = [line for language, code in found if language == "sh" for line in code.splitlines()]
    python = [code for language, code in found if language == "python"]
    kept = [code for code in python if not any(re.search(pattern, code) for pattern, _ in SKIPPED)]
    for part in [*parts, *(code for code in python if code not in kept), "\n\n".join(kept)]:
        first = f"{len(kept)} blocks of Python" if kept and part == "\n\n".join(kept) else part.partition("\n")[0]
        if not part:
            continue
        start, (command, reasons) = time.monotonic(), adapted(part)
        if skipped := next((why for pattern, why in SKIPPED if re.search(pattern, part)), None):
            status, printed, reasons = 0, "", [skipped]
        elif match := re.search(rf"myxtts ({'|'.join(SERVERS)})\b", command):
            stop(server)
            server, status, printed = serve(command, folder, SERVERS[match[1]])
        else:
            status, printed = run(command, "sh" if part in parts else "python", folder)
        outcome = (
            "skipped" if skipped else f"{'ok' if not status else f'FAILED {status}'} {time.monotonic() - start:.0f} s"
        )
        print(f"{page:15} {outcome:12} {first[:90]}" + (f"  [{'; '.join(reasons)}]" if reasons else ""), flush=True)
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
    """1 if a block failed."""
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
