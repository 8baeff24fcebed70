"""Signs that a sentence went wrong: a model may loop, babble, skip, break off or not end.

Rules look for faults. Each gives a score: 1 where nothing speaks against the sentence, 0.5 where it is as likely wrong
as right, 0 for nonsense; the values at which a score is 1 and 0.5 were set on half of a planted set, see
docs/benchmarks.md. Where a model has a `Calibration`, the confidence is the estimated probability that a speech
recognizer understands the sentence, see docs/base.md.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.inference.code_engine import mark_text
from myxtts.models.gpt import GPT
from myxtts.storage.files import read_json
from myxtts.text.speech_rates import SpeechRate

NUM_TAGS = 1
"""Ids at the beginning of a text that name its language, and stay where the text is left out."""
CODE_SECONDS = CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE
LOOP_CODES, LOOP_TURNS, LONGEST_LOOP = 32, 4, 24
"""Codes (1.5 s) and turns from which a repetition is no held sound or pause, and the longest period looked for."""
DOUBT = 0.5
"""Confidence below which a sentence is flagged."""
CONFIDENCE_FILE = "confidence.json"
"""File in a model's folder with its `Calibration`."""
BEYOND_BAND = 1.0, 1.05
"""Where the score of a duration is 1 and 0.5, as a multiple of the longest usual one or of the shortest one over it."""
LEAST_SHARPNESS, LEAST_EVENNESS = 0.5, 0.5
"""Of attention that follows the text at all. In a model that was not trained to it says nothing."""
Listener = Callable[[np.ndarray, int, str, str], float]
"""Samples `(S,)`, their rate in Hz, text and language -> share of the text's characters that is not understood."""


class Reading(NamedTuple):
    """The GPT's second reading of a sentence with C codes and L text tokens, marks included."""

    attention: np.ndarray
    """`(C, L)`, a distribution over start, text and stop for each code: the first head of the block that goes through
    the text most evenly. Guided attention trains that head of the middle block; in a model trained without it, another
    block may follow the text better."""
    logs: np.ndarray
    """`(C + 1,)` log-probabilities of the codes and of stopping after them."""
    without: np.ndarray
    """`(C + 1,)` the same without the text."""
    entropy: np.ndarray
    """`(C + 1,)` in nats, of the distributions that `logs` are from."""

    @property
    def gain(self) -> float:
        """By how many nats a code is likelier with the text than without it, on average."""
        return float((self.logs - self.without)[:-1].mean())

    @property
    def surprise(self) -> float:
        """By how many nats codes and stop are less likely than the GPT expects of its own samples, on average."""
        return float(-(self.logs + self.entropy).mean())


class Calibration(NamedTuple):
    """Logistic regression from the `features` of a sentence to the probability that a recognizer understands it.

    `utilities/base/calibrate_confidence.py` fits it for the bundled model. It holds for the weights that it was fitted
    on and for languages that the recognizer understands, so that other models and languages have none.
    """

    languages: list[str]
    """Codes of the languages that it holds for."""
    intercept: float
    weights: dict[str, float]
    """By name of a feature."""

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """The one of the model in `folder`; None where it was never calibrated."""
        path = Path(folder) / CONFIDENCE_FILE
        return cls(**read_json(path)) if path.is_file() else None

    def __call__(self, found: dict[str, float]) -> float:
        """Probability from 0.01 to 0.99, of a sentence with these `features`."""
        total = self.intercept + sum(weight * found[name] for name, weight in self.weights.items())
        return round(float(np.clip(1 / (1 + np.exp(-total)), 0.01, 0.99)), 2)


def features(reading: Reading) -> dict[str, float]:
    """What a `Calibration` goes by: how evenly and how sharply the attention follows the text, and its share seen."""
    attention = reading.attention
    evenness, sharpness = _evenness(attention), attention.max(axis=1).mean()
    coverage = attention[:, 1:-1].max(axis=0).mean() if attention.shape[1] > 2 else 0.0
    return {"evenness": float(evenness), "sharpness": float(sharpness), "coverage": float(coverage)}


class Verdict(NamedTuple):
    """What the checks say of a sentence."""

    confidence: float
    """0 to 1: the probability that a recognizer understands it where the model is calibrated, else the lowest score."""
    reason: str = ""
    """What lowers it most, where it is below `DOUBT`."""
    doubts: tuple[str, ...] = ()
    """What speaks against the sentence, each a phrase; none for one that seems right."""
    is_calibrated: bool = False
    """Whether the confidence is a probability."""


def judge(
    text: str,
    codes: Sequence[int],
    stopped: bool,
    rate: SpeechRate,
    reading: Reading | None = None,
    wrong_share: float | None = None,
    unspoken_share: float = 0.0,
    calibration: Calibration | None = None,
) -> Verdict:
    """What the checks say of a sentence.

    Args:
        codes: `(C,)`, without the stop code.
        stopped: Whether it ended by itself.
        rate: How long texts in its language take.
        reading: What the GPT says of it; None leaves these checks out.
        wrong_share: What a `Listener` says of it; None where there is none.
        unspoken_share: Of its letters, those that the model has no token for.
        calibration: Makes the confidence a probability; needs the reading.
    """
    if not len(codes):
        return Verdict(0.0, "it is empty", ("it is empty",))
    found = [_duration(text, len(codes) * CODE_SECONDS, rate)]
    if not stopped:
        found.append((0.2, f"it did not end by itself within {len(codes)} codes"))
    if (loop := longest_loop(np.asarray(codes))) >= LOOP_CODES:
        found.append((0.1, f"it repeats itself for {loop * CODE_SECONDS:.1f} s"))
    if reading is not None:
        found += _as_read(reading, stopped)
    if unspoken_share:
        lacking = f"{100 * unspoken_share:.0f} % of its letters are not in the vocabulary"
        found.append((_score(unspoken_share, 0.0, 0.1), lacking))
    if wrong_share is not None:
        heard = f"{100 * wrong_share:.0f} % of its characters are understood otherwise"
        found.append((_score(wrong_share, 0.1, 0.35), heard))
    if calibration is not None:
        found = [
            (calibration(features(reading)), "a listener may not understand it"),
            *(one for one in found if one[0] < DOUBT),
        ]
    confidence, reason = min(found)
    doubts = tuple(phrase for score, phrase in found if score < DOUBT)
    return Verdict(confidence, reason if doubts else "", doubts, calibration is not None)


