"""Griffin-Lim: a round trip from mel to sound to mel, against librosa's."""

import librosa
import numpy as np
import pytest
import scipy.signal

from myxtts.audio.mel import DVAE_MEL, MelSpectrogram, log_mel_to_wav

WAV_TO_MEL = MelSpectrogram(DVAE_MEL)


@pytest.fixture(scope="module")
def log_mel():
    """One second that is built like speech: pulses and noise through formants that move, with a pause."""
    random = np.random.default_rng(0)
    num_samples = 86 * DVAE_MEL.hop_length
    time = np.arange(num_samples) / DVAE_MEL.sample_rate
    pitch = 110 + 30 * np.sin(2 * np.pi * 2 * time)
    pulses = np.diff(np.floor(np.cumsum(pitch) / DVAE_MEL.sample_rate), prepend=0)
    noise = random.standard_normal(num_samples)
    source = np.where(time < 0.7, pulses + 0.003 * noise, 0.05 * noise) * (np.abs(time - 0.5) > 0.05)
    wav = np.zeros(num_samples)
    for formant_hz, gain in ((500, 1.0), (1500, 0.6), (2600, 0.4), (4500, 0.3)):
        b, a = scipy.signal.iirpeak(formant_hz, formant_hz / 120, fs=DVAE_MEL.sample_rate)
        wav += gain * scipy.signal.lfilter(b, a, source)
    wav = 0.3 * wav / np.abs(wav).max() + 1e-3 * random.standard_normal(num_samples)
    return mel_of(wav)


def mel_of(wav):
    return np.asarray(WAV_TO_MEL(np.asarray(wav, "float32")[None]))[0]


@pytest.fixture(scope="module")
def wav(log_mel):
    return log_mel_to_wav(log_mel)


def error_of(wav, log_mel):
    return np.abs(mel_of(wav) - log_mel).mean()


def test_round_trip_is_closer_than_librosa(log_mel, wav):
    assert wav.dtype == np.float32 and wav.shape == ((len(log_mel) - 1) * DVAE_MEL.hop_length,)
    by_librosa = librosa.feature.inverse.mel_to_audio(
        np.exp(log_mel.T),
        sr=DVAE_MEL.sample_rate,
        n_fft=DVAE_MEL.n_fft,
        hop_length=DVAE_MEL.hop_length,
        n_iter=60,
        fmax=DVAE_MEL.f_max,
        htk=True,
        norm="slaney",
        pad_mode="reflect",
    )
    assert error_of(wav, log_mel) < min(0.15, 0.5 * error_of(by_librosa, log_mel))


def test_same_seed_gives_the_same_wav(log_mel):
    first, again, other = (log_mel_to_wav(log_mel[:40], num_iterations=4, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_mel_of_wrong_shape_or_with_nan_is_refused():
    for shape in ((3, 80), (10, 64), (80,)):
        with pytest.raises(ValueError, match="must have the shape"):
            log_mel_to_wav(np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match="must be finite"):
        log_mel_to_wav(np.full((10, 80), np.nan, "float32"))
