"""Speaker encoder: log-mel of a recording -> speaker vector.

A squeeze-and-excitation ResNet with attentive statistics pooling, after Heo et al., "Clova baseline system for the
VoxCeleb speaker recognition challenge 2020" (2020), in the variant of XTTS v2.
"""

from collections.abc import Sequence

import keras
from keras import ops

from myxtts.config.model import SPEAKER_BLOCKS
from myxtts.models.layers.batch_normalization import BatchNormalization
from myxtts.models.layers.convolution import Conv2D
from myxtts.models.layers.linear import built
from myxtts.models.layers.tensor import Shape, Tensor

_EPSILON = 1e-5


class SqueezeExcitation(keras.layers.Layer):
    """Gates each channel by the channel means, `(B, H, W, C)` to the same shape (Hu et al. 2018).

    Args:
        reduction: Divisor of the hidden layer's width.
    """

    def __init__(self, reduction: int = 8, **kwargs):
        super().__init__(**kwargs)
        self.reduction = reduction

    def build(self, input_shape: Shape):
        channels, dtype = input_shape[-1], self.dtype_policy
        hidden = channels // self.reduction
        self.squeeze = _dense("squeeze", dtype, (None, channels), hidden, "relu")
        self.excite = _dense("excite", dtype, (None, hidden), channels, "sigmoid")

    def call(self, x: Tensor) -> Tensor:
        return x * self.excite(self.squeeze(ops.mean(x, axis=(1, 2))))[:, None, None, :]


class ResidualBlock(keras.layers.Layer):
    """Two convolutions, the first with a stride, and squeeze-and-excitation.

    `(B, H, W, C)` becomes `(B, ceil(H / stride), ceil(W / stride), filters)`.
    """

    def __init__(self, filters: int, stride: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.filters, self.stride = filters, stride

    def build(self, input_shape: Shape):
        dtype, inner_shape = self.dtype_policy, (None, None, None, self.filters)

        def conv(name, kernel_size, stride, shape):
            layer = Conv2D(self.filters, kernel_size, stride=stride, use_bias=False, dtype=dtype, name=name)
            return built(layer, shape)

        self.conv1 = conv("conv1", 3, self.stride, input_shape)
        self.norm1 = built(BatchNormalization(dtype=dtype, name="norm1"), inner_shape)
        self.conv2 = conv("conv2", 3, 1, inner_shape)
        self.norm2 = built(BatchNormalization(dtype=dtype, name="norm2"), inner_shape)
        self.gate = built(SqueezeExcitation(dtype=dtype, name="gate"), inner_shape)
        self.shortcut_conv = None
        if self.stride != 1 or input_shape[-1] != self.filters:
            self.shortcut_conv = conv("shortcut_conv", 1, self.stride, input_shape)
            self.shortcut_norm = built(BatchNormalization(dtype=dtype, name="shortcut_norm"), inner_shape)

    def call(self, x: Tensor, training=False) -> Tensor:
        shortcut = x
        if self.shortcut_conv is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(x), training=training)
        x = self.norm1(ops.relu(self.conv1(x)), training=training)
        x = self.gate(self.norm2(self.conv2(x), training=training))
        return ops.relu(x + shortcut)


class AttentiveStatisticsPooling(keras.layers.Layer):
    """Weighted mean and standard deviation over time, `(B, T, C)` to `(B, 2 C)` float32 (Okabe et al. 2018).

    Args:
        attention_width: Width of the hidden layer that computes the weights.
    """

    def __init__(self, attention_width: int = 128, **kwargs):
        super().__init__(**kwargs)
        self.attention_width = attention_width

    def build(self, input_shape: Shape):
        dtype, shape = self.dtype_policy, (None, None, self.attention_width)
        self.hidden = _dense("hidden", dtype, input_shape, self.attention_width, "relu")
        self.norm = built(BatchNormalization(dtype=dtype, name="norm"), shape)
        self.score = _dense("score", dtype, shape, input_shape[-1])

    def call(self, x: Tensor, training=False) -> Tensor:
        score = self.score(self.norm(self.hidden(x), training=training))
        weight = ops.softmax(ops.cast(score, "float32"), axis=1)
        x = ops.cast(x, "float32")
        mean = ops.sum(weight * x, axis=1)
        variance = ops.sum(weight * ops.square(x), axis=1) - ops.square(mean)
        return ops.concatenate([mean, ops.sqrt(ops.maximum(variance, _EPSILON))], axis=-1)


