"""Self-check of spoken sentences: finds loops, babble, skipped words, early stops and missing stops.

Each rule returns a score from 1 (no fault) to 0 (certain fault). At a score of 0.5, a fault is as likely as no fault.
The confidence is the lowest score. The thresholds were tuned on half of a set of injected faults (docs/benchmarks.md).
If the model has a `Calibration`, scores of 0.5 or more are ignored, and the probability that a recognizer understands
the text is an additional score (docs/base.md).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.inference.advancing import maybe_traced
from myxtts.inference.code_engine import mark_text
from myxtts.inference.speech import Verdict
from myxtts.models.gpt import GPT
from myxtts.storage.files import read_json
from myxtts.storage.run_folder import CONFIDENCE_FILE
from myxtts.text.speech_rates import SpeechRate

CODE_SECONDS = CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE
LOOP_CODES, LOOP_TURNS, LONGEST_LOOP = 32, 4, 24
"""A loop is a group of at most `LONGEST_LOOP` codes that occurs `LOOP_TURNS` or more times in a row. A loop is a
fault if all its repeats together have `LOOP_CODES` codes (1.5 s) or more."""
DOUBT = 0.5
"""Score below which a check reports a fault; also the default of `Calibration.doubt`."""
BEYOND_BAND = 1.0, 1.05
"""Limits for an unusual duration. The duration divided by the usual maximum, or the usual minimum divided by the
duration, has a score of 1 up to the first limit, and of 0.5 at the second."""
DISTORTION = 0.8, 1.2
"""Values in nats of `Synthesizer.distortion`: the score is 1 up to the first value, and 0.5 at the second. The bundled
model has a distortion of 0.6. If noise is added to the weights of its decoder until a recognizer understands only half
of the sentences, the distortion is 1.4."""
UNLIKELY_CODES = 8
"""Window length in codes (0.4 s) for the feature `unlikely`: the mean log-probability of the least likely window."""
Listener = Callable[[np.ndarray, int, str, str], float]
"""Speech recognizer that scores audio: `(samples (S,), sample rate in Hz, text, language) -> CER`, 0 to 1."""


class Reading(NamedTuple):
    """Result of a second GPT pass over a finished sentence of C codes and L text tokens (L includes start and stop)."""

    attention: np.ndarray
    """`(C, L)` attention of codes to text tokens in the first head of one transformer block. This is the block whose
    attention moves most evenly through the text (the middle block if the training used guided attention)."""
    logs: np.ndarray
    """`(C + 1,)` log-probabilities of the codes and the stop code."""
    without: np.ndarray
    """`(C + 1,)` log-probabilities of the same codes if the text is only the language token."""
    entropy: np.ndarray
    """`(C + 1,)` entropies in nats of the distributions that the GPT predicts given the whole text."""


class Calibration(NamedTuple):
    """Logistic regression from the `features` of a sentence to the probability that a recognizer understands it.

    `utilities/base/calibrate_confidence.py` fits it to the bundled model. Other weights or languages need a new fit."""

    languages: list[str]
    intercept: float
    weights: dict[str, float]
    """Regression weights by name of the feature."""
    doubt: float = DOUBT
    """Probability below which a sentence is flagged."""

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """Loads the calibration of the model in `folder`; returns None if the folder contains no calibration."""
        path = Path(folder) / CONFIDENCE_FILE
        return cls(**read_json(path)) if path.is_file() else None

    def __call__(self, found: dict[str, float]) -> float:
        """Returns the probability, 0.01 to 0.99, that a recognizer understands a sentence with the features `found`."""
        total = self.intercept + sum(weight * found[name] for name, weight in self.weights.items())
        return round(float(np.clip(np.nan_to_num(1 / (1 + np.exp(-total))), 0.01, 0.99)), 2)


def features(reading: Reading) -> dict[str, float]:
    """Returns four features by name. `evenness` is the correlation of time and attended text position. `sharpness` is
    the maximum attention of each code, averaged over the codes. `coverage` is the maximum attention to each token,
    averaged over the tokens. `unlikely` is the lowest mean log-probability of `UNLIKELY_CODES` consecutive codes."""
    attention, logs = reading.attention, reading.logs[:-1]
    evenness, sharpness = _evenness(attention), attention.max(axis=1).mean()
    coverage = attention[:, 1:-1].max(axis=0).mean() if attention.shape[1] > 2 else 0.0
    length = min(UNLIKELY_CODES, len(logs))
    unlikely = np.convolve(logs, np.full(length, 1 / length), "valid").min()
    found = dict(evenness=evenness, sharpness=sharpness, coverage=coverage, unlikely=unlikely)
    return {name: float(value) for name, value in found.items()}


def judge(
    text: str,
    codes: Sequence[int],
    stopped: bool,
    rate: SpeechRate,
    reading: Reading | None = None,
    wrong_share: float | None = None,
    unspoken_share: float = 0.0,
    calibration: Calibration | None = None,
    distortion: float = 0.0,
) -> Verdict:
    """Checks a synthesized sentence for faults; returns its confidence and the causes of low confidence.

    Args:
        codes: `(C,)`, without the stop code.
        stopped: Whether the model predicted the stop code.
        rate: Speech rate of the language, which gives the usual duration.
        reading: Second pass of the GPT; None skips the checks that need it.
        wrong_share: CER, 0 to 1, measured by a `Listener`; None if no `Listener` is used.
        unspoken_share: Fraction of the letters of the text for which the model has no token.
        calibration: If given, scores of 0.5 or more are ignored, and the probability that a recognizer understands the
            sentence is one of the scores. Requires `reading`.
        distortion: Difference between the log-mels of the audio and of the codes (see `DISTORTION`).
    """
    if not len(codes):
        return Verdict(confidence=0.0, reason="empty", doubts=("empty",))
    seconds = len(codes) * CODE_SECONDS
    least, most = rate.band(text)
    beyond = _score(max(seconds / most, least / seconds), *BEYOND_BAND)
    found = [(beyond, f"lasts {seconds:.1f} s, usually {least:.1f} to {most:.1f} s")]
    found.append((_score(distortion, *DISTORTION), "the waveform decoder distorts the speech"))
    if not stopped:
        found.append((0.2, f"did not end within {len(codes)} codes"))
    if (loop := longest_loop(np.asarray(codes))) >= LOOP_CODES:
        found.append((0.1, f"repeats for {loop * CODE_SECONDS:.1f} s"))
    if reading is not None:
        found += _reading_scores(reading, stopped)
    if unspoken_share:
        lacking = f"{100 * unspoken_share:.0f} % of the letters are not in the vocabulary"
        found.append((_score(unspoken_share, 0.0, 0.1), lacking))
    if wrong_share is not None:
        found.append((_score(wrong_share, 0.1, 0.35), f"CER {100 * wrong_share:.0f} %"))
    doubts = [(score, phrase) for score, phrase in found if score < DOUBT]
    if calibration is not None:
        understood = (calibration(features(reading)), "may not be understood")
        found = [understood, *doubts]
        if understood[0] < calibration.doubt:
            doubts.insert(0, understood)
    reason = min(doubts)[1] if doubts else ""
    phrases = tuple(phrase for _, phrase in doubts)
    return Verdict(confidence=min(found)[0], reason=reason, doubts=phrases, is_calibrated=calibration is not None)


def _reading_scores(reading, stopped):
    gain = (reading.logs - reading.without)[:-1].mean()  # nats per code that the text adds to the log-likelihood
    yield _score(gain, 0.3, 0.13), "audio hardly depends on the text"
    surprise = -(reading.logs + reading.entropy).mean()  # negative log-likelihood minus its expectation, in nats
    yield _score(surprise, 0.6, 1.4), "audio is not what the model expects"
    if stopped:
        yield _score(reading.logs[-1], -1.5, -4.0), "may be cut off"
    attention, found, tokens = reading.attention, features(reading), reading.attention.shape[1]
    if len(attention) < 3 or min(found["evenness"], found["sharpness"]) < 0.5:  # attention does not follow the text
        return
    # The furthest token that each code or an earlier code attends to. The median removes single outliers.
    top = np.pad(attention.argmax(axis=1), 1, mode="edge")
    place = np.maximum.accumulate(np.median([top[:-2], top[1:-1], top[2:]], axis=0)).astype(int)
    tail = (np.count_nonzero(place == place[-1]) - 1) * CODE_SECONDS
    yield _score(tail, 0.5, 0.75), f"continues for {tail:.1f} s after the text"
    unread = (tokens - 1 - place[-1]) / tokens if place[-1] < tokens - 3 else 0.0
    yield _score(unread, 0.1, 0.25), f"last {100 * unread:.0f} % of the text may be missing"


def _score(value, full, half):
    """Maps a value linearly to a score from 0 to 1. `full` gives a score of 1, `half` a score of 0.5, and NaN 0."""
    return round(float(np.nan_to_num(np.clip(1 - 0.5 * (value - full) / (half - full), 0, 1))), 2)


def longest_loop(codes: np.ndarray) -> int:
    """Returns the length in codes of the longest loop in `codes` `(C,)`; 0 if there is none (see `LOOP_TURNS`)."""
    longest = 0
    for period in range(1, min(LONGEST_LOOP, len(codes) // LOOP_TURNS) + 1):
        same = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        ends = np.flatnonzero(np.diff(same.astype(int)))
        lengths = ends[1::2] - ends[::2] + period
        longest = max(longest, *(length for length in lengths if length >= LOOP_TURNS * period), 0)
    return int(longest)


class SecondReading:
    """Computes the `Reading` of a sentence with a second pass of the GPT, which runs as a graph if `traced` is true."""

    def __init__(self, gpt: GPT, traced: bool = True):
        latents, tokens = tf.TensorSpec([1, None, gpt.config.width]), tf.TensorSpec([1, None], tf.int32)
        self.gpt, self._read = gpt, maybe_traced(traced, self._pass, latents, tokens, tokens)

    def __call__(self, latents: np.ndarray, ids: list[int], codes: np.ndarray) -> Reading:
        """Returns the `Reading` of codes `(C,)`, C > 0, given latents `(1, num_latents, width)` and text `ids`.

        `ids` begins with the language token, and contains neither the start token nor the stop token.
        """
        config = self.gpt.config
        audio = np.array([[*codes, config.stop_audio_token]], np.int32)
        # The first id is the language token.
        text, nothing = (np.array([mark_text(part, config)], np.int32) for part in (ids, ids[:1]))
        logs, entropy, attention = self._read(latents, text, audio)
        without, _, _ = self._read(latents, nothing, audio)
        return Reading(max(attention.numpy()[:, :-1], key=_evenness), logs.numpy(), without.numpy(), entropy.numpy())

    def _pass(self, latents, text, audio):
        """Returns `logs` and `entropy` of a `Reading`, and the attention in all N blocks, `(N, C + 1, L)`."""
        gpt, seen = self.gpt, {}
        before = tf.concat([[[gpt.config.start_audio_token]], audio[:, :-1]], axis=1)
        hidden = gpt.hidden(latents, text, before, see_input=seen.__setitem__)[:, tf.shape(text)[1] :]
        logs = tf.nn.log_softmax(tf.cast(gpt.audio_head(hidden), tf.float32))[0]
        mask = tf.ones_like(text, tf.bool)
        attention = tf.concat([gpt.text_attention(number, x, mask) for number, x in seen.items()], axis=0)
        return tf.gather(logs, audio[0], batch_dims=1), -tf.reduce_sum(tf.exp(logs) * logs, axis=-1), attention


def _evenness(attention):
    """Returns the correlation between the code index and the mean attended text position. `attention` is `(C, L)`."""
    place, time = attention @ np.arange(attention.shape[1]), np.arange(len(attention))
    spread = place.std() * time.std()
    return ((place - place.mean()) * (time - time.mean())).mean() / spread if spread > 1e-9 else 0.0
