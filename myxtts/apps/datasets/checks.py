"""Quality checks of clips by measurements, speech recognition, speaker similarity and DNSMOS."""

import difflib
import json
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile

from myxtts.apps.datasets.recording import Survey
from myxtts.apps.datasets.texts import count_letters, one_line
from myxtts.config.checks import UserError
from myxtts.hearing.networks import unit
from myxtts.hearing.recognizers import Recognizer
from myxtts.inference.speech import Word
from myxtts.storage.files import append_line, digest_bytes
from myxtts.text.languages import LANGUAGES

_STEADY = "its level varies by only {:.1f} dB, like music or noise."
_DOUBTFUL_CONFIDENCE = 0.5  # geometric mean of token probabilities; Whisper itself rejects results below 0.37
_DOUBTFUL_WORD = 0.4  # flags 34 % of 90 natural clips; 81 % of the flagged clips have a wrong word (Whisper base)
_CERTAIN_LANGUAGE = 0.95  # probability; a speaker of VCTK with an accent was taken for Welsh with 0.6
_LEAST_DYNAMICS_DB = 12.0  # sentences of LJSpeech, VCTK and a German corpus have 18 or more


@dataclass
class ClipFacts:
    """Measurements that decide whether a clip is good enough for training."""

    speech_seconds: float
    """Duration of the speech without pauses."""
    level_db: float
    """Level of the speech in dBFS."""
    snr_db: float
    """Level of the speech relative to the pauses in and around the clip."""
    end_db: float
    """Level of the louder end (first or last 50 ms, or 10 ms at an end of the recording) relative to the speech."""
    end_over_noise_db: float
    """Level of the louder end, as for `end_db`, but relative to the pauses."""
    dynamics_db: float
    """Difference between the 90th and the 10th percentile of the level during speech."""
    characters_per_second: float
    """Letters and digits per second of speech."""
    dnsmos: float | None = None
    """Overall DNSMOS, 1 to 5; None if not requested."""
    voice_change: float | None = None
    """Lowest speaker similarity between the parts before and after any point of the clip; None if not measured."""
    word_probability: float = 1.0
    """The lowest probability that the recognizer gave to a word; 1 if it reports no probabilities."""


@dataclass
class Segment:
    """A part of a recording, samples `[start, end)`: a clip, dropped speech or a pause."""

    start: int
    end: int
    text: str = ""
    """Text of the segment; "" if it has no text or the text is unknown."""
    reason: str = ""
    """Why the segment is dropped, in a few words; "" for a clip."""
    detail: str = ""
    """Details of the reason, such as measured values, or why the text of a clip may be wrong; "" if there are none."""
    facts: ClipFacts | None = None
    """Measurements; None for a pause and for speech that was not selected for a clip."""
    clip: str = ""
    """Path of the clip within the data set; "" if the segment is not a clip."""
    validation: bool = False
    """Whether the clip is held out for validation."""

    def drop(self, reason: str, detail: str) -> None:
        """Marks the clip as dropped, with the reason in a few words and in detail."""
        self.reason, self.detail = reason, detail


def measure_clip(survey: Survey, start: int, end: int, num_letters: int) -> ClipFacts:
    """Measures a clip, which consists of frames `[start, end)`. Its text has `num_letters` letters and digits."""
    levels = survey.levels_db[start:end]
    level, noise = _level_and_noise(survey, start, end)
    frames = max(1, round(0.05 / survey.frame_seconds))
    # A recording may be a clip that was trimmed right before its first word: at its ends, only 10 ms must be quiet.
    first, last = (1 if is_outer else frames for is_outer in (start == 0, end == len(survey.levels_db)))
    edge = max(_mean_level(levels[:first]), _mean_level(levels[-last:]))
    seconds = max(np.count_nonzero(survey.speech[start:end]), 1) * survey.frame_seconds
    values = seconds, level, level - noise, edge - level, edge - noise, _dynamics(survey, start, end)
    return ClipFacts(*(round(float(value), 3) for value in (*values, num_letters / seconds)))


def judge(clips: Sequence[Segment], min_snr_db: float) -> None:
    """Drops each clip that is noisy, cut off, not like speech, or much quieter, faster or slower than the others."""
    if not clips:
        return
    usual_rate, deviations = _rate_deviations(clips)
    usual_level = float(np.median([clip.facts.level_db for clip in clips]))
    for clip, deviation in zip(clips, deviations):
        facts, rate = clip.facts, clip.facts.characters_per_second
        if facts.dynamics_db < _LEAST_DYNAMICS_DB:
            clip.drop("not like speech", _STEADY.format(facts.dynamics_db))
        elif facts.snr_db < min_snr_db:
            clip.drop("noisy", f"its speech is {facts.snr_db:.1f} dB above the pauses; the minimum is {min_snr_db:g}.")
        elif facts.level_db < usual_level - 18.0:
            clip.drop("too quiet", f"it is {usual_level - facts.level_db:.0f} dB below the other clips.")
        elif facts.end_db > -20.0 and facts.end_over_noise_db > 12.0:
            clip.drop("cut off", f"it begins or ends {-facts.end_db:.0f} dB below its speech, not in a pause.")
        elif rate and (deviation > 3.5 or not 2.0 <= rate <= 40.0):
            clip.drop("speech rate", f"{rate:.1f} letters per second, {usual_rate:.1f} are usual: its text is wrong.")
        elif rate and deviation > 2.5:
            clip.detail = f"{rate:.1f} letters per second, usually {usual_rate:.1f}"


