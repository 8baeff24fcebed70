"""Prepared clips: samples and codes in checksummed shards, written once, read at any place in any order.

A folder holds, for each of its shards, a TFRecord file and an index in JSON, which is written last: without it the
shard is not there. A manifest appears when all shards are there. A clip has two `tf.train.Example`s, as a batch takes
codes of one clip and samples of another: `id` and `codes`; `id` and `samples` (16-bit little-endian PCM at 22 050 Hz).
A clip's shard follows from its id alone, so that it does not matter who makes which, and when.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError
from myxtts.config.checks import UserError
from myxtts.storage.files import (
    CheckpointError,
    digest_bytes,
    digest_file,
    parse_json,
    read_json,
    remove_leftovers,
    write_json,
    write_whole,
)

FORMAT = 2
MANIFEST = "manifest.json"
MAX_SHARDS = 99_999
MAX_SHARD_CLIPS = 200_000
"""Its index stays well below what `read_json` takes."""
_RECORD_HEADER_BYTES, _RECORD_FOOTER_BYTES = 12, 4  # of a TFRecord: length and its checksum; checksum of the data


class Record(NamedTuple):
    """Where in a shard a `tf.train.Example` is: its first byte, its bytes, and their CRC32."""

    offset: int
    length: int
    crc32: int


class PreparedClip(NamedTuple):
    """A clip as a shard's index lists it."""

    id: str
    num_samples: int
    codes: Record
    samples: Record


def shard_name(number: int, shards: int) -> str:
    """Name of a shard's files without `.tfrecord` and `.json`; the first has number 0."""
    return f"shard-{number:05d}-of-{shards:05d}"


def shard_of(clip_id: str, shards: int) -> int:
    """The shard that a clip belongs to."""
    return int(digest_bytes(clip_id.encode("utf-8", "surrogatepass"), 8), 16) % shards


