"""Recognizers by name, downloaded from a small hub on the loopback interface."""

import importlib.machinery
import importlib.util
import sys

import huggingface_hub
import pytest
from small_hub import SmallHub
from test_hub import files_asked_for, use_hub

from myxtts.__main__ import main
from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import open_recognizer, settle_recognizer

NAME = "Systran/faster-whisper-base"
FILES = {"model.bin": b"weights", "config.json": b"{}", "tokenizer.json": b"[]", "vocabulary.txt": b"a"}
DOORS = {
    "make-dataset": ["make-dataset", "talk.wav", "--output", "set"],
    "evaluate": ["evaluate", "runs/mine"],
    "say": ["say", "--checkpoint", "base", "--text", "Good morning."],
    "train": ["train", "--evaluate-every", "10"],
}


class WhisperModel:
    """Replaces faster-whisper's model; records the arguments of its constructor."""

    def __init__(self, folder, **options):
        self.folder, self.options = folder, options


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with Whisper base, for a user with faster-whisper and an empty cache."""
    package = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("faster_whisper", None))
    package.WhisperModel, package.get_cuda_device_count = WhisperModel, lambda: 0
    for name in ("faster_whisper", "ctranslate2"):
        monkeypatch.setitem(sys.modules, name, package)
    with SmallHub() as small:
        small.repositories[NAME] = FILES | {"README.md": b"---\nlicense: mit\n---\n", "a.wav": b"no part of it"}
        use_hub(monkeypatch, small.url, tmp_path / "hf")
        yield small


def test_recognizer_is_downloaded_once_and_opens_offline_by_each_of_its_names(server, tmp_path, monkeypatch, capsys):
    opened = open_recognizer("base")._model
    assert opened.options["local_files_only"] and opened.folder.startswith(str(tmp_path / "hf/hub"))
    assert sorted(filter(None, files_asked_for(server))) == sorted(["README.md", *FILES])
    assert f"hf://{NAME} has the licence mit" in capsys.readouterr().err
    server.requests.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ("base", "whisper-base", f"hf://{NAME}", opened.folder):
        assert open_recognizer(name, thorough=True)._model.folder == opened.folder
    assert not server.requests


@pytest.mark.parametrize("door", DOORS)
def test_every_command_names_repository_files_and_folder_without_a_network(server, door, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").touch()
    assert main([*DOORS[door], "--recognizer", "base"]) == 2
    error, by_hand = capsys.readouterr().err, tmp_path / "hf/myxtts/Systran--faster-whisper-base"
    assert all(part in error for part in (f"hf://{NAME}", "model.bin, config.json", str(by_hand)))
    by_hand.mkdir(parents=True)
    for name, content in FILES.items():
        (by_hand / name).write_bytes(content)
    assert open_recognizer("base")._model.folder == str(by_hand)


def test_damaged_or_foreign_model_is_refused_and_a_damaged_one_downloaded_again(server, monkeypatch):
    server.altered["model.bin"] = b"weighty"
    with pytest.raises(UserError, match="model.bin of .*wrong checksum"):
        settle_recognizer("base")
    server.altered.clear()
    assert open_recognizer("base")._model
    server.repositories["openai/whisper-base"] = {"README.md": b"", "model.safetensors": b"", "config.json": b"{}"}
    with pytest.raises(UserError, match="openai/whisper-base has no model.bin, tokenizer.json"):
        settle_recognizer("hf://openai/whisper-base")
    assert "model.safetensors" not in files_asked_for(server)
    with pytest.raises(UserError, match="cannot be transferred|was not found"):
        settle_recognizer("hf://nobody/whisper")


@pytest.mark.parametrize("asked", ["whisper", "gigantic", "echo", "no-such-folder/whisper-base"])
def test_unknown_recognizer_is_an_error_that_lists_the_known_ones(asked):
    with pytest.raises(UserError, match=f"tiny, base, .*hf://owner/name.*{{wav}}.*Received: {asked}"):
        settle_recognizer(asked)
