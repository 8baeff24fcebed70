"""Losses of generators and discriminators, one number per clip, summed over discriminators and maps as in papers."""

from collections.abc import Callable

import tensorflow as tf

Maps = list[list[tf.Tensor]]
"""Of each discriminator its maps, `(B, ...)`, the last of which is its score."""


def _mean(x):
    """Mean of all but the first axis, `(B, ...)` to `(B,)` float32."""
    x = tf.cast(x, tf.float32)
    return tf.reduce_mean(x, axis=list(range(1, x.shape.rank)))


def _sum_over(function: Callable, *maps: Maps):
    return tf.add_n([_mean(function(*(tf.cast(one[-1], tf.float32) for one in each))) for each in zip(*maps)])


def least_squares_real(maps: Maps) -> tf.Tensor:
    """What recordings lack of a score of 1 (Mao et al. 2017, equation 2; HiFi-GAN, equation 1), `(B,)`.

    It is the generator's loss, too, of what it made.
    """
    return _sum_over(lambda score: tf.square(score - 1.0), maps)


def least_squares_made(maps: Maps) -> tf.Tensor:
    """What made sounds have above a score of 0, `(B,)`."""
    return _sum_over(tf.square, maps)


def hinge_real(maps: Maps) -> tf.Tensor:
    """What recordings lack of a score of 1 or more (Lim and Ye 2017; Vocos, section 3.3), `(B,)`."""
    return _sum_over(lambda score: tf.nn.relu(1.0 - score), maps)


def hinge_made(maps: Maps) -> tf.Tensor:
    """What made sounds have above a score of -1, `(B,)`."""
    return _sum_over(lambda score: tf.nn.relu(1.0 + score), maps)


def feature_distance(real: Maps, made: Maps) -> tf.Tensor:
    """Mean absolute differences, summed over all maps (HiFi-GAN, equation 4, without its weight), `(B,)`.

    The score is one of the maps, as in the authors' code.
    """
    pairs = [pair for one, other in zip(real, made) for pair in zip(one, other)]
    return tf.add_n([_mean(tf.abs(tf.cast(a, tf.float32) - tf.cast(b, tf.float32))) for a, b in pairs])
