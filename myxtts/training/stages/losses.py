"""Losses summed over items; `Objective` says why."""

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of each target: `(..., V)` float32, `(...)` int32 -> `(...)` float32.

    `tf.nn.sparse_softmax_cross_entropy_with_logits` cannot be used: it adds assertions to the graph, whose strings
    cannot be placed on a GPU without soft placement.
    """
    if is_op_determinism_enabled():  # GPUs have no deterministic kernel of the fused operation
        return -tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=len(targets.shape))
    shape, classes = tf.shape(targets), logits.shape[-1]
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, (-1, classes)), labels=tf.reshape(targets, (-1,))
    )
    return tf.reshape(losses, shape)


def masked_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, mask: tf.Tensor, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Sum of the cross-entropy over unmasked targets: `(B, T, V)`, `(B, T)` int32, `(B, T)` bool -> scalar.

    `label_smoothing` is the probability spread evenly over the vocabulary (Szegedy et al. 2016, section 7).
    """
    logits = tf.cast(logits, tf.float32)
    losses = cross_entropy(logits, targets)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return tf.reduce_sum(tf.where(mask, losses, 0.0))


def masked_squared_error(predicted: tf.Tensor, target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of the squared differences over unmasked rows: `(B, T, C)`, `(B, T, C)`, `(B, T)` bool -> scalar."""
    difference = tf.cast(predicted, tf.float32) - tf.cast(target, tf.float32)
    return tf.reduce_sum(tf.where(mask, tf.reduce_sum(tf.square(difference), axis=-1), 0.0))
