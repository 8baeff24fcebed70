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
    from myxtts.training.gradient_order import weights_first  # imports TensorFlow, which other backends do without

    return weights_first(again)(*tensors)
