"""The buffers between the devices: order, limits, overlap, errors with their traceback, and stops of all kinds."""

import itertools
import os
import random
import signal
import threading
import time
import traceback

import pytest

from myxtts.training.loop import device_pipeline
from myxtts.training.loop.device_pipeline import DevicePipeline


def producers():
    return [thread for thread in threading.enumerate() if thread.name == "myxtts-data-device"]


def unchanged(batch):
    return batch


def kept(batch, position):
    return batch


class Broken(Exception):
    """Error that the tests raise."""


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not producers()


def until(condition, timeout_seconds=5.0):
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@pytest.mark.parametrize("capacity", [2, 0])
def test_batches_come_in_order_with_their_positions(capacity):
    numbered = lambda batch, position: (batch, position)
    with DevicePipeline(range(20), numbered, lambda pair: (*pair, "moved"), capacity, start=7) as pipeline:
        assert list(pipeline) == [(index, index + 7, "moved") for index in range(20)]
        assert next(pipeline, None) is None


@pytest.mark.parametrize("capacity", [2, 0])
def test_stopped_reader_is_closed_although_it_is_still_referenced(capacity):
    """A reader that is closed at interpreter exit would start a thread that never runs, and the process would hang."""
    cleaned_up = threading.Event()

    def read():
        try:
            yield from range(20)
        finally:
            cleaned_up.set()

    reader = read()
    with DevicePipeline(reader, kept, unchanged, capacity) as pipeline:
        assert next(pipeline) == 0
    until(cleaned_up.is_set)
    assert next(reader, None) is None


@pytest.mark.parametrize("capacity", [1, 2, 6])
def test_producer_works_ahead_as_far_as_the_buffer_and_no_further(capacity):
    started = []

    def prepare(batch, position):
        started.append(position)
        return batch

    with DevicePipeline(iter(range(100)), prepare, unchanged, capacity) as pipeline:
        until(lambda: len(started) == capacity + 1)
        time.sleep(0.1)
        assert len(started) == capacity + 1 and pipeline.fill() == pipeline.capacity == capacity
        next(pipeline)
        until(lambda: len(started) == capacity + 2)
        time.sleep(0.05)
        assert len(started) == capacity + 2


def test_waiting_for_data_is_counted_and_work_of_the_consumer_is_not(monkeypatch):
    now, looks = [0.0], threading.Semaphore(0)

    def clock():
        looks.release()
        return now[0]

    def slow(batch, position):
        for _ in range(2 if position else 1):  # until the consumer has begun to wait for this batch
            assert looks.acquire(timeout=5.0)
        now[0] += 1.0
        return batch

    monkeypatch.setattr(device_pipeline.time, "perf_counter", clock)
    with DevicePipeline(range(4), slow, unchanged) as starved:
        list(starved)
    with DevicePipeline(range(4), kept, unchanged) as fed:
        for _ in fed:
            now[0] += 1.0
    assert (starved.seconds["stall"], fed.seconds["stall"]) == (4.0, 0.0)


def test_training_waits_for_the_filled_buffer():
    room = threading.Event()

    def prepare(batch, position):
        if position:
            room.wait(5.0)
        return batch

    with DevicePipeline(range(10), prepare, unchanged, capacity=2) as pipeline:
        waiting = threading.Thread(target=pipeline.wait_until_filled)
        waiting.start()
        until(lambda: pipeline.fill() == 1)
        assert waiting.is_alive()
        room.set()
        waiting.join(5.0)
        assert not waiting.is_alive() and pipeline.fill() == 2


@pytest.mark.parametrize("stage", device_pipeline.PHASES.values())
def test_buffer_that_does_not_fill_names_the_stuck_stage(stage):
    release = threading.Event()

    def stuck(value, here):
        if here in stage:
            release.wait(10.0)
        return value

    pipeline = DevicePipeline(
        (stuck(i, "reading") for i in range(5)),
        lambda batch, _: stuck(batch, "preparing"),
        lambda batch: stuck(batch, "copying"),
    )
    with pytest.raises(RuntimeError, match=f"0 of 1 batches .* stuck {stage}"):
        with pipeline:
            try:
                pipeline.wait_until_filled(timeout_seconds=0.1)
            finally:
                release.set()


@pytest.mark.parametrize("capacity", [2, 0])
@pytest.mark.parametrize("where", ["read", "prepare", "transfer"])
def test_error_of_the_producer_is_raised_after_the_batches_before_it(capacity, where):
    def passing(here, batch):
        if (here, batch) == (where, 3):
            raise Broken(where)
        return batch

    reader = (passing("read", index) for index in range(100))
    steps = lambda b, _: passing("prepare", b), lambda b: passing("transfer", b)
    with DevicePipeline(reader, *steps, capacity) as pipeline:
        assert [next(pipeline) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Broken, match=where) as error:
            next(pipeline)
        if capacity:
            assert next(pipeline, "over") == "over"
    assert "passing" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]


def test_with_block_can_be_left_first_or_twice_and_ends_the_batches():
    with DevicePipeline(range(3), kept, unchanged) as never_asked:
        pass
    assert next(never_asked, None) is None
    for capacity in (1, 0):
        with DevicePipeline(range(30), kept, unchanged, capacity) as pipeline, pipeline:
            assert next(pipeline) == 0
        assert next(pipeline, None) is None


STOPS = ("reader", "features", "step", "interrupt", "end of data", "enough")


def consume(kind, at, draw):
    """Trains on synthetic batches until a stop of this kind at batch `at`; returns the number of finished steps."""
    data_seconds, step_seconds = (draw.choice([0.0, 0.001, 0.004]) for _ in range(2))
    begin, seen = time.monotonic(), 0

    def batches():
        # A busy machine may deliver Ctrl-C only after ten thousand batches, but not after half a minute of them.
        until_then = itertools.takewhile(lambda _: time.monotonic() < begin + 30, itertools.count())
        for index in range(at) if kind == "end of data" else until_then:
            if kind == "reader" and index == at:
                raise Broken
            yield index

    def prepare(batch, position):
        time.sleep(data_seconds)
        if kind == "features" and position == at:
            raise Broken
        return batch

    if kind == "interrupt":
        # Tests that a shell started in the background ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.001 + 0.004 * at, os.kill, (os.getpid(), signal.SIGINT)).start()
    with DevicePipeline(batches(), prepare, unchanged, draw.choice([1, 1, 2, 5])) as pipeline:
        for _ in pipeline:
            time.sleep(step_seconds)
            if kind == "step" and seen == at:
                raise Broken
            seen += 1
            if kind == "enough" and seen > at:
                break
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_every_stop_ends_the_producer(seed):
    """Stops of a random kind at a random batch, with random speeds on both sides and a random buffer."""
    draw = random.Random(seed)
    kind, at = STOPS[seed % len(STOPS)], draw.randrange(8)
    try:
        ended = consume(kind, at, draw)
    except (Broken, KeyboardInterrupt) as error:
        ended = type(error)
    until(lambda: not producers())
    assert ended == {"interrupt": KeyboardInterrupt, "end of data": at, "enough": at + 1}.get(kind, Broken)


def test_deleted_pipeline_ends_its_producer():
    pipeline = DevicePipeline(range(100), kept, unchanged)
    assert next(pipeline) == 0 and producers()
    del pipeline
    until(lambda: not producers())
