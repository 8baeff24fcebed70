"""The benchmark's judge of spoken digits: on tones it must tell apart, and on real recordings where they are there."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from utilities.benchmarks.digit_features import NUM_BINS, SAMPLE_RATE, WINDOW_FRAMES, power_spectrum
from utilities.benchmarks.digit_judge import DigitJudge, Verdict, load_recordings, main

RECORDINGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "fsdd"


def tone_clip(digit, speaker, index):
    """Three "digits" are resonances at different places, two "speakers" are pitches; `index` varies a little."""
    rng = np.random.default_rng(100 * digit + 10 * speaker + index)
    seconds = np.arange(int(SAMPLE_RATE * rng.uniform(0.25, 0.4))) / SAMPLE_RATE
    pitch_hz = (100, 330)[speaker] * rng.uniform(0.97, 1.03)
    formant_hz = (500, 1200, 2400)[digit]
    harmonics = np.arange(1, int(3800 / pitch_hz))
    gains = np.exp(-(((harmonics * pitch_hz - formant_hz) / 300) ** 2)) + 0.05
    waves = np.sin(2 * np.pi * pitch_hz * harmonics[:, None] * seconds)
    return (0.2 * gains @ waves).astype(np.float32)


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tones")
    (folder / "wavs").mkdir()
    for digit in range(3):
        for speaker, name in enumerate(("ann", "bob")):
            for index in range(10):
                path = folder / "wavs" / f"{digit}_{name}_{index}.wav"
                soundfile.write(path, tone_clip(digit, speaker, index) / 4, SAMPLE_RATE)
    return folder


@pytest.fixture(scope="module")
def tone_judge(tones):
    return DigitJudge.train(tones, indices=range(8), epochs=24)


def test_judge_names_digit_and_speaker_of_held_out_clips(tones, tone_judge):
    held_out = load_recordings(tones, indices=range(8, 10))
    verdicts = tone_judge.judge_batch([clip.samples for clip in held_out], SAMPLE_RATE)
    assert len(held_out) == 12
    assert [(verdict.digit, verdict.speaker) for verdict in verdicts] == [(c.digit, c.speaker) for c in held_out]
    assert all(0 < p <= 1 for verdict in verdicts for p in (verdict.digit_probability, verdict.speaker_probability))


def test_judge_forgives_rate_level_channels_and_silence_around(tones, tone_judge):
    for clip in load_recordings(tones, indices=[9]):
        samples = soxr.resample(np.pad(0.3 * clip.samples, 3000), SAMPLE_RATE, 22050)
        verdict = tone_judge.judge(np.stack([samples, samples], axis=1), 22050)
        assert (verdict.digit, verdict.speaker) == (clip.digit, clip.speaker)


def test_verdict_does_not_depend_on_the_batch(tones, tone_judge):
    clips = [clip.samples for clip in load_recordings(tones, indices=[9])]
    alone, together = tone_judge.judge(clips[0], SAMPLE_RATE), tone_judge.judge_batch(clips, SAMPLE_RATE)[0]
    assert alone[:2] == together[:2]
    np.testing.assert_allclose(alone[2:], together[2:], atol=1e-5)


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.zeros(8000, np.float32)], ids=["empty", "silent"])
def test_silence_is_no_digit(tones, tone_judge, samples):
    clip = tone_clip(1, 1, 9)
    verdicts = tone_judge.judge_batch([samples, clip], SAMPLE_RATE)
    assert verdicts[0] == Verdict(None, None, 0.0, 0.0)
    assert verdicts[1].digit == 1


def test_nan_is_refused(tone_judge):
    with pytest.raises(ValueError, match="finite"):
        tone_judge.judge(np.array([0.0, np.nan]), SAMPLE_RATE)


def test_saved_judge_hears_the_same(tones, tone_judge, tmp_path):
    tone_judge.save(tmp_path)
    loaded = DigitJudge.load(tmp_path)
    clips = [clip.samples for clip in load_recordings(tones, indices=[8])]
    assert loaded.judge_batch(clips, SAMPLE_RATE) == tone_judge.judge_batch(clips, SAMPLE_RATE)


def test_one_seed_trains_one_judge_which_is_reused_for_its_own_settings_only(tones, tmp_path, monkeypatch):
    clip = tone_clip(0, 0, 9)
    settings = {"indices": [0, 1], "epochs": 1}
    first = DigitJudge.load_or_train(tones, tmp_path, seed=3, **settings).judge(clip, SAMPLE_RATE)
    assert DigitJudge.train(tones, seed=3, **settings).judge(clip, SAMPLE_RATE) == first

    trained = []
    monkeypatch.setattr(DigitJudge, "train", lambda _, seed, **__: trained.append(seed) or DigitJudge.load(tmp_path))
    assert DigitJudge.load_or_train(tones, tmp_path, seed=3, **settings).judge(clip, SAMPLE_RATE) == first
    assert trained == []
    DigitJudge.load_or_train(tones, tmp_path, seed=4, **settings)
    assert trained == [4]


def test_speakers_and_indices_choose_recordings(tones):
    chosen = load_recordings(tones, speakers=["bob"], indices=[4, 5])
    assert [(clip.digit, clip.speaker) for clip in chosen] == [(d, "bob") for d in range(3) for _ in range(2)]


def test_folder_without_recordings_is_named(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="wavs/DIGIT_SPEAKER_INDEX.wav"):
        load_recordings(tmp_path)
    assert main(["--data", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_spectrum_of_a_long_clip_is_its_most_energetic_window():
    samples = np.random.default_rng(0).normal(0, 0.01, 3 * SAMPLE_RATE).astype(np.float32)
    samples[2 * SAMPLE_RATE : 2 * SAMPLE_RATE + 4000] *= 20
    power = power_spectrum(samples)
    assert power.shape == (WINDOW_FRAMES, NUM_BINS)
    loud = power.sum(axis=1) > power.sum(axis=1).max() / 10
    assert loud.sum() >= 48


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs shared/data/fsdd beside the repository")
def test_short_training_on_real_digits_generalizes():
    speakers = ["george", "lucas"]
    judge = DigitJudge.train(RECORDINGS, speakers=speakers, indices=range(15, 31), epochs=8)
    held_out = load_recordings(RECORDINGS, speakers=speakers, indices=range(10, 13))
    verdicts = judge.judge_batch([clip.samples for clip in held_out], SAMPLE_RATE)
    assert np.mean([v.digit == c.digit for v, c in zip(verdicts, held_out, strict=True)]) > 0.7
    assert np.mean([v.speaker == c.speaker for v, c in zip(verdicts, held_out, strict=True)]) > 0.9
