"""Mel spectrograms and Griffin-Lim against librosa, resampling against soxr, all against the reference's arrays."""

from pathlib import Path

import keras
import librosa
import numpy as np
import pytest
import scipy.signal
import soxr
import tensorflow as tf

from myxtts.audio.mel import CONDITIONING_MEL, DVAE_MEL, SPEAKER_MEL, MelSpectrogram, log_mel_to_wav, resample
from myxtts.config.rates import DECODER_SAMPLE_RATE, MEL_FLOOR, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE

PARITY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "parity"
MODEL, DECODER, SPEAKER = MODEL_SAMPLE_RATE, DECODER_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
RATES = [(MODEL, SPEAKER), (DECODER, MODEL), (48000, MODEL), (8000, MODEL), (MODEL, DECODER), (SPEAKER, 8000)]
SPECS = {"dvae": DVAE_MEL, "conditioning": CONDITIONING_MEL, "speaker": SPEAKER_MEL}


@pytest.fixture(scope="module")
def reference():
    if not PARITY.is_dir():
        pytest.skip("the reference arrays are not beside the repository")
    with np.load(PARITY / "reference.npz") as arrays:
        groups = ("audio", "cond", "dvae", "mel_stats", "spk")
        return {name: arrays[name] for name in arrays.files if name.split("/")[0] in groups}


def make_wav(num_samples, sample_rate, seed=0):
    """Returns a gliding harmonic tone with noise, so that every band has energy at all times."""
    time = np.arange(num_samples) / sample_rate
    tone = sum(np.sin(k * 2 * np.pi * (120 * time + 60 * time**2)) / k for k in range(1, 20))
    return (0.1 * tone + 0.02 * np.random.default_rng(seed).standard_normal(num_samples)).astype("float32")


