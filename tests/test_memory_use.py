"""Memory-efficient attention and recomputed blocks: equality with the plain versions, and memory."""

import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tiny import tiny_model_config

from myxtts.models import attention as attention_module
from myxtts.models.attention import attention, memory_efficient_attention
from myxtts.models.layers import Dropout
from myxtts.models.xtts import XTTS, named_weights
from myxtts.training.loop.switches import attention_forms, choose_attention, recompute, recomputed_blocks

CHUNK = 4
SEED = np.array([1, 2], "int32")


@pytest.fixture
def short_chunks(monkeypatch):
    """Sets chunks of four keys, so that a few positions need several chunks."""
    monkeypatch.setattr("myxtts.models.attention.CHUNK", CHUNK)


def random_inputs(num_queries, num_keys, dtype="float32"):
    random = np.random.default_rng(num_queries * 100 + num_keys)
    shapes = [(2, 3, num_queries, 8), (2, 3, num_keys, 8), (2, 3, num_keys, 8), (2, 3, num_queries, 8)]
    key_mask = random.random((2, num_keys)) < 0.7
    key_mask[:, 0] = True
    return [tf.cast(random.standard_normal(shape), dtype) for shape in shapes], key_mask


def output_and_gradients(function, tensors):
    query, key, value, direction = tensors
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = function(query, key, value)
        loss = tf.reduce_sum(tf.cast(output * direction, tf.float32))
    return [output, *tape.gradient(loss, [query, key, value])]


def assert_all_close(actual, expected, tolerance):
    for one, other in zip(actual, expected, strict=True):
        one, other = (tf.cast(x, tf.float64).numpy() for x in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance * max(1.0, np.abs(other).max()), rtol=0)


@pytest.mark.parametrize("lengths_known", [True, False])
@pytest.mark.parametrize(
    "num_queries, num_keys, causal, masked",
    [(11, 11, True, True), (12, 12, True, False), (3, 3, True, True), (5, 13, False, True), (9, 4, False, False)],
)
def test_memory_efficient_attention_equals_the_standard_one(
    short_chunks, num_queries, num_keys, causal, masked, lengths_known
):
    tensors, key_mask = random_inputs(num_queries, num_keys)
    key_mask = key_mask if masked else None
    expected = output_and_gradients(lambda q, k, v: attention(q, k, v, key_mask, causal), tensors)
    shape = None if lengths_known else (None, 3, None, 8)
    signature = [tf.TensorSpec(shape or x.shape, x.dtype) for x in tensors]

    @tf.function(input_signature=signature)
    def efficient(*tensors):
        return output_and_gradients(lambda q, k, v: memory_efficient_attention(q, k, v, key_mask, causal), tensors)

    assert_all_close(efficient(*tensors), expected, 1e-5)


@pytest.mark.parametrize("num_queries, num_keys, causal, masked", [(11, 11, True, True), (9, 4, False, False)])
def test_attention_with_dropout_equals_tensorflow(num_queries, num_keys, causal, masked):
    tensors, key_mask = random_inputs(num_queries, num_keys)
    key_mask = key_mask if masked else None
    dropout = Dropout(0.4, site=2)
    keep = dropout.keep_mask((2, 3, num_queries, num_keys), SEED)

    def derived(query, key, value):
        scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(query.shape[-1])
        seen = tf.ones_like(scores, tf.bool)
        if causal:
            seen = tf.linalg.band_part(seen, -1, 0)
        if masked:
            seen = tf.logical_and(seen, tf.convert_to_tensor(key_mask)[:, None, None])
        weights = tf.nn.softmax(tf.where(seen, scores, -1e30))
        return tf.matmul(tf.where(tf.cast(keep, tf.bool), weights / 0.6, 0.0), value)

    assert_all_close(
        output_and_gradients(lambda q, k, v: attention(q, k, v, key_mask, causal, dropout, keep), tensors),
        output_and_gradients(derived, tensors),
        1e-5,
    )


