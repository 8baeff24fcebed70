"""`--attention auto`: the length from which memory-efficient attention costs no time, measured where it will run."""

import time
from dataclasses import dataclass

import keras
import tensorflow as tf

from myxtts.config.config import ModelConfig
from myxtts.models.layers.attention import MEMORY_EFFICIENT, STANDARD, MemoryUse, attend
from myxtts.models.layers.dropout import Dropout

SHORTEST = 256
"""Tokens of the shortest trial; below it one form is as good as the other."""
SLOWER_BY = 1.05
"""Ratio of times up to which the memory-efficient form counts as no slower."""
REPEATS = 3


@dataclass(frozen=True)
class AttentionChoice:
    """What was measured and what follows from it: `standard` or `memory-efficient` attention."""

    form: str
    crossover: int | None
    """Shortest tried length in tokens from which the memory-efficient form is no slower; None if it always is."""
    ratios: dict[int, float]
    """Time of the memory-efficient form over that of the standard one, by length in tokens."""

    @property
    def reason(self) -> str:
        """The measurement in words."""
        measured = ", ".join(f"{ratio:.2f} at {length}" for length, ratio in sorted(self.ratios.items()))
        found = "slower at the longest" if self.crossover is None else f"no slower from {self.crossover} tokens"
        return f"memory-efficient attention is {found}: times the standard form's time {measured}"


def choose_attention(model_config: ModelConfig, precision: str, device: str) -> AttentionChoice:
    """Times forward and backward of one layer in both forms, from the longest sequence of the model downwards.

    A measurement and not a table: the length depends on processor, precision (a Keras dtype policy) and width of the
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
    return AttentionChoice(STANDARD if crossover is None else MEMORY_EFFICIENT, crossover, ratios)


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
