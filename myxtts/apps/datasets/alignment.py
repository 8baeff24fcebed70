"""Alignment of texts with speech. Subtitles are aligned by their cue times, transcripts by recognized words.

Cue times are off by a few tenths of a second, and the times of recognized words by up to a second. Where the boundary
between two texts is uncertain, both texts and their segments of speech are merged into one group, an `Atom`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from rapidfuzz.distance import Levenshtein

from myxtts.apps.datasets.recording import LongAudio, Survey
from myxtts.apps.datasets.speech import Atom
from myxtts.apps.datasets.texts import TELLING, Piece, count_letters
from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import Recognizer, normalized
from myxtts.inference.speech import Word

LOW_CONFIDENCE = "low-confidence text"
"""The `reason` of an `Atom` whose text may differ from its speech."""
NOT_HEARD = "text not recognized"
"""The `fault` of a `Piece` that the recognizer did not find in the recording."""
_NEAR_SECONDS = 0.25  # tolerance around the times of a piece
_SHARE_OF_CHANCE = 0.3  # cost relative to shuffled texts: 0.04 to 0.21 if correct, 0.4 or more in a wrong order
# Variance of log(seconds per character), 20 % above the values of LJSpeech, VCTK and a German corpus.
_RATE_VARIANCE, _RATE_VARIANCE_OF_ONE = 0.006, 0.6
_MISHEARD_LETTERS = 15


def align(starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]) -> list[Atom]:
    """Finds which texts are spoken in which segments of speech.

    `starts` and `ends`, `(N,)` seconds, are the times of the segments. `pieces` are the texts in order, with times.

    Returns atoms in spoken order. An atom is a group of segments with the text that is spoken in them. Each segment and
    each text is in one atom; a text that is not spoken is in an atom without segments. An atom whose text is missing,
    faulty or uncertain has a `reason` and is not used in a clip."""
    links, touches = _links(starts, ends, pieces)
    blocks: list[list[int]] = []  # segments [first, last) with pieces [first, last)
    for i, (first, last) in links.items():
        if blocks and first < blocks[-1][3]:
            blocks[-1][1:] = i + 1, blocks[-1][2], max(last, blocks[-1][3])
        else:
            blocks.append([i, i + 1, first, last])
    groups, i, j = [], 0, 0
    for first, last, first_piece, last_piece in [*blocks, [len(starts), len(starts), len(pieces), len(pieces)]]:
        groups += [(k, k + 1, j, j) for k in range(i, first)]  # speech without text
        groups += [(first, first, k, k + 1) for k in range(j, first_piece)]  # texts that are not spoken
        if first < last:
            groups.append((first, last, first_piece, last_piece))
        i, j = last, last_piece
    atoms = []
    for first, last, low, high in groups:
        held = pieces[low:high]
        reason = next((piece.fault for piece in held if piece.fault), "") if held else "speech without text"
        ends_sentence = bool(held) and held[-1].ends_sentence
        atoms.append(Atom(first, last, " ".join(piece.text for piece in held), ends_sentence, reason))
    paired = [k for k, one in enumerate(atoms) if _has_both(one)]
    away = np.abs(_deviations(*_lengths([atoms[k] for k in paired], starts, ends))) if paired else ()
    flagged = {k for k, far in zip(paired, away) if far > 3.5}
    of_stretch = {i: k for k, (first, last, _, _) in enumerate(groups) for i in range(first, last)}
    of_piece = {j: k for k, (_, _, first, last) in enumerate(groups) for j in range(first, last)}
    for i, j in touches:
        # Speech without text, or text without speech, may belong to the group that it touches.
        if not (atoms[of_stretch[i]].text and atoms[of_piece[j]].last > atoms[of_piece[j]].first):
            flagged |= {of_stretch[i], of_piece[j]}
    for k in filter(lambda k: _has_both(atoms[k]), flagged):
        atoms[k] = replace(atoms[k], reason=LOW_CONFIDENCE)
    return atoms


def _has_both(atom):
    return atom.first < atom.last and bool(atom.text)


def fits_speech(atoms: Sequence[Atom], starts: np.ndarray, ends: np.ndarray, num_pieces: int, shift: float) -> bool:
    """Returns True if the segments' durations fit the texts' lengths, False if `align` probably found wrong `atoms`.

    The durations fit if the misfit is much smaller than the misfit of the same texts in other orders, or less than 1.4
    standard errors above the expected misfit (texts of similar lengths, such as verses, fit in any order). Also returns
    True if there are too few texts to decide, and False if a quarter (at least two) of less than `TELLING` texts is not
    spoken, or one with a `shift` of the times by over 5 s; texts with a fault, such as music, need not be spoken.
    `starts` and `ends`, `(N,)` seconds, are the times of the segments. `num_pieces` counts the texts."""
    paired = [one for one in atoms if _has_both(one)]
    most = 0 if abs(shift) > 5.0 else max(1, (num_pieces - 1) // 4)
    lacks_many = num_pieces < TELLING and sum(one.first == one.last and not one.reason for one in atoms) > most
    if lacks_many or len(paired) < 4:
        return not lacks_many
    seconds, counts = _lengths(paired, starts, ends)
    score = lambda counts: np.minimum(0.5 * _deviations(seconds, counts) ** 2, 14.0).mean()
    chance = min(score(np.roll(counts, len(counts) // 3)), score(counts[::-1]))
    return score(counts) < max(0.5 + len(paired) ** -0.5, _SHARE_OF_CHANCE * chance)


def _lengths(atoms, starts, ends):
    """Returns two `(A,)` arrays: the total seconds of each atom's segments, and the number of letters in its text."""
    seconds = [(ends[one.first : one.last] - starts[one.first : one.last]).sum() for one in atoms]
    return np.array(seconds, float), np.array([count_letters(one.text) for one in atoms], float)