def _duration(text, seconds, rate):
    least, most = rate.band(text)
    beyond = max(seconds / most, least / seconds)
    return _score(beyond, *BEYOND_BAND), f"it lasts {seconds:.1f} s, where {least:.1f} to {most:.1f} s are usual"


def _as_read(reading, stopped):
    yield _score(reading.gain, 0.3, 0.13), "its sounds hardly depend on the text"
    yield _score(reading.surprise, 0.6, 1.4), "its sounds are not what the model expects"
    if stopped:
        yield _score(reading.logs[-1], -1.5, -4.0), "it breaks off"
    tokens = reading.attention.shape[1]
    if not follows_text(reading.attention):
        return
    place = furthest_place(reading.attention)
    tail = (np.count_nonzero(place == place[-1]) - 1) * CODE_SECONDS
    yield _score(tail, 0.5, 0.75), f"it goes on for {tail:.1f} s after its text"
    unread = (tokens - 1 - place[-1]) / tokens if place[-1] < tokens - 3 else 0.0
    yield _score(unread, 0.1, 0.25), f"{100 * unread:.0f} % of its text is not read at the end"


def follows_text(attention: np.ndarray) -> bool:
    """Whether each code looks at few tokens and later codes at later ones."""
    is_sharp = len(attention) >= 3 and attention.max(axis=1).mean() >= LEAST_SHARPNESS
    return is_sharp and _evenness(attention) >= LEAST_EVENNESS


def furthest_place(attention: np.ndarray) -> np.ndarray:
    """`(C,)`: the furthest token that was looked at most up to each code; a lone code that looks ahead is left out."""
    top = np.pad(attention.argmax(axis=1), 1, mode="edge")
    return np.maximum.accumulate(np.median([top[:-2], top[1:-1], top[2:]], axis=0)).astype(int)


def _score(value, full, half):
    """1 up to `full`, 0.5 at `half`, linear in between and beyond, and at least 0."""
    return round(float(np.clip(1 - 0.5 * (value - full) / (half - full), 0, 1)), 2)


def longest_loop(codes: np.ndarray) -> int:
    """Codes of the longest segment that repeats the period before it, `LOOP_TURNS` times or more."""
    longest = 0
    for period in range(1, min(LONGEST_LOOP, len(codes) // LOOP_TURNS) + 1):
        same = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        ends = np.flatnonzero(np.diff(same.astype(int)))
        stretches = ends[1::2] - ends[::2] + period
        longest = max(longest, *(length for length in stretches if length >= LOOP_TURNS * period), 0)
    return int(longest)


class SecondReading:
    """Makes the `Reading` of sentences; `traced` is as in `Synthesizer`."""

    def __init__(self, gpt: GPT, traced: bool = True):
        self.gpt, self._read = gpt, self._pass
        if traced:
            latents = tf.TensorSpec([1, None, gpt.config.width], tf.float32)
            tokens = tf.TensorSpec([1, None], tf.int32)
            self._read = tf.function(self._pass, input_signature=[latents, tokens, tokens], autograph=False)

    def __call__(self, latents: np.ndarray, ids: list[int], codes: np.ndarray) -> Reading:
        """Reads one sentence: its voice `(1, num_latents, width)`, text ids without marks, codes `(C,)`, C above 0."""
        config = self.gpt.config
        audio = np.array([[*codes, config.stop_audio_token]], np.int32)
        text, nothing = (np.array([mark_text(part, config)], np.int32) for part in (ids, ids[:NUM_TAGS]))
        logs, entropy, attention = self._read(latents, text, audio)
        without, _, _ = self._read(latents, nothing, audio)
        followed = max(attention.numpy()[:, :-1], key=_evenness)
        return Reading(followed, logs.numpy(), without.numpy(), entropy.numpy())

    def _pass(self, latents, text, audio):
        """`logs` and `entropy` of the `Reading`, and the attention of all blocks, `(N, C + 1, L)`."""
        gpt, seen = self.gpt, {}
        before = tf.concat([[[gpt.config.start_audio_token]], audio[:, :-1]], axis=1)
        hidden = gpt.hidden(latents, text, before, see_input=seen.__setitem__)[:, tf.shape(text)[1] :]
        logs = tf.nn.log_softmax(tf.cast(gpt.audio_head(hidden), tf.float32))[0]
        mask = tf.ones_like(text, tf.bool)
        attention = tf.concat([gpt.text_attention(number, x, mask) for number, x in seen.items()], axis=0)
        return tf.gather(logs, audio[0], batch_dims=1), -tf.reduce_sum(tf.exp(logs) * logs, axis=-1), attention


def _evenness(attention):
    """Correlation of time with the mean position of the attention `(C, L)` in the text."""
    place, time = attention @ np.arange(attention.shape[1]), np.arange(len(attention))
    spread = place.std() * time.std()
    return ((place - place.mean()) * (time - time.mean())).mean() / spread if spread > 1e-9 else 0.0
