"""Discrete variational autoencoder: mel spectrogram <-> audio codes (XTTS, Casanova et al. 2024, section 2)."""

import keras
from keras import ops

from myxtts.models.layers import Conv1D, Layer, Tensor

DECAY, SMOOTHING = 0.99, 1e-5
"""Decay of the codebook's moving averages, and the Laplace smoothing term of the cluster sizes."""


class VectorQuantizer(Layer):
    """Nearest-neighbor codebook with exponential moving averages (van den Oord et al. 2017, appendix A.1).

    A call does not change the codebook. To train the codebook, sum the results of `statistics` over replicas and
    accumulated batches, and call `update` with the sums once per step.

    Call arguments: `codes`, integers of any shape. Returns their codebook vectors, `(..., width)`.
    """

    def __init__(self, num_codes: int, width: int, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.num_codes, self.width = num_codes, width
        # In float32 even if the layer has a lower precision.
        weight = lambda name, shape, start: self.add_weight(shape, start, trainable=False, autocast=False, name=name)
        self.codebook = weight("codebook", (num_codes, width), keras.initializers.RandomNormal(0.0, 1.0))
        self.codebook_sum = weight("codebook_sum", (num_codes, width), "zeros")
        self.cluster_size = weight("cluster_size", (num_codes,), "zeros")

    def call(self, codes: Tensor) -> Tensor:
        return ops.take(self.codebook, codes, axis=0)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Returns each vector's code, the index of the nearest codebook vector: `(..., width)` -> `(...)` int32."""
        vectors, codebook = ops.cast(vectors, "float32"), ops.convert_to_tensor(self.codebook)
        # Squared distances, without the squared norms of the vectors.
        distances = ops.sum(ops.square(codebook), axis=-1) - 2.0 * ops.matmul(vectors, ops.transpose(codebook))
        return ops.cast(ops.argmin(distances, axis=-1), "int32")

    def statistics(self, vectors: Tensor, codes: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Computes a batch's contribution to the moving averages.

        `codes` `(B, N)` are the nearest codes of the `vectors` `(B, N, width)`; `mask` `(B, N)` is 0 for padding.

        Returns a dict: the number `count` `(num_codes,)` and the sum `sum` `(num_codes, width)` of each code's vectors.
        """
        chosen = ops.one_hot(codes, self.num_codes, dtype="float32") * ops.cast(mask, "float32")[..., None]
        chosen = ops.reshape(chosen, (-1, self.num_codes))
        flat = ops.reshape(ops.cast(vectors, "float32"), (-1, self.width))
        return {"count": ops.sum(chosen, axis=0), "sum": ops.matmul(ops.transpose(chosen), flat)}

    def update(self, count: Tensor, vector_sum: Tensor):
        """Updates the moving averages and the codebook, given the results of `statistics` summed over batches."""
        self.cluster_size.assign(DECAY * self.cluster_size + (1.0 - DECAY) * count)
        self.codebook_sum.assign(DECAY * self.codebook_sum + (1.0 - DECAY) * vector_sum)
        total = ops.sum(self.cluster_size)
        smoothed = (self.cluster_size + SMOOTHING) / (total + self.num_codes * SMOOTHING) * total
        self.codebook.assign(self.codebook_sum / smoothed[:, None])

    def revive(self, candidates: Tensor, threshold: Tensor) -> None:
        """Replaces the codebook vectors of rarely used codes.

        A code is rarely used if the moving average of its count per step is below the scalar `threshold`. The code's
        new codebook vector is its row of `candidates` `(num_codes, width)`.
        """
        dead = ops.cast(ops.convert_to_tensor(self.cluster_size) < threshold, "float32")
        keep, candidates = 1.0 - dead, ops.cast(candidates, "float32")
        fresh_size = ops.maximum(ops.cast(threshold, "float32"), 1e-3) * 2.0
        self.codebook.assign(keep[:, None] * self.codebook + dead[:, None] * candidates)
        self.cluster_size.assign(keep * self.cluster_size + dead * fresh_size)
        self.codebook_sum.assign(keep[:, None] * self.codebook_sum + dead[:, None] * candidates * fresh_size)


class DVAEResidualBlock(Layer):
    """Residual block on `(B, T, channels)`: convolutions with kernel sizes 3, 3 and 1, and ReLUs between them."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        conv = lambda i, taps: Conv1D(channels, channels, taps, dtype=self.dtype_policy, name=f"conv_{i}")
        self.conv_0, self.conv_1, self.conv_2 = conv(0, 3), conv(1, 3), conv(2, 1)

    def call(self, x: Tensor) -> Tensor:
        return x + self.conv_2(ops.relu(self.conv_1(ops.relu(self.conv_0(x)))))


class DVAE(Layer):
    """Mel autoencoder with a codebook; one code stands for four mel frames.

    Args:
        num_codes: Number of codebook vectors.
        codebook_width: Width of the codebook vectors.
        hidden: Channels of the first convolution; the residual blocks have twice as many.
        residual_blocks: Number of residual blocks in the encoder and in the decoder.

    Call arguments: normalized log-mel `(B, T, num_mels)`, T a multiple of 4. Returns a dictionary: `reconstruction`
    `(B, T, num_mels)`, with a straight-through gradient; `vectors` and `quantized`, the encoder output before and after
    quantization, `(B, T / 4, codebook_width)`; `codes` `(B, T / 4)` int32.
    """

    def __init__(self, num_mels: int, num_codes: int, codebook_width: int, hidden: int, residual_blocks: int, **kwargs):
        super().__init__(**kwargs)
        self.num_mels, self.num_codes, self.codebook_width = num_mels, num_codes, codebook_width
        policy, wide, width = self.dtype_policy, 2 * hidden, codebook_width
        self.reach = 2 * residual_blocks + 1
        """Lookahead of `encode` in codes: 2 per residual block, plus 1 for the strided convolutions and the STFT."""
        conv = lambda name, *options, stride=1: Conv1D(*options, stride=stride, dtype=policy, name=name)
        block = lambda name: DVAEResidualBlock(wide, dtype=policy, name=name)
        self.encoder_conv_0 = conv("encoder_conv_0", num_mels, hidden, 3, stride=2)
        self.encoder_conv_1 = conv("encoder_conv_1", hidden, wide, 3, stride=2)
        self.encoder_blocks = [block(f"encoder_block_{i}") for i in range(residual_blocks)]
        self.encoder_output = conv("encoder_output", wide, width, 1)
        self.quantizer = VectorQuantizer(num_codes, width, name="quantizer")
        self.decoder_input = conv("decoder_input", width, wide, 1)
        self.decoder_blocks = [block(f"decoder_block_{i}") for i in range(residual_blocks)]
        self.decoder_conv_0 = conv("decoder_conv_0", wide, wide, 3)
        self.decoder_conv_1 = conv("decoder_conv_1", wide, hidden, 3)
        self.decoder_output = conv("decoder_output", hidden, num_mels, 1)

    def mel_to_vectors(self, mel: Tensor) -> Tensor:
        """Encodes a normalized log-mel `(B, T, num_mels)` to unquantized vectors `(B, ceil(T / 4), codebook_width)`."""
        x = ops.relu(self.encoder_conv_1(ops.relu(self.encoder_conv_0(mel))))
        for block in self.encoder_blocks:
            x = block(x)
        return self.encoder_output(x)

    def encode(self, mel: Tensor) -> Tensor:
        """Encodes a normalized log-mel `(B, T, num_mels)`, 86 frames per second, to codes `(B, ceil(T / 4))` int32."""
        return self.quantizer.nearest(self.mel_to_vectors(mel))

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes `(B, N)` to a normalized log-mel `(B, 4 N, num_mels)`."""
        return self.decode_vectors(self.quantizer(codes))

    def decode_vectors(self, vectors: Tensor) -> Tensor:
        """Decodes codebook vectors `(B, N, codebook_width)` to a normalized log-mel `(B, 4 N, num_mels)`."""
        x = self.decoder_input(ops.cast(vectors, self.compute_dtype))
        for block in self.decoder_blocks:
            x = block(x)
        x = ops.relu(self.decoder_conv_0(ops.repeat(x, 2, axis=1)))
        return self.decoder_output(ops.relu(self.decoder_conv_1(ops.repeat(x, 2, axis=1))))

    def call(self, mel: Tensor) -> dict[str, Tensor]:
        vectors = ops.cast(self.mel_to_vectors(mel), "float32")
        codes = self.quantizer.nearest(vectors)
        quantized = self.quantizer(codes)
        reconstruction = self.decode_vectors(vectors + ops.stop_gradient(quantized - vectors))
        return {"reconstruction": reconstruction, "vectors": vectors, "quantized": quantized, "codes": codes}