def _deviations(seconds, counts):
    """Returns z-scores of log(`seconds` / `counts`), `(A,)`. Assumes a larger variance for atoms with few letters."""
    paces = np.log(seconds / counts)
    return (paces - np.median(paces)) / np.sqrt(_RATE_VARIANCE + _RATE_VARIANCE_OF_ONE / counts)


def _links(starts, ends, pieces):
    """Matches segments of speech and texts by time. The first result, `{i: (first, end)}`, assigns texts `[first, end)`
    to segment i. The second result lists all pairs (segment index, text index) that clearly overlap."""
    begins, finishes = np.array([(piece.start, piece.end) for piece in pieces]).reshape(-1, 2).T
    latest = np.maximum.accumulate(finishes)
    links, touches = {}, []
    for i, (start, end) in enumerate(zip(starts, ends)):
        first = int(np.searchsorted(latest, start - _NEAR_SECONDS))
        last = int(np.searchsorted(begins, end + _NEAR_SECONDS))
        low, high = begins[first:last], finishes[first:last]
        inside = np.clip(np.minimum(high, end) - np.maximum(low, start), 0, None)
        around = np.minimum(high + _NEAR_SECONDS, end) - np.maximum(low - _NEAR_SECONDS, start)
        whole = np.maximum(high - low, 1e-3)
        is_held = (inside >= np.minimum(0.3 * (end - start), 0.6)) | (inside >= 0.5 * whole)
        if not is_held.any():
            is_held = around >= 0.5 * (end - start)
        if is_held.any():
            held = np.flatnonzero(is_held)
            links[i] = first + int(held[0]), first + int(held[-1]) + 1
        touches += [(i, first + int(k)) for k in np.flatnonzero((around > 0.3) | (inside >= 0.25 * whole))]
    return links, touches


def find_sentences(
    recognizer: Recognizer, audio: LongAudio, survey: Survey, segments: np.ndarray, pieces: list[Piece], language: str
) -> list[Piece]:
    """Locates the sentences of a transcript in a recording by speech recognition; returns the sentences with times.

    A sentence that was not recognized gets a `fault`, and its times span the gap between its recognized neighbors. If
    the recognizer returns no word times, they are estimated. `segments` are start and end frames of speech, `(N, 2)`.
    Raises `UserError` if too few sentences were recognized."""
    parts = lambda word: _spread(normalized(word.text, language).split(), [(word.start, word.end)])
    heard = [part for word in _hear(recognizer, audio, survey, segments, language) for part in parts(word)]
    texts = [normalized(piece.text, language).split() for piece in pieces]
    matched = iter(match_words([word.text for word in heard], [word for text in texts for word in text]))
    pace = np.median([(word.end - word.start) / len(word.text) for word in heard]) if heard else 0.0
    letters, found, shares = [sum(map(len, text)) for text in texts], [], []
    for text, count in zip(texts, letters):
        found.append([next(matched) for _ in text])
        shares.append(sum(len(word) for word, place in zip(text, found[-1]) if place >= 0) / max(1, count))
    usual = float(np.median([share for share in shares if share > 0] or [1.0]))
    is_heard = np.array(shares) >= max(0.2, 0.5 * usual)
    times = [_time_of(*one, heard, pace) if known else None for *one, known in zip(texts, found, is_heard)]
    # A good recognizer misses only short words, a poor one whole sentences.
    times = _fill_gaps(times, letters, pace, _MISHEARD_LETTERS if usual >= 0.8 else np.inf)
    return with_times(pieces, times, survey.num_samples / survey.sample_rate)


