"""Losses of waveform decoders and their discriminators, one number per clip."""

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import MelSpec
from myxtts.config.rates import DECODER_SAMPLE_RATE
from myxtts.models.discriminators import short_time_spectrum

Maps = list[list[tf.Tensor]]
"""Feature maps of each discriminator, `(B, ...)`; the last one is the score."""
HIGHEST_SHARE = 0.46
"""Bandwidth of a resampled recording, as a share of its original sample rate; nothing above can be learned."""
FLOOR = 1e-5
"""Smallest magnitude of the logarithm, as in HiFi-GAN's code."""
QUIET = 1e-3
"""The same above a recording's bandwidth, -60 dBFS: quieter output counts as silence."""
STFT_LENGTHS = (512, 1024, 2048)


class LogMelDistance:
    """Mean absolute difference of log-mel spectrograms (HiFi-GAN, equation 3).

    Magnitudes of a 1024-point transform, hop 256, in 80 bands from 0 to 12 kHz (Slaney's area norm), compressed as
    `ln(max(x, 1e-5))`. Above the bandwidth of a recording the floor is `QUIET`, so that the depth of its silence does
    not count.

    Call arguments: recorded and generated audio `(B, S)`, sample rates of the recordings `(B,)` Hz; returns `(B,)`.
    """

    def __init__(self, n_fft: int = 1024, num_mels: int = 80):
        self.n_fft = n_fft
        spec = MelSpec(DECODER_SAMPLE_RATE, n_fft, n_fft, n_fft // 4, num_mels, f_max=DECODER_SAMPLE_RATE / 2)
        self._filters = spec.filterbank()
        self._top_hz = np.array([_bin_hz(n_fft)[band > 0].max() for band in self._filters.T], "float32")

    def differences(self, real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
        """Returns the mean difference over the bands of each frame, `(B, S // 256)`; arguments as of a call."""
        floors = _floors(source_rate, self._top_hz)
        mels = (tf.math.log(tf.maximum(_magnitude(wav, self.n_fft) @ self._filters, floors)) for wav in (real, made))
        return tf.reduce_mean(tf.abs(tf.subtract(*mels)), axis=-1)

    def __call__(self, real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(self.differences(real, made, source_rate), axis=-1)


def stft_distance(real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
    """Spectral convergence and log-magnitude difference, averaged over three resolutions; called like `LogMelDistance`.

    Yamamoto, Song and Kim, "Parallel WaveGAN" (2020), equations 5 to 7.
    """
    distances = [_stft_distance(real, made, source_rate, n_fft) for n_fft in STFT_LENGTHS]
    return tf.add_n(distances) / len(distances)


def _stft_distance(real, made, source_rate, n_fft):
    real, made = (_magnitude(wav, n_fft) for wav in (real, made))
    # White noise has a magnitude of its level times the root of the window's energy; mel filters have unit area.
    floors = _floors(source_rate, _bin_hz(n_fft).astype("float32")) * float(np.sqrt(n_fft))
    # The addend keeps the gradient of equal signals finite.
    difference = tf.sqrt(tf.reduce_sum(tf.square(real - made), axis=[1, 2]) + 1e-12)
    difference /= tf.sqrt(tf.reduce_sum(tf.square(real), axis=[1, 2]))
    logarithms = [tf.math.log(tf.maximum(one, floors)) for one in (real, made)]
    return difference + tf.reduce_mean(tf.abs(logarithms[0] - logarithms[1]), axis=[1, 2])


def _bin_hz(n_fft):
    return np.linspace(0, DECODER_SAMPLE_RATE / 2, n_fft // 2 + 1)


def _floors(source_rate, top_hz):
    """Lower limits of magnitudes, `(B, 1, bands)`: `QUIET` in bands above a recording's bandwidth, else `FLOOR`."""
    limit = HIGHEST_SHARE * tf.cast(source_rate, tf.float32)[:, None]
    return tf.where(top_hz[None] <= limit, FLOOR, QUIET)[:, None]


def _magnitude(wav, n_fft):
    real, imaginary = short_time_spectrum(wav, n_fft)
    return tf.sqrt(tf.square(real) + tf.square(imaginary) + 1e-9)


def _mean(x):
    """Mean of each example, `(B, ...)` to `(B,)` float32."""
    x = tf.cast(x, tf.float32)
    return tf.reduce_mean(x, axis=list(range(1, x.shape.rank)))


def score_loss(decoder_type: str, maps: Maps, real: bool) -> tf.Tensor:
    """Mean loss of the scores of each discriminator on recordings or on generated audio, summed over them, `(B,)`.

    That on recordings is also the generator's loss on its own output. For `hifigan` least squares, from 1 or 0: Mao et
    al. (2017), equation 2; HiFi-GAN, equation 1. For `istft` hinge loss, beyond 1 or -1: Lim and Ye (2017); Vocos,
    section 3.3.
    """
    scores = [tf.cast(one[-1], tf.float32) for one in maps]
    if decoder_type == "hifigan":
        losses = [tf.square(score - 1.0 if real else score) for score in scores]
    else:
        losses = [tf.nn.relu(1.0 - score if real else 1.0 + score) for score in scores]
    return tf.add_n([_mean(loss) for loss in losses])


def feature_distance(real: Maps, made: Maps) -> tf.Tensor:
    """Feature-matching loss: mean absolute differences summed over all maps (HiFi-GAN, equation 4), `(B,)`.

    The score is one of the maps, as in the authors' code.
    """
    pairs = [pair for one, other in zip(real, made) for pair in zip(one, other)]
    return tf.add_n([_mean(tf.abs(tf.cast(a, tf.float32) - tf.cast(b, tf.float32))) for a, b in pairs])
