"""Two replicas equal one: global batch, accumulation, clipping, loss scaling, a bad gradient on one, validation."""

import re
from types import SimpleNamespace
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from logical_devices import on_logical_devices, plan_of
from tiny import tiny_run_config, train_step_of

from myxtts.config.config import StageConfig
from myxtts.devices.machine import short_name
from myxtts.models.speaker_encoder import BatchNormalization
from myxtts.training.loop.device_pipeline import Replicas
from myxtts.training.stages.base import Objective
from myxtts.training.watching.watch import Evaluator

ROWS, WIDTH = 8, 5
STEPS = 4
CLIP = 0.5


class Rows(NamedTuple):
    values: tf.Tensor
    lengths: tf.Tensor


def batches(num, bad_at=None):
    """Returns `num` global batches: rows of numbers, and how many numbers of each row count, few in one half."""
    random = np.random.default_rng(0)
    made = []
    for index in range(num):
        values = random.standard_normal((ROWS, WIDTH)).astype("float32")
        lengths = np.concatenate([random.integers(1, 3, ROWS // 2), random.integers(3, WIDTH + 1, ROWS // 2)])
        if index == bad_at:
            values[-1, 0] = np.inf  # in the last row, so on the last replica alone
        made.append(Rows(values, lengths.astype("int32")))
    return made


class Regression(Objective):
    """Mean squared error of a two-layer prediction over the numbers that count."""

    loss_weights = {"square": 2.0}

    def __init__(self):
        random = np.random.default_rng(1)
        self.weights = {
            name: keras.Variable(random.standard_normal(shape).astype("float32"), name=name)
            for name, shape in (("kernel", (WIDTH, WIDTH)), ("bias", (WIDTH,)))
        }
        self.counted = tf.Variable(0.0)

    def trainable(self):
        return self.weights

    def counts(self, batch):
        return {"square": tf.reduce_sum(tf.cast(batch[1], tf.float32))}

    def loss_sums(self, batch, seed=None):
        values, lengths = batch
        kernel, bias = (w.value for w in self.weights.values())
        square = tf.where(tf.sequence_mask(lengths, WIDTH), (values @ kernel + bias - 3.0) ** 2, 0.0)
        return {"square": tf.reduce_sum(square)}, {"counted": self.counts(batch)["square"]}

    def apply_statistics(self, statistics):
        self.counted.assign_add(statistics["counted"])


def train(num_replicas, precision, accumulation, bad_at):
    """Trains a small masked regression for `STEPS` steps; returns losses, weights, averages and state as arrays.

    It computes in float32 under either policy: `mixed_float16` turns the loss scaling on; the comparison stays exact.
    """
    replicas = Replicas(plan_of("single" if num_replicas == 1 else "mirrored"))
    strategy = replicas.strategy
    with replicas.scope():
        objective = Regression()
        settings = StageConfig(learning_rate=0.05, gradient_clip=CLIP, weight_decay=0.1)
        step = train_step_of(objective, strategy, settings, precision, ema=0.5)
    feed, losses = iter(batches(STEPS * accumulation, bad_at)), []
    for number in range(STEPS):
        taken = step([replicas.transfer(next(feed)) for _ in range(accumulation)], 0.05, (0, number))
        losses.append({name: float(value) for name, value in taken.items()})
    local = strategy.experimental_local_results
    weights = {name: [part.numpy() for part in local(v.value)] for name, v in objective.weights.items()}
    state = {name: local(v.value if isinstance(v, keras.Variable) else v) for name, v in step.state_variables.items()}
    return {
        "losses": losses,
        "weights": weights,
        "state": {name: [part.numpy() for part in parts] for name, parts in state.items()},
        "averages": {name: [part.numpy() for part in local(v)] for name, v in step.averages.items()},
        "counted": [part.numpy() for part in local(objective.counted)],
    }


@on_logical_devices
def both(**arguments):
    return train(1, **arguments), train(2, **arguments)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_replicas_equal_one_with_the_same_global_batch(accumulation, precision):
    one, two = both(accumulation=accumulation, precision=precision, bad_at=accumulation * 2 - 1)
    for number, (left, right) in enumerate(zip(one["losses"], two["losses"])):
        assert left["finite"] == right["finite"] == (0.0 if number == 1 else 1.0)
        if left["finite"]:
            assert left == pytest.approx(right, rel=1e-5)
            assert left["gradient_norm"] > CLIP, "clipping must have something to do"
    for name, (weight,) in one["weights"].items():
        assert np.isfinite(weight).all()
        for replica in two["weights"][name]:
            np.testing.assert_allclose(replica, weight, atol=1e-6, err_msg=name)
    for kind in ("state", "averages"):
        for name, (value,) in one[kind].items():
            for replica in two[kind][name]:
                np.testing.assert_allclose(replica, value, atol=1e-6, rtol=1e-5, err_msg=name)
    assert one["state"]["loss_scale"] == [2.0**14 if precision == "mixed_float16" else 1.0]
    assert one["state"]["bad_steps"] == [1]
    assert one["counted"] * 2 == two["counted"]


@on_logical_devices
def real_stage(mode, stage, recompute):
    """Takes three steps of a real stage on a synthetic batch, on one or two model devices; returns losses, weights, the
    line of the placement audit, and the batch's device. `recompute` is `training.gradient_checkpointing`."""
    from test_stages import dvae_batch, gpt_batch

    from myxtts.devices.configuration import require_placement
    from myxtts.models.xtts import XTTS
    from myxtts.training.trainer import XTTSTrainer

    training = {"reset_training": True, "gradient_checkpointing": recompute}
    config = tiny_run_config(model={"dropout": 0.0}, training=training)
    plan = plan_of(mode)
    with tf.device(plan.data_device):
        dvae_model = XTTS(config.model, parts=("dvae",))
    trainer = XTTSTrainer(config, stage=stage, plan=plan, foundations={"dvae": dvae_model})
    batch = trainer.replicas.transfer((gpt_batch if stage == "gpt" else dvae_batch)(4))
    losses = []
    for number in range(3):
        trainer.stage.prepare_step(batch, number + 1, (0, 0))
        losses.append({name: float(value) for name, value in trainer.train_step([batch], 1e-3, (0, number)).items()})
    local = trainer.replicas.strategy.experimental_local_results
    weights = {name: [part.numpy() for part in local(v.value)] for name, v in trainer.model.part_weights(stage).items()}
    audit = require_placement(trainer.placed_variables().items(), trainer.plan)
    shards = [sorted({field.device[-6:] for field in shard}) for shard in local(batch)]
    trainer.state.clips = SimpleNamespace(clips=())
    assert trainer.watch._report_divergence([]), "reads the learning rate, which is on several devices"
    return losses, weights, audit, shards


@pytest.mark.parametrize("stage, recompute", [("dvae", False), ("gpt", True)])
def test_real_stages_learn_the_same_on_two_replicas(stage, recompute):
    one_losses, one, *_ = real_stage("dual", stage, False)
    two_losses, two, audit, shards = real_stage("mirrored", stage, recompute)
    assert audit.endswith("variables, all on /CPU:1, /CPU:2") and shards == [[":CPU:1"], [":CPU:2"]]
    for left, right in zip(one_losses, two_losses):
        assert left == pytest.approx(right, rel=1e-5)
    assert one_losses[-1]["loss"] < one_losses[0]["loss"]
    for name, (weight,) in one.items():
        for replica in two[name]:
            # AdamW divides by the root mean square of gradients, which amplifies those that are only rounding noise.
            np.testing.assert_allclose(replica, weight, atol=2e-5, err_msg=name)


@on_logical_devices
def refused_batch_size():
    from myxtts.training.trainer import XTTSTrainer

    try:
        config = tiny_run_config(dvae={"batch_size": 3}, training={"automatic_batch_size": True})
        XTTSTrainer(config, stage="dvae", plan=plan_of("mirrored"))
    except ValueError as error:
        return str(error)


def test_batch_that_replicas_cannot_share_is_an_error():
    assert re.fullmatch("--batch-size must be a multiple of .* 2. Received: 3. Give a number .*", refused_batch_size())


class Scored:
    """A stage whose metric is the number of rows; records on which device it saw which batch."""

    def __init__(self):
        self.seen = []

    def outputs_to_score(self, batch):
        self.seen.append((batch[0].shape[0], short_name(batch[0].device)))
        return (batch[1].numpy(),)

    def score(self, outputs):
        return {"rows": sum(len(lengths) for (lengths,) in outputs)}


class Loader:
    """Five batches of different sizes."""

    order = SimpleNamespace(batches_per_epoch=5)

    def __call__(self, position):
        values, lengths = batches(1)[0]
        return Rows(values[position:] + np.float32(position), lengths[position:])


@on_logical_devices
def validated(mode):
    """Validates twice; returns the losses, the batches of each replica, and the number of traces."""
    plan = plan_of(mode)
    replicas, stage = Replicas(plan), Scored()
    with replicas.scope():
        objective = Regression()
    config = SimpleNamespace(training=SimpleNamespace(max_validation_batches=9))
    parts = dict(stage=stage, replicas=replicas, workers=replicas.workers, preparation=lambda wave: wave)
    evaluator = Evaluator(SimpleNamespace(config=config, **parts), [objective])
    twice = [evaluator(Loader()) for _ in range(2)]
    return twice, stage.seen, plan.model_devices, evaluator._traced.experimental_get_tracing_count()


def test_validation_on_replicas_equals_validation_on_one():
    (one, again), seen, _, _ = validated("single")
    assert one == again and len(seen) == 10 and one["rows"] == sum(ROWS - position for position in range(5))
    (two, twice), seen, devices, traces = validated("mirrored")
    assert two == twice == pytest.approx(one, rel=1e-6) and traces == 1
    assert seen[:5] == [(ROWS - position, devices[position % 2]) for position in range(5)]


@on_logical_devices
def normalized(rows):
    """Returns outputs, new variance and input gradient of batch normalization on two replicas."""
    replicas = Replicas(plan_of("mirrored"))
    with replicas.scope():
        model = keras.Sequential([keras.Input((3, 2)), BatchNormalization(2)])
    model.layers[0].momentum = model.layers[0].epsilon = 0.0
    model.layers[0].over_replicas = lambda value: tf.distribute.get_replica_context().all_reduce("SUM", value)

    def on_each(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = model(inputs, training=True)
            loss = tf.reduce_sum(outputs**3)
        return outputs, tape.gradient(loss, inputs)

    given = replicas.distribute(tf.split(tf.constant(rows), 2))
    run = tf.function(lambda: replicas.strategy.run(on_each, (given,)))
    outputs, gradients = (np.concatenate([part.numpy() for part in one.values]) for one in run())
    return outputs, model.layers[0].moving_variance.numpy(), gradients


def test_statistics_of_the_whole_batch_are_exact_beside_a_large_mean():
    rows = np.random.default_rng(0).normal(3000.0, 1.0, (8, 3, 2)).astype("float32")
    outputs, variance, gradients = normalized(rows)
    expected = rows.astype("float64")
    np.testing.assert_allclose(variance, expected.var((0, 1)), rtol=3e-4)  # float32 has steps of 2.4e-4 at 3000
    z = (expected - expected.mean((0, 1))) / expected.std((0, 1))
    np.testing.assert_allclose(outputs, z, atol=2e-3)
    upstream = 3 * z**2
    projected = upstream - upstream.mean((0, 1)) - z * (upstream * z).mean((0, 1))
    np.testing.assert_allclose(gradients, projected / expected.std((0, 1)), atol=2e-2)
