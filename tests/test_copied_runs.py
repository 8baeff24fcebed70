"""A run copied while it writes checkpoints: what of the copy can be resumed, and what is said of the rest."""

import numpy as np

from myxtts.storage.checkpoint import CheckpointStore


def test_copy_made_while_checkpoints_are_written_is_taken_up_where_it_is_whole(tmp_path):
    """The names are listed at one moment, and files copied at others: before each, another checkpoint is written."""
    store, told = CheckpointStore(tmp_path / "run" / "gpt"), []
    write = lambda step: store.write(step, {"model": {"a": np.full(3, step, np.float32)}}, {}, best=step == 2)
    for step in (1, 2, 3):
        write(step)
    for between in range(1, 12):
        copy = CheckpointStore(tmp_path / f"copy_{between}" / "gpt")
        names = sorted(path.relative_to(store.folder) for path in store.folder.rglob("*"))
        for number, name in enumerate(names):
            if number % between == 0:
                write(store.steps()[-1] + 1)
            target, source = copy.folder / name, store.folder / name
            if source.is_dir():
                target.mkdir(parents=True)
            elif source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
        is_whole = copy.has_sound()
        step = copy.newest_sound(told.append)
        assert is_whole and copy.read(step, ("model",))[0]["model"]["a"][0] == step, "the best is never removed"
    assert told and all("was set aside" in one for one in told)


def test_damaged_checkpoint_with_none_before_it_says_so(tmp_path):
    store = CheckpointStore(tmp_path / "gpt")
    for step in (1, 2):
        store.write(step, {"model": {"a": np.zeros(3, np.float32)}}, {})
        (store.path(step) / "model.safetensors").write_bytes(b"cut")
    told = []
    assert store.has_sound() is False and store.newest_sound(told.append) is None
    assert [one.rpartition("; ")[2] for one in told] == [
        "the checkpoint before it is used.",
        "there is none before it.",
    ]
