"""Models are downloaded from and uploaded to a small hub on the loopback interface."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_helpers import sentence_of
from released_model import assert_same_weights, convert, write_release
from small_hub import SmallHub
from tiny import tiny_run_config

from myxtts.cli import models, say
from myxtts.inference import loading
from myxtts.interchange import hub
from myxtts.interchange.hub import HubError, local_folder, push, without_places
from myxtts.models.xtts import XTTS
from myxtts.runs.origin import adopt

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
pytest.importorskip("huggingface_hub.hf_api")

CARD = """---
license: other
license_name: coqui-public-model-license
license_link: https://coqui.ai/cpml
---
# XTTS
"""
NAME = "hf://coqui/XTTS-v2"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A released model with card and licence; tests must not change it."""
    folder = write_release(tmp_path_factory.mktemp("release") / "xtts")
    (folder / "README.md").write_text(CARD)
    (folder / "LICENSE.txt").write_text("Non-commercial use only.")
    (folder / "samples").mkdir()
    (folder / "samples/en.wav").write_bytes(b"no part of the model")
    return folder


@pytest.fixture
def server(release, tmp_path, monkeypatch):
    """A hub with the release, for a user with an empty cache."""
    with SmallHub() as small:
        small.add("coqui/XTTS-v2", release)
        use_hub(monkeypatch, small.url, tmp_path / "hf")
        yield small


def use_hub(monkeypatch, url, home):
    """Sets the values that the library reads from `HF_ENDPOINT`, `HF_HOME` and others when it is imported."""
    constants = {"ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_DISABLE_XET": True}
    constants["HUGGINGFACE_CO_URL_TEMPLATE"] = url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in constants.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", url)
    monkeypatch.setattr(hub, "_FOUND", {})


def files_asked_for(server):
    return [path.partition("/resolve/")[2].partition("/")[2] for way, path, _ in server.requests if way == "GET"]


def test_release_is_fetched_and_converted_and_kept_for_days_without_a_network(server, release, tmp_path, monkeypatch):
    home = local_folder(NAME, accept_licence=True)
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "by_hand") == 0
    assert_same_weights(home, tmp_path / "by_hand")
    assert home.is_relative_to(tmp_path / "hf") and home.name == server.commit("coqui/XTTS-v2")
    assert "samples/en.wav" not in files_asked_for(server)
    monkeypatch.setattr(hub, "_FOUND", {})
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert local_folder(NAME) == home  # and its licence is not asked for again
    monkeypatch.setattr(hub, "_FOUND", {})
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "elsewhere/hub"))
    with pytest.raises(HubError, match="not complete under .*elsewhere.*without HF_HUB_OFFLINE"):
        local_folder(NAME)


def test_environment_names_hub_and_cache(server, tmp_path):
    code = f"from myxtts.interchange.hub import *; import_hub().errors; print(local_folder({NAME!r}, True))"
    environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "own"), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "own")
    assert "coqui-public-model-license (https://coqui.ai/cpml)" in done.stderr and "LICENSE.txt" in done.stderr


def test_licence_or_the_lack_of_one_is_asked_about_before_the_model_is_fetched(server, monkeypatch):
    with pytest.raises(HubError, match="licence coqui-public.*LICENSE.txt.*--accept-licence .accept_licence=True"):
        local_folder(NAME)
    for file in ("README.md", "LICENSE.txt"):
        del server.repositories["coqui/XTTS-v2"][file]
        with pytest.raises(HubError, match="names no licence.*--accept-licence"):
            local_folder(NAME)
    monkeypatch.setattr(hub, "ask_on_terminal", lambda question: False)
    with pytest.raises(HubError, match="not accepted, .* not downloaded"):
        local_folder(NAME)
    assert "model.pth" not in files_asked_for(server)
    monkeypatch.setattr(hub, "ask_on_terminal", lambda question: True)
    assert local_folder(NAME).is_dir()


