"""Fetches LJSpeech, the public-domain corpus of one English voice, into a folder of the user's choice."""

import bz2
import math
import os
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pooch
from tqdm import tqdm

from myxtts.config.checks import brief
from myxtts.data.corpora import CorpusError
from myxtts.storage.files import write_whole_folder
from myxtts.storage.locks import lock

_OPENED = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""To be read and appended to, but not through a link; not every system has the last two."""

MAX_HEADER_BYTES = 2**20
"""Of the headers of one file in an archive: tar's extended ones are read into memory, whatever size they claim."""
_CHUNK_BYTES = 2**18
_TIMEOUT_SECONDS = 60


class Archive(NamedTuple):
    """A `.tar.bz2` with one folder in it, and all that is known of it before it is fetched."""

    name: str
    url: str
    sha256: str
    num_bytes: int
    max_unpacked_bytes: int
    max_entries: int
    """Files and folders in it."""


LJSPEECH = Archive(
    "LJSpeech-1.1.tar.bz2",
    "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2",
    "be1a30453f28eb8dd26af4101ae40cbf2c50413b1bb21936cbcdc6fae3de8aa5",
    2_748_572_632,
    4 * 10**9,
    15_000,
)
"""The checksum is the one that torchaudio's `LJSPEECH` has; 13,102 files of 3.8 GB."""


def download_ljspeech(folder: str | Path, archive: Archive = LJSPEECH) -> Path:
    """Makes `folder` hold LJSpeech's `metadata.csv` and `wavs/`, unless it has a metadata.csv already; returns it.

    The archive is kept next to `folder` as `NAME.myxtts-part` until it is whole, has its checksum and is unpacked, so
    that the next call goes on where one was cut off. It is unpacked next to `folder` and moved there whole.

    Raises:
        CorpusError: The folder holds something else, there is too little room, or the download failed.
    """
    folder = Path(folder)
    if (folder / "metadata.csv").is_file():
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        rule = f"--download-ljspeech needs a new or empty folder. {folder} holds something else."
        raise CorpusError(f"{rule} Name another --train-data.")
    place = Path(os.path.realpath(folder)).parent
    part = place / f"{archive.name}.myxtts-part"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _only_user_of(part) as file:
            try:
                _fetch(archive, file, part)
                _unpack(archive, file, folder)
            except (EOFError, ValueError, tarfile.TarError):
                part.unlink()  # nothing can be made of it
                raise
            part.unlink()
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        kept = f" What has arrived is kept in {part}." if part.exists() else ""
        way_out = f"Run the same command again, or download it and unpack it into {folder}."
        raise CorpusError(f"LJSpeech could not be fetched from {archive.url}: {error}.{kept} {way_out}") from error
    return folder


@contextmanager
def _only_user_of(part: Path) -> Iterator[BinaryIO]:
    """Opens a file to be read and appended to, made if need be, and keeps other processes from doing the same."""
    with open(os.open(part, _OPENED, 0o666), "r+b") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{part} is not a regular file; remove it")
        try:
            lock(file.fileno())
        except BlockingIOError:
            raise OSError("another process is fetching it; wait for that one") from None
        if not os.fstat(file.fileno()).st_nlink:
            raise OSError("another process has just fetched it")
        try:
            yield file
        finally:
            if not file.seek(0, os.SEEK_END):
                part.unlink(missing_ok=True)


def _fetch(archive, file, part):
    """Appends to `file` what it lacks of the archive, and compares the whole with its checksum."""
    start = file.seek(0, os.SEEK_END)
    needed = max(0, archive.num_bytes - start) + archive.max_unpacked_bytes
    if (free := shutil.disk_usage(part.parent).free) < needed:
        raise OSError(f"{part.parent} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")
    if start < archive.num_bytes:
        _Receiver(archive, file, start).receive()
    if (size := file.seek(0, os.SEEK_END)) < archive.num_bytes:
        raise OSError(f"the connection broke after {size} of {archive.num_bytes} bytes")
    if size > archive.num_bytes or pooch.file_hash(part) != archive.sha256:
        raise ValueError("what came is another file: its SHA-256 is not that of the archive")


