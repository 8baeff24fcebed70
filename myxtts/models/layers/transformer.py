"""The GPT-2 transformer block."""

import keras
from keras import ops

from myxtts.models.layers.attention import CausalSelfAttention, MemoryUse
from myxtts.models.layers.dropout import Dropout
from myxtts.models.layers.linear import built, normal_linear
from myxtts.models.layers.tensor import Shape, Tensor

SITES_PER_BLOCK = 3
"""Dropout sites of one block: attention probabilities and two residual branches."""


def layer_norm(name: str, dtype=None) -> keras.layers.LayerNormalization:
    """LayerNormalization with the reference's epsilon instead of Keras's 1e-3."""
    return keras.layers.LayerNormalization(epsilon=1e-5, name=name, dtype=dtype)


class TransformerBlock(keras.layers.Layer):
    """Pre-norm block of GPT-2 (Radford et al. 2019): attention and a four times wider tanh-GELU MLP.

    Args:
        dropout: Rate on attention probabilities and on both residual branches.
        output_stddev: Initial standard deviation of the last projection of each branch; GPT-2 scales it by
            `1 / sqrt(2 * layers)`.
        site: First dropout site of this block.

    Call arguments: see `CausalSelfAttention`.
    """

    def __init__(self, heads: int, dropout=0.0, output_stddev=0.02, site=0, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.dropout_rate, self.output_stddev, self.site = heads, dropout, output_stddev, site
        self.attention_dropout, self.mlp_dropout = Dropout(dropout, site + 1), Dropout(dropout, site + 2)
        self.memory_use = MemoryUse()

    def build(self, input_shape: Shape):
        width, policy = input_shape[-1], self.dtype_policy
        self.attention_norm = built(layer_norm("attention_norm", policy), input_shape)
        arguments = self.heads, self.dropout_rate, self.output_stddev, self.site
        self.attention = CausalSelfAttention(*arguments, dtype=policy, name="attention")
        self.mlp_norm = built(layer_norm("mlp_norm", policy), input_shape)
        # Built before attention, which fixes the order of random initial values.
        self.mlp_in = normal_linear(4 * width, width, "mlp_in", dtype=policy)
        self.mlp_out = normal_linear(width, 4 * width, "mlp_out", self.output_stddev, policy)
        self.attention.build(input_shape)

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
