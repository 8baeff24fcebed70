"""Recomputation in the backward pass, and the order in which gradients are computed, where memory depends on it."""

from collections.abc import Callable

import keras
import tensorflow as tf

RECOMPUTED = "recomputed_"
"""Begins the name scope of operations made in the backward pass; what follows names the block."""


def recompute(segment: Callable, block: str) -> Callable:
    """`segment` of a block, recomputed in its backward pass (Chen et al. 2016): only arguments and result are kept.

    Operations that the gradient does not need, such as a product at the end of the segment, are not made twice: graph
    and compiler prune them. The operations of the second time have `block` in their names.
    """
    forward = True

    def named(*tensors):
        nonlocal forward
        if forward:
            forward = False
            return segment(*tensors)
        with keras.name_scope(RECOMPUTED + block):
            return segment(*tensors)

    return weights_first(keras.remat(named))


def weights_first(function: Callable) -> Callable:
    """`function`, whose gradient goes on to its tensors once that of its weights is there.

    TensorFlow's executor works first on what became ready last, so products that give the gradients of weights wait
    until all blocks are through, and with them their operands: everything recomputed. Control dependencies do not help,
    since grappler takes them apart; a sum does.
    """

    @tf.custom_gradient
    def gated(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)

        def gradient(*upstream, variables=()):
            upstream = upstream if isinstance(result, tuple) else upstream[0]
            of_tensors, of_weights = tape.gradient(result, (tensors, list(variables)), upstream)
            if of_weights:
                first = tf.reduce_max([tf.cast(tf.reshape(one, [-1])[0], "float32") for one in of_weights]) > 0
                zero = tf.where(tf.equal(first, first), 0.0, 1.0)  # to optimizers, anything
                of_tensors = [one + tf.cast(zero, one.dtype) for one in of_tensors]
            return of_tensors, of_weights

        return result, gradient

    return gated
