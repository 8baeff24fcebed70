"""Prepared clips: audio samples and DVAE codes, computed once and stored in shards with checksums, for random access.

A shard is a TFRecord file and a JSON index. The index is written last, so a shard with an index is complete. The
manifest is written when all shards are complete. A clip has two `tf.train.Example`s, which are read separately: one has
`id` and `codes`, to train on the clip; the other has `id` and `samples` (16-bit little-endian PCM at 22 050 Hz), to use
the clip for conditioning. A clip's shard depends only on the id, so several processes can write shards in any order.
"""

import errno
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError
from myxtts.config.checks import UserError
from myxtts.storage.files import digest_bytes, parse_json, read_json, remove_leftovers, write_json, write_whole

FORMAT = 3
MANIFEST = "manifest.json"
MAX_SHARDS = 99_999
MAX_SHARD_CLIPS = 200_000
"""Maximum number of clips per shard: a shard is written as a whole, so an interruption loses the shard in progress."""
DIGITS = 12  # number of hexadecimal digits of a clip's digest that an index stores
_RECORD_HEADER_BYTES, _RECORD_FOOTER_BYTES = 12, 4  # TFRecord header: length and its checksum; footer: data checksum
_AGAIN = "Run the same `myxtts prepare` again"
_SAME_LENGTHS = f"{_AGAIN}, with the --min-seconds and --max-seconds of this training."


class Record(NamedTuple):
    """Position of a `tf.train.Example` in a shard: offset and length in bytes, and the CRC32 of these bytes."""

    offset: int
    length: int
    crc32: int


class PreparedClip(NamedTuple):
    """Clip in a shard. `shard` is the shard's path or address. `audio` is a shortened digest of the clip's samples."""

    shard: str
    id: str
    audio: str
    codes: Record
    samples: Record

    def read_codes(self) -> np.ndarray:
        """Returns the codes `(C,)` int32. Raises the same exceptions as `read_samples`."""
        return np.array(self._read("codes", self.codes).int64_list.value, np.int32)

    def read_samples(self) -> np.ndarray:
        """Returns the samples `(S,)` int16. Raises `AudioError` for damaged data, and `OSError` if reading fails."""
        return np.frombuffer(self._read("samples", self.samples).bytes_list.value[0], "<i2")

    def _read(self, kind, record):
        content = _read_bytes(self.shard, record.offset, record.length)
        if zlib.crc32(content) != record.crc32:
            raise AudioError(self.shard, "damaged", f"it is damaged (checksum of {self.id}). Remove it. {_AGAIN}.")
        return tf.train.Example.FromString(content).features.feature[kind]


def shard_name(number: int, shards: int) -> str:
    """Returns a shard's file name without suffix. `number` counts from 0; `shards` is the total number of shards."""
    return f"shard-{number:05d}-of-{shards:05d}"


