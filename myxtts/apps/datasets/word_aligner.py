"""Alignment of a transcript with a recording, by the words of a speech recognizer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from rapidfuzz.distance import Levenshtein

from myxtts.apps.datasets.recording import LongAudio, Survey
from myxtts.apps.datasets.texts import Piece
from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import Recognizer, Word, normalized

NOT_HEARD = "text not recognized"
"""Fault of a sentence that the recognizer did not find."""

_WINDOW_SECONDS, _WINDOW_SECONDS_WITHOUT_TIMES = 24.0, 7.0
_LEAST_HEARD, _LEAST_HEARD_OF_USUAL = 0.2, 0.5  # share of letters, absolute and relative to the usual share
_HEARS_WELL = 0.8
_GAP_OVER_EXPECTED, _PAUSES_SECONDS = (0.6, 1.5), 1.0
_MISHEARD_LETTERS = 15
_LENGTH_OVER_EXPECTED = (0.4, 2.5)
_LEAST_PLACED = 0.25


def find_sentences(
    recognizer: Recognizer,
    audio: LongAudio,
    survey: Survey,
    stretches: np.ndarray,
    pieces: Sequence[Piece],
    language: str,
) -> list[Piece]:
    """Finds the times of a transcript's sentences from recognized words.

    A sentence that was not recognized lies between its neighbors and has a fault. Words without times are distributed
    over the speech of a few seconds.

    Args:
        stretches: Segments of speech, `(N, 2)` frames.

    Raises:
        UserError: Too few sentences were recognized.
    """
    heard = [
        part
        for word in _hear(recognizer, audio, survey, stretches, language)
        for part in _spread(normalized(word.text, language).split(), [(word.start, word.end)])
    ]
    texts = [normalized(piece.text, language).split() for piece in pieces]
    matched = iter(match_words([word.text for word in heard], [word for text in texts for word in text]))
    pace = np.median([(word.end - word.start) / len(word.text) for word in heard]) if heard else 0.0
    letters, found, shares = [sum(map(len, text)) for text in texts], [], []
    for text, count in zip(texts, letters):
        found.append([next(matched) for _ in text])
        shares.append(sum(len(word) for word, place in zip(text, found[-1]) if place >= 0) / max(1, count))
    usual = float(np.median([share for share in shares if share > 0] or [1.0]))
    is_heard = np.array(shares) >= max(_LEAST_HEARD, _LEAST_HEARD_OF_USUAL * usual)
    times = [_time_of(*one, heard, pace) if known else None for *one, known in zip(texts, found, is_heard)]
    # A good recognizer misses short words only, a poor one whole sentences.
    times = _fill_gaps(times, letters, pace, _MISHEARD_LETTERS if usual >= _HEARS_WELL else np.inf)
    return with_times(pieces, times, survey.num_samples / survey.sample_rate)


def with_times(pieces: Sequence[Piece], times: Sequence[tuple[float, float] | None], seconds: float) -> list[Piece]:
    """Sets the times of the pieces, in order and within a recording of `seconds`; None is not recognized.

    Raises:
        UserError: Too few pieces were recognized.
    """
    count, found, latest = sum(time is not None for time in times), [], 0.0
    if count < _LEAST_PLACED * len(pieces):
        shares = f"{count} of {len(pieces)} sentences were recognized"
        raise UserError(f"{shares}: the transcript is of another recording. Name another with --transcript.")
    for index, (piece, time) in enumerate(zip(pieces, times)):
        if time is None:  # it does not overlap the next
            following = next((one[0] for one in times[index + 1 :] if one is not None), seconds)
            end = max(latest + 0.05, min(following, seconds))
            found.append(replace(piece, start=latest, end=end, fault=NOT_HEARD))
        else:
            start = max(latest, time[0])
            latest = max(start + 0.05, time[1])
            found.append(replace(piece, start=start, end=latest))
    return found


def _hear(recognizer, audio, survey, stretches, language) -> Iterator[Word]:
    """Yields recognized words with times in the recording, from windows of neighboring segments."""
    has_times, rate = hasattr(recognizer, "words"), survey.sample_rate
    most, pad = rate * (_WINDOW_SECONDS if has_times else _WINDOW_SECONDS_WITHOUT_TIMES), round(0.1 * rate)
    groups: list[list[tuple[int, int]]] = []
    for start, end in (stretches * survey.frame_samples).tolist():
        if groups and end - groups[-1][0][0] <= most:
            groups[-1].append((start, end))
        else:
            groups.append([(start, end)])
    spans = [(max(0, group[0][0] - pad), group[-1][1] + pad) for group in groups]
    for group, (start, _), samples in zip(groups, spans, audio.spans(spans, survey.channel)):
        if has_times:
            for word in recognizer.words(samples, rate, language):
                yield Word(word.text, word.start + start / rate, word.end + start / rate)
        else:
            yield from _spread(recognizer(samples, rate, language).split(), np.array(group) / rate)


def match_words(heard: Sequence[str], text: Sequence[str]) -> list[int]:
    """Returns the index of the recognized word for each word of the text, or -1, by edit distance."""
    places = [-1] * len(text)
    for kind, first, last, first_in_text, last_in_text in Levenshtein.opcodes(heard, text):
        if kind == "equal":
            places[first_in_text:last_in_text] = range(first, last)
    return places


def _spread(words, spans):
    """Distributes words over the spans `(start, end)` in proportion to their lengths."""
    starts, ends = np.array(spans, float).T
    spoken = np.concatenate([[0], np.cumsum(ends - starts)])
    places = np.concatenate([[0], np.cumsum([len(word) for word in words])]) * spoken[-1]
    places = places / max(1, sum(len(word) for word in words))

    def at(place, shift):
        # The shift decides between the spans before and after a pause.
        span = min(max(int(np.searchsorted(spoken, place + shift)) - 1, 0), len(starts) - 1)
        return float(starts[span] + place - spoken[span])

    return [Word(word, at(places[k], 1e-6), at(places[k + 1], -1e-6)) for k, word in enumerate(words)]


def _fill_gaps(times, letters, pace, most):
    """Fills gaps of at most `most` letters between recognized sentences, if the time between them is plausible."""
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
    """Returns the time of a sentence from its recognized words, or None if its length is implausible."""
    known = [(k, place) for k, place in enumerate(places) if place >= 0]
    (first, begin), (last, finish) = known[0], known[-1]
    before, after = (sum(map(len, part)) for part in (text[:first], text[last + 1 :]))
    start, end = heard[begin].start - before * pace, heard[finish].end + after * pace
    least, most = (share * sum(map(len, text)) * pace for share in _LENGTH_OVER_EXPECTED)
    return (float(start), float(end)) if least <= end - start <= most + 0.5 else None
