"""Blocks of the GPT compiled by XLA, and gradients of biases on GPUs, against the plain layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_stages import gpt_batch
from test_trainer import frozen_dvae, open_run
from tiny import tiny_run_config

from myxtts.config.stages import GPTConfig
from myxtts.config.training import TrainingConfig
from myxtts.models import layers
from myxtts.models.attention import TransformerBlock
from myxtts.models.xtts import XTTS
from myxtts.training.loop.compiled import CompiledBlocks
from myxtts.training.loop.switches import settle_switches
from myxtts.training.stages.gpt import GPTObjective, add_lora
from myxtts.training.trainer import XTTSTrainer

SEED = tf.constant([0, 7])
CONFIG = tiny_run_config(model={"layers": 2, "dropout": 0.0}, gpt={"alignment_loss_weight": 1.0})


def losses_and_gradients(objective, batch):
    """Losses and gradients by name, as in a train step."""

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            values = {name: variable.value for name, variable in objective.trainable().items()}
            tape.watch(list(values.values()))
            sums, _ = objective.loss_sums(batch, SEED)
            loss = tf.add_n(list(sums.values()))
        return sums, {name: tf.convert_to_tensor(one) for name, one in tape.gradient(loss, values).items()}

    return run()


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_compiled_blocks_have_the_losses_and_gradients_of_plain_ones(lora_rank):
    keras.utils.set_random_seed(2)
    model = XTTS(CONFIG.model, parts=("gpt",))
    if lora_rank:
        add_lora(model.gpt, GPTConfig(lora_rank=lora_rank))
    plain, compiled = (GPTObjective(model, CONFIG, on) for on in (False, True))
    for objective in (plain, compiled):
        assert any(name.endswith("mlp_in/kernel") for name in objective.trainable()) != bool(lora_rank)
    expected, actual = (losses_and_gradients(objective, gpt_batch()) for objective in (plain, compiled))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), expected, actual)


def test_all_blocks_share_one_pair_of_programs_and_differ_in_dropout():
    keras.utils.set_random_seed(0)
    blocks = [TransformerBlock(8, 2, dropout=0.5, site=3 * number, name=f"block_{number}") for number in range(3)]
    for block in blocks[1:]:
        block.set_weights(blocks[0].get_weights())
    compiled, x = CompiledBlocks(blocks), tf.random.stateless_normal((2, 5, 8), (0, 1))
    outputs = [compiled(x, number=number, key_mask=None, seed=SEED).numpy() for number in range(3)]
    assert compiled._forward.experimental_get_tracing_count() == 1
    assert not np.allclose(outputs[0], outputs[1]) and not np.allclose(outputs[1], outputs[2])
    np.testing.assert_array_equal(compiled(x, number=1, key_mask=None, seed=SEED).numpy(), outputs[1])
    blocks += 997 * blocks[:1]  # as many layers as `ModelConfig` allows
    assert np.isfinite(CompiledBlocks(blocks)(x, number=999, key_mask=None, seed=SEED)).all()


def test_gpt_run_with_xla_reports_recomputed_blocks_and_takes_finite_steps(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("myxtts.training.stages.gpt.runs_on_cpu", lambda device: False)
    training = {"xla": True, "gradient_checkpointing": True, "strict": True, "max_validation_batches": 1}
    dataset = open_run(tiny_corpus, tmp_path, gpt={"max_steps": 2}, training=training, model={"layers": 2})
    trainer = XTTSTrainer(dataset.config, foundations={"dvae": frozen_dvae(dataset.config)})
    trainer.train(dataset)
    assert trainer.step == 2 and trainer.train_step.bad_steps == 0
    assert trainer.ledger["gradient checkpointing"].effective == "on"
    assert trainer.ledger["XLA"].effective == "on"
    # Forward and backward pass of trunk and encoder, whatever the number of blocks, and the update.
    assert trainer.ledger["XLA"].reason == "5 compiled programs in the step"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradient_of_a_bias_on_a_gpu_is_the_sum_over_rows(dtype, monkeypatch):
    monkeypatch.setattr(layers, "has_gpu", lambda: True)
    x, bias = tf.cast(tf.random.stateless_normal((3, 50, 8), (0, 2)), dtype), tf.ones(8, dtype)
    with tf.GradientTape() as tape:
        tape.watch((x, bias))
        output = layers.add_bias(x, bias)
        loss = tf.reduce_sum(tf.cast(output, tf.float32) ** 2)
    of_x, of_bias = tape.gradient(loss, (x, bias))
    np.testing.assert_array_equal(output, x + 1)
    np.testing.assert_array_equal(of_x, 2 * output)
    expected = tf.reduce_sum(2 * tf.cast(output, tf.float32), axis=(0, 1))
    np.testing.assert_allclose(tf.cast(of_bias, tf.float32), expected, rtol=0.01)


@pytest.mark.parametrize(
    "preset, device, deterministic, steps_per_shape, before, expected",
    [
        ("balanced", "/GPU:0", False, 2000, None, True),
        ("balanced", "/GPU:0", False, 1999, None, False),
        ("balanced", "/GPU:0", True, 9000, None, False),
        ("balanced", "/CPU:0", False, 9000, None, False),
        ("balanced", "/GPU:0", False, 9000, {"xla": False}, False),
        ("balanced", "/GPU:0", True, 9, {"xla": True}, True),
        ("aggressive", "/GPU:0", False, 9, None, True),
        ("aggressive", "/CPU:0", False, 9000, None, False),
    ],
)
def test_presets_compile_on_gpus_where_it_pays(
    preset, device, deterministic, steps_per_shape, before, expected, monkeypatch
):
    monkeypatch.setattr("myxtts.training.loop.switches.xla_refusal", lambda device: None)
    monkeypatch.setattr("myxtts.training.loop.switches.rounds_to_tf32", lambda device: False)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    training = TrainingConfig(optimizations=preset, precision="float32", deterministic=deterministic)
    monkeypatch.setattr("myxtts.training.loop.switches.choose_attention", lambda *given: ("standard", "measured"))
    model = tiny_run_config().model
    switches = settle_switches(training, model, device, before=before, steps_per_shape=steps_per_shape)
    assert switches.xla is expected and switches.reasons["xla"]
    if switches.xla and not before:
        assert switches.attention == "standard"
