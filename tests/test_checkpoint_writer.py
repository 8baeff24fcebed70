"""The thread that writes checkpoints: training continues meanwhile, and its errors are raised."""

import re
import threading

import numpy as np
import pytest

from myxtts.storage import checkpoint_writer
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.checkpoint_writer import CheckpointWriter

TENSORS = {"model": {"a": np.arange(3, dtype=np.float32)}}


class Disk:
    """Delays or fails the writes of a store."""

    def __init__(self, monkeypatch):
        self.errors, self.go_on, self.writing = [], threading.Event(), threading.Event()
        self.failing_steps = ()
        self.go_on.set()
        write = CheckpointStore.write

        def controlled(store, *arguments):
            self.writing.set()
            assert self.go_on.wait(60)
            if arguments[0] in self.failing_steps:
                raise full()
            if self.errors:
                raise self.errors.pop()
            return write(store, *arguments)

        monkeypatch.setattr(CheckpointStore, "write", controlled)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "LAST_TRY_PAUSE_SECONDS", 0.0)
    return Disk(monkeypatch)


@pytest.fixture
def writer(tmp_path):
    return CheckpointWriter(CheckpointStore(tmp_path / "gpt"))


def full():
    return OSError(28, "No space left on device")


def test_the_caller_continues_during_a_write_and_the_end_waits(writer, disk):
    disk.go_on.clear()
    with writer:
        writer.start(1, TENSORS, {})
        assert disk.writing.wait(60)
        writer.poll()
        assert writer.store.steps() == []
        disk.go_on.set()
    assert writer.store.steps() == [1]


def test_one_write_is_in_flight_at_most(writer, disk):
    disk.go_on.clear()
    writer.start(1, TENSORS, {})
    second = threading.Thread(target=writer.start, args=(2, TENSORS, {}))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    disk.go_on.set()
    second.join(60)
    writer.wait()
    assert writer.store.steps() == [1, 2]


def test_failed_writes_are_reported_and_survived_until_they_are_too_many(writer, disk, caplog):
    writer.start(1, TENSORS, {})
    writer.wait()
    for step in (2, 3):
        disk.errors.append(full())
        writer.start(step, TENSORS, {})
    writer.wait()
    assert [record.getMessage().split(": [")[0].split(" could")[0] for record in caplog.records] == [
        "The checkpoint of step 2",
        "The checkpoint of step 3",
    ]
    assert re.search("No space left on device.* step 1.* 2 of 3", caplog.text)
    disk.errors.append(full())
    writer.start(4, TENSORS, {})
    with pytest.raises(CheckpointError, match="step 4 .* step 1.* 3 of 3"):
        writer.wait()
    assert writer.store.steps() == [1]


def test_a_successful_write_resets_the_count_of_failures(writer, disk):
    disk.failing_steps = (1, 2, 4, 5, 7, 8)
    for step in range(1, 9):
        writer.start(step, TENSORS, {})
    writer.wait()
    assert writer.store.steps() == [3, 6]


def test_a_moved_run_is_not_recreated_in_its_old_place(writer, caplog, tmp_path):
    home = tmp_path / "run"
    home.mkdir()
    writer = CheckpointWriter(CheckpointStore(home / "gpt"))
    writer.start(1, TENSORS, {})
    writer.wait()
    home.rename(tmp_path / "moved")
    writer.start(2, TENSORS, {})
    writer.wait()
    assert "moved or replaced" in caplog.text and not home.exists()
    home.mkdir()  # another run's
    writer.start(3, TENSORS, {})
    writer.wait()
    assert not list(home.iterdir()) and CheckpointStore(tmp_path / "moved" / "gpt").steps() == [1]
    home.rmdir()
    (tmp_path / "moved").rename(home)
    writer.write_last(4, TENSORS, {})
    assert CheckpointStore(home / "gpt").steps() == [1, 4]


def test_a_failure_is_found_by_polling_and_other_errors_are_raised(writer, disk, caplog):
    disk.errors.append(full())
    writer.start(1, TENSORS, {})
    writer._thread.join()
    writer.poll()
    assert "There is none yet" in caplog.text
    disk.errors.append(TypeError("not JSON"))
    writer.start(1, TENSORS, {})
    with pytest.raises(TypeError, match="not JSON"):
        writer.wait()


def test_the_last_checkpoint_is_tried_several_times_and_then_an_error(writer, disk):
    disk.errors[:] = [full(), full()]
    writer.write_last(1, TENSORS, {})
    assert writer.store.steps() == [1]
    assert writer._failures == 0
    disk.errors[:] = [full(), full(), full()]
    with pytest.raises(CheckpointError, match="step 2 .* step 1.* 3 of 3"):
        writer.write_last(2, TENSORS, {})
    assert disk.errors == []


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_writer(writer, disk, caplog):
    disk.errors.append(full())
    with pytest.raises(ZeroDivisionError), writer:
        writer.start(1, TENSORS, {})
        raise ZeroDivisionError
    assert "No space left" in caplog.text


def test_ctrl_c_does_not_wait(writer, disk):
    disk.go_on.clear()
    with pytest.raises(KeyboardInterrupt), writer:
        writer.start(1, TENSORS, {})
        assert disk.writing.wait(60)
        raise KeyboardInterrupt
    assert writer._thread.is_alive()
    disk.go_on.set()
