"""Runs the commands and Python blocks of README.md and docs/, and compares their output with the pages.

    pip install -e ".[test,recordings]"
    python utilities/walk_docs.py --work runs/walk
    python utilities/walk_docs.py --work runs/walk --pages speaking serving

These parts of a page are compared:

- a text block after a block of commands: the last command must print the lines of the text block, in this order;
- a comment with a string, list or dictionary, such as `# {"gpt": 2000}`: the code before it must have this value;
- a table whose first column is "file in `FOLDER`": these must be the folder's files at the end of the page;
- a path in the folder of a run, such as `runs/mine/samples`: it must exist at the end of the page;
- the output of the notebook: its cells must print lines with the same first words.

Files that a command names with `--output` and similar options must exist afterwards. `…` matches anything. Seconds,
memory, speeds and percentages must agree within a factor of five, other decimals within 10 %, integers exactly.

The working folder starts with a data set of a few clips, files with the names that the pages use, and the result of
README's first command. Training takes a few new steps. `STAND_INS` replaces what this machine lacks, such as GPUs or
the hub, and `SKIPPED` excludes parts; the reasons are printed. README must run before pages that use its `runs/mine`.
"""

import argparse
import ast
import json
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

from test_convert_export import RELEASED_SHAPE, write_release  # noqa: E402

from myxtts.data.sample_corpus import make_sample_corpus  # noqa: E402
from myxtts.text.tokenizer import XTTSTokenizer  # noqa: E402

PAGES = "README speaking evaluation export serving studio python text optimizations finetune migration".split()
PAGES += "make-dataset scaling troubleshooting devices convert decoder base".split()
NOTEBOOK = ROOT / "docs/quickstart.ipynb"
FIRST_COMMAND = "python train_main.py --config first_words.yaml"
RECOGNIZER = "./hear.sh {wav}"
TWO_WORKERS = r"for i in 0 1; do \g<1>127.0.0.1:2222,127.0.0.1:2223 --worker-index $i\2 & done; wait -n && wait -n"
STAND_INS = (
    (r"pip install [^&\n]+&& ", "", "installed before"),
    (r"pip install [^\n]+", "true", "installed before"),
    (r"hf://coqui/XTTS-v2", "XTTS-v2", "release of a minimal shape with random weights"),
    (r"Ana Florence", "Ana Ruiz", "voice of the stand-in"),
    (r" +6681x1024", "…x64", ""),
    (r"--data-gpu 0 --model-gpu 1", "--data-gpu 0 --model-gpu 1 --virtual-devices 2", "logical CPU devices"),
    (r"(--transcript .*--recognizer) base", r"\1 pocketsphinx", "recognizer without a download"),
    (r"--recognizer base", f'--recognizer "{RECOGNIZER}"', "recognizer without a download"),
    (r'open_recognizer\(\s*"base"\s*\)', f'open_recognizer("{RECOGNIZER}")', "recognizer without a download"),
    (r"talk\.mp4", "talk.wav", "audio instead of video"),
    (r"\| aplay[^\n]*", "> /dev/null", "no loudspeaker"),
    (r"--language (fa|de)", "--language en", "the recordings are English"),
    (r'"سلام[^"]*"', '"a dog sees the sea"', "the recordings are English"),
    (r"myxtts push [^\n]+", r"\g<0> --card", "shows the card instead of uploading"),
    (r"(.*)host1:2222,host2:2222 --worker-index 0(.*)", TWO_WORKERS, "two processes instead of two machines"),
    (r"  +#[^\n]*", "", ""),
    (r"((?:(?<!Next:  )myxtts train|train_main\.py|-- train) [^\n&|]*)", r"\1 --max-steps 4", "few steps"),
    (r"\b2000\b", "4", "few steps"),
    (r"/tmp/quickstart", "quickstart", ""),
    (r"\b(train_main|utilities/)", rf"{ROOT}/\1", ""),
)
"""Replacements in the commands and code of the pages: pattern, replacement, and reason (printed unless empty)."""
SKIPPED = (
    (r"python -m pytest$", "CI runs the tests"),
    (r"--worker-index 1", "started with the other worker"),
    (r"^import subprocess", "needs a Ray cluster"),
    (r"utilities/base/|utilities/benchmarks/", "takes hours, or another recognizer"),
    (r"gpu_acceptance", "needs GPUs"),
    (r'^"""Swedish', "a test adds this language"),
)
QUICK = r"^(?!.*runs/).*(say --text|doctor data (?!set)|plan --model|base --format onnx|--subtitles)"
"""Pattern of the commands that `--quick` runs, which need no model or only the bundled model."""
OWN_RUNS = ("python", "finetune", "migration", "decoder")
"""Pages that train a `runs/mine` of their own. It is renamed to `runs/PAGE`, so that README's `runs/mine` is kept."""
SERVERS = {"myxtts serve": 8000, "myxtts ui": 7860, "http.server": 8000}
"""Port of a server, by the command that starts it. A server runs until the page starts another server or ends."""
MADE = r"(?:--output|--output-folder|--json|--plot|--save-voice|--subtitles|--checkpoint-dir)[ =](\S+)"
"""Pattern of the options that name an output file or folder of a command."""
NUMBER = r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:(?=m?s\b)|(?![\w.]*\w))"
LOOSE = r" ?(?:%|(?:m?s|min|[kMG]B|seconds|minutes|\w+/s(?:ec)?)\b)"
"""Pattern of units. Numbers with these units depend on the machine, so `is_close` compares them less strictly."""
LONGEST_SECONDS = 900


