"""Which sentences are doubted, and what is done about it."""

import keras
import numpy as np
import pytest
from tiny import WORDS, tiny_run_config, voiced

from myxtts.config.config import SamplingConfig
from myxtts.inference import synthesizer as speaking
from myxtts.inference.self_check import CODE_SECONDS, doubts
from myxtts.models.xtts import XTTS
from myxtts.text.tokenizer import XTTSTokenizer

TEXT = "The quick brown fox jumps over the lazy dog near the old river bank."


def good(seconds, seed=0):
    """Codes of a fluent sentence: changing, with sounds held for up to half a second and one pause of a second."""
    random = np.random.default_rng(seed)
    codes = np.repeat(random.integers(0, 1024, 400), random.integers(1, 11, 400) ** 2 // 9 + 1)
    codes = codes[: round(seconds / CODE_SECONDS)]
    if len(codes) > 60:
        codes[30:52] = 7
    return codes


def test_fluent_sentences_are_not_doubted():
    doubted = [
        (text, seconds, seed)
        for text, seconds in ((TEXT, 3.0), (TEXT, 4.6), (TEXT, 8.0), ("Yes.", 0.4), ("Call 555 2368.", 4.0))
        for seed in range(20)
        if doubts(text, "en", good(seconds, seed), True)
    ]
    assert not doubted
    assert not doubts("我们明天去北京看朋友", "zh", good(2.2), True)


@pytest.mark.parametrize(
    "codes, stopped, words",
    [
        ([], True, "empty"),
        (good(4.6), False, "did not end by itself within"),
        (good(0.6), True, "lasts 0.6 s"),
        (good(25.0), True, "lasts 25.0 s"),
        ([*good(2.0), *[9] * 40], True, "repeats itself for 1."),
        ([*good(2.0), *np.tile(np.arange(12), 5)], True, "repeats itself for 2."),
        ([*good(1.0), *np.tile([3, 3, 4], 14), *good(1.0, 1)], True, "repeats itself for"),
    ],
)
def test_planted_faults_are_found_and_named(codes, stopped, words):
    assert any(words in doubt for doubt in doubts(TEXT, "en", codes, stopped)), doubts(TEXT, "en", codes, stopped)


def test_doubtful_sentence_is_drawn_anew_and_the_least_doubtful_stays(without_griffin_lim, monkeypatch):
    keras.utils.set_random_seed(0)
    tokenizer = XTTSTokenizer.train([(f"{word}.", "en") for word in WORDS])
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens})
    synthesizer = speaking.Synthesizer(XTTS(config.model), tokenizer, config)
    voice, sampling, judged = synthesizer.voice(voiced(0.5, 150, 1)), SamplingConfig(), []

    def judge(text, language, codes, stopped):
        judged.append(list(codes))
        return verdicts.pop(0)

    monkeypatch.setattr(speaking, "doubts", judge)

    def speak(retries):
        judged.clear()
        speech = synthesizer.batch(["one"], [voice], ["en"], sampling, 3, 12, retries=retries)[0]
        return speech.codes.tolist(), speech.doubts

    verdicts = [()]
    first, why = speak(retries=3)
    assert why == {} and judged == [first]
    verdicts = [("a", "b"), ("c",), ("d",)]
    codes, why = speak(retries=2)
    assert judged[0] == first and codes == judged[1] != first and why == {"one": ("c",)}
    assert len(judged) == 3 and judged[2] != judged[1]
    verdicts = [("a",), ()]
    assert speak(retries=5) == (judged[1], {}) and len(judged) == 2
    # The same every time.
    verdicts = [("a",), ()]
    assert speak(retries=5)[0] == codes
