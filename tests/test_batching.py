"""Batches that do not fit: splitting, backing off when memory runs out, and the automatic batch size."""

import logging
import re
import types
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from logical_devices import on_logical_devices, plan_of
from test_trainer import Recorder, dvae_trainer, open_run, trained_dvae

from myxtts.cli import train
from myxtts.config.checks import ConfigError, UserError
from myxtts.devices.device_plan import plan_devices
from myxtts.training.loop import batching
from myxtts.training.loop.batching import Batching, fit_batch_size
from myxtts.training.loop.device_pipeline import Replicas

pytestmark = pytest.mark.usefixtures("eagerly")

SETTINGS = dict(dvae={"max_steps": 4, "crop_seconds": 0.4}, training={"validate_every_steps": 4})


def exhausted(*_):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9,9]\nmore")


def out_of_memory_above(monkeypatch, step, clips):
    """Lets a train step run out of memory like a GPU, after its gradients, for batches of more than `clips`."""

    def failing(function, place):
        return lambda *given: exhausted() if len(given[place].index) > clips else function(*given)

    monkeypatch.setattr(step, "_whole", failing(step._whole, 0))
    monkeypatch.setattr(step, "_accumulate", failing(step._accumulate, 1))


@pytest.fixture(scope="module")
def unbroken(tiny_corpus, tmp_path_factory):
    """Losses and weights of a run with enough memory."""
    _, trainer, recorder = trained_dvae(tiny_corpus, tmp_path_factory.mktemp("enough"), **SETTINGS)
    return recorder.losses, {name: v.numpy() for name, v in trainer.train_step.trainable.items()}


def test_run_backs_off_when_memory_runs_out_and_loses_nothing(tiny_corpus, tmp_path, monkeypatch, caplog, unbroken):
    losses = {}
    for stop_after in (3, None):
        dataset = open_run(tiny_corpus, tmp_path, **SETTINGS)
        trainer = dvae_trainer(dataset)
        recorder = Recorder(trainer, stop_after)
        callbacks = [recorder]
        if stop_after:
            after_one = lambda step, *_: step == 1 and out_of_memory_above(monkeypatch, trainer.train_step, 2)
            callbacks.append(types.SimpleNamespace(on_log=after_one))
        else:
            assert trainer.batching.parts == 2
        with caplog.at_level(logging.WARNING, "myxtts"):
            trainer.train(dataset, callbacks)
        losses.update(recorder.losses)
    said = [line for line in caplog.messages if "Memory ran out" in line]
    assert len(said) == 1
    assert re.search("step 2 .* 4 clips .* 2 at once, in 2 parts", said[0])
    assert "OOM when allocating tensor with shape[9,9]" in said[0] and "more" not in said[0].split("[9,9]")[1]
    for step, expected in unbroken[0].items():
        for name in ("loss", "reconstruction", "commitment", "gradient_norm"):
            assert losses[step][name] == pytest.approx(expected[name], rel=1e-4), (step, name)
    for name, variable in trainer.train_step.trainable.items():
        np.testing.assert_allclose(variable.numpy(), unbroken[1][name], atol=1e-4, err_msg=name)


class Stub:
    """A train step that can fail; records its inputs."""

    def __init__(self, fails, whole=True):
        self.fails, self.whole, self.taken = fails, whole, []

    def __call__(self, batches, learning_rate, seed):
        if max(len(batch) for (batch,) in batches) > self.fails:
            exhausted()
        self.taken = [batch.numpy().tolist() for (batch,) in batches]
        return "losses"

    def forget_partial_step(self):
        return self.whole


class Rows(NamedTuple):
    """A batch of one field."""

    rows: object


def batching_of(train_step):
    """Returns a `Batching` for batches of six on one device."""
    return Batching(train_step, Replicas(plan_devices(num_gpus=0)), 6, 1)


def test_batch_is_split_further_until_it_fits_and_stays_split():
    step = Stub(fails=2)
    batching = batching_of(step)
    assert batching.take_step([Rows(tf.range(6)), Rows(tf.range(6, 12))], 0.1, (0, 0)) == "losses"
    assert step.taken == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert (batching.parts, batching.clips) == (3, 2)
    more = Batching(step, types.SimpleNamespace(count=2), 6, 1)  # the run continues on two devices
    more.restore({"batch_size": 6, "parts": 2, "accumulation": 1})
    assert more.parts == 3


@pytest.mark.parametrize(
    "stub, words",
    [
        (Stub(fails=0), "One clip at a time .* /CPU:0.*--model-size"),
        (Stub(fails=0, whole=False), "step 8 .*--batch-size 3 --grad-accum 2"),
    ],
)
def test_out_of_memory_without_a_remedy_is_one_error_message(stub, words):
    with pytest.raises(ConfigError, match=words):
        batching_of(stub).take_step([Rows(tf.range(6))], 0.1, (0, 7))


def run_state(trainer):
    """Returns everything that training changes, as arrays."""
    step = trainer.train_step
    named = {**trainer.model.part_weights("dvae"), **step.state_variables, **step.accumulators()}
    return {name: v.numpy().copy() for name, v in named.items()}


