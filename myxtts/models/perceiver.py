"""Perceiver resampler: any number of frames -> a fixed number of latents (Alayrac et al. 2022, section 3.1)."""

import keras
from keras import ops

from myxtts.models.layers.attention import attention, merge_heads, split_heads
from myxtts.models.layers.linear import built, torch_linear
from myxtts.models.layers.tensor import Shape, Tensor


class PerceiverLayer(keras.layers.Layer):
    """Attention of the latents to themselves and the context, then an MLP gated by an exact (erf) GELU.

    Call arguments: `latents` `(B, N, C)`, `context` `(B, T, C)`. Returns new latents.
    """

    def __init__(self, heads: int, head_width: int, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.head_width = heads, head_width

    def build(self, latents_shape: Shape, context_shape: Shape | None = None):
        width, policy = latents_shape[-1], self.dtype_policy
        attended, hidden = self.heads * self.head_width, width * 8 // 3
        self.query = torch_linear(attended, width, "query", use_bias=False, dtype=policy)
        self.key_value = torch_linear(2 * attended, width, "key_value", use_bias=False, dtype=policy)
        self.output_projection = torch_linear(width, attended, "output_projection", use_bias=False, dtype=policy)
        self.mlp_in = torch_linear(2 * hidden, width, "mlp_in", dtype=policy)
        self.mlp_out = torch_linear(width, hidden, "mlp_out", dtype=policy)

    def call(self, latents: Tensor, context: Tensor) -> Tensor:
        query = split_heads(self.query(latents), self.heads)
        key_value = self.key_value(ops.concatenate([latents, context], axis=1))
        key, value = (split_heads(part, self.heads) for part in ops.split(key_value, 2, axis=-1))
        attended = attention(query, key, value)
        latents = latents + self.output_projection(merge_heads(attended))
        update, gate = ops.split(self.mlp_in(latents), 2, axis=-1)
        return latents + self.mlp_out(update * ops.gelu(gate, approximate=False))


class PerceiverResampler(keras.layers.Layer):
    """Learned latents that read a context, `(B, T, C)` to `(B, num_latents, C)`, with a final RMS norm.

    Args:
        num_latents: Number of latents (XTTS: 32).
        depth: Perceiver layers (XTTS: 2).
        heads: Attention heads (XTTS: 8).
        head_width: Channels of one head (XTTS: 64).
    """

    def __init__(self, num_latents: int, depth: int, heads: int, head_width: int, **kwargs):
        super().__init__(**kwargs)
        self.num_latents, self.depth, self.heads, self.head_width = num_latents, depth, heads, head_width

    def build(self, input_shape: Shape):
        shape, start = (self.num_latents, input_shape[-1]), keras.initializers.RandomNormal(0.0, 0.02)
        self.latents = self.add_weight(shape=shape, name="latents", initializer=start)
        self.gamma = self.add_weight(shape=shape[1:], name="gamma", initializer="ones")
        self.layers = []
        for i in range(self.depth):
            layer = PerceiverLayer(self.heads, self.head_width, dtype=self.dtype_policy, name=f"layer_{i}")
            self.layers.append(built(layer, (input_shape[0], *shape), input_shape))

    def call(self, context: Tensor) -> Tensor:
        latents = ops.broadcast_to(self.latents[None], (ops.shape(context)[0], self.num_latents, context.shape[-1]))
        latents = ops.cast(latents, context.dtype)
        for layer in self.layers:
            latents = layer(latents, context)
        latents = ops.cast(latents, "float32")
        norm = ops.maximum(ops.sqrt(ops.sum(ops.square(latents), axis=-1, keepdims=True)), 1e-12)
        return ops.cast(latents / norm * latents.shape[-1] ** 0.5 * ops.cast(self.gamma, "float32"), self.compute_dtype)
