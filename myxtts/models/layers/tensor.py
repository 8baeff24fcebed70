"""Names for tensors and shapes in annotations."""

from typing import Any

Tensor = Any
"""A tensor of Keras's backend, or an array that Keras makes one of."""
Shape = tuple[int | None, ...]
"""Lengths of a tensor's axes; None where a length is not known yet."""
