"""Conditioning of the GPT on a voice: mel of a reference recording -> features per frame -> a fixed number of latents.

Casanova et al. 2024, section 2; perceiver resampler of Alayrac et al. 2022, section 3.1.
"""

import keras
from keras import ops

from myxtts.config.model import norm_groups
from myxtts.models.attention import MemoryUse, attend, attention, merge_heads, split_heads
from myxtts.models.layers import Layer, Tensor, built, normal, torch_linear


class ConditioningBlock(Layer):
    """Group norm and self-attention over time, `(B, T, width)` to the same shape.

    As in the reference implementation, the output is added to the *normalized* input, and each head's query, key and
    value are consecutive channels of the projection `qkv`. The output projection is initialized with zeros.
    """

    def __init__(self, width: int, heads: int, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.memory_use, policy = heads, MemoryUse(), self.dtype_policy
        norm = keras.layers.GroupNormalization(norm_groups(width), epsilon=1e-5, name="norm", dtype="float32")
        self.norm = built(norm, (None, None, width))
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


class ConditioningEncoder(Layer):
    """Encodes a reference mel with a linear projection and attention blocks: `(B, T, num_mels)` to `(B, T, width)`.

    XTTS has 6 attention `blocks` with 16 `heads`.
    """

    def __init__(self, num_mels: int, width: int, blocks: int, heads: int, **kwargs):
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.input_projection = torch_linear(width, num_mels, "input_projection", dtype=policy)
        self.blocks = [ConditioningBlock(width, heads, dtype=policy, name=f"block_{i}") for i in range(blocks)]

    def call(self, mel: Tensor, run_block=None) -> Tensor:
        x = self.input_projection(mel)
        for number, block in enumerate(self.blocks):
            x = run_block(x, number=number) if run_block else block(x)
        return x


class PerceiverLayer(Layer):
    """Attention of latents to themselves and to a context, then an MLP gated by an exact (erf) GELU.

    Call arguments: `latents` `(B, N, width)`; `context` `(B, T, width)`. Returns latents of the same shape.
    """

    def __init__(self, width: int, heads: int, head_width: int, **kwargs):
        super().__init__(**kwargs)
        self.heads, policy, attended, hidden = heads, self.dtype_policy, heads * head_width, width * 8 // 3
        self.query = torch_linear(attended, width, "query", use_bias=False, dtype=policy)
        self.key_value = torch_linear(2 * attended, width, "key_value", use_bias=False, dtype=policy)
        self.output_projection = torch_linear(width, attended, "output_projection", use_bias=False, dtype=policy)
        self.mlp_in = torch_linear(2 * hidden, width, "mlp_in", dtype=policy)
        self.mlp_out = torch_linear(width, hidden, "mlp_out", dtype=policy)

    def call(self, latents: Tensor, context: Tensor) -> Tensor:
        query = split_heads(self.query(latents), self.heads)
        key_value = self.key_value(ops.concatenate([latents, context], axis=1))
        key, value = (split_heads(part, self.heads) for part in ops.split(key_value, 2, axis=-1))
        latents = latents + self.output_projection(merge_heads(attention(query, key, value)))
        update, gate = ops.split(self.mlp_in(latents), 2, axis=-1)
        return latents + self.mlp_out(update * ops.gelu(gate, approximate=False))


class PerceiverResampler(Layer):
    """Learned latents that attend to the input, then an RMS norm: `(B, T, width)` to `(B, num_latents, width)`.

    XTTS has 32 latents and 2 layers (`depth`), with 8 attention heads of 64 channels (`head_width`).
    """

    def __init__(self, width: int, num_latents: int, depth: int, heads: int, head_width: int, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.head_width = heads, head_width
        self.latents = self.add_weight(shape=(num_latents, width), name="latents", initializer=normal(0.02))
        self.gamma = self.add_weight(shape=(width,), name="gamma", initializer="ones")
        options = width, heads, head_width
        self.layers = [PerceiverLayer(*options, dtype=self.dtype_policy, name=f"layer_{i}") for i in range(depth)]

    def call(self, context: Tensor) -> Tensor:
        latents = ops.broadcast_to(self.latents[None], (ops.shape(context)[0], *self.latents.shape))
        latents = ops.cast(latents, context.dtype)
        for layer in self.layers:
            latents = layer(latents, context)
        latents = ops.cast(latents, "float32")
        norm = ops.maximum(ops.sqrt(ops.sum(ops.square(latents), axis=-1, keepdims=True)), 1e-12)
        return ops.cast(latents / norm * latents.shape[-1] ** 0.5 * ops.cast(self.gamma, "float32"), self.compute_dtype)
