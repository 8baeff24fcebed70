"""The GPT-2 transformer block."""

import keras
from keras import ops

from myxtts.models.layers.attention import CausalSelfAttention
from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.recomputation import recomputed

SITES_PER_BLOCK = 3
"""Dropout sites of one block: attention probabilities and two residual branches."""

HIDDEN_PADDING = 16
"""Columns of zeros behind the MLP's hidden values where rows of a power of two would all fall into the same few lines of
a CPU's cache: the products for weights' gradients run at twice the rate with them (docs/experiments.md)."""
CROWDING_WIDTH = 512
"""Hidden values per row, or a multiple, that do so: 2,048 bytes of float32."""


def layer_norm(name, dtype=None):
    """LayerNormalization with the reference's epsilon (Keras's own default, 1e-3, is another function)."""
    return keras.layers.LayerNormalization(epsilon=1e-5, name=name, dtype=dtype)


@keras.saving.register_keras_serializable("myxtts")
class TransformerBlock(keras.layers.Layer):
    """Pre-norm block of GPT-2 (Radford et al. 2019): attention and a four times wider tanh-GELU MLP.

    Args:
        heads: Attention heads.
        dropout: Rate on attention probabilities and on both residual branches.
        output_stddev: Initial standard deviation of the two projections that end a branch; GPT-2 scales it by
            `1 / sqrt(2 * layers)`.
        site: First dropout site of this block.

    Call arguments: as `CausalSelfAttention`.
    """

    def __init__(self, heads, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.dropout_rate = dropout
        self.output_stddev = output_stddev
        self.site = site
        self.attention_dropout = Dropout(dropout, site + 1)
        self.mlp_dropout = Dropout(dropout, site + 2)
        self.recomputed_as = None
        """Name under which this block's segments are recomputed in the backward pass; None keeps what they need."""
        self.pads_hidden = False
        """Whether a call adds `HIDDEN_PADDING` where it helps: for training on a CPU. The values are the same."""

    def build(self, input_shape):
        width = input_shape[-1]
        policy = self.dtype_policy
        self.attention_norm = layer_norm("attention_norm", policy)
        self.attention = CausalSelfAttention(
            self.heads, self.dropout_rate, self.output_stddev, self.site, dtype=policy, name="attention"
        )
        self.mlp_norm = layer_norm("mlp_norm", policy)
        self.mlp_in = keras.layers.Dense(
            4 * width, kernel_initializer=keras.initializers.RandomNormal(0.0, 0.02), dtype=policy, name="mlp_in"
        )
        self.mlp_out = keras.layers.Dense(
            width,
            kernel_initializer=keras.initializers.RandomNormal(0.0, self.output_stddev),
            dtype=policy,
            name="mlp_out",
        )
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp_in):
            layer.build(input_shape)
        self.mlp_out.build((*input_shape[:-1], 4 * width))
        self.built = True

    def _mlp(self, x, seed=None, padding=0):
        hidden = recomputed(self.recomputed_as, lambda x: self._to_hidden(self.mlp_norm(x), padding), x)
        out = recomputed(
            self.recomputed_as, lambda h: self._from_hidden(ops.gelu(h, approximate=True), padding), hidden
        )
        return x + self.mlp_dropout(out, seed=seed)

    def _to_hidden(self, x, padding):
        if not padding:
            return self.mlp_in(x)
        kernel = ops.pad(ops.cast(self.mlp_in.kernel, x.dtype), [[0, 0], [0, padding]])
        return ops.add(ops.matmul(x, kernel), ops.pad(ops.cast(self.mlp_in.bias, x.dtype), [[0, padding]]))

    def _from_hidden(self, hidden, padding):
        if not padding:
            return self.mlp_out(hidden)
        kernel = ops.pad(ops.cast(self.mlp_out.kernel, hidden.dtype), [[0, padding], [0, 0]])
        return ops.add(ops.matmul(hidden, kernel), ops.cast(self.mlp_out.bias, hidden.dtype))

    def call(self, x, key_mask=None, seed=None):
        # Segments end in their matrix products, which the gradient does not need: what is recomputed is norms, scores,
        # softmax and GELU, little work that holds most of the memory.
        qkv = recomputed(self.recomputed_as, lambda x: self.attention.qkv(self.attention_norm(x)), x)
        attended = self.attention.attend_and_project(qkv, key_mask, seed, self.recomputed_as)
        padding = HIDDEN_PADDING if self.pads_hidden and 4 * x.shape[-1] % CROWDING_WIDTH == 0 else 0
        return self._mlp(x + self.attention_dropout(attended, seed=seed), seed, padding)

    def prefill(self, x, key_mask):
        """Like a call without dropout, and also returns the block's keys and values."""
        attended, keys, values = self.attention.prefill(self.attention_norm(x), key_mask)
        return self._mlp(x + attended), keys, values

    def step(self, x, keys, values, position, key_mask):
        """One more position; see `CausalSelfAttention.step`."""
        attended, keys, values = self.attention.step(self.attention_norm(x), keys, values, position, key_mask)
        return self._mlp(x + attended), keys, values

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