def test_automatic_batch_size_fits_and_trials_leave_no_trace(tiny_corpus, tmp_path, monkeypatch, caplog):
    settings = {**SETTINGS, "training": {**SETTINGS["training"], "automatic_batch_size": True}}
    dataset = open_run(tiny_corpus, tmp_path, **settings)
    trainer = dvae_trainer(dataset)
    before, tried, call = run_state(trainer), [], type(trainer.train_step).__call__

    def step(self, batches, rate, seed):
        tried.append(len(batches[0].index))
        return call(self, batches, rate, seed) if tried[-1] <= 2 else exhausted()

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "myxtts"):
        patch.setattr(type(trainer.train_step), "__call__", step)
        fitted = fit_batch_size(trainer, dataset)
    assert tried == [1, 2, 4]
    assert (trainer.stage_config.batch_size, trainer.config.training.gradient_accumulation) == (2, 2)
    assert fitted.order("dvae").batch_size == 2 and dataset.order("dvae").batch_size == 4
    assert re.search("Batch size auto: 2 .*2 times .* 4.*4 does not fit: OOM", caplog.text)
    after = run_state(trainer)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert after.keys() == before.keys()
    assert trainer.train_step.traces == 0 and trainer.step == 0

    # A run with this batch size as a setting is the same run, with the same losses.
    dvae, training = SETTINGS["dvae"] | {"batch_size": 2}, SETTINGS["training"] | {"gradient_accumulation": 2}
    *_, by_hand = trained_dvae(tiny_corpus, tmp_path / "by_hand", dvae=dvae, training=training)
    monkeypatch.setattr("myxtts.training.stage_trainer.fit_batch_size", lambda *_: fitted)
    stopped = Recorder(trainer, 2)
    trainer.train(dataset, [stopped])
    with caplog.at_level(logging.INFO, "myxtts"):
        *_, resumed = trained_dvae(tiny_corpus, tmp_path, **settings)
    assert "Settings changed" not in caplog.text
    assert {**stopped.losses, **resumed.losses} == by_hand.losses
    assert resumed.ledgers[0]["batch size"].effective == "2 x 2"


@pytest.mark.parametrize(
    "budget_mb, taken_mb, found, words",
    [
        (1000, lambda clips: 100 + 50 * clips, 4, "Tried: 1 (150 MB), 2 (200 MB), 4 (300 MB)"),
        (240, lambda clips: 100 + 50 * clips, 2, "4 would take about 300 MB of the budget of 240 MB"),
        (160, lambda clips: 100 + 50 * clips, 1, "2 takes 200 MB, more than the budget of 160 MB"),
    ],
)
def test_trials_stay_in_the_budget(tiny_corpus, tmp_path, monkeypatch, caplog, budget_mb, taken_mb, found, words):
    dataset = open_run(tiny_corpus, tmp_path, training={"automatic_batch_size": True, "memory_budget_mb": budget_mb})
    trainer = dvae_trainer(dataset)
    monkeypatch.setattr(batching, "resident_bytes", lambda: 0)
    monkeypatch.setattr(batching, "peak_bytes", lambda trainer, dataset, size, parts: taken_mb(size) * 2**20)
    with caplog.at_level(logging.INFO, "myxtts"):
        fit_batch_size(trainer, dataset)
    assert (trainer.stage_config.batch_size, trainer.config.training.gradient_accumulation) == (found, 4 // found)
    assert words in caplog.messages[-1]
    trainer.config.training.memory_budget_mb = 10
    with pytest.raises(ConfigError, match="batch of 1 .*--memory-budget"):
        fit_batch_size(trainer, dataset)
    monkeypatch.setattr(trainer, "_train_until", exhausted)  # in validation, for example
    with pytest.raises(UserError, match="Memory ran out.*--data-gpu-memory.*OOM"):
        trainer._train_and_go_back(9, dataset)


def test_memory_of_a_trial_is_its_own_peak_unless_the_kernel_hides_it_below_an_earlier_one(monkeypatch):
    trainer, taken = Mock(**{"placed_variables.return_value": {}}), []
    for size_mb in (200, 100, 200, 100):
        trainer.train_step.side_effect = lambda *_: {"loss": np.ones(size_mb * 2**17).sum()}  # noqa: B023
        taken.append(batching.peak_bytes(trainer, None, 1, 1) / 2**20 - batching.resident_bytes() / 2**20)
        if len(taken) == 2:
            monkeypatch.setattr(Path, "write_text", Mock(side_effect=PermissionError))
    np.testing.assert_allclose(taken, [200, 100, 200, 0], atol=15)


@on_logical_devices
def mirrored_split():
    """Shards of a batch of eight on two replicas, split in two."""
    replicas = Replicas(plan_of("mirrored"))
    batch = replicas.distribute([Rows(tf.range(4)), Rows(tf.range(4, 8))])
    local = replicas.strategy.experimental_local_results
    return [
        [(part[0].numpy().tolist(), part[0].device[-6:]) for part in local(piece)] for piece in replicas.split(batch, 2)
    ]


def test_batch_of_replicas_is_split_on_each_of_them():
    assert mirrored_split() == [[([0, 1], ":CPU:1"), ([4, 5], ":CPU:2")], [([2, 3], ":CPU:1"), ([6, 7], ":CPU:2")]]


def test_batch_size_auto_is_read_from_the_command_line():
    words = "--train-data x --batch-size auto --memory-budget 500 --grad-accum 2".split()
    config = train.config_from_arguments(train.build_parser().parse_args(words))
    assert config.training.automatic_batch_size and config.training.memory_budget_mb == 500
    assert config.data.batch_size == config.stage("gpt").batch_size == 16
    assert config.training.gradient_accumulation == 2
