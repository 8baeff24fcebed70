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
    """LayerNormalization with the reference's epsilon (Keras's own default, 1e-3, is another function)."""
    return keras.layers.LayerNormalization(epsilon=1e-5, name=name, dtype=dtype)


class TransformerBlock(keras.layers.Layer):
    """Pre-norm block of GPT-2 (Radford et al. 2019): attention and a four times wider tanh-GELU MLP.

    Args:
        dropout: Rate on attention probabilities and on both residual branches.
        output_stddev: Initial standard deviation of the two projections that end a branch; GPT-2 scales it by
            `1 / sqrt(2 * layers)`.
        site: First dropout site of this block.

    Call arguments: as `CausalSelfAttention`.
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
        # The MLP's initial values are drawn before those of attention.
        self.mlp_in = normal_linear(4 * width, width, "mlp_in", dtype=policy)
        self.mlp_out = normal_linear(width, 4 * width, "mlp_out", self.output_stddev, policy)
        self.attention.build(input_shape)

    def call(self, x: Tensor, key_mask=None, seed=None) -> Tensor:
        # Segments end in their matrix products, which the gradient does not need: what is recomputed is norms, scores,
        # softmax and GELU, little work that holds most of the memory.
        use = self.memory_use
        qkv = use.segment(lambda x: self.attention.qkv(self.attention_norm(x), seed=seed))(x)
        attended = self.attention.attend_and_project(qkv, key_mask, seed, use)
        return self._mlp(x + self.attention_dropout(attended, seed=seed), seed, use)

    def _mlp(self, x, seed=None, use=MemoryUse()):
        hidden = use.segment(lambda x: self.mlp_in(self.mlp_norm(x), seed=seed))(x)
        out = use.segment(lambda hidden: self.mlp_out(ops.gelu(hidden, approximate=True), seed=seed))(hidden)
        return x + self.mlp_dropout(out, seed=seed)

    def prefill(self, x: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Like a call without dropout, and also returns the block's keys and values."""
        attended, keys, values = self.attention.prefill(self.attention_norm(x), key_mask)
        return self._mlp(x + attended), keys, values

    def advance(
        self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor, key_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One more position; see `CausalSelfAttention.advance`."""
        attended, keys, values = self.attention.advance(self.attention_norm(x), keys, values, position, key_mask)
        return self._mlp(x + attended), keys, values
