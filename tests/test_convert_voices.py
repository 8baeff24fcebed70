"""Words in voices that never said them: the two ways of converting, and the command as a whole with its recogniser."""

import numpy as np
import pytest
import soundfile

from myxtts.audio.files import load_samples
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram
from myxtts.cli import convert_voices
from myxtts.config.config import MODEL_SAMPLE_RATE
from myxtts.data.corpora import load_corpus
from myxtts.data.voice_conversion import VoiceConverter
from tiny import make_tiny_corpus, voiced

WORDS = {"red": (0.0, 1.5), "green": (1.5, 3.0), "blue": (3.0, 0.0)}
"""Each with the colours of its two sounds, as `voiced` takes them; every sound is in two words."""
PITCH_HZ = {"low": 110.0, "high": 220.0}
TAKES = 6
MISSING = ("high", "blue")


def take(word, voice, number):
    """A recording of a word; no two have the same length."""
    seconds = 0.2 + 0.01 * number + 0.01 * list(WORDS).index(word)
    return np.concatenate([voiced(seconds, PITCH_HZ[voice] * (1 + 0.01 * number), colour, seed=number)
                           for colour in WORDS[word]])


def make_word_corpus(folder, missing=MISSING):
    """Six recordings of three words in two voices, without one word in one voice."""
    (folder / "wavs").mkdir(parents=True)
    lines = ["audio_file|text|speaker_name"]
    for word in WORDS:
        for voice in PITCH_HZ:
            for number in range(0 if (voice, word) == missing else TAKES):
                name = f"wavs/{voice}_{word}_{number}.wav"
                soundfile.write(folder / name, take(word, voice, number), MODEL_SAMPLE_RATE, subtype="PCM_16")
                lines.append(f"{name}|{word}|{voice}")
        if missing == MISSING and word == MISSING[1]:  # of a word there must be ten
            for number in range(TAKES, 2 * TAKES):
                name = f"wavs/low_{word}_{number}.wav"
                soundfile.write(folder / name, take(word, "low", number), MODEL_SAMPLE_RATE, subtype="PCM_16")
                lines.append(f"{name}|{word}|low")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch):
    monkeypatch.setattr("myxtts.training.word_recognizer._LEAST_STEPS", 120)


@pytest.fixture(scope="module")
def mels():
    """Log-mels of every word in every voice: `{(voice, word): [(F, 80), ...]}`."""
    extractor = MelSpectrogram(DVAE_MEL)
    return {(voice, word): [np.asarray(extractor(take(word, voice, number)[None]))[0] for number in range(TAKES)]
            for voice in PITCH_HZ for word in WORDS}


def by_voice(mels):
    return {voice: [mel for (v, _), clips in mels.items() if v == voice for mel in clips] for voice in PITCH_HZ}


def test_shifted_recordings_have_the_other_voices_mean_and_spread(mels):
    voices = by_voice(mels)
    converter = VoiceConverter(voices)
    shifted = np.concatenate([converter.convert(mel, "low", "high")["shifted"] for mel in voices["low"]])
    expected = np.concatenate(voices["high"])
    np.testing.assert_allclose(shifted.mean(axis=0), expected.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(shifted.std(axis=0), expected.std(axis=0), atol=1e-3)


def test_nearest_frames_are_the_other_voices_and_of_the_same_sound(mels):
    voices = by_voice({pair: clips for pair, clips in mels.items() if pair != MISSING})
    converter = VoiceConverter(voices)
    frames = np.concatenate(voices["high"])
    for word in ("red", "green"):
        mel = mels["low", word][0]
        found = converter.convert(mel, "low", "high")
        assert found["nearest"].shape == found["shifted"].shape == mel.shape
        np.testing.assert_allclose(found["between"], (found["shifted"] + found["nearest"]) / 2)
        assert (found["nearest"] >= frames.min(axis=0) - 1e-4).all()
        assert (found["nearest"] <= frames.max(axis=0) + 1e-4).all()
        first = found["nearest"][4:12].mean(axis=0)
        others = {other: np.mean([clip[4:12].mean(axis=0) for clip in mels["high", other]], axis=0) for other in WORDS}
        distances = {other: np.linalg.norm(first - mean) for other, mean in others.items()}
        assert min(distances, key=distances.get) == word


def test_command_gives_a_voice_the_word_that_it_never_says(tmp_path, capsys):
    given = make_word_corpus(tmp_path / "given")
    before = {path: path.read_bytes() for path in given.rglob("*.*")}
    output = tmp_path / "whole"
    assert convert_voices.main(["--train-data", str(given), "--output", str(output), "--clips", "5"]) == 0
    said = capsys.readouterr().out
    assert "is right in word and voice on 100.0% of 3 recordings" in said
    assert "high, blue: of 12 recordings" in said and f"--train-data {output}" in said
    assert {path: path.read_bytes() for path in given.rglob("*.*")} == before
    corpus = load_corpus(output)
    assert not corpus.rejections
    made = [one for one in corpus.utterances if one.wav_path.name.startswith("made_")]
    assert 1 <= len(made) <= 5 and {(one.speaker, one.text) for one in made} == {MISSING}
    assert len(corpus.utterances) == 5 * TAKES + TAKES + len(made)
    for one in made:
        samples = load_samples(one.wav_path, MODEL_SAMPLE_RATE)
        assert 0.3 < len(samples) / MODEL_SAMPLE_RATE < 1.0 and np.abs(samples).max() > 0.01
    assert {path.name for path in tmp_path.iterdir()} == {"given", "whole"}
    assert len((output / "source_clips.csv").read_text(encoding="utf-8").splitlines()) > 36


def test_sets_that_cannot_be_completed_are_refused_with_the_reason(tmp_path, capsys):
    def refusal(folder, output="new"):
        assert convert_voices.main(["--train-data", str(folder), "--output", str(tmp_path / output)]) == 2
        return capsys.readouterr().err

    sentences = make_tiny_corpus(tmp_path / "sentences")  # each word twice
    assert "0 of 6 texts recorded so often" in refusal(sentences)
    assert "all voices say all 3 words" in refusal(make_word_corpus(tmp_path / "complete", missing=None))
    assert "exists; name another" in refusal(sentences, "complete")
    assert "never written to" in refusal(sentences, "sentences/new")
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert not (tmp_path / "new").exists()
