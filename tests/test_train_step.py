"""The train step: update, decay groups, clipping, finite check, accumulation, loss scaling, repeatability."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_stages import dvae_batch, gpt_batch
from tiny import stage_of, tiny_run_config, train_step_of, untraced

from myxtts.config.config import StageConfig
from myxtts.models.xtts import XTTS
from myxtts.training.loop.step import TrainStep
from myxtts.training.loop.updates import no_weight_decay
from myxtts.training.stages.base import Objective
from myxtts.training.stages.gpt import GPTObjective

CONFIG = tiny_run_config()


@functools.cache
def strategy():
    return tf.distribute.OneDeviceStrategy("/CPU:0")


class Quadratic(Objective):
    """`sum((w - target)^2)` over the rows of a batch, `(B, 3)`, for weights with and without weight decay."""

    loss_weights = {"square": 1.0}

    def __init__(self, start=2.0):
        self.weights = {
            name: keras.Variable(np.full(3, start, "float32"), name=name.rsplit("/")[-1])
            for name in ("layer/kernel", "layer/bias", "text_embedding")
        }
        self.statistics = tf.Variable(0.0)

    def trainable(self):
        return self.weights

    def counts(self, batch):
        return {"square": tf.cast(tf.shape(batch)[0], tf.float32)}

    def loss_sums(self, batch, seed=None):
        return {"square": tf.add_n([tf.reduce_sum((w.value - batch) ** 2) for w in self.weights.values()])}, {
            "rows": tf.cast(tf.shape(batch)[0], tf.float32)
        }

    def apply_statistics(self, statistics):
        self.statistics.assign_add(statistics["rows"])


def quadratic_step(precision="float32", start=2.0, xla=False, ema=0.0, **stage):
    settings = {"learning_rate": 0.1, "weight_decay": 0.0, "gradient_clip": 0.0, **stage}
    objective = Quadratic(start)
    return objective, train_step_of(objective, strategy(), StageConfig(**settings), precision, xla=xla, ema=ema)


def numpy_adamw(weight, gradients, rates, decay, betas=(0.9, 0.96), epsilon=1e-8):
    """AdamW in NumPy: Loshchilov and Hutter 2019, algorithm 2, with PyTorch's epsilon."""
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for t, (gradient, rate) in enumerate(zip(gradients, rates), 1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        weight = weight - rate * decay * weight
        weight = weight - rate * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + epsilon)
    return weight


BATCH = np.array([[1.0, 0.5, -1.0], [0.0, 0.5, -2.0]], "float32")


def test_update_is_adamw_with_decay_on_kernels_alone():
    objective, step = quadratic_step(weight_decay=0.3)
    rates, gradients = [0.1, 0.05, 0.2], {name: [] for name in objective.weights}
    for rate in rates:
        for name, weight in objective.weights.items():
            # The mean over two rows of the gradient of the squares.
            gradients[name].append((2 * (weight.numpy() - BATCH)).sum(0) / 2)
        step([BATCH], rate, (0, 0))
    for name, weight in objective.weights.items():
        expected = numpy_adamw(np.full(3, 2.0), gradients[name], rates, 0.3 if name == "layer/kernel" else 0.0)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_dropout_masks_of_batches_and_steps_do_not_repeat(monkeypatch):
    step, seen = quadratic_step()[1], []
    accumulate = step._accumulate

    def recorded(rule, batch, counts, seed, phase):
        seen.append(tuple(seed.numpy()))
        return accumulate(rule, batch, counts, seed, phase)

    monkeypatch.setattr(step, "_accumulate", recorded)
    for number in (5, 5 + 2**16, 5 + 2**17):
        step([BATCH, BATCH, BATCH], 0.1, (7, number))
    assert seen[:3] == [(7, 5), (7, 5 + 2**16), (7, 5 + 2**17)] and len({*seen}) == 9


def test_epsilon_is_added_to_the_corrected_root():
    # If the gradient equals epsilon, the step is halved; with epsilon before the bias correction it would be a sixth.
    objective, step = quadratic_step(start=0.0)
    step([tf.fill((2, 3), 5e-9)], 0.1, (0, 0))
    np.testing.assert_allclose(objective.weights["layer/kernel"].numpy(), 0.05, rtol=1e-3)


