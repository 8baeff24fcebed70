"""Scaled dot-product attention: standard, memory-efficient, and with a static key-value cache."""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.linear import normal_linear
from myxtts.models.layers.memory_efficient_attention import HIDDEN, memory_efficient_attention, transposed
from myxtts.models.layers.tensor import Shape, Tensor

STANDARD, MEMORY_EFFICIENT = "standard", "memory-efficient"
"""Forms of attention: all keys at once, or in chunks."""
ATTENTION_SCOPES = {STANDARD: "standard_attention", MEMORY_EFFICIENT: "memory_efficient_attention"}
"""Name scope of the operations of each form."""


class MemoryUse(NamedTuple):
    """How a block saves memory in training, without changing its function. Inference uses the defaults."""

    form: str = STANDARD
    """`STANDARD` or `MEMORY_EFFICIENT`."""
    recompute: Callable[[Callable], Callable] | None = None
    """Wraps a function so that its backward pass recomputes intermediate values; None keeps them."""

    def segment(self, function: Callable) -> Callable:
        """Wraps `function` with `recompute`; its random values must be passed in or drawn from a given seed."""
        return function if self.recompute is None else self.recompute(function)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`(B, T, heads * D)` -> `(B, heads, T, D)`."""
    batch, width = ops.shape(x)[0], x.shape[-1]
    return ops.transpose(ops.reshape(x, (batch, -1, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """`(B, heads, T, D)` -> `(B, T, heads * D)`."""
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (ops.shape(x)[0], -1, x.shape[1] * x.shape[3]))


def attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, keep=None
) -> Tensor:
    """Attention of Vaswani et al. 2017, section 3.2.1, with the softmax in float32.

    Args:
        query: `(B, heads, T, D)`.
        key, value: `(B, heads, S, D)`.
        key_mask: `(B, S)` bool, False hides a key; None shows all.
        causal: Query `i` sees keys `0` to `i`; T and S are equal.
        dropout: `Dropout` on the attention probabilities, or None.
        keep: Its `keep_mask`, `(B, heads, T, S)`, or None.

    Returns:
        `(B, heads, T, D)`.
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.matmul(query, transposed(key)), "float32")
    mask = None if key_mask is None else key_mask[:, None, None, :]
    if causal:
        position = ops.arange(ops.shape(query)[2])
        earlier = (position[None, :] <= position[:, None])[None, None]
        mask = earlier if mask is None else ops.logical_and(earlier, mask)
    if mask is not None:
        # Added, since the mask is the same for all heads: `where` on the scores takes three times as long on a CPU.
        scores = scores + ops.where(mask, ops.cast(0.0, "float32"), ops.cast(HIDDEN, "float32"))
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(weights if keep is None else dropout.apply(weights, keep), value)


def attend(
    use: MemoryUse, query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, seed=None
) -> Tensor:
    """Attention in the form of `use`; dropout draws its masks from `seed`. See `attention` for the rest."""
    with keras.name_scope(ATTENTION_SCOPES[use.form]):
        if use.form == MEMORY_EFFICIENT:
            return memory_efficient_attention(query, key, value, key_mask, causal, dropout, seed)
        # Dropout masks are not recomputed: that would take longer than the products.
        keep = dropout and dropout.keep_mask((*ops.shape(query)[:3], ops.shape(key)[2]), seed)
        return use.segment(lambda *projected: attention(*projected, key_mask, causal, dropout, keep))(query, key, value)


class CausalSelfAttention(keras.layers.Layer):
    """GPT-2 self-attention: one projection to query, key and value, one projection out.

    Args:
        dropout: Rate on the attention probabilities.
        output_stddev: Standard deviation of the output projection's initial kernel.
        site: Dropout site of this layer.

    Call arguments: `x` `(B, T, C)`; `key_mask` `(B, T)` bool or None; `seed` as in `Dropout`.
    """

    def __init__(self, heads: int, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.output_stddev, self.dropout = heads, output_stddev, Dropout(dropout, site)

    def build(self, input_shape: Shape):
        width, policy = input_shape[-1], self.dtype_policy
        self.qkv = normal_linear(3 * width, width, "qkv", dtype=policy)
        self.output_projection = normal_linear(width, width, "output_projection", self.output_stddev, policy)

    def call(self, x: Tensor, key_mask=None, seed=None) -> Tensor:
        return self.attend_and_project(self.qkv(x, seed=seed), key_mask, seed)[0]

    def attend_and_project(
        self, qkv: Tensor, key_mask=None, seed=None, use: MemoryUse = MemoryUse()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The part of a call after the first projection; also returns keys and values, each `(B, heads, T, D)`."""
        query, key, value = self._split(qkv)
        attended = attend(use, query, key, value, key_mask, True, self.dropout, seed)
        return self.output_projection(merge_heads(attended), seed=seed), key, value

    def first_head(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled query and key of the first head: `(B, T, C)` -> `(B, T, D)` twice."""
        query, key, _ = ops.split(self.qkv(x), 3, axis=-1)
        width = query.shape[-1] // self.heads
        return query[..., :width] / width**0.5, key[..., :width]

    def advance(
        self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor, key_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes one more position with a static cache.

        Args:
            x: `(B, 1, C)`.
            keys, values: Cache, `(B, heads, S, D)`.
            position: Scalar int32, the cache row to write.
            key_mask: `(B, S)` bool, visible cache rows, `position` included.

        Returns:
            Output `(B, 1, C)` and the two updated caches.
        """
        query, key, value = self._split(self.qkv(x))
        keys = ops.slice_update(keys, (0, 0, position, 0), key)
        values = ops.slice_update(values, (0, 0, position, 0), value)
        return self.output_projection(merge_heads(attention(query, keys, values, key_mask))), keys, values

    def _split(self, qkv):
        return [split_heads(part, self.heads) for part in ops.split(qkv, 3, axis=-1)]
