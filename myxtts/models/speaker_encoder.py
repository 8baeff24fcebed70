"""Speaker encoder, from the log-mel of a recording to a speaker vector, and the classifier that trains it.

A squeeze-and-excitation ResNet with attentive statistics pooling (Heo et al., "Clova baseline system for the VoxCeleb
speaker recognition challenge 2020", 2020), in the variant of XTTS v2.
"""

import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from myxtts.config.model import SPEAKER_BLOCKS, SPEAKER_NUM_MELS, ModelConfig
from myxtts.models.layers import Conv2D, Layer, Tensor, dense


class BatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization of `(..., channels)` with more exact statistics than Keras's (Ioffe and Szegedy 2015).

    A float32 sum over a batch of spectrograms has an error of about 1e-5. This error changes if the batch is split.
    So means are computed axis by axis (Higham 1993, "The accuracy of floating point summation"). Variances are computed
    from deviations from the mean (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").

    With `training=True`, a trainable layer uses the statistics of the batch and updates the moving statistics.
    """

    def __init__(self, channels: int, momentum=0.9, epsilon=1e-5, **kwargs):  # momentum: 1 minus PyTorch's
        super().__init__(momentum=momentum, epsilon=epsilon, **kwargs)
        self.over_replicas: Callable[[Tensor], Tensor] = lambda value: value
        """Function that sums a value over the replicas that share a batch; by default the identity, for one replica."""
        self.build((None, channels))
        self.input_spec = None  # inputs of any rank

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "channels": self.gamma.shape[0]}

    def _moments(self, inputs: Tensor, mask=None) -> tuple[Tensor, Tensor]:
        """Returns mean `(C,)` and variance `(C,)` of the channels of `inputs` `(..., C)` float32, over all replicas.

        Reduces one axis at a time, and combines means and variances as in Chan et al., equation 2.1. Time (axis 1), the
        longest axis, is reduced first, so that later reductions store only small tensors for the backward pass.
        """
        mean, variance = ops.moments(inputs, axes=[1]) if len(inputs.shape) > 2 else (inputs, ops.zeros_like(inputs))
        while len(mean.shape) > 1:
            axis = min(1, len(mean.shape) - 2)
            variance = ops.mean(variance, axis=axis)
            mean, between = ops.moments(mean, axes=[axis])
            variance = variance + between
        rows = ops.cast(ops.size(inputs) // ops.shape(inputs)[-1], inputs.dtype)
        count = self.over_replicas(rows)
        whole = self.over_replicas(rows * mean) / count
        return whole, self.over_replicas(rows * (variance + ops.square(mean - whole))) / count


_EPSILON = 1e-5


class SqueezeExcitation(Layer):
    """Scales channels by gates computed from their means, `(B, H, W, channels)` to the same shape (Hu et al. 2018)."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        hidden, dtype = channels // 8, self.dtype_policy
        self.squeeze = dense(hidden, channels, "squeeze", dtype, activation="relu")
        self.excite = dense(channels, hidden, "excite", dtype, activation="sigmoid")

    def call(self, x: Tensor) -> Tensor:
        return x * self.excite(self.squeeze(ops.mean(x, axis=(1, 2))))[:, None, None, :]


class ResidualBlock(Layer):
    """Residual block of two convolutions and squeeze-and-excitation; the first convolution has the given `stride`.

    Maps `(B, H, W, channels)` to `(B, ceil(H / stride), ceil(W / stride), filters)`.
    """

    def __init__(self, channels: int, filters: int, stride: int = 1, **kwargs):
        super().__init__(**kwargs)
        options = dict(dtype=self.dtype_policy)
        self.conv1 = Conv2D(channels, filters, 3, stride, use_bias=False, name="conv1", **options)
        self.norm1 = BatchNormalization(filters, name="norm1", **options)
        self.conv2 = Conv2D(filters, filters, 3, use_bias=False, name="conv2", **options)
        self.norm2 = BatchNormalization(filters, name="norm2", **options)
        self.gate = SqueezeExcitation(filters, name="gate", **options)
        self.shortcut_conv = None
        if stride != 1 or channels != filters:
            self.shortcut_conv = Conv2D(channels, filters, 1, stride, use_bias=False, name="shortcut_conv", **options)
            self.shortcut_norm = BatchNormalization(filters, name="shortcut_norm", **options)

    def call(self, x: Tensor, training=False) -> Tensor:
        shortcut = x
        if self.shortcut_conv is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(x), training=training)
        x = self.norm1(ops.relu(self.conv1(x)), training=training)
        return ops.relu(self.gate(self.norm2(self.conv2(x), training=training)) + shortcut)


