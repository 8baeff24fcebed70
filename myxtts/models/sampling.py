"""Drawing the next code from its scores, in the order in which the reference processes them."""

import keras
from keras import ops

from myxtts.models.layers.dropout import GivenSeed
from myxtts.models.layers.memory_efficient_attention import HIDDEN as EXCLUDED


def penalize_repetition(logits, seen, penalty):
    """Scores of codes already seen move away from being drawn (Keskar et al. 2019, section 4.1).

    Args:
        logits: `(B, V)`.
        seen: `(B, V)` bool.
        penalty: At least 1; divides scores above zero, multiplies those below.

    Returns:
        `(B, V)`.
    """
    return ops.where(seen, ops.where(logits < 0, logits * penalty, logits / penalty), logits)


def filter_logits(logits, temperature, top_k, top_p):
    """Temperature, then the `top_k` best, then the nucleus (Holtzman et al. 2020, section 3.1).

    Ties with the k-th score stay, and so does at least the best one.

    Args:
        logits: `(B, V)`.
        temperature: Above 0.
        top_k: Scores kept; 0 keeps all.
        top_p: Smallest probability mass kept; 1 keeps all.

    Returns:
        `(B, V)` with excluded scores at -1e30.
    """
    logits = logits / temperature
    vocabulary = logits.shape[-1]
    descending = ops.flip(ops.sort(logits, axis=-1), axis=-1)
    if 0 < top_k < vocabulary:
        kth = descending[:, top_k - 1 : top_k]
        logits = ops.where(logits < kth, EXCLUDED, logits)
        descending = ops.where(descending < kth, EXCLUDED, descending)
    if top_p < 1.0:
        # A score goes when those at or below it sum to at most 1 - top_p, so it stays while those above sum to
        # less than top_p. The best always stays.
        probabilities = ops.softmax(descending, axis=-1)
        above = ops.cumsum(probabilities, axis=-1) - probabilities
        kept = ops.where(above < top_p, descending, -EXCLUDED)
        logits = ops.where(logits < ops.min(kept, axis=-1, keepdims=True), EXCLUDED, logits)
    return logits


def sample(logits, sampling, seen, seed):
    """One code per row.

    Args:
        logits: `(B, V)`.
        sampling: `SamplingConfig`.
        seen: `(B, V)` bool, codes already in the row.
        seed: `(2,)` int32.

    Returns:
        `(B,)` int32.
    """
    if sampling.repetition_penalty != 1.0:
        logits = penalize_repetition(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0.0:
        return ops.cast(ops.argmax(logits, axis=-1), "int32")
    logits = filter_logits(logits, sampling.temperature, sampling.top_k, sampling.top_p)
    return ops.cast(keras.random.categorical(logits, 1, seed=GivenSeed(seed))[:, 0], "int32")
