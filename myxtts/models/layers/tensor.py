"""Type aliases for tensors and shapes."""

from typing import Any

Tensor = Any
"""A backend tensor, or anything that Keras converts to one."""
Shape = tuple[int | None, ...]
"""Axis lengths; None where unknown."""
