"""What a stream of batches asks TensorFlow for: what fails in one thread aborts eager operations of others."""

import pytest

from myxtts.data import pipeline
from myxtts.data.batch import noise_batch


def batch_of_noise(position):
    return noise_batch(2, 4096, 5, 2048, 20)


@pytest.fixture
def asked(monkeypatch):
    """Grows with each batch that is asked for."""
    count, prefetch_to = [], pipeline.prefetch_to

    class Counted:
        def __init__(self, *arguments):
            self.batches = iter(prefetch_to(*arguments))

        def __iter__(self):
            return self

        def __next__(self):
            count.append(1)
            return next(self.batches)

    monkeypatch.setattr(pipeline, "prefetch_to", Counted)
    return count


def test_no_batch_is_asked_for_after_the_last(asked):
    assert len(list(pipeline.stream_batches(batch_of_noise, "/CPU:0", 2, 5, 2, 1))) == len(asked) == 3


def test_error_of_the_loader_comes_as_it_was_and_at_its_batch(asked):
    def failing(position):
        if position == 3:
            raise FileNotFoundError("clip 3 has vanished")
        return batch_of_noise(position)

    with pytest.raises(FileNotFoundError, match="clip 3 has vanished"):
        list(pipeline.stream_batches(failing, "/CPU:0", 1, 5, 2, 1))
    assert len(asked) == 3
