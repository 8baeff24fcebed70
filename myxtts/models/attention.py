"""Attention (standard, memory-efficient, and with a static key-value cache), and the GPT-2 transformer block.

The memory-efficient form is FlashAttention over chunks of keys. Forward and backward pass follow Dao et al. 2022,
algorithms 1 and 4, with the online softmax of Milakov and Gimelshein 2018, algorithm 3. Under a causal mask only
queries at and after a chunk read it, which saves half of the products.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from myxtts.models.layers import Dropout, Layer, Tensor, built, normal_linear

CHUNK = 256
"""Keys per chunk."""
HIDDEN = -1e30
"""Score of a masked key or code: far below any other, and finite, so that differences of scores are finite too."""


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, seed=None
) -> Tensor:
    """Computes `attention` in `O(T + S)` memory, forward and backward.

    Dropout masks are computed per chunk from `seed`, and differ from those of the standard form.
    """

    def differentiable(query, key, value):
        chunks = _Chunks(query, key, value, key_mask, causal, dropout, seed)
        output, log_sum = chunks.forward()
        return output, lambda upstream: chunks.backward(output, log_sum, upstream)

    return ops.custom_gradient(differentiable)(query, key, value)


class _Chunks:
    """Forward and backward pass of one attention, chunk by chunk."""

    def __init__(self, query, key, value, key_mask, causal, dropout, seed):
        self.scale = query.shape[-1] ** -0.5
        self.query = query * ops.cast(self.scale, query.dtype)
        self.key, self.value = key, value
        self.key_mask = None if key_mask is None else ops.convert_to_tensor(key_mask)
        self.causal, self.dropout, self.seed = causal, dropout or Dropout(0.0), seed
        self.num_queries, self.num_keys = ops.shape(query)[2], ops.shape(key)[2]

    def forward(self):
        """Output `(B, heads, T, D)` and logarithm of the softmax denominators `(B, heads, T, 1)`."""
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
        """Gradients of query, key and value."""
        dtype = self.query.dtype
        # FlashAttention, equation 4.
        center = ops.sum(ops.cast(upstream, "float32") * ops.cast(output, "float32"), axis=-1, keepdims=True)

        def chunk(index, start, after, query_gradient, key_gradient, value_gradient):
            first, query, key, value, scores = self._read(start, after)
            weights = ops.exp(scores - log_sum[:, :, first:])
            keep = self.dropout.keep_mask(ops.shape(weights), self.seed, index + after)
            above = upstream[:, :, first:]
            value_part = ops.matmul(transposed(ops.cast(self.dropout.apply(weights, keep), dtype)), above)
            inner = self.dropout.apply(ops.cast(ops.matmul(above, transposed(value)), "float32"), keep)
            inner = ops.cast(weights * (inner - center[:, :, first:]), dtype)
            key_part = ops.matmul(transposed(inner), query)
            query_part = query_gradient[:, :, first:] + ops.cast(ops.matmul(inner, key), "float32")
            query_gradient = self._replaced(query_gradient, first, query_part)
            key_gradient = ops.concatenate([key_gradient, key_part], axis=2)
            return _after(key_part), query_gradient, key_gradient, ops.concatenate([value_gradient, value_part], axis=2)

        empty = (of[:, :, : self.num_keys * 0] for of in (self.key, self.value))
        zero = ops.zeros_like(self.query, dtype="float32")
        query_gradient, key_gradient, value_gradient = self._loop(chunk, _after(upstream), zero, *empty)
        return ops.cast(query_gradient * self.scale, dtype), key_gradient, value_gradient

    def _loop(self, chunk, after, *carried):
        """Runs `chunk(index, start, after, *carried) -> (after, *carried)` over all chunks, unrolled if their number is
        known at trace time.

        `after` is a zero computed from the previous chunk. Keys and dropout seed depend on it, so that a parallel
        executor does not compute the scores and masks of all chunks at once, which would take the memory to be saved.
        It is added to the keys and not to their start, because XLA evaluates slice bounds at compile time.
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
        """For the chunk at `start`: index of its first query, its queries, keys and values, and the scores."""
        first, shape = start if self.causal else 0, ops.shape(self.key)
        stop = (min if isinstance(start, int) else ops.minimum)(start + CHUNK, self.num_keys)
        corner, size = (0, 0, start, 0), (*shape[:2], stop - start, shape[3])
        key, value = (ops.slice(of, corner, size) + ops.cast(after, of.dtype) for of in (self.key, self.value))
        query, mask = self.query[:, :, first:], None
        scores = ops.cast(ops.matmul(query, transposed(key)), "float32")
        if self.causal:
            mask = (ops.arange(start, stop)[None] <= ops.arange(first, self.num_queries)[:, None])[None, None]
        if self.key_mask is not None:
            seen = self.key_mask[:, None, None, start:stop]
            mask = seen if mask is None else ops.logical_and(mask, seen)
        scores = scores if mask is None else ops.where(mask, scores, ops.cast(HIDDEN, "float32"))
        return first, query, key, value, scores

    def _replaced(self, old, first, new):
        """Replaces the queries of `old` from `first` on by `new`."""
        return ops.concatenate([old[:, :, :first], new], axis=2) if self.causal else new


