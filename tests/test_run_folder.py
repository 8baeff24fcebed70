"""The folder of a run: one writer at a time, nothing half written left over, plain errors where it is no good."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.run_folder import own_run_folder

ROOT = Path(__file__).resolve().parents[1]
HOLD = (
    "import sys; from myxtts.storage.run_folder import own_run_folder\n"
    "with own_run_folder(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
)


def test_second_run_in_the_same_folder_is_refused_until_the_first_is_dead(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        env=dict(os.environ),
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match="Another run is writing to"), own_run_folder(tmp_path):
        pass
    other.send_signal(signal.SIGKILL)
    other.wait(60)
    with own_run_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_half_written_is_cleared_and_nothing_else(tmp_path):
    (tmp_path / "samples").mkdir()
    for name in (".config.json.7.tmp", "samples/.a.wav.1f.tmp", "config.json", "notes.tmp", ".hidden"):
        (tmp_path / name).write_text("x")
    with own_run_folder(tmp_path) as folder:
        assert {path.name for path in folder.rglob("*")} == {"samples", "config.json", "notes.tmp", ".hidden"}


def test_folder_that_cannot_be_written_to_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(CheckpointError, match="--checkpoint-dir must be a folder that can be written to.*file"),
        own_run_folder(tmp_path / "file"),
    ):
        pass

    def full(**arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(CheckpointError, match="No space left on device"), own_run_folder(tmp_path / "run"):
        pass
