"""Checkpoints: atomic writes, detection of damage, and keeping of the newest and the best."""

import json
import os
import resource
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from myxtts.storage import checkpoint, files
from myxtts.storage.checkpoint import (
    CheckpointError,
    CheckpointStore,
    CheckpointVersionError,
    StoredTensors,
    assign_by_name,
    write_manifest,
)


def tensors(value=1.0):
    return {
        "model": {"gpt/kernel": np.full((2, 3), value, np.float32), "gpt/steps": np.array(7, np.int64)},
        "optimizer": {"momentum": np.arange(4, dtype=np.float32)},
    }


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run" / "gpt", keep=2)


def test_checkpoint_is_read_as_written_also_arrays_in_another_memory_order(store):
    store.write(12, tensors(), {"history": [{"mel": 1.5}], "best": None})
    read, state = store.read(12, ("model", "optimizer"))
    for file, arrays in tensors().items():
        assert read[file].keys() == arrays.keys()
        for name, array in arrays.items():
            assert read[file][name].shape == array.shape, name
            assert read[file][name].dtype == array.dtype
            np.testing.assert_array_equal(read[file][name], array)
    assert state == {"step": 12, "best_step": None, "history": [{"mel": 1.5}], "best": None}
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    store.write(1, {"model": {"a": array, "b": array.T, "c": array[:, ::2]}}, {})
    read = store.read(1, ("model",))[0]["model"]
    for name, expected in (("a", array), ("b", array.T), ("c", array[:, ::2])):
        np.testing.assert_array_equal(read[name], expected)


def test_the_newest_and_the_best_are_kept(store):
    for step in range(1, 7):
        store.write(step, tensors(step), {}, best=step == 2)
    assert store.steps() == [2, 5, 6]
    assert store.best_step() == 2
    assert sorted(entry.name for entry in store.folder.iterdir()) == [
        "best.json",
        *(f"step_0000000{n}" for n in (2, 5, 6)),
    ]