def transposed(x: Tensor) -> Tensor:
    """`(B, heads, T, D)` -> `(B, heads, D, T)`."""
    return ops.transpose(x, (0, 1, 3, 2))


def _after(x):
    """An int32 zero that depends on `x`."""
    return ops.minimum(ops.cast(ops.isfinite(x[0, 0, 0, 0]), "int32"), 0)


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


class CausalSelfAttention(Layer):
    """GPT-2 self-attention: one projection to query, key and value, one projection out.

    Args:
        dropout: Rate on the attention probabilities.
        output_stddev: Standard deviation of the output projection's initial kernel.
        site: Dropout site of this layer.

    Call arguments: `x` `(B, T, width)`; `key_mask` `(B, T)` bool or None; `seed` as in `Dropout`.
    """

    def __init__(self, width: int, heads: int, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.dropout, policy = heads, Dropout(dropout, site), self.dtype_policy
        self.qkv = normal_linear(3 * width, width, "qkv", dtype=policy)
        self.output_projection = normal_linear(width, width, "output_projection", output_stddev, policy)

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


SITES_PER_BLOCK = 3
"""Dropout sites of one block: attention probabilities and two residual branches."""


def layer_norm(width: int, name: str, dtype=None) -> keras.layers.LayerNormalization:
    """A built LayerNormalization with the reference's epsilon instead of Keras's 1e-3."""
    return built(keras.layers.LayerNormalization(epsilon=1e-5, name=name, dtype=dtype), (None, None, width))


class TransformerBlock(Layer):
    """Pre-norm block of GPT-2 (Radford et al. 2019): attention and a four times wider tanh-GELU MLP.

    Args:
        dropout: Rate on attention probabilities and on both residual branches.
        output_stddev: Initial standard deviation of the last projection of each branch; GPT-2 scales it by
            `1 / sqrt(2 * layers)`.
        site: First dropout site of this block.

    Call arguments: see `CausalSelfAttention`.
    """

    def __init__(self, width: int, heads: int, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.attention_dropout, self.mlp_dropout = Dropout(dropout, site + 1), Dropout(dropout, site + 2)
        self.memory_use = MemoryUse()
        # The order of creation fixes the random initial values, and that of the attributes the order of the weights.
        mlp_in = normal_linear(4 * width, width, "mlp_in", dtype=policy)
        mlp_out = normal_linear(width, 4 * width, "mlp_out", output_stddev, policy)
        self.attention_norm = layer_norm(width, "attention_norm", policy)
        options = width, heads, dropout, output_stddev, site
        self.attention = CausalSelfAttention(*options, dtype=policy, name="attention")
        self.mlp_norm = layer_norm(width, "mlp_norm", policy)
        self.mlp_in, self.mlp_out = mlp_in, mlp_out

    def call(self, x: Tensor, key_mask=None, seed=None) -> Tensor:
        return self._forward(x, key_mask, seed, self.memory_use)[0]

    def prefill(self, x: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Like a call without dropout, but also returns keys and values, each `(B, heads, T, D)`."""
        return self._forward(x, key_mask)

    def _forward(self, x, key_mask, seed=None, use=MemoryUse()):
        # Segments end in a matrix product, whose output the gradient does not need. So only norms, scores, softmax and
        # GELU are recomputed: little work and most of the memory.
        qkv = use.segment(lambda x: self.attention.qkv(self.attention_norm(x), seed=seed))(x)
        attended, keys, values = self.attention.attend_and_project(qkv, key_mask, seed, use)
        return self._mlp(x + self.attention_dropout(attended, seed=seed), seed, use), keys, values

    def _mlp(self, x, seed=None, use=MemoryUse()):
        hidden = use.segment(lambda x: self.mlp_in(self.mlp_norm(x), seed=seed))(x)
        out = use.segment(lambda hidden: self.mlp_out(ops.gelu(hidden, approximate=True), seed=seed))(hidden)
        return x + self.mlp_dropout(out, seed=seed)

    def advance(
        self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor, key_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes one more position; see `CausalSelfAttention.advance`."""
        attended, keys, values = self.attention.advance(self.attention_norm(x), keys, values, position, key_mask)
        return self._mlp(x + attended), keys, values
