"""A resumed run equals an uninterrupted one bit for bit: losses, weights and optimizer."""

import contextlib
import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from logical_devices import on_logical_devices, plan_of
from test_trainer import Recorder, frozen_dvae, open_run
from tiny import untraced, with_training

from myxtts.training.resuming import data_digest
from myxtts.training.trainer import XTTSTrainer

STEPS = 2


@on_logical_devices
def train(corpus, folder, mode, accumulation, traced, stop=None):
    """Trains to the end or to a stop. Returns losses by step, checksums of the last checkpoint, and the position."""
    import keras
    import tensorflow as tf

    data, training = {"model_start_delay": 0.0}, {"gradient_accumulation": accumulation, "validate_every_steps": 1}
    dataset, plan = open_run(corpus, folder, gpt={"max_steps": STEPS}, data=data, training=training), plan_of(mode)
    keras.utils.set_random_seed(3)
    with tf.device(plan.data_device):
        dvae_model = frozen_dvae(dataset.config)
    trainer = XTTSTrainer(dataset.config, foundations={"dvae": dvae_model}, plan=plan)
    recorder = Recorder(trainer, stop)
    with contextlib.redirect_stdout(None), contextlib.nullcontext() if traced else untraced():
        trainer.train(dataset, [recorder])
    digests = [trainer.store.digest(trainer.store.steps()[-1], name) for name in ("model", "optimizer")]
    return recorder.losses, digests, trainer.state.position


def test_killed_and_resumed_run_equals_an_uninterrupted_one(tiny_corpus, tmp_path):
    losses, *end = train(tiny_corpus, tmp_path / "whole", "dual", 1, True)
    assert len(losses) == STEPS and end[1] == STEPS
    shutil.copytree(tmp_path / "whole/gpt", tmp_path / "killed/gpt")
    shutil.rmtree(tmp_path / f"killed/gpt/step_{STEPS:08d}")
    rest, *resumed_end = train(tiny_corpus, tmp_path / "killed", "dual", 1, True)
    assert rest == {STEPS: losses[STEPS]} and resumed_end == end


def test_stopped_and_resumed_run_equals_an_uninterrupted_one(tiny_corpus, tmp_path):
    losses, *end = train(tiny_corpus, tmp_path / "whole", "single", 2, False)
    assert len(losses) == STEPS and end[1] == 2 * STEPS
    first, *_ = train(tiny_corpus, tmp_path / "stopped", "single", 2, False, stop=1)
    rest, *resumed_end = train(tiny_corpus, tmp_path / "stopped", "single", 2, False)
    assert first | rest == losses and resumed_end == end


@pytest.fixture(scope="module")
def stopped(tiny_corpus, tmp_path_factory):
    """A run of a GPT that was stopped at step 2 of 4."""
    folder, training = tmp_path_factory.mktemp("stopped"), {"checkpoint_every_steps": 100, "validate_every_steps": 100}
    dataset = open_run(tiny_corpus, folder, gpt={"max_steps": 4}, training=training)
    trainer = XTTSTrainer(dataset.config, foundations={"dvae": frozen_dvae(dataset.config)})
    with untraced():
        trainer.train(dataset, [Recorder(trainer, 2)])
    return dataset, trainer


def resumed(stopped, folder, **training):
    """Returns a trainer that resumes a copy of the stopped run with some settings changed."""
    dataset, trainer = stopped
    shutil.copytree(trainer.store.folder, Path(folder) / "gpt")
    config = with_training(dataset.config, checkpoint_dir=str(folder), **training)
    return XTTSTrainer(config, foundations=trainer.stage.foundations)


def test_stop_writes_a_checkpoint_that_is_not_finished(stopped):
    _, trainer = stopped
    state = trainer.store.read_state(2)
    assert trainer.store.steps() == [2] and not state["finished"] and state["position"] == 2
    assert state["config"]["training"]["seed"] == 7
    assert sorted(state["versions"]) == ["keras", "myxtts", "tensorflow", "threads"]


def test_position_survives_a_change_of_accumulation_which_is_reported(stopped, tmp_path, caplog):
    caplog.set_level("INFO")
    trainer = resumed(stopped, tmp_path, gradient_accumulation=4, stage="gpt")
    assert trainer.config.training.stage == trainer.stage.config.training.stage == "all", "phases depend on it"
    assert (trainer.step, trainer.state.position) == (2, 2)
    assert "training.gradient_accumulation 1 -> 4" in caplog.text and "checkpoint_dir" not in caplog.text


def test_changed_training_set_is_reported_and_clips_are_reported_apart_by_their_ids(stopped, tmp_path, caplog):
    dataset, _ = stopped
    trainer = resumed(stopped, tmp_path)
    trainer.state.take_up(dataset, "gpt")
    assert "since the checkpoint" not in caplog.text
    denoised = dataclasses.replace(dataset.train[0], audio="0" * 32)
    assert data_digest([denoised, *dataset.train[1:]]) != data_digest(dataset.train)
    fewer, trainer.state.best = dataclasses.replace(dataset, train=dataset.train[1:]), (1.0, 1)
    trainer.state.take_up(fewer, "gpt")
    assert "0 clips are new, and 1 are gone" in caplog.text and trainer.state.best
    trainer.state.take_up(dataclasses.replace(fewer, validation=dataset.train[:1]), "gpt")
    assert "The validation clips changed" in caplog.text and trainer.state.best is None


def test_checkpoint_of_the_gpt_has_vocabulary_and_speech_rates(stopped):
    dataset, trainer = stopped
    assert trainer.store.file(2, "vocab.json").read_text(encoding="utf-8") == dataset.tokenizer.to_json()
    assert trainer.store.file(2, "speech_rates.json").read_bytes() == dataset.what_speaking_needs()["speech_rates.json"]


def test_resumed_run_keeps_the_attention_that_was_measured(stopped, tmp_path, monkeypatch):
    assert stopped[1].store.read_state(2)["switches"]["attention"] == "standard"
    other = "memory-efficient", "it was measured"
    monkeypatch.setattr("myxtts.training.loop.switches.choose_attention", lambda *_: other)
    trainer = resumed(stopped, tmp_path, attention="auto")
    assert trainer.switches.attention == "standard" and "checkpoint" in trainer.switches.reasons["attention"]
    config = with_training(trainer.config, checkpoint_dir=str(tmp_path / "new"))
    assert XTTSTrainer(config, foundations=trainer.stage.foundations).switches.attention == "memory-efficient"


def test_run_with_more_steps_than_requested_counts_as_finished(stopped, tmp_path):
    dataset, _ = stopped
    trainer = resumed(stopped, tmp_path, gpt=dataclasses.replace(dataset.config.training.gpt, max_steps=2))
    trainer.train(dataset)
    assert trainer.step == 2 and trainer.store.read_state(2)["finished"]


def test_snapshot_does_not_change_while_training_continues(stopped):
    _, trainer = stopped
    tensors, state = trainer.checkpointer.snapshot()
    before = {name: array.copy() for name, array in tensors["model"].items()}
    variables = trainer.model.part_weights("gpt")
    kept = {name: variable.numpy() for name, variable in variables.items()}
    for variable in variables.values():
        variable.assign_add(np.ones(variable.shape, np.float32))
    trainer.state.history.append({"step": 99})
    for name, array in tensors["model"].items():
        np.testing.assert_array_equal(array, before[name])
    assert state["history"] == []
    trainer.state.history.pop()
    for name, variable in variables.items():
        variable.assign(kept[name])
