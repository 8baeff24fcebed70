"""Fetching LJSpeech: a foreign archive cannot write elsewhere, expand without end, or stay half done."""

import io
import tarfile

import pytest

from myxtts.data import download
from myxtts.data.corpora import CorpusError
from myxtts.data.download import download_ljspeech


def archive(path, members):
    """Writes a `.tar.bz2` of `{name: content}`; returns its URL. A tuple is a link and its target."""
    with tarfile.open(path, "w:bz2") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                entry.type, entry.linkname = tarfile.SYMTYPE, content[0]
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path.as_uri()


def test_corpus_is_unpacked_into_the_folder_and_kept(tmp_path):
    url = archive(tmp_path / "a.tar.bz2", {"LJSpeech-1.1/metadata.csv": b"a|b|b\n", "LJSpeech-1.1/wavs/a.wav": b"x"})
    folder = tmp_path / "data"
    for _ in range(2):
        assert download_ljspeech(folder, url) == folder
    assert (folder / "wavs" / "a.wav").read_bytes() == b"x"
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.bz2", "data"}


@pytest.mark.parametrize(
    "members, message",
    [
        ({"LJ/metadata.csv": b"a", "../outside": b"x"}, "outside"),
        ({"LJ/metadata.csv": b"a", "LJ/link": ("/etc",)}, "link"),
        ({"LJ/metadata.csv": b"\0" * 300_000}, "unpacks to more than"),
        ({f"LJ/{number}": b"" for number in range(30)}, "more than 20 files"),
    ],
)
def test_hostile_archive_is_refused_and_leaves_nothing(tmp_path, monkeypatch, members, message):
    monkeypatch.setattr(download, "UNPACKED_BYTES_LIMIT", 200_000)
    monkeypatch.setattr(download, "UNPACKED_FILES_LIMIT", 20)
    url = archive(tmp_path / "a.tar.bz2", members)
    with pytest.raises(CorpusError, match=message):
        download_ljspeech(tmp_path / "data", url)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.bz2"}


def test_archive_cut_short_leaves_nothing(tmp_path):
    url = archive(tmp_path / "a.tar.bz2", {"LJ/metadata.csv": bytes(range(256)) * 400})
    (tmp_path / "a.tar.bz2").write_bytes((tmp_path / "a.tar.bz2").read_bytes()[:-40])
    with pytest.raises(CorpusError, match="could not be fetched"):
        download_ljspeech(tmp_path / "data", url)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.bz2"}


def test_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("x")
    with pytest.raises(CorpusError, match="holds something else"):
        download_ljspeech(tmp_path / "data", "file:///nowhere")
    assert (tmp_path / "data" / "mine.txt").read_text() == "x"


def test_file_put_there_during_the_download_is_kept(tmp_path, monkeypatch):
    url = archive(tmp_path / "a.tar.bz2", {"LJ/metadata.csv": b"a|b|b\n"})
    (tmp_path / "data").mkdir()
    unpack = download._unpack
    monkeypatch.setattr(
        download, "_unpack", lambda *pair: unpack(*pair) or (tmp_path / "data" / "mine").write_text("x")
    )
    with pytest.raises(CorpusError, match="not empty"):
        download_ljspeech(tmp_path / "data", url)
    assert {path.name for path in tmp_path.rglob("*")} == {"a.tar.bz2", "data", "mine"}


def test_link_to_an_empty_folder_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    url = archive(tmp_path / "a.tar.bz2", {"LJ/metadata.csv": b"a|b|b\n", "LJ/wavs/a.wav": b"x"})
    download_ljspeech(tmp_path / "data", url)
    assert (tmp_path / "data").is_symlink() and (tmp_path / "disk" / "wavs" / "a.wav").read_bytes() == b"x"


@pytest.mark.parametrize("members", [{"LJ/metadata.csv": b"a", "other": b"b"}, {"LJ": b"a"}, {}])
def test_archive_must_be_one_folder(tmp_path, members):
    url = archive(tmp_path / "a.tar.bz2", members)
    with pytest.raises(CorpusError, match="could not be fetched"):
        download_ljspeech(tmp_path / "data", url)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.bz2"}
