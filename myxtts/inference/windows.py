"""Window-by-window decoding, sampling noise, and fades. Needs only NumPy: exported models contain this module."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import index
from typing import NamedTuple

import numpy as np

FIRST_FRAMES = 8
"""Minimum number of frames in the first window of a sentence."""
LATER_FRAMES = 64
"""Minimum number of frames in the second window, about as many as one engine call yields. The minimum doubles for each
later window, up to `MOST_FRAMES`. Long windows save time, because each window decodes its context again."""
MOST_FRAMES = 172
FIRST_CODES = 8
"""Number of sampled codes after which the first window can be decoded."""
FADE_SECONDS = 0.005
"""Duration of the fade-in and fade-out of each piece, which avoid clicks."""
NO_SAMPLES = np.zeros(0, np.float32)
Sounding = Callable[[list[int], np.ndarray, bool], np.ndarray]
"""Function that decodes one sentence in steps: `(codes, latents, ended) -> samples`. Each call passes all n codes
so far and their latents `(n, width)`, or `(n + 1, width)` if `ended`. It returns the next samples `(S,)`, S >= 0."""


class WindowShape(NamedTuple):
    """Properties of a waveform decoder that `Windows` needs. `WaveformDecoder` has attributes with the same names."""

    factors: Sequence[float]
    hop_length: int
    history_frames: int
    lookahead_frames: int


class Windows:
    """Decodes a sentence in overlapping windows. Decoding it at once would give the same samples, up to rounding.

    `to_samples(latents, start, end)` interpolates latents `(n, width)` to frames, and decodes `frames[start:end]`.
    """

    def __init__(self, shape: WindowShape, to_samples: Callable[[np.ndarray, int, int], np.ndarray], speed: float = 1):
        self._shape, self._to_samples, self._speed = shape, to_samples, speed
        self._given, self._least = 0, FIRST_FRAMES

    def __call__(self, codes: list[int], latents: np.ndarray, finished: bool) -> np.ndarray:
        """Returns the next samples `(S,)`; S is 0 until enough latents have arrived. For arguments, see `Sounding`."""
        shape, given = self._shape, self._given
        latents = spoken_faster(latents, self._speed, finished)
        # Frames after the second-to-last latent would change when the next latent arrives.
        known = len(latents) if finished else max(len(latents) - 1, 0)
        end = reduce(lambda count, factor: int(count * factor), shape.factors, known)  # as `WaveformDecoder.num_frames`
        ready = end if finished else end - shape.lookahead_frames
        if ready - given < (1 if finished else self._least):
            return NO_SAMPLES
        start = max(given - shape.history_frames, 0)
        samples = self._to_samples(latents, start, end)
        self._given, self._least = ready, min(max(2 * self._least, LATER_FRAMES), MOST_FRAMES)
        return samples[(given - start) * shape.hop_length : (ready - start) * shape.hop_length]


def spoken_faster(x: np.ndarray, speed: float, finished: bool = True) -> np.ndarray:
    """Speeds up latents or frames `(n, C)` by the factor `speed` > 0, with linear interpolation in time as in XTTS v2.
    If `finished` is false, more inputs will follow, and the outputs that depend on them are omitted."""
    if speed == 1:
        return x
    position = (np.arange(int(len(x) / speed)) + 0.5) * speed - 0.5
    position = np.clip(position if finished else position[position <= len(x) - 1], 0, len(x) - 1)
    left = position.astype(np.int64)
    right = np.minimum(left + 1, len(x) - 1)
    blend = (position - left).astype(np.float32)[:, None]
    return x[left] * (1 - blend) + x[right] * blend


def gumbel_noise(seed: int, sentence: int, first: int, count: int, num_scores: int) -> np.ndarray:
    """Returns Gumbel noise `(count, num_scores)` float32 to sample codes `first` to `first + count - 1` of a sentence.

    The noise depends only on seed, sentence number and code number, which set the key and counter of a Philox generator
    (Salmon et al. 2011). Random numbers of TensorFlow would differ between plain and compiled graphs.
    """
    blocks = -(-num_scores // 8)  # a Philox block, which the counter counts, has eight 32-bit values
    key = np.array([index(seed) % 2**64, sentence % 2**64], np.uint64)
    bits = np.random.Philox(key=key, counter=first * blocks).random_raw(4 * blocks * count).view(np.uint32)
    # Midpoints of 2^23 intervals of (0, 1): exact in float32, and never 0 or 1.
    uniform = ((bits >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return -np.log(-np.log(uniform)).reshape(count, -1)[:, :num_scores]


def faded(samples: np.ndarray, sample_rate: int, begins: bool = True, ends: bool = True) -> np.ndarray:
    """Returns a copy of samples `(S,)`, with a fade-in if `begins` is true, and with a fade-out if `ends` is true."""
    length = min(int(FADE_SECONDS * sample_rate), len(samples))
    ramp = (np.arange(length, dtype=np.float32) + 1) / (length + 1)
    samples = samples.copy()
    if begins:
        samples[:length] *= ramp
    if ends:
        samples[len(samples) - length :] *= ramp[::-1]
    return samples
