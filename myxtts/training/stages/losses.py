"""Losses as sums, so that batches of several replicas and accumulation steps share one mean over all tokens."""

import tensorflow as tf


def masked_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, mask: tf.Tensor, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Sum of the cross-entropy over the targets that count: `(B, T, V)`, `(B, T)` int32, `(B, T)` bool -> scalar.

    `label_smoothing` is the share of each target spread evenly over the vocabulary (Szegedy et al. 2016, section 7).
    """
    logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return tf.reduce_sum(tf.where(mask, losses, 0.0))


def masked_squared_error(predicted: tf.Tensor, target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of the squared differences over the rows that count: `(B, T, C)`, `(B, T, C)`, `(B, T)` bool -> scalar."""
    difference = tf.cast(predicted, tf.float32) - tf.cast(target, tf.float32)
    return tf.reduce_sum(tf.where(mask, tf.reduce_sum(tf.square(difference), axis=-1), 0.0))
