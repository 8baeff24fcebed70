"""Fetches LJSpeech, the public-domain corpus of one English voice, into a folder of the user's choice."""

import os
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
_DAMAGED = (OSError, EOFError, ValueError, tarfile.TarError)


def download_ljspeech(folder, url=LJSPEECH_URL):
    """Makes `folder` hold LJSpeech, unless it holds a metadata.csv already.

    The archive is unpacked beside the folder and moved there whole, so a broken download leaves no half corpus.

    Args:
        folder: Where `metadata.csv` and `wavs/` are to be.
        url: Of the archive, one folder with the corpus in it.

    Returns:
        The folder.

    Raises:
        CorpusError: The folder holds something else, or the download or the disk failed.
    """
    folder = Path(folder)
    if (folder / "metadata.csv").is_file():
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CorpusError(
            f"--download-ljspeech needs an empty or new folder. {folder} holds something else. "
            "Name another --train-data."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Not synced: that would take a minute for LJSpeech's 13,103 files.
        with (
            tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work,
            write_whole_folder(folder, sync=False) as new,
        ):
            archive, unpacked = Path(work, "archive.tar.bz2"), Path(work, "unpacked")
            _fetch(url, archive)
            _unpack(archive, unpacked)
            (corpus,) = unpacked.iterdir()
            os.replace(corpus, new)
    except _DAMAGED as error:
        raise CorpusError(
            f"LJSpeech could not be fetched from {url}: {error}. Try again, or download and unpack it by "
            f"hand into {folder}."
        ) from error
    return folder


def _fetch(url, path):
    with urllib.request.urlopen(url, timeout=60) as response, open(path, "wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        with tqdm(
            total=total or None, unit="B", unit_scale=True, desc="LJSpeech", disable=not sys.stdout.isatty()
        ) as bar:
            while block := response.read(1 << 20):
                file.write(block)
                bar.update(len(block))
    if total and path.stat().st_size != total:
        raise ValueError(f"the connection broke after {path.stat().st_size} of {total} bytes")


def _unpack(archive, folder):
    with tarfile.open(archive) as tar:
        members, size = [], 0
        for member in tar:
            size += member.size
            if size > UNPACKED_BYTES_LIMIT:
                raise ValueError(f"the archive unpacks to more than {UNPACKED_BYTES_LIMIT} bytes")
            members.append(member)
            if len(members) > UNPACKED_FILES_LIMIT:
                raise ValueError(f"the archive holds more than {UNPACKED_FILES_LIMIT} files")
        tar.extractall(folder, members, filter="data")
