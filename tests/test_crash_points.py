"""A kill or a full disk at any file-system operation loses no checkpoint, setting, log, figure or voice."""

import json
import logging
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conversion_crashes import crash_conversion
from crash_points import contents, crash_everywhere
from tiny import tiny_run_config

from myxtts.audio.encoding import write_audio
from myxtts.data import sample_corpus
from myxtts.data.corpora import Corpus, Finding
from myxtts.data.doctor import write_report
from myxtts.data.sample_corpus import make_sample_corpus
from myxtts.devices.configuration import plan_devices
from myxtts.interchange.coqui.torch_checkpoint import write_torch_checkpoint
from myxtts.runs.run import Run
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import remove_leftovers, write_json
from myxtts.storage.speakers import read_speakers, write_speaker_clips, write_speakers
from myxtts.text.tokenizer import XTTSTokenizer
from myxtts.training.watching.callbacks import EventFile


def tensors(value):
    return {"model": {"a": np.full(3, value, np.float32)}, "optimizer": {"b": np.full(2, value, np.float32)}}


def values(store):
    """Returns `{step: value}` of the intact checkpoints."""
    return {step: float(store.read(step, ("model",))[0]["model"]["a"][0]) for step in store.steps()}


@pytest.fixture
def stores(ram_path, folders):
    """Creates stores with the checkpoints 1 to 3; 1 is the best."""

    def make():
        return CheckpointStore(shutil.copytree(first.folder, folders() / "gpt"))

    first = CheckpointStore(ram_path / "first" / "gpt")
    for step in (1, 2, 3):
        first.write(step, tensors(step), {}, best=step == 1)
    return make


@pytest.mark.parametrize("step, best", [(3, True), (4, True), (4, False)])
def test_newest_and_best_are_consistent_after_a_crash_anywhere_in_a_write(stores, monkeypatch, step, best):
    def check(folder, outcome):
        store = CheckpointStore(folder)  # as another process sees it
        before = {1: 1.0, 2: 2.0, 3: 3.0}
        # Read at once, before recovery.
        found = values(store)
        written = found.get(step) == 9.0
        assert written or not isinstance(outcome, Path), "what was returned is there"
        assert found[max(found)] == (9.0 if written else 3.0)
        assert store.best_step() == (step if written and best else 1)
        assert found[store.best_step()] == (9.0 if written and best else 1.0)
        newest = store.newest_sound(pytest.fail)
        remove_leftovers(store.folder)
        assert (newest, values(store)) == (max(found), found)
        listed = json.loads((store.folder / "best.json").read_text())
        assert listed == {"step": store.best_step()}
        names = {entry.name for entry in store.folder.iterdir()}
        assert names == {"best.json", *(f"step_{step:08d}" for step in found)}
        # The best checkpoint is kept when later ones are written.
        for later in (5, 6, 7):
            store.write(later, tensors(later), {})
        assert values(store).items() >= {store.best_step(): found[listed["step"]], 6: 6.0, 7: 7.0}.items()
        assert store.best_step() == listed["step"] and set(store.steps()) <= {*before, 4, 6, 7}

    write = lambda folder: CheckpointStore(folder).write(step, tensors(9), {}, best)
    assert crash_everywhere(monkeypatch, lambda: stores().folder, write, check) > 25


def test_the_only_checkpoint_can_be_read_after_a_crash_anywhere_while_it_is_written_again(folders, monkeypatch):
    def make():
        store = CheckpointStore(folders() / "gpt")
        store.write(3, tensors(3), {"finished": False}, best=True)
        return store

    def check(store, outcome):
        for _ in range(2):
            assert values(store) in ({3: 3.0}, {3: 9.0}) and store.best_step() == 3
            assert store.read_state(3)["finished"] == (values(store) == {3: 9.0})
            assert store.newest_sound(pytest.fail) == 3
            remove_leftovers(store.folder)
        assert {entry.name for entry in store.folder.iterdir()} == {"best.json", "step_00000003"}
        store.write(3, tensors(5), {})
        assert values(store) == {3: 5.0}

    write = lambda store: store.write(3, tensors(9), {"finished": True})
    crash_everywhere(monkeypatch, make, write, check, lambda store: store.folder)


def test_a_crash_anywhere_in_the_recovery_loses_nothing(stores, monkeypatch):
    def make():
        store = stores()
        store.path(3).replace(store.folder / ".step_00000003.replaced")  # as a kill between two renames leaves it
        (store.folder / "best.json").write_text('{"step": 2}')
        return store

    def check(store, outcome):
        assert values(store) == {1: 1.0, 2: 2.0, 3: 3.0} and store.best_step() == 1
        assert store.newest_sound(pytest.fail) == 3 and store.path(3).name == "step_00000003"
        assert json.loads((store.folder / "best.json").read_text()) == {"step": 1}

    recover = lambda store: store.newest_sound(pytest.fail)
    crash_everywhere(monkeypatch, make, recover, check, lambda store: store.folder)