def test_losses_are_means_and_the_norm_is_before_clipping():
    objective, step = quadratic_step(gradient_clip=0.5)
    losses = {name: float(value) for name, value in step([BATCH], 0.1, (0, 0)).items()}
    gradient = (2 * (2.0 - BATCH)).sum(0) / 2
    assert losses["square"] == losses["loss"] == pytest.approx(3 * ((2.0 - BATCH) ** 2).sum() / 2)
    assert losses["gradient_norm"] == pytest.approx(np.sqrt(3 * (gradient**2).sum()))
    assert losses["finite"] == 1.0


def test_non_finite_step_changes_nothing_and_is_counted():
    objective, step = quadratic_step(weight_decay=0.1)
    step([BATCH], 0.1, (0, 0))

    def state():
        named = {**objective.weights, **step.state_variables}
        return {name: v.numpy().copy() for name, v in named.items() if not name.startswith("bad_steps")}

    before, statistics = state(), float(objective.statistics)
    for bad in (np.nan, np.inf, -np.inf):
        assert not bool(step([BATCH * np.float32(bad)], 0.1, (0, 1))["finite"])
    for name, value in state().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert float(objective.statistics) == statistics
    assert (int(step.bad_steps), int(step.rules[0].bad_steps_in_row)) == (3, 3)
    assert bool(step([BATCH], 0.1, (0, 2))["finite"])
    assert (int(step.bad_steps), int(step.rules[0].bad_steps_in_row)) == (3, 0)


def test_loss_scale_halves_at_a_bad_step_and_does_not_change_the_update():
    objective, step = quadratic_step(precision="mixed_float16", gradient_clip=0.5)
    plain_objective, plain = quadratic_step(gradient_clip=0.5)
    assert float(step.rules[0].loss_scale) == 2.0**15
    for one in (step, plain):
        one([BATCH], 0.1, (0, 0))
    for name, weight in objective.weights.items():
        np.testing.assert_allclose(weight.numpy(), plain_objective.weights[name].numpy(), rtol=1e-5)
    # The update of AdamW hides the gradient's length; its first moment shows it.
    for moment, expected in zip(step.rules[0].optimizer._momentums, plain.rules[0].optimizer._momentums):
        np.testing.assert_allclose(moment.numpy(), expected.numpy(), rtol=1e-5)
    step([BATCH * np.float32(np.inf)], 0.1, (0, 1))
    assert float(step.rules[0].loss_scale) == 2.0**14 and int(step.rules[0].good_steps) == 0
    assert float(plain.rules[0].loss_scale) == 1.0


def test_loss_scale_grows_after_good_steps_up_to_its_limit():
    objective, step = quadratic_step(precision="mixed_float16")
    for scale, grown in ((2.0**15, 2.0**16), (2.0**24, 2.0**24)):
        step.rules[0].loss_scale.assign(scale)
        step.rules[0].good_steps.assign(1999)
        step([BATCH], 0.1, (0, 0))
        assert float(step.rules[0].loss_scale) == grown and int(step.rules[0].good_steps) == 0


def test_decay_groups_of_the_model_by_their_real_names():
    names = GPTObjective(XTTS(CONFIG.model, parts=("gpt",)), CONFIG).trainable()
    decayed = {name for name in names if not no_weight_decay(name)}
    assert decayed == {name for name in names if name.endswith("kernel")} | {"perceiver/latents", "perceiver/gamma"}


def make_step(stage):
    keras.utils.set_random_seed(4)
    config = tiny_run_config(model={"dropout": 0.0}, **{stage: {"learning_rate": 1e-2}})
    trained = stage_of(stage, config)
    return trained, TrainStep(trained.updates(), strategy(), config.stage(stage))


def rows(batch, start, stop):
    return type(batch)(*(field[start:stop] for field in batch))


@untraced()
@pytest.mark.parametrize("stage", ["gpt", "dvae"])
def test_accumulated_batches_equal_one_large_batch(stage):
    batch, results = {"gpt": gpt_batch, "dvae": dvae_batch}[stage](6), []
    for accumulation in (1, 3):
        trained, step = make_step(stage)
        size = 6 // accumulation
        parts = [rows(batch, i * size, (i + 1) * size) for i in range(accumulation)]
        losses = []
        trained.prepare_step(batch, 0, (1, 1))
        for number in range(2):
            losses.append({name: float(value) for name, value in step(parts, 1e-2, (0, number)).items()})
        results.append((losses, {name: v.numpy() for name, v in trained.model.part_weights(stage).items()}))
    for one, other in zip(results[0][0], results[1][0]):
        assert one == pytest.approx(other, rel=1e-5)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], value, atol=2e-5, err_msg=name)


