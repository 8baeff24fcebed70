"""Weight averages: their values, their swap with the weights, and their use in validation and checkpoints."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_train_step import BATCH, quadratic_step
from test_trainer import trained_dvae
from tiny import with_training

from myxtts.storage.checkpoint import assign_by_name
from myxtts.training.trainer import XTTSTrainer

pytestmark = pytest.mark.usefixtures("eagerly")

SETTINGS = {"dvae": {"max_steps": 6, "crop_seconds": 0.4}, "training": {"ema": 0.6}}


def test_averages_follow_the_weights_of_applied_steps_with_a_rising_decay():
    objective, step = quadratic_step(ema=0.15)
    weights, expected = objective.weights["layer/kernel"], np.full(3, 2.0)
    for number, batch in enumerate([BATCH, BATCH * np.float32(np.nan), BATCH, BATCH]):
        step([batch], 0.1, (0, number))
        if number != 1:
            decay = min(0.15, (1 + max(0, number - 1)) / (10 + max(0, number - 1)))
            expected = decay * expected + (1 - decay) * weights.numpy()
    np.testing.assert_allclose(step.averages["average/layer/kernel"].numpy(), expected, rtol=1e-6)
    assert not np.allclose(expected, weights.numpy())


def test_weights_are_restored_after_a_swap_with_averages():
    objective, step = quadratic_step(ema=0.9)
    step([BATCH], 0.1, (0, 0))
    kernel, average = objective.weights["layer/kernel"], step.averages["average/layer/kernel"]
    before = kernel.numpy().copy(), average.numpy().copy()
    with pytest.raises(KeyboardInterrupt), step.averaged_weights():
        np.testing.assert_array_equal(kernel.numpy(), before[1])
        raise KeyboardInterrupt
    np.testing.assert_array_equal(kernel.numpy(), before[0])
    np.testing.assert_array_equal(average.numpy(), before[1])
    step([BATCH], 0.1, (0, 1))
    # Neither shares its memory with the other.
    assert not np.array_equal(kernel.numpy(), average.numpy()) and not np.array_equal(average.numpy(), before[1])


@pytest.fixture(scope="module")
def unbroken(tiny_corpus, tmp_path_factory):
    """A DVAE run of six steps with averages: its dataset, trainer and recorder."""
    return trained_dvae(tiny_corpus, tmp_path_factory.mktemp("averaged"), **SETTINGS)


def test_averages_are_validated_and_are_in_the_model_file(unbroken):
    dataset, trainer, recorder = unbroken
    folder = trainer.store.path(6)
    averages, trained = load_file(folder / "model.safetensors"), load_file(folder / "trained.safetensors")
    assert set(trained) == set(trainer.train_step.trainable)
    for name, variable in trainer.train_step.trainable.items():
        np.testing.assert_array_equal(trained[name], variable.numpy())
        assert not np.array_equal(averages[f"dvae/{name}"], trained[name]), name
    assert all(variable.device.endswith("CPU:0") for variable in trainer.train_step.averages.values())
    plain = with_training(dataset.config, ema=0.0, checkpoint_dir=str(folder / "nothing_there"))
    other = XTTSTrainer(plain, stage="dvae")
    assign_by_name(other.model.part_weights("dvae"), averages, "the averages")
    with_averages = other.watch.evaluate(dataset.validation_loader("dvae"))
    assign_by_name(other.train_step.trainable, trained, "the weights")
    assert with_averages == recorder.validation[6][0] != other.watch.evaluate(dataset.validation_loader("dvae"))


def test_run_continues_from_the_trained_weights_when_averages_are_turned_off(unbroken):
    dataset, trainer, _ = unbroken
    without = XTTSTrainer(with_training(dataset.config, ema=0.0, precision="mixed_float16"), stage="dvae")
    assert float(without.train_step.rules[0].loss_scale) == 2.0**15, "not the 1 of the float32 run"
    for name, variable in without.train_step.trainable.items():
        np.testing.assert_array_equal(variable.numpy(), trainer.train_step.trainable[name].numpy())
    assert not without.train_step.averages and without.step == 6
