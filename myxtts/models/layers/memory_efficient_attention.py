"""Exact attention in memory linear in the sequence: keys in chunks, an online softmax, chunks recomputed backwards.

Forward and backward are those of FlashAttention (Dao et al. 2022, algorithms 1 and 4; the online softmax is Milakov
and Gimelshein 2018, algorithm 3), with one loop over chunks of keys. Under a causal mask a chunk is read only by the
queries at and after it, so about half of the products that the standard form takes are never made.
"""

from keras import ops

from myxtts.models.layers.tensor import Tensor

CHUNK = 256
"""Keys of one chunk."""
HIDDEN = -1e30
"""Score of a key that is not seen: far below any real one, and finite, so that differences of scores are, too."""


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, key_mask=None, causal=False, dropout=None, seed=None
) -> Tensor:
    """Equals `attention` of `layers/attention.py`; takes `O(T + S)` memory, forward and backward.

    Shapes and arguments are those of `attention`, except that `dropout` draws its masks here from `seed`, for one chunk
    at a time: they are other numbers than the standard form draws.
    """

    def differentiable(query, key, value):
        chunks = _Chunks(query, key, value, key_mask, causal, dropout, seed)
        output, log_sum = chunks.forward()
        return output, lambda upstream: chunks.backward(output, log_sum, upstream)

    return ops.custom_gradient(differentiable)(query, key, value)


class _Chunks:
    """One attention, chunk by chunk. With lengths known at trace time the loop is unrolled, otherwise it is a loop."""

    def __init__(self, query, key, value, key_mask, causal, dropout, seed):
        self.scale = query.shape[-1] ** -0.5
        self.query = query * ops.cast(self.scale, query.dtype)
        self.key, self.value = key, value
        self.key_mask = None if key_mask is None else ops.convert_to_tensor(key_mask)
        self.causal, self.dropout, self.seed = causal, dropout, seed
        self.num_queries, self.num_keys = ops.shape(query)[2], ops.shape(key)[2]

    def forward(self):
        """Output `(B, heads, T, D)` and the logarithm of each query's softmax denominator `(B, heads, T, 1)`."""
        total = ops.zeros_like(self.query, dtype="float32")
        column = total[..., :1]

        def chunk(index, start, after, total, highest, denominator):
            first = start if self.causal else 0
            query, key, value, stop = self._at(start, first, after)
            scores = self._scores(query, key, start, first, stop)
            seen = highest[:, :, first:]
            highest_now = ops.maximum(seen, ops.max(scores, axis=-1, keepdims=True))
            weights = ops.exp(scores - highest_now)
            rescale = ops.exp(seen - highest_now)
            denominator_now = denominator[:, :, first:] * rescale + ops.sum(weights, axis=-1, keepdims=True)
            weights = self._drop(weights, self._keep(weights, index + after))
            added = ops.cast(ops.matmul(ops.cast(weights, value.dtype), value), "float32")
            total_now = total[:, :, first:] * rescale + added
            return _after(denominator_now), *(
                ops.concatenate([old[:, :, :first], new], axis=2) if self.causal else new
                for old, new in ((total, total_now), (highest, highest_now), (denominator, denominator_now))
            )

        total, highest, denominator = self._loop(chunk, _after(self.query), total, column + HIDDEN, column)
        return ops.cast(total / denominator, self.query.dtype), highest + ops.log(denominator)

    def backward(self, output, log_sum, upstream):
        """Gradients of query, key and value, of their shapes and dtypes."""
        dtype = self.query.dtype
        # Row by row, what the softmax's derivative takes off: FlashAttention, equation 4.
        center = ops.sum(ops.cast(upstream, "float32") * ops.cast(output, "float32"), axis=-1, keepdims=True)

        def chunk(index, start, after, query_gradient, key_gradient, value_gradient):
            first = start if self.causal else 0
            query, key, value, stop = self._at(start, first, after)
            weights = ops.exp(self._scores(query, key, start, first, stop) - log_sum[:, :, first:])
            keep = self._keep(weights, index + after)
            above = upstream[:, :, first:]
            dropped = ops.cast(self._drop(weights, keep), dtype)
            value_part = ops.matmul(transposed(dropped), above)
            inner = self._drop(ops.cast(ops.matmul(above, transposed(value)), "float32"), keep)
            inner = ops.cast(weights * (inner - center[:, :, first:]), dtype)
            key_part = ops.matmul(transposed(inner), query)
            query_part = query_gradient[:, :, first:] + ops.cast(ops.matmul(inner, key), "float32")
            if self.causal:
                query_part = ops.concatenate([query_gradient[:, :, :first], query_part], axis=2)
            return (
                _after(key_part),
                query_part,
                ops.concatenate([key_gradient, key_part], axis=2),
                ops.concatenate([value_gradient, value_part], axis=2),
            )

        empty = (of[:, :, : self.num_keys * 0] for of in (self.key, self.value))
        zero = ops.zeros_like(self.query, dtype="float32")
        query_gradient, key_gradient, value_gradient = self._loop(chunk, _after(upstream), zero, *empty)
        return ops.cast(query_gradient * self.scale, dtype), key_gradient, value_gradient

    def _loop(self, chunk, after, *carried):
        """Runs `chunk(index, start, after, *carried) -> (after, *carried)` over the chunks of keys.

        `after` is a zero that the result before it gives. A chunk's keys and dropout seed are made to depend on it:
        without that a parallel executor makes the masks and scores of all chunks, and of all layers, at once, which is
        the memory that chunks are there to save. It is added to the keys and not to where they start: XLA tries to
        evaluate the bounds of a slice while it compiles, and with them all that the zero came from.
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

    def _at(self, start, first, after):
        """The queries that read the chunk at `start`, its keys and values, and where it stops."""
        shape = ops.shape(self.key)
        stop = (min if isinstance(start, int) else ops.minimum)(start + CHUNK, self.num_keys)
        corner, size = (0, 0, start, 0), (*shape[:2], stop - start, shape[3])
        key, value = (ops.slice(of, corner, size) + ops.cast(after, of.dtype) for of in (self.key, self.value))
        return self.query[:, :, first:], key, value, stop

    def _scores(self, query, key, start, first, stop):
        scores = ops.cast(ops.matmul(query, transposed(key)), "float32")
        mask = None
        if self.causal:
            mask = (ops.arange(start, stop)[None] <= ops.arange(first, self.num_queries)[:, None])[None, None]
        if self.key_mask is not None:
            seen = self.key_mask[:, None, None, start:stop]
            mask = seen if mask is None else ops.logical_and(mask, seen)
        return scores if mask is None else ops.where(mask, scores, ops.cast(HIDDEN, "float32"))

    def _keep(self, weights, index):
        return None if self.dropout is None else self.dropout.keep_mask(ops.shape(weights), self.seed, index)

    def _drop(self, weights, keep):
        return weights if keep is None else self.dropout.apply(weights, keep)


def transposed(x: Tensor) -> Tensor:
    """`(B, heads, T, D)` -> `(B, heads, D, T)`."""
    return ops.transpose(x, (0, 1, 3, 2))


def _after(x):
    """Zero, int32, known once `x` is."""
    return ops.minimum(ops.cast(ops.isfinite(x[0, 0, 0, 0]), "int32"), 0)
