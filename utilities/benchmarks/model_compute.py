"""Measures tokens per second and model FLOPs utilization (MFU) of a GPT training step on TensorFlow or JAX.

    KERAS_BACKEND=tensorflow python utilities/benchmarks/model_compute.py --sizes tiny small --batches 1 4
    KERAS_BACKEND=jax python utilities/benchmarks/model_compute.py --sizes normal --precisions mixed_bfloat16

The step (forward, backward, AdamW) is compiled as a whole, from the same model code. Only Keras and the backend must be
installed. MFU counts the operations of the model, without recomputation under `--gradient-checkpointing` (Chowdhery et
al. 2022, appendix B). The peak is `--peak-tflops`, or measured by a large matrix product in the precision of the step.
`--append` adds the table to docs/benchmarks.md.
"""

import argparse
import os
import sys
import timeit

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from bench_extra import append_table, import_extra  # noqa: E402  must be imported before TensorFlow
from keras import ops  # noqa: E402

from myxtts.config.config import ModelConfig  # noqa: E402
from myxtts.config.model import MODEL_SIZES  # noqa: E402
from myxtts.models.gpt import teacher_forcing  # noqa: E402
from myxtts.models.xtts import XTTS  # noqa: E402

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
LEARNING_RATE = 1e-4
PRODUCT_SECONDS = 0.05
"""Minimum duration of the matrix product that measures the peak, so that its launch time is negligible."""
HEADER = ["size", "precision", "batch", "tokens", "step", "tokens/s", "TFLOP/s", "peak TFLOP/s", "MFU"]


