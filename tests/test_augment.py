"""Changes of voice: what they do to sound, and that they are a function of seed and position."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.augment import (
    CHANGED_SHARE, GAIN_NEPERS, PITCH_RANGE, change_speed, change_speed_of_loop, draw_change, limit_speed, move_envelope,
)
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram

SAMPLE_RATE = 22050


def tone(hz, num_samples, padded):
    samples = np.sin(2 * np.pi * hz * np.arange(num_samples) / SAMPLE_RATE)
    return np.pad(samples, (0, padded - num_samples)).astype(np.float32)


def drawn(rows, seed, position, on=True):
    return draw_change(tf.fill([rows], 8000), 16384, DVAE_MEL, seed, position, on)


def strongest_hz(samples):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return spectrum.argmax() * SAMPLE_RATE / len(samples)


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.15])
def test_speed_moves_pitch_and_length_together(speed):
    wav = tone(440.0, 9000, 12288)[None]
    played, lengths = change_speed(tf.constant(wav), tf.constant([9000]), tf.constant([speed], tf.float32))
    length = int(lengths[0])
    assert abs(length - 9000 / speed) <= 1
    assert strongest_hz(played[0, :length].numpy()) == pytest.approx(440.0 * speed, abs=4.0)
    assert not played[0, length:].numpy().any()
    if speed == 1.0:
        np.testing.assert_allclose(played[0].numpy(), wav[0], atol=1e-6)


def test_slowed_clip_always_fits_its_room():
    speed = limit_speed(tf.constant([0.8, 0.8]), tf.constant([8000, 4000]), 8192)
    _, lengths = change_speed(tf.zeros((2, 8192)), tf.constant([8000, 4000]), speed)
    assert lengths.numpy().tolist() == [8192, 5000]


def test_loop_goes_on_from_its_start():
    loop = tone(SAMPLE_RATE / 64, 4096, 4096)[None]  # a whole number of periods: it has no seam
    played = change_speed_of_loop(tf.constant(loop), tf.constant([1.25])).numpy()[0]
    expected = np.sin(2 * np.pi * 1.25 * np.arange(4096) / 64)
    np.testing.assert_allclose(played, expected, atol=5e-3)


def test_change_is_a_function_of_seed_and_position():
    first, again, other = (drawn(64, 3, position) for position in (5, 5, 6))
    for one, same in zip(first, again):
        np.testing.assert_array_equal(one, same)
    assert (first.speed.numpy() != other.speed.numpy()).mean() > 0.5
    assert np.abs(np.log(first.speed)).max() <= PITCH_RANGE + 1e-6
    assert np.abs(2 * np.log(first.gain)).max() <= GAIN_NEPERS + 1e-6


def test_some_clips_stay_as_they_were_recorded():
    change = drawn(400, 0, 0)
    as_recorded = change.speed.numpy() == 1.0
    assert as_recorded.mean() == pytest.approx(1.0 - CHANGED_SHARE, abs=0.08)
    assert (change.gain.numpy()[as_recorded] == 1.0).all() and not change.offset.numpy()[as_recorded].any()


def test_switched_off_change_changes_nothing():
    change = drawn(4, 0, 0, on=False)
    assert (change.speed.numpy() == 1.0).all() and not change.offset.numpy().any()
    np.testing.assert_allclose(change.envelope.numpy(), np.broadcast_to(np.eye(80), (4, 80, 80)), atol=1e-5)


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_envelope_moves_formants_and_leaves_harmonics(factor):
    # A sawtooth of 150 Hz through one broad resonance: the resonance moves, the harmonics stay.
    time = np.arange(16384) / SAMPLE_RATE
    sawtooth = sum(np.sin(2 * np.pi * 150.0 * k * time) / (1 + ((150.0 * k - 1500.0) / 400.0) ** 2) for k in range(1, 50))
    log_mel = MelSpectrogram(DVAE_MEL)(sawtooth[None].astype(np.float32) * 0.1)[0, 8:-8].numpy().mean(axis=0)
    moved = log_mel @ move_envelope(tf.constant([factor]), DVAE_MEL).numpy()[0].T
    centre_hz = (DVAE_MEL.filterbank() * np.linspace(0, SAMPLE_RATE / 2, 513)[:, None]).sum(0) / DVAE_MEL.filterbank().sum(0)

    def resonance_hz(bands):
        weights = np.exp(bands) * (centre_hz > 600) * (centre_hz < 4000)
        return (weights * centre_hz).sum() / weights.sum()

    assert resonance_hz(moved) / resonance_hz(log_mel) == pytest.approx(factor, abs=0.06)
    low = slice(2, 16)  # harmonics are resolved there
    fine = [np.diff(bands[low]) for bands in (log_mel, moved)]
    assert np.corrcoef(*fine)[0, 1] > 0.95
