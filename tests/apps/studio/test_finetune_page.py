"""docs/finetune.md and the README's section on it: every command runs as written, on a hub with a minimal release."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import test_pages
import yaml
from released_model import write_release
from small_hub import SmallHub
from test_convert_export import RELEASED_SHAPE
from test_hub import use_hub
from tiny import recorded, untraced

from myxtts.__main__ import main
from myxtts.config.config import find_recipe
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.text.tokenizer import XTTSTokenizer

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

ROOT = Path(__file__).resolve().parents[3]


def commands(page):
    """The commands of a page, as lists of arguments."""
    return [shlex.split(line) for line in test_pages.commands(ROOT / page) if line.startswith("myxtts ")]


@pytest.fixture
def home(tiny_corpus, tmp_path, monkeypatch):
    """A folder with the files that the page assumes: recordings, a voice, a release, and a recipe for a tiny model."""
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "recordings", tiny_corpus, ("سلام،", "حال شما", "چطور", "است؟"))
    (tmp_path / "voice.wav").write_bytes((tiny_corpus / "wavs/low_six.wav").read_bytes())
    known = XTTSTokenizer.from_file(write_release(tmp_path / "XTTS-v2") / "vocab.json").num_tokens
    release = write_release(tmp_path / "XTTS-v2", replace(RELEASED_SHAPE, num_text_tokens=known))
    recipe = yaml.safe_load(find_recipe("finetune_xtts_v2.yaml").read_text())
    recipe["data"] |= {"max_text_length": 12, "max_seconds": 1.2, "num_workers": 1, "num_buckets": 1}
    recipe["training"] |= {"max_validation_batches": 1, "num_samples": 1, "sample_every_steps": 0}
    (tmp_path / "finetune_xtts_v2.yaml").write_text(json.dumps(recipe))
    adapters = find_recipe("finetune_xtts_v2_lora.yaml").read_text()
    (tmp_path / "finetune_xtts_v2_lora.yaml").write_text(adapters)  # which includes the one above
    small = yaml.safe_load(find_recipe("finetune_base.yaml").read_text())
    small["training"] |= {stage: {"max_steps": 1, "batch_size": 2} for stage in ("dvae", "gpt", "decoder")}
    small["training"] |= {"max_validation_batches": 1, "num_samples": 1, "sample_every_steps": 0}
    (tmp_path / "finetune_base.yaml").write_text(json.dumps(small))
    with SmallHub() as server:
        server.add("coqui/XTTS-v2", release)
        use_hub(monkeypatch, server.url, tmp_path / "hf")
        yield server


def test_every_command_of_the_page_runs(home, tmp_path, capsys):
    said = {}
    for command in commands("docs/finetune.md"):
        few = ["--max-steps", "1"] if command[1] == "train" else []
        with untraced():
            assert main(command[1:] + few) == 0, (command, capsys.readouterr().err)
        said[command[1], command[3]] = capsys.readouterr().out
    assert "Ana Ruiz" in said["say", "hf://coqui/XTTS-v2"] and "Wrote hello.wav" in said["say", "runs/persian"]
    for stage in ("persian/gpt", "persian_lora/gpt", "mine/dvae", "mine/gpt", "mine/decoder"):
        assert CheckpointStore(tmp_path / "runs" / stage).steps() == [0, 1], stage
    assert (tmp_path / "hello.wav").is_file() and (tmp_path / "for_coqui/model.pth").is_file()
    assert "base_model: coqui/XTTS-v2" in home.repositories["emma/persian-voice"]["README.md"].decode()


def test_translation_and_readme_show_the_same_commands():
    page, readme = commands("docs/finetune.md"), commands("README.md")
    assert commands("docs/finetune.fa.md") == page
    without = lambda command: [one for one in command if one != "--accept-licence"]
    assert without(page[3]) in readme and page[6] in readme
    flags = {word for command in readme for word in command if word.startswith("--")}
    assert flags <= {word for command in page for word in command} | {"--quick", "--voices", "--format", "--weights"}
