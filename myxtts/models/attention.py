"""Attention (standard, memory-efficient, and with a static key-value cache), and the GPT-2 transformer block.

Memory-efficient attention is FlashAttention over chunks of keys. The forward and backward passes follow Dao et al.
2022, algorithms 1 and 4, with the online softmax of Milakov and Gimelshein 2018, algorithm 3. With a causal mask, the
scores of a chunk of keys are not computed for queries before the chunk, which saves about half of the matrix products.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from myxtts.models.layers import Dropout, Layer, Tensor, layer_norm, normal_linear

CHUNK = 256
"""Number of keys that `memory_efficient_attention` processes at a time."""
HIDDEN = -1e30
"""Value of masked attention scores and removed logits. It is finite, because -inf minus -inf would be NaN."""


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, seed=None
) -> Tensor:
    """Computes the same as `attention`, with `O(T + S)` instead of `O(T S)` memory in the forward and backward passes.

    The `Dropout` layer `dropout` needs a `seed` instead of a mask, because each chunk of keys has its own dropout mask.
    """

    def differentiable(query, key, value):
        chunks = _Chunks(query, key, value, key_mask, causal, dropout, seed)
        output, log_sum = chunks.forward()
        return output, lambda upstream: chunks.backward(output, log_sum, upstream)

    return ops.custom_gradient(differentiable)(query, key, value)


class _Chunks:
    """Forward and backward pass of one call of `memory_efficient_attention`."""

    def __init__(self, query, key, value, key_mask, causal, dropout, seed):
        self.scale = query.shape[-1] ** -0.5
        self.query = query * ops.cast(self.scale, query.dtype)
        self.key, self.value = key, value
        self.key_mask = None if key_mask is None else ops.convert_to_tensor(key_mask)
        self.causal, self.dropout, self.seed = causal, dropout or Dropout(0.0), seed
        self.num_queries, self.num_keys = ops.shape(query)[2], ops.shape(key)[2]

    def forward(self):
        """Returns the output `(B, heads, T, D)` and the log-sum-exp of each query's scores, `(B, heads, T, 1)`."""
        total = ops.zeros_like(self.query, dtype="float32")
        column = total[..., :1]

        def chunk(index, start, after, total, highest, denominator):
            first, _, _, value, scores = self._read(start, after)
            seen = highest[:, :, first:]
            highest_now = ops.maximum(seen, ops.max(scores, axis=-1, keepdims=True))
            weights = ops.exp(scores - highest_now)
            rescale = ops.exp(seen - highest_now)
            denominator_now = denominator[:, :, first:] * rescale + ops.sum(weights, axis=-1, keepdims=True)
            weights = self.dropout.apply(weights, self.dropout.keep_mask(ops.shape(weights), self.seed, index + after))
            added = ops.cast(ops.matmul(ops.cast(weights, value.dtype), value), "float32")
            total_now = total[:, :, first:] * rescale + added
            changes = (total, total_now), (highest, highest_now), (denominator, denominator_now)
            return _after(denominator_now), *(self._replaced(old, first, new) for old, new in changes)

        total, highest, denominator = self._loop(chunk, _after(self.query), total, column + HIDDEN, column)
        return ops.cast(total / denominator, self.query.dtype), highest + ops.log(denominator)

    def backward(self, output, log_sum, upstream):
        """Returns the gradients of query, key and value. `upstream` is the gradient of `output` (see `forward`)."""
        dtype = self.query.dtype
        # FlashAttention, equation 4.
        center = ops.sum(ops.cast(upstream, "float32") * ops.cast(output, "float32"), axis=-1, keepdims=True)

        def chunk(index, start, after, query_gradient, key_gradient, value_gradient):
            first, query, key, value, scores = self._read(start, after)
            weights = ops.exp(scores - log_sum[:, :, first:])
            keep = self.dropout.keep_mask(ops.shape(weights), self.seed, index + after)
            above = upstream[:, :, first:]
            value_part = ops.matmul(ops.swapaxes(ops.cast(self.dropout.apply(weights, keep), dtype), 2, 3), above)
            inner = self.dropout.apply(ops.cast(ops.matmul(above, ops.swapaxes(value, 2, 3)), "float32"), keep)
            inner = ops.cast(weights * (inner - center[:, :, first:]), dtype)
            key_part = ops.matmul(ops.swapaxes(inner, 2, 3), query)
            query_part = query_gradient[:, :, first:] + ops.cast(ops.matmul(inner, key), "float32")
            query_gradient = self._replaced(query_gradient, first, query_part)
            key_gradient = ops.concatenate([key_gradient, key_part], axis=2)
            return _after(key_part), query_gradient, key_gradient, ops.concatenate([value_gradient, value_part], axis=2)

        empty = (of[:, :, : self.num_keys * 0] for of in (self.key, self.value))
        zero = ops.zeros_like(self.query, dtype="float32")
        query_gradient, key_gradient, value_gradient = self._loop(chunk, _after(upstream), zero, *empty)
        return ops.cast(query_gradient * self.scale, dtype), key_gradient, value_gradient

    def _loop(self, chunk, after, *carried):
        """Calls `chunk(index, start, after, *carried)` for each chunk of keys, and returns the final `carried`.

        Each call returns `(after, *carried)` for the next call. `after` is a zero computed from the results of a chunk,
        and is added to the keys and values of the next chunk. So the backend must finish one chunk before it starts the
        next, which saves memory. Slice bounds do not use `after`, because XLA needs them at compile time.
        """
        count = (self.num_keys + CHUNK - 1) // CHUNK
        if isinstance(count, int):
            for index in range(count):
                after, *carried = chunk(index, index * CHUNK, after, *carried)
            return carried
        _, _, *carried = ops.while_loop(
            lambda index, after, *carried: index < count,
            lambda index, after, *carried: (index + 1, *chunk(index, index * CHUNK, after, *carried)),
            (ops.zeros((), "int32"), after, *carried),
        )
        return carried

    def _read(self, start, after):
        """Returns `(first, query, key, value, scores)` for the key chunk at `start`, without queries before `first`."""
        first = start if self.causal else 0
        minimum = min if isinstance(start, int) else ops.minimum
        stop, shape = minimum(start + CHUNK, self.num_keys), ops.shape(self.key)
        corner, size = (0, 0, start, 0), (*shape[:2], stop - start, shape[3])
        key, value = (ops.slice(of, corner, size) + ops.cast(after, of.dtype) for of in (self.key, self.value))
        query, mask = self.query[:, :, first:], None
        scores = ops.cast(ops.matmul(query, ops.swapaxes(key, 2, 3)), "float32")
        if self.causal:
            mask = (ops.arange(start, stop)[None] <= ops.arange(first, self.num_queries)[:, None])[None, None]
        if self.key_mask is not None:
            seen = self.key_mask[:, None, None, start:stop]
            mask = seen if mask is None else ops.logical_and(mask, seen)
        scores = scores if mask is None else ops.where(mask, scores, ops.cast(HIDDEN, "float32"))
        return first, query, key, value, scores

    def _replaced(self, old, first, new):
        """Returns a copy of `old` `(B, heads, T, ...)` whose values for query `first` and later queries are `new`."""
        return ops.concatenate([old[:, :, :first], new], axis=2) if self.causal else new


