"""Discrete variational autoencoder: mel spectrogram <-> audio codes (XTTS, Casanova et al. 2024, section 2)."""

import keras
from keras import ops

from myxtts.models.layers.convolution import Conv1D
from myxtts.models.layers.vector_quantizer import VectorQuantizer

MEL_FRAMES_PER_CODE = 4
"""Two halvings of the mel frame rate."""


@keras.saving.register_keras_serializable("myxtts")
class DVAEResidualBlock(keras.layers.Layer):
    """`x + conv1(relu(conv3(relu(conv3(x)))))`, with no activation after the sum.

    Args:
        channels: Input and output channels.

    Call arguments: `x` `(B, T, channels)`; `fewer_products` as of `Conv1D`.
    """

    def __init__(self, channels, **kwargs):
        super().__init__(**kwargs)
        self.channels = channels

    def build(self, input_shape):
        self.conv_0 = Conv1D(self.channels, 3, dtype=self.dtype_policy, name="conv_0")
        self.conv_1 = Conv1D(self.channels, 3, dtype=self.dtype_policy, name="conv_1")
        self.conv_2 = Conv1D(self.channels, 1, dtype=self.dtype_policy, name="conv_2")
        for layer in (self.conv_0, self.conv_1, self.conv_2):
            layer.build(input_shape)
        self.built = True

    def call(self, x, fewer_products=False):
        hidden = ops.relu(self.conv_0(x, fewer_products=fewer_products))
        return x + self.conv_2(ops.relu(self.conv_1(hidden, fewer_products=fewer_products)))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "channels": self.channels}


@keras.saving.register_keras_serializable("myxtts")
class DVAE(keras.layers.Layer):
    """Mel autoencoder with a codebook in the middle; one code stands for four mel frames.

    Args:
        num_mels: Mel bands.
        num_codes: Codebook entries.
        codebook_width: Length of a codebook vector.
        hidden: Channels of the first convolution; the residual blocks have twice as many.
        residual_blocks: Residual blocks on each side.

    Call arguments: `mel`, normalised log-mel `(B, T, num_mels)` with T a multiple of 4. Returns a dictionary:
    `reconstruction` `(B, T, num_mels)`, decoded from the codes with the gradient passed straight through the
    quantiser; `vectors` and `quantized` `(B, T / 4, codebook_width)`; `codes` `(B, T / 4)` int32.
    """

    def __init__(self, num_mels, num_codes, codebook_width, hidden, residual_blocks, **kwargs):
        super().__init__(**kwargs)
        self.num_mels = num_mels
        self.num_codes = num_codes
        self.codebook_width = codebook_width
        self.hidden = hidden
        self.residual_blocks = residual_blocks

    def build(self, input_shape=None):
        policy, hidden, wide = self.dtype_policy, self.hidden, 2 * self.hidden

        def conv(name, channels_in, channels_out, kernel_size, stride=1):
            layer = Conv1D(channels_out, kernel_size, stride=stride, dtype=policy, name=name)
            layer.build((None, None, channels_in))
            return layer

        def blocks(name):
            layers = [DVAEResidualBlock(wide, dtype=policy, name=f"{name}_{i}") for i in range(self.residual_blocks)]
            for layer in layers:
                layer.build((None, None, wide))
            return layers

        self.encoder_conv_0 = conv("encoder_conv_0", self.num_mels, hidden, 3, stride=2)
        self.encoder_conv_1 = conv("encoder_conv_1", hidden, wide, 3, stride=2)
        self.encoder_blocks = blocks("encoder_block")
        self.encoder_output = conv("encoder_output", wide, self.codebook_width, 1)
        self.quantizer = VectorQuantizer(self.num_codes, self.codebook_width, name="quantizer")
        self.quantizer.build()
        self.decoder_input = conv("decoder_input", self.codebook_width, wide, 1)
        self.decoder_blocks = blocks("decoder_block")
        self.decoder_conv_0 = conv("decoder_conv_0", wide, wide, 3)
        self.decoder_conv_1 = conv("decoder_conv_1", wide, hidden, 3)
        self.decoder_output = conv("decoder_output", hidden, self.num_mels, 1)
        self.built = True

    def mel_to_vectors(self, mel, fewer_products=False):
        """Encoder output before quantisation: `(B, T, num_mels)` -> `(B, ceil(T / 4), codebook_width)`."""
        x = ops.relu(self.encoder_conv_1(ops.relu(self.encoder_conv_0(mel))))
        for block in self.encoder_blocks:
            x = block(x, fewer_products=fewer_products)
        return self.encoder_output(x)

    def encode(self, mel, fewer_products=False):
        """Quantizes a mel spectrogram.

        Args:
            mel: Normalised log-mel, `(B, T, num_mels)`, 86 frames per second.
            fewer_products: As of `Conv1D`: quicker on a CPU.

        Returns:
            Codes, `(B, ceil(ceil(T / 2) / 2))` int32, each in `[0, num_codes)`.
        """
        return self.quantizer.nearest(self.mel_to_vectors(mel, fewer_products))

    def decode(self, codes):
        """Codes `(B, N)` -> normalised log-mel `(B, 4 N, num_mels)`."""
        return self.decode_vectors(self.quantizer(codes))

    def decode_vectors(self, vectors):
        """Codebook vectors `(B, N, codebook_width)` -> normalised log-mel `(B, 4 N, num_mels)`."""
        x = self.decoder_input(ops.cast(vectors, self.compute_dtype))
        for block in self.decoder_blocks:
            x = block(x)
        x = ops.relu(self.decoder_conv_0(ops.repeat(x, 2, axis=1)))
        x = ops.relu(self.decoder_conv_1(ops.repeat(x, 2, axis=1)))
        return self.decoder_output(x)

    def call(self, mel):
        vectors = ops.cast(self.mel_to_vectors(mel), "float32")
        codes = self.quantizer.nearest(vectors)
        quantized = self.quantizer(codes)
        passed = vectors + ops.stop_gradient(quantized - vectors)
        return {
            "reconstruction": self.decode_vectors(passed),
            "vectors": vectors,
            "quantized": quantized,
            "codes": codes,
        }

    def compute_output_shape(self, input_shape):
        batch, frames = input_shape[0], input_shape[1]
        codes = None if frames is None else -(-frames // MEL_FRAMES_PER_CODE)
        return {
            "reconstruction": (batch, None if codes is None else 4 * codes, self.num_mels),
            "vectors": (batch, codes, self.codebook_width),
            "quantized": (batch, codes, self.codebook_width),
            "codes": (batch, codes),
        }

    def get_config(self):
        return {
            **super().get_config(),
            "num_mels": self.num_mels,
            "num_codes": self.num_codes,
            "codebook_width": self.codebook_width,
            "hidden": self.hidden,
            "residual_blocks": self.residual_blocks,
        }
