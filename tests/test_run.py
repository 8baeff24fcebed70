"""A run without a command line: a front end starts, follows, stops and resumes it through `Run` alone."""

import json
import logging
import os
import re
import shutil
import sys
import threading
from dataclasses import replace

import pytest
from crash_points import crash_everywhere
from tiny import tiny_run_config

import myxtts
from myxtts.config.stages import STAGES
from myxtts.devices.configuration import plan_devices
from myxtts.runs.opening import open_run
from myxtts.runs.run import Run, RunListener
from myxtts.runs.setup import holds_run
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import write_text
from myxtts.storage.run_folder import own_run_folder
from myxtts.storage.speakers import read_speakers, write_speaker_clips
from utilities.benchmarks import workers_equal

pytestmark = pytest.mark.usefixtures("eagerly")

PLAN = plan_devices(num_gpus=0)
"""Clips of the tiny corpus that are not held out."""


@pytest.fixture(autouse=True)
def without_command_line(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("myxtts.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "myxtts.cli", None)  # importing it fails
    monkeypatch.setattr(logging.getLogger("myxtts"), "handlers", [])


class Page(RunListener):
    """A front end that records what it would show."""

    def __init__(self, config):
        self.run = Run(config, PLAN, [self])
        self.shown, self.stepped = [], threading.Event()
        self.thread = threading.Thread(target=self.run.train)

    def on_corpus(self, dataset):
        self.shown.append(len(dataset.train))

    def on_step(self, step):
        self.stepped.set()

    def on_log(self, step, losses, timing):
        self.shown.append((step, losses["loss"]))

    def on_stopped(self, stage):
        self.shown.append(f"{stage} stopped")

    def on_finished(self, dataset):
        self.shown.append("finished")


def dvae_config(corpus, folder, steps, **training):
    training = {"stage": "dvae", "log_every_steps": 1, "validate_every_steps": 1000, **training}
    return tiny_run_config(corpus, folder, data={"num_buckets": 1}, dvae={"max_steps": steps}, training=training)


def test_front_end_starts_follows_stops_and_resumes_a_run(tiny_corpus, tmp_path, capfd):
    page = Page(dvae_config(tiny_corpus, tmp_path, 1000))
    page.thread.start()
    assert page.stepped.wait(60)
    page.run.stop()
    page.thread.join(60)
    assert not page.thread.is_alive()
    (last, loss), end = page.shown[-2:]
    assert page.shown[0] == 10 and 0 < last < 1000 and loss > 0 and end == "dvae stopped"
    assert page.run.history == {"dvae": []} and page.run.best == {}

    again = Page(dvae_config(tiny_corpus, tmp_path, last + 1))
    assert again.run.train()
    assert [one[0] for one in again.shown[1:-1]] == [last + 1] and again.shown[-1] == "finished"
    assert [validation["step"] for validation in again.run.history["dvae"]] == [last + 1]
    assert again.run.best == {"dvae": last + 1}
    assert capfd.readouterr().out == ""


def test_repeated_run_speaks_the_last_sentences_that_a_stop_has_prevented(tiny_corpus, tmp_path, monkeypatch, caplog):
    config, spoken = dvae_config(tiny_corpus, tmp_path, 1, gradient_accumulation=3), []
    assert Run(config, PLAN).train() and re.search("12 clips.* 10", caplog.text)
    monkeypatch.setitem(STAGES, "dvae", replace(STAGES["dvae"], speaks=True))
    monkeypatch.setattr("myxtts.runs.samples.speak_last_words", lambda *_: spoken.append(1))
    config.training.sample_every_steps = 1
    for sentences, changed in (1, 0), (2, 2**33), (2, 0):  # not again if newer than the training
        assert Run(config, PLAN).train() and len(spoken) == sentences
        (tmp_path / "samples").mkdir(exist_ok=True)
        (tmp_path / "samples/final_1.wav").touch()
        os.utime(tmp_path / "samples/final_1.wav", (0, changed))


def test_stop_before_the_first_stage_trains_nothing(tiny_corpus, tmp_path):
    page = Page(dvae_config(tiny_corpus, tmp_path, 2))
    page.run.stop()
    assert not page.run.train()
    assert page.run.trainer is None and page.shown[-1] == "dvae stopped" and page.run.history == {}
    (tmp_path / "vocab.json").write_text("of other recordings, without a checkpoint")
    write_speaker_clips(tmp_path, {"gone": (b"", "en", ())})
    page.run.stop()
    assert not page.run.train() and (tmp_path / "vocab.json").read_text().startswith("{")
    assert [*read_speakers(tmp_path)] == ["high", "low"]


def test_stopped_reset_run_is_resumed_and_not_set_aside_again(tiny_corpus, tmp_path):
    page = Page(dvae_config(tiny_corpus, tmp_path, 2, reset_training=True))
    page.on_step = lambda step: page.run.stop() if step == 1 else None
    assert not page.run.train()
    assert page.run.train() and [one[0] for one in page.shown if isinstance(one, tuple)] == [1, 2]
    assert not list(tmp_path.glob("before_reset*"))


class Dataset:
    """Settings and vocabulary of a run after its recordings were read."""

    def __init__(self, config):
        self.config, self.tokenizer, self.train, self.speakers = config, self, (), ()

    def save(self, path):
        write_text(path, "new words")


@pytest.mark.parametrize("stage", ["all", "gpt"])
def test_reset_run_is_complete_in_one_place_after_a_crash_anywhere(folders, monkeypatch, stage):
    monkeypatch.setattr("myxtts.runs.opening.SpeechDataset.open", lambda config, *_: Dataset(config))
    before = folders()
    for part in ("dvae", "gpt"):
        CheckpointStore(before / part).write(2, {}, {"finished": True}, best=True)
    (before / "config.json").write_text("old settings")
    (before / "vocab.json").write_text("old words")
    (before / "samples").mkdir()
    (before / "samples/a.wav").write_text("old sound")
    make = lambda: shutil.copytree(before, folders() / "run")

    def act(home):
        config = dvae_config(None, home, 2, reset_training=True, stage=stage)
        with own_run_folder(home):
            return open_run(config)[0].config.training.reset_training

    def check(home, outcome):
        assert holds_run(home) or (home / "before_reset").is_dir()
        with own_run_folder(home):
            pass
        assert (home / "config.json").is_file() or not (home / "vocab.json").is_file()
        aside = home / "before_reset"
        whole = aside if (aside / "config.json").is_file() else home
        found = [(whole / name).read_text() for name in ("config.json", "vocab.json", "samples/a.wav")]
        assert found == ["old settings", "old words", "old sound"] and not list(home.glob(".before_reset*"))
        assert [CheckpointStore(whole / part).newest_sound(pytest.fail) for part in ("dvae", "gpt")] == [2, 2]
        assert [CheckpointStore(whole / part).best_step() for part in ("dvae", "gpt")] == [2, 2]
        assert CheckpointStore(home / "dvae").steps() == [2] or stage == "all"
        if outcome is False:
            assert whole == aside and (home / "vocab.json").read_text() == "new words"
            assert not CheckpointStore(home / "gpt").steps()
            assert json.loads((home / "config.json").read_text())["training"]["reset_training"] is False

    assert crash_everywhere(monkeypatch, make, act, check, lambda home: home) > 10


def test_reset_run_reports_its_backup_and_trains_from_the_first_step(tiny_corpus, tmp_path):
    assert Page(dvae_config(tiny_corpus, tmp_path, 2)).run.train()
    page, reported = Page(dvae_config(tiny_corpus, tmp_path, 1, reset_training=True)), []
    page.on_set_aside = lambda *arguments: reported.append(arguments)
    assert page.run.train() and [one[0] for one in page.shown if isinstance(one, tuple)] == [1]
    assert reported == [("dvae", tmp_path / "before_reset/dvae")]
    assert CheckpointStore(tmp_path / "before_reset/dvae").steps() == [2]
    assert {"config.json", "vocab.json"} <= {path.name for path in (tmp_path / "before_reset").iterdir()}
    assert CheckpointStore(tmp_path / "dvae").steps() == [1]


def test_log_has_each_line_from_the_devices_on_with_the_recipe_though_nothing_is_printed(
    tiny_corpus, tmp_path, capsys, devices_as_before
):
    config = dvae_config(tiny_corpus, tmp_path, 1, precision="float32")
    config.data.g2p = ("am",)
    myxtts.train(config, quiet=True)
    assert "step 1/1" not in capsys.readouterr().out
    lines = [line.partition(" INFO ")[2] for line in (tmp_path / "train.log").read_text().splitlines()]
    assert lines[0] == "Devices: single: data and model on /CPU:0" and lines.count(lines[0]) == 1
    (settings,) = [line for line in lines if line.startswith("Settings other than the defaults: ")]
    assert {"data.g2p ['am']", "training.seed 7", "training.dvae.max_steps 1"} <= set(
        settings.split(": ")[1].split(", ")
    )
    assert any(line.startswith("dvae step 1/1 | loss") and " | Host memory: " in line for line in lines)
    begun, figures = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()[:2])
    assert begun["kind"] == "start" and figures["kind"] == "training" and figures["host_mb"] > 100
    losses = workers_equal.figures(tmp_path, "dvae")["training", 1]
    assert set(losses) == {"reconstruction", "commitment", "loss", "gradient_norm"}