class AttentiveStatisticsPooling(Layer):
    """Attention-weighted mean and standard deviation over time, `(B, T, width)` to `(B, 2 width)` (Okabe et al. 2018).

    `attention_width` is the width of the hidden layer that computes the weights.
    """

    def __init__(self, width: int, attention_width: int = 128, **kwargs):
        super().__init__(**kwargs)
        self.hidden = dense(attention_width, width, "hidden", self.dtype_policy, activation="relu")
        self.norm = BatchNormalization(attention_width, dtype=self.dtype_policy, name="norm")
        self.score = dense(width, attention_width, "score", self.dtype_policy)

    def call(self, x: Tensor, training=False) -> Tensor:
        score = self.score(self.norm(self.hidden(x), training=training))
        weight = ops.softmax(ops.cast(score, "float32"), axis=1)
        x = ops.cast(x, "float32")
        mean = ops.sum(weight * x, axis=1)
        variance = ops.sum(weight * ops.square(x), axis=1) - ops.square(mean)
        return ops.concatenate([mean, ops.sqrt(ops.maximum(variance, _EPSILON))], axis=-1)


class SpeakerEncoder(Layer):
    """Speaker encoder: log-mel `(B, F, num_mels)` of 16 kHz audio to unit vectors `(B, embedding_width)` float32.

    Padding is not masked, so all clips of a batch must have the same length. For `training`, see `BatchNormalization`.

    The residual blocks form groups. `widths` lists the number of channels of each group, and `num_blocks` the number of
    blocks of each group. Each group except the first halves the number of frames and the number of mel bands.
    """

    def __init__(self, num_mels: int, widths: Sequence[int], num_blocks=SPEAKER_BLOCKS, embedding_width=512, **kwargs):
        # No autocast: the log-mel is normalized in float32.
        super().__init__(autocast=False, **kwargs)
        self.embedding_width, dtype = embedding_width, self.dtype_policy
        bands, channels = num_mels, widths[0]
        self.stem = Conv2D(1, channels, 3, dtype=dtype, name="stem")
        self.stem_norm = BatchNormalization(channels, dtype=dtype, name="stem_norm")
        self.blocks = []
        for group, (width, count) in enumerate(zip(widths, num_blocks)):
            bands = -(-bands // 2) if group else bands
            for i in range(count):
                stride = 2 if group and not i else 1
                self.blocks.append(ResidualBlock(channels, width, stride, dtype=dtype, name=f"group_{group}_block_{i}"))
                channels = width
        pooled = bands * channels
        self.pooling = AttentiveStatisticsPooling(pooled, dtype=dtype, name="pooling")
        self.project = dense(embedding_width, 2 * pooled, "project", dtype)

    def call(self, log_mel: Tensor, training=False) -> Tensor:
        mean, variance = ops.moments(log_mel, axes=1, keepdims=True)
        x = ops.cast((log_mel - mean) * ops.rsqrt(variance + _EPSILON), self.compute_dtype)[..., None]
        x = self.stem_norm(ops.relu(self.stem(x)), training=training)
        for block in self.blocks:
            x = block(x, training=training)
        # The reference sorts pooled features by channel, then band.
        _, _, num_bands, num_channels = x.shape
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2)), (-1, ops.shape(x)[1], num_channels * num_bands))
        embedding = ops.cast(self.project(self.pooling(x, training=training)), "float32")
        return embedding / ops.maximum(ops.sqrt(ops.sum(ops.square(embedding), axis=-1, keepdims=True)), 1e-12)


def make_speaker_encoder(config: ModelConfig, **kwargs) -> SpeakerEncoder:
    """Creates the speaker encoder of a model; `kwargs` are arguments of `keras.layers.Layer`."""
    return SpeakerEncoder(SPEAKER_NUM_MELS, config.speaker_channels, embedding_width=config.speaker_width, **kwargs)


class AngularMarginClassifier(Layer):
    """Scaled cosine logits with an additive angular margin for the target class.

    Deng et al., "ArcFace: additive angular margin loss for deep face recognition" (2019), equation 3. For large angles,
    where `cos(angle + margin)` is not monotonic, `cos(angle) - margin sin(margin)` is used, as in the authors' code.

    Call arguments: unit `vectors` `(B, width)`; target `classes` `(B,)`; `active` `(num_classes,)`, 0 for classes to
    exclude. Returns logits `(B, num_classes)` float32.
    """

    scale, margin = 30.0, 0.2
    """Factor of the cosines, and margin in radians that is added to the angle between a vector and its target class."""

    def __init__(self, num_classes: int, width: int, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.num_classes = num_classes
        self.directions = self.add_weight((num_classes, width), "glorot_uniform", autocast=False, name="directions")

    def call(self, vectors: Tensor, classes: Tensor, active: Tensor) -> Tensor:
        directions = ops.convert_to_tensor(self.directions)
        norm = ops.sqrt(ops.sum(ops.square(directions), axis=-1, keepdims=True))
        cosine = ops.matmul(ops.cast(vectors, "float32"), ops.transpose(directions / ops.maximum(norm, 1e-12)))
        cosine = ops.clip(cosine, -1.0, 1.0)
        # The gradient of the root is infinite at zero.
        sine = ops.sqrt(ops.maximum(1.0 - ops.square(cosine), 1e-7))
        moved = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        target = ops.where(cosine > -math.cos(self.margin), moved, cosine - self.margin * math.sin(self.margin))
        right = ops.one_hot(classes, self.num_classes, dtype="float32")
        return ops.where(ops.cast(active, "bool")[None], self.scale * (right * target + (1.0 - right) * cosine), -1e9)
