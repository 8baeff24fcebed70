"""Speaker encoder: a waveform to one vector that stands for the voice.

A squeeze-and-excitation ResNet with attentive statistics pooling, after Heo et al., "Clova baseline system for the
VoxCeleb speaker recognition challenge 2020" (2020), in the variant of XTTS v2.
"""

import keras
from keras import ops

from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram
from myxtts.models.layers.convolution import Conv2D

_EPSILON = 1e-5


class SqueezeExcitation(keras.layers.Layer):
    """Scales each channel by a gate computed from the channel means, `(B, H, W, C)` to the same shape.

    Hu, Shen and Sun, "Squeeze-and-excitation networks" (2018).

    Args:
        reduction: How many times narrower the hidden layer is.
    """

    def __init__(self, reduction=8, **kwargs):
        super().__init__(**kwargs)
        self.reduction = reduction

    def build(self, input_shape):
        channels = input_shape[-1]
        hidden = channels // self.reduction
        self.squeeze = keras.layers.Dense(hidden, activation="relu", dtype=self.dtype_policy, name="squeeze")
        self.squeeze.build((None, channels))
        self.excite = keras.layers.Dense(channels, activation="sigmoid", dtype=self.dtype_policy, name="excite")
        self.excite.build((None, hidden))

    def call(self, x):
        return x * self.excite(self.squeeze(ops.mean(x, axis=(1, 2))))[:, None, None, :]

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config() | {"reduction": self.reduction}


