"""Scaled dot-product attention: masks, dropout, its two forms, a static key-value cache."""

import keras
from keras import ops

from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.memory_efficient_attention import memory_efficient_attention, transposed
from myxtts.models.layers.recomputation import recomputed

STANDARD, MEMORY_EFFICIENT = "standard", "memory-efficient"
"""The forms of attention: one product of all queries with all keys, or chunks of keys."""
ATTENTION_SCOPES = {STANDARD: "standard_attention", MEMORY_EFFICIENT: "memory_efficient_attention"}
"""Name scope that each form's operations stand in."""


def split_heads(x, heads):
    """`(B, T, heads * D)` -> `(B, heads, T, D)`."""
    batch, width = ops.shape(x)[0], x.shape[-1]
    return ops.transpose(ops.reshape(x, (batch, -1, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x):
    """`(B, heads, T, D)` -> `(B, T, heads * D)`."""
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (ops.shape(x)[0], -1, x.shape[1] * x.shape[3]))


def attention(query, key, value, key_mask=None, causal=False, dropout=None, keep=None, recompute=False):
    """Attention of Vaswani et al. 2017, section 3.2.1, with the softmax in float32.

    Args:
        query: `(B, heads, T, D)`.
        key, value: `(B, heads, S, D)`.
        key_mask: `(B, S)` bool, False keys are not seen; None shows all.
        causal: Query `i` sees keys `0` to `i`; T and S are equal.
        dropout: `Dropout` on the attention probabilities, or None.
        keep: What its `keep_mask` gave for them, `(B, heads, T, S)`, or None.
        recompute: Whether the backward pass makes all this again; the gradient then does without the output.

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
        # Added, since the mask is the same for all heads: choosing one by one takes three times as long on a CPU.
        scores = scores + ops.where(mask, ops.cast(0.0, "float32"), ops.cast(-1e30, "float32"))
    if recompute or keras.backend.standardize_dtype(value.dtype) != "float32":
        return _weighted_mean(scores, value, dropout, keep)[-1]

    def differentiable(scores, value):
        weights, dropped, output = _weighted_mean(scores, value, dropout, keep)

        def gradients(upstream):
            # What the softmax's derivative takes off a row is a sum over D values here and not over S probabilities
            # (Dao et al. 2022, equation 4): two passes less over the largest arrays of a step. In half precision the
            # output is rounded, and this would be with it.
            centre = ops.sum(upstream * output, axis=-1, keepdims=True)
            inner = ops.matmul(upstream, transposed(value))
            if keep is not None:
                inner = dropout.apply(inner, keep)
            return weights * (inner - centre), ops.matmul(transposed(dropped), upstream)

        return output, gradients

    return ops.custom_gradient(differentiable)(scores, value)


def _weighted_mean(scores, value, dropout, keep):
    """The softmax of the scores, what dropout leaves of it, and that times `value`."""
    weights = ops.softmax(scores, axis=-1)
    dropped = ops.cast(weights, value.dtype)
    if keep is not None:
        dropped = dropout.apply(dropped, keep)
    return weights, dropped, ops.matmul(dropped, value)


def attend(form, query, key, value, key_mask=None, causal=False, dropout=None, seed=None, block=None):
    """Attention in the form asked for.

    Args:
        form: `STANDARD` or `MEMORY_EFFICIENT`.
        query, key, value, key_mask, causal: As in `attention`.
        dropout: `Dropout` on the attention probabilities, or None.
        seed: Seed of that dropout.
        block: As in `recomputed`; the memory-efficient form recomputes in any case.
    """
    with keras.name_scope(ATTENTION_SCOPES[form]):
        if form == MEMORY_EFFICIENT:
            return memory_efficient_attention(query, key, value, key_mask, causal, dropout, seed)
        keep = None
        if dropout is not None:
            keep = dropout.keep_mask((*ops.shape(query)[:3], ops.shape(key)[2]), seed)
        # Masks are kept: drawing them again takes longer than the products.
        return recomputed(
            block,
            lambda q, k, v: attention(q, k, v, key_mask, causal, dropout, keep, block is not None),
            query,
            key,
            value,
        )


@keras.saving.register_keras_serializable("myxtts")
class CausalSelfAttention(keras.layers.Layer):
    """GPT-2 self-attention: one projection to query, key and value thirds, one projection out.

    Args:
        heads: Number of heads.
        dropout: Rate on the attention probabilities.
        output_stddev: Standard deviation of the output projection's initial kernel.
        site: First dropout site of this layer.

    Call arguments: `x` `(B, T, C)`; `key_mask` `(B, T)` bool or None; `seed` as in `Dropout`.
    """

    def __init__(self, heads, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.dropout_rate = dropout
        self.output_stddev = output_stddev
        self.site = site
        self.dropout = Dropout(dropout, site)
        self.form = STANDARD
        """`STANDARD` or `MEMORY_EFFICIENT`; of more than one position at a time."""

    def build(self, input_shape):
        width = input_shape[-1]
        self.qkv = keras.layers.Dense(
            3 * width,
            kernel_initializer=keras.initializers.RandomNormal(0.0, 0.02),
            dtype=self.dtype_policy,
            name="qkv",
        )
        self.qkv.build(input_shape)
        self.output_projection = keras.layers.Dense(
            width,
            kernel_initializer=keras.initializers.RandomNormal(0.0, self.output_stddev),
            dtype=self.dtype_policy,
            name="output_projection",
        )
        self.output_projection.build(input_shape)
        self.built = True

    def _split(self, qkv):
        return [split_heads(part, self.heads) for part in ops.split(qkv, 3, axis=-1)]

    def call(self, x, key_mask=None, seed=None):
        return self.attend_and_project(self.qkv(x), key_mask, seed)

    def attend_and_project(self, qkv, key_mask=None, seed=None, block=None):
        """What a call does after the first projection: `(B, T, 3 * C)` -> `(B, T, C)`; `block` as in `recomputed`."""
        query, key, value = self._split(qkv)
        attended = attend(self.form, query, key, value, key_mask, True, self.dropout, seed, block)
        return self.output_projection(merge_heads(attended))

    def prefill(self, x, key_mask):
        """Like a call, and also returns the keys and values, each `(B, heads, T, D)`."""
        query, key, value = self._split(self.qkv(x))
        attended = attend(self.form, query, key, value, key_mask, causal=True)
        return self.output_projection(merge_heads(attended)), key, value

    def step(self, x, keys, values, position, key_mask):
        """One more position, written into a static cache.

        Args:
            x: `(B, 1, C)`.
            keys, values: Cache, `(B, heads, S, D)`.
            position: Scalar int32, the cache row to fill.
            key_mask: `(B, S)` bool, rows that may be seen, `position` included.

        Returns:
            Output `(B, 1, C)` and the two updated caches.
        """
        query, key, value = self._split(self.qkv(x))
        keys = ops.slice_update(keys, (0, 0, position, 0), key)
        values = ops.slice_update(values, (0, 0, position, 0), value)
        return self.output_projection(merge_heads(attention(query, keys, values, key_mask))), keys, values

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "heads": self.heads,
            "dropout": self.dropout_rate,
            "output_stddev": self.output_stddev,
            "site": self.site,
        }
