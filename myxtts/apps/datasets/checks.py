"""Checks of clips: speech rate, ends, level, noise, and audio other than speech."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.apps.datasets.recording import Survey
from myxtts.apps.datasets.speech import SILENCE_DB
from myxtts.apps.datasets.texts import count_letters

_ROBUST_DEVIATIONS = 3.5
_LEAST_DEVIATION = 0.1
_LEAST_CLIPS_FOR_RATE = 8
_SLOWEST, _FASTEST = 2.0, 40.0  # letters a second of speech, whoever speaks
_END_SECONDS, _END_UNDER_SPEECH_DB, _END_OVER_NOISE_DB = 0.05, -20.0, 12.0
_NOISE_REACH_SECONDS, _NOISE_GUARD_SECONDS = 2.0, 0.05
_LEAST_NOISE_SECONDS = 0.2
_QUIET_UNDER_SOURCE_DB = 18.0
_LEAST_DYNAMICS_DB = 12.0  # sentences of LJSpeech, VCTK and a German corpus have 18 or more
_LEAST_STEADY_SECONDS = 1.3


@dataclass
class ClipFacts:
    """Measurements of a clip.

    Attributes:
        speech_seconds: Without pauses.
        level_db: Of its speech, in dB of full scale of the input.
        snr_db: Level of speech over that of the pauses in it and around it.
        end_db: Level of its first or last 50 ms, the louder, against that of its speech.
        end_over_noise_db: The same against the pauses around.
        dynamics_db: From the 10th to the 90th percentile of levels while somebody speaks.
        characters_per_second: Letters and digits for each second of speech.
        dnsmos: Overall quality by DNSMOS, 1 to 5; None where it was not asked for.
        voice_change: Cosine between the voices left and right of where they differ most; None without an encoder.
    """

    speech_seconds: float
    level_db: float
    snr_db: float
    end_db: float
    end_over_noise_db: float
    dynamics_db: float
    characters_per_second: float
    dnsmos: float | None = None
    voice_change: float | None = None


@dataclass
class Segment:
    """Samples `[start, end)` of a recording, and whether they become a clip.

    Attributes:
        text: The text, if known.
        reason: Why they are left out, in a few words; "" for a clip that is kept.
        detail: The same as a sentence with figures.
        facts: What was measured of a clip; None for what never was one.
        clip: Path of a clip that is kept, within the set.
        validation: Whether the clip is kept for validation.
    """

    start: int
    end: int
    text: str = ""
    reason: str = ""
    detail: str = ""
    facts: ClipFacts | None = None
    clip: str = ""
    validation: bool = False


def measure_clip(survey: Survey, start: int, end: int, num_letters: int) -> ClipFacts:
    """Measures the clip of frames `[start, end)`."""
    levels, level, noise = survey.levels_db[start:end], *_level_and_noise(survey, start, end)
    frames = max(1, round(_END_SECONDS / survey.frame_seconds))
    edge = max(_mean_level(levels[:frames]), _mean_level(levels[-frames:]))
    seconds = max(np.count_nonzero(survey.speech[start:end]), 1) * survey.frame_seconds
    figures = seconds, level, level - noise, edge - level, edge - noise, _dynamics(survey, start, end)
    return ClipFacts(*(round(float(value), 3) for value in (*figures, num_letters / seconds)))


def judge(clips: Sequence[Segment], min_snr_db: float) -> None:
    """Sets the reason of clips to leave out; rates and levels are compared with those of the other clips."""
    if not clips:
        return
    usual_rate, deviations = _rate_deviations(clips)
    usual_level = float(np.median([clip.facts.level_db for clip in clips]))
    for clip, deviation in zip(clips, deviations):
        facts, rate = clip.facts, clip.facts.characters_per_second
        if facts.dynamics_db < _LEAST_DYNAMICS_DB:
            clip.reason = "not like speech"
            clip.detail = f"its level varies by {facts.dynamics_db:.1f} dB only, as in music and noise."
        elif facts.snr_db < min_snr_db:
            clip.reason = "noisy"
            clip.detail = f"its speech is {facts.snr_db:.1f} dB above the pauses; the minimum is {min_snr_db:g}."
        elif facts.level_db < usual_level - _QUIET_UNDER_SOURCE_DB:
            clip.reason = "too quiet"
            clip.detail = f"it is {usual_level - facts.level_db:.0f} dB below the other clips."
        elif facts.end_db > _END_UNDER_SPEECH_DB and facts.end_over_noise_db > _END_OVER_NOISE_DB:
            clip.reason = "cut into sound"
            clip.detail = f"it begins or ends {-facts.end_db:.0f} dB below its speech, not in a pause."
        elif rate and (deviation > _ROBUST_DEVIATIONS or not _SLOWEST <= rate <= _FASTEST):
            clip.reason = "speech rate"
            clip.detail = f"{rate:.1f} letters a second, {usual_rate:.1f} are usual: its text is wrong."


def is_steady(survey: Survey, start: int, end: int) -> bool:
    """Whether frames `[start, end)` are long and of one level, as music and noise are."""
    is_long = (end - start) * survey.frame_seconds >= _LEAST_STEADY_SECONDS
    return is_long and _dynamics(survey, start, end) < _LEAST_DYNAMICS_DB


def _rate_deviations(clips):
    """The median rate, and the robust deviations of each clip from it; short texts may differ more."""
    rates = np.array([clip.facts.characters_per_second for clip in clips])
    spoken = rates[rates > 0]
    if len(spoken) < _LEAST_CLIPS_FOR_RATE:
        return float(np.median(spoken)) if len(spoken) else 0.0, np.zeros(len(rates))
    letters, logs = np.array([max(1, count_letters(clip.text)) for clip in clips]), np.log(np.maximum(rates, 1e-3))
    usual = np.median(logs[rates > 0])
    deviation = max(1.4826 * np.median(np.abs(logs[rates > 0] - usual)), _LEAST_DEVIATION)
    return float(np.exp(usual)), np.abs(logs - usual) / np.sqrt(deviation**2 + 0.4 / letters)


def _level_and_noise(survey, start, end):
    """Levels of speech and pauses in frames `[start, end)`; of pauses within two seconds around if those inside are
    short, and of the quietest frames if there is none."""
    reach, guard = (round(seconds / survey.frame_seconds) for seconds in (_NOISE_REACH_SECONDS, _NOISE_GUARD_SECONDS))
    low, high = max(0, start - reach), min(len(survey.speech), end + reach)
    pause = np.convolve(survey.speech[low:high], np.ones(2 * guard + 1), "same") == 0
    levels, level = survey.levels_db[low:high], _mean_level(_speech_levels(survey, start, end))
    inside = levels[start - low : end - low][pause[start - low : end - low]]
    if len(inside) >= round(_LEAST_NOISE_SECONDS / survey.frame_seconds):
        return level, float(np.median(inside))
    quiet = levels[pause]
    return level, float(np.median(quiet)) if len(quiet) >= 2 * guard else float(np.percentile(levels, 5))


def _dynamics(survey, start, end):
    """From the 10th to the 90th percentile of levels in the speech of frames `[start, end)`, in dB."""
    return float(np.subtract(*np.percentile(_speech_levels(survey, start, end), (90, 10))))


def _speech_levels(survey, start, end):
    """Levels of the frames of `[start, end)` that are speech; of all of them where none is."""
    levels, inside = survey.levels_db[start:end], survey.speech[start:end]
    return levels[inside] if inside.any() else levels


def _mean_level(levels):
    return float(10 * np.log10(np.mean(10 ** (levels / 10)))) if len(levels) else SILENCE_DB