def librosa_log_mel(wav, spec):
    if spec.preemphasis:
        wav = wav - spec.preemphasis * np.concatenate([wav[1:2], wav[:-1]])
    given = dict(sr=spec.sample_rate, n_fft=spec.n_fft, win_length=spec.win_length, hop_length=spec.hop_length)
    given |= dict(window=spec.window, n_mels=spec.num_mels, fmax=spec.f_max, norm=spec.filter_norm)
    power = librosa.feature.melspectrogram(y=wav, **given, htk=True, pad_mode="reflect")
    return np.log(np.maximum(power, spec.log_floor) + spec.log_offset).T


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("extra_samples, by_clip", [(0, False), (77, False), (77, True)])
def test_log_mel_equals_librosa(name, extra_samples, by_clip):
    spec = SPECS[name]
    wav = make_wav(40 * spec.hop_length + extra_samples, spec.sample_rate)
    actual = keras.ops.convert_to_numpy(MelSpectrogram(spec)(wav[None], by_clip))[0]
    expected = librosa_log_mel(wav, spec)
    assert actual.shape == expected.shape == (1 + len(wav) // spec.hop_length, spec.num_mels)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_mel_equals_the_reference(reference):
    dvae, voice = reference["dvae/wav_batch"][:, 0], reference["audio/ref1_22k"][None, : 4 * MODEL_SAMPLE_RATE]
    found = [MelSpectrogram(DVAE_MEL)(dvae), MelSpectrogram(CONDITIONING_MEL)(voice)]
    for actual, name in zip(found, ("dvae/mel", "cond/mel_4s")):
        np.testing.assert_allclose(actual / reference["mel_stats"], reference[name].transpose(0, 2, 1), atol=1e-4)
    actual = MelSpectrogram(SPEAKER_MEL)(reference["spk/audio16k"])
    np.testing.assert_allclose(actual, np.log(reference["spk/mel_power"] + 1e-6).transpose(0, 2, 1), atol=1e-4)


@pytest.mark.parametrize("by_clip", [False, True])
@pytest.mark.parametrize("name", ["dvae", "speaker"])
def test_graph_with_unknown_lengths_gives_the_eager_values(name, by_clip):
    spec = SPECS[name]
    wav_to_mel = MelSpectrogram(spec)
    in_graph = tf.function(lambda wav: wav_to_mel(wav, by_clip), input_signature=[tf.TensorSpec((None, None))])
    for num_samples in (5000, 6001, 90_000):
        wav = np.stack([make_wav(num_samples, spec.sample_rate, seed) for seed in range(2)])
        np.testing.assert_allclose(in_graph(wav), wav_to_mel(wav), atol=1e-5)


def test_silence_is_the_floor_and_mixed_precision_leaves_mel_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        mel = MelSpectrogram(DVAE_MEL)(np.zeros((1, 2048), "float32"))
    finally:
        keras.config.set_dtype_policy("float32")
    assert mel.dtype == "float32"
    np.testing.assert_allclose(mel, np.log(MEL_FLOOR), rtol=1e-6)


@pytest.mark.parametrize("from_rate, to_rate", RATES)
def test_noise_agrees_with_soxr_below_the_transition_band(from_rate, to_rate):
    wav = np.random.default_rng(0).standard_normal(from_rate // 4).astype("float32")
    ours = np.asarray(resample(wav[None], from_rate, to_rate))[0]
    theirs = soxr.resample(wav, from_rate, to_rate)
    length = min(len(ours), len(theirs))
    ours, theirs = (np.fft.rfft(signal[:length] * np.hanning(length)) for signal in (ours, theirs))
    passband = np.fft.rfftfreq(length, 1 / to_rate) < 0.35 * min(from_rate, to_rate)
    assert np.linalg.norm(ours[passband] - theirs[passband]) < 0.01 * np.linalg.norm(theirs[passband])


def test_downsampling_removes_what_would_fold_back():
    wav = np.sin(2 * np.pi * 7000 * np.arange(SPEAKER) / SPEAKER).astype("float32")
    assert np.abs(resample(wav[None], SPEAKER, 8000)[0, 100:-100]).max() < 0.01


@pytest.mark.parametrize("from_rate, to_rate", RATES)
@pytest.mark.parametrize("num_samples", [1, 999, 1000])
def test_resampled_length_is_rounded_up(from_rate, to_rate, num_samples):
    wav = np.ones((2, num_samples), "float32")
    assert resample(wav, from_rate, to_rate).shape == (2, -(-num_samples * to_rate // from_rate))


def test_graph_with_unknown_lengths_resamples_as_without_a_graph():
    in_graph = tf.function(lambda wav: resample(wav, MODEL, SPEAKER), input_signature=[tf.TensorSpec((None, None))])
    for num_samples in (1000, 1501):
        wav = np.random.default_rng(0).standard_normal((2, num_samples)).astype("float32")
        np.testing.assert_allclose(in_graph(wav), resample(wav, MODEL, SPEAKER), atol=1e-6)


@pytest.mark.skipif(not PARITY.is_dir(), reason="the reference arrays are not beside the repository")
@pytest.mark.parametrize(
    "source, from_rate, to_rate, expected",
    [
        ("audio/ref1_22k", MODEL, SPEAKER, "spk/audio16k"),
        ("audio/ref2_24k", DECODER, MODEL, "audio/ref2_resampled_22k"),
    ],
)
def test_resampled_clip_equals_the_reference(source, from_rate, to_rate, expected):
    with np.load(PARITY / "reference.npz") as arrays:
        np.testing.assert_allclose(resample(arrays[source][None], from_rate, to_rate), arrays[expected], atol=1e-5)


WAV_TO_MEL = MelSpectrogram(DVAE_MEL)


@pytest.fixture(scope="module")
def log_mel():
    """Returns one second of synthetic speech: pulses and noise through moving formants, with a pause."""
    random = np.random.default_rng(0)
    num_samples = 86 * DVAE_MEL.hop_length
    time = np.arange(num_samples) / DVAE_MEL.sample_rate
    pulses = np.diff(np.floor(np.cumsum(110 + 30 * np.sin(2 * np.pi * 2 * time)) / DVAE_MEL.sample_rate), prepend=0)
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
    np.testing.assert_array_equal(*(log_mel_to_wav(log_mel[:40], num_iterations=4) for _ in range(2)))
    return log_mel_to_wav(log_mel)


def error_of(wav, log_mel):
    return np.abs(mel_of(wav) - log_mel).mean()


def test_round_trip_is_closer_than_librosa(log_mel, wav):
    assert wav.dtype == np.float32 and wav.shape == ((len(log_mel) - 1) * DVAE_MEL.hop_length,)
    given = dict(sr=DVAE_MEL.sample_rate, n_fft=DVAE_MEL.n_fft, hop_length=DVAE_MEL.hop_length, fmax=DVAE_MEL.f_max)
    given |= dict(n_iter=60, htk=True, norm="slaney", pad_mode="reflect")
    by_librosa = librosa.feature.inverse.mel_to_audio(np.exp(log_mel.T), **given)
    assert error_of(wav, log_mel) < min(0.15, 0.5 * error_of(by_librosa, log_mel))


def test_short_wav_and_mel_with_nan_are_refused():
    with pytest.raises(ValueError, match="longer than half a window, 512 samples.*Received: 512"):
        MelSpectrogram(DVAE_MEL)(np.zeros((1, 512), "float32"))
    for shape, rule in {(10, 80): "be finite", (3, 80): "4 or more, 80", (10, 64): "shape", (80,): "shape"}.items():
        with pytest.raises(ValueError, match=rule):
            log_mel_to_wav(np.full(shape, np.nan, "float32"))
