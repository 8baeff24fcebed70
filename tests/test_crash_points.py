"""Whatever operation of the disk a kill or a full disk meets, no checkpoint, mark of the best or setting is lost."""

import itertools
import json

import numpy as np
import pytest
from crash_points import crash_everywhere

from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import remove_leftovers
from myxtts.storage.run_folder import own_run_folder, set_aside


def tensors(value):
    return {"model": {"a": np.full(3, value, np.float32)}, "optimizer": {"b": np.full(2, value, np.float32)}}


def values(store):
    """`{step: value}` of the checkpoints that are sound."""
    return {step: float(store.read(step, ("model",))[0]["model"]["a"][0]) for step in store.steps()}


@pytest.fixture
def stores(tmp_path):
    """Makes stores with the checkpoints 1 to 3, of which 1 is the best."""

    def make():
        store = CheckpointStore(tmp_path / str(next(numbers)) / "gpt")
        for step in (1, 2, 3):
            store.write(step, tensors(step), {}, best=step == 1)
        return store

    numbers = itertools.count()
    return make


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("step", [3, 4])
def test_newest_and_best_are_there_and_agree_after_a_crash_anywhere_in_a_write(stores, monkeypatch, step, best):
    def check(store, outcome):
        store = CheckpointStore(store.folder)  # as another process sees it
        before = {1: 1.0, 2: 2.0, 3: 3.0}
        # What is read at once, with nothing recovered.
        found = values(store)
        written = found.get(step) == 9.0
        assert written or not isinstance(outcome, type(store.folder)), "what was returned is there"
        assert found[max(found)] == (9.0 if written else 3.0)
        assert store.best_step() == (step if written and best else 1)
        assert found[store.best_step()] == (9.0 if written and best else 1.0)
        # The next start.
        newest = store.newest_sound(pytest.fail)
        remove_leftovers(store.folder)
        assert (newest, values(store)) == (max(found), found)
        listed = json.loads((store.folder / "best.json").read_text())
        assert listed == {"step": store.best_step()}
        names = {entry.name for entry in store.folder.iterdir()}
        assert names == {"best.json", *(f"step_{step:08d}" for step in found)}
        # And the next checkpoints: the best outlives them.
        for later in (5, 6, 7):
            store.write(later, tensors(later), {})
        assert values(store).items() >= {store.best_step(): found[listed["step"]], 6: 6.0, 7: 7.0}.items()
        assert store.best_step() == listed["step"] and set(store.steps()) <= {*before, 4, 6, 7}

    assert crash_everywhere(monkeypatch, stores, lambda s: s.write(step, tensors(9), {}, best), check) > 15


def test_the_only_checkpoint_can_be_read_after_a_crash_anywhere_while_it_is_written_again(tmp_path, monkeypatch):
    numbers = itertools.count()

    def make():
        store = CheckpointStore(tmp_path / str(next(numbers)) / "gpt")
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

    crash_everywhere(monkeypatch, make, lambda store: store.write(3, tensors(9), {"finished": True}), check)


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

    crash_everywhere(monkeypatch, make, lambda store: store.newest_sound(pytest.fail), check)


RUN = {"config.json": "settings", "vocab.json": "words", "dvae/x": "1", "gpt/x": "2", "samples/a.wav": "3"}


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shared", [(), ("dvae",)])
def test_a_run_is_set_aside_as_one_or_not_at_all_after_a_crash_anywhere(tmp_path, monkeypatch, shared):
    numbers = itertools.count()
    moved = [name for name in ("dvae", "gpt", "samples", "vocab.json", "config.json", "none") if name not in shared]

    def make():
        folder = tmp_path / str(next(numbers))
        for name, text in RUN.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    def check(folder, outcome):
        with own_run_folder(folder):
            pass
        found, kept = contents(folder), {name: RUN[name] for name in RUN if name.startswith(shared or "nothing")}
        aside = {f"before_reset/{name}": text for name, text in RUN.items()}
        if "before_reset/config.json" in found:
            assert found == aside | kept
        else:
            assert not isinstance(outcome, type(folder))
            # A kill may leave the copy of what is shared.
            extra = found.items() - RUN.items()
            assert found.items() >= RUN.items() and extra <= {item for item in aside.items() if "dvae" in item[0]}
            assert not extra or shared
        assert not list(folder.glob(".before_reset*"))

    crash_everywhere(monkeypatch, make, lambda folder: set_aside(folder, moved, shared), check)
