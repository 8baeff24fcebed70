"""Wrong inputs of every command: the exit code is 2, and the message has the names, the value and the hint.

Each line of `data/wrong_inputs.txt` is a command, then what its message must contain. `data/doors.txt` has the commands
that take a model, then what may be named instead, and what they say of it.
"""

import json
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

DATA = Path(__file__).parent / "data"
FILES = {name: text.encode("latin-1") for name, text in json.loads((DATA / "wrong_files.json").read_text()).items()}
"""Contents by name. The characters of a text stand for bytes, because some files are in other encodings."""
ROWS = [line.split(" | ") for line in (DATA / "wrong_inputs.txt").read_text(encoding="utf-8").strip().splitlines()]
DOORS, OTHERS = (DATA / "doors.txt").read_text(encoding="utf-8").split("\n\n")


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
