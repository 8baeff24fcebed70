"""The switches of training: what is asked for, what the hardware lets be applied, and recomputation."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import keras
import tensorflow as tf

from myxtts.config.config import ModelConfig, TrainingConfig
from myxtts.config.optimizations import SWITCHES, requested_switches
from myxtts.devices.kinds import choose_precision
from myxtts.models.layers.attention import MEMORY_EFFICIENT, STANDARD, MemoryUse, attend
from myxtts.models.layers.dropout import Dropout

SHORTEST = 256
"""Tokens of the shortest trial; below it one form is as good as the other."""
SLOWER_BY = 1.05
"""Ratio of times up to which the memory-efficient form counts as no slower."""
REPEATS = 3
RECOMPUTED = "recomputed_"
"""Prefix of the name scope of operations made in the backward pass, before the name of the block."""


class Switches(SimpleNamespace):
    """What is applied on this machine; each of `config.optimizations.SWITCHES` is an attribute. In addition:

    - `requested`, `{switch: (value, source)}`, see `requested_switches`;
    - `reasons`, `{switch: why it is applied as it is}`, where there is something to say.
    """

    def applied(self) -> dict:
        """What is applied by the name of the switch, as JSON values: a resumed run keeps what was measured."""
        return {name: getattr(self, name) for name in SWITCHES}

    def asked(self, name: str) -> tuple[object, str]:
        """The requested value of a switch, and the same in words, with its source."""
        value, source = self.requested[name]
        return value, f"{on_or_off(value) if isinstance(value, bool) else value} ({source})"


def on_or_off(value: bool) -> str:
    """`on` or `off`."""
    return "on" if value else "off"


def settle_switches(
    training: TrainingConfig,
    model_config: ModelConfig,
    device: str,
    applicable: tuple[str, ...] = tuple(SWITCHES),
    before: dict | None = None,
    default_ema: float = 0.0,
) -> Switches:
    """Decides which of the switches that `training` asks for are applied, and sets TF32 and determinism, which
    TensorFlow has one setting for in a process; determinism stays on from then on.

    `--attention auto` is measured at the longest sequence of the model, unless `before`, the `Switches.applied` of the
    resumed run, has it: two measurements may differ, and the forms round differently. `applicable` are the switches
    that mean something for what is trained; the others stay at their defaults. `default_ema` is the stage's own.
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
        values["attention"], reasons["attention"] = earlier, "as in the checkpoint that the run continues from"
    elif values["attention"] == "auto":
        values["attention"], reasons["attention"] = choose_attention(model_config, values["precision"], device)
    refusal = xla_refusal(device) if values["xla"] else None
    if refusal:
        values["xla"], reasons["xla"] = False, f"XLA cannot compile for {device}: {refusal}"
    return Switches(**values, requested=requested, reasons=reasons)


def xla_refusal(device: str) -> str | None:
    """TensorFlow's message when it cannot compile for `device`; None when it can."""
    double = tf.function(lambda x: x + x, jit_compile=True)
    try:
        with tf.device(device):
            double(tf.constant(1.0))
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return None


def choose_attention(model_config: ModelConfig, precision: str, device: str) -> tuple[str, str]:
    """The quicker form of attention, `standard` or `memory-efficient`, and the measurement in words.

    Forward and backward of one layer are timed in both forms, from the longest sequence of the model downwards. A
    measurement and not a table: the length depends on processor, precision (a Keras dtype policy) and width of the
    heads. It takes about as long as tracing the two functions, some seconds.
    """
    heads, width = model_config.heads, model_config.width // model_config.heads
    longest = model_config.num_latents + model_config.max_text_tokens + 2 + model_config.max_audio_tokens
    dtype = keras.DTypePolicy(precision).compute_dtype
    dropout = Dropout(model_config.dropout)
    with tf.device(device):
        signature = tf.TensorSpec((None, heads, None, width), dtype)
        steps = {form: _layer(form, dropout, signature) for form in (STANDARD, MEMORY_EFFICIENT)}
        ratios, crossover, length = {}, None, longest
        while length >= min(SHORTEST, longest):
            tensors = [tf.random.stateless_normal((1, heads, length, width), (0, i), dtype=dtype) for i in range(3)]
            times = {form: _best_time(step, tensors) for form, step in steps.items()}
            ratios[length] = times[MEMORY_EFFICIENT] / times[STANDARD]
            if ratios[length] > SLOWER_BY:
                break
            crossover, length = length, length // 2
    measured = ", ".join(f"{ratio:.2f} at {length}" for length, ratio in sorted(ratios.items()))
    found = "slower at the longest" if crossover is None else f"no slower from {crossover} tokens"
    reason = f"memory-efficient attention is {found}: times the standard form's time {measured}"
    return STANDARD if crossover is None else MEMORY_EFFICIENT, reason


def _layer(form, dropout, signature):
    @tf.function(input_signature=[signature] * 3)
    def forward_and_backward(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output = attend(MemoryUse(form), query, key, value, causal=True, dropout=dropout, seed=tf.constant([0, 1]))
        return tape.gradient(output, (query, key, value))

    return forward_and_backward


def _best_time(step, tensors):
    times = []
    for _ in range(REPEATS + 1):  # the first call warms caches
        began = time.perf_counter()
        step(*tensors)[0][0, 0, 0, 0].numpy()  # waits for the device
        times.append(time.perf_counter() - began)
    return min(times[1:])


def recompute(segment: Callable, block: str) -> Callable:
    """`segment` of a block, recomputed in its backward pass (Chen et al. 2016): only arguments and result are kept.

    Operations that the gradient does not need, such as a product at the end of the segment, are pruned by graph and
    compiler. The recomputed operations have `block` in their names.
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
    """`function`, whose gradient reaches its tensors only after that of its weights is computed.

    TensorFlow's executor runs first what became ready last, so the gradients of weights, and with them their recomputed
    operands, would wait until all blocks are through. Grappler removes control dependencies; a sum stays.
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
                zero = tf.where(tf.equal(first, first), 0.0, 1.0)  # for all that optimizers know, any number
                of_tensors = [one + tf.cast(zero, one.dtype) for one in of_tensors]
            return of_tensors, of_weights

        return result, gradient

    return gated
