"""Atomic writes of files and folders, preserved links and devices, and digests of contents."""

import csv
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading

import pytest
from tiny import full_disk

from myxtts.storage import files
from myxtts.storage.files import (
    CheckpointError,
    csv_text,
    digest_bytes,
    digest_file,
    new_hasher,
    read_json,
    remove_leftovers,
    write_json,
    write_text,
    write_whole,
    write_whole_folder,
)


def test_no_cell_of_a_csv_is_a_formula_or_controls_a_terminal():
    given = ["=1+1", "-3.5", "-a", "\x1b[2J", " @a", "+44 1", 7, None, "a,b", "\t=1"]
    (cells,) = csv.reader(csv_text([given]).splitlines())
    assert cells == ["'=1+1", "-3.5", "'-a", "\\x1b[2J", "' @a", "'+44 1", "7", "", "a,b", "'\\t=1"]


def names(folder):
    return {entry.name for entry in folder.iterdir()}


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("failing", ["block", "interrupt", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path, monkeypatch, failing, before):
    path = tmp_path / "a.txt"
    if before is not None:
        path.write_text(before)
    if failing in ("fsync", "replace"):
        monkeypatch.setattr(os, failing, full_disk)
    with pytest.raises(KeyboardInterrupt if failing == "interrupt" else OSError), write_whole(path) as temporary:
        temporary.write_text("half")
        if failing in ("block", "interrupt"):
            raise KeyboardInterrupt if failing == "interrupt" else OSError
    assert (path.read_text() if path.exists() else None) == before
    assert names(tmp_path) == (set() if before is None else {"a.txt"})


def test_only_the_writers_own_temporary_file_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 12)
    mine = files.temporary_path(tmp_path / "a.txt")
    mine.write_text("mine")
    with pytest.raises(FileExistsError), write_whole(tmp_path / "a.txt"):
        pass
    assert mine.read_text() == "mine" and names(tmp_path) == {mine.name}


def test_two_writers_of_one_file_do_not_interfere_and_it_appears_when_their_blocks_end(tmp_path):
    (path := tmp_path / "a.txt").write_text("old")
    with write_whole(path) as first, write_whole(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert path.read_text() == "old" and first.parent == second.parent == tmp_path
    assert path.read_text() == "first" and names(tmp_path) == {"a.txt"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path, exists):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere/a.txt")
    if exists:
        (tmp_path / "elsewhere" / "a.txt").write_text("old")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere" / "a.txt").read_text() == "new"
    assert names(tmp_path) == {"elsewhere", "link"} and names(tmp_path / "elsewhere") == {"a.txt"}


def test_a_device_is_written_through_and_stays_a_device(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    for path in ("/dev/null", tmp_path / "link"):
        write_json(path, {"a": 1})
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("fails", [False, True])
def test_a_named_pipe_gets_all_of_the_content_or_none_and_stays_a_pipe(tmp_path, fails):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    if fails:
        with pytest.raises(ZeroDivisionError), write_whole(pipe) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError
        os.close(os.open(pipe, os.O_WRONLY))
    else:
        write_text(pipe, "text" * 50_000)
    reader.join(30)
    assert received == [b"" if fails else b"text" * 50_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == {"pipe"}


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"), write_whole(tmp_path / "folder"):
        pytest.fail("the block ran")
    assert names(tmp_path) == {"folder"} and names(tmp_path / "folder") == set()
    with pytest.raises(files.UserError, match="mount point"), write_whole_folder("/"):
        pytest.fail("the block ran")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_replacement_of_a_private_file_is_private_while_it_is_written(tmp_path, mode):
    path = tmp_path / "private"
    path.touch(mode)
    with write_whole(path) as temporary:
        assert not stat.S_IMODE(temporary.stat().st_mode) & ~(mode | 0o600)
        temporary.write_text("text")
    assert path.read_text() == "text" and stat.S_IMODE(path.stat().st_mode) == mode


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    path = tmp_path / ("ж" * 127)
    write_text(path, "text")
    assert path.read_text() == "text"


def test_missing_or_damaged_json_is_one_error_message(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(json.dumps({"a": 1})[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("sync", [True, False])
def test_a_folder_replaces_an_earlier_one_completely(tmp_path, sync):
    for content in ("old", "new"):
        with write_whole_folder(tmp_path / "above" / "folder", sync) as new:
            (new / "inner").mkdir()
            (new / "inner" / content).write_text("")
            assert (tmp_path / "above" / "folder").exists() == (content == "new")
        assert names(tmp_path / "above") == {"folder"}
        assert names(tmp_path / "above" / "folder" / "inner") == {content}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("failing", ["block", "fsync", "first replace", "second replace"])
def test_a_failed_folder_leaves_the_old_one_and_no_other(tmp_path, monkeypatch, failing, before):
    path = tmp_path / "folder"
    if before:
        path.mkdir()
        (path / "old").write_text("")
    replace, calls = os.replace, []

    def replace_or_fail(source, target):
        calls.append(target)
        if len(calls) == (2 if failing.startswith("second") and before else 1):
            full_disk()
        replace(source, target)

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    elif failing != "block":
        monkeypatch.setattr(os, "replace", replace_or_fail)
    with pytest.raises(OSError, match=f"No space.*{path.name}"), write_whole_folder(path) as new:
        (new / "new").write_text("")
        if failing == "block":
            full_disk()
    assert names(tmp_path) == ({"folder"} if before else set())
    assert not before or names(path) == {"old"}


def test_temporary_files_of_others_and_link_targets_are_kept(tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home / ".folder.tmp" / "inner", other):
        folder.mkdir(parents=True)
    ours = files.temporary_path(other / "a.json")
    for path in (home / ".a.json.tmp", home / ".a.0123456789ab.tmp", home / ".myxtts.tmp", home / "a.json", ours):
        path.write_text("x")
    files.temporary_path(home / "link").symlink_to(other)
    (tmp_path / "linked").symlink_to(other)
    before = sorted(tmp_path.rglob("*"))
    for folder in (home, tmp_path / "linked", tmp_path / "none"):
        remove_leftovers(folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("write", [write_whole, write_whole_folder])
def test_a_writer_removes_what_killed_writers_of_the_same_path_left_and_no_more(tmp_path, write):
    path, others = tmp_path / "[a]*", {"other", files.temporary_path(tmp_path / "b").name}
    for name in others:
        (tmp_path / name).write_text("")
    killed = f"import os, sys\nfrom myxtts.storage.files import *\nwith {write.__name__}(sys.argv[1]): os._exit(1)"
    subprocess.run([sys.executable, "-c", killed, str(path)])
    assert len(names(tmp_path) - others) == 1
    with write(path) as living:
        assert names(tmp_path) - others == {living.name}
        with write(path) as second:
            assert names(tmp_path) - others == {living.name, second.name}
    assert names(tmp_path) == others | {path.name}


def test_digests_are_blake2b_of_the_content(tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "a").write_bytes(content)
    expected = hashlib.blake2b(content, digest_size=16).hexdigest()
    hasher = new_hasher()
    hasher.update(content[:1000])
    hasher.update(content[1000:])
    assert digest_file(tmp_path / "a") == digest_bytes(content) == hasher.hexdigest() == expected
    assert digest_bytes(content, 4) == hashlib.blake2b(content, digest_size=4).hexdigest()