def steadiness(survey: Survey, start: int, end: int) -> str:
    """Returns a message if the level of frames `[start, end)` is too steady for speech, otherwise ""."""
    dynamics, seconds = _dynamics(survey, start, end), (end - start) * survey.frame_seconds
    return _STEADY.format(dynamics) if seconds >= 1.3 and dynamics < _LEAST_DYNAMICS_DB else ""


def _rate_deviations(clips):
    """Returns the median speech rate in letters per second, and the robust z-score of each clip's rate, `(N,)`."""
    rates = np.array([clip.facts.characters_per_second for clip in clips])
    spoken = rates[rates > 0]
    if len(spoken) < 8:
        return float(np.median(spoken)) if len(spoken) else 0.0, np.zeros(len(rates))
    letters, logs = np.array([max(1, count_letters(clip.text)) for clip in clips]), np.log(np.maximum(rates, 1e-3))
    usual = np.median(logs[rates > 0])
    deviation = max(1.4826 * np.median(np.abs(logs[rates > 0] - usual)), 0.1)
    return float(np.exp(usual)), np.abs(logs - usual) / np.sqrt(deviation**2 + 0.4 / letters)


def _level_and_noise(survey, start, end):
    """Returns the levels of speech and noise in dBFS. Without pauses, the noise is the 5th percentile of all levels."""
    reach, guard = (round(seconds / survey.frame_seconds) for seconds in (2.0, 0.05))
    low, high = max(0, start - reach), min(len(survey.speech), end + reach)
    pause = np.convolve(survey.speech[low:high], np.ones(2 * guard + 1), "same") == 0
    levels, level = survey.levels_db[low:high], _mean_level(_speech_levels(survey, start, end))
    inside = levels[start - low : end - low][pause[start - low : end - low]]
    if len(inside) >= round(0.2 / survey.frame_seconds):
        return level, float(np.median(inside))
    quiet = levels[pause]
    return level, float(np.median(quiet)) if len(quiet) >= 2 * guard else float(np.percentile(levels, 5))


def _dynamics(survey, start, end):
    """Returns the difference in dB between the 90th and the 10th percentile of the level during speech."""
    return float(np.subtract(*np.percentile(_speech_levels(survey, start, end), (90, 10))))


def _speech_levels(survey, start, end):
    """Returns the levels of the speech frames in dBFS, or of all frames if there is no speech."""
    levels, inside = survey.levels_db[start:end], survey.speech[start:end]
    return levels[inside] if inside.any() else levels


def _mean_level(levels):
    return float(10 * np.log10(np.mean(10 ** (levels / 10))))


def cached(recognizer: Recognizer, path: Path, name: str) -> Recognizer:
    """Wraps a recognizer to cache its results in the file `path`, so that a resumed run does not recompute them.

    The wrapper has the methods `words`, `scored` and `language` if `recognizer` has them. `name` identifies the
    recognizer in the file, so that the results of another recognizer are not used.
    """
    known = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError, TypeError):  # a line cut off when the process was killed
            key, known[key] = json.loads(line)

    def recall(kind, hear, samples, sample_rate, language):
        content = np.ascontiguousarray(samples, np.float32).tobytes()
        key = digest_bytes(f"{name} {kind} {sample_rate} {language} ".encode() + content)
        if key not in known:
            known[key] = hear(samples, sample_rate, language)
            append_line(path, json.dumps([key, known[key]], ensure_ascii=False))
        return known[key]

    hear = partial(recall, "text", recognizer)
    if hasattr(recognizer, "scored"):
        hear.scored = partial(recall, "scored by word", recognizer.scored)
    if hasattr(recognizer, "language"):
        hear.language = partial(recall, "language", recognizer.language)
    if hasattr(recognizer, "words"):
        words = lambda *audio: [(one.text, float(one.start), float(one.end)) for one in recognizer.words(*audio)]
        hear.words = lambda *audio: [Word(*one) for one in recall("words", words, *audio)]
    return hear


