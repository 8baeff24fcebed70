"""Training switches, as requested and as the hardware allows, and recomputation of activations."""

import timeit
from collections.abc import Callable
from types import SimpleNamespace

import keras
import tensorflow as tf

from myxtts.config.config import ModelConfig, TrainingConfig
from myxtts.config.training import SWITCHES, requested_switches
from myxtts.devices.machine import choose_precision
from myxtts.models.layers.attention import MEMORY_EFFICIENT, STANDARD, MemoryUse, attend
from myxtts.models.layers.dropout import Dropout

SLOWER_BY = 1.05
"""Largest ratio of times at which the memory-efficient form of attention counts as no slower."""
REPEATS = 3
RECOMPUTED = "recomputed_"
"""Prefix of a block's name in the name scope of its recomputed operations."""


class Switches(SimpleNamespace):
    """Training switches as applied on this machine.

    Has an attribute for each of `config.optimizations.SWITCHES`, and `requested`, `{switch: (value, source)}`, see
    `requested_switches`, and `reasons`, `{switch: explanation}`, for some switches.
    """

    def applied(self) -> dict:
        """Applied values by switch, as JSON; a resumed run keeps the measured ones."""
        return {name: getattr(self, name) for name in SWITCHES}

    def asked(self, name: str) -> tuple[object, str]:
        """The requested value of a switch, and its text with the source."""
        value, source = self.requested[name]
        return value, f"{on_or_off(value) if isinstance(value, bool) else value} ({source})"


def on_or_off(value: bool) -> str:
    return "on" if value else "off"


def settle_switches(
    training: TrainingConfig,
    model_config: ModelConfig,
    device: str,
    applicable: tuple[str, ...] = tuple(SWITCHES),
    before: dict | None = None,
    default_ema: float = 0.0,
) -> Switches:
    """Resolves the requested switches for a device, and sets TF32 and determinism for the whole process.

    Args:
        applicable: Switches that the stage has; the others keep their defaults.
        before: `Switches.applied` of the run to resume. Its attention is kept, because another measurement may choose
            another form, which rounds differently.
        default_ema: Decay of weight averages, where neither settings nor preset name one.
    """
    requested = requested_switches(training)
    if requested["ema"][1] == "default" and default_ema:
        requested["ema"] = default_ema, "default of the stage"
    values = {name: value if name in applicable else SWITCHES[name] for name, (value, _) in requested.items()}
    reasons = {}
    values["precision"], reasons["precision"] = choose_precision(values["precision"], device)
    values["tf32"] = values["tf32"] is not False
    tf.config.experimental.enable_tensor_float_32_execution(values["tf32"])
    if training.deterministic:
        tf.config.experimental.enable_op_determinism()
    earlier = (before or {}).get("attention")
    if values["attention"] == "auto" and earlier in (STANDARD, MEMORY_EFFICIENT):
        values["attention"], reasons["attention"] = earlier, "as in the resumed checkpoint"
    elif values["attention"] == "auto":
        values["attention"], reasons["attention"] = choose_attention(model_config, values["precision"], device)
    refusal = xla_refusal(device) if values["xla"] else None
    if refusal:
        values["xla"], reasons["xla"] = False, f"XLA cannot compile for {device}: {refusal}"
    return Switches(**values, requested=requested, reasons=reasons)


def xla_refusal(device: str) -> str | None:
    """TensorFlow's error message if XLA cannot compile for `device`, else None."""
    double = tf.function(lambda x: x + x, jit_compile=True)
    try:
        with tf.device(device):
            double(tf.constant(1.0))
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return None


def choose_attention(model_config: ModelConfig, precision: str, device: str) -> tuple[str, str]:
    """Returns the faster form of attention, `standard` or `memory-efficient`, and the measurement as text.

    Times the forward and backward pass of one layer in both forms, at the model's longest sequence. Which one is faster
    depends on processor, precision (a Keras dtype policy) and head width. Takes a few seconds, mostly for tracing.
    """
    heads, width = model_config.heads, model_config.width // model_config.heads
    longest = model_config.num_latents + model_config.max_text_tokens + 2 + model_config.max_audio_tokens
    dtype = keras.DTypePolicy(precision).compute_dtype
    with tf.device(device):
        tensors = [tf.random.stateless_normal((1, heads, longest, width), (0, i), dtype=dtype) for i in range(3)]
        standard, efficient = (
            _seconds(form, tensors, Dropout(model_config.dropout)) for form in (STANDARD, MEMORY_EFFICIENT)
        )
    ratio = efficient / standard
    reason = f"memory-efficient attention takes {ratio:.2f} times as long as standard at {longest} tokens"
    return STANDARD if ratio > SLOWER_BY else MEMORY_EFFICIENT, reason


def _seconds(form, tensors, dropout):
    @tf.function
    def forward_and_backward(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output = attend(MemoryUse(form), query, key, value, causal=True, dropout=dropout, seed=tf.constant([0, 1]))
        return tape.gradient(output, (query, key, value))

    run = lambda: forward_and_backward(*tensors)[0][0, 0, 0, 0].numpy()  # reading a value waits for the device
    return min(timeit.repeat(run, number=1, repeat=REPEATS + 1)[1:])  # the first call traces


def recompute(segment: Callable, block: str) -> Callable:
    """Wraps a segment of a block so that the backward pass recomputes its activations (Chen et al. 2016).

    Only its arguments and result are kept. The recomputed operations have `block` in their names; graph and compiler
    prune those that the gradient does not need.
    """
    forward = True

    def named(*tensors):
        nonlocal forward
        if forward:
            forward = False
            return segment(*tensors)
        with keras.name_scope(RECOMPUTED + block):
            return segment(*tensors)

    return weights_first(keras.remat(named))


def weights_first(function: Callable) -> Callable:
    """Wraps a function so that the gradients of its weights are computed before those of its tensors are passed on.

    TensorFlow's executor starts with the operations that became ready last, so the gradients of weights, and the
    recomputed operands that they hold, would wait for all blocks. Grappler removes control dependencies, but not a sum.
    """

    @tf.custom_gradient
    def gated(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)

        def gradient(*upstream, variables=()):
            upstream = upstream if isinstance(result, tuple) else upstream[0]
            of_tensors, of_weights = tape.gradient(result, (tensors, list(variables)), upstream)
            if of_weights:
                first = tf.reduce_max([tf.cast(tf.reshape(one, [-1])[0], "float32") for one in of_weights]) > 0
                zero = tf.where(tf.equal(first, first), 0.0, 1.0)  # no graph optimizer folds this to a constant
                of_tensors = [one + tf.cast(zero, one.dtype) for one in of_tensors]
            return of_tensors, of_weights

        return result, gradient

    return gated
