"""What speaks against a clip: its rate of speech, its ends, its level, its noise, and sound that is no speech."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.apps.datasets.survey import SILENCE_DB, Survey

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
_BAND_FFT, _BAND_UNDER_PEAK_DB = 2_048, 62.0
_LEAST_ALIKE = 0.75
TELEPHONE_BAND_HZ = 5_000.0


@dataclass(frozen=True)
class ClipFacts:
    """What is measured of a clip.

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


def measure_clip(survey: Survey, speech: np.ndarray, start: int, end: int, num_characters: int) -> ClipFacts:
    """Measures the clip of frames `[start, end)`; `speech` tells which frames of the recording are speech."""
    levels, talk = survey.levels_db[start:end], _talk(survey, speech, start, end)
    level, noise = _mean_level(talk), _noise_level(survey, speech, start, end)
    frames = max(1, round(_END_SECONDS / survey.frame_seconds))
    edge = max(_mean_level(levels[:frames]), _mean_level(levels[-frames:]))
    seconds = max(np.count_nonzero(speech[start:end]) * survey.frame_seconds, survey.frame_seconds)
    rate = num_characters / seconds
    values = (seconds, level, level - noise, edge - level, edge - noise, dynamics(survey, speech, start, end), rate)
    return ClipFacts(*(round(float(value), 3) for value in values))


def judge(clips: Sequence[ClipFacts], min_snr_db: float, texts: Sequence[str]) -> list[str]:
    """`"reason: sentence"` for each clip that is to be left out, else "".

    Rates and levels are held against those of the other clips of the same recording.
    """
    if not clips:
        return []
    letters = np.array([max(1, sum(map(str.isalnum, text))) for text in texts])
    usual, away = _rate_deviations(np.array([clip.characters_per_second for clip in clips]), letters)
    level = float(np.median([clip.level_db for clip in clips]))
    return [_verdict(clip, min_snr_db, level, usual, deviation) for clip, deviation in zip(clips, away)]


def _verdict(clip, min_snr_db, usual_level, usual_rate, deviation):
    rate = clip.characters_per_second
    if clip.dynamics_db < _LEAST_DYNAMICS_DB:
        return f"not like speech: its level moves by {clip.dynamics_db:.1f} dB only, as music and noise do."
    if clip.snr_db < min_snr_db:
        return f"noisy: speech stands {clip.snr_db:.1f} dB over the pauses; the least is {min_snr_db:g}."
    if clip.level_db < usual_level - _QUIET_UNDER_SOURCE_DB:
        return f"too quiet: it lies {usual_level - clip.level_db:.0f} dB below the other clips."
    if clip.end_db > _END_UNDER_SPEECH_DB and clip.end_over_noise_db > _END_OVER_NOISE_DB:
        return f"cut into sound: it begins or ends {-clip.end_db:.0f} dB below its speech, which is no pause."
    if rate and (deviation > _ROBUST_DEVIATIONS or not _SLOWEST <= rate <= _FASTEST):
        return f"speech rate: {rate:.1f} letters a second where {usual_rate:.1f} are usual: the text is another."
    return ""


def dynamics(survey: Survey, speech: np.ndarray, start: int, end: int) -> float:
    """From the 10th to the 90th percentile of levels in the speech of frames `[start, end)`, in dB."""
    return float(np.subtract(*np.percentile(_talk(survey, speech, start, end), (90, 10))))


def is_steady(survey: Survey, speech: np.ndarray, start: int, end: int) -> bool:
    """Whether frames `[start, end)` sound for long at one level, as music and noise do and speech does not."""
    is_long = (end - start) * survey.frame_seconds >= _LEAST_STEADY_SECONDS
    return is_long and dynamics(survey, speech, start, end) < _LEAST_DYNAMICS_DB


def is_same_text(text: str, heard: str) -> bool:
    """Whether what was heard is the text, but for a quarter of its letters."""
    sides = ("".join(filter(str.isalnum, one.casefold())) for one in (text, heard))
    return difflib.SequenceMatcher(None, *sides, autojunk=False).ratio() >= _LEAST_ALIKE


class Bandwidth:
    """Gathers the mean spectrum of what is cut out, to find how far up it reaches."""

    def __init__(self, sample_rate: int):
        self._sample_rate = sample_rate
        self._power = np.zeros(_BAND_FFT // 2 + 1)
        self._window = np.hanning(_BAND_FFT).astype(np.float32)

    def add(self, samples: np.ndarray) -> None:
        """Takes the `(S,)` samples of a clip."""
        frames = samples[: len(samples) // _BAND_FFT * _BAND_FFT].reshape(-1, _BAND_FFT)
        self._power += (np.abs(np.fft.rfft(frames * self._window)) ** 2).sum(axis=0)

    @property
    def highest_hz(self) -> float:
        """The highest frequency whose mean power is within 62 dB of the strongest; 0 where nothing was added."""
        if not self._power.any():
            return 0.0
        heard = np.flatnonzero(self._power > self._power.max() * 10 ** (-_BAND_UNDER_PEAK_DB / 10))
        return float(heard[-1] * self._sample_rate / _BAND_FFT)


def _rate_deviations(rates, letters):
    """The usual rate, and how many robust deviations each is from it; short texts may differ more."""
    spoken = rates[rates > 0]
    if len(spoken) < _LEAST_CLIPS_FOR_RATE:
        return float(np.median(spoken)) if len(spoken) else 0.0, np.zeros(len(rates))
    logs = np.log(np.maximum(rates, 1e-3))
    usual = np.median(logs[rates > 0])
    deviation = max(1.4826 * np.median(np.abs(logs[rates > 0] - usual)), _LEAST_DEVIATION)
    return float(np.exp(usual)), np.abs(logs - usual) / np.sqrt(deviation**2 + 0.4 / letters)


def _noise_level(survey, speech, start, end):
    """Level of the pauses in frames `[start, end)`; where they are short, of two seconds around, too; of the quietest
    where all is speech. What sounds beside a clip, such as music, is not in it."""
    reach, guard = (round(seconds / survey.frame_seconds) for seconds in (_NOISE_REACH_SECONDS, _NOISE_GUARD_SECONDS))
    low, high = max(0, start - reach), min(len(speech), end + reach)
    near = np.convolve(speech[low:high], np.ones(2 * guard + 1), "same") > 0
    levels = survey.levels_db[low:high]
    inside = levels[start - low : end - low][~near[start - low : end - low]]
    if len(inside) >= round(_LEAST_NOISE_SECONDS / survey.frame_seconds):
        return float(np.median(inside))
    quiet = levels[~near]
    return float(np.median(quiet)) if len(quiet) >= 2 * guard else float(np.percentile(levels, 5))


def _talk(survey, speech, start, end):
    """Levels of the frames of `[start, end)` that are speech; of all of them where none is."""
    levels, inside = survey.levels_db[start:end], speech[start:end]
    return levels[inside] if inside.any() else levels


def _mean_level(levels):
    return float(10 * np.log10(np.mean(10 ** (levels / 10)))) if len(levels) else SILENCE_DB
