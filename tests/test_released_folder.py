"""The folder of a released model is taken wherever a model is named."""

import pytest
from released_model import write_release

from myxtts.__main__ import main
from myxtts.interchange.hub.fetching import folder_here, local_folder


@pytest.fixture
def release(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_release(tmp_path / "XTTS-v2")
    return tmp_path / "XTTS-v2"


def test_it_is_converted_once_and_again_when_a_file_changes(release, tmp_path, capsys):
    folder = local_folder(release)
    assert (folder / "gpt").is_dir() and "converting" in capsys.readouterr().err
    assert local_folder(release / "model.pth") == folder_here(release) == folder and not capsys.readouterr().err
    (release / "config.json").write_text((release / "config.json").read_text() + " ")
    again = local_folder(release)
    assert again != folder and [*(tmp_path / "cache" / "myxtts").iterdir()] == [again]


def test_commands_open_it(release, tmp_path, capsys):
    assert main(["say", "--checkpoint", str(release), "--list-speakers"]) == 0
    limits = ["--max-text-length", "12", "--max-seconds", "1"]
    assert main(["plan", "--init-from", str(release), *limits]) == 0


def test_what_is_no_release_stays_as_it_is(tmp_path):
    assert local_folder(tmp_path) == tmp_path and folder_here(tmp_path) is None
    assert main(["say", "--checkpoint", str(tmp_path / "none.pth"), "--text", "a"]) == 2


def test_release_without_its_vocabulary_is_refused(release, capsys):
    (release / "vocab.json").unlink()
    assert main(["say", "--checkpoint", str(release), "--text", "a", "--speaker", "b"]) == 2
    assert "vocab.json" in capsys.readouterr().err
