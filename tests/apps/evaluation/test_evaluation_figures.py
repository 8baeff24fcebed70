"""Metrics equal independent computations and rank damaged speech correctly; coverage of confidence intervals."""

import zlib
from types import SimpleNamespace
from unittest.mock import patch

import librosa
import numpy as np
import pytest
import scipy.fft
from tiny import voiced

from myxtts.apps.evaluation import comparison as statistics
from myxtts.config.checks import UserError
from myxtts.hearing import networks
from myxtts.hearing.measuring import HOP_SAMPLES, contour_of, differences, pitch_figures, repeated_groups
from myxtts.hearing.networks import DNSMOS, DVector
from myxtts.hearing.recognizers import Whisper, at_rate, recognition_errors
from myxtts.interchange.coqui.torch_checkpoint import write_torch_checkpoint

RATE = 22050


def sentence(words, pitch_hz, seed=0):
    """Returns a buzz with another timbre for each of the `words` (numbers up to 3), and gaps between them."""
    parts = []
    for place, word in enumerate(words):
        parts += [voiced(0.22, pitch_hz * (1 - 0.03 * place), word, seed=seed + place), np.zeros(RATE // 25)]
    return np.concatenate(parts).astype(np.float32)


def noisy(samples, snr_db, seed=0):
    noise = np.random.default_rng(seed).standard_normal(len(samples))
    return (samples + noise * np.sqrt(np.mean(samples**2)) * 10 ** (-snr_db / 20)).astype(np.float32)


def test_mel_cepstral_distortion_equals_librosas_mel_and_alignment():
    spoken, recorded = sentence([0, 3, 1], 120), noisy(sentence([0, 2, 1], 130, seed=9), 20)
    sounds = []
    for samples in (spoken, recorded):
        mel = librosa.feature.melspectrogram(
            y=samples, sr=RATE, n_fft=1024, hop_length=HOP_SAMPLES, n_mels=80, fmax=8000, htk=True, pad_mode="reflect"
        )
        amplitude = 0.5 * np.log(np.maximum(mel, 1e-5))
        edges = librosa.effects.trim(samples, top_db=40, frame_length=2 * HOP_SAMPLES, hop_length=HOP_SAMPLES)[1]
        first, end = edges[0] // HOP_SAMPLES, -(-edges[1] // HOP_SAMPLES)
        sounds.append(scipy.fft.dct(amplitude, axis=0)[1:25, first:end] / 80)
    total, path = librosa.sequence.dtw(*sounds, metric="euclidean")
    expected = 10 * np.sqrt(2) / np.log(10) * total[-1, -1] / len(path)
    assert differences(contour_of(spoken, RATE), contour_of(recorded, RATE))[0] == pytest.approx(expected, rel=0.03)


def test_pitch_equals_the_pitch_of_the_buzz():
    hertz = 110 * 2 ** (0.5 * np.sin(2 * np.pi * np.arange(RATE) / RATE))
    samples = sum(np.sin(k * 2 * np.pi * np.cumsum(hertz) / RATE) / k for k in range(1, 12)) * 0.1
    samples = np.concatenate([samples, 0.01 * np.random.default_rng(0).standard_normal(RATE // 2)]).astype(np.float32)
    found = contour_of(samples, RATE).f0
    voiced_frames = slice(3, RATE // HOP_SAMPLES - 3)
    truth = hertz[np.arange(len(found))[voiced_frames] * HOP_SAMPLES]
    assert np.abs(12 * np.log2(found[voiced_frames] / truth)).max() < 0.2
    assert (found[RATE // HOP_SAMPLES + 5 :] > 0).mean() < 0.35  # of noise


def test_figures_fall_as_speech_gets_worse():
    words, pitch_hz = [0, 2.4, 1.2, 0.6, 1.8, 2.4], 120
    recorded = contour_of(sentence(words, pitch_hz), RATE)
    sounds = {
        "copy": noisy(sentence(words, pitch_hz, seed=1), 25),
        "trained": noisy(sentence(words, pitch_hz * 1.05, seed=2), 18),
        "noise": noisy(sentence(words, pitch_hz, seed=3), 0),
        "shuffled": noisy(sentence([2.4, 0.6, 0, 1.8, 2.4, 1.2], pitch_hz, seed=4), 18),
        "other voice": noisy(sentence([0.5 + word for word in words], 1.8 * pitch_hz, seed=5), 18),
        "truncated": noisy(sentence(words[:3], pitch_hz, seed=6), 18),
    }
    heard = {name: contour_of(samples, RATE) for name, samples in sounds.items()}
    found = {name: differences(contour, recorded) for name, contour in heard.items()}
    assert differences(recorded, recorded) == (0, 0)
    assert 0 < found["copy"][0] < found["trained"][0]
    for broken in ("noise", "shuffled", "other voice", "truncated"):
        assert found[broken][0] > 1.2 * found["trained"][0], broken
    assert found["copy"][1] < found["trained"][1] < 1.5 < found["other voice"][1]
    assert heard["truncated"].seconds < 0.6 * recorded.seconds < 0.65 * heard["trained"].seconds
    assert pitch_figures(heard["other voice"])[0] > 1.5 * pitch_figures(recorded)[0]


def test_silence_has_figures():
    silent = contour_of(np.zeros(RATE // 2, np.float32), RATE)
    assert silent.seconds < 0.02 and pitch_figures(silent) == (None, None, (0, 1))
    assert differences(silent, contour_of(sentence([0, 3], 120), RATE))[0] > 3
    assert len(contour_of(np.zeros(1, np.float32), RATE).cepstra) == 1


def test_longest_pause_is_inside_the_speech():
    word, gap = sentence([2], 120), lambda seconds: np.zeros(int(seconds * RATE), np.float32)
    contour = contour_of(np.concatenate([gap(1.5), word, gap(1.2), word, gap(2)]), RATE)
    assert contour.longest_pause == pytest.approx(1.24, abs=0.06)


def test_texts_are_compared_as_spoken():
    assert recognition_errors("Dr. Who has 3 dogs!", "doctor who has three dogs", "en")["cer"] == (0, 25)
    assert recognition_errors("It's a cat.", "its a hat", "en")["wer"] == (1, 3)
    assert recognition_errors("kitten", "sitting", "en")["cer"] == (3, 6)
    assert recognition_errors("سلام", "سلم", "fa")["cer"][0] == 1
    assert recognition_errors("کِتاب‌ها را می‌خواند، ۹", "کتاب ها را میخواند نه", "fa")["wer"][0] == 0
    assert recognition_errors("one two", "", "en")["wer"] == (2, 2)
    assert recognition_errors("ዓለም ሠላም", "አለም ሰላም", "am")["wer"] == (0, 2)
    assert recognition_errors("مسألهٔ خانهٔ ما", "مساله خانه ما", "fa")["wer"] == (0, 3)
    assert recognition_errors("आप कैसे हैं? ❤️", "आप कसा है", "hi")["cer"] == (3, 11), "vowel signs are parts of words"
    pytest.importorskip("cutlet")  # of the extra "languages", as is pypinyin
    assert recognition_errors("你好，世界。", "你好世界", "zh-cn")["wer"] == (0, 4)
    assert recognition_errors("１,２３４", "千二百三十四", "ja")["cer"][0] == 0


def test_dnsmos_is_the_mean_over_a_whole_clip():
    dnsmos = DNSMOS.__new__(DNSMOS)
    dnsmos._session = SimpleNamespace(run=lambda _, inputs: [inputs["input_1"][:, [0, 0, 0]]])
    expected = np.mean([networks.TO_SCORES["signal"](start) for start in (0, 0.1, 0.2)])
    assert dnsmos(np.arange(200000, dtype="float32") / 160000, 16000)["signal"] == pytest.approx(expected, abs=1e-5)


def test_repeated_groups_of_codes():
    assert repeated_groups(np.arange(10)) == (0, 7)
    assert repeated_groups(np.tile([1, 2, 3, 4], 3)) == (5, 9)


def planted_sentences(kind, generator, count):
    """Returns sums and sizes for sentences that are spoken three times, with error rates that differ by sentence."""
    if kind == "share":
        return generator.binomial(3, generator.beta(0.2, 5, count)).astype(float), np.full(count, 3.0)
    size = 3.0 * generator.integers(20, 90, count)
    return generator.binomial(size.astype(int), generator.beta(2, 18, count)).astype(float), size


@pytest.mark.parametrize("kind, truth", [("ratio", 0.1), ("share", 0.2 / 5.2)])
def test_interval_has_its_nominal_coverage(monkeypatch, kind, truth):
    monkeypatch.setattr(statistics, "RESAMPLES", 500)
    found = [getattr(statistics, kind)(*planted_sentences(kind, np.random.default_rng([n, 5]), 30)) for n in range(300)]
    assert 0.91 <= np.mean([one.low <= truth <= one.high for one in found]) <= 0.99


def test_paired_difference_has_its_nominal_coverage(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 500)
    generator, held = np.random.default_rng(0), []
    for _ in range(150):
        share = generator.beta(2, 8, 30)
        size = generator.integers(20, 90, 30).astype(float)
        first = generator.binomial(size.astype(int), share).astype(float), size
        second = generator.binomial(size.astype(int), 0.8 * share).astype(float), size
        found = statistics.ratio_difference(first, second)
        held.append(found.low <= -0.04 <= found.high)
    assert 0.89 <= np.mean(held) <= 0.99


def test_share_without_failures_has_an_interval():
    none = statistics.share(np.zeros(30), np.full(30, 3.0))
    assert none.low == 0 and 0.1 < none.high < 0.13  # of 30 independent trials (Clopper and Pearson)
    assert statistics.share_difference((np.zeros(30), np.ones(30)), (np.zeros(30), np.ones(30))).high > 0.1
    assert statistics.ratio(np.array([2.0]), np.array([4.0])) == (0.5, None, None)


def test_speaker_encoder_is_keras_lstm_and_librosas_mel(monkeypatch, tmp_path):
    import keras

    generator = np.random.default_rng(0)
    layers, ours = [], {}
    for i, width in enumerate((40, 6, 6)):
        w, u = generator.standard_normal((24, width)) * 0.2, generator.standard_normal((24, 6)) * 0.2
        b = generator.standard_normal(24) * 0.1
        ours |= {f"lstm.weight_ih_l{i}": w, f"lstm.weight_hh_l{i}": u}
        ours |= {f"lstm.bias_ih_l{i}": 0.75 * b, f"lstm.bias_hh_l{i}": 0.25 * b}
        layer = keras.layers.LSTM(6, return_sequences=True)
        layer.build((None, None, width))
        layer.set_weights([w.T, u.T, b])  # both have the gates in this order: input, forget, cell, output
        layers.append(layer)
    projection = generator.standard_normal((5, 6)).astype(np.float32), generator.random(5).astype(np.float32)
    ours |= {"linear.weight": projection[0], "linear.bias": projection[1]}
    state = {name: values.astype(np.float32) for name, values in ours.items()}
    write_torch_checkpoint(tmp_path / "pretrained.pt", {"model_state": state})
    encoder = DVector(tmp_path / "pretrained.pt")
    samples = at_rate(sentence([0, 4, 2, 5], 140), RATE)[:20000]  # shorter than one part of 1.6 s
    samples *= 10 ** (-30 / 20) / np.sqrt(np.mean(samples**2))  # as loud as the encoder wants it
    padded = np.pad(samples, (0, 160 * 160 - len(samples)))
    x = librosa.feature.melspectrogram(y=padded, sr=16000, n_fft=400, hop_length=160, n_mels=40).T[None, :160]
    for layer in layers:
        x = layer(x)
    expected = np.maximum(np.array(x)[0, -1] @ projection[0].T + projection[1], 0)
    assert encoder(samples, 16000) == pytest.approx(expected / np.linalg.norm(expected), abs=2e-4)
    several = generator.random((5, 20, 40)).astype(np.float32)
    whole = encoder.embed(several)
    monkeypatch.setattr(networks, "_ROWS", 2)
    monkeypatch.setattr(networks, "_COLUMNS", 5)
    np.testing.assert_allclose(encoder.embed(several), whole, atol=1e-6)
    with patch("builtins.__import__", side_effect=RuntimeError), pytest.raises(UserError, match="NUMBA_CACHE_DIR"):
        contour_of(samples, 16000)


class LoopingModel:
    """Replaces faster-whisper's model; it loops unless repetition is forbidden."""

    model, supported_languages = SimpleNamespace(is_multilingual=True), ["en"]

    def transcribe(self, samples, no_repeat_ngram_size=0, **options):
        text = "a cup of tea" if no_repeat_ngram_size else "papa, " * 60
        ratio = len(text) / len(zlib.compress(text.encode()))
        return iter([SimpleNamespace(text=text, compression_ratio=ratio, avg_logprob=-0.5, words=())]), None


def test_looping_recognizer_decodes_again_without_repetition():
    whisper = Whisper.__new__(Whisper)
    whisper._model, whisper._beam_size = LoopingModel(), 1
    assert whisper(np.zeros(16000, np.float32), 16000, "en") == "a cup of tea"
    assert whisper.scored(np.zeros(16000, np.float32), 16000, "en")[1] == pytest.approx(np.exp(-0.5))
