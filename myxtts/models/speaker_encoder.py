"""Speaker encoder: log-mel of a recording -> speaker vector; and the classifier against which it is trained.

A squeeze-and-excitation ResNet with attentive statistics pooling, after Heo et al., "Clova baseline system for the
VoxCeleb speaker recognition challenge 2020" (2020), in the variant of XTTS v2.
"""

import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from myxtts.config.model import SPEAKER_BLOCKS
from myxtts.models.layers import Conv2D, Shape, Tensor, built


class BatchNormalization(keras.layers.Layer):
    """Normalizes the channels of `(..., C)` in float32 (Ioffe and Szegedy 2015).

    A single float32 sum over a batch of spectrograms has an error of about 1e-5 that depends on how the batch is split.
    So sums are taken axis by axis (Higham 1993, "The accuracy of floating point summation"), and the variance about the
    mean (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").

    `training` selects batch statistics and updates the moving ones, which are used otherwise.

    Args:
        momentum: Share of the old value in a moving statistic: 1 minus PyTorch's momentum.
    """

    def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.momentum, self.epsilon = momentum, epsilon
        self.over_replicas: Callable[[Tensor], Tensor] = lambda value: value
        """Sums a value over the replicas that share a batch."""

    def build(self, input_shape: Shape):
        def weight(name, start, trainable=True):
            options = dict(name=name, trainable=trainable, dtype="float32", autocast=False)
            return self.add_weight(shape=input_shape[-1:], initializer=start, **options)

        self.gamma, self.beta = weight("gamma", "ones"), weight("beta", "zeros")
        self.moving_mean = weight("moving_mean", "zeros", False)
        self.moving_variance = weight("moving_variance", "ones", False)

    def call(self, inputs: Tensor, training=False) -> Tensor:
        x = ops.cast(inputs, "float32")
        mean, variance = (ops.convert_to_tensor(value) for value in (self.moving_mean, self.moving_variance))
        if training:
            moving = mean, variance
            mean, variance = self.moments(x)
            for variable, old, new in zip((self.moving_mean, self.moving_variance), moving, (mean, variance)):
                variable.assign(old * self.momentum + new * (1.0 - self.momentum))
        scale, shift = (ops.convert_to_tensor(value) for value in (self.gamma, self.beta))
        normalized = ops.batch_normalization(x, mean, variance, -1, shift, scale, self.epsilon)
        return ops.cast(normalized, self.compute_dtype)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance `(C,)` of `(..., C)` float32, over the rows of all replicas.

        Means and variances of groups are combined by Chan et al., equation 2.1. Starting with axis 1, time, which is
        the longest, keeps little besides `x` for the backward pass.
        """
        mean, variance = ops.moments(x, axes=[1]) if len(x.shape) > 2 else (x, ops.zeros_like(x))
        while len(mean.shape) > 1:
            axis = min(1, len(mean.shape) - 2)
            variance = ops.mean(variance, axis=axis)
            mean, between = ops.moments(mean, axes=[axis])
            variance = variance + between
        rows = ops.cast(ops.size(x) // ops.shape(x)[-1], x.dtype)
        count = self.over_replicas(rows)
        whole = self.over_replicas(rows * mean) / count
        return whole, self.over_replicas(rows * (variance + ops.square(mean - whole))) / count


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


class AngularMarginClassifier(keras.layers.Layer):
    """Scaled cosine logits with an additive angular margin on the target class.

    Deng et al., "ArcFace: additive angular margin loss for deep face recognition" (2019), equation 3. Where
    `cos(angle + margin)` would rise again, `margin sin(margin)` is subtracted instead, as in the authors' code.

    Args:
        scale: Factor of the cosines.
        margin: Added to the angle to the target class, in radians.

    Call arguments: unit `vectors` `(B, width)`; target `classes` `(B,)`; `active` `(num_classes,)`, 0 for classes to
    exclude. Returns logits `(B, num_classes)` float32.
    """

    def __init__(self, num_classes: int, width: int, scale: float = 30.0, margin: float = 0.2, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.num_classes, self.width, self.scale, self.margin = num_classes, width, scale, margin

    def build(self, input_shape=None):
        start = keras.initializers.GlorotUniform()
        shape = (self.num_classes, self.width)
        self.directions = self.add_weight(shape=shape, name="directions", autocast=False, initializer=start)

    def call(self, vectors: Tensor, classes: Tensor, active: Tensor) -> Tensor:
        directions = ops.convert_to_tensor(self.directions)
        norm = ops.sqrt(ops.sum(ops.square(directions), axis=-1, keepdims=True))
        cosine = ops.matmul(ops.cast(vectors, "float32"), ops.transpose(directions / ops.maximum(norm, 1e-12)))
        cosine = ops.clip(cosine, -1.0, 1.0)
        # The gradient of the root is infinite at zero.
        sine = ops.sqrt(ops.maximum(1.0 - ops.square(cosine), 1e-7))
        moved = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        far = cosine - self.margin * math.sin(self.margin)
        target = ops.where(cosine > -math.cos(self.margin), moved, far)
        right = ops.one_hot(classes, self.num_classes, dtype="float32")
        logits = self.scale * (right * target + (1.0 - right) * cosine)
        return ops.where(ops.cast(active, "bool")[None], logits, -1e9)
