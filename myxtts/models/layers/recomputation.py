"""Segments of a block whose intermediate values are made again in the backward pass (Chen et al. 2016)."""

from collections.abc import Callable
from typing import NamedTuple

import keras

from myxtts.models.layers.tensor import Tensor

RECOMPUTED = "recomputed_"
"""Begins the name scope of operations made in the backward pass; what follows names the block."""


class Recomputation(NamedTuple):
    """How a block recomputes its segments."""

    block: str
    """Name of the block, a mark in the graph's operation names."""
    wrap: Callable[[Callable], Callable]
    """Makes a function recompute in its backward pass, as `keras.remat` does."""


def recomputed(recomputation: Recomputation | None, function: Callable, *tensors: Tensor) -> Tensor:
    """Calls `function(*tensors)`, keeping `tensors` and the result for the backward pass and nothing in between.

    Operations that the gradient does not need, such as a product at the end of the segment, are not made twice: graph
    and compiler prune them. What is to be the same the second time, dropout masks too, is drawn outside of `function`
    or from a given seed.

    Args:
        recomputation: None calls `function` plainly.
        function: Of floating tensors; weights, masks and seeds are closed over.
        tensors: What the gradient passes through.
    """
    if recomputation is None:
        return function(*tensors)
    forward = True

    def segment(*tensors):
        nonlocal forward
        if forward:
            forward = False
            return function(*tensors)
        with keras.name_scope(RECOMPUTED + recomputation.block):
            return function(*tensors)

    return recomputation.wrap(segment)(*tensors)
