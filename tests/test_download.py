"""Download of LJSpeech: an untrusted archive cannot write outside its folder or be unpacked in part."""

import fcntl
import hashlib
import io
import re
import shutil
import tarfile
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from test_files import names
from tiny import full_disk

from myxtts.config.checks import UserError
from myxtts.data import download
from myxtts.data.download import Archive, download_ljspeech

PART = "a.tar.bz2.myxtts-part"
CORPUS = {"LJSpeech-1.1/metadata.csv": b"a|b|b\n", "LJSpeech-1.1/wavs/a.wav": bytes(range(256)) * 40}


class Server(ThreadingHTTPServer):
    """Server of `content` on the loopback interface; `cut` breaks one connection after that many bytes."""

    content, cut, ranges, status, asked = b"", None, True, None, ()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked = (*server.asked, asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0
        content = server.content[start:]
        status = server.status or (416 if start >= len(server.content) else 206 if start else 200)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut, server.cut = server.cut, None
        self.wfile.write(content[:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def tarred(members, mode="w:bz2"):
    """A `.tar.bz2`, or an archive of another `mode`, of `{name: content}`. A tuple is a link and its target."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as tar:
        for name, value in members.items():
            entry = tarfile.TarInfo(name)
            if isinstance(value, tuple):
                entry.type, entry.linkname = tarfile.SYMTYPE, value[0]
                tar.addfile(entry)
            else:
                entry.size = len(value)
                tar.addfile(entry, io.BytesIO(value))
    return content.getvalue()


def archive(server, content):
    """Sets the content of the server; returns its `Archive`."""
    server.content = content
    url = f"http://127.0.0.1:{server.server_port}/a.tar.bz2"
    return Archive("a.tar.bz2", url, hashlib.sha256(content).hexdigest(), len(content), 200_000)


@pytest.fixture
def known(server):
    """The `Archive` of a server that has `CORPUS`."""
    return archive(server, tarred(CORPUS))


def refused(folder, known, words):
    with pytest.raises(UserError, match=words):
        download_ljspeech(folder, known)


def test_corpus_is_unpacked_into_the_folder_and_reused(tmp_path, server, known):
    folder = tmp_path / "data"
    for _ in range(2):
        assert download_ljspeech(folder, known) == folder
    assert (folder / "wavs" / "a.wav").read_bytes() == CORPUS["LJSpeech-1.1/wavs/a.wav"]
    assert names(tmp_path) == {"data"} and server.asked == (None,)


@pytest.mark.parametrize("cut", [64, 100, -1])
@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_download_is_resumed(tmp_path, server, known, monkeypatch, cut, ranges):
    monkeypatch.setattr(download, "_CHUNK_BYTES", 32)  # the incomplete last chunk is lost
    server.cut, server.ranges = cut, ranges
    refused(tmp_path / "data", known, "partial download")
    assert names(tmp_path) == {PART}
    had = (tmp_path / PART).stat().st_size
    assert (tmp_path / PART).read_bytes() == server.content[:had] and 0 < had < len(server.content)
    download_ljspeech(tmp_path / "data", known)
    assert server.asked == (None, f"bytes={had}-")
    assert names(tmp_path) == {"data"} and names(tmp_path / "data") == {"metadata.csv", "wavs"}


def test_archive_or_partial_download_with_another_checksum_is_deleted(tmp_path, server, known):
    (tmp_path / PART).write_bytes(b"x" * 50)
    refused(tmp_path / "data", known, "SHA-256")
    assert names(tmp_path) == set()
    server.content = bytes(known.num_bytes)
    refused(tmp_path / "data", known, "its SHA-256")
    assert names(tmp_path) == set()


def test_error_of_the_server_keeps_the_partial_download(tmp_path, server, known):
    server.status = 503
    refused(tmp_path / "data", known, "503")
    assert names(tmp_path) == set()
    (tmp_path / PART).write_bytes(server.content[:50])
    refused(tmp_path / "data", known, "503")
    assert (tmp_path / PART).read_bytes() == server.content[:50]


def test_disk_space_is_checked_first(tmp_path, server, known, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(200_000))
    refused(tmp_path / "data", known, "0.0 GB free, but 0.0 GB are needed")
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path == tmp_path / "data")
    refused(tmp_path / "data", known, f"^{tmp_path}/data is a mount point")
    assert server.asked == () and names(tmp_path) == set()


def test_simultaneous_downloads_exclude_each_other_and_a_link_is_not_followed(tmp_path, server, known):
    with open(tmp_path / PART, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(tmp_path / "data", known, "another process is downloading it")
        file.write(b"1234")
    (tmp_path / PART).rename(tmp_path / "mine")
    (tmp_path / PART).symlink_to(tmp_path / "mine")
    refused(tmp_path / "data", known, "symbolic link")
    assert (tmp_path / "mine").read_bytes() == b"1234" and server.asked == ()


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="needs Python 3.11.4")
def test_archive_with_parent_paths_writes_nothing_outside(tmp_path, server):
    refused(tmp_path / "data", archive(server, tarred({"LJ/metadata.csv": b"a", "../outside": b"x"})), "outside")
    assert names(tmp_path) == set()


def test_full_disk_keeps_the_archive(tmp_path, server, known, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left.*is kept in"):
        patch.setattr(tarfile.TarFile, "extractall", full_disk)
        download_ljspeech(tmp_path / "data", known)
    assert names(tmp_path) == {PART}
    download_ljspeech(tmp_path / "data", known)
    assert server.asked == (None,) and names(tmp_path) == {"data"}


def test_file_put_there_during_the_download_is_kept(tmp_path, known, monkeypatch):
    (tmp_path / "data").mkdir()
    move = shutil.move
    put = lambda: (tmp_path / "data" / "mine").write_text("x")
    monkeypatch.setattr(download.shutil, "move", lambda *given: (move(*given), put()))
    refused(tmp_path / "data", known, "not empty")
    assert {path.name for path in tmp_path.rglob("*")} == {"data", "mine", PART}


def test_link_to_an_empty_folder_is_followed(tmp_path, known):
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    download_ljspeech(tmp_path / "data", known)
    assert (tmp_path / "data").is_symlink() and (tmp_path / "disk" / "wavs" / "a.wav").is_file()
