"""Sampling of the next code from its logits, with the filters in the order of the reference."""

from collections import namedtuple

import numpy as np
from keras import ops

from myxtts.config.config import SamplingConfig
from myxtts.models.layers.memory_efficient_attention import HIDDEN as EXCLUDED
from myxtts.models.layers.tensor import Tensor

SamplingValues = namedtuple("SamplingValues", "temperature top_k top_p repetition_penalty")
"""Fields of `SamplingConfig` as tensors: scalars, or `(B, 1)` for values per row."""
_FLOATS_PER_BLOCK = 8
"""32-bit numbers that Philox computes from one value of its counter."""


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Divides positive logits of codes already `seen` by `penalty`, and multiplies negative ones.

    Keskar et al. 2019, section 4.1. `logits` and `seen` (bool) are `(B, V)`.
    """
    return ops.where(seen, ops.where(logits < 0, logits * penalty, logits / penalty), logits)


def filter_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Applies temperature, top-k and nucleus (Holtzman et al. 2020, section 3.1) to logits `(B, V)`.

    Dropped logits become -1e30. Ties with the k-th logit and at least the best one are kept; `top_k` 0 and `top_p` 1
    keep all.
    """
    top_k, top_p = ops.convert_to_tensor(top_k, "int32"), ops.convert_to_tensor(top_p, "float32")
    logits = logits / temperature
    descending = ops.flip(ops.sort(logits, axis=-1), axis=-1)
    is_among_best = ops.arange(logits.shape[-1]) < ops.where(top_k > 0, top_k, logits.shape[-1])
    kth = ops.min(ops.where(is_among_best, descending, -EXCLUDED), axis=-1, keepdims=True)
    logits = ops.where(logits < kth, EXCLUDED, logits)
    descending = ops.where(descending < kth, EXCLUDED, descending)
    # A logit is kept while the probabilities above it sum to less than top_p. Sums are rounded and may pass 1, so a
    # top_p of 1 is handled separately.
    probabilities = ops.softmax(descending, axis=-1)
    above = ops.cumsum(probabilities, axis=-1) - probabilities
    kept = ops.where((above < top_p) | (top_p >= 1.0), descending, -EXCLUDED)
    return ops.where(logits < ops.min(kept, axis=-1, keepdims=True), EXCLUDED, logits)


def sample(logits: Tensor, sampling: SamplingValues | SamplingConfig, seen: Tensor, noise: Tensor) -> Tensor:
    """Samples one code per row, `(B,)` int32, by the Gumbel-max rule (Gumbel 1954): the argmax of logits plus noise.

    `logits`, `seen` (bool, codes already in the row) and `noise` (of `gumbel_noise`) are `(B, V)`. Temperature 0 takes
    the best code.
    """
    logits = penalize_repetition(logits, seen, sampling.repetition_penalty)
    temperature = ops.convert_to_tensor(sampling.temperature, "float32")
    is_greedy = ops.equal(temperature, 0.0)
    filtered = filter_logits(logits, ops.where(is_greedy, 1.0, temperature), sampling.top_k, sampling.top_p)
    return ops.cast(ops.argmax(ops.where(is_greedy, logits, filtered + noise), axis=-1), "int32")


def gumbel_noise(seed: int, sentence: int, first: int, count: int, num_scores: int) -> np.ndarray:
    """Gumbel noise `(count, num_scores)` float32 for codes `first` to `first + count` of a sentence.

    Depends on seed, sentence and code number alone: bits of Philox (Salmon et al. 2011), counted by code. A backend's
    own random numbers would differ between plain and compiled graphs.
    """
    blocks = -(-num_scores // _FLOATS_PER_BLOCK)
    key = np.array([seed % 2**64, sentence % 2**64], np.uint64)
    bits = np.random.Philox(key=key, counter=first * blocks).random_raw(4 * blocks * count).view(np.uint32)
    # Midpoints of 2^23 intervals of (0, 1): exact in float32, and never 0 or 1.
    uniform = ((bits >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return -np.log(-np.log(uniform)).reshape(count, -1)[:, :num_scores]