def _after(x):
    """Returns an int32 zero that depends on `x`; `_Chunks._loop` uses it to make the next chunk wait for `x`."""
    return ops.minimum(ops.cast(ops.isfinite(x[0, 0, 0, 0]), "int32"), 0)


STANDARD, MEMORY_EFFICIENT = "standard", "memory-efficient"
"""Names of the implementations of attention: over all keys together, or over one chunk of keys after another."""
ATTENTION_SCOPES = {STANDARD: "standard_attention", MEMORY_EFFICIENT: "memory_efficient_attention"}
"""Name scope of each implementation; it shows in a traced graph which implementation was used."""


class MemoryUse(NamedTuple):
    """Options of a block that save memory in training and do not change its output. Inference uses the defaults."""

    form: str = STANDARD
    """Implementation of attention: `STANDARD` or `MEMORY_EFFICIENT`."""
    segment: Callable[[Callable], Callable] = lambda function: function
    """Function that adds gradient checkpointing to a part of the block; by default, it returns the part unchanged."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Splits the last axis into heads: `(B, T, heads * D)` -> `(B, heads, T, D)`."""
    batch, width = ops.shape(x)[0], x.shape[-1]
    return ops.transpose(ops.reshape(x, (batch, -1, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """Merges heads into the last axis: `(B, heads, T, D)` -> `(B, T, heads * D)`."""
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (ops.shape(x)[0], -1, x.shape[1] * x.shape[3]))


def attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, keep=None
) -> Tensor:
    """Computes scaled dot-product attention (Vaswani et al. 2017, section 3.2.1) with the softmax in float32.

    Args:
        query: `(B, heads, T, D)`.
        key, value: `(B, heads, S, D)`.
        key_mask: `(B, S)` bool, False for keys to ignore; None to use all keys.
        causal: Whether query `i` sees only keys `0` to `i`; T and S must then be equal.
        dropout: `Dropout` layer that applies the mask `keep`; not used if `keep` is None.
        keep: Dropout mask of the attention probabilities, `(B, heads, T, S)` bool; None for no dropout.

    Returns `(B, heads, T, D)`.
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.matmul(query, ops.swapaxes(key, 2, 3)), "float32")
    mask = None if key_mask is None else key_mask[:, None, None, :]
    if causal:
        position = ops.arange(ops.shape(query)[2])
        earlier = (position[None, :] <= position[:, None])[None, None]
        mask = earlier if mask is None else ops.logical_and(earlier, mask)
    if mask is not None:
        # Adding the mask of one head is three times as fast on a CPU as `where` on the scores of all heads.
        scores = scores + ops.where(mask, ops.cast(0.0, "float32"), ops.cast(HIDDEN, "float32"))
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(weights if keep is None else dropout.apply(weights, keep), value)


def attend(
    use: MemoryUse, query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, seed=None
) -> Tensor:
    """Computes attention with the options in `use`; the other arguments are those of `memory_efficient_attention`."""
    with keras.name_scope(ATTENTION_SCOPES[use.form]):
        if use.form == MEMORY_EFFICIENT:
            return memory_efficient_attention(query, key, value, key_mask, causal, dropout, seed)
        # Dropout masks are stored, because recomputing them takes longer than the matrix products.
        keep = None if dropout is None else dropout.keep_mask((*ops.shape(query)[:3], ops.shape(key)[2]), seed)
        return use.segment(lambda *projected: attention(*projected, key_mask, causal, dropout, keep))(query, key, value)


class CausalSelfAttention(Layer):
    """The two linear layers of GPT-2's causal self-attention: the projection to `qkv`, and the output projection.

    `dropout` is the dropout rate of the attention probabilities, and `site` identifies their dropout mask (see
    `layers.Dropout`). `output_stddev` is the standard deviation of the output projection's initial kernel.
    """

    def __init__(self, width: int, heads: int, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.dropout, policy = heads, Dropout(dropout, site), self.dtype_policy
        self.qkv = normal_linear(3 * width, width, "qkv", dtype=policy)
        self.output_projection = normal_linear(width, width, "output_projection", output_stddev, policy)

    def split(self, qkv: Tensor) -> list[Tensor]:
        """Splits a projected input `(B, T, 3 width)` into queries, keys and values, `(B, heads, T, D)` each."""
        return [split_heads(part, self.heads) for part in ops.split(qkv, 3, axis=-1)]


SITES_PER_BLOCK = 3
"""Number of dropout sites in a block: the attention probabilities and the two residual branches."""


class TransformerBlock(Layer):
    """Pre-norm block of GPT-2 (Radford et al. 2019): self-attention and an MLP with 4 x width hidden units, tanh GELU.

    Args:
        dropout: Dropout rate of the attention probabilities and both residual branches.
        output_stddev: Standard deviation of the initial kernel of the last projection in attention and MLP.
        site: First of the block's `SITES_PER_BLOCK` consecutive dropout sites, see `layers.Dropout`.

    Call arguments: `x` `(B, T, width)`; `key_mask` `(B, T)` bool, False for padding, or None; `seed` (see `Dropout`).
    """

    def __init__(self, width: int, heads: int, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.attention_dropout, self.mlp_dropout = Dropout(dropout, site + 1), Dropout(dropout, site + 2)
        self.memory_use = MemoryUse()
        # The order of creation determines the initial values; the order of attributes is the order of the weights.
        mlp_in = normal_linear(4 * width, width, "mlp_in", dtype=policy)
        mlp_out = normal_linear(width, 4 * width, "mlp_out", output_stddev, policy)
        self.attention_norm = layer_norm(width, "attention_norm", policy)
        self.attention = CausalSelfAttention(width, heads, dropout, output_stddev, site, dtype=policy, name="attention")
        self.mlp_norm = layer_norm(width, "mlp_norm", policy)
        self.mlp_in, self.mlp_out = mlp_in, mlp_out

    def call(self, x: Tensor, key_mask=None, seed=None) -> Tensor:
        return self.prefill(x, key_mask, seed, self.memory_use)[0]

    def prefill(
        self, x: Tensor, key_mask: Tensor | None, seed=None, use: MemoryUse = MemoryUse()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the block's output for `x`, `(B, T, width)`, and the keys and values to cache, `(B, heads, T, D)`."""
        # Segments end with a matrix product, whose output the gradient does not need. So only norms, scores, softmax
        # and GELU are recomputed, which use most of the memory and little time.
        qkv = use.segment(lambda x: self.attention.qkv(self.attention_norm(x), seed=seed))(x)
        query, keys, values = self.attention.split(qkv)
        attended = attend(use, query, keys, values, key_mask, True, self.attention.dropout, seed)
        x = x + self.attention_dropout(self.attention.output_projection(merge_heads(attended), seed=seed), seed=seed)
        return self._mlp(x, seed, use), keys, values

    def _mlp(self, x, seed=None, use=MemoryUse()):
        hidden = use.segment(lambda x: self.mlp_in(self.mlp_norm(x), seed=seed))(x)
        out = use.segment(lambda hidden: self.mlp_out(ops.gelu(hidden, approximate=True), seed=seed))(hidden)
        return x + self.mlp_dropout(out, seed=seed)

    def advance(
        self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor, key_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes one more position with a static key-value cache.

        Args:
            x: Input at the new position, `(B, 1, width)`.
            keys, values: Cache of S positions, `(B, heads, S, D)`.
            position: Index of the cache position to write, scalar int32.
            key_mask: `(B, S)` bool, True for cache positions to attend to; must be True at `position`.

        Returns output `(B, 1, width)`, updated keys and updated values.
        """
        query, key, value = self.attention.split(self.attention.qkv(self.attention_norm(x)))
        keys = ops.slice_update(keys, (0, 0, position, 0), key)
        values = ops.slice_update(values, (0, 0, position, 0), value)
        attended = merge_heads(attention(query, keys, values, key_mask))
        return self._mlp(x + self.attention.output_projection(attended)), keys, values
