"""PyTorch checkpoints: files written by PyTorch, round trips, damaged files, hostile pickles."""

import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from myxtts.interchange.coqui.torch_checkpoint import (
    StubObject,
    TorchCheckpointError,
    read_torch_checkpoint,
    write_torch_checkpoint,
)

# data/by_torch_*.pth were written by torch 2.13.0:
# torch.save({"model": OrderedDict(a=arange(12.).reshape(3, 4), transposed=a.t(),
# part=a[1:, ::2], half=.., brain=.., count=tensor(7), flags=.., parameter=Parameter(ones(2)), empty=zeros(0, 3)),
# "config": XttsConfig(), "step": 5, "loss": numpy.float64(0.25)}).
BY_TORCH = ("zip", "legacy")
DATA = Path(__file__).parent / "data"


def bytes_by_torch(layout):
    return (DATA / f"by_torch_{layout}.pth").read_bytes()


def write_zip(path, pickled, storages=(), compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for index, content in enumerate(storages):
            archive.writestr(f"archive/data/{index}", content)
    return path


def tensor_opcodes(num_values, offset, size, stride, storage="FloatStorage"):
    """Protocol 2 opcodes of a tensor as `torch.save` writes them, but with any sizes."""

    text = lambda value: b"X" + struct.pack("<I", len(value)) + value.encode()
    integer = lambda value: b"\x8a" + bytes([len(encoded := pickle.encode_long(value))]) + encoded
    integers = lambda values: b"(" + b"".join(map(integer, values)) + b"t"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\n" + storage.encode() + b"\n"
        + text("0") + text("cpu") + integer(num_values) + b"tQ" + integer(offset) + integers(size) + integers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


@pytest.mark.parametrize("layout", BY_TORCH)
def test_file_written_by_torch_is_read(layout, tmp_path):
    (tmp_path / "model.pth").write_bytes(bytes_by_torch(layout))
    checkpoint = read_torch_checkpoint(tmp_path / "model.pth")
    base = np.arange(12, dtype="float32").reshape(3, 4)
    expected = {
        "a": base,
        "transposed": base.T,
        "part": base[1:, ::2],
        "half": np.array([1.5, -2.0], "float16"),
        "brain": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "count": np.array(7),
        "flags": np.array([True, False]),
        "parameter": np.ones(2, "float32"),
        "empty": np.zeros((0, 3), "float32"),
    }
    assert list(checkpoint["model"]) == list(expected)
    for name, array in expected.items():
        assert checkpoint["model"][name].dtype == array.dtype
        np.testing.assert_array_equal(checkpoint["model"][name], array)
    assert (checkpoint["step"], checkpoint["loss"]) == (5, 0.25)
    config = checkpoint["config"]
    assert isinstance(config, StubObject) and config.state == {"temperature": 0.75, "languages": ["en", "fa"]}


def test_written_checkpoint_is_read_back(tmp_path):
    random = np.random.default_rng(0)
    tensors = OrderedDict(
        kernel=random.standard_normal((3, 4, 5)).astype("float32"),
        transposed=random.standard_normal((4, 3)).astype("float32").T,
        half=random.standard_normal(3).astype("float16"),
        brain=random.standard_normal(3).astype(ml_dtypes.bfloat16),
        count=np.array(2**40),
        empty=np.zeros((0, 2), "float32"),
    )
    rest = {"step": -3, "big": 2**70, "loss": 0.5, "name": "ß", "nothing": None, "list": [True, (1, "a"), []]}
    write_torch_checkpoint(tmp_path / "model.pth", {"model": tensors} | rest)
    checkpoint = read_torch_checkpoint(tmp_path / "model.pth")
    assert {name: checkpoint[name] for name in rest} == rest
    assert list(checkpoint["model"]) == list(tensors)
    for name, array in tensors.items():
        assert checkpoint["model"][name].dtype == array.dtype
        np.testing.assert_array_equal(checkpoint["model"][name], array)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pth"]


class Calls:
    """An object that pickles as a call of any function."""

    def __init__(self, function, *args):
        self._call = (function, args)

    def __reduce__(self):
        return self._call

    def __call__(self):
        """Makes the object callable, because `pickle` requires a callable in the result of `__reduce__`."""


def run_if_called(path):
    Path(path).write_text("the pickle ran")


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "make_payload, name",
    [
        (lambda path: Calls(__import__("os").system, f"touch {path}"), "system"),
        (lambda path: Calls(eval, f"open({str(path)!r}, 'w')"), "builtin.*eval"),
        (lambda path: Calls(__import__("subprocess").Popen, ["touch", str(path)]), "Popen"),
        (lambda path: Calls(run_if_called, str(path)), "run_if_called"),
        (lambda path: Calls(Calls(getattr, "", "upper")), "getattr"),
        (lambda path: Calls(bytearray, 10**6), "bytearray"),
        (lambda path: {"model": [OrderedDict(a=Calls(run_if_called, str(path)))]}, "run_if_called"),
    ],
)
def test_call_is_refused_by_name_and_not_run(make_payload, name, protocol, tmp_path):
    path = write_zip(tmp_path / "model.pth", pickle.dumps(make_payload(tmp_path / "ran"), protocol))
    with pytest.raises(TorchCheckpointError, match=f"asks to call .*{name}. Nothing was run"):
        read_torch_checkpoint(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "pickled, message",
    [
        (b"(S'true'\nios\nsystem\n.", "opcode INST"),
        (b"(cos\nsystem\nS'true'\no.", "opcode OBJ"),
        (b"\x80\x04cos\nsystem\n)}\x92.", "opcode NEWOBJ_EX"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"P1\n.", "opcode PERSID"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x01\x00\x00\x00aNs\x86b.", "damaged"),
        (b"\x80\x02cos\nsystem\nN}X\x01\x00\x00\x00aNs\x86b.", "damaged"),
    ],
)
def test_opcode_that_no_checkpoint_needs_is_refused(pickled, message, tmp_path):
    with pytest.raises(TorchCheckpointError, match=message):
        read_torch_checkpoint(write_zip(tmp_path / "model.pth", pickled))


@pytest.mark.parametrize("message, tensor", json.loads((DATA / "hostile_tensors.json").read_text()))
def test_tensor_that_claims_more_than_the_file_has_is_refused(tensor, message, tmp_path):
    pickled = b"\x80\x02" + tensor_opcodes(*tensor) + b"."
    with pytest.raises(TorchCheckpointError, match=message):
        read_torch_checkpoint(write_zip(tmp_path / "model.pth", pickled, [bytes(16)]))


def test_tensor_without_its_storage_is_refused(tmp_path):
    pickled = b"\x80\x02" + tensor_opcodes(4, 0, (4,), (1,)) + b"."
    with pytest.raises(TorchCheckpointError, match="archive/data/0"):
        read_torch_checkpoint(write_zip(tmp_path / "model.pth", pickled))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "storages, compression, again, message",
    [
        ([bytes(10**6)], zipfile.ZIP_DEFLATED, (), "compressed entry, 'archive/data"),
        ((), zipfile.ZIP_STORED, ["archive/data.pkl"], "two entries named 'archive/data.pkl'"),
    ],
)
def test_archive_that_torch_never_writes_is_refused(storages, compression, again, message, tmp_path):
    path = write_zip(tmp_path / "model.pth", pickle.dumps({}, 2), storages, compression)
    with zipfile.ZipFile(path, "a") as archive:
        for name in again:
            archive.writestr(name, pickle.dumps({}, 2))
    with pytest.raises(TorchCheckpointError, match=message):
        read_torch_checkpoint(path)


