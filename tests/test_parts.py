"""Parts of a model read from checkpoints of any age, under the names that weights have today."""

import numpy as np

from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.parts import RENAMED_WEIGHTS, current_names, read_part


def test_old_names_become_todays_and_others_stay():
    arrays = {"vocoder/conv/kernel": np.zeros(1), "decoder/bias": np.ones(1), "gpt/vocoder/x": np.full(1, 2.0)}
    named = current_names(arrays)
    assert list(named) == ["decoder/conv/kernel", "decoder/bias", "gpt/vocoder/x"]
    assert all(new is old for new, old in zip(named.values(), arrays.values()))
    assert not any(name.startswith(tuple(RENAMED_WEIGHTS)) for name in named)


def test_a_part_written_under_old_names_is_read_under_todays(tmp_path):
    store = CheckpointStore(tmp_path / "decoder")
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.write(4, {"model": {"vocoder/kernel": kernel}, "more": {"a": kernel}}, {"finished": True})
    tensors, state = read_part(store, 4)
    assert list(tensors) == ["model"] and list(tensors["model"]) == ["decoder/kernel"]
    np.testing.assert_array_equal(tensors["model"]["decoder/kernel"], kernel)
    assert (state["step"], state["finished"]) == (4, True)
    assert list(read_part(store, 4, ("model", "more"))[0]) == ["model", "more"]
