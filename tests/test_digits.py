"""The digits benchmark: what it trains on, what its recognizer answers, and what its figures count."""

import numpy as np
import pytest

from myxtts.audio.encoding import write_audio
from utilities.benchmarks.digit_recognizer import DigitRecognizer
from utilities.benchmarks.digits import HELD_OUT_INDICES, training_folder

RATE = 22050


def tone(digit, number, seconds=0.4):
    """A tone whose pitch glides, in a way of its own for each digit."""
    rng, time = np.random.default_rng(number), np.arange(int(seconds * RATE)) / RATE
    pitch = 300 + 250 * digit + (200 if digit % 2 else -200) * time / seconds + rng.normal(0, 10)
    return (0.4 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * np.hanning(len(time))).astype(np.float32)


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tones")
    (folder / "wavs").mkdir()
    for digit in range(4):
        for index in range(24):
            write_audio(folder / "wavs" / f"{digit}_ann_{index}.wav", tone(digit, 100 * digit + index), RATE)
    return folder


@pytest.fixture(scope="module")
def recognizer(tones):
    return DigitRecognizer.train(tones, range(20), epochs=12)


def test_recognizer_names_held_out_digits_and_no_word_in_noise_or_silence(recognizer):
    clips = [tone(digit, 900 + digit) for digit in range(4)]
    assert recognizer(clips, RATE) == [0, 1, 2, 3]
    noise = [np.random.default_rng(seed).normal(0, 0.1, RATE // 2) for seed in range(4)]
    assert sum(heard is None for heard in recognizer([*noise, np.zeros(RATE)], RATE)) >= 4


def test_training_folder_leaves_out_what_is_scored(tmp_path):
    data = tmp_path / "fsdd"
    (data / "wavs").mkdir(parents=True)
    clips = ["3_theo_10", "3_theo_20", "4_theo_20"]
    for clip in clips:
        write_audio(data / "wavs" / f"{clip}.wav", tone(1, 1), RATE)
    (data / "metadata.csv").write_text("".join(f"{clip}|three|three\n" for clip in clips))
    (data / "speakers.csv").write_text("id,speaker\n" + "".join(f"{clip},theo\n" for clip in clips))
    folder = training_folder(data, tmp_path)
    assert {path.stem for path in (folder / "wavs").iterdir()} == set(clips[1:])
    assert (folder / "metadata.csv").read_text() == "".join(f"{clip}|three|three\n" for clip in clips[1:])
    assert (folder / "speakers.csv").read_text().splitlines()[0] == "id,speaker" and 10 in HELD_OUT_INDICES