def write_shard(
    folder: Path,
    number: int,
    shards: int,
    dvae: str,
    clips: Iterable[tuple[str, np.ndarray, np.ndarray]],
    left_out: Sequence[tuple[str, str]],
    audio: Mapping[str, str],
) -> int:
    """Writes one shard atomically, and returns its number of clips.

    Args:
        dvae: Digest of the DVAE weights that computed the codes.
        clips: `(id, codes, samples)` of each clip, with codes `(C,)` int32 and samples `(S,)` int16.
        left_out: `(id, reason)` of each clip that cannot be used.
        audio: `{id: fingerprint}` of all clips. If a fingerprint changes, the shard is outdated. A fingerprint is the
            digest of the audio file; for clips in `left_out`, text, language and duration limits are appended to it.
    """
    name = shard_name(number, shards)
    remove_leftovers(folder, f"{name}.*")
    path = folder / f"{name}.tfrecord"
    index, offset = [], 0
    with write_whole(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for clip_id, codes, samples in clips:
            pcm, records = samples.astype("<i2").tobytes(), []
            for example in _examples(clip_id, codes, pcm):
                with _os_errors(path):
                    writer.write(example)
                records.append(Record(offset + _RECORD_HEADER_BYTES, len(example), zlib.crc32(example)))
                offset += _RECORD_HEADER_BYTES + len(example) + _RECORD_FOOTER_BYTES
            index.append((clip_id, digest_bytes(pcm)[:DIGITS], *records))
        with _os_errors(path):
            writer.close()  # before `write_whole` syncs the file
    header = {"format": FORMAT, "dvae": dvae, "shard": number, "shards": shards, "bytes": offset}
    write_json(folder / f"{name}.json", header | {"clips": index, "left_out": left_out, "audio": audio})
    return len(index)


def _examples(clip_id, codes, pcm):
    """Returns two serialized `tf.train.Example`s of a clip: one with its codes, and one with its samples `pcm`."""
    clip_id = tf.train.Feature(bytes_list=tf.train.BytesList(value=[clip_id.encode("utf-8", "surrogatepass")]))
    codes = tf.train.Feature(int64_list=tf.train.Int64List(value=codes.tolist()))
    samples = tf.train.Feature(bytes_list=tf.train.BytesList(value=[pcm]))
    parts = {"id": clip_id, "codes": codes}, {"id": clip_id, "samples": samples}
    examples = [tf.train.Example(features=tf.train.Features(feature=part)) for part in parts]
    return [example.SerializeToString(deterministic=True) for example in examples]


def read_index(folder: Path, number: int, shards: int, dvae: str) -> dict[str, Any] | None:
    """Returns the content of a shard's index file, or None if the shard is incomplete.
    Raises `UserError` if the DVAE digest in the index is not `dvae`, or the format is not `FORMAT`."""
    stem = folder / shard_name(number, shards)
    try:
        index = parse_json(_read_bytes(f"{stem}.json"), f"{stem}.json")  # `read_json` would refuse that of many clips
    except (UserError, FileNotFoundError):  # damaged or missing
        return None
    if (index.get("format"), index.get("dvae")) != (FORMAT, dvae):
        raise UserError(f"{stem} is from another DVAE or version of MyXTTS. Remove it, or give another --output.")
    return index if _file_size(f"{stem}.tfrecord") == index["bytes"] else None


def refuse_other_count(folder: Path, shards: int) -> None:
    """Raises `UserError` if the folder has files of a data set that was divided into another number of `shards`."""
    if found := {int(path.stem.rpartition("-")[2]) for path in folder.glob("shard-*-of-*.json")} - {shards}:
        raise UserError(f"--shards must be {max(found)}, as in {folder}. Received: {shards}. Or give another --output.")


def merge(folder: Path, shards: int, dvae: str) -> list[int]:
    """Returns the numbers (from 0) of missing or incomplete shards. If all shards are complete, writes the manifest."""
    indexes = [read_index(folder, number, shards, dvae) for number in range(shards)]
    if missing := [number for number, index in enumerate(indexes) if index is None]:
        return missing
    entries = []
    for number, index in enumerate(indexes):
        name = shard_name(number, shards)
        digest = digest_bytes((folder / f"{name}.json").read_bytes())
        entries.append({"name": name, "index": digest, "bytes": index["bytes"], "clips": len(index["clips"])})
    manifest = {"format": FORMAT, "dvae": dvae, "clips": sum(entry["clips"] for entry in entries), "shards": entries}
    with suppress(UserError):  # missing or damaged
        if read_json(folder / MANIFEST) == manifest:
            return []
    write_json(folder / MANIFEST, manifest)
    return []


class PreparedClips:
    """All prepared clips in a folder of shards. `name` denotes the folder in messages. `dvae` is the digest of the DVAE
    weights that computed the codes. `clips` is `{id: clip}`."""

    def __init__(self, name: str, dvae: str, clips: dict[str, PreparedClip]):
        self.name, self.dvae, self._clips = name, dvae, clips

    @classmethod
    def open(cls, folder: str | Path, flag: str = "--prepared") -> Self:
        """Opens a folder or an address such as `gs://bucket/folder`: reads manifest and indexes, and checks file sizes.
        Raises `UserError` if a file is missing, damaged or incomplete. The message names the option `flag`."""
        home, clips = str(folder).rstrip("/"), {}
        if _file_size(f"{home}/{MANIFEST}") is None:
            raise UserError(f"{flag} {folder} has no {MANIFEST}, so it is not complete. {_AGAIN}.")
        manifest = parse_json(_read_bytes(f"{home}/{MANIFEST}"), f"{home}/{MANIFEST}")
        try:
            if manifest["format"] != FORMAT:
                raise KeyError("format")
            for entry in manifest["shards"]:
                path, index = (f"{home}/{entry['name']}.{suffix}" for suffix in ("tfrecord", "json"))
                listed = b"" if _file_size(index) is None else _read_bytes(index)
                if _file_size(path) != entry["bytes"] or digest_bytes(listed) != entry["index"]:
                    raise UserError(f"{path} or its .json is missing or cut short, or not as in {MANIFEST}. {_AGAIN}.")
                for clip_id, audio, codes, samples in parse_json(listed, index)["clips"]:
                    clips[clip_id] = PreparedClip(path, clip_id, audio, Record(*codes), Record(*samples))
            return cls(f"{flag} {folder}", manifest["dvae"], clips)
        except (KeyError, TypeError) as error:
            raise UserError(f"{flag} {folder}: {MANIFEST} is damaged or outdated ({error!s:.80}). {_AGAIN}.") from None

    def by_path(self, clips: Sequence, of: str = "--train-data") -> dict[str, PreparedClip]:
        """Finds `clips` by id. Returns `{path of the recording: prepared clip}`. Raises `UserError` if a clip is not
        prepared or its audio has changed. The message names the command-line option in `of`."""
        found = {}
        for clip in clips:
            prepared = self._clips.get(clip.id)
            if prepared is None or prepared.audio != clip.audio[:DIGITS]:
                fault = "was changed" if prepared else "is missing"
                raise UserError(f"{self.name} must contain {of} unchanged: {clip.id} {fault}. {_SAME_LENGTHS}")
            found[clip.wav_path] = prepared
        return found

    def require_dvae(self, digest: str) -> None:
        """Raises `UserError` unless the codes were computed with the DVAE weights that have this digest."""
        if digest != self.dvae:
            raise UserError(f"{self.name} has codes of another DVAE. Leave it out, or prepare the clips for this run.")


def _file_size(path):
    """Returns a file's size in bytes; None if it does not exist. `path` can be an address like `gs://bucket/file`."""
    try:
        with _os_errors(path):
            found = tf.io.gfile.stat(path)
            return None if found.is_directory else found.length
    except FileNotFoundError:
        return None


def _read_bytes(path, offset=0, length=-1):
    with _os_errors(path), tf.io.gfile.GFile(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


@contextmanager
def _os_errors(path) -> Iterator[None]:
    """Context manager: turns TensorFlow errors for `path` into `OSError`, or `UserError` if storage is unsupported."""
    try:
        yield
    except tf.errors.UnimplementedError as error:
        raise UserError(f"{path} is on storage that TensorFlow cannot read. Mount or copy it (rclone).") from error
    except tf.errors.OpError as error:
        numbers = {tf.errors.NOT_FOUND: errno.ENOENT, tf.errors.RESOURCE_EXHAUSTED: errno.ENOSPC}
        raise OSError(numbers.get(error.error_code, errno.EIO), error.message.partition("\n")[0], str(path)) from error
