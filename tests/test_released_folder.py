"""Commands accept the folder of a released model."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from released_model import MINIMAL, write_release

import myxtts
from myxtts.__main__ import main
from myxtts.apps.evaluation.command import subjects
from myxtts.config.checks import UserError
from myxtts.interchange.coqui.conversion import _IN_USE
from myxtts.interchange.hub import local_folder
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import temporary_path


@pytest.fixture
def release(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_release(tmp_path / "XTTS-v2")
    return tmp_path / "XTTS-v2"


def test_it_is_converted_once_and_again_when_a_file_changes(release, tmp_path, capsys):
    with ThreadPoolExecutor() as pool:
        folder, *others = pool.map(local_folder, [release] * 3)
    assert {*others} == {folder} and (folder / "gpt").is_dir() and capsys.readouterr().err.count("converting") == 1
    assert local_folder(release / "model.pth") == folder and not capsys.readouterr().err
    store, copy = CheckpointStore(folder / "dvae"), CheckpointStore(tmp_path / "copy")
    copy.write(0, {"model": dict(store.open(0))}, {})
    assert copy.digest(0) == store.digest(0)
    os.utime(release / "config.json", (0, 0))
    temporary_path(folder).mkdir()  # as if the first conversion had been killed
    again, cache = local_folder(release), tmp_path / "cache/myxtts"
    assert again != folder and {*cache.glob("*XTTS*")} == {folder, again}, "a process uses the first one"
    os.close(_IN_USE[folder])  # as if that process had ended
    os.utime(release / "config.json", (1, 1))
    assert {again, local_folder(release)} == {*cache.glob("*XTTS*")}
    assert local_folder(release.rename(tmp_path / os.fsdecode(b"caf\xe9" + 241 * b"e"))).is_dir()


def test_commands_and_python_open_it(release, tiny_corpus, tmp_path):
    assert main(["say", "--checkpoint", str(release), "--list-speakers"]) == 0
    assert main(["plan", "--init-from", str(release), "--max-text-length", "12", "--max-seconds", "1"]) == 0
    assert [(one.name, one.is_model) for one in subjects([str(release)], "best")] == [("XTTS-v2", True)]
    assert (loaded := myxtts.load(release)).config.model.width == MINIMAL.width
    with pytest.raises(UserError, match=r"one of the speakers \(Ana Ruiz, Bo/Li\)"):
        loaded.speak("the fox")
    with pytest.raises(UserError, match="XTTS-v2 is a released model: --init-from"):
        myxtts.train(checkpoint_dir=release)
    with pytest.raises(UserError, match="--model-size big"):
        myxtts.train(model_size="big", init_from=str(release), train_data=tiny_corpus, checkpoint_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_release_without_its_vocabulary_is_refused(release, capsys):
    (release / "vocab.json").unlink()
    assert main(["say", "--checkpoint", str(release), "--text", "a", "--speaker", "b"]) == 2
    assert "vocab.json" in capsys.readouterr().err