def test_step_is_traced_once_for_one_shape_and_twice_for_any_number():
    _, step = quadratic_step()
    for rows_of_batch, traces in ((2, 1), (2, 1), (3, 2), (4, 2), (2, 2)):
        step([tf.zeros((rows_of_batch, 3))], 1e-2, (0, 0))
        assert step.traces == traces


@pytest.mark.parametrize("accumulation", [1, 2])
def test_step_traced_for_examples_is_the_same_graph_whichever_batch_comes_first(accumulation):
    graphs = []
    for rows in ((2, 4), (4, 2), (3,)):
        _, step = quadratic_step()
        if accumulation > 1:
            step.make_accumulators()
        step.trace_for([tf.zeros((2, 3)), tf.zeros((4, 3))])
        for count in rows:
            step([tf.zeros((count, 3))] * accumulation, 1e-2, (0, 0))
        assert step.traces == 1
        graphs.append(
            [(node.type, [str(output.shape) for output in node.outputs]) for node in step.graph.get_operations()]
        )
    assert graphs[0] == graphs[1] == graphs[2]


@untraced()
def test_step_in_mixed_precision_stays_near_float32():
    losses, tolerances = {}, {"mixed_float16": 0.02, "mixed_bfloat16": 0.05}
    for policy in ("float32", *tolerances):
        keras.utils.set_random_seed(4)
        model = XTTS(CONFIG.model, parts=("gpt",), precision=policy)
        step = train_step_of(GPTObjective(model, CONFIG), strategy(), CONFIG.stage("gpt"), precision=policy)
        assert all(v.dtype == "float32" for v in model.trainable_variables)
        losses[policy] = {name: float(value) for name, value in step([gpt_batch()], 1e-3, (0, 0)).items()}
    for precision, tolerance in tolerances.items():
        assert losses[precision]["finite"] == 1.0
        for name in ("codes", "text", "gradient_norm"):
            assert losses[precision][name] == pytest.approx(losses["float32"][name], rel=tolerance), precision


def test_compiled_step_equals_the_plain_one():
    accumulation, found = 2, []
    for xla in (False, True):
        objective, step = quadratic_step(xla=xla, ema=0.5, gradient_clip=0.5, weight_decay=0.1)
        losses = []
        for number, rows in enumerate((2, 3, 2)):
            batches = [BATCH[:1].repeat(rows, 0) * (part + 1) for part in range(accumulation)]
            losses.append({name: float(value) for name, value in step(batches, 0.1, (0, number)).items()})
        variables = [v.numpy() for v in (*step.rules[0].variables, *step.averages.values())]
        found.append((losses, variables, float(objective.statistics)))
    for one, other in zip(*(losses for losses, _, _ in found)):
        assert one == pytest.approx(other, rel=1e-5)
    for one, other in zip(*(variables for _, variables, _ in found)):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert found[0][2] == found[1][2] == (2 + 3 + 2) * accumulation


def test_step_repeated_after_an_error_has_the_same_weights():
    found = []
    for fails in (False, True):
        objective, step = quadratic_step()
        if fails:
            finish = step._finish
            step._finish = lambda *a: (_ for _ in ()).throw(tf.errors.ResourceExhaustedError(None, None, "full"))
            with pytest.raises(tf.errors.ResourceExhaustedError):
                step([BATCH, BATCH], 0.1, (0, 0))
            step._finish = finish
            assert step.forget_partial_step()
        step([BATCH, BATCH], 0.1, (0, 0))
        found.append([v.numpy() for v in step.rules[0].variables])
    np.testing.assert_array_equal(*found)


def test_error_during_a_weight_update_has_its_own_type():
    _, step = quadratic_step()
    step([BATCH], 0.1, (0, 0))
    step.rules[0].begun.assign_add(1)  # as an error in the middle of the update leaves it
    assert not step.forget_partial_step()
    step([BATCH], 0.1, (0, 1))
    assert step.forget_partial_step()
