"""Voices that no one recorded: random pitch, formants, level and equalisation of training clips.

A model that hears few speakers learns each as a case of its own, and then cannot say in one voice what it heard in another
only. Between changed voices the change is smooth, so it has to read the voice from the conditioning clip. Pitch moves by
playing faster or slower; formants, which that moves too, are put where they belong by moving the spectral envelope over the
mel bands (the envelope is the low cosines of the log-mel, as in cepstral smoothing). All numbers are a function of a seed:
nothing here has a state.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

CHANGED_SHARE = 0.6
"""Share of the clips that are changed; the others stay as they were recorded."""
PITCH_RANGE = 0.15
"""Speed, and with it pitch, changes by up to this either way, as a natural logarithm."""
FORMANT_RANGE = 0.08
"""Formants move by up to this either way, as a natural logarithm of frequency."""
GAIN_NEPERS = 0.7
"""Power changes by up to this either way, as a natural logarithm: 3 dB."""
EQUALIZER_NEPERS = 0.25
"""Each of the slow curves over the mel bands goes up to this either way: 1.1 dB."""
EQUALIZER_CURVES = 4
ENVELOPE_CURVES = 20
"""Cosines over 80 mel bands that make up the spectral envelope; the harmonics of a voice are finer."""


class Change(NamedTuple):
    """One change of voice per clip."""

    speed: object
    """`(B,)` float32, above 1 for faster."""
    gain: object
    """`(B,)` float32, factor of the waveform."""
    envelope: object
    """`(B, num_mels, num_mels)` float32: matrix from log-mel bands to log-mel bands with moved formants."""
    offset: object
    """`(B, 1, num_mels)` float32, added to the log-mel."""


def draw_change(lengths, room, spec, seed, position, on):
    """Draws a change for each clip of a batch.

    Args:
        lengths: `(B,)` int32, samples of each clip.
        room: Samples that each has room for; it is not slowed down further than that.
        spec: `MelSpec` of the log-mel that `envelope` and `offset` are for.
        seed: Of the run.
        position: Of the batch in training.
        on: Scalar bool; False gives changes that change nothing.

    Returns:
        `Change`.
    """
    numbers = tf.random.stateless_uniform((tf.shape(lengths)[0], 4 + EQUALIZER_CURVES), [seed, position], -1.0, 1.0)
    changed = tf.logical_and(numbers[:, :1] < 2.0 * CHANGED_SHARE - 1.0, on)
    numbers = numbers[:, 1:] * tf.cast(changed, tf.float32)
    band = (tf.range(spec.num_mels, dtype=tf.float32) + 0.5) / spec.num_mels
    curves = tf.cos(math.pi * band[None] * tf.range(1.0, EQUALIZER_CURVES + 1.0)[:, None])
    speed = limit_speed(tf.exp(PITCH_RANGE * numbers[:, 0]), lengths, room)
    # Playing faster has moved the formants by `speed` already.
    envelope = move_envelope(tf.exp(FORMANT_RANGE * numbers[:, 1]) / speed, spec)
    return Change(speed, tf.exp(0.5 * GAIN_NEPERS * numbers[:, 2]), envelope,
                  (EQUALIZER_NEPERS * tf.matmul(numbers[:, 3:], curves))[:, None])


def move_envelope(factor, spec):
    """Matrices that move the spectral envelope of log-mels along the frequency axis and leave the fine structure.

    Args:
        factor: `(B,)` float32; what was at f Hz comes to f x factor.
        spec: `MelSpec`, with HTK mel bands from 0 Hz.

    Returns:
        `(B, num_mels, num_mels)` float32; `log_mel @ matrix^T` is the moved log-mel. The identity for a factor of 1.
    """
    size = spec.num_mels
    order = np.arange(ENVELOPE_CURVES)[:, None]
    cosines = np.cos(np.pi * order * (np.arange(size) + 0.5) / size) * np.sqrt(2.0 / size)
    cosines[0] /= np.sqrt(2.0)
    smoothing = (cosines.T @ cosines).astype(np.float32)
    bands_per_mel = (size + 1) / (2595.0 * math.log10(1.0 + spec.f_max / 700.0))
    centre_hz = 700.0 * (10.0 ** (np.arange(1, size + 1) / bands_per_mel / 2595.0) - 1.0)
    source_hz = centre_hz.astype(np.float32)[None] / factor[:, None]
    source = tf.math.log1p(source_hz / 700.0) * (2595.0 / math.log(10.0) * bands_per_mel) - 1.0
    source = tf.clip_by_value(source, 0.0, size - 1.0)
    weights = tf.nn.relu(1.0 - tf.abs(source[:, :, None] - tf.range(size, dtype=tf.float32)))
    return np.eye(size, dtype=np.float32) - smoothing + tf.einsum("bij,jk->bik", weights, smoothing)


def limit_speed(speed, lengths, room):
    """`speed`, raised where a clip of `lengths` samples would otherwise not fit into `room` samples."""
    return tf.maximum(speed, tf.cast(lengths, tf.float32) / tf.cast(room, tf.float32))


def change_speed(wav, lengths, speed):
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
    inside = at <= last
    at = tf.minimum(at, last)
    left = tf.cast(at, tf.int32)
    share = at - tf.cast(left, tf.float32)
    right = tf.minimum(left + 1, room - 1)
    played = tf.gather(wav, left, batch_dims=1) * (1.0 - share) + tf.gather(wav, right, batch_dims=1) * share
    new_lengths = tf.minimum(tf.cast(tf.math.ceil(tf.cast(lengths, tf.float32) / speed), tf.int32), room)
    return tf.where(inside, played, 0.0), new_lengths


def change_speed_of_loop(wav, speed):
    """Plays clips that fill their length, `(B, R)`, faster or slower, from the start again where they end."""
    size = tf.shape(wav)[1]
    at = tf.math.floormod(tf.range(size, dtype=tf.float32)[None] * speed[:, None], tf.cast(size, tf.float32))
    left = tf.minimum(tf.cast(at, tf.int32), size - 1)
    share = at - tf.cast(left, tf.float32)
    right = tf.math.floormod(left + 1, size)
    return tf.gather(wav, left, batch_dims=1) * (1.0 - share) + tf.gather(wav, right, batch_dims=1) * share
