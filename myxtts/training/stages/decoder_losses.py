"""Losses of decoders and discriminators, one number per clip: spectral distances at 24 kHz, and adversarial losses."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import MelSpec
from myxtts.config.rates import DECODER_SAMPLE_RATE
from myxtts.models.layers.spectrum import short_time_spectrum

Maps = list[list[tf.Tensor]]
"""Feature maps of each discriminator, `(B, ...)`; the last one is the score. Losses are summed over discriminators."""
HIGHEST_SHARE = 0.46
"""Of a recording's own sample rate: above this frequency its resampler has left nothing that could be learned."""
FLOOR = 1e-5
"""Magnitude below which the logarithm is cut off, that of HiFi-GAN's code."""
QUIET = 1e-3
"""Magnitude below which sound above that frequency counts as silence, 60 dB below full scale."""
STFT_LENGTHS = (512, 1024, 2048)


class LogMelDistance:
    """Mean absolute difference of log-mel spectrograms (HiFi-GAN, equation 3).

    Magnitudes of a 1024-point transform, hop 256, in 80 bands from 0 to 12 kHz (Slaney's area norm), compressed as
    `ln(max(x, 1e-5))`. A recording of a lower rate than 24 kHz has nothing in its upper bands. There the floor is 60 dB
    below full scale: sound that is quieter is as good as none, and the difference is not about the depth of silence.
    """

    def __init__(self, n_fft: int = 1024, num_mels: int = 80):
        self.n_fft = n_fft
        spec = MelSpec(DECODER_SAMPLE_RATE, n_fft, n_fft, n_fft // 4, num_mels, f_max=DECODER_SAMPLE_RATE / 2)
        self._filters = spec.filterbank()
        bin_hz = np.linspace(0, DECODER_SAMPLE_RATE / 2, n_fft // 2 + 1)
        self._top_hz = np.array([bin_hz[band > 0].max() for band in self._filters.T], "float32")

    def floors(self, source_rate: tf.Tensor) -> tf.Tensor:
        """Lowest value of each band for recordings of these rates, `(B,)` Hz to `(B, 1, num_mels)`."""
        limit = HIGHEST_SHARE * tf.cast(source_rate, tf.float32)[:, None]
        return tf.where(self._top_hz[None] <= tf.maximum(limit, 0.0), FLOOR, QUIET)[:, None]

    def log_mel(self, wav: tf.Tensor, floors: tf.Tensor) -> tf.Tensor:
        """`(B, S)` to `(B, S // 256, num_mels)`."""
        real, imaginary = short_time_spectrum(wav, self.n_fft)
        magnitude = tf.sqrt(tf.square(real) + tf.square(imaginary) + 1e-9)
        return tf.math.log(tf.maximum(magnitude @ self._filters, floors))

    def differences(self, real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
        """Mean over bands for each frame of both sounds, `(B, S)` each, to `(B, S // 256)`."""
        floors = self.floors(source_rate)
        return tf.reduce_mean(tf.abs(self.log_mel(real, floors) - self.log_mel(made, floors)), axis=-1)

    def __call__(self, real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
        """`(B, S)` twice and `(B,)` Hz to `(B,)`."""
        return tf.reduce_mean(self.differences(real, made, source_rate), axis=-1)


def stft_distance(real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
    """Spectral convergence and log-magnitude difference at three resolutions, `(B, S)` twice and `(B,)` Hz to `(B,)`.

    Yamamoto, Song and Kim, "Parallel WaveGAN" (2020), equations 5 to 7; the mean over resolutions. The logarithms'
    floor is that of `LogMelDistance`.
    """
    distances = [_stft_distance(real, made, source_rate, n_fft) for n_fft in STFT_LENGTHS]
    return tf.add_n(distances) / len(distances)


def _stft_distance(real, made, source_rate, n_fft):
    real, made = (_magnitude(wav, n_fft) for wav in (real, made))
    bin_hz = tf.constant(np.linspace(0, DECODER_SAMPLE_RATE / 2, n_fft // 2 + 1), tf.float32)
    limit = HIGHEST_SHARE * tf.cast(source_rate, tf.float32)[:, None]
    # A bin of noise at a level has the root of the window's energy times that; mel bands have unit area instead.
    floors = tf.where(bin_hz[None] <= limit, FLOOR, QUIET)[:, None] * float(np.sqrt(n_fft))
    # Equal sounds have a gradient, too.
    difference = tf.sqrt(tf.reduce_sum(tf.square(real - made), axis=[1, 2]) + 1e-12)
    difference /= tf.sqrt(tf.reduce_sum(tf.square(real), axis=[1, 2]))
    logarithms = [tf.math.log(tf.maximum(one, floors)) for one in (real, made)]
    return difference + tf.reduce_mean(tf.abs(logarithms[0] - logarithms[1]), axis=[1, 2])


def _magnitude(wav, n_fft):
    real, imaginary = short_time_spectrum(wav, n_fft)
    return tf.sqrt(tf.square(real) + tf.square(imaginary) + 1e-9)


def _mean(x):
    """Mean of all but the first axis, `(B, ...)` to `(B,)` float32."""
    x = tf.cast(x, tf.float32)
    return tf.reduce_mean(x, axis=list(range(1, x.shape.rank)))


def _sum_over(function: Callable, *maps: Maps):
    return tf.add_n([_mean(function(*(tf.cast(one[-1], tf.float32) for one in each))) for each in zip(*maps)])


def least_squares_real(maps: Maps) -> tf.Tensor:
    """Least-squares loss of recordings, and of the generator on its own output, `(B,)`.

    Mao et al. (2017), equation 2; HiFi-GAN, equation 1.
    """
    return _sum_over(lambda score: tf.square(score - 1.0), maps)


def least_squares_made(maps: Maps) -> tf.Tensor:
    """Least-squares loss of generated audio, `(B,)`."""
    return _sum_over(tf.square, maps)


def hinge_real(maps: Maps) -> tf.Tensor:
    """Hinge loss of recordings, also the generator's on its output (Lim and Ye 2017; Vocos, section 3.3), `(B,)`."""
    return _sum_over(lambda score: tf.nn.relu(1.0 - score), maps)


def hinge_made(maps: Maps) -> tf.Tensor:
    """Hinge loss of generated audio, `(B,)`."""
    return _sum_over(lambda score: tf.nn.relu(1.0 + score), maps)


def feature_distance(real: Maps, made: Maps) -> tf.Tensor:
    """Mean absolute differences, summed over all maps (HiFi-GAN, equation 4, without its weight), `(B,)`.

    The score is one of the maps, as in the authors' code.
    """
    pairs = [pair for one, other in zip(real, made) for pair in zip(one, other)]
    return tf.add_n([_mean(tf.abs(tf.cast(a, tf.float32) - tf.cast(b, tf.float32))) for a, b in pairs])


ADVERSARIAL_LOSSES: dict[str, tuple[Callable, Callable]] = {
    "hifigan": (least_squares_real, least_squares_made),
    "istft": (hinge_real, hinge_made),
}
"""Losses of recordings and of generated audio by the type of the decoder, as in its paper."""