def test_full_disk_is_an_os_error_and_keeps_the_old_checkpoints(store):
    store.write(1, tensors(1.0), {})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large.*model.safetensors"):
            store.write(2, {"model": {"a": np.zeros(50_000, np.float32)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert store.newest_sound(pytest.fail) == 1
    assert {entry.name for entry in store.folder.iterdir()} == {"step_00000001"}


def edit(path, change):
    path.write_bytes(change(path.read_bytes()))


def flip_a_bit(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


def name_another_file(folder):
    (folder.parent / "secret.json").write_text("{}")
    entries = {"../secret.json": {"bytes": 2, "blake2b": "0" * 32}}
    manifest = {"format": 1, "files": entries, "blake2b": checkpoint._manifest_digest(1, entries)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def lead_outside(folder):
    os.replace(folder / MODEL, folder.parent / "outside")
    (folder / MODEL).symlink_to(folder.parent / "outside")


def put_a_pipe(folder):
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)


MODEL, MANIFEST = "model.safetensors", "manifest.json"
DAMAGE = {
    "truncated": lambda folder: edit(folder / MODEL, lambda content: content[:-5]),
    "flipped bit": lambda folder: edit(folder / MODEL, flip_a_bit),
    "missing file": lambda folder: (folder / MODEL).unlink(),
    "altered state": lambda folder: edit(folder / "state.json", lambda c: c.replace(b'"step": 2', b'"step": 3')),
    "empty manifest": lambda folder: (folder / MANIFEST).write_bytes(b""),
    "manifest of something else": lambda folder: (folder / MANIFEST).write_text('{"name": "x"}'),
    "manifest is a list": lambda folder: (folder / MANIFEST).write_text("[1]"),
    "missing manifest": lambda folder: (folder / MANIFEST).unlink(),
    "altered manifest": lambda folder: edit(folder / MANIFEST, lambda c: c.replace(b'"bytes": 1', b'"bytes": 2')),
    "manifest of another file": name_another_file,
    "link to the outside": lead_outside,
    "pipe": put_a_pipe,
    "nested without end": lambda folder: (folder / MANIFEST).write_text("[" * 200_000),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_checkpoint_is_set_aside_and_the_previous_one_is_used(store, kind):
    store.write(1, tensors(1.0), {})
    store.write(2, tensors(2.0), {})
    DAMAGE[kind](store.path(2))
    with pytest.raises(CheckpointError, match="step_00000002"):
        store.read(2, ("model",))
    said = []
    assert store.newest_sound(said.append) == 1
    assert len(said) == 1 and "step_00000002" in said[0] and "damaged_step_00000002" in said[0]
    assert (store.folder / "damaged_step_00000002").is_dir()
    assert store.steps() == [1]


def test_any_flipped_bit_of_the_manifest_is_noticed(store):
    store.write(1, tensors(1.0), {})
    manifest = store.path(1) / "manifest.json"
    content = manifest.read_bytes()
    for place in range(len(content)):
        flipped = bytes([content[place] ^ 1 << place % 8])
        manifest.write_bytes(content[:place] + flipped + content[place + 1 :])
        with pytest.raises(CheckpointError) as error:
            store.verify(1)
        assert not isinstance(error.value, CheckpointVersionError), (place, flipped)


def test_checkpoint_of_another_format_is_refused_and_stays_where_it_is(store, monkeypatch):
    store.write(1, tensors(), {})
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    store.write(2, tensors(), {})
    monkeypatch.undo()
    with pytest.raises(CheckpointVersionError, match="step_00000002 has checkpoint format 2.*reads format 1"):
        store.newest_sound(pytest.fail)
    assert store.steps() == [1, 2]


def test_json_larger_than_its_limit_is_not_read(store, monkeypatch):
    store.write(1, tensors(), {})
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 10)
    with pytest.raises(CheckpointError, match="at most 10 bytes are read"):
        store.verify(1)


def test_tensor_file_that_claims_more_than_it_has_is_refused(store):
    store.write(1, tensors(), {})
    path = store.path(1) / "model.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    write_manifest(path.parent)
    with pytest.raises(CheckpointError, match="model.safetensors cannot be read"):
        store.read(1, ("model",))


def test_file_that_the_manifest_does_not_name_is_not_read(store):
    store.write(1, {"model": tensors()["model"]}, {})
    shutil.copy(store.path(1) / "model.safetensors", store.path(1) / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match="optimizer.safetensors is not part"):
        store.read(1, ("model", "optimizer"))


def test_damaged_mark_of_the_best_is_rewritten(store):
    store.write(1, tensors(), {}, best=True)
    for content in ('{"step": "x', '{"step": 1e400}', '{"step": 7}', "[]"):
        (store.folder / "best.json").write_text(content)
        assert store.best_step() == 1  # the checkpoint says it
    assert store.newest_sound(pytest.fail) == 1
    assert json.loads((store.folder / "best.json").read_text()) == {"step": 1}
    store.write(2, tensors(), {}, best=True)
    assert store.best_step() == 2


def test_damaged_newest_checkpoint_makes_an_earlier_one_the_best(store, caplog):
    for step in (1, 2, 3):
        store.write(step, tensors(step), {}, best=step == 1)
    DAMAGE["flipped bit"](store.path(3))
    assert store.best_step() == 1
    (store.path(3) / "state.json").write_text('{"step": 3, "best_step": 2}')
    assert store.best_step() == 1
    for step in (2, 1):
        (store.path(step) / MANIFEST).unlink()
    assert store.best_step() is None and store.steps() == [1, 2, 3]
    assert "step_00000001/manifest.json is missing from the checkpoint" in caplog.text
    assert caplog.text.rstrip().endswith("There is none before it.")


def test_checkpoint_under_the_name_of_another_step_is_set_aside_and_named(store):
    for step in (1, 2):
        store.write(step, tensors(step), {})
    store.path(2).replace(store.folder / "step_00000240")
    with pytest.raises(CheckpointError, match="step_00000240.state.json is of step 2, not of step 240"):
        store.read(240, ("model",))
    with pytest.raises(CheckpointError, match="is of step 2, not of step 240"):
        store.read_state(240)
    said = []
    assert store.newest_sound(said.append) == 1 and "damaged_step_00000240" in said[0]
    assert (store.folder / "damaged_step_00000240").is_dir()


@pytest.mark.parametrize("content", ["[]", "7", "{}", '{"step": [1]}', '{"step": "%s"}' % ("x" * 9999)])
def test_invalid_state_is_one_error_message(store, content):
    store.write(1, tensors(), {})
    (store.path(1) / "state.json").write_text(content)
    write_manifest(store.path(1))
    with pytest.raises(CheckpointError, match="state.json is of .* not of step 1") as error:
        store.verify(1)
    assert len(str(error.value)) < 400


def test_setting_aside_replaces_no_earlier_folder(store):
    for value in (1.0, 2.0, 3.0):
        store.write(4, tensors(value), {})
        store.put_away(4, "diverged")
    kept = sorted(store.folder.glob("diverged_step_00000004*"))
    assert [path.name for path in kept] == [f"diverged_step_00000004{end}" for end in ("", "_2", "_3")]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_all_files_of_a_checkpoint_have_the_permissions_that_the_umask_gives(store, umask):
    before = os.umask(umask)
    try:
        store.write(1, tensors(), {}, best=True)
    finally:
        os.umask(before)
    files_of_it = [path for path in store.folder.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files_of_it} == {0o666 & ~umask} and len(files_of_it) == 5


def test_assigning_fits_names_and_shapes_or_changes_nothing():
    variables = {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable(3.0)}

    def values():
        return {name: variable.numpy().tolist() for name, variable in variables.items()}

    for arrays, words in [
        ({"a": np.zeros(2, np.float32)}, ["missing ['b']", "unexpected nothing"]),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(()), "c": np.zeros(1)}, ["unexpected ['c']"]),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}, ["b has the shape (1,) instead of ()"]),
        ({"a": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}, ["a has the shape (3,) instead of (2,)"]),
    ]:
        with pytest.raises(CheckpointError) as error:
            assign_by_name(variables, arrays, "run/gpt/step_00000001")
        assert all(word in str(error.value) for word in [*words, "run/gpt/step_00000001"])
        assert values() == {"a": [1.0, 2.0], "b": 3.0}
    assign_by_name(variables, {"a": np.array([5, 6], np.float32), "b": np.array(7, np.float32)}, "x")
    assert values() == {"a": [5.0, 6.0], "b": 7.0}