def environment(folder: Path) -> dict[str, str]:
    """Returns environment variables for commands: `folder` in PATH, imports from this checkout, 80 columns."""
    path = f"{Path(sys.executable).parent}:{folder}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "PATH": path, "COLUMNS": "80"}


def prepare(folder: Path, quick: bool) -> None:
    """Fills `folder` with the files and runs that the pages use; if `quick`, only with the files."""
    folder.mkdir(parents=True, exist_ok=True)
    if not quick and not (folder / "runs/before").is_dir():
        run(adapted("README", FIRST_COMMAND)[0], "sh", folder)
        for name in ("a", "b", "after", "before"):
            shutil.copytree(folder / "checkpoints", folder / "runs" / name, dirs_exist_ok=True)
    if (folder / "recordings").is_dir():
        return
    data = make_sample_corpus(folder / "DIR", num_clips=40)
    shutil.copytree(data / "wavs", folder / "finetune_models/dataset/wavs", dirs_exist_ok=True)
    make_models(folder)
    lines = (data / "metadata.csv").read_text(encoding="utf-8").splitlines()
    known = dict(line.split("|")[:2] for line in lines)
    paths = sorted((data / "wavs").glob("*.wav"))[:12]
    make_recordings(folder, paths)
    for name, content in files_of_pages(known, paths).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
        (folder / name).chmod(0o755)
    for path in paths[:3]:
        shutil.copyfile(path, folder / "spoken_by_others" / path.name)
    shutil.copytree(data, folder / "recordings")  # last, as it marks a folder with all files


def make_models(folder: Path) -> None:
    """Writes a minimal model with random weights in the layout of XTTS v2's release, and another vocabulary."""
    tokenizer = XTTSTokenizer.train([("the quick brown fox jumps over the lazy dog, '.?!-", "en"), ("", "fa")])
    limits = dict(num_text_tokens=tokenizer.num_tokens, max_text_tokens=200, max_audio_tokens=260)
    write_release(folder / "XTTS-v2", replace(RELEASED_SHAPE, **limits))
    tokenizer.save(folder / "XTTS-v2/vocab.json")
    XTTSTokenizer.train([("Pack my box, with five dozen liquor jugs.", "en")]).save(folder / "vocab.json")