@pytest.mark.parametrize("dtype, tolerance", [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_memory_efficient_attention_in_half_precision_is_as_near_as_the_format(short_chunks, dtype, tolerance):
    tensors, key_mask = random_inputs(11, 11)
    expected = output_and_gradients(lambda q, k, v: attention(q, k, v, key_mask, True), tensors)
    half = [tf.cast(x, dtype) for x in tensors]
    actual = output_and_gradients(lambda q, k, v: memory_efficient_attention(q, k, v, key_mask, True), half)
    assert {x.dtype for x in actual} == {tf.as_dtype(dtype)}
    assert_all_close(actual, expected, tolerance)


def test_compiled_memory_efficient_attention_equals_the_standard_one(short_chunks):
    tensors, key_mask = random_inputs(11, 11)
    expected = output_and_gradients(lambda q, k, v: attention(q, k, v, key_mask, True), tensors)
    compiled = tf.function(jit_compile=True)(
        lambda *t: output_and_gradients(lambda q, k, v: memory_efficient_attention(q, k, v, key_mask, True), t)
    )
    assert_all_close(compiled(*tensors), expected, 1e-5)


def test_bounds_of_chunks_are_constants_of_the_graph(short_chunks):
    # XLA evaluates a slice's bounds, and all that they come from, while it compiles: minutes at 900 positions.
    tensors, _ = random_inputs(11, 11)
    dropout = Dropout(0.4, site=2)
    graph = (
        tf.function(
            lambda *t: output_and_gradients(
                lambda q, k, v: memory_efficient_attention(q, k, v, None, True, dropout, SEED), t
            )
        )
        .get_concrete_function(*tensors)
        .graph
    )
    slices = [operation for operation in graph.get_operations() if operation.type in ("Slice", "StridedSlice")]
    assert slices
    for operation in slices:
        assert all(tf.get_static_value(bound) is not None for bound in operation.inputs[1:]), operation.name


def test_gradient_of_memory_efficient_attention_knows_its_dropout(short_chunks):
    (query, key, value, direction), _ = random_inputs(10, 10)
    dropout = Dropout(0.4, site=2)

    def loss(query, key, value):
        output = memory_efficient_attention(query, key, value, None, True, dropout, SEED)
        return tf.reduce_sum(tf.cast(output * direction, tf.float64)).numpy()

    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        total = tf.reduce_sum(memory_efficient_attention(query, key, value, None, True, dropout, SEED) * direction)
    gradients = tape.gradient(total, [query, key, value])
    random = np.random.default_rng(0)
    for position, gradient in enumerate(gradients):
        step = tf.constant(random.standard_normal(gradient.shape) * 1e-2, tf.float32)
        ahead, behind = (
            [x + sign * step if i == position else x for i, x in enumerate((query, key, value))] for sign in (1, -1)
        )
        expected = (loss(*ahead) - loss(*behind)) / 2
        assert float(tf.reduce_sum(gradient * step)) == pytest.approx(expected, rel=2e-2, abs=2e-4)


def test_memory_efficient_dropout_drops_its_share_in_every_chunk(short_chunks):
    # Equal scores and identity values: the output is the weights that were kept.
    zeros, values = tf.zeros((1, 2, 64, 32)), tf.tile(tf.eye(32)[None, None], (1, 2, 1, 1))
    kept = memory_efficient_attention(zeros, zeros[:, :, :32], values, None, False, Dropout(0.25), SEED).numpy() > 0
    np.testing.assert_allclose(kept.reshape(2, 64, -1, CHUNK).mean((0, 1, 3)), 0.75, atol=0.1)
    assert len({kept[..., start : start + CHUNK].tobytes() for start in range(0, 32, CHUNK)}) == 32 // CHUNK


def peak_bytes(function, length):
    """Returns the peak of additional bytes in use during a call, forward and backward."""
    tensors, _ = random_inputs(length, length)
    traced = tf.function(
        lambda *t: output_and_gradients(function, t), input_signature=[tf.TensorSpec((None, 3, None, 8))] * 4
    ).get_concrete_function()
    return peak_of(traced, *tensors)


def peak_of(traced, *tensors):
    """Returns the peak of additional bytes in use during a call: the minimum of several calls after the first, because
    on a busy machine, operations that hold memory may wait for one another."""
    peaks = []
    traced(*tensors)
    for _ in range(8):
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        traced(*tensors)
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
    return min(peaks)


def peaks_by_length():
    """Returns `{form: {length: bytes}}` of attention, forward and backward."""
    attention_module.CHUNK = 64
    forms = {
        "efficient": lambda q, k, v: memory_efficient_attention(q, k, v, None, True, Dropout(0.1), SEED),
        "standard": lambda q, k, v: attention(q, k, v, None, True),
    }
    return {form: {length: peak_bytes(function, length) for length in (512, 2048)} for form, function in forms.items()}


def print_peaks():
    """Must run in its own process, because TensorFlow's CPU allocator only counts with oneDNN."""
    tf.config.threading.set_inter_op_parallelism_threads(1)  # two would hold what chance has them make at one time
    print(json.dumps({"by_length": peaks_by_length(), "by_blocks": peaks_by_blocks()}))


@pytest.fixture(scope="module")
def peaks():
    """Returns the output of `print_peaks` in its own process."""
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    start = "from myxtts.devices import tensorflow_start; tensorflow_start.import_sparingly()"
    command = [sys.executable, "-c", f"{start}; import test_memory_use; test_memory_use.print_peaks()"]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": paths}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_peak_memory_grows_linearly_with_the_sequence(peaks):
    peaks = peaks["by_length"]
    growth = {form: by_length["2048"] / by_length["512"] for form, by_length in peaks.items()}
    assert growth["efficient"] < 7.0 < 12.0 < growth["standard"], peaks  # linear: 4, quadratic: 16
    assert peaks["efficient"]["2048"] < 0.3 * peaks["standard"]["2048"], peaks


@functools.cache
def gpt_gradients(precision="float32", attention="standard", recompute=None):
    """Returns loss, gradients by name and graph of a GPT with dropout; with recomputation, lengths are unknown."""
    model = small_gpt(precision, attention, recompute)
    random = np.random.default_rng(3)
    mel = random.standard_normal((2, 9, 80)).astype("float32")
    text, audio = random.integers(0, 9, (2, 5)), random.integers(0, 9, (2, 11))
    key_mask = np.ones((2, 16), bool)
    key_mask[1, 12:] = False
    named = {name: v for name, v in named_weights(model.gpt).items() if v.trainable}
    shapes = [[None if recompute and axis else length for axis, length in enumerate(x.shape)] for x in (text, audio)]

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, 80) if recompute else mel.shape),
            tf.TensorSpec(shapes[0], tf.int32),
            tf.TensorSpec(shapes[1], tf.int32),
            tf.TensorSpec((2, None if recompute else 16), tf.bool),
        ],
        autograph=False,
    )
    def run(mel, text, audio, key_mask):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            values = [v.value for v in named.values()]
            tape.watch(values)
            logits = model.gpt(model.gpt.mel_to_latents(mel), text, audio, key_mask=key_mask, seed=SEED)
            loss = sum(tf.reduce_mean(tf.nn.log_softmax(part)[..., 3]) for part in logits)
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, values)]

    loss, gradients = run(mel, text, audio, key_mask)
    return loss, dict(zip(named, gradients)), run.get_concrete_function().graph