def test_legacy_file_that_claims_more_than_it_has_is_refused(tmp_path):
    head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}))
    claim = b"\x80\x02" + tensor_opcodes(2**50, 0, (1,), (1,)) + b"."
    (tmp_path / "model.pth").write_bytes(head + claim + pickle.dumps(["0"], 2))
    with pytest.raises(TorchCheckpointError, match="more than it has"):
        read_torch_checkpoint(tmp_path / "model.pth")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a checkpoint", b"\x80\x02}.", bytes(1000)])
def test_file_that_is_no_checkpoint_is_refused(content, tmp_path):
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(TorchCheckpointError, match="model.pth"):
        read_torch_checkpoint(tmp_path / "model.pth")


@pytest.mark.parametrize("layout", BY_TORCH)
def test_cut_file_is_refused_and_a_flipped_bit_is_refused_or_read_and_in_a_zip_changes_nothing(layout, tmp_path):
    content, path = bytes_by_torch(layout), tmp_path / "model.pth"
    path.write_bytes(content)
    undamaged = read_torch_checkpoint(path)
    for length in range(0, len(content), 23):
        path.write_bytes(content[:length])
        with pytest.raises(TorchCheckpointError):
            read_torch_checkpoint(path)
    for position in range(0, len(content), 11):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            checkpoint = read_torch_checkpoint(path)
        except TorchCheckpointError:
            continue
        if layout == "zip":  # the other layout has no checksums
            assert checkpoint["config"].state == undamaged["config"].state
            np.testing.assert_equal(checkpoint, undamaged | {"config": checkpoint["config"]})
