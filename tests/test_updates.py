"""Several updates in one step: a generator and a discriminator that alternate, each with its own state."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from logical_devices import on_logical_devices, plan_of
from test_train_step import numpy_adamw

from myxtts.config.stages import StageConfig
from myxtts.training.loop.step import TrainStep
from myxtts.training.stages.base import Objective

ROWS = np.random.default_rng(3).normal(1.0, 0.5, (8, 2)).astype("float32")
SETTINGS = StageConfig(learning_rate=0.05, weight_decay=0.0, betas=(0.8, 0.99), gradient_clip=0.5)


class Pair:
    """A generator that shifts its rows and a linear discriminator, with the losses of least-squares GANs."""

    def __init__(self):
        self.shift = keras.Variable(np.zeros(2, "float32"), name="shift")
        self.weight = keras.Variable(np.array([0.3, -0.2], "float32"), name="weight")

    def made(self, batch):
        return 0.5 * batch + self.shift.value

    def score(self, rows):
        return tf.linalg.matvec(rows, self.weight.value)


class Discriminate(Objective):
    """Discriminator objective: data rows to 1, generated rows to 0."""

    name, loss_weights = "discriminator", {"real": 1.0, "made": 1.0}

    def __init__(self, pair):
        self.pair = pair

    def trainable(self):
        return {"discriminator/weight": self.pair.weight}

    def counts(self, batch):
        return dict.fromkeys(self.loss_weights, tf.cast(tf.shape(batch)[0], tf.float32))

    def loss_sums(self, batch, seed=None):
        made = tf.stop_gradient(self.pair.made(batch))
        real = tf.reduce_sum((self.pair.score(batch) - 1.0) ** 2)
        return {"real": real, "made": tf.reduce_sum(self.pair.score(made) ** 2)}, {}


class Generate(Objective):
    """Generator objective: generated rows to 1, by the discriminator that this step has just updated."""

    name, loss_weights = "generator", {"adversarial": 1.0}

    def __init__(self, pair):
        self.pair = pair

    def trainable(self):
        return {"generator/shift": self.pair.shift}

    def counts(self, batch):
        return {"adversarial": tf.cast(tf.shape(batch)[0], tf.float32)}

    def loss_sums(self, batch, seed=None):
        return {"adversarial": tf.reduce_sum((self.pair.score(self.pair.made(batch)) - 1.0) ** 2)}, {}


def pair_step(strategy=None, precision="float32", ema=0.0):
    strategy = strategy or tf.distribute.OneDeviceStrategy("/CPU:0")
    with strategy.scope():
        pair = Pair()
        return pair, TrainStep([Discriminate(pair), Generate(pair)], strategy, SETTINGS, precision, ema=ema)


def clipped(gradient):
    """Returns the gradient, at most as long as in `SETTINGS`, and its norm before."""
    norm = np.sqrt((gradient**2).sum())
    return gradient * min(1.0, SETTINGS.gradient_clip / (norm + 1e-6)), norm


def numpy_pair(steps, rate):
    """Trains in NumPy: first the discriminator, then the generator against the updated discriminator."""
    shift, weight = np.zeros(2), np.array([0.3, -0.2])
    rows, of_shift, of_weight = ROWS.astype("float64"), [], []
    for step in range(1, steps + 1):
        made = 0.5 * rows + shift
        real, false = rows @ weight - 1, made @ weight
        of_weight.append(clipped(2 * (real @ rows + false @ made) / len(rows))[0])
        weight = numpy_adamw(np.array([0.3, -0.2]), of_weight, [rate] * step, 0.0, SETTINGS.betas)
        gradient, norm = clipped(2 * ((0.5 * rows + shift) @ weight - 1).mean() * weight)
        of_shift.append(gradient)
        shift = numpy_adamw(np.zeros(2), of_shift, [rate] * step, 0.0, SETTINGS.betas)
    return shift, weight, norm


@pytest.mark.parametrize("accumulation", [1, 4])
def test_updates_alternate_as_in_numpy(accumulation):
    pair, step = pair_step()
    for number in range(5):
        figures = step(list(tf.split(tf.constant(ROWS), accumulation)), 0.05, (0, number))
    shift, weight, norm = numpy_pair(5, 0.05)
    np.testing.assert_allclose(pair.shift.numpy(), shift, rtol=1e-4)
    np.testing.assert_allclose(pair.weight.numpy(), weight, rtol=1e-4)
    assert float(figures["generator/gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    assert figures["loss"] == figures["generator/loss"] and bool(figures["finite"])


def test_only_the_non_finite_update_is_skipped():
    pair, step = pair_step(precision="mixed_float16")
    made = pair.made
    step.rules[1].objective.pair = type("Broken", (), {"made": lambda self, b: made(b) * np.inf, "score": pair.score})()
    before = pair.weight.numpy()
    figures = step([tf.constant(ROWS)], 0.05, (0, 0))
    assert [bool(figures[name]) for name in ("discriminator/finite", "generator/finite", "finite")] == [1, 0, 0]
    assert (pair.weight.numpy() != before).all() and not pair.shift.numpy().any()
    assert [float(rule.loss_scale) for rule in step.rules] == [2.0**15, 2.0**14]
    assert step.bad_steps == 1


@on_logical_devices
def mirrored_pair(accumulation):
    """Trains for five steps on two replicas; returns each replica's weights and their devices."""
    plan = plan_of("mirrored")
    strategy = tf.distribute.MirroredStrategy(list(plan.model_devices), tf.distribute.ReductionToOneDevice())
    pair, step = pair_step(strategy)
    shards = tf.split(tf.constant(ROWS), 2 * accumulation)
    batches = [
        strategy.experimental_distribute_values_from_function(
            lambda context, part=part: shards[2 * part + context.replica_id_in_sync_group]
        )
        for part in range(accumulation)
    ]
    for number in range(5):
        step(batches, 0.05, (0, number))
    local = strategy.experimental_local_results
    return [[part.numpy().tolist() for part in local(v.value)] for v in (pair.shift, pair.weight)]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_pair_trains_equally_on_two_replicas(accumulation):
    for replicas, expected in zip(mirrored_pair(accumulation), numpy_pair(5, 0.05)):
        assert len(replicas) == 2
        np.testing.assert_array_equal(*replicas)
        np.testing.assert_allclose(replicas[0], expected, rtol=1e-4)
