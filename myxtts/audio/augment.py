"""Data augmentation of training clips: random speed, level, equalization and noise.

With few speakers, a model can memorize the voices and ignore the conditioning clip. Randomly changed voices prevent
this. All functions are stateless: random numbers depend only on the seed and the batch's position.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

SPEED_RANGE = 0.05
"""Speed factors range from exp(-SPEED_RANGE) to exp(SPEED_RANGE). A speed change also shifts pitch and formants."""
GAIN_NEPERS = 0.7
"""Natural logarithm of the maximum gain: of power in `draw_change` (3 dB), of amplitude in `disturb` (6 dB)."""
EQUALIZER_CURVES = 4


def draw_rows(draw: Callable, shape: Sequence, *arguments: Any, share: tuple[int, int] = (0, 1)) -> tf.Tensor:
    """Returns this worker's rows of a batch of random numbers. The batch is the same for any number of workers.

    Args:
        draw: Stateless random function, called with the shape of the whole batch and with `arguments`. A smaller shape
            could change the rounding of the numbers, and the log of near-silent audio magnifies such differences.
        shape: Shape of the result; the first dimension is the number of this worker's rows.
        share: `(index of this worker, number of workers)`. All workers have the same number of rows.
    """
    (part, parts), rows = share, shape[0]
    return draw((rows * parts, *shape[1:]), *arguments)[part * rows : (part + 1) * rows]


class Change(NamedTuple):
    """Random changes of B clips, float32: speed factors `(B,)`, and offsets of log-mels `(B, 1, num_mels)`."""

    speed: tf.Tensor
    offset: tf.Tensor


def draw_change(rows: int, num_mels: int, seed: Any, position: Any, on: Any, share: tuple[int, int] = (0, 1)) -> Change:
    """Returns random changes for `rows` clips, which depend on the run's `seed` and the batch's `position` in training.

    `on` is a scalar bool; if it is False, the returned changes have no effect. `share` is explained in `draw_rows`.
    """

    def draw(shape, at):
        numbers = tf.random.stateless_uniform(shape, at, -1.0, 1.0) * tf.cast(on, tf.float32)
        return tf.concat([tf.exp(SPEED_RANGE * numbers[:, :1]), numbers[:, 1:]], axis=1)

    numbers = draw_rows(draw, (rows, 2 + EQUALIZER_CURVES), [seed, position], share=share)
    band = (tf.range(num_mels, dtype=tf.float32) + 0.5) / num_mels
    curves = tf.cos(math.pi * band[None] * tf.range(1.0, EQUALIZER_CURVES + 1.0)[:, None])
    return Change(numbers[:, 0], (GAIN_NEPERS * numbers[:, 1:2] + 0.25 * tf.matmul(numbers[:, 2:], curves))[:, None])


def limit_speed(speed: tf.Tensor, lengths: tf.Tensor, room: Any) -> tf.Tensor:
    """Increases speed factors `(B,)` of clips that would exceed `room` samples. `lengths`, `(B,)`, are in samples."""
    return tf.maximum(speed, tf.cast(lengths, tf.float32) / tf.cast(room, tf.float32))


def change_speed(wav: tf.Tensor, lengths: tf.Tensor, speed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Changes the speed of padded clips `(B, S)` float32 by linear interpolation.

    `lengths`, `(B,)` int32, are the lengths of the clips without padding. `speed`, `(B,)`, are the factors. Returns
    zero-padded clips `(B, S)` and the new lengths. Cuts clips that become longer than S (see `limit_speed`).
    """
    room = tf.shape(wav)[1]
    at = tf.range(room, dtype=tf.float32)[None] * speed[:, None]
    last = tf.cast(lengths - 1, tf.float32)[:, None]
    left = tf.cast(tf.minimum(at, last), tf.int32)
    played = _interpolate(wav, tf.minimum(at, last), left, tf.minimum(left + 1, room - 1))
    new_lengths = tf.minimum(tf.cast(tf.math.ceil(tf.cast(lengths, tf.float32) / speed), tf.int32), room)
    return tf.where(at <= last, played, 0.0), new_lengths


def change_speed_of_loop(wav: tf.Tensor, speed: tf.Tensor) -> tf.Tensor:
    """Repeats each clip `(B, S)` endlessly, changes the speed by factors `(B,)`, and returns the first S samples."""
    size = tf.shape(wav)[1]
    at = tf.math.floormod(tf.range(size, dtype=tf.float32)[None] * speed[:, None], tf.cast(size, tf.float32))
    left = tf.minimum(tf.cast(at, tf.int32), size - 1)
    return _interpolate(wav, at, left, tf.math.floormod(left + 1, size))


def _interpolate(wav, at, left, right):
    """Returns `wav` at fractional positions `at`, interpolated between the samples at indices `left` and `right`."""
    share = at - tf.cast(left, tf.float32)
    return tf.gather(wav, left, batch_dims=1) * (1.0 - share) + tf.gather(wav, right, batch_dims=1) * share


def disturb(wav: tf.Tensor, seed: Any, position: Any, share: tuple[int, int] = (0, 1)) -> tf.Tensor:
    """Simulates other microphones and rooms: random equalization, random level and added colored noise.

    `wav` and the result are `(B, S)` float32. The other arguments are explained in `draw_change`.
    """
    rows, size = tf.shape(wav)[0], tf.shape(wav)[1]
    shape, at = (rows, 2 + 2 * EQUALIZER_CURVES), [seed, position]

    def draw(shape, at):
        numbers = tf.random.stateless_uniform(shape, at, -1.0, 1.0)
        below = 5.0 + 35.0 * 0.5 * (1.0 + numbers[:, 1:2])  # signal-to-noise ratio of 5 to 40 dB
        return tf.concat([tf.exp(GAIN_NEPERS * numbers[:, :1]), tf.pow(10.0, -below / 20.0), numbers[:, 2:]], axis=1)

    numbers = draw_rows(draw, shape, at, share=share)
    # A multiple of 16, because vectorized exponentials round elements after the last full vector differently.
    bins, padded = size // 2 + 1, (size // 32 + 1) * 16
    frequencies = tf.range(padded, dtype=tf.float32) / tf.cast(size // 2, tf.float32)
    curves = tf.cos(math.pi * frequencies[None] * tf.range(1.0, EQUALIZER_CURVES + 1.0)[:, None])

    def equalize(wav, weights):
        curve = tf.exp(0.4 * tf.matmul(weights, curves))[:, :bins]  # at most 3.5 dB each
        shaped = tf.signal.irfft(tf.signal.rfft(wav) * tf.cast(curve, tf.complex64), [size])
        # Not `reduce_mean`, whose rounding depends on the number of rows.
        return shaped, tf.sqrt(tf.einsum("bs,bs->b", shaped, shaped)[:, None] / tf.cast(size, tf.float32) + 1e-12)

    speech, loudness = equalize(wav, numbers[:, 2 : 2 + EQUALIZER_CURVES])
    noise = draw_rows(tf.random.stateless_normal, (rows, size), at, share=share)
    noise, noise_loudness = equalize(noise, numbers[:, 2 + EQUALIZER_CURVES :])
    return (speech + noise * loudness / noise_loudness * numbers[:, 1:2]) * numbers[:, :1]