class _Receiver:
    """Appends what a server sends to a file that has the first `start` bytes, and not a byte more than there can be."""

    def __init__(self, archive, file, start):
        self._archive, self._file, self._start = archive, file, start

    def receive(self):
        headers = {"Accept-Encoding": "identity"}
        if self._start:
            headers["Range"] = f"bytes={self._start}-"
        settings = dict(timeout=_TIMEOUT_SECONDS, headers=headers, hooks={"response": self._begin})
        shown = dict(desc=self._archive.name, unit="B", unit_scale=True, disable=not sys.stdout.isatty())
        with tqdm(total=self._archive.num_bytes, initial=self._start, **shown) as self._bar:
            pooch.HTTPDownloader(chunk_size=_CHUNK_BYTES, **settings)(self._archive.url, self, None)

    def _begin(self, response, **_):
        """Looks at the status and headers of an answer before its content."""
        if response.status_code == 416:
            raise ValueError("the server has less than what is here already")
        if response.status_code == 200 and self._start:  # a server that sends all, whatever it is asked for
            self._file.truncate(self._file.seek(0))
            self._start = self._bar.n = 0
        begins = f"bytes {self._start}-"
        if response.status_code == 206 and not response.headers.get("Content-Range", "").startswith(begins):
            raise ValueError(f"the server sends another part than the one from byte {self._start}")

    def write(self, chunk):
        if self._file.tell() + len(chunk) > self._archive.num_bytes:
            raise ValueError(f"the server sends more than the {self._archive.num_bytes} bytes that the archive has")
        self._file.write(chunk)
        self._bar.update(len(chunk))

    def flush(self):
        self._file.flush()


class _Headers:
    """The unpacked bytes of an archive as tarfile reads them, while `room` lasts: set anew before each header."""

    def __init__(self, file):
        self._file, self.room = file, MAX_HEADER_BYTES
        self.seek, self.tell = file.seek, file.tell

    def read(self, num_bytes=-1):
        self.room -= num_bytes if num_bytes >= 0 else math.inf
        if not self.room >= 0:
            raise ValueError(f"the archive has a header of more than {MAX_HEADER_BYTES} bytes")
        return self._file.read(num_bytes)


def _unpack(archive, file, folder):
    file.seek(0)
    # Not synced: that would take a minute for LJSpeech's 13,102 files.
    with write_whole_folder(folder, sync=False) as new:
        with tempfile.TemporaryDirectory(dir=new) as work:
            with bz2.open(file) as content:
                _extract(archive, _Headers(content), work)
            entries = list(Path(work).iterdir())
            if len(entries) != 1 or not entries[0].is_dir():
                raise ValueError("the archive is not one folder with a corpus in it")
            for entry in entries[0].iterdir():
                shutil.move(entry, new)
        if folder.exists():
            # Fails where something was put there in the meantime, which is then kept.
            folder.resolve().rmdir()


def _extract(archive, content, folder):
    """Extracts files and folders one by one, in their order: going back in a bz2 means to unpack it anew."""
    size = count = 0
    with tarfile.open(fileobj=content, mode="r:") as tar:
        while True:
            content.room = MAX_HEADER_BYTES
            if (member := tar.next()) is None:
                return
            count, size = count + 1, size + member.size
            if not (member.isfile() or member.isdir()) or member.size < 0:
                raise ValueError(f"the archive holds {brief(member.name)}, which is a link or no file at all")
            if count > archive.max_entries:
                raise ValueError(f"the archive holds more than {archive.max_entries} files")
            if size > archive.max_unpacked_bytes:
                raise ValueError(f"the archive unpacks to more than {archive.max_unpacked_bytes} bytes")
            content.room = math.inf
            tar.extract(member, folder, filter="data")
            tar.members.clear()  # nobody asks for them again
