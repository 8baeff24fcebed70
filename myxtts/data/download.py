"""Download of LJSpeech, the public-domain corpus of one English voice."""

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import pooch

from myxtts.config.checks import UserError, is_new_or_empty, read_toml, require
from myxtts.data.corpora import CorpusError
from myxtts.storage.files import lock, write_whole_folder

_CHUNK_BYTES = 2**18


class Archive(NamedTuple):
    """Name, URL, checksum and sizes of a `.tar.bz2` archive that contains one folder."""

    name: str
    url: str
    sha256: str
    num_bytes: int
    unpacked_bytes: int


LJSPEECH = Archive(**read_toml(__file__, "ljspeech.toml"))
"""LJSpeech 1.1: 13,102 files, 3.8 GB; the checksum is from torchaudio's `LJSPEECH`."""


def download_ljspeech(folder: str | Path, archive: Archive = LJSPEECH) -> Path:
    """Downloads LJSpeech into `folder`, unless the folder already has a `metadata.csv`, and returns the folder.

    The next call resumes an interrupted download from the `.myxtts-part` file next to `folder`. If `folder` is a mount
    point, raises `UserError`. Raises `CorpusError` if `folder` has other files, space is lacking or the download fails.
    """
    folder = Path(folder)
    if (folder / "metadata.csv").is_file():
        return folder
    require(is_new_or_empty(folder), "--train-data", "new or empty for --download-ljspeech", folder, error=CorpusError)
    part = Path(os.path.realpath(folder)).parent / f"{archive.name}.myxtts-part"
    if part.is_symlink():
        raise CorpusError(f"{part} is a symbolic link. Remove it.")
    try:
        # Files are not synced, which would take a minute for 13,102 files.
        with write_whole_folder(folder, sync=False) as new, open(part, "ab") as file:
            try:
                lock(file.fileno())
            except BlockingIOError:
                raise CorpusError(f"{part}: another process is downloading it. Wait until it has finished.") from None
            _fetch(archive, file, part)
            # Read as a stream, because seeking backwards in a bz2 file decompresses it from the start.
            with tempfile.TemporaryDirectory(dir=new) as work, tarfile.open(part, "r|bz2") as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 of Debian lacks it
                tar.extractall(work)
                (corpus,) = Path(work).iterdir()
                for entry in corpus.iterdir():
                    shutil.move(entry, new)
            if folder.exists():
                (folder / ".DS_Store").unlink(missing_ok=True)
                folder.resolve().rmdir()  # fails if the folder is no longer empty
        part.unlink()
    except UserError:
        raise  # the archive is kept: it may be another process's
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        if not isinstance(error, OSError) or part.is_file() and not part.stat().st_size:
            part.unlink(missing_ok=True)  # the file is empty or is not the archive
        kept = f" The partial download is kept in {part}." * part.exists()
        raise CorpusError(f"Download of {archive.url}: {error}.{kept} Retry, or unpack it in {folder}.") from error
    return folder


def _fetch(archive, file, part):
    """Downloads `archive`, or the rest of it, to the open `file` with the path `part`. Verifies size and checksum."""
    start = file.tell()
    needed = max(0, archive.num_bytes - start) + archive.unpacked_bytes
    if (free := shutil.disk_usage(part.parent).free) < needed:
        raise OSError(f"{part.parent} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed")

    def begin(response, **_):
        if response.status_code == 200:  # the server ignores the range and sends the whole file
            file.truncate(0)

    if start < archive.num_bytes:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        settings = dict(timeout=60, headers=headers, hooks={"response": begin}, chunk_size=_CHUNK_BYTES)
        pooch.HTTPDownloader(progressbar=sys.stdout.isatty(), **settings)(archive.url, file, None)
    file.flush()
    if (size := part.stat().st_size) < archive.num_bytes:
        raise OSError(f"the connection broke after {size} of {archive.num_bytes} bytes")
    if pooch.file_hash(part) != archive.sha256:
        raise ValueError("the file is damaged: its SHA-256 is not that of the archive")
