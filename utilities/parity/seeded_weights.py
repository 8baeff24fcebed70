"""Random weights and inputs seeded by name, so that comparisons with the reference need no stored weights.

Tests and `make_reference.py` share this module. It imports only NumPy, for use in the reference's environment. Values
are uniform. Their variance preserves the scale of activations. No norm, bias, moving statistic or gain has its default
value, because default values could hide an error.
"""

import re
import zlib

import numpy as np

STOP_BIAS = -100.0
"""Number added to the bias of the stop code, so that generation always runs to the maximum length."""

_DRAWN_ELSEWHERE = re.compile(r".*(num_batches_tracked|torch_spec\..*|discrete_loss\..*)")
_NORMS = re.compile(r".*(norm|ln_1|ln_2|ln_f|bn1|bn2|downsample\.1|attention\.2|original0|gamma)(\.weight)?")
_TABLES = re.compile(r".*(_embedding\.(emb\.)?weight|perceiver\.latents)")
_QUERIES = re.compile(r".*\.(qkv|to_q|to_kv|c_attn)\.weight")  # sharp attention would magnify rounding errors
_BRANCH_ENDS = re.compile(r"(encoder|decoder)\.\d\.net\.4\.weight")
_INPUTS_FIRST = re.compile(r".*(c_attn|c_proj|c_fc)\.weight")


def seeded_values(name, shape):
    """Returns float32 values of mean 0 and variance 1 that depend only on name and shape."""
    random = np.random.default_rng([zlib.crc32(name.encode()), *shape])
    return (random.random(shape, np.float32) - np.float32(0.5)) * np.float32(np.sqrt(12))


def seeded_integers(name, shape, high):
    """Returns int64 values in `[0, high)` that depend only on name and shape."""
    return np.floor(np.random.default_rng([zlib.crc32(name.encode()), *shape]).random(shape) * high).astype(np.int64)


def seeded_tensor(name, shape):
    """Returns the seeded values of the reference's tensor `name`; None for buffers that coqui-tts computes itself."""
    shape = tuple(shape)
    if _DRAWN_ELSEWHERE.fullmatch(name):
        return None
    values = seeded_values(name, shape)
    if name.endswith("running_var") or name == "mel_stats":
        return 1.0 + 0.5 * np.abs(values)
    if name == "codebook.cluster_size":
        return 8.0 + values
    if name.startswith("codebook."):  # vectors of equal length, so that no code is preferred
        return values / np.linalg.norm(values, axis=0) * np.float32(np.sqrt(shape[0]))
    if _NORMS.fullmatch(name):
        return 1.0 + 0.2 * values
    if _TABLES.fullmatch(name):
        return 0.5 * values
    if name.endswith(("bias", "running_mean")):
        return 0.1 * values
    if _BRANCH_ENDS.fullmatch(name):  # large values through many ReLUs would make all vectors similar
        return values * np.float32(0.2 / np.sqrt(shape[1]))
    fan_in = shape[0] if _INPUTS_FIRST.fullmatch(name) else int(np.prod(shape[1:]))
    gain = 0.5 if _QUERIES.fullmatch(name) else 1.4
    return values * np.float32(gain / np.sqrt(fan_in))


def sampled(array):
    """Returns 16 evenly spaced values of an array, from the first to the last. A smaller array is padded with zeros."""
    values = np.zeros(16, np.float32)
    positions = np.unique(np.linspace(0, array.size - 1, 16).astype(np.int64))
    values[: len(positions)] = np.ravel(array)[positions]
    return values