def test_open_reads_tensors_when_they_are_looked_up_and_fits_them_without_reading(store, monkeypatch):
    values = {"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": np.array(3.0, np.float32)}
    store.write(1, {"model": values}, {})
    stored, read, get = store.open(1), [], StoredTensors.__getitem__
    assert "c" not in stored
    monkeypatch.setattr(StoredTensors, "__getitem__", lambda self, name: read.append(name) or get(self, name))
    assert dict(stored.shapes) == {"a": (2, 3), "b": ()} and sorted(stored) == ["a", "b"] and len(stored) == 2
    with pytest.raises(CheckpointError, match="has the shape"):
        assign_by_name({"a": tf.Variable([1.0]), "b": tf.Variable(1.0)}, stored, "this")
    assert not read
    variables = {"a": tf.Variable(tf.zeros((2, 3))), "b": tf.Variable(0.0)}
    assign_by_name(variables, stored, "this")
    np.testing.assert_equal({name: variable.numpy() for name, variable in variables.items()}, values)
    assert sorted(read) == ["a", "b"]


def test_copy_made_during_writes_is_resumed_from_a_complete_checkpoint(tmp_path):
    """Copies a folder while it changes: before each file is copied, another checkpoint is written."""
    store, reported = CheckpointStore(tmp_path / "run" / "gpt"), []
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
        step = copy.newest_sound(reported.append)
        assert is_whole and copy.read(step, ("model",))[0]["model"]["a"][0] == step, "the best is never removed"
    assert reported and all("was set aside" in one for one in reported)


def test_damaged_only_checkpoint_is_reported(tmp_path):
    store = CheckpointStore(tmp_path / "gpt")
    for step in (1, 2):
        store.write(step, {"model": {"a": np.zeros(3, np.float32)}}, {})
        (store.path(step) / "model.safetensors").write_bytes(b"cut")
    reported = []
    assert store.has_sound() is False and store.newest_sound(reported.append) is None
    assert [one.rpartition("; ")[2] for one in reported] == [
        "the checkpoint before it is used.",
        "there is none before it.",
    ]
