"""Drawing the next code from its scores, in the order in which the reference processes them."""

from collections import namedtuple

import numpy as np
from keras import ops

from myxtts.config.sampling import SamplingConfig
from myxtts.models.layers.memory_efficient_attention import HIDDEN as EXCLUDED
from myxtts.models.layers.tensor import Tensor

SamplingValues = namedtuple("SamplingValues", "temperature top_k top_p repetition_penalty")
"""The values of `SamplingConfig` as tensors, so that a traced loop takes any: scalars, or `(B, 1)` by row."""
_FLOATS_PER_BLOCK = 8
"""32-bit numbers that Philox gives for one value of its counter."""


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Moves scores `(B, V)` of codes `seen`, `(B, V)` bool, away from being drawn (Keskar et al. 2019, section 4.1).

    The penalty, above 0, divides scores above zero and multiplies those below; 1 changes nothing.
    """
    return ops.where(seen, ops.where(logits < 0, logits * penalty, logits / penalty), logits)


def filter_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Temperature, then the `top_k` best, then the nucleus (Holtzman et al. 2020, section 3.1).

    Ties with the k-th score stay, and so does at least the best one; excluded scores become -1e30.

    Args:
        logits: `(B, V)`.
        temperature: Above 0.
        top_k: Scores kept; 0 keeps all.
        top_p: Smallest probability mass kept; 1 keeps all.
    """
    top_k, top_p = ops.convert_to_tensor(top_k, "int32"), ops.convert_to_tensor(top_p, "float32")
    logits = logits / temperature
    descending = ops.flip(ops.sort(logits, axis=-1), axis=-1)
    is_among_best = ops.arange(logits.shape[-1]) < ops.where(top_k > 0, top_k, logits.shape[-1])
    kth = ops.min(ops.where(is_among_best, descending, -EXCLUDED), axis=-1, keepdims=True)
    logits = ops.where(logits < kth, EXCLUDED, logits)
    descending = ops.where(descending < kth, EXCLUDED, descending)
    # A score goes when those at or below it sum to at most 1 - top_p, so it stays while those above sum to less than
    # top_p. The best always stays. Sums are rounded and may pass 1, so a top_p of 1 is handled separately.
    probabilities = ops.softmax(descending, axis=-1)
    above = ops.cumsum(probabilities, axis=-1) - probabilities
    kept = ops.where((above < top_p) | (top_p >= 1.0), descending, -EXCLUDED)
    return ops.where(logits < ops.min(kept, axis=-1, keepdims=True), EXCLUDED, logits)


def sample(logits: Tensor, sampling: SamplingValues | SamplingConfig, seen: Tensor, noise: Tensor) -> Tensor:
    """Draws one code per row, `(B,)` int32, by the Gumbel-max rule (Gumbel 1954): the best of score plus noise.

    Args:
        logits: `(B, V)`.
        seen: `(B, V)` bool, codes already in the row.
        noise: `(B, V)`, as `gumbel_noise` gives it; temperature 0 leaves it out.
    """
    logits = penalize_repetition(logits, seen, sampling.repetition_penalty)
    temperature = ops.convert_to_tensor(sampling.temperature, "float32")
    is_greedy = ops.equal(temperature, 0.0)
    filtered = filter_logits(logits, ops.where(is_greedy, 1.0, temperature), sampling.top_k, sampling.top_p)
    return ops.cast(ops.argmax(ops.where(is_greedy, logits, filtered + noise), axis=-1), "int32")


def gumbel_noise(seed: int, sentence: int, first: int, count: int, num_scores: int) -> np.ndarray:
    """Noise for the draws of `count` codes of one sentence, from code number `first` on: `(count, num_scores)` float32.

    A function of seed, sentence and code number alone, whatever the machine and however codes are cut into calls: bits
    of Philox (Salmon et al. 2011), counted by code. Random numbers of the backend differ between plain and compiled
    graphs.
    """
    blocks = -(-num_scores // _FLOATS_PER_BLOCK)
    key = np.array([seed % 2**64, sentence % 2**64], np.uint64)
    bits = np.random.Philox(key=key, counter=first * blocks).random_raw(4 * blocks * count).view(np.uint32)
    # Middles of 2^23 equal parts of (0, 1): float32 holds each exactly, and neither end is among them.
    uniform = ((bits >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return -np.log(-np.log(uniform)).reshape(count, -1)[:, :num_scores]
