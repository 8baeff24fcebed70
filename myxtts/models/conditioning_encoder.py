"""Conditioning encoder: mel of a reference recording -> features per frame (Casanova et al. 2024, section 2)."""

import keras
from keras import ops

from myxtts.models.layers.attention import MemoryUse, attend, merge_heads
from myxtts.models.layers.linear import built, torch_linear
from myxtts.models.layers.tensor import Shape, Tensor


def num_groups(width: int) -> int:
    """Number of GroupNorm groups of the reference for `width` channels."""
    if width <= 16:
        return 8
    return 16 if width <= 64 else 32


class ConditioningBlock(keras.layers.Layer):
    """Group norm and full self-attention over time, `(B, T, C)` to the same shape.

    As in the reference, the residual is the *normalized* input, and the channels of the projection are heads of (query,
    key, value). The output projection starts at zero.
    """

    def __init__(self, heads: int, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.memory_use = heads, MemoryUse()

    def build(self, input_shape: Shape):
        width, policy = input_shape[-1], self.dtype_policy
        norm = keras.layers.GroupNormalization(num_groups(width), epsilon=1e-5, name="norm", dtype="float32")
        self.norm = built(norm, input_shape)
        self.qkv = torch_linear(3 * width, width, "qkv", dtype=policy)
        self.output_projection = torch_linear(width, width, "output_projection", dtype=policy, zero=True)

    def call(self, x: Tensor) -> Tensor:
        x, qkv = self.memory_use.segment(self._normalize_and_project)(x)
        qkv = ops.reshape(qkv, (ops.shape(x)[0], -1, self.heads, 3 * x.shape[-1] // self.heads))
        query, key, value = ops.split(ops.transpose(qkv, (0, 2, 1, 3)), 3, axis=-1)
        return x + self.output_projection(merge_heads(attend(self.memory_use, query, key, value)))

    def _normalize_and_project(self, x):
        x = ops.cast(self.norm(x), self.compute_dtype)
        return x, self.qkv(x)


class ConditioningEncoder(keras.layers.Layer):
    """Linear projection of a mel and attention blocks, `(B, T, num_mels)` to `(B, T, width)`.

    Args:
        blocks: Attention blocks (XTTS: 6).
        heads: Attention heads (XTTS: 16).
    """

    def __init__(self, width: int, blocks: int, heads: int, **kwargs):
        super().__init__(**kwargs)
        self.width, self.num_blocks, self.heads = width, blocks, heads

    def build(self, input_shape: Shape):
        shape, policy = (*input_shape[:-1], self.width), self.dtype_policy
        self.input_projection = torch_linear(self.width, input_shape[-1], "input_projection", dtype=policy)
        blocks = [ConditioningBlock(self.heads, dtype=policy, name=f"block_{i}") for i in range(self.num_blocks)]
        self.blocks = [built(block, shape) for block in blocks]

    def call(self, mel: Tensor) -> Tensor:
        x = self.input_projection(mel)
        for block in self.blocks:
            x = block(x)
        return x