def listen(
    clips: Sequence[tuple[Segment, Path]], options: Namespace, needs_text: bool, tell: Callable[[str], None]
) -> None:
    """Runs the checks that need a neural network, and drops the clips that fail. `clips` are (clip, WAV file) pairs.

    If `needs_text`, the recognizer provides the texts of the clips; otherwise, it checks the given texts. `options` are
    from `command.open_options`. A check is skipped if its model in `options` is None. `tell` prints progress.

    Raises `UserError` if the recordings are to be transcribed as English, but are in another language.
    """
    if not (options.recognizer or options.dnsmos or options.encoder):
        return
    if needs_text and clips:
        _refuse_translation([file for _, file in clips], options)
    parts, times, reported = [], [], (last := time.monotonic())
    for number, (clip, file) in enumerate(clips):
        now = time.monotonic()
        times, last = (times + [now - last] * (now - last > 0.01))[-20:], now  # cached results take no time
        if now - reported >= 5.0:
            reported, left = now, np.mean(times or [0.0]) * (len(clips) - number) / 60
            tell(f"{number} of {len(clips)} clips checked, about {left:.1f} min left")
        samples, rate = soundfile.read(file, dtype="float32")
        if options.recognizer:
            scored = getattr(options.recognizer, "scored", lambda *audio: (options.recognizer(*audio), 1.0, "", 1.0))
            text, confidence, word, least = scored(samples, rate, options.language)
            clip.facts.word_probability = round(least, 3)
            if not (letters := count_letters(text := one_line(text))):
                clip.drop("no words recognized", "the recognizer found no words.")
            elif needs_text:
                clip.text, clip.facts.characters_per_second = text, round(letters / clip.facts.speech_seconds, 3)
            elif (alike := share_alike(clip.text, text)) < 0.75:
                clip.drop("another text recognized", text[:200])
            elif alike < 0.9:
                clip.detail = f"recognized as {text[:200]!r}"
            if not clip.reason and (confidence < _DOUBTFUL_CONFIDENCE or needs_text and least < _DOUBTFUL_WORD):
                clip.detail = f"recognizer unsure of {word!r} ({least:.2f} of 1)"
        if options.dnsmos and not clip.reason:
            score = options.dnsmos(samples, rate)["overall"]
            clip.facts.dnsmos = round(score, 2)
            if score < options.min_dnsmos:
                clip.drop("low DNSMOS", f"DNSMOS {score:.2f}; the minimum is {options.min_dnsmos:g}.")
        if options.encoder and not clip.reason:
            parts.append((clip, options.encoder.parts(samples, rate)))
    if parts:
        _compare_voices(parts)
    if needs_text and options.recognizer:
        judge([clip for clip, _ in clips if not clip.reason], options.min_snr)


def _refuse_translation(files, options):
    """Raises `UserError` if the language is English, but clips of the whole recording are in another one: Whisper would
    translate them into fluent English, which no other check doubts."""
    if options.language.partition("-")[0] != "en" or not hasattr(options.recognizer, "language"):
        return
    chosen = files[:: max(1, len(files) // 5)][:5]
    rate = soundfile.info(chosen[0]).samplerate
    speech = np.concatenate([soundfile.read(file, 6 * rate, dtype="float32")[0] for file in chosen])
    code, probability = options.recognizer.language(speech, rate, options.language)
    if code[:2] != "en" and probability > _CERTAIN_LANGUAGE:
        hint = f" Give --language {code}." * (code in LANGUAGES)
        raise UserError(f"{options.recording}: the language is en, but it sounds like {code}.{hint}")


def share_alike(text: str, heard: str) -> float:
    """Returns the similarity of a text and its transcription, 0 to 1. Compares letters and digits, ignoring case."""
    sides = ("".join(filter(str.isalnum, one.casefold())) for one in (text, heard))
    return difflib.SequenceMatcher(None, *sides, autojunk=False).ratio()


def _compare_voices(parts):
    """Drops clips with several voices or with an unusual voice. `parts` are pairs (clip, embeddings `(N, E)`)."""
    means = [unit(vectors.mean(axis=0)) for _, vectors in parts]
    usual = unit(np.median(means, axis=0))
    for (clip, vectors), mean in zip(parts, means):
        # Compares the vectors before and after each point, without the vector of the 1.6 s around it.
        sides = ((vectors[:k], vectors[k + 1 :]) for k in range(1, len(vectors) - 1))
        alike = (float(unit(a.mean(axis=0)) @ unit(b.mean(axis=0))) for a, b in sides)
        change, own = min(alike, default=None), float(mean @ usual)
        clip.facts.voice_change = None if change is None else round(change, 3)
        if change is not None and change < 0.7:
            clip.drop("several voices", f"speaker similarity of its parts: {change:.2f}.")
        elif len(means) >= 4 and own < 0.8:
            clip.drop("another voice", f"speaker similarity to the other clips: {own:.2f}.")
