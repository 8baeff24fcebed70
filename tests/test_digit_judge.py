"""The benchmark's judge of spoken digits: on glides it must tell apart, and on real recordings where they are there."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from tiny import untraced

from myxtts.audio.griffin_lim import log_mel_to_wav
from myxtts.config.rates import MEL_FLOOR, MODEL_SAMPLE_RATE
from utilities.benchmarks.digit_checks import (
    joined_halves,
    low_passed,
    noisy,
    part,
    quantized,
    shares,
    without_fricatives,
)
from utilities.benchmarks.digit_checks import main as check
from utilities.benchmarks.digit_damage import NO_WORD, UNSCORED, Clip, Damage
from utilities.benchmarks.digit_features import NUM_BINS, SAMPLE_RATE, WINDOW_FRAMES, power_spectrum
from utilities.benchmarks.digit_judge import DigitJudge, Verdict, load_recordings, log_mel, main

RECORDINGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "fsdd"


GLIDES_HZ = ((500, 1300), (1300, 2600), (2600, 500))


def tone_clip(digit, speaker, index):
    """Three "digits" are resonances that glide, two "speakers" are pitches; `index` varies a little."""
    rng = np.random.default_rng(100 * digit + 10 * speaker + index)
    seconds = np.arange(int(SAMPLE_RATE * rng.uniform(0.3, 0.4))) / SAMPLE_RATE
    pitch_hz = (100, 250)[speaker] * rng.uniform(0.97, 1.03)
    formant_hz = np.interp(seconds / seconds[-1], (0.35, 0.65), GLIDES_HZ[digit])
    harmonics_hz = pitch_hz * np.arange(1, int(3800 / pitch_hz))[:, None]
    gains = np.exp(-(((harmonics_hz - formant_hz) / 300) ** 2)) + 0.03
    return (0.2 * (gains * np.sin(2 * np.pi * harmonics_hz * seconds)).sum(axis=0)).astype(np.float32)


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tones")
    (folder / "wavs").mkdir()
    for digit in range(3):
        for speaker, name in enumerate(("ann", "bob")):
            for index in range(16):
                path = folder / "wavs" / f"{digit}_{name}_{index}.wav"
                soundfile.write(path, tone_clip(digit, speaker, index) / 4, SAMPLE_RATE)
    return folder


@pytest.fixture(scope="module")
def tone_judge(tones):
    return DigitJudge.train(tones, indices=range(12), epochs=16)


@pytest.fixture(scope="module")
def held_out(tones):
    return load_recordings(tones, indices=range(12, 16))


def test_judge_names_digit_and_speaker_of_held_out_clips(tone_judge, held_out):
    verdicts = tone_judge.judge_batch([clip.samples for clip in held_out], SAMPLE_RATE)
    assert len(held_out) == 24
    assert [(verdict.digit, verdict.speaker) for verdict in verdicts] == [(c.digit, c.speaker) for c in held_out]
    assert all(0 < p <= 1 for verdict in verdicts for p in (verdict.digit_probability, verdict.speaker_probability))


def test_judge_forgives_rate_level_channels_and_silence_around(tones, tone_judge):
    for clip in load_recordings(tones, indices=[13]):
        samples = soxr.resample(np.pad(0.3 * clip.samples, 3000), SAMPLE_RATE, 22050)
        verdict = tone_judge.judge(np.stack([samples, samples], axis=1), 22050)
        assert (verdict.digit, verdict.speaker) == (clip.digit, clip.speaker)


def test_verdict_does_not_depend_on_the_batch(tones, tone_judge):
    clips = [clip.samples for clip in load_recordings(tones, indices=[13])]
    alone, together = tone_judge.judge(clips[0], SAMPLE_RATE), tone_judge.judge_batch(clips, SAMPLE_RATE)[0]
    assert alone[:2] == together[:2]
    np.testing.assert_allclose(alone[2:], together[2:], atol=1e-5)


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.zeros(8000, np.float32)], ids=["empty", "silent"])
def test_silence_is_no_digit(tones, tone_judge, samples):
    clip = tone_clip(1, 1, 13)
    verdicts = tone_judge.judge_batch([samples, clip], SAMPLE_RATE)
    assert verdicts[0] == Verdict(None, None, 0.0, 0.0)
    assert verdicts[1].digit == 1


def test_spoilt_words_and_noise_are_no_words(tone_judge, held_out):
    rng = np.random.default_rng(0)
    joined = joined_halves(held_out, rng)
    noise = [rng.normal(0, 0.1, 3000).astype(np.float32) for _ in range(10)]
    for clips in (joined, [clip.samples[::-1] for clip in held_out], noise):
        verdicts = tone_judge.judge_batch(clips, SAMPLE_RATE)
        assert np.mean([verdict.digit is None for verdict in verdicts]) > 0.8
    assert np.mean([verdict.speaker is None for verdict in verdicts]) > 0.8


def test_voice_played_higher_is_nobodys(tone_judge, held_out):
    higher = [soxr.resample(clip.samples, SAMPLE_RATE * 2 ** (5 / 12), SAMPLE_RATE) for clip in held_out]
    verdicts = tone_judge.judge_batch(higher, SAMPLE_RATE)
    assert np.mean([heard.speaker == said.speaker for heard, said in zip(verdicts, held_out, strict=True)]) < 0.3


def test_figures_fall_as_noise_rises(tone_judge, held_out):
    rng = np.random.default_rng(0)
    right = []
    for snr_db in (30, 0, -20):
        clips = [noisy(clip.samples, snr_db, rng) for clip in held_out]
        right.append(shares(tone_judge.judge_batch(clips, SAMPLE_RATE), held_out)["digits"])
    assert right[0] > 0.9 and right[0] > right[1] >= right[2] and right[2] < 0.2


def test_copies_through_mel_and_griffin_lim_are_understood(tone_judge, held_out):
    chosen = held_out[::2]  # two of each digit and speaker
    copies = [log_mel_to_wav(log_mel(clip.samples)) for clip in chosen]
    assert shares(tone_judge.judge_batch(copies, MODEL_SAMPLE_RATE), chosen)["digits"] > 0.8


def test_damage_to_speech_does_what_it_says():
    seconds = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
    low, high = np.sin(2 * np.pi * 300 * seconds), np.sin(2 * np.pi * 3000 * seconds)
    word = np.concatenate([low, high]).astype(np.float32)
    assert np.abs(low_passed(word, 1000)[5000:7000]).max() < 0.01
    assert np.abs(part(word, 0, 0.4) - word[: len(part(word, 0, 0.4))]).max() == 0
    mel = log_mel(0.3 * word)
    silenced = without_fricatives(mel)
    sounds = mel.max(axis=1) > mel.max() - 5
    np.testing.assert_array_equal(silenced[sounds][:20], mel[sounds][:20])
    assert silenced[sounds][-20:].max() == pytest.approx(np.log(MEL_FLOOR))
    codebook = np.array([[0.0] * 80, [-9.0] * 80])
    assert np.unique(quantized([np.full((4, 80), -8.0)], codebook)[0]) == [-9]


@pytest.mark.parametrize("kind", [kind.__name__ for _, kind in Damage([], 0, np.random.default_rng(0)).kinds])
def test_damage_keeps_shape_and_says_what_is_lost(tones, kind):
    clips = [Clip(power_spectrum(c.samples), c.digit, int(c.speaker == "bob")) for c in load_recordings(tones)]
    damage = Damage(clips, 2, np.random.default_rng(1))
    for clip in clips[::7]:
        power, word, voice = getattr(damage, kind)(clip)
        assert 0 < len(power) <= WINDOW_FRAMES and power.shape[1] == NUM_BINS
        assert np.isfinite(power).all() and (power >= 0).all() and power.max() > 0
        assert word in (NO_WORD, UNSCORED) and voice in (UNSCORED, clip.voice, 0, 1, 2)
        assert (word, voice) != (UNSCORED, UNSCORED)


def test_nan_is_refused(tone_judge):
    with pytest.raises(ValueError, match="finite"):
        tone_judge.judge(np.array([0.0, np.nan]), SAMPLE_RATE)


def test_saved_judge_hears_the_same(tones, tone_judge, tmp_path):
    tone_judge.save(tmp_path)
    loaded = DigitJudge.load(tmp_path)
    clips = [clip.samples for clip in load_recordings(tones, indices=[8])]
    assert loaded.judge_batch(clips, SAMPLE_RATE) == tone_judge.judge_batch(clips, SAMPLE_RATE)


def test_one_seed_trains_one_judge_which_is_reused_for_its_own_settings_only(tones, tmp_path, monkeypatch):
    clip = tone_clip(0, 0, 13)
    settings = {"indices": [0, 1], "epochs": 1}
    with untraced():
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
    for command in (main, check):
        assert command(["--data", str(tmp_path), *(["some.wav"] if command is main else [])]) == 2
        assert str(tmp_path) in capsys.readouterr().err


def test_spectrum_of_a_long_clip_is_its_most_energetic_window():
    samples = np.random.default_rng(0).normal(0, 0.01, 3 * SAMPLE_RATE).astype(np.float32)
    samples[2 * SAMPLE_RATE : 2 * SAMPLE_RATE + 4000] *= 20
    power = power_spectrum(samples)
    assert power.shape == (WINDOW_FRAMES, NUM_BINS)
    loud = power.sum(axis=1) > power.sum(axis=1).max() / 10
    assert loud.sum() >= 48


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs shared/data/fsdd beside the repository")
def test_real_six_loses_its_s_and_keeps_its_vowel():
    sixes = load_recordings(RECORDINGS, speakers=["george"], indices=range(15, 20))[30:35]
    clips = [Clip(power_spectrum(six.samples), six.digit, 0) for six in sixes]
    damage = Damage(clips, 1, np.random.default_rng(0))
    silenced = 0
    for clip in clips:
        power, word, _ = damage.without_sibilants(clip)
        assert (clip.word, word) == (6, NO_WORD)
        if len(power) < len(clip.power):
            continue  # its s is too weak to be found: a truncated word instead
        before, after = clip.power.sum(axis=1), power.sum(axis=1)
        lost = after < 0.02 * before
        assert 5 <= lost.sum() < 0.8 * len(lost) and not lost[before.argmax()]
        silenced += 1
    assert silenced > 0
