"""Mel spectrograms against librosa and against the reference's recorded arrays."""

from pathlib import Path

import keras
import librosa
import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.mel import CONDITIONING_MEL, DVAE_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.config.rates import MEL_FLOOR, MODEL_SAMPLE_RATE

PARITY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "parity"
SPECS = {"dvae": DVAE_MEL, "conditioning": CONDITIONING_MEL, "speaker": SPEAKER_MEL}


@pytest.fixture(scope="module")
def reference():
    if not PARITY.is_dir():
        pytest.skip("the reference arrays are not beside the repository")
    with np.load(PARITY / "reference.npz") as arrays:
        groups = ("audio", "cond", "dvae", "mel_stats", "spk")
        return {name: arrays[name] for name in arrays.files if name.split("/")[0] in groups}


def make_wav(num_samples, sample_rate, seed=0):
    """A gliding harmonic tone over noise: every band sounds at all times."""
    time = np.arange(num_samples) / sample_rate
    phase = 2 * np.pi * (120 * time + 60 * time**2)
    tone = sum(np.sin(k * phase) / k for k in range(1, 20))
    noise = np.random.default_rng(seed).standard_normal(num_samples)
    return (0.1 * tone + 0.02 * noise).astype("float32")


def librosa_log_mel(wav, spec):
    if spec.preemphasis:
        wav = wav - spec.preemphasis * np.concatenate([wav[1:2], wav[:-1]])
    power = librosa.feature.melspectrogram(
        y=wav,
        sr=spec.sample_rate,
        n_fft=spec.n_fft,
        win_length=spec.win_length,
        hop_length=spec.hop_length,
        window=spec.window,
        n_mels=spec.num_mels,
        fmax=spec.f_max,
        htk=True,
        norm=spec.filter_norm,
        pad_mode="reflect",
    )
    return np.log(np.maximum(power, spec.log_floor) + spec.log_offset).T


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("extra_samples, in_chunks", [(0, False), (77, False), (77, True)])
def test_log_mel_equals_librosa(name, extra_samples, in_chunks):
    spec = SPECS[name]
    wav = make_wav(40 * spec.hop_length + extra_samples, spec.sample_rate)
    actual = keras.ops.convert_to_numpy(MelSpectrogram(spec)(wav[None], in_chunks))[0]
    expected = librosa_log_mel(wav, spec)
    assert actual.shape == expected.shape == (spec.num_frames(len(wav)), spec.num_mels)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_dvae_mel_equals_the_reference(reference):
    actual = MelSpectrogram(DVAE_MEL)(reference["dvae/wav_batch"][:, 0]) / reference["mel_stats"]
    np.testing.assert_allclose(actual, reference["dvae/mel"].transpose(0, 2, 1), atol=1e-4)


def test_conditioning_mel_equals_the_reference(reference):
    wav = reference["audio/ref1_22k"][None, : 4 * MODEL_SAMPLE_RATE]
    actual = MelSpectrogram(CONDITIONING_MEL)(wav) / reference["mel_stats"]
    np.testing.assert_allclose(actual, reference["cond/mel_4s"].transpose(0, 2, 1), atol=1e-4)


def test_speaker_mel_equals_the_reference(reference):
    actual = MelSpectrogram(SPEAKER_MEL)(reference["spk/audio16k"])
    expected = np.log(reference["spk/mel_power"] + 1e-6).transpose(0, 2, 1)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("name", ["dvae", "speaker"])
def test_graph_with_unknown_lengths_gives_the_eager_values(name, in_chunks):
    spec = SPECS[name]
    wav_to_mel = MelSpectrogram(spec)
    in_graph = tf.function(
        lambda wav: wav_to_mel(wav, in_chunks), input_signature=[tf.TensorSpec((None, None), tf.float32)]
    )
    for num_samples in (5000, 6001, 90_000):
        wav = np.stack([make_wav(num_samples, spec.sample_rate, seed) for seed in range(2)])
        np.testing.assert_allclose(in_graph(wav), wav_to_mel(wav), atol=1e-5)


def test_mixed_precision_leaves_mel_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        mel = MelSpectrogram(DVAE_MEL)(make_wav(4096, MODEL_SAMPLE_RATE)[None])
    finally:
        keras.config.set_dtype_policy("float32")
    assert mel.dtype == "float32"


def test_silence_is_the_floor():
    mel = MelSpectrogram(DVAE_MEL)(np.zeros((1, 2048), "float32"))
    np.testing.assert_allclose(mel, np.log(MEL_FLOOR), rtol=1e-6)


def test_clip_shorter_than_half_a_window_is_refused():
    with pytest.raises(ValueError, match="longer than half a window, 512 samples.*Received: 512"):
        MelSpectrogram(DVAE_MEL)(np.zeros((1, 512), "float32"))
