"""Voices that no one recorded: random speed, level and equalization of training clips.

A model that hears few speakers learns each as a case of its own, and then cannot say in one voice what it only heard in
another. Between changed voices the change is smooth, so it has to read the voice from the conditioning clip. All
numbers are a function of a seed: nothing here has a state.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

SPEED_RANGE = 0.05
"""Speed, and with it pitch and formants, changes by up to this either way, as a natural logarithm."""
GAIN_NEPERS = 0.7
"""Level changes by up to this either way: 3 dB, as an offset of the log power."""
EQUALIZER_NEPERS = 0.25
"""Each of the slow curves over the mel bands goes up to this either way: 1.1 dB."""
EQUALIZER_CURVES = 4
MICROPHONE_NEPERS = 0.4
"""As `EQUALIZER_NEPERS`, of the amplitude, for recordings whose voice is to be told whatever the microphone: 3.5 dB."""
NOISE_DECIBELS = (5.0, 40.0)
"""How far below the sound noise lies."""


def draw_rows(draw: Callable, shape: Sequence, *arguments: Any, share: tuple[int, int] = (0, 1)) -> tf.Tensor:
    """Random numbers for the rows of one worker: those that one process draws for them as part of the whole batch.

    Args:
        draw: A stateless random operation of TensorFlow, or a function of what one draws, called as `draw(shape,
            *arguments)`. What it makes of few numbers rounds by how many there are: of all rows' here, so that no
            worker's sound is other by a last digit, which silence in a log-mel shows a thousand times as large.
        shape: Rows of this worker's part of the batch, and what else the numbers are over.
        share: Which of how many equal parts of the batch this one is.
    """
    part, parts = share
    rows = shape[0]
    return draw((rows * parts, *shape[1:]), *arguments)[part * rows : (part + 1) * rows]


class Change(NamedTuple):
    """A change per clip: speed `(B,)`, above 1 for faster; `(B, 1, num_mels)` added to the log-mel. Both float32."""

    speed: tf.Tensor
    offset: tf.Tensor


def draw_change(rows: int, num_mels: int, seed: Any, position: Any, on: Any, share: tuple[int, int] = (0, 1)) -> Change:
    """Draws a change for each of `rows` clips, from the seed of the run and the position of the batch in training.

    `on` is a scalar bool; False gives changes that change nothing. `share` is as in `draw_rows`.
    """

    def draw(shape, at):
        numbers = tf.random.stateless_uniform(shape, at, -1.0, 1.0) * tf.cast(on, tf.float32)
        return tf.concat([tf.exp(SPEED_RANGE * numbers[:, :1]), numbers[:, 1:]], axis=1)

    numbers = draw_rows(draw, (rows, 2 + EQUALIZER_CURVES), [seed, position], share=share)
    band = (tf.range(num_mels, dtype=tf.float32) + 0.5) / num_mels
    curves = tf.cos(math.pi * band[None] * tf.range(1.0, EQUALIZER_CURVES + 1.0)[:, None])
    offset = GAIN_NEPERS * numbers[:, 1:2] + EQUALIZER_NEPERS * tf.matmul(numbers[:, 2:], curves)
    return Change(numbers[:, 0], offset[:, None])


def limit_speed(speed: tf.Tensor, lengths: tf.Tensor, room: Any) -> tf.Tensor:
    """`speed`, raised where a clip of `lengths` samples would otherwise not fit into `room` samples."""
    return tf.maximum(speed, tf.cast(lengths, tf.float32) / tf.cast(room, tf.float32))


def change_speed(wav: tf.Tensor, lengths: tf.Tensor, speed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Plays clips faster or slower, by linear interpolation, into the same padded length.

    Args:
        wav: `(B, S)` float32.
        lengths: `(B,)` int32, samples of each clip; what comes after them is taken for padding.
        speed: `(B,)` float32, see `limit_speed`.

    Returns:
        `(B, S)` float32, zero after the end, and the new lengths `(B,)` int32.
    """
    room = tf.shape(wav)[1]
    at = tf.range(room, dtype=tf.float32)[None] * speed[:, None]
    last = tf.cast(lengths - 1, tf.float32)[:, None]
    left = tf.cast(tf.minimum(at, last), tf.int32)
    played = _interpolate(wav, tf.minimum(at, last), left, tf.minimum(left + 1, room - 1))
    new_lengths = tf.minimum(tf.cast(tf.math.ceil(tf.cast(lengths, tf.float32) / speed), tf.int32), room)
    return tf.where(at <= last, played, 0.0), new_lengths