WRITERS = {
    "a.wav": lambda path, n: write_audio(path, np.full(40, n / 10), 22050),
    "vocab.json": lambda path, n: XTTSTokenizer.train([(f"hello {n}", "en")]).save(path),
    "config.json": lambda path, n: write_json(path, {"settings": n}),
    "clips_train.csv": lambda path, n: write_report(Corpus(path, "", (), (Finding("a", n, "", "", ""),), ()), path),
    "speakers.safetensors": lambda path, n: write_speakers(
        path.parent, {"Ana": (np.full((1, 2, 4), n, np.float32), np.full((1, 6), n, np.float32))}
    ),
    "model.pth": lambda path, n: write_torch_checkpoint(path, {"a": np.full(5, n, np.float32)}),
}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_the_old_one_or_the_new_one_after_a_crash_anywhere(ram_path, folders, monkeypatch, name, is_there):
    write = WRITERS[name]

    def make():
        path = folders() / name
        (path.parent / "other").write_text("1")
        if is_there:
            path.write_bytes(old)
        return path

    def check(path, outcome):
        assert (content := path.read_bytes() if path.exists() else None) in (old, new)
        assert content == new or isinstance(outcome, BaseException | str), "what was returned is there"
        remove_leftovers(path.parent)
        assert {entry.name for entry in path.parent.iterdir()} == {"other", *([name] if content else [])}

    for number in ("old", "new"):
        (ram_path / number).mkdir()
        write(ram_path / number / name, len(number) + (number == "new"))
    old, new = (ram_path / "old" / name).read_bytes() if is_there else None, (ram_path / "new" / name).read_bytes()
    crash_everywhere(monkeypatch, make, lambda path: write(path, 4), check, lambda path: path.parent)


@pytest.mark.parametrize("direction, every", [("in", 31), ("out", 11)])
def test_a_converted_model_is_complete_or_absent_after_a_crash_anywhere(
    ram_path, monkeypatch, released, direction, every
):
    # Some of the operations: hundreds are the same for another tensor. `faults.py --only conversions` takes each.
    assert crash_conversion(monkeypatch, ram_path, released, direction, every) > 5 * every


def test_the_sample_corpus_is_complete_or_recreated_after_a_crash_anywhere(ram_path, folders, monkeypatch):
    def speak(jobs, *_):
        for job in jobs:
            Path(job.path).write_bytes(job.text.encode())

    monkeypatch.setattr(sample_corpus, "speak_to_files", speak)
    expected = contents(make_sample_corpus(ram_path / "expected", num_clips=3))

    def make():
        folder = folders() / "corpus"
        make_sample_corpus(folder, num_clips=2)
        return folder

    def check(folder, outcome):
        if isinstance(outcome, type(folder)):
            assert contents(folder) == expected
        remove_leftovers(folder.parent)
        assert {one.name for one in folder.parent.iterdir()} <= {folder.name}
        make_sample_corpus(folder, num_clips=3)
        assert contents(folder) == expected
        shutil.rmtree(folder.parent)

    act = lambda folder: make_sample_corpus(folder, num_clips=3)
    crash_everywhere(monkeypatch, make, act, check, lambda folder: folder.parent)


def test_log_keeps_all_lines_in_order_after_a_crash_anywhere(folders, monkeypatch):
    old, logged = "12:00:00 INFO of before\n", [f"line {number}" for number in range(4)]
    monkeypatch.setattr(logging.getLogger("myxtts"), "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logging.getLogger("myxtts"), "propagate", False)

    def make():
        folder = folders()
        (folder / "train.log").write_text(old)
        return folder

    def act(folder):
        run = Run(tiny_run_config(None, folder), plan_devices(num_gpus=0))
        run._train = lambda guard, workers: [logging.getLogger("myxtts.x").info(line) for line in logged]
        return bool(run.train())

    def check(folder, outcome):
        assert not isinstance(outcome, OSError), "training would have ended"
        text = (folder / "train.log").read_text()
        assert text.startswith(old)
        *lines, last = text.removeprefix(old).split("\n")
        found = [line.partition(" INFO ")[2] for line in lines if " INFO " in line]
        assert found == [line for line in logged if line in found] and len(found) == len(set(found))

    assert crash_everywhere(monkeypatch, make, act, check) > 5


def figures(folder):
    """Returns the steps of all readable figures, file by file."""
    found = []
    for path in sorted(folder.glob("events.*")):
        try:
            found += (event.step for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value)
        except tf.errors.DataLossError:
            pass
    return found


def test_figures_before_and_after_a_disk_that_is_full_for_a_while_can_be_read(ram_path, caplog):
    # TensorFlow's native code writes this file, so Python cannot make it fail; a size limit truncates it at each size.
    def fill(folder, most_bytes):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        file = EventFile(folder)
        try:
            for step in range(6):
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes if step < 4 else limits[0], limits[1]))
                file.write(step, lambda step=step: tf.summary.scalar("loss", step))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    fill(ram_path / "whole", 100_000)
    (whole,) = (ram_path / "whole").iterdir()
    assert figures(ram_path / "whole") == [0, 1, 2, 3, 4, 5]
    logged = 0
    for number, most_bytes in enumerate(range(0, whole.stat().st_size, 7)):
        caplog.clear()
        folder = ram_path / str(number)
        fill(folder, most_bytes)
        found = figures(folder)
        assert found == sorted(set(found)) and found[-2:] == [4, 5], (most_bytes, found)
        assert len(list(folder.iterdir())) <= 5
        logged += caplog.text.count("Training continues.") == 1
        # A kill, or a power cut, leaves a part of the file.
        cut = ram_path / "cut"
        cut.mkdir()
        (cut / whole.name).write_bytes(whole.read_bytes()[:most_bytes])
        file = EventFile(cut)
        file.write(9, lambda: tf.summary.scalar("loss", 9))
        # The order of files from the same second is undefined.
        assert sorted(figures(cut)) == [*range(len(figures(cut)) - 1), 9]
        shutil.rmtree(cut)
    assert logged > 20


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
    assert crash_everywhere(monkeypatch, make, act, check) > 10
