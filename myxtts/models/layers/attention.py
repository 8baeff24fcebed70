"""Scaled dot-product attention: masks, dropout, a static key-value cache."""

import keras
from keras import ops

from myxtts.models.layers.dropout import Dropout


def split_heads(x, heads):
    """`(B, T, heads * D)` -> `(B, heads, T, D)`."""
    batch, width = ops.shape(x)[0], x.shape[-1]
    return ops.transpose(ops.reshape(x, (batch, -1, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x):
    """`(B, heads, T, D)` -> `(B, T, heads * D)`."""
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (ops.shape(x)[0], -1, x.shape[1] * x.shape[3]))


def attention(query, key, value, mask=None, dropout=None, seed=None):
    """Attention of Vaswani et al. 2017, section 3.2.1, with the softmax in float32.

    Args:
        query: `(B, heads, T, D)`.
        key, value: `(B, heads, S, D)`.
        mask: Boolean, broadcastable to `(B, heads, T, S)`; False keys are not seen.
        dropout: `Dropout` on the attention probabilities, or None.
        seed: Seed of that dropout.

    Returns:
        `(B, heads, T, D)`.
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
    if mask is not None:
        # Added, since the mask is the same for all heads: choosing one by one takes three times as long on a CPU.
        scores = scores + ops.where(mask, ops.cast(0.0, "float32"), ops.cast(-1e30, "float32"))
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    if dropout is not None:
        weights = dropout(weights, seed=seed)
    return ops.matmul(weights, value)


@keras.saving.register_keras_serializable("myxtts")
class CausalSelfAttention(keras.layers.Layer):
    """GPT-2 self-attention: one projection to query, key and value thirds, one projection out.

    Args:
        heads: Number of heads.
        dropout: Rate on the attention probabilities.
        output_stddev: Standard deviation of the output projection's initial kernel.
        site: First dropout site of this layer.

    Call arguments: `x` `(B, T, C)`; `attention_mask`, boolean `(B or 1, 1, T, T)`; `seed` as in `Dropout`.
    """

    def __init__(self, heads, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.dropout_rate = dropout
        self.output_stddev = output_stddev
        self.site = site
        self.dropout = Dropout(dropout, site)

    def build(self, input_shape):
        width = input_shape[-1]
        self.qkv = keras.layers.Dense(3 * width, kernel_initializer=keras.initializers.RandomNormal(0.0, 0.02),
                                      dtype=self.dtype_policy, name="qkv")
        self.qkv.build(input_shape)
        self.output_projection = keras.layers.Dense(
            width, kernel_initializer=keras.initializers.RandomNormal(0.0, self.output_stddev),
            dtype=self.dtype_policy, name="output_projection")
        self.output_projection.build(input_shape)
        self.built = True

    def _query_key_value(self, x):
        return [split_heads(part, self.heads) for part in ops.split(self.qkv(x), 3, axis=-1)]

    def call(self, x, attention_mask=None, seed=None):
        query, key, value = self._query_key_value(x)
        attended = attention(query, key, value, attention_mask, self.dropout, seed)
        return self.output_projection(merge_heads(attended))

    def prefill(self, x, mask):
        """Like a call, and also returns the keys and values, each `(B, heads, T, D)`."""
        query, key, value = self._query_key_value(x)
        return self.output_projection(merge_heads(attention(query, key, value, mask))), key, value

    def step(self, x, keys, values, position, mask):
        """One more position, written into a static cache.

        Args:
            x: `(B, 1, C)`.
            keys, values: Cache, `(B, heads, S, D)`.
            position: Scalar int32, the cache row to fill.
            mask: Boolean `(B, 1, 1, S)`, rows that may be seen, `position` included.

        Returns:
            Output `(B, 1, C)` and the two updated caches.
        """
        query, key, value = self._query_key_value(x)
        keys = ops.slice_update(keys, (0, 0, position, 0), key)
        values = ops.slice_update(values, (0, 0, position, 0), value)
        return self.output_projection(merge_heads(attention(query, keys, values, mask))), keys, values

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "heads": self.heads, "dropout": self.dropout_rate,
                "output_stddev": self.output_stddev, "site": self.site}
