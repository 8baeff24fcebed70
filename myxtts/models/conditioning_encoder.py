"""Conditioning encoder: reference mel -> frame-wise features (XTTS, Casanova et al. 2024, section 2)."""

import keras
from keras import ops

from myxtts.models.layers.attention import STANDARD, attend, merge_heads
from myxtts.models.layers.linear import torch_linear
from myxtts.models.layers.recomputation import recomputed


def num_groups(width):
    """GroupNorm groups that the reference uses for `width` channels."""
    if width <= 16:
        return 8
    return 16 if width <= 64 else 32


@keras.saving.register_keras_serializable("myxtts")
class ConditioningBlock(keras.layers.Layer):
    """Full self-attention over time with a group norm in front.

    The residual adds the *normalised* input, and the projection lays channels out as heads of (query, key, value), as
    the reference does. The output projection starts at zero.

    Args:
        heads: Attention heads.

    Call arguments: `x` `(B, T, C)`.
    """

    def __init__(self, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.form = STANDARD
        """Of attention, see `layers/attention.py`."""
        self.recomputed_as = None
        """As in `TransformerBlock`."""

    def build(self, input_shape):
        width = input_shape[-1]
        self.norm = keras.layers.GroupNormalization(num_groups(width), epsilon=1e-5, name="norm", dtype="float32")
        self.qkv = torch_linear(3 * width, width, "qkv", dtype=self.dtype_policy)
        self.output_projection = torch_linear(width, width, "output_projection", dtype=self.dtype_policy, zero=True)
        for layer in (self.norm, self.qkv, self.output_projection):
            layer.build(input_shape)
        self.built = True

    def call(self, x):
        x, qkv = recomputed(self.recomputed_as, self._normalize_and_project, x)
        batch, width = ops.shape(x)[0], x.shape[-1]
        qkv = ops.reshape(qkv, (batch, -1, self.heads, 3 * width // self.heads))
        query, key, value = ops.split(ops.transpose(qkv, (0, 2, 1, 3)), 3, axis=-1)
        attended = attend(self.form, query, key, value, block=self.recomputed_as)
        return x + self.output_projection(merge_heads(attended))

    def _normalize_and_project(self, x):
        x = ops.cast(self.norm(x), self.compute_dtype)
        return x, self.qkv(x)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "heads": self.heads}


@keras.saving.register_keras_serializable("myxtts")
class ConditioningEncoder(keras.layers.Layer):
    """Projects mel bands to the model width and mixes frames by attention blocks.

    Args:
        width: Channels.
        blocks: Attention blocks (XTTS: 6).
        heads: Attention heads (XTTS: 16).

    Call arguments: `mel`, conditioning mel `(B, T, num_mels)`. Returns `(B, T, width)`.
    """

    def __init__(self, width, blocks, heads, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.num_blocks = blocks
        self.heads = heads

    def build(self, input_shape):
        self.input_projection = torch_linear(self.width, input_shape[-1], "input_projection", dtype=self.dtype_policy)
        self.input_projection.build(input_shape)
        shape = (*input_shape[:-1], self.width)
        self.blocks = [
            ConditioningBlock(self.heads, dtype=self.dtype_policy, name=f"block_{i}") for i in range(self.num_blocks)
        ]
        for block in self.blocks:
            block.build(shape)
        self.built = True

    def call(self, mel):
        x = self.input_projection(mel)
        for block in self.blocks:
            x = block(x)
        return x

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.width)

    def get_config(self):
        return {**super().get_config(), "width": self.width, "blocks": self.num_blocks, "heads": self.heads}
