"""Logs, figures and samples of a run, and the recordings of its speakers, wherever a kill or a bad disk meets them."""

import itertools
import logging
import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest
import tensorflow as tf
from crash_points import crash_everywhere
from tiny import tiny_run_config

from myxtts.devices.configuration import plan_devices
from myxtts.runs.run import Run
from myxtts.storage.files import remove_leftovers
from myxtts.storage.speakers import read_speakers, write_speaker_clips
from myxtts.training.watching.callbacks import EventFile


@pytest.fixture
def tmp_path():
    """On a disk in memory where there is one: thousands of files are made and removed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def folders(tmp_path):
    """Makes empty folders."""
    numbers = itertools.count()

    def make():
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return folder

    return make


def test_log_keeps_all_lines_of_before_and_its_own_in_their_order_after_a_crash_anywhere(folders, monkeypatch):
    old, told = "12:00:00 INFO of before\n", [f"line {number}" for number in range(4)]
    monkeypatch.setattr(logging.getLogger("myxtts"), "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logging.getLogger("myxtts"), "propagate", False)

    def make():
        folder = folders()
        (folder / "train.log").write_text(old)
        return folder

    def act(folder):
        run = Run(tiny_run_config(None, folder), plan_devices(num_gpus=0))
        run._train = lambda guard, workers: [logging.getLogger("myxtts.x").info(line) for line in told]
        return bool(run.train())

    def check(folder, outcome):
        assert not isinstance(outcome, OSError), "training would have ended"
        text = (folder / "train.log").read_text()
        assert text.startswith(old)
        *lines, last = text.removeprefix(old).split("\n")
        found = [line.partition(" INFO ")[2] for line in lines if " INFO " in line]
        assert found == [line for line in told if line in found] and len(found) == len(set(found))

    assert crash_everywhere(monkeypatch, make, act, check, folder=lambda folder: folder) > 5


def figures(folder):
    """Steps of all figures that can be read, file by file."""
    found = []
    for path in sorted(folder.glob("events.*")):
        try:
            steps = (event.step for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value)
            found += steps
        except tf.errors.DataLossError:
            pass
    return found


def test_figures_before_and_after_a_disk_that_is_full_for_a_while_can_be_read(tmp_path, caplog):
    # Written by TensorFlow's own code: no operation of Python's can be made to fail. The limit cuts each size in turn.
    def fill(folder, most_bytes):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        file = EventFile(folder)
        try:
            for step in range(6):
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes if step < 4 else limits[0], limits[1]))
                file.write(step, lambda step=step: tf.summary.scalar("loss", step))
                file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    fill(tmp_path / "whole", 100_000)
    (whole,) = (tmp_path / "whole").iterdir()
    assert figures(tmp_path / "whole") == [0, 1, 2, 3, 4, 5]
    told = 0
    for number, most_bytes in enumerate(range(0, whole.stat().st_size, 7)):
        caplog.clear()
        folder = tmp_path / str(number)
        fill(folder, most_bytes)
        found = figures(folder)
        assert found == sorted(set(found)) and found[-2:] == [4, 5], (most_bytes, found)
        assert len(list(folder.iterdir())) <= 5
        told += caplog.text.count("Training goes on.") == 1
        # A kill, or a power cut, leaves a part of the file.
        cut = tmp_path / "cut"
        cut.mkdir()
        (cut / whole.name).write_bytes(whole.read_bytes()[:most_bytes])
        file = EventFile(cut)
        file.write(9, lambda: tf.summary.scalar("loss", 9))
        file.flush()
        # Files of one second are in no order.
        assert sorted(figures(cut)) == [*range(len(figures(cut)) - 1), 9]
        shutil.rmtree(cut)
    assert told > 20


def test_recordings_of_speakers_are_the_old_or_the_new_ones_after_a_crash_anywhere(folders, monkeypatch):
    old = {"low": (b"old", "en", ("a",)), "high": (b"kept", "en", ("b",))}
    new = {"low": (b"new", "en", ("c",)), "third": (b"more", "de", ("d",))}

    def make():
        write_speaker_clips(folder := folders(), old)
        return folder

    def listed(folder):
        return {name: one.clip.read_bytes() for name, one in read_speakers(folder).items()}

    def check(folder, outcome):
        found = listed(folder)
        assert found in (
            {"low": b"old", "high": b"kept"},
            all_new := {"low": b"new", "high": b"kept", "third": b"more"},
        )
        assert found == all_new or isinstance(outcome, BaseException | str)
        write_speaker_clips(folder, new)
        remove_leftovers(folder / "speaker_clips")
        assert listed(folder) == all_new and len(list((folder / "speaker_clips").iterdir())) == 4

    act = lambda folder: write_speaker_clips(folder, new)
    assert crash_everywhere(monkeypatch, make, act, check, folder=lambda folder: folder) > 10