def make_recordings(folder: Path, paths: list[Path]) -> None:
    """Writes copies of a short recording, and long recordings of all `paths`, with a pause of a second after each."""
    for name in ("voice", "me", "me_again", "a", "b", "other"):
        shutil.copyfile(paths[0], folder / f"{name}.wav")
    parts = []
    for path in paths:
        clip, rate = soundfile.read(path)
        parts += [clip, np.zeros(rate)]
    for name in ("talk.wav", "book.wav", "notes.flac"):
        soundfile.write(folder / name, np.concatenate(parts), rate)


def files_of_pages(known: dict[str, str], paths: list[Path]) -> dict[str, str]:
    """Returns `{file name: content}`. `paths` are clips of the long recordings; `known` has the text of every clip."""
    texts, cues, start = [known[path.stem] for path in paths], [], 0.0
    for number, (path, text) in enumerate(zip(paths, texts), 1):
        end = start + soundfile.info(path).duration
        times = (f"00:{at // 60:02.0f}:{at % 60:06.3f}" for at in (start, end))
        cues.append(f"{number}\n{' --> '.join(times).replace('.', ',')}\n{text}\n")
        start = end + 1
    rows = [f"{path.stem}|{text}\n" for path, text in zip(paths[:3], texts)]
    listed = [f"wavs/{name}.wav|{text}|coqui\n" for name, text in known.items()]
    header, recognizer = "audio_file|text|speaker_name\n", f"#!/bin/sh\necho '{texts[0]}'\n"
    return {
        "talk.srt": "\n".join(cues),
        "book.txt": " ".join(texts),
        "FILE": "data: {augment: false}\n",
        "lines.txt": "".join(rows),
        "spoken_by_others/metadata.csv": "".join(["file|text\n", *rows]),
        "hear.sh": recognizer,
        "my-recognizer": recognizer,
        f"docs/{NOTEBOOK.name}": NOTEBOOK.read_text(encoding="utf-8"),
        "finetune_models/dataset/lang.txt": "en\n",
        "finetune_models/dataset/metadata_train.csv": "".join([header, *listed[4:]]),
        "finetune_models/dataset/metadata_eval.csv": "".join([header, *listed[:4]]),
    }


def text_of(page: str) -> str:
    """Returns the Markdown of a page, with each command on one line."""
    file = ROOT / (f"{page}.md" if page == "README" else f"docs/{page}.md")
    return re.sub(r" *\\\n *", " ", file.read_text(encoding="utf-8"))


def parts_of(page: str) -> list[tuple[str, str, str, str]]:
    """Splits a page into parts to run: `(title for messages, "sh" or "python", code, output shown on the page)`.

    Each line of a shell block is a part. Python blocks share variables and form one part, except for skipped blocks.
    """
    parts, programs = [], []
    block = r"```(sh|python)\n(.*?)\n```(?:\n+```text\n(.*?)\n```)?"
    for language, code, shown in re.findall(block, text_of(page), re.S):
        lines = code.splitlines()
        if language == "sh":
            parts += [(line, "sh", line, shown if line is lines[-1] else "") for line in lines]
        elif reason_to_skip(code):
            parts.append((lines[0], language, code, ""))
        else:
            programs.append(code)
    if programs:
        code, shown = printing_values("\n\n".join(programs))
        parts.append(("blocks of Python", "python", code, shown))
    return parts


def printing_values(program: str) -> tuple[str, str]:
    """Makes a program print the value of each line whose comment is a literal; returns new program and literals."""
    lines, literals = program.splitlines(), []
    for node in ast.parse(program).body:
        code, _, comment = lines[node.end_lineno - 1].partition("  # ")
        if isinstance(node, ast.Expr) and node.lineno == node.end_lineno and comment[:1] in ("[", "{", '"'):
            literals.append(comment)
            lines[node.end_lineno - 1] = f"print(repr({code}).replace(chr(39), chr(34)))"
    return "\n".join(lines), "\n".join(literals)


