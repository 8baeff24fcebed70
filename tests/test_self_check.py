"""The self-check: flagged sentences and their reasons, calibration, and retries."""

import re

import keras
import numpy as np
import pytest
from tiny import random_model, tiny_model_config, tiny_run_config, voiced

from myxtts.config.config import SamplingConfig
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import SpeechDataset
from myxtts.hearing.recognizers import Listening
from myxtts.inference import synthesizer as speaking
from myxtts.inference.code_engine import mark_text
from myxtts.inference.self_check import CODE_SECONDS, Calibration, Reading, SecondReading, features, judge
from myxtts.inference.speech import Speech, SpokenPiece, Verdict
from myxtts.models.xtts import XTTS
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.text.speech_rates import SPEECH_RATES, measure_rates, read_rates, rule_of_thumb
from myxtts.text.tokenizer import XTTSTokenizer

TEXT = "The quick brown fox jumps over the lazy dog near the old river bank."
ENGLISH = rule_of_thumb("en")


def good(seconds, seed=0):
    """Returns codes like those of fluent speech: some are repeated for up to half a second, and a pause lasts 1 s."""
    random = np.random.default_rng(seed)
    codes = np.repeat(random.integers(0, 1024, 400), random.integers(1, 11, 400) ** 2 // 9 + 1)
    codes = codes[: round(seconds / CODE_SECONDS)]
    if len(codes) > 60:
        codes[30:52] = 7
    return codes


def reading(places, tokens, gain=0.5, surprise=0.0, stop=-0.1):
    """Returns a `Reading` with attention at `places`; the default values of the other arguments cause no fault."""
    attention = np.full((len(places), tokens), 0.2 / (tokens - 1))
    attention[np.arange(len(places)), places] = 0.8
    logs = np.append(np.full(len(places), -1.0), stop)
    return Reading(attention, logs, logs - gain, -logs - surprise)


def test_fluent_sentences_are_not_flagged():
    doubted = [
        (text, seconds, seed)
        for text, seconds in ((TEXT, 3.0), (TEXT, 4.6), (TEXT, 8.0), ("Yes.", 0.4), ("Call 555 2368.", 4.0))
        for seed in range(20)
        if judge(text, good(seconds, seed), True, ENGLISH).doubts
    ]
    assert not doubted
    assert vars(judge("我们明天去北京看朋友", good(2.2), True, rule_of_thumb("zh"))) == vars(Verdict())


@pytest.mark.parametrize(
    "codes, stopped, words",
    [
        ([], True, "empty"),
        (good(4.6), False, "did not end"),
        (good(0.6), True, "lasts 0.6 s"),
        (good(25.0), True, "lasts 25.0 s"),
        ([*good(2.0), *[9] * 40], True, "repeats for 1."),
        ([*good(2.0), *np.tile(np.arange(12), 5)], True, "repeats for 2."),
        ([*good(1.0), *np.tile([3, 3, 4], 14), *good(1.0, 1)], True, "repeats for"),
    ],
)
def test_planted_faults_are_found_and_named(codes, stopped, words):
    verdict = judge(TEXT, codes, stopped, ENGLISH)
    assert any(words in doubt for doubt in verdict.doubts) and verdict.confidence < 0.5, verdict
    assert verdict.reason in verdict.doubts


STEADY = np.repeat(np.arange(20), 5)


@pytest.mark.parametrize(
    "read, words",
    [
        (reading(STEADY, 20), None),
        (reading(STEADY, 20, gain=0.0), "depends on the text"),
        (reading(STEADY, 20, surprise=3.0), "expects"),
        (reading(STEADY, 20, stop=-9.0), "cut off"),
        (reading([*STEADY, *[19] * 20], 20), "1.1 s after the text"),
        (reading(np.repeat(np.arange(10), 10), 20), "50 % of the text"),
        (reading(STEADY[::-1], 20), None),  # attention that does not follow texts says nothing
    ],
)
def test_second_pass_of_the_gpt_affects_the_confidence(read, words):
    verdict = judge(TEXT, good(4.6), True, ENGLISH, read)
    assert [words in doubt for doubt in verdict.doubts] == ([True] if words else []), verdict
    assert (verdict.confidence < 0.5) == bool(words)


def test_confidence_falls_gradually_and_low_confidence_has_a_reason():
    verdicts = [judge(TEXT, good(4.6), True, ENGLISH, None, share) for share in (0.0, 0.2, 0.3, 0.5, 0.9)]
    confidences = [verdict.confidence for verdict in verdicts]
    assert confidences[0] == 1 > confidences[1] > confidences[2] > 0.5 > confidences[3] > confidences[4] == 0
    assert [bool(one.doubts) for one in verdicts] == [bool(one.reason) for one in verdicts] == [False] * 3 + [True] * 2
    verdicts = [judge(TEXT, good(4.0), True, ENGLISH, unspoken_share=share) for share in (0.0, 0.03, 0.2)]
    assert verdicts[0].confidence == 1 and 0.5 < verdicts[1].confidence < 1 and not verdicts[1].doubts
    assert [doubt[:18] for doubt in verdicts[2].doubts] == ["20 % of the letter"]


def test_calibrated_confidence_is_a_probability_and_low_if_there_is_a_fault():
    calibration = Calibration(["en"], -2.0, {"evenness": 3.0, "sharpness": 2.0, "coverage": 1.0})
    clear, fault = reading(STEADY, 20), reading(STEADY, 20, stop=-9.0)
    verdict = judge(TEXT, good(4.6), True, ENGLISH, clear, calibration=calibration)
    evenness = np.corrcoef(clear.attention @ np.arange(20), np.arange(100))[0, 1]
    expected = 1 / (1 + np.exp(2 - 3 * evenness - 2 * 0.8 - 0.8))
    assert vars(verdict) == vars(Verdict(confidence=pytest.approx(expected, abs=0.005), is_calibrated=True))
    for limit in (expected - 0.1, expected + 0.1):
        doubts = judge(TEXT, good(4.6), True, ENGLISH, clear, calibration=calibration._replace(doubt=limit)).doubts
        assert bool(doubts) == (expected < limit)
    strict = judge(TEXT, good(4.6), True, ENGLISH, clear, calibration=calibration._replace(intercept=-9.0))
    assert strict.confidence < 0.5 and strict.doubts == (strict.reason,)
    assert judge(TEXT, good(4.6), True, ENGLISH, fault, calibration=calibration).confidence < 0.5


def test_improbable_codes_and_distorted_audio_are_flagged():
    logs = np.array([*[-1.0] * 40, *[-9.0] * 4, *[-1.0] * 40, -0.1])
    assert features(reading(STEADY, 20)._replace(logs=logs))["unlikely"] == pytest.approx(-5.0)
    found = [judge(TEXT, good(4.6), True, ENGLISH, distortion=distance) for distance in (0.6, 1.1, 1.4, np.nan)]
    assert [one.confidence for one in found] == [1, pytest.approx(0.62, abs=0.01), 0.25, 0]
    assert [bool(one.doubts) for one in found] == [False, False, True, True]


def test_only_a_calibrated_model_reports_a_number():
    verdicts = {}, dict(confidence=0.93, is_calibrated=True)
    pieces = [SpokenPiece("a", 0, 1, np.zeros(1), True, **verdict) for verdict in verdicts]
    plain, calibrated = (Speech(np.zeros(1), 24000, (piece,)).summary for piece in pieces)
    assert not re.search("[0-9]", plain) and "0.93" in calibrated
    found = Calibration.read(BASE_FOLDER)
    assert found.languages == ["en"] and found.weights.keys() == features(reading(STEADY, 20)).keys()
    assert Calibration.read(BASE_FOLDER / "gpt") is None


def test_recognizer_measures_the_character_error_rate():
    heard = Listening(lambda samples, sample_rate, language: f"two {len(samples)} {language}")
    assert heard(np.zeros(3), 24000, "Two 3 en!", "en") == 0
    assert heard(np.zeros(3), 24000, "two 3 at", "en") == 2 / len("two three at")


def test_second_reading_equals_single_passes():
    keras.utils.set_random_seed(0)
    config = tiny_model_config()
    gpt = XTTS(config, parts=("gpt",)).gpt
    random = np.random.default_rng(0)
    latents = random.standard_normal((1, config.num_latents, config.width)).astype("float32")
    ids, codes = [5, 6, 7, 8], random.integers(0, config.num_codes, 9)
    found = SecondReading(gpt, traced=False)(latents, ids, codes)

    def log_probabilities(ids):
        text = np.array([mark_text(ids, config)], "int32")
        audio = np.array([[config.start_audio_token, *codes]], "int32")
        logits = keras.ops.convert_to_numpy(gpt(latents, text, audio)[1])[0].astype("float64")
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    logs, without, targets = log_probabilities(ids), log_probabilities(ids[:1]), [*codes, config.stop_audio_token]
    own = logs[np.arange(10), targets]
    for part, expected in zip(found[1:], (own, without[np.arange(10), targets], -(np.exp(logs) * logs).sum(axis=-1))):
        np.testing.assert_allclose(part, expected, atol=1e-5)
    assert found.attention.shape == (9, 6)
    np.testing.assert_allclose(found.attention.sum(axis=1), 1, rtol=1e-5)


def test_rates_fit_the_recordings_and_their_band_contains_them():
    random = np.random.default_rng(0)
    clips = [("en", "a" * n, 0.4 + 0.06 * n * random.uniform(0.8, 1.3)) for n in random.integers(3, 90, 200)]
    rates = measure_rates([*clips, *[("fa", "سلام", 0.5)] * 5, ("en", "...", 3.0)])
    assert list(rates) == ["en"]  # five clips are too few
    rate = rates["en"]
    assert 0.055 < rate.letter_seconds < 0.07 and 0.2 < rate.pause_seconds < 0.6
    bands = [rate.band(text) for _, text, _ in clips]
    assert all(low < seconds < high for (_, _, seconds), (low, high) in zip(clips, bands))
    low, high = rate.band("a" * 50)
    assert low > 0.4 * 3.4 and high < 2 * 3.4
    assert rate.band("5")[1] > rate.band("a")[1]  # a digit takes a word
    assert min(measure_rates([("en", "one", 0.5)] * 30)["en"].band(text)[1] for text in ("one", "%")) > 0.5


def test_speech_rates_are_stored_with_the_weights_and_a_damaged_file_is_ignored(tmp_path, caplog):
    clips = [Utterance(str(n), "", "a" * n, "Ann", "en", num_samples=1000 * n) for n in range(5, 45)]
    tokenizer = XTTSTokenizer.train([("aa", "en")])
    needed = SpeechDataset(tiny_run_config(), clips, clips, tokenizer, ("Ann",), None).what_speaking_needs()
    assert needed["vocab.json"] == tokenizer.to_json().encode()
    assert read_rates(tmp_path) == {}
    store = CheckpointStore(tmp_path / "gpt", keep=5)
    store.write(1, {}, {}, copies={"vocab.json": b""})
    assert read_rates(tmp_path) == {}  # of a version that kept none
    store.write(2, {}, {}, copies=needed)
    (rate,) = read_rates(tmp_path).values()
    assert rate.letter_seconds == pytest.approx(1000 / 22050) and rate.pause_seconds == pytest.approx(0, abs=1e-9)
    assert not caplog.messages
    store.write(3, {}, {}, copies={**needed, SPEECH_RATES: b'{"en": {"letter_seconds": -1}}'})
    assert read_rates(tmp_path) == {} and "rule of thumb" in caplog.text


def test_flagged_sentence_is_sampled_again_and_the_highest_confidence_wins(without_griffin_lim, tokenizer, monkeypatch):
    model, config = random_model(tokenizer)
    synthesizer = speaking.Synthesizer(model, tokenizer, config, traced=False)
    voice, sampling, judged = synthesizer.voice(voiced(0.5, 150, 1)), SamplingConfig(), []

    def judge(text, codes, stopped, rate, reading, wrong_share, *rest):
        judged.append((list(codes), wrong_share))
        return verdicts.pop(0)

    monkeypatch.setattr("myxtts.inference.self_check.judge", judge)

    def speak(retries, listener=None):
        judged.clear()
        speech = synthesizer.batch(["one"], [voice], ["eng"], sampling, 3, 12, retries=retries, listener=listener)[0]
        return speech.codes.tolist(), speech.doubts, speech.confidence, speech.reason

    found = (0.9, "c", ()), (0.3, "b", ("b",)), (0.1, "a", ("a", "b"))
    fine, bad, worse = (Verdict(**dict(zip(("confidence", "reason", "doubts"), one))) for one in found)
    verdicts = [fine]
    first, *rest = speak(retries=3)
    assert rest == [{}, 0.9, ""] and judged == [(first, None)]
    verdicts = [worse, bad, worse]
    codes, *rest = speak(retries=2)
    assert judged[0][0] == first and codes == judged[1][0] != first and rest == [{"one": ("b",)}, 0.3, "b"]
    assert len(judged) == 3 and judged[2][0] != judged[1][0]
    verdicts = [worse, fine]
    assert speak(retries=5)[0] == judged[1][0] and len(judged) == 2
    # Results are reproducible, and the listener gets only sentences with audio.
    verdicts, heard = [worse, fine], []
    assert speak(5, lambda samples, *rest: heard.append((len(samples), *rest)) or 0.25)[0] == codes
    shares = [share for codes, share in judged if codes]
    assert len(heard) == len(shares) > 0 and set(shares) == {0.25}
    assert {one[1:] for one in heard} == {(synthesizer.sample_rate, "one", "en")}
