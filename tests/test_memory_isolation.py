"""Trainer with memory isolation; the mode changes the device of a computation but not the result."""

import contextlib
import inspect
import os
from types import SimpleNamespace

import numpy as np
import pytest
from logical_devices import on_logical_devices, plan_of
from tiny import tiny_run_config

from myxtts.config.data import DataConfig

STEPS = 50


def make_trainer(mode, corpus, folder):
    """A GPT trainer with dropout and augmentation, its data set, and the device of its batches."""
    import keras
    import tensorflow as tf

    from myxtts.data.dataset import SpeechDataset
    from myxtts.models.xtts import XTTS
    from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
    from myxtts.training.trainer import XTTSTrainer

    training = {"reset_training": True, "log_every_steps": 1, "validate_every_steps": STEPS}
    sections = dict(gpt={"max_steps": STEPS}, data={"model_start_delay": 0.0, "num_buckets": 1}, training=training)
    dataset = SpeechDataset.open(tiny_run_config(corpus, folder / mode, **sections))
    plan = plan_of(mode)
    keras.utils.set_random_seed(3)
    with tf.device(plan.data_device):
        dvae_model = XTTS(dataset.config.model, parts=("dvae",))
    if mode == "isolated":
        os.environ["MYXTTS_VIRTUAL_DEVICES"] = "2"
        with contextlib.redirect_stdout(None):
            trainer = MemoryIsolatedDualGPUTrainer(dataset.config, 0, 1, stage="gpt", foundations={"dvae": dvae_model})
        del os.environ["MYXTTS_VIRTUAL_DEVICES"]
    else:
        trainer = XTTSTrainer(dataset.config, stage="gpt", foundations={"dvae": dvae_model}, plan=plan)
    return trainer, dataset


@on_logical_devices
def run(mode, corpus, folder):
    """Losses of every step, validation losses, and the trainer's public attributes after a run."""
    from myxtts.training.trainer import XTTSTrainer
    from myxtts.training.watching.callbacks import Callback

    trainer, dataset = make_trainer(mode, corpus, folder)
    losses = []

    class Listener(Callback):
        def on_log(self, step, report, timing):
            losses.append([report[name] for name in ("loss", "text", "codes", "gradient_norm")])

    with contextlib.redirect_stdout(None):
        validation = trainer.train(dataset, [Listener()])
    found = {
        "losses": losses,
        "validation": validation,
        "traces": trainer.train_step.traces,
        "plan": trainer.plan,
        "devices": (trainer.data_device, trainer.model_device),
        "depth": trainer.pipeline_depth,
        "asynchronous": trainer.enable_async_pipeline,
        "is trainer": isinstance(trainer, XTTSTrainer),
    }
    if mode == "isolated":
        found["step times"] = trainer.step_times
        found["pipelines"] = []
        for asynchronous in (True, False):
            trainer.enable_async_pipeline = asynchronous
            with trainer.pipeline(dataset, 2, 6) as batches:
                found["pipelines"].append([[field.numpy() for field in batch] for batch in batches])
    return found


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes")
    return {mode: run(mode, tiny_corpus, folder) for mode in ("single", "dual", "isolated")}


def test_fifty_steps_have_the_same_losses_in_every_mode(runs):
    single = np.array(runs["single"]["losses"])
    assert single.shape == (STEPS, 4) and single[-5:, 0].mean() < 0.8 * single[0, 0]
    for mode in ("dual", "isolated"):
        np.testing.assert_allclose(runs[mode]["losses"], single, rtol=1e-5, err_msg=mode)
        assert runs[mode]["validation"] == pytest.approx(runs["single"]["validation"], rel=1e-5)


def test_modes_compute_where_they_say(runs):
    assert [runs[mode]["devices"] for mode in ("single", "dual", "isolated")] == [
        ("/CPU:0", "/CPU:0"),
        ("/CPU:0", "/CPU:1"),
        ("/CPU:0", "/CPU:1"),
    ]
    assert runs["isolated"]["plan"].mode == "isolated"
    assert all(found["traces"] == 1 for found in runs.values())


def test_isolated_trainer_is_a_trainer_with_three_buffers_and_step_times(runs):
    isolated = runs["isolated"]
    assert isolated["is trainer"] and isolated["depth"] == 3 and isolated["asynchronous"]
    assert len(isolated["step times"]) == STEPS - 3 and min(isolated["step times"]) > 0


@pytest.mark.parametrize(
    "mode, batch_size, asked, depth",
    [
        ("isolated", 16, None, 4),
        ("isolated", 4, None, 8),
        ("isolated", 64, None, 2),
        ("isolated", 16, 9, 9),
        ("isolated", 16, 50, 50),
        ("dual", 16, None, 50),
    ],
)
def test_isolated_mode_prefetches_by_the_batch_size_by_default(mode, batch_size, asked, depth):
    from myxtts.training.stage_trainer import StageTrainer

    asked = asked or DataConfig().pipeline_buffer_size
    config = tiny_run_config(None, data={"pipeline_buffer_size": asked, "batch_size": batch_size})
    trainer = StageTrainer.__new__(StageTrainer)
    trainer.config, trainer.stage, trainer.data_device = config, SimpleNamespace(name="gpt"), "/CPU:0"
    trainer.plan = SimpleNamespace(mode=mode)
    assert trainer.stream(SimpleNamespace(stream=lambda *arguments: arguments), 0, 1)[-1] == depth


def test_signatures_are_those_of_the_contract():
    from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer

    parameters = inspect.signature(MemoryIsolatedDualGPUTrainer).parameters
    names = "config data_gpu_id model_gpu_id data_gpu_memory_limit model_gpu_memory_limit model resume_checkpoint"
    assert list(parameters)[:7] == names.split()
    assert (parameters["data_gpu_memory_limit"].default, parameters["model_gpu_memory_limit"].default) == (8192, 16384)
    optimize = inspect.signature(MemoryIsolatedDualGPUTrainer.optimize_dataset_for_dual_gpu).parameters
    assert optimize["prefetch_buffer_size"].default == 4


@on_logical_devices
def optimized_datasets():
    import tensorflow as tf

    from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer

    trainer = MemoryIsolatedDualGPUTrainer.__new__(MemoryIsolatedDualGPUTrainer)
    trainer.plan, trainer.data_device = plan_of("isolated"), plan_of("isolated").model_device
    trainer.config, trainer.stage = tiny_run_config(), SimpleNamespace(name="gpt")
    found = []
    for size in ({}, {"prefetch_buffer_size": 1}, {"prefetch_buffer_size": None}):
        dataset = tf.data.Dataset.range(12).map(lambda x: 2 * x).batch(4)
        elements = list(trainer.optimize_dataset_for_dual_gpu(dataset, **size))
        found.append(([one.numpy().tolist() for one in elements], {one.device[-5:] for one in elements}))
    return found


def test_optimized_dataset_keeps_its_order_and_ends_on_the_data_device():
    assert optimized_datasets() == [([[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]], {"CPU:1"})] * 3