def main():
    """Measures each size, precision and batch and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=MODEL_SIZES, default=["tiny"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["float32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--text", type=int, default=60, help="text tokens (default: 60)")
    parser.add_argument("--codes", type=int, default=250, help="audio codes (default: 250, which fits every size)")
    parser.add_argument("--frames", type=int, default=258, help="frames of the conditioning mel (default: 258)")
    parser.add_argument("--attention", choices=("standard", "memory-efficient"), default="standard")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--peak-tflops", type=float, metavar="N", help="peak of the chip (default: measured)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps, for the median (default: 5)")
    parser.add_argument("--append", action="store_true", help="write the table to docs/benchmarks.md")
    arguments = parser.parse_args()
    rows = [
        measure(size, precision, batch, arguments)
        for size in arguments.sizes
        for precision in arguments.precisions
        for batch in arguments.batches
    ]
    append_table("Compute of a GPT training step", "model_compute.py", HEADER, rows, arguments.append)


def remat():
    """Returns the function that recomputes segments; on TensorFlow, the one that training uses."""
    if keras.backend.backend() != "tensorflow":
        return lambda segment, block: keras.remat(segment)
    from myxtts.training.loop.switches import recompute

    return recompute


def measure(size, precision, batch, arguments):
    """Measures one row of the table."""
    config = ModelConfig(size, num_text_tokens=512)
    keras.utils.set_random_seed(0)
    model = XTTS(config, parts=("gpt",), precision=precision)
    model.gpt.set_memory_use(arguments.attention, remat() if arguments.gradient_checkpointing else None)
    compute_dtype = model.gpt.compute_dtype
    step = compiled_step(model.gpt, random_batch(config, batch, arguments))
    spent = median_time(step, arguments.repeats)
    tokens = batch * (config.num_latents + arguments.text + arguments.codes + 7)
    rate = step_flops(config, batch, arguments.text, arguments.codes, arguments.frames) / spent
    peak = 1e12 * arguments.peak_tflops if arguments.peak_tflops else product_rate(compute_dtype)
    figures = [f"{1e3 * spent:.1f} ms", f"{tokens / spent:,.0f}", f"{rate / 1e12:.3g}", f"{peak / 1e12:.3g}"]
    return [size, precision, batch, tokens, *figures, f"{100 * rate / peak:.0f} %"]


def step_flops(config, batch, num_text, num_codes, frames):
    """Returns the floating-point operations of all matrix products of one GPT step, forward and backward."""
    width, latents = config.width, config.num_latents
    tokens = latents + num_text + 2 + num_codes + 5
    trunk = config.layers * (12 * width * width * tokens + 2 * tokens * tokens * width)
    heads = width * ((num_text + 2) * config.num_text_tokens + (num_codes + 5) * config.num_audio_tokens)
    conditioning = 80 * width * frames + config.conditioning_blocks * (
        4 * width * width * frames + 2 * frames * frames * width
    )
    inner, hidden = config.perceiver_heads * config.perceiver_head_width, width * 8 // 3
    perceiver = config.perceiver_depth * (
        width * inner * (2 * latents + 2 * (latents + frames))
        + 2 * latents * (latents + frames) * inner
        + 3 * latents * width * hidden
    )
    return 3 * 2 * batch * (trunk + heads + conditioning + perceiver)


def random_batch(config, batch, arguments):
    """Returns a conditioning mel and `TeacherForcing` of random numbers, without padding."""
    random = np.random.default_rng(0)
    mel = random.standard_normal((batch, arguments.frames, config.num_mels)).astype("float32")
    text = random.integers(4, config.num_text_tokens, (batch, arguments.text)).astype("int32")
    codes = random.integers(0, config.num_codes, (batch, arguments.codes)).astype("int32")
    lengths = [np.full(batch, part.shape[1], "int32") for part in (text, codes)]
    streams = teacher_forcing(config, *map(ops.convert_to_tensor, (text, lengths[0], codes, lengths[1])))
    return ops.convert_to_tensor(mel), streams


def loss_of(gpt, mel, streams, seed):
    """Returns the mean cross-entropy of the codes plus 0.01 times the cross-entropy of the text, as in XTTS."""
    latents = gpt.mel_to_latents(mel)
    logits = gpt(latents, streams.text_inputs, streams.audio_inputs, key_mask=streams.key_mask, seed=seed)
    text, audio = (
        ops.mean(keras.losses.sparse_categorical_crossentropy(targets, part, from_logits=True))
        for targets, part in zip((streams.text_targets, streams.audio_targets), logits)
    )
    return 0.01 * text + audio


def compiled_step(gpt, batch):
    """Returns a function without arguments that takes one training step on `batch` and waits for it."""
    optimizer = keras.optimizers.AdamW(LEARNING_RATE)
    optimizer.build(gpt.trainable_variables)
    make = {"tensorflow": tensorflow_step, "jax": jax_step}
    backend = keras.backend.backend()
    if backend not in make:
        sys.exit(f"KERAS_BACKEND must be one of {', '.join(make)}. Received: {backend}.")
    return make[backend](gpt, optimizer, *batch)


def tensorflow_step(gpt, optimizer, mel, streams):
    """Implements `compiled_step` on TensorFlow, with XLA on GPUs only."""
    import tensorflow as tf

    variables = gpt.trainable_variables

    @tf.function(jit_compile=bool(tf.config.get_visible_devices("GPU")))
    def step(mel, streams, seed):
        with tf.GradientTape() as tape:
            loss = loss_of(gpt, mel, streams, seed)
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return loss

    seed = tf.constant([0, 1], tf.int32)
    return lambda: float(step(mel, streams, seed))


def jax_step(gpt, optimizer, mel, streams):
    """Implements `compiled_step` on JAX; updates weights and optimizer slots in place."""
    jax = import_extra("jax")
    variables = gpt.trainable_variables

    def loss(weights, mel, streams, seed):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights))):
            return loss_of(gpt, mel, streams, seed)

    def step(weights, slots, mel, streams, seed):
        value, gradients = jax.value_and_grad(loss)(weights, mel, streams, seed)
        return value, *optimizer.stateless_apply(slots, gradients, weights)

    step = jax.jit(step, donate_argnums=(0, 1))
    state = [[v.value for v in variables], [v.value for v in optimizer.variables]]
    seed = jax.numpy.array([0, 1], "int32")

    def run():
        value, *state[:] = step(*state, mel, streams, seed)
        return float(value)

    return run


def median_time(function, repeats):
    """Returns the median seconds of `repeats` calls, after two warm-up calls."""
    return float(np.median(timeit.repeat(function, number=1, repeat=2 + repeats)[2:]))


def product_rate(dtype):
    """Measures the operations per second of a square matrix product that takes `PRODUCT_SECONDS` or more."""
    width = 512
    while True:
        x = ops.cast(ops.ones((width, width)), dtype)
        spent = median_time(lambda x=x: float(ops.matmul(x, x)[0, 0]), 3)
        if spent >= PRODUCT_SECONDS:
            return 2 * width**3 / spent
        width *= 2


if __name__ == "__main__":
    main()
