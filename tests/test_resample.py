"""Resampling against the reference's arrays, against tones computed directly, and against soxr."""

from pathlib import Path

import numpy as np
import pytest
import soxr
import tensorflow as tf

from myxtts.audio.mel import num_resampled, resample
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE

PARITY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "parity"
MODEL, DECODER, SPEAKER = MODEL_SAMPLE_RATE, DECODER_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
RATES = [(MODEL, SPEAKER), (DECODER, MODEL), (48000, MODEL), (8000, MODEL), (MODEL, DECODER), (SPEAKER, 8000)]


@pytest.mark.parametrize("from_rate, to_rate", RATES)
def test_noise_agrees_with_soxr_below_the_transition_band(from_rate, to_rate):
    wav = np.random.default_rng(0).standard_normal(from_rate // 4).astype("float32")
    ours = np.asarray(resample(wav[None], from_rate, to_rate))[0]
    theirs = soxr.resample(wav, from_rate, to_rate)
    length = min(len(ours), len(theirs))
    window = np.hanning(length)
    ours, theirs = (np.fft.rfft(signal[:length] * window) for signal in (ours, theirs))
    passband = np.fft.rfftfreq(length, 1 / to_rate) < 0.35 * min(from_rate, to_rate)
    error = np.linalg.norm(ours[passband] - theirs[passband]) / np.linalg.norm(theirs[passband])
    assert error < 0.01


def test_downsampling_removes_what_would_fold_back():
    wav = np.sin(2 * np.pi * 7000 * np.arange(SPEAKER) / SPEAKER).astype("float32")
    assert np.abs(resample(wav[None], SPEAKER, 8000)[0, 100:-100]).max() < 0.01


@pytest.mark.parametrize("from_rate, to_rate", RATES)
@pytest.mark.parametrize("num_samples", [1, 999, 1000])
def test_length_is_rounded_up(from_rate, to_rate, num_samples):
    wav = np.ones((2, num_samples), "float32")
    expected = -(-num_samples * to_rate // from_rate)
    assert resample(wav, from_rate, to_rate).shape == (2, expected)
    assert num_resampled(num_samples, from_rate, to_rate) == expected


def test_graph_with_unknown_lengths_gives_the_eager_values():
    in_graph = tf.function(
        lambda wav: resample(wav, MODEL, SPEAKER), input_signature=[tf.TensorSpec((None, None), tf.float32)]
    )
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
        actual = resample(arrays[source][None], from_rate, to_rate)
        np.testing.assert_allclose(actual, arrays[expected], atol=1e-5)