class ResidualBlock(keras.layers.Layer):
    """Two convolutions with squeeze-and-excitation on two axes.

    `(B, H, W, C)` becomes `(B, ceil(H / stride), ceil(W / stride), filters)`. `training` selects the statistics of the
    batch normalisation; `fewer_products` is that of `Conv2D`.

    Args:
        filters: Output channels.
        stride: Stride of the first convolution, on both axes.
    """

    def __init__(self, filters, stride=1, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.stride = stride

    def build(self, input_shape):
        dtype = self.dtype_policy
        inner_shape = self.compute_output_shape(input_shape)
        self.conv1 = Conv2D(self.filters, 3, stride=self.stride, use_bias=False, dtype=dtype, name="conv1")
        self.conv1.build(input_shape)
        self.norm1 = _batch_normalization("norm1", dtype, inner_shape)
        self.conv2 = Conv2D(self.filters, 3, use_bias=False, dtype=dtype, name="conv2")
        self.conv2.build(inner_shape)
        self.norm2 = _batch_normalization("norm2", dtype, inner_shape)
        self.gate = SqueezeExcitation(dtype=dtype, name="gate")
        self.gate.build(inner_shape)
        self.shortcut_conv = None
        if self.stride != 1 or input_shape[-1] != self.filters:
            self.shortcut_conv = Conv2D(
                self.filters, 1, stride=self.stride, use_bias=False, dtype=dtype, name="shortcut_conv"
            )
            self.shortcut_conv.build(input_shape)
            self.shortcut_norm = _batch_normalization("shortcut_norm", dtype, inner_shape)

    def call(self, x, training=False, fewer_products=False):
        shortcut = x
        if self.shortcut_conv is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(x), training=training)
        x = self.norm1(ops.relu(self.conv1(x, fewer_products=fewer_products)), training=training)
        x = self.gate(self.norm2(self.conv2(x, fewer_products=fewer_products), training=training))
        return ops.relu(x + shortcut)

    def compute_output_shape(self, input_shape):
        lengths = [n if n is None else -(-n // self.stride) for n in input_shape[1:3]]
        return (input_shape[0], *lengths, self.filters)

    def get_config(self):
        return super().get_config() | {"filters": self.filters, "stride": self.stride}


class AttentiveStatisticsPooling(keras.layers.Layer):
    """Weighted mean and standard deviation over time, `(B, T, C)` to `(B, 2 C)`, in float32.

    Okabe, Koshinaka and Shinoda, "Attentive statistics pooling for deep speaker embedding" (2018). `training` selects
    the statistics of the batch normalisation. All frames count, padding included.

    Args:
        attention_width: Width of the layer between the frames and their weights.
    """

    def __init__(self, attention_width=128, **kwargs):
        super().__init__(**kwargs)
        self.attention_width = attention_width

    def build(self, input_shape):
        dtype, channels = self.dtype_policy, input_shape[-1]
        self.hidden = keras.layers.Dense(self.attention_width, activation="relu", dtype=dtype, name="hidden")
        self.hidden.build(input_shape)
        self.norm = _batch_normalization("norm", dtype, (None, None, self.attention_width))
        self.score = keras.layers.Dense(channels, dtype=dtype, name="score")
        self.score.build((None, None, self.attention_width))

    def call(self, x, training=False):
        score = self.score(self.norm(self.hidden(x), training=training))
        weight = ops.softmax(ops.cast(score, "float32"), axis=1)
        x = ops.cast(x, "float32")
        mean = ops.sum(weight * x, axis=1)
        variance = ops.sum(weight * ops.square(x), axis=1) - ops.square(mean)
        return ops.concatenate([mean, ops.sqrt(ops.maximum(variance, _EPSILON))], axis=-1)

    def compute_output_spec(self, x, training=False):
        return keras.KerasTensor((x.shape[0], 2 * x.shape[-1]), dtype="float32")

    def get_config(self):
        return super().get_config() | {"attention_width": self.attention_width}


class SpeakerEncoder(keras.layers.Layer):
    """Waveforms `(B, S)` at 16 kHz to unit vectors, `(B, embedding_width)` float32.

    Padding counts as sound: give clips of one length, or one at a time. `training` selects the statistics of the batch
    normalisation; `fewer_products` is that of `Conv2D`.

    Args:
        widths: Channels of each group of residual blocks; every group but the first halves both axes.
        num_blocks: Residual blocks in each group.
        embedding_width: Width of the output.
        attention_width: Width of the hidden layer of the pooling.
    """

    def __init__(
        self, widths=(32, 64, 128, 256), num_blocks=(3, 4, 6, 3), embedding_width=512, attention_width=128, **kwargs
    ):
        # Automatic casting would round the waveform to half precision before its spectrum is taken.
        super().__init__(autocast=False, **kwargs)
        if len(widths) != len(num_blocks):
            raise ValueError(
                "widths and num_blocks must have one value per group of residual blocks. "
                f"Received: {widths} and {num_blocks}."
            )
        self.widths = tuple(widths)
        self.num_blocks = tuple(num_blocks)
        self.embedding_width = embedding_width
        self.attention_width = attention_width
        self.wav_to_mel = MelSpectrogram(SPEAKER_MEL)

    def build(self, wav_shape):
        dtype = self.dtype_policy
        shape = (None, None, SPEAKER_MEL.num_mels, 1)
        self.stem = Conv2D(self.widths[0], 3, dtype=dtype, name="stem")
        self.stem.build(shape)
        shape = self.stem.compute_output_shape(shape)
        self.stem_norm = _batch_normalization("stem_norm", dtype, shape)
        self.blocks = []
        for group, (width, count) in enumerate(zip(self.widths, self.num_blocks, strict=True)):
            for i in range(count):
                stride = 2 if group > 0 and i == 0 else 1
                block = ResidualBlock(width, stride, dtype=dtype, name=f"group_{group}_block_{i}")
                block.build(shape)
                shape = block.compute_output_shape(shape)
                self.blocks.append(block)
        pooled_width = shape[2] * shape[3]
        self.pooling = AttentiveStatisticsPooling(self.attention_width, dtype=dtype, name="pooling")
        self.pooling.build((None, None, pooled_width))
        self.project = keras.layers.Dense(self.embedding_width, dtype=dtype, name="project")
        self.project.build((None, 2 * pooled_width))

    def call(self, wav, training=False, fewer_products=False):
        x = ops.cast(self.wav_to_features(wav), self.compute_dtype)[..., None]
        x = self.stem_norm(ops.relu(self.stem(x)), training=training)
        for block in self.blocks:
            x = block(x, training=training, fewer_products=fewer_products)
        # The reference numbers pooled features channel first: channel * bands + band.
        _, _, num_bands, num_channels = x.shape
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2)), (-1, ops.shape(x)[1], num_channels * num_bands))
        embedding = ops.cast(self.project(self.pooling(x, training=training)), "float32")
        norm = ops.sqrt(ops.sum(ops.square(embedding), axis=-1, keepdims=True))
        return embedding / ops.maximum(norm, 1e-12)

    def wav_to_features(self, wav):
        """Waveforms, `(B, S)` at 16 kHz, to log-mel with zero mean and unit variance over time, `(B, F, 64)`."""
        log_mel = self.wav_to_mel(wav)
        mean, variance = ops.moments(log_mel, axes=1, keepdims=True)
        return (log_mel - mean) * ops.rsqrt(variance + _EPSILON)

    def compute_output_spec(self, wav, training=False, fewer_products=False):
        return keras.KerasTensor((wav.shape[0], self.embedding_width), dtype="float32")

    def get_config(self):
        return super().get_config() | {
            "widths": self.widths,
            "num_blocks": self.num_blocks,
            "embedding_width": self.embedding_width,
            "attention_width": self.attention_width,
        }


def _batch_normalization(name, dtype, shape):
    # Keras's momentum is the share of the old value: PyTorch's 0.1 is 0.9 here.
    layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=_EPSILON, dtype=dtype, name=name)
    layer.build(shape)
    return layer
