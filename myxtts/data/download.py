"""Fetches LJSpeech, the public-domain corpus of one English voice, into a folder of the user's choice."""

import shutil
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from tqdm import tqdm

from myxtts.data.corpora import CorpusError
from myxtts.storage.files import write_whole_folder

LJSPEECH_URL = "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2"
UNPACKED_BYTES_LIMIT = 8 * 2**30
"""LJSpeech unpacks to 3.6 GB; an archive that claims more is not LJSpeech."""
UNPACKED_FILES_LIMIT = 50_000
"""LJSpeech has 13,103."""


def download_ljspeech(folder: str | Path, url: str = LJSPEECH_URL) -> Path:
    """Makes `folder` hold LJSpeech's `metadata.csv` and `wavs/`, unless it has a metadata.csv already; returns it.

    The archive at `url`, one folder with the corpus in it, is unpacked next to `folder` and moved there whole, so a
    broken download leaves no half corpus.

    Raises:
        CorpusError: The folder holds something else, or the download or the disk failed.
    """
    folder = Path(folder)
    if (folder / "metadata.csv").is_file():
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        rule = f"--download-ljspeech needs a new or empty folder. {folder} holds something else."
        raise CorpusError(f"{rule} Name another --train-data.")
    try:
        # Not synced: that would take a minute for LJSpeech's 13,103 files.
        with write_whole_folder(folder, sync=False) as new:
            with tempfile.TemporaryDirectory(dir=new) as work:
                _fetch(url, Path(work, "archive"))
                _unpack(Path(work, "archive"), Path(work, "unpacked"))
                (corpus,) = Path(work, "unpacked").iterdir()
                for entry in corpus.iterdir():
                    shutil.move(entry, new)
            if folder.exists():
                # Fails where something was put there in the meantime, which is then kept.
                folder.resolve().rmdir()
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        way_out = f"Try again, or download it and unpack it into {folder}."
        raise CorpusError(f"LJSpeech could not be fetched from {url}: {error}. {way_out}") from error
    return folder


def _fetch(url, path):
    with urllib.request.urlopen(url, timeout=60) as response, open(path, "wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        hidden = not sys.stdout.isatty()
        with tqdm.wrapattr(file, "write", total or None, desc="LJSpeech", disable=hidden) as shown:
            shutil.copyfileobj(response, shown)
    if total and path.stat().st_size != total:
        raise ValueError(f"the connection broke after {path.stat().st_size} of {total} bytes")


def _unpack(archive, folder):
    with tarfile.open(archive) as tar:
        size = 0
        for number, member in enumerate(tar, 1):
            size += member.size
            if size > UNPACKED_BYTES_LIMIT:
                raise ValueError(f"the archive unpacks to more than {UNPACKED_BYTES_LIMIT} bytes")
            if number > UNPACKED_FILES_LIMIT:
                raise ValueError(f"the archive holds more than {UNPACKED_FILES_LIMIT} files")
        tar.extractall(folder, filter="data")
