"""Augmentation: its effect on audio, and that it is a function of seed and position."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.audio.augment import SPEED_RANGE, change_speed, change_speed_of_loop, disturb, draw_change, limit_speed
from myxtts.config.rates import MODEL_SAMPLE_RATE, NUM_MELS


def tone(hz, num_samples, padded):
    samples = np.sin(2 * np.pi * hz * np.arange(num_samples) / MODEL_SAMPLE_RATE)
    return np.pad(samples, (0, padded - num_samples)).astype(np.float32)


def strongest_hz(samples):
    return np.abs(np.fft.rfft(samples * np.hanning(len(samples)))).argmax() * MODEL_SAMPLE_RATE / len(samples)


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


def test_loop_continues_from_its_start():
    loop = tone(MODEL_SAMPLE_RATE / 64, 4096, 4096)[None]  # a whole number of periods: it has no seam
    played = change_speed_of_loop(tf.constant(loop), tf.constant([1.25])).numpy()[0]
    np.testing.assert_allclose(played, np.sin(2 * np.pi * 1.25 * np.arange(4096) / 64), atol=5e-3)


def test_change_is_a_function_of_seed_and_position_and_none_if_switched_off():
    first, again, other = (draw_change(64, NUM_MELS, 3, position, True) for position in (5, 5, 6))
    np.testing.assert_array_equal(first.offset, again.offset)
    assert np.abs(first.speed - other.speed).min() > 0
    assert np.abs(np.log(first.speed)).max() <= SPEED_RANGE + 1e-6
    assert len(set(first.speed.numpy().tolist())) == 64
    change = draw_change(4, NUM_MELS, 0, 0, False)
    assert (change.speed.numpy() == 1.0).all() and not change.offset.numpy().any()


def test_rows_of_a_worker_equal_those_of_one_process():
    wav = (0.1 * np.random.default_rng(0).standard_normal((4, 8003))).astype(np.float32)
    parts = [disturb(wav[2 * part : 2 * part + 2], 7, 3, (part, 2)) for part in range(2)]
    # Some processors' kernels sum in another order for another number of rows: differences of 1.5e-7 were seen.
    np.testing.assert_allclose(np.concatenate(parts), disturb(wav, 7, 3), rtol=0, atol=3e-7)
    speeds = [draw_change(2, NUM_MELS, 7, 3, True, (part, 8)).speed for part in range(8)]
    np.testing.assert_array_equal(np.concatenate(speeds), draw_change(16, NUM_MELS, 7, 3, True).speed)