def reason_to_skip(code: str) -> str | None:
    """Returns the reason why a part is skipped; None if the part is run."""
    return next((why for pattern, why in SKIPPED if re.search(pattern, code)), None)


def adapted(page: str, code: str) -> tuple[str, list[str]]:
    """Applies `STAND_INS` to code; returns the new code and the reasons of the replacements."""
    reasons = []
    for pattern, replacement, reason in STAND_INS:
        code, count = re.subn(pattern, replacement, code)
        reasons += [reason] if count and reason and reason not in reasons else []
    return code.replace("runs/mine", f"runs/{page}") if page in OWN_RUNS else code, reasons


def run(code: str, interpreter: str, folder: Path) -> tuple[int, str]:
    """Runs code with bash (`interpreter` "sh") or Python; returns exit code (124 after a timeout) and output."""
    command = ["bash", "-euo", "pipefail", "-c", code] if interpreter == "sh" else [sys.executable, "-c", code]
    both = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST_SECONDS)
    try:
        done = subprocess.run(command, cwd=folder, env=environment(folder), **both)
    except subprocess.TimeoutExpired:
        return 124, f"not done after {LONGEST_SECONDS} s"
    return done.returncode, done.stdout


def serve(code: str, folder: Path, port: int) -> tuple[subprocess.Popen, int, str]:
    """Starts a server and waits until it listens; returns `(process, status, output)`, with status 1 on failure."""
    with socket.socket() as client:
        if client.connect_ex(("127.0.0.1", port)) == 0:
            raise SystemExit(f"Port {port} must be free. Another program listens there.")
    with open(folder / "server.txt", "w+", encoding="utf-8") as log:
        both = dict(stdout=log, stderr=subprocess.STDOUT)
        process = subprocess.Popen(["bash", "-c", f"exec {code}"], cwd=folder, env=environment(folder), **both)
        deadline, listens = time.monotonic() + 180, False
        while not listens and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
            with socket.socket() as client:
                listens = client.connect_ex(("127.0.0.1", port)) == 0
        log.seek(0)
        return process, int(not listens), log.read()