def change_speed_of_loop(wav: tf.Tensor, speed: tf.Tensor) -> tf.Tensor:
    """Plays clips that fill their length, `(B, R)`, faster or slower, from the start again where they end."""
    size = tf.shape(wav)[1]
    at = tf.math.floormod(tf.range(size, dtype=tf.float32)[None] * speed[:, None], tf.cast(size, tf.float32))
    left = tf.minimum(tf.cast(at, tf.int32), size - 1)
    return _interpolate(wav, at, left, tf.math.floormod(left + 1, size))


def _interpolate(wav, at, left, right):
    """Samples at the fractional places `at`, between those at `left` and `right`."""
    share = at - tf.cast(left, tf.float32)
    return tf.gather(wav, left, batch_dims=1) * (1.0 - share) + tf.gather(wav, right, batch_dims=1) * share


def disturb(wav: tf.Tensor, seed: Any, position: Any, share: tuple[int, int] = (0, 1)) -> tf.Tensor:
    """Recordings of the same voices through other microphones, in other rooms: `(B, S)` float32 to the same.

    A random equalizer and level, and noise of a random color, `NOISE_DECIBELS` below the sound. The voice stays what it
    is: speed, which would change it, does not. A function of the seed and the position of the batch in training, and
    of the rows of it that `share` names as in `draw_rows`.
    """
    rows, size = tf.shape(wav)[0], tf.shape(wav)[1]
    shape, at = (rows, 2 + 2 * EQUALIZER_CURVES), [seed, position]

    def draw(shape, at):
        numbers, (low, high) = tf.random.stateless_uniform(shape, at, -1.0, 1.0), NOISE_DECIBELS
        below = low + (high - low) * 0.5 * (1.0 + numbers[:, 1:2])
        level = tf.exp(GAIN_NEPERS * numbers[:, :1])
        return tf.concat([level, tf.pow(10.0, -below / 20.0), numbers[:, 2:]], axis=1)

    numbers = draw_rows(draw, shape, at, share=share)
    # Processors round the last few of many exponentials otherwise; so there are none here that count.
    bins, in_sixteens = size // 2 + 1, (size // 32 + 1) * 16
    places = tf.range(in_sixteens, dtype=tf.float32) / tf.cast(size // 2, tf.float32)
    curves = tf.cos(math.pi * places[None] * tf.range(1.0, EQUALIZER_CURVES + 1.0)[:, None])

    def equalize(sound, weights):
        curve = tf.exp(MICROPHONE_NEPERS * tf.matmul(weights, curves))[:, :bins]
        shaped = tf.signal.irfft(tf.signal.rfft(sound) * tf.cast(curve, tf.complex64), [size])
        # Row by row, where a mean over an axis rounds by how many rows there are.
        power = tf.einsum("bs,bs->b", shaped, shaped)[:, None] / tf.cast(size, tf.float32)
        return shaped, tf.sqrt(power + 1e-12)

    sound, loudness = equalize(wav, numbers[:, 2 : 2 + EQUALIZER_CURVES])
    noise = draw_rows(tf.random.stateless_normal, (rows, size), at, share=share)
    noise, noise_loudness = equalize(noise, numbers[:, 2 + EQUALIZER_CURVES :])
    return (sound + noise * loudness / noise_loudness * numbers[:, 1:2]) * numbers[:, :1]
