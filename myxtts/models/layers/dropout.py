"""Dropout as a pure function of a seed, so that a step can be repeated or recomputed exactly."""

import keras
from keras import ops

from myxtts.models.layers.tensor import Shape, Tensor


class GivenSeed(keras.random.SeedGenerator):
    """Passes a seed tensor to `keras.random`, which only takes generators and integers."""

    def __init__(self, seed: Tensor):  # the base class would create a state variable
        self._given = ops.cast(seed, "uint32" if keras.backend.backend() == "jax" else "int32")

    def next(self, ordered=True) -> Tensor:
        return self._given


class Dropout(keras.layers.Layer):
    """Dropout whose mask depends on `(seed, site)` alone.

    Keras's own layer has a hidden counter, which differs between a forward pass and its recomputation and is not saved
    in a checkpoint.

    Args:
        rate: Share of values set to zero.
        site: Number of this layer, unique within the model.

    Call arguments: `x` of any shape and `seed`, `(2,)` int32, or None for no dropout.
    """

    def __init__(self, rate: float, site: int = 0, **kwargs):
        super().__init__(autocast=False, **kwargs)  # the input keeps its dtype, whatever the default policy
        self.rate, self.site = rate, site

    def call(self, x: Tensor, seed=None) -> Tensor:
        return self.apply(x, self.keep_mask(ops.shape(x), seed))

    def keep_mask(self, shape: Shape, seed: Tensor | None, part: int | Tensor = 0) -> Tensor | None:
        """Bool mask of the values to keep, of `shape`; None keeps all.

        Values computed in chunks have one mask per chunk; `part` is its number, below 1,024.
        """
        if seed is None or self.rate == 0.0:
            return None
        seed = GivenSeed(ops.cast(seed, "int32") + site_offset(self.site, part))
        return keras.random.uniform(shape, dtype="float32", seed=seed) >= self.rate

    def apply(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """Applies the mask `keep` and scales up the kept values; None changes nothing."""
        if keep is None:
            return x
        return ops.where(keep, x * ops.cast(1.0 / (1.0 - self.rate), x.dtype), ops.cast(0.0, x.dtype))


def site_offset(site: int, part: int | Tensor = 0) -> Tensor:
    """Offset `(2,)` int32 of a step's seed that gives each site, and each part of it, its own random numbers.

    In a step's seed the first number has the replica and the second the step; offsets are far above any replica.
    """
    return ops.stack([(site << 20) + ops.cast(part, "int32") * 1024, ops.cast(0, "int32")])