def text_of_cells(notebook: Path) -> str:
    """Returns the printed output of a notebook's cells."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "".join(line for cell in cells for output in cell.get("outputs", ()) for line in output.get("text", ()))


def missing_line(shown: str, printed: str) -> list[str]:
    """Checks that `printed` has the lines of `shown` in this order; returns [error] for a missing line, else []."""
    rest = iter(printed.splitlines())
    missing = (line for line in shown.splitlines() if not any(matches(line, one) for one in rest))
    return [f"not printed: {line}" for line in missing if line.strip(" …")][:1]


def matches(shown: str, printed: str) -> bool:
    """Returns whether a printed line equals a shown line, up to white space and the tolerances of numbers."""
    words = re.split(f"(…|{NUMBER})", " ".join(shown.split()))
    patterns = [re.escape(word).replace(r"\ ", r"\s+") for word in words]
    patterns[1::2] = [".*?" if word == "…" else f"({NUMBER})" for word in words[1::2]]
    match = re.fullmatch("".join(patterns), printed.strip())
    numbers = [(word, after) for word, after in zip(words[1::2], words[2::2]) if word != "…"]
    return bool(match) and all(is_close(word, found, after) for (word, after), found in zip(numbers, match.groups()))


def is_close(shown: str, found: str, after: str) -> bool:
    """Returns whether two numbers agree within the tolerance for their unit, which `after` begins with."""
    low, high = sorted(float(text.replace(",", "")) for text in (shown, found))
    if re.match(LOOSE, after):
        return high <= 5 * low + 0.2
    return high - low <= (abs(high) / 10 if "." in shown else 0)


def missing_files(page: str, folder: Path) -> list[str]:
    """Returns errors: paths on a page that do not exist, and files that are only in a table or only in its folder."""
    text, paths = adapted(page, text_of(page))[0], r"`((?:checkpoints|runs/\w+)/[\w./*-]+)`"
    missing = [f"{page}: {path} does not exist" for path in re.findall(paths, text) if not any(folder.glob(path))]
    for name, rows in re.findall(r"^\| file in `([^`]+)` .*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        names = "".join(row[: row.find(" | ")] for row in rows.splitlines())
        listed = {file.rstrip("/") for file in re.findall("`([^`]+)`", names)}
        found = {path.name for path in (folder / name).glob("[!_.]*")}
        missing += [f"{page}: only on the page or only in {name}: {file}" for file in sorted(listed ^ found)]
    return missing


def walk(page: str, folder: Path, quick: bool) -> list[str]:
    """Runs a page and prints a line for each part; returns the failures and differences."""
    failures, server = [], None
    for name in ("exported", "exported-int8", "for_coqui", "page", "runs/tuned", "set", "xtts_v2"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for first, interpreter, code, shown in parts_of(page):
        if quick and not re.search(QUICK, first):
            continue
        start, skipped, (command, reasons) = time.monotonic(), reason_to_skip(code), adapted(page, code)
        place = (re.findall(r"--checkpoint-dir[ =](\S+)", command) or ["checkpoints"])[-1]
        steps = 1 + max([3, *(int(path.name[5:]) for path in (folder / place).glob("*/step_*/"))])
        command = command.replace("--max-steps 4", f"--max-steps {steps}")  # an earlier page may have trained this run
        status, printed, wrong = 0, "", []
        if not skipped and (match := re.search("|".join(SERVERS), command)):
            stop(server)
            server, status, printed = serve(command, folder, SERVERS[match[0]])
        elif not skipped:
            status, printed = run(command, interpreter, folder)
        if not skipped and not status:
            made = re.findall(MADE, command)
            wrong = [f"{name} was not made" for name in made if not (folder / name.strip("'\"")).exists()]
            wrong += ["nothing was trained"] * ("Already trained." in printed)
            wrong += missing_line(adapted(page, shown)[0], printed)
            if NOTEBOOK.name in command:
                timed = r"(?m)^(?:\w+ step [\d,]+/[\d,]+|Bound by .*)\n"  # printed after a minute, wherever the run is
                made = folder / "docs" / NOTEBOOK.name
                lines, made = (re.sub(timed, "", text_of_cells(notebook)) for notebook in (NOTEBOOK, made))
                wrong += missing_line(re.sub(r"(?m)^(?:[\s\d].*|([^\d:|]*).*)$", r"\1…", lines), made)
        outcome = f"{f'FAILED {status}' if status else 'DIFFERS' if wrong else 'ok'} {time.monotonic() - start:.0f} s"
        notes = f"  [{skipped or '; '.join(reasons)}]" if skipped or reasons else ""
        print(f"{page:15} {'skipped' if skipped else outcome:12} {first[:90]}{notes}", flush=True)
        if status or wrong:
            failures += [f"{page}: {first}: {why}" for why in wrong or [f"exit code {status}"]]
            print(*wrong, printed[-3000:].strip(), sep="\n", flush=True)
    stop(server)
    return failures if quick else failures + missing_files(page, folder)


def stop(process: subprocess.Popen | None) -> None:
    """Sends SIGINT to a server, if there is one, and waits for its end."""
    if process:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def main(argv: list[str] | None = None) -> int:
    """Runs the pages; returns 1 if a part failed or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder to run the commands in")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    parser.add_argument("--quick", action="store_true", help="only commands that need no training")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it, and so do servers
    folder = arguments.work.resolve()
    prepare(folder, arguments.quick)
    failures = [failure for page in arguments.pages for failure in walk(page, folder, arguments.quick)]
    print(f"{len(failures)} differences", *failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
