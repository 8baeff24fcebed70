"""Exact attention in memory linear in the sequence length: FlashAttention over chunks of keys.

Forward and backward pass follow Dao et al. 2022, algorithms 1 and 4, with the online softmax of Milakov and Gimelshein
2018, algorithm 3. Under a causal mask only queries at and after a chunk read it, which saves half of the products.
"""

from keras import ops

from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.tensor import Tensor

CHUNK = 256
"""Keys per chunk."""
HIDDEN = -1e30
"""Score of a masked key: far below any other, and finite, so that differences of scores are finite too."""


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, seed=None
) -> Tensor:
    """Computes `attention.attention` in `O(T + S)` memory, forward and backward.

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
