"""When the sentences of a transcript are spoken, by the words that a recognizer hears.

The results are pieces with times, as subtitles have them: they choose sentences and never cuts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from rapidfuzz.distance import Levenshtein

from myxtts.apps.datasets.decoding import LongAudio
from myxtts.apps.datasets.pieces import Piece
from myxtts.apps.datasets.survey import Survey
from myxtts.apps.datasets.voice_activity import Stretch
from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import Recognizer, Word
from myxtts.hearing.text_errors import normalized

NOT_HEARD = "heard otherwise"
"""Fault of a sentence that is not in the sound, or with other words."""

_WINDOW_SECONDS, _WINDOW_SECONDS_WITHOUT_TIMES = 24.0, 7.0
_WINDOW_PAD_SECONDS = 0.1
_LEAST_HEARD, _LEAST_HEARD_OF_USUAL = 0.2, 0.5  # of a sentence's letters: poor recognizers hear little of every one
_HEARS_WELL = 0.8
_GAP_OVER_EXPECTED, _PAUSES_SECONDS = (0.6, 1.5), 1.0
_MISHEARD_LETTERS = 15
_LENGTH_OVER_EXPECTED = (0.4, 2.5)
_LEAST_PLACED = 0.25


def with_times(pieces: Sequence[Piece], times: Sequence[tuple[float, float] | None], seconds: float) -> list[Piece]:
    """The pieces with their times; those that were not heard lie between their neighbors and have a fault.

    Raises:
        UserError: So few were heard that the text is that of another recording.
    """
    heard = [one for one in times if one is not None]
    if len(heard) < _LEAST_PLACED * len(pieces):
        found = f"{len(heard)} of {len(pieces)} sentences were heard"
        raise UserError(f"{found}: the transcript is of another recording. Name another with --transcript.")
    found, latest = [], 0.0
    for index, (piece, time) in enumerate(zip(pieces, times)):
        if time is None:
            following = next((one[0] for one in times[index + 1 :] if one is not None), seconds)
            start, end, fault = latest, max(latest, min(following, seconds)), NOT_HEARD
        else:
            start, end, fault = max(latest, time[0]), time[1], piece.fault
        latest = max(start + 0.05, end)
        found.append(replace(piece, start=start, end=latest, fault=fault))
        # A sentence that is not there takes no time from the next.
        latest = start if time is None else latest
    return found


def find_sentences(
    recognizer: Recognizer,
    audio: LongAudio,
    survey: Survey,
    stretches: Sequence[Stretch],
    pieces: Sequence[Piece],
    language: str,
) -> list[tuple[float, float] | None]:
    """Matches the words of a transcript with those that a recognizer hears.

    Of a recognizer that tells no times, words are spread over the speech of a few seconds.

    Returns:
        Start and end of each piece, in seconds of the recording; None for one that was not heard.
    """
    heard = [
        part
        for word in _hear(recognizer, audio, survey, stretches, language)
        for part in _spread(normalized(word.text, language).split(), [(word.start, word.end)])
    ]
    texts = [normalized(piece.text, language).split() for piece in pieces]
    matched = match_words([word.text for word in heard], [word for text in texts for word in text])
    pace = np.median([(word.end - word.start) / len(word.text) for word in heard]) if heard else 0.0
    ends = np.cumsum([len(text) for text in texts])
    places = [matched[end - len(text) : end] for text, end in zip(texts, ends)]
    letters = [sum(map(len, text)) for text in texts]
    shares = [
        sum(len(word) for word, place in zip(text, found) if place >= 0) / max(1, count)
        for text, found, count in zip(texts, places, letters)
    ]
    usual = float(np.median([share for share in shares if share > 0] or [1.0]))
    least = max(_LEAST_HEARD, _LEAST_HEARD_OF_USUAL * usual)
    times = [
        _time_of(text, place, heard, pace) if share >= least else None
        for text, place, share in zip(texts, places, shares)
    ]
    # A recognizer that usually hears everything tells that something else is said; but for a word, or a poor one.
    return _fill_gaps(times, letters, pace, _MISHEARD_LETTERS if usual >= _HEARS_WELL else np.inf)


def _hear(recognizer, audio, survey, stretches, language) -> Iterator[Word]:
    has_times = hasattr(recognizer, "words")
    most = _WINDOW_SECONDS if has_times else _WINDOW_SECONDS_WITHOUT_TIMES
    rate, size = survey.sample_rate, survey.frame_samples
    groups: list[list[Stretch]] = []
    for one in stretches:
        if groups and (one.end - groups[-1][0].start) * size <= most * rate:
            groups[-1].append(one)
        else:
            groups.append([one])
    pad = round(_WINDOW_PAD_SECONDS * rate)
    spans = [(max(0, group[0].start * size - pad), group[-1].end * size + pad) for group in groups]
    for group, (start, _), samples in zip(groups, spans, audio.spans(spans, survey.channel)):
        if has_times:
            for word in recognizer.words(samples, rate, language):
                yield Word(word.text, word.start + start / rate, word.end + start / rate)
        else:
            said = recognizer(samples, rate, language).split()
            yield from _spread(said, [(one.start * size / rate, one.end * size / rate) for one in group])


def match_words(heard: Sequence[str], text: Sequence[str]) -> list[int]:
    """For each word of the text its place among those heard, or -1, by the fewest edits."""
    places = [-1] * len(text)
    for kind, first, last, first_in_text, last_in_text in Levenshtein.opcodes(heard, text):
        if kind == "equal":
            places[first_in_text:last_in_text] = range(first, last)
    return places


def _spread(words, spans):
    """Words with times in proportion to their lengths over the spans `(start, end)`."""
    starts, ends = np.array(spans, float).T
    spoken = np.concatenate([[0], np.cumsum(ends - starts)])
    places = np.concatenate([[0], np.cumsum([len(word) for word in words])]) * spoken[-1]
    places = places / max(1, sum(len(word) for word in words))

    def at(place, shift):
        # A word begins after a pause and ends before it, whatever rounding makes of the boundary.
        span = min(max(int(np.searchsorted(spoken, place + shift)) - 1, 0), len(starts) - 1)
        return float(starts[span] + place - spoken[span])

    return [Word(word, at(places[k], 1e-6), at(places[k + 1], -1e-6)) for k, word in enumerate(words)]


def _fill_gaps(times, letters, pace, most):
    """Gives sentences between two that were heard, of `most` letters together, their share of the time between them,
    where it is about as long as they are."""
    filled, known = list(times), [index for index, time in enumerate(times) if time is not None]
    for left, right in zip(known, known[1:]):
        start, end, counts = times[left][1], times[right][0], letters[left + 1 : right]
        whole = sum(counts)
        least, longest = (share * whole * pace for share in _GAP_OVER_EXPECTED)
        if 0 < whole <= most and least <= end - start <= longest + _PAUSES_SECONDS:
            edges = start + (end - start) * np.concatenate([[0], np.cumsum(counts)]) / whole
            filled[left + 1 : right] = [(float(a), float(b)) for a, b in zip(edges, edges[1:])]
    return filled


def _time_of(text, places, heard, pace):
    """When a sentence is spoken, from those of its words that were heard; None where they are too far apart for it."""
    known = [(k, place) for k, place in enumerate(places) if place >= 0]
    (first, begin), (last, finish) = known[0], known[-1]
    before, after = (sum(map(len, part)) for part in (text[:first], text[last + 1 :]))
    start, end = heard[begin].start - before * pace, heard[finish].end + after * pace
    least, most = (share * sum(map(len, text)) * pace for share in _LENGTH_OVER_EXPECTED)
    return (float(start), float(end)) if least <= end - start <= most + 0.5 else None
