"""Losses of waveform decoders and their discriminators, one number per clip."""

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import MelSpec
from myxtts.config.rates import DECODER_SAMPLE_RATE
from myxtts.models.discriminators import short_time_spectrum

Maps = list[list[tf.Tensor]]
"""Feature maps of each discriminator, `(B, ...)`; the last one is the score."""
BANDWIDTH_SHARE = 0.46
"""Bandwidth of a resampled recording, as a share of its original sample rate. Higher frequencies are not compared."""
FLOOR = 1e-5
"""Lower limit of magnitudes before the logarithm, as in HiFi-GAN's code."""
QUIET = 1e-3
"""Lower limit above a recording's bandwidth (-60 dBFS), so that the level of silence does not matter there."""
STFT_LENGTHS = (512, 1024, 2048)
MEL_LENGTH = 1024


def _bin_hz(n_fft):
    return np.linspace(0, DECODER_SAMPLE_RATE / 2, n_fft // 2 + 1)


_MEL = MelSpec(DECODER_SAMPLE_RATE, MEL_LENGTH, MEL_LENGTH, MEL_LENGTH // 4, num_mels=80, f_max=DECODER_SAMPLE_RATE / 2)
_FILTERS = _MEL.filterbank()
_TOP_HZ = np.array([_bin_hz(MEL_LENGTH)[band > 0].max() for band in _FILTERS.T], "float32")


def log_mel_distance(real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
    """Mean absolute difference of log-mel spectrograms in each frame (HiFi-GAN, equation 3).

    Magnitudes of a 1024-point transform, hop 256, in 80 bands from 0 to 12 kHz (Slaney's area norm), compressed as
    `ln(max(x, 1e-5))`, or `ln(max(x, QUIET))` above the bandwidth of the recording.

    Args:
        real, made: Recorded and generated audio at 24 000 Hz, `(B, S)`.
        source_rate: Sample rates of the recordings in Hz, `(B,)`.

    Returns:
        `(B, S // 256)`; its mean over the frames is the loss of a clip.
    """
    floors = _floors(source_rate, _TOP_HZ)
    mels = (tf.math.log(tf.maximum(_magnitude(wav, MEL_LENGTH) @ _FILTERS, floors)) for wav in (real, made))
    return tf.reduce_mean(tf.abs(tf.subtract(*mels)), axis=-1)


def stft_distance(real: tf.Tensor, made: tf.Tensor, source_rate: tf.Tensor) -> tf.Tensor:
    """Spectral convergence plus log-magnitude difference, averaged over three resolutions, `(B,)`.

    Takes the arguments of `log_mel_distance`. Yamamoto, Song and Kim, "Parallel WaveGAN" (2020), equations 5 to 7.
    """
    distances = []
    for n_fft in STFT_LENGTHS:
        of_real, of_made = (_magnitude(wav, n_fft) for wav in (real, made))
        # White noise has a magnitude of its level times the root of the window's energy; mel filters have unit area.
        floors = _floors(source_rate, _bin_hz(n_fft).astype("float32")) * float(np.sqrt(n_fft))
        # The addend keeps the gradient of equal signals finite.
        difference = tf.sqrt(tf.reduce_sum(tf.square(of_real - of_made), axis=[1, 2]) + 1e-12)
        difference /= tf.sqrt(tf.reduce_sum(tf.square(of_real), axis=[1, 2]))
        logarithms = (tf.math.log(tf.maximum(one, floors)) for one in (of_real, of_made))
        distances.append(difference + tf.reduce_mean(tf.abs(tf.subtract(*logarithms)), axis=[1, 2]))
    return tf.add_n(distances) / len(distances)


def _floors(source_rate, top_hz):
    """Lower limits of magnitudes, `(B, 1, bands)`: `QUIET` in bands above a recording's bandwidth, else `FLOOR`."""
    limit = BANDWIDTH_SHARE * tf.cast(source_rate, tf.float32)[:, None]
    return tf.where(top_hz[None] <= limit, FLOOR, QUIET)[:, None]


def _magnitude(wav, n_fft):
    real, imaginary = short_time_spectrum(wav, n_fft)
    return tf.sqrt(tf.square(real) + tf.square(imaginary) + 1e-9)


def _mean(x):
    """Mean of each example, `(B, ...)` to `(B,)` float32."""
    x = tf.cast(x, tf.float32)
    return tf.reduce_mean(x, axis=list(range(1, x.shape.rank)))


def score_loss(decoder_type: str, maps: Maps, real: bool) -> tf.Tensor:
    """Adversarial loss of the discriminators' scores, averaged over each map and summed over discriminators, `(B,)`.

    With `real`, high scores give a low loss: for recordings in the discriminators' loss, and for generated audio in the
    generator's loss. `hifigan` uses least squares (Mao et al. 2017, equation 2; HiFi-GAN, equation 1), `istft` the
    hinge loss (Lim and Ye 2017; Vocos, section 3.3).
    """
    scores = [tf.cast(one[-1], tf.float32) for one in maps]
    if decoder_type == "hifigan":
        losses = [tf.square(score - 1.0 if real else score) for score in scores]
    else:
        losses = [tf.nn.relu(1.0 - score if real else 1.0 + score) for score in scores]
    return tf.add_n([_mean(loss) for loss in losses])


def feature_distance(real: Maps, made: Maps) -> tf.Tensor:
    """Feature-matching loss: mean absolute differences summed over maps and scores (HiFi-GAN, equation 4), `(B,)`."""
    pairs = [pair for one, other in zip(real, made) for pair in zip(one, other)]
    return tf.add_n([_mean(tf.abs(tf.cast(a, tf.float32) - tf.cast(b, tf.float32))) for a, b in pairs])