def test_broken_download_is_resumed(server, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 2**16)
    size = len(server.repositories["coqui/XTTS-v2"]["model.pth"])
    server.cut_after["model.pth"] = size // 2
    assert local_folder(NAME, accept_licence=True).is_dir()
    ranges = [headers.get("Range") for way, path, headers in server.requests if path.endswith("model.pth")]
    assert any(one and 0 < int(one[6:-1]) <= size // 2 for one in ranges)


def test_changed_file_is_refused_and_downloaded_again(server):
    content = server.repositories["coqui/XTTS-v2"]["model.pth"]
    server.altered["model.pth"] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(HubError, match="model.pth of hf://coqui/XTTS-v2 has a wrong checksum"):
        local_folder(NAME, accept_licence=True)
    server.altered.clear()
    assert local_folder(NAME, accept_licence=True).is_dir()


@pytest.mark.parametrize(
    "source, words",
    [
        ("hf://coqui", "must be hf://owner/name"),
        ("hf://coqui/../x", "must be hf://owner/name"),
        ("hf://coqui/none", "was not found.*hf auth login"),
        ("hf://coqui/XTTS-v2@v9", "has no such revision"),
        ("hf://emma/pictures", "neither a model of XTTS v2"),
        ("hf://emma/gated", "needs approval.*/emma/gated, then run `hf auth login`"),
    ],
)
def test_unavailable_model_is_an_error_message(server, source, words):
    server.repositories["emma/pictures"] = {"config.json": b"{}", "README.md": CARD.encode(), "cat.png": b""}
    server.repositories["emma/gated"] = {"README.md": b""}
    server.gated.add("emma/gated")
    with pytest.raises(HubError, match=words):
        local_folder(source, accept_licence=True)


def test_commands_accept_a_name_of_the_hub(server, capsys, tmp_path):
    assert "--accept-licence" in sentence_of(capsys, say.main, "--checkpoint", NAME, "--list-speakers")
    assert say.main(["--checkpoint", f"{NAME}@v2", "--accept-licence", "--list-speakers"]) == 0
    assert capsys.readouterr().out == "Ana Ruiz\nBo/Li\n"
    training = {"init_from": NAME, "accept_licence": True}
    limits = {"max_text_length": 12, "max_seconds": 1.2}
    adopted = adopt(tiny_run_config(None, tmp_path / "run", data=limits, training=training))
    assert adopted.model.width == 16 and adopted.training.init_from == NAME
    assert Path(adopted.data.vocabulary).is_file()


def test_model_is_pushed_with_its_card_and_comes_back(server, tmp_path, capsys, monkeypatch):
    model = XTTS.from_preset(NAME, accept_licence=True)
    folder, limits = Path(model.origin), {"max_text_length": 9, "max_seconds": 1.0}
    model.preset = model.preset[0], tiny_run_config(data=limits)  # of another shape
    server.repositories["emma/voice"] = {"gpt/step_00000009/manifest.json": b"of an earlier model", "mine.txt": b""}
    monkeypatch.setattr(loading, "load_model", lambda *given: model if given == (folder, "best") else None)
    monkeypatch.setattr(hub.tempfile, "tempdir", str(tmp_path))
    (tmp_path / ".push.0123456789ab.myxtts.tmp").mkdir()  # of a killed process
    assert models.push([str(folder), "hf://emma/voice", "--licence", "cc-by-4.0"]) == 0
    assert f"Wrote {server.url}/emma/voice" in capsys.readouterr().out
    there = server.repositories["emma/voice"]
    assert not [*tmp_path.glob(".push*")]
    assert "mine.txt" in there and "gpt/step_00000009/manifest.json" not in there
    assert b"license: cc-by-4.0" in there["README.md"] and b"hf://emma/voice" in there["README.md"]
    assert str(tmp_path).encode() not in b"".join(there.values()) and b'"speaker_width": 6' in there["config.json"]
    back = local_folder("hf://emma/voice", accept_licence=True)
    assert not any(path.is_symlink() for path in back.rglob("*")) and (back / "speakers.safetensors").is_file()
    assert_same_weights(back, folder)
    assert say.main(["--checkpoint", "hf://emma/voice", "--list-speakers"]) == 0
    for base, published in {NAME: NAME, "base": "base", "/home/emma/own": "unpublished"}.items():
        training = dict(init_from=base, evaluation_recognizer="/home/emma/asr {wav}", workers=("emma:80", "two:80"))
        kept = without_places(tiny_run_config("/home/emma/data", tmp_path / "run", training=training))
        assert kept.training.init_from == published and "emma" not in str(kept.to_dict())
    with pytest.raises(HubError, match="must be hf://owner/name"):
        push(None, "emma/voice")


def test_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r'pip install "myxtts\[hub\]"'):
        local_folder(NAME)
