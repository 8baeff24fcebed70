"""Wrong inputs of every command: the exit code is 2, and the message has the names, the value and the hint.

Each line of `data/wrong_inputs.txt` is a command, then what its message must contain. `data/doors.txt` has the commands
that take a model, then what may be named instead, and what they say of it.
"""

import logging
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile
from command_helpers import sentence_of

from myxtts.__main__ import main
from myxtts.devices import configuration
from myxtts.runs.run import Run

TABLE = (Path(__file__).parent / "data/wrong_inputs.txt").read_text(encoding="utf-8")
FILES = {
    "text.txt": b"Hello.",
    "list.txt": b"a|one\n\nb | two\n",
    "names.txt": b"a.wav\tone\n",
    "own.txt": b"voice|Hello.|voice.wav\n",
    "talk.srt": b"one",
    "latin.txt": "Gr\u00fc\u00dfe".encode("latin-1"),
    "persian.txt": "\u0633\u0644\u0627\u0645".encode("cp1256"),
    "broken.yaml": b"training: [",
    "list.yaml": b"[1, 2]",
    "section.yaml": b"trainin: {seed: 1}",
    "setting.yaml": b"training: {sed: 1}",
    "kind.yaml": b"training: {seed: one}",
    "reset.yaml": b"training: {reset_training: true}",
    "circle.yaml": b"include: circle.yaml",
    "gone.yaml": b"include: missing.yaml",
    "five.yaml": b"include: 5",
    "lost.yaml": b'include: "\\e[2J.yaml"',
    "data/metadata.csv": b"a|One two.|One two.\nb|Three four.|Three four.\n",
    "full/mine.txt": b"kept",
    "home/samples/metadata.csv": b"a|One two.\n",
    "model/config.json": b"{}",
    "data/wavs/best_model.pth": b"",
    "base/config.json": b"[",
    "unfinished/config.json": b"{}",
    "run/config.json": b"{}",
    "run/gpt/step_00000001/manifest.json": b"{}",
    "exported/gpt.onnx": b"",
    "ear/model.bin": b"",
    "ear/config.json": b"{}",
}
ROWS = [line.split(" | ") for line in TABLE.strip().splitlines()]
DOORS, OTHERS = (Path(__file__).parent / "data/doors.txt").read_text(encoding="utf-8").split("\n\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the files that the commands name."""
    home = tmp_path_factory.mktemp("wrong")
    for name in ("data/wavs", "empty", *(str(Path(name).parent) for name in FILES)):
        (home / name).mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (home / name).write_bytes(content)
    (home / "loop").symlink_to("loop")
    tone = 0.3 * np.sin(np.arange(22050) / 20).astype(np.float32)
    for name in ("voice.wav", "data/wavs/a.wav", "data/wavs/b.wav"):
        soundfile.write(home / name, tone, 22050)
    return home


@pytest.fixture(autouse=True)
def nothing_is_trained(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setattr(configuration, "_applied", None)  # each command is a new process's first
    monkeypatch.setattr(Run, "_train_stage", lambda *_: pytest.fail("training began"))
    monkeypatch.setattr(logging.getLogger("myxtts"), "propagate", False)


def written(home):
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and "checkpoints" not in path.parts}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_wrong_input_is_an_error_message_before_any_work(home, capsys, row):
    before = written(home)
    said = sentence_of(capsys, main, *shlex.split(row[0]))
    assert all(part in said for part in row[1:]) and said.isprintable(), said
    assert written(home) == before


@pytest.mark.parametrize("door", DOORS.splitlines())
def test_every_door_says_what_it_was_given_instead_of_a_model(capsys, door):
    for given, found in (line.split(" | ") for line in OTHERS.splitlines()):
        if (door.split()[0], given) not in [("serve", "exported"), ("evaluate", "full")]:  # which it takes
            assert found in sentence_of(capsys, main, *shlex.split(door.format(given)))