def with_times(pieces: Sequence[Piece], times: Sequence[tuple[float, float] | None], seconds: float) -> list[Piece]:
    """Returns the sentences `pieces` with `times`, corrected so that no sentence starts before the previous one ends.

    `times` contains start and end of each sentence in seconds, or None for a sentence that was not recognized. Such a
    sentence gets a `fault`, and times that span the gap between recognized neighbors. `seconds` is the total duration.
    Raises `UserError` if too few sentences were recognized."""
    count, found, latest = sum(time is not None for time in times), [], 0.0
    if count < 0.25 * len(pieces):
        raise UserError(f"--transcript does not belong to this recording: heard {count} of {len(pieces)} sentences.")
    for index, (piece, time) in enumerate(zip(pieces, times)):
        if time is None:  # the time up to the next recognized sentence
            following = next((one[0] for one in times[index + 1 :] if one is not None), seconds)
            found.append(replace(piece, start=latest, end=max(latest + 0.05, min(following, seconds)), fault=NOT_HEARD))
        else:
            start = max(latest, time[0])
            latest = max(start + 0.05, time[1])
            found.append(replace(piece, start=start, end=latest))
    return found


def _hear(recognizer, audio, survey, segments, language) -> Iterator[Word]:
    """Yields the recognized words with their times in the recording. The recognizer gets several segments at a time."""
    has_times, rate = hasattr(recognizer, "words"), survey.sample_rate
    most, pad = rate * (24.0 if has_times else 7.0), round(0.1 * rate)
    groups: list[list[tuple[int, int]]] = []
    for start, end in (segments * survey.frame_samples).tolist():
        if not groups or end - groups[-1][0][0] > most:
            groups.append([])
        groups[-1].append((start, end))
    spans = [(max(0, group[0][0] - pad), group[-1][1] + pad) for group in groups]
    for group, (start, _), samples in zip(groups, spans, audio.spans(spans, survey.channel)):
        if has_times:
            for word in recognizer.words(samples, rate, language):
                yield Word(word.text, word.start + start / rate, word.end + start / rate)
        else:
            yield from _spread(recognizer(samples, rate, language).split(), np.array(group) / rate)


def match_words(heard: Sequence[str], text: Sequence[str]) -> list[int]:
    """Aligns recognized words with a text by edit distance; returns each text word's index in `heard`, or -1."""
    places = [-1] * len(text)
    for first, first_in_text, size in Levenshtein.opcodes(heard, text).as_matching_blocks():
        places[first_in_text : first_in_text + size] = range(first, first + size)
    return places


def _spread(words, spans):
    """Distributes `words` over the (start, end) `spans` in proportion to word length. Returns the words with times."""
    starts, ends = np.array(spans, float).T
    spoken = np.concatenate([[0], np.cumsum(ends - starts)])
    places = np.concatenate([[0], np.cumsum([len(word) for word in words])]) * spoken[-1]
    places = places / max(1, sum(len(word) for word in words))
    # At a pause, the shift selects the span before or after it.
    at = lambda places, shift: np.interp(places + shift, np.repeat(spoken, 2)[1:-1], np.ravel(spans)) - shift
    return list(map(Word, words, at(places[:-1], 1e-6).tolist(), at(places[1:], -1e-6).tolist()))


def _fill_gaps(times, letters, pace, most):
    """Returns a copy of `times` with estimates in place of None. The time between two recognized sentences is divided
    among the sentences between them in proportion to `letters`. These sentences keep None if they have more than `most`
    letters in total, or if the time is implausible at `pace` seconds per letter."""
    filled, known = list(times), [index for index, time in enumerate(times) if time is not None]
    for left, right in zip(known, known[1:]):
        start, end, counts = times[left][1], times[right][0], letters[left + 1 : right]
        whole = sum(counts)
        least, longest = (share * whole * pace for share in (0.6, 1.5))
        if 0 < whole <= most and least <= end - start <= longest + 1.0:
            edges = start + (end - start) * np.concatenate([[0], np.cumsum(counts)]) / whole
            filled[left + 1 : right] = [(float(a), float(b)) for a, b in zip(edges, edges[1:])]
    return filled


def _time_of(text, places, heard, pace):
    """Estimates start and end of a sentence. `text` is its words; word k was recognized as `heard[places[k]]` or, if
    `places[k]` is -1, not at all. Returns None for an implausible duration at `pace` seconds per letter."""
    known = [(k, place) for k, place in enumerate(places) if place >= 0]
    (first, begin), (last, finish) = known[0], known[-1]
    before, after = (sum(map(len, part)) for part in (text[:first], text[last + 1 :]))
    start, end = heard[begin].start - before * pace, heard[finish].end + after * pace
    least, most = (share * sum(map(len, text)) * pace for share in (0.4, 2.5))
    return (float(start), float(end)) if least <= end - start <= most + 0.5 else None
