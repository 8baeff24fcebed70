"""Segments of a block whose intermediate values are made again in the backward pass (Chen et al. 2016)."""

import keras

RECOMPUTED = "recomputed_"
"""Begins the name scope of operations made in the backward pass; what follows names the block."""


def recomputed(block, function, *tensors):
    """Calls `function(*tensors)`, keeping `tensors` and the result for the backward pass and nothing in between.

    Operations that the gradient does not need, such as a product at the end of the segment, are not made twice: graph
    and compiler prune them. What is to be the same the second time, dropout masks too, is drawn outside of `function`
    or from a given seed.

    Args:
        block: Name of the block that the segment belongs to, a mark in the graph's operation names; None calls
            `function` plainly.
        function: Of floating tensors; weights, masks and seeds are closed over.
        tensors: What the gradient passes through.
    """
    if block is None:
        return function(*tensors)
    forward = True

    def segment(*tensors):
        nonlocal forward
        if forward:
            forward = False
            return function(*tensors)
        with keras.name_scope(RECOMPUTED + block):
            return function(*tensors)

    again = keras.remat(segment)
    if keras.backend.backend() != "tensorflow":
        return again(*tensors)
    return _weights_first(again)(*tensors)


def _weights_first(function):
    """`function`, whose gradient goes on to its tensors once that of its weights is there.

    TensorFlow's executor works first on what became ready last, so products that give the gradients of weights wait until
    all blocks are through, and with them their operands: everything recomputed. Control dependencies do not help, since
    grappler takes them apart; a sum does.
    """
    import tensorflow as tf

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
                zero = tf.where(tf.equal(first, first), 0.0, 1.0)  # to optimisers, anything
                of_tensors = [one + tf.cast(zero, one.dtype) for one in of_tensors]
            return of_tensors, of_weights

        return result, gradient

    return gated