class SpeakerEncoder(keras.layers.Layer):
    """Log-mel `(B, F, num_mels)` of 16 kHz audio to unit vectors `(B, embedding_width)` float32.

    Padding is not masked: all clips of a batch must have the same length. `training` selects the statistics of the
    batch normalization.

    Args:
        widths: Channels of each group of residual blocks; every group but the first halves both axes.
        num_blocks: Residual blocks in each group.
        attention_width: Width of the hidden layer of the pooling.
    """

    def __init__(
        self,
        widths: Sequence[int] = (32, 64, 128, 256),
        num_blocks: Sequence[int] = SPEAKER_BLOCKS,
        embedding_width: int = 512,
        attention_width: int = 128,
        **kwargs,
    ):
        # The log-mel is normalized before it is rounded to half precision.
        super().__init__(autocast=False, **kwargs)
        if len(widths) != len(num_blocks):
            raise ValueError(f"widths and num_blocks must be of equal length. Received: {widths} and {num_blocks}.")
        self.widths, self.num_blocks = tuple(widths), tuple(num_blocks)
        self.embedding_width, self.attention_width = embedding_width, attention_width

    def build(self, log_mel_shape: Shape):
        dtype, bands = self.dtype_policy, log_mel_shape[-1]
        shape = (None, None, None, self.widths[0])
        self.stem = built(Conv2D(self.widths[0], 3, dtype=dtype, name="stem"), (None, None, bands, 1))
        self.stem_norm = built(BatchNormalization(dtype=dtype, name="stem_norm"), shape)
        self.blocks = []
        for group, (width, count) in enumerate(zip(self.widths, self.num_blocks, strict=True)):
            bands = -(-bands // 2) if group else bands
            for i in range(count):
                stride = 2 if group and not i else 1
                block = ResidualBlock(width, stride, dtype=dtype, name=f"group_{group}_block_{i}")
                self.blocks.append(built(block, shape))
                shape = (None, None, None, width)
        pooled = bands * self.widths[-1]
        pooling = AttentiveStatisticsPooling(self.attention_width, dtype=dtype, name="pooling")
        self.pooling = built(pooling, (None, None, pooled))
        self.project = _dense("project", dtype, (None, 2 * pooled), self.embedding_width)

    def call(self, log_mel: Tensor, training=False) -> Tensor:
        x = ops.cast(self.normalize(log_mel), self.compute_dtype)[..., None]
        x = self.stem_norm(ops.relu(self.stem(x)), training=training)
        for block in self.blocks:
            x = block(x, training=training)
        # The reference orders pooled features by channel, then band.
        _, _, num_bands, num_channels = x.shape
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2)), (-1, ops.shape(x)[1], num_channels * num_bands))
        embedding = ops.cast(self.project(self.pooling(x, training=training)), "float32")
        norm = ops.sqrt(ops.sum(ops.square(embedding), axis=-1, keepdims=True))
        return embedding / ops.maximum(norm, 1e-12)

    def normalize(self, log_mel: Tensor) -> Tensor:
        """Normalizes a log-mel `(B, F, num_mels)` to zero mean and unit variance over time."""
        mean, variance = ops.moments(log_mel, axes=1, keepdims=True)
        return (log_mel - mean) * ops.rsqrt(variance + _EPSILON)


def _dense(name, dtype, shape, units, activation=None):
    return built(keras.layers.Dense(units, activation=activation, dtype=dtype, name=name), shape)