def write_shard(
    folder: Path,
    number: int,
    shards: int,
    dvae: str,
    clips: Iterable[tuple[str, np.ndarray, np.ndarray]],
    left_out: Sequence[tuple[str, str]] = (),
    audio: Mapping[str, str] | None = None,
) -> int:
    """Writes one shard, whole or not at all; returns how many clips it holds.

    Args:
        dvae: Digest of the weights that made the codes.
        clips: Id, codes `(C,)` int32 and samples `(S,)` int16 of each.
        left_out: Id and reason of clips that cannot be used.
        audio: Digest of each clip's audio file by id, also of those left out; a shard is stale when one changes.
    """
    name, index, offset = shard_name(number, shards), [], 0
    for suffix in (".tfrecord", ".json"):
        remove_leftovers(folder, name + suffix)
    path = folder / f"{name}.tfrecord"
    with write_whole(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for clip_id, codes, samples in clips:
            records = []
            for example in _examples(clip_id, codes, samples):
                with _explained(path):
                    writer.write(example)
                records.append(Record(offset + _RECORD_HEADER_BYTES, len(example), zlib.crc32(example)))
                offset += _RECORD_HEADER_BYTES + len(example) + _RECORD_FOOTER_BYTES
            index.append(PreparedClip(clip_id, len(samples), *records))
        with _explained(path):
            writer.close()  # before its content is waited for
    header = {"format": FORMAT, "dvae": dvae, "shard": number, "shards": shards, "bytes": offset}
    write_json(folder / f"{name}.json", header | {"clips": index, "left_out": left_out, "audio": audio or {}})
    return len(index)


def read_index(folder: Path, number: int, shards: int, dvae: str) -> dict[str, Any] | None:
    """The index of a shard that is there in full; None where it is not.

    Raises:
        UserError: It was made with another DVAE or another format.
    """
    name = shard_name(number, shards)
    if not (folder / f"{name}.json").exists():
        return None
    try:
        index = read_json(folder / f"{name}.json")
    except CheckpointError:  # damaged: it is made again
        return None
    if (index.get("format"), index.get("dvae")) != (FORMAT, dvae):
        hint = "Give another --output, or remove the folder."
        raise UserError(f"{folder / name} was made with another DVAE, or by another version of the program. {hint}")
    path = folder / f"{name}.tfrecord"
    return index if path.is_file() and path.stat().st_size == index["bytes"] else None


def refuse_other_count(folder: Path, shards: int) -> None:
    """Raises `UserError` where the folder holds shards of another division."""
    found = {int(path.stem.rpartition("-")[2]) for path in folder.glob("shard-*-of-*.json")} - {shards}
    if found:
        raise UserError(f"--shards must be {max(found)}, as in {folder}. Received: {shards}. Or give another --output.")


def merge(folder: Path, shards: int, dvae: str) -> list[int]:
    """Writes the manifest if all shards are there and it does not say so yet; returns those that are missing."""
    indexes = [read_index(folder, number, shards, dvae) for number in range(shards)]
    if missing := [number for number, index in enumerate(indexes) if index is None]:
        return missing
    entries = []
    for number, index in enumerate(indexes):
        name = shard_name(number, shards)
        digest = digest_file(folder / f"{name}.json")
        entries.append({"name": name, "index": digest, "bytes": index["bytes"], "clips": len(index["clips"])})
    total = sum(entry["clips"] for entry in entries)
    manifest = {"format": FORMAT, "dvae": dvae, "clips": total, "shards": entries}
    path = folder / MANIFEST
    if not path.is_file() or path.read_text(encoding="utf-8") != json.dumps(manifest, indent=1) + "\n":
        write_json(path, manifest)
    return []


class PreparedClips:
    """What a folder of shards holds. `adopt` says which recordings these are; then samples and codes can be read."""

    def __init__(self, name: str, dvae: str, clips: dict[str, tuple[str, PreparedClip]]):
        self.name = name
        """What messages call it."""
        self.dvae = dvae
        """Digest of the weights that made the codes."""
        self._clips = clips
        self._by_path: dict[str, tuple[str, PreparedClip]] = {}

    @classmethod
    def open(cls, folder: str | Path, flag: str = "--prepared") -> PreparedClips:
        """Reads the manifest and the indexes of a folder, or of an address as `gs://bucket/folder`; sizes and checksums
        of all must be as written. `flag` is what messages call it by.

        Raises:
            UserError: Something is missing or other than it was.
        """
        home, clips = str(folder).rstrip("/"), {}
        again = "Run the same `myxtts prepare` again: it makes what is missing"
        if _file_size(f"{home}/{MANIFEST}") is None:
            raise UserError(f"{flag} {folder} has no {MANIFEST}, so not all of its shards are made. {again}.")
        manifest = parse_json(_read_bytes(f"{home}/{MANIFEST}"), f"{home}/{MANIFEST}")
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise UserError(f"{flag} {folder} is of another version of the program. Prepare into another folder.")
        try:
            for entry in manifest["shards"]:
                path, index = (f"{home}/{entry['name']}.{suffix}" for suffix in ("tfrecord", "json"))
                if _file_size(path) != entry["bytes"]:
                    raise UserError(f"{path} is missing or cut short. {again}.")
                listed = b"" if _file_size(index) is None else _read_bytes(index)
                if digest_bytes(listed) != entry["index"]:
                    raise UserError(f"{index} is missing, damaged or newer than {MANIFEST}. {again}.")
                for clip_id, num_samples, codes, samples in parse_json(listed, index)["clips"]:
                    clips[clip_id] = path, PreparedClip(clip_id, num_samples, Record(*codes), Record(*samples))
            return cls(f"{flag} {folder}", manifest["dvae"], clips)
        except (KeyError, TypeError) as error:
            raise UserError(f"{flag} {folder}: its {MANIFEST} is damaged ({error!s:.80}). {again}.") from None

    def adopt(self, clips: Sequence, of: str = "--train-data", also: PreparedClips | None = None) -> PreparedClips:
        """Takes these `Clip`s, of what messages call `of`, as what was prepared, by id and length, wherever their
        recordings are today, and those that another has adopted. Returns itself.

        Raises:
            UserError: One of them is not there, or has another length.
        """
        lengths = {clip_id: clip.num_samples for clip_id, (_, clip) in self._clips.items()}
        others = [clip for clip in clips if lengths.get(clip.id) != clip.num_samples]
        if others:
            first, found = others[0], lengths.get(others[0].id)
            why = "is not among them" if found is None else f"has {first.num_samples} samples and had {found}"
            rule = f"{self.name} must hold every clip of {of} as it is. {len(others)} differ; {first.id} {why}."
            raise UserError(f"{rule} `myxtts prepare` adds new clips; for changed ones, give it another --output.")
        self._by_path = {clip.wav_path: self._clips[clip.id] for clip in clips} | (also._by_path if also else {})
        return self

    def require_dvae(self, digest: str) -> None:
        """Raises `UserError` unless the codes were made with these weights."""
        if digest != self.dvae:
            rule = f"{self.name} holds codes of another DVAE than this run's ({self.dvae[:12]} for {digest[:12]})"
            hint = "Run `myxtts prepare --checkpoint` on this run with another --output, or leave the flag out"
            raise UserError(f"{rule}. {hint}.")

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    def read_codes(self, path: str) -> np.ndarray:
        """Codes `(C,)` int32 of an adopted recording; raises as `read_samples`."""
        shard, clip = self._by_path[path]
        return np.array(_read(shard, clip.id, clip.codes)["codes"].int64_list.value, np.int32)

    def read_samples(self, path: str) -> np.ndarray:
        """Samples `(S,)` int16 of an adopted recording.

        Raises:
            AudioError: The shard is not what it was.
            OSError: It cannot be read.
        """
        shard, clip = self._by_path[path]
        return np.frombuffer(_read(shard, clip.id, clip.samples)["samples"].bytes_list.value[0], "<i2")


def _read(shard, clip_id, record):
    """Features of a `tf.train.Example`."""
    content = _read_bytes(shard, record.offset, record.length)
    if zlib.crc32(content) != record.crc32:
        hint = "remove it and its .json, and run the same `myxtts prepare` again"
        raise AudioError(shard, "damaged", f"it is damaged: the checksum of {clip_id} does not hold; {hint}.")
    return tf.train.Example.FromString(content).features.feature


def _examples(clip_id, codes, samples):
    """Codes and samples, each as a `tf.train.Example` with the clip's id."""
    content = {
        "codes": tf.train.Feature(int64_list=tf.train.Int64List(value=codes.tolist())),
        "samples": tf.train.Feature(bytes_list=tf.train.BytesList(value=[samples.astype("<i2").tobytes()])),
    }
    name = clip_id.encode("utf-8", "surrogatepass")
    for kind, feature in content.items():
        features = {"id": tf.train.Feature(bytes_list=tf.train.BytesList(value=[name])), kind: feature}
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _file_size(path):
    """Bytes of a file, here or at an address such as `gs://bucket/file`; None where there is no plain file."""
    try:
        with _explained(path):
            found = tf.io.gfile.stat(path)
            return None if found.is_directory else found.length
    except FileNotFoundError:
        return None


def _read_bytes(path, offset=0, length=-1):
    """`length` bytes of a file from `offset` on; all there are for -1."""
    with _explained(path), tf.io.gfile.GFile(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


@contextmanager
def _explained(path) -> Iterator[None]:
    """Turns TensorFlow's errors into `OSError`s, and into `UserError` where it cannot read the kind of address."""
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "is not there", path) from error
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
    except tf.errors.UnimplementedError as error:
        hint = "Mount it as a folder (rclone mount, mountpoint-s3), or copy it here"
        raise UserError(f"{path} is on storage that this TensorFlow cannot read. {hint}.") from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message.splitlines()[0], path) from error