def small_gpt(precision, attention, recompute):
    keras.utils.set_random_seed(1)
    model = XTTS(tiny_model_config(dropout=0.3, conditioning_blocks=2), parts=("gpt",), precision=precision)
    for block in model.gpt.conditioning_encoder.blocks:
        for variable in block.output_projection.weights:  # starts at zero, which hides what is before it
            variable.assign(np.random.default_rng(2).standard_normal(variable.shape))
    model.gpt.set_memory_use(attention, recompute)
    return model


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_recomputed_gradients_equal_the_plain_ones_with_dropout_on(precision):
    plain_loss, plain, _ = gpt_gradients(precision)
    loss, gradients, _ = gpt_gradients(precision, recompute=recompute)
    assert float(loss) == pytest.approx(float(plain_loss), rel=1e-6)
    for name, expected in plain.items():
        difference = np.linalg.norm(gradients[name].numpy() - expected.numpy())
        assert difference <= 1e-5 * np.linalg.norm(expected.numpy()), name


def peaks_by_blocks():
    """Returns `{blocks: bytes}` of a gradient through this number of recomputed blocks."""
    x, peaks = tf.ones((512, 64)), {}
    for blocks in (1, 8):
        dense = [(keras.layers.Dense(1024), keras.layers.Dense(64)) for _ in range(blocks)]

        @tf.function(autograph=False)
        def step(x, dense=dense):
            with tf.GradientTape() as tape:
                for number, (wide, narrow) in enumerate(dense):
                    x = x + recompute(lambda x, a=wide, b=narrow: b(ops.gelu(a(x))), f"block_{number}")(x)
                loss = tf.reduce_sum(x**2)
            return tape.gradient(loss, [v.value for pair in dense for layer in pair for v in layer.trainable_variables])

        for wide, narrow in dense:
            wide.build((None, 64))
            narrow.build((None, 1024))
        peaks[blocks] = peak_of(step, x)
    return peaks


def test_recomputed_values_of_a_block_are_freed_before_the_next(peaks):
    # Inputs and weight gradients take 0.6 MB per block, recomputed values about 8 MB.
    peaks = peaks["by_blocks"]
    assert peaks["8"] < 2 * peaks["1"], peaks


def test_graph_shows_which_blocks_are_recomputed_and_the_kind_of_attention():
    def facts(*memory_use):
        graph = gpt_gradients("float32", *memory_use)[2]
        return recomputed_blocks(graph), attention_forms(graph)

    assert facts() == (set(), {"standard": 4})
    blocks = {"block_0", "block_1", "conditioning_block_0", "conditioning_block_1"}
    assert facts("memory-efficient", recompute) == (blocks, {"memory-efficient": 4})


@pytest.mark.parametrize("ratio, form", [(0.6, "memory-efficient"), (1.04, "memory-efficient"), (1.2, "standard")])
def test_choice_of_attention_follows_the_time_at_the_longest_sequence(monkeypatch, ratio, form):
    times = iter([1.0, ratio])
    monkeypatch.setattr("myxtts.training.loop.switches._seconds", lambda *_: next(times))
    config = tiny_model_config(num_latents=32, max_text_tokens=402, max_audio_tokens=764)
    chosen, reason = choose_attention(config, "float32", "/CPU:0")
    assert chosen == form and f"{ratio:.2f}" in reason and "1200" in reason


def test_choice_of_attention_is_measured_on_the_real_layers(monkeypatch):
    monkeypatch.setattr("myxtts.training.loop.switches.attend", attend := Mock(wraps=attention_module.attend))
    form, reason = choose_attention(tiny_model_config(), "mixed_bfloat16", "/CPU:0")
    traced = [(use.form, query.shape[2], query.dtype.name) for (use, query, *_), _ in attend.call_args_list]
    assert traced == [("standard", 78, "bfloat16"), ("memory-efficient", 78, "bfloat16")]
    assert form in ("standard", "memory-efficient") and "tokens" in reason
