"""Dropout that is a pure function of a seed, so that a step can be repeated or recomputed exactly."""

import keras
from keras import ops

from myxtts.models.layers.tensor import Shape, Tensor

KEY_DTYPE = "uint32" if keras.backend.backend() == "jax" else "int32"
"""Dtype of the seeds that the backend's random numbers take."""


class GivenSeed(keras.random.SeedGenerator):
    """Hands a seed tensor of ours to `keras.random`, which takes generators and integers only."""

    def __init__(self, seed: Tensor):  # no state variable: the base class would create one
        self._given = ops.cast(seed, KEY_DTYPE)

    def next(self, ordered=True) -> Tensor:
        return self._given


class Dropout(keras.layers.Layer):
    """Dropout whose mask depends on `(seed, site)` alone.

    Keras's own layer draws from a hidden counter, which changes between a forward pass and its recomputation and is
    not part of a checkpoint.

    Args:
        rate: Share of values set to zero.
        site: Integer that tells this place in the model from every other one.

    Call arguments: `x` of any shape and `seed`, `(2,)` int32, or None for no dropout.
    """

    def __init__(self, rate: float, site: int = 0, **kwargs):
        super().__init__(autocast=False, **kwargs)  # the input keeps its dtype, whatever the default policy
        self.rate, self.site = rate, site

    def call(self, x: Tensor, seed=None) -> Tensor:
        return self.apply(x, self.keep_mask(ops.shape(x), seed))

    def keep_mask(self, shape: Shape, seed: Tensor | None, part: int | Tensor = 0) -> Tensor | None:
        """Where values are kept, bool of `shape`; None where nothing is dropped.

        Args:
            shape: Of the values.
            seed: As in a call.
            part: Number of the piece, below 1,024, where a place's values come in pieces.
        """
        if seed is None or self.rate == 0.0:
            return None
        seed = GivenSeed(ops.cast(seed, "int32") + site_offset(self.site, part))
        return keras.random.uniform(shape, dtype="float32", seed=seed) >= self.rate

    def apply(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """`x` with what `keep` does not keep set to zero and the rest scaled up; unchanged where `keep` is None."""
        if keep is None:
            return x
        return ops.where(keep, x * ops.cast(1.0 / (1.0 - self.rate), x.dtype), ops.cast(0.0, x.dtype))


def site_offset(site: int, part: int | Tensor = 0) -> Tensor:
    """`(2,)` int32 added to a step's seed so that each place, and each piece of it, draws its own numbers.

    The step counts in the second number and the replica in the first: far above both, no two of them meet.
    """
    return ops.stack([(site << 20) + ops.cast(part, "int32") * 1024, ops.cast(0, "int32")])
