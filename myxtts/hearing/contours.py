"""Mel cepstra and pitch of a recording, and mel-cepstral distortion and F0 error between two recordings."""

from typing import NamedTuple

import numpy as np
import scipy.fft
import soxr

from myxtts.audio.mel import MelSpec, MelSpectrogram
from myxtts.config.rates import MODEL_SAMPLE_RATE, NUM_MELS

HOP_SAMPLES = 220
"""10 ms at `MODEL_SAMPLE_RATE`."""
_MEL = MelSpec(MODEL_SAMPLE_RATE, n_fft=1024, win_length=1024, hop_length=HOP_SAMPLES, num_mels=NUM_MELS)


class Contour(NamedTuple):
    """Frame features of a recording without the silence at its ends."""

    cepstra: np.ndarray
    """Mel cepstra, `(F, 24)`, 10 ms per frame."""
    f0: np.ndarray
    """Pitch in Hz, `(F,)`; 0 in unvoiced frames."""
    seconds: float
    longest_pause: float
    """Longest silence inside, in seconds."""


def contour_of(samples: np.ndarray, sample_rate: int) -> Contour:
    """Analyzes `(S,)` float32 samples; a silent recording becomes one frame."""
    import librosa  # takes a second or two

    sound = np.asarray(samples, np.float32)
    sound = sound if sample_rate == MODEL_SAMPLE_RATE else soxr.resample(sound, sample_rate, MODEL_SAMPLE_RATE)
    sound = np.pad(sound, (0, max(0, _MEL.win_length - len(sound))))
    log_mel = np.asarray(MelSpectrogram(_MEL)(sound[None]))[0]
    rms = librosa.feature.rms(y=sound, frame_length=2 * HOP_SAMPLES, hop_length=HOP_SAMPLES)[0, : len(log_mel)]
    # Frames 40 dB below the loudest one or below a fixed level are silent.
    loud = np.flatnonzero(rms > max(rms.max() / 100, 5e-5))
    first, last = (loud[0], loud[-1]) if len(loud) else (0, 0)
    # Probabilistic YIN (Mauch and Dixon 2014).
    options = dict(sr=MODEL_SAMPLE_RATE, frame_length=_MEL.win_length, hop_length=HOP_SAMPLES, fill_na=0.0)
    f0 = librosa.pyin(sound, fmin=60.0, fmax=500.0, **options)[0][first : last + 1]
    seconds, pause = np.array([last + 1 - first, max(np.diff(loud), default=1) - 1]) * HOP_SAMPLES / MODEL_SAMPLE_RATE
    # Cosine transform of the log amplitude over the mel bands without coefficient 0, the level.
    log_amplitude = 0.5 * log_mel[first : last + 1].astype(np.float64)
    cepstra = scipy.fft.dct(log_amplitude, type=2, axis=1)[:, 1:25] / log_mel.shape[1]
    return Contour(cepstra, f0, float(seconds), float(pause))


def pitch_figures(contour: Contour) -> tuple[float | None, float | None, float]:
    """Returns the median pitch in Hz, its deviation in semitones (None if unvoiced), and the share of voiced frames."""
    voiced = contour.f0[contour.f0 > 0]
    if not len(voiced):
        return None, None, 0.0
    return float(np.median(voiced)), float(np.std(12 * np.log2(voiced))), len(voiced) / len(contour.f0)


def differences(spoken: Contour, recorded: Contour) -> tuple[float, float | None]:
    """Returns mel-cepstral distortion in dB and F0 RMSE in semitones between recordings of a text, aligned by DTW.

    The distortion is Kubichek's (1993), the mean over the path of `10 / ln 10 * sqrt(2 * sum of squared differences)`
    of coefficients 1 to 24. The cepstra come from an 80-band log-mel spectrogram, not SPTK's all-pass warped spectrum,
    so values compare with each other only. F0 counts frames where both are voiced; it is None if there are none.
    """
    import librosa

    totals, path = librosa.sequence.dtw(spoken.cepstra.T, recorded.cepstra.T, metric="euclidean")
    ours, theirs = spoken.f0[path[:, 0]], recorded.f0[path[:, 1]]
    both = (ours > 0) & (theirs > 0)
    rmse = float(np.sqrt(np.mean((12 * np.log2(ours[both] / theirs[both])) ** 2))) if both.any() else None
    return float(10 * np.sqrt(2) / np.log(10) * totals[-1, -1] / len(path)), rmse
