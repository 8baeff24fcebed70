"""Texts of recordings: reads subtitles and transcripts, and synchronizes subtitles with the speech."""

import html
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.signal import correlate, find_peaks
from scipy.stats import theilslopes

from myxtts.config.checks import UserError, needing, read_bounded
from myxtts.data.corpora import SUBTITLES
from myxtts.data.corpora.layouts import LABELS_FAULT, has_labels
from myxtts.text.cleaners import split_sentences

_TAGS = re.compile(r"<[^<>\n]{0,200}>|\{[^{}\n]{0,200}\}|\[[^\[\]\n]{0,200}\]|【[^【】\n]{0,200}】")
_TURN = re.compile(r"(?<=[.!?…؟。！？])\s+(?=(?:>>|[-‐–—])\s*[^\sa-zß-ÿα-ωа-яё])")
_DASH = re.compile(r"^\s*(?:>>|[-‐–—])\s*(?=\S)")
_SPEAKER_LABEL = re.compile(r"^\s*[^\W\d_a-z][^\Wa-z]*(?: [^\Wa-z]+){0,2}:\s+")
_MUSIC = re.compile("[♪♫♬🎵🎶]")
_SENTENCE_END = re.compile(r"""[.!?…؟۔।॥。！？｡።፧፨]["'”’»」』）)\]]*$""")
_CLAUSE_END = re.compile(r"(?<=[,;:،؛，；：፣፤—–])\s+")
_BEFORE_ZERO, _ZERO = re.compile(r"(^ *(?=\S+ *-->)|--> *)-(?:0+:)?(?=\d\d:\d\d[.,]\d)", re.M), 324_000_000
"""Pattern of a negative time, whose minus pysubs2 would ignore: it is read as a time after 90 h, and then negated."""

# Ratios of frame rates: 1, and 25 fps against 24 and 23.976 fps. Smaller differences are fitted as drift.
_FRAME_RATE_RATIOS = (1.0, 25 / 24, 24 / 25, 25 * 1.001 / 24, 24 / 25 / 1.001)
_RATE = 20  # Hz, of the correlated signals
_MAX_OFFSET_SECONDS = 600.0
_MAX_DRIFT = 0.006
_NEAR_SECONDS = 0.2
TELLING = 12
"""Least number of texts whose times and lengths tell reliably whether they belong to a recording."""


@dataclass(frozen=True)
class Piece:
    """A subtitle cue, or a sentence or clause of a transcript. Times are in seconds, None if still unknown.

    `fault` tells in a few words why the text cannot be used, or is "".
    """

    text: str
    start: float | None = None
    end: float | None = None
    ends_sentence: bool = True
    fault: str = ""


def count_letters(text: str) -> int:
    """Counts the letters and digits of a text, as a measure of its spoken length."""
    return sum(map(str.isalnum, text))


def is_subtitles(path: Path) -> bool:
    """Returns whether a text file has the suffix of a subtitle format. All other files are treated as transcripts."""
    return path.suffix.lower() in SUBTITLES


def read_text(recording: Path, text: Path | None, options: Namespace) -> list[Piece]:
    """Reads the text file of a recording. Returns [] if `text` is None, because the audio is transcribed later.

    Raises `UserError` if the text cannot be read, if `text` is None and `options` have no recognizer, or if the text is
    a transcript and `options` have no aligner."""
    if text is None:
        if options.recognizer is None:
            raise UserError(f"{recording} has no text ({options.language}). Add --language, subtitles or --recognizer.")
        return []
    if is_subtitles(text):
        return read_subtitles(text)
    if has_labels(_read_text(text)):
        raise UserError(f"{text} {LABELS_FAULT}")
    if options.aligner is None:
        raise UserError(f"{text} has no times. Give --recognizer, or make subtitles (see docs/make-dataset.md).")
    return read_transcript(text, options.language)


def read_subtitles(path: Path) -> list[Piece]:
    """Reads the cues of an `.srt`, `.vtt` or `.ass` file, without tags, sound descriptions and speaker labels.

    Cues that overlap, contain music or have two speakers get a `fault`.

    Raises `UserError` if pysubs2 is missing, or the file has no readable cue.
    """
    with needing('Subtitles need pysubs2: pip install "myxtts[recordings]".'):
        import pysubs2
    content = re.sub(r"<[\d:.,]+>", "", _BEFORE_ZERO.sub(r"\g<1>90:", _read_text(path)))
    if content.lstrip().startswith("WEBVTT"):  # drops identifiers, notes and styles
        content = "\n\n".join(re.findall(r"(?m)WEBVTT|^.*-->.*(?:\n\n+(?!NOTE|(?:.+\n)?.*-->).+)?(?:\n.+)*", content))
    # pysubs2 drops a number at the end of a cue, because it may be the number of the next cue.
    content = re.sub(r"\n *\n(?:\d+ *\n)?(?=.*-->)|\Z", "\n\n0\n", content)
    try:
        try:
            file = pysubs2.SSAFile.from_string(content)  # detects the format by content
        except pysubs2.FormatAutodetectionError:
            file = pysubs2.SSAFile.from_string(content, format_=path.suffix[1:].lower())
    except Exception as error:  # pysubs2 raises errors of any type for damaged files
        raise UserError(f"{path} cannot be read as subtitles: {str(error)[:200] or type(error).__name__}.") from None
    seconds = lambda time: (_ZERO - time if 0 <= time - _ZERO < 6e6 else time) / 1000
    pieces = []
    for cue in file:
        (text, fault), start, end = clean_cue(cue.plaintext), seconds(cue.start), seconds(cue.end)
        if count_letters(text) and end > start and not (cue.is_comment or cue.is_drawing):
            pieces.append(Piece(text, start, end, bool(_SENTENCE_END.search(text)), fault))
    pieces = _without_repeats(sorted(pieces, key=lambda piece: (piece.start, piece.end)))
    if not pieces:
        raise UserError(f"{path} contains no cue with text. Give another file with --subtitles.")
    # Pairs of cues with a long overlap get a fault; if the overlap is short, the first cue ends earlier.
    for index in range(len(pieces) - 1):
        first, second = pieces[index : index + 2]
        overlap = min(first.end, second.end) - second.start
        if overlap > 0.3 and overlap > 0.3 * min(first.end - first.start, second.end - second.start):
            pieces[index : index + 2] = (replace(one, fault=one.fault or "overlapping cues") for one in (first, second))
        elif overlap > 0:
            pieces[index] = replace(first, end=second.start)
    return pieces


def _without_repeats(cues):
    """Reduces rolling captions, a third of which begin with the cue before, to their new words; keeps other cues."""
    pieces, num_repeats = cues[:1], 0
    for cue in cues[1:]:
        before = pieces[-1]
        if cue.start <= before.end + 0.1 and f"{cue.text} ".startswith(f"{before.text} "):
            num_repeats, cue = num_repeats + 1, replace(cue, text=cue.text[len(before.text) :].strip())
        if count_letters(cue.text):
            pieces.append(cue)
        else:
            pieces[-1] = replace(before, end=max(before.end, cue.end))
    return pieces if 3 * num_repeats >= len(cues) else cues


def clean_cue(text: str) -> tuple[str, str]:
    """Returns the words of a subtitle cue in one line, and its fault, such as "two speakers" ("" if it has none)."""
    text = re.sub("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]", "", html.unescape(text))  # direction marks
    if _MUSIC.search(text):
        return one_line(_MUSIC.sub(" ", text)), "sung or music"
    lines = [line for line in map(str.strip, _TAGS.sub(" ", text).splitlines()) if line]
    lines = [line for line in lines if not re.fullmatch(r"[(（][^()（）]{0,200}[)）]", line)]
    turns = [turn for line in lines for turn in (_TURN.split(line) if _DASH.match(line) else [line])]
    has_two = sum(bool(_DASH.match(turn)) for turn in turns) > 1
    has_two |= any(_DASH.match(line) and _SENTENCE_END.search(before) for before, line in pairwise(lines))
    lines = [re.sub(r"^(?:\s*>>|\s*(?:—|[-‐–](?!\d))(?=\s*\S))+\s*", "", line) for line in lines]  # keeps -5
    # "Ivan:" may also be "He said:"; in a script without capital letters, such as Persian, both look the same.
    labels = [found[0] if (found := _SPEAKER_LABEL.match(line)) else "" for line in lines]
    is_unclear = any(not label.isupper() and not label.islower() for label in filter(None, labels))
    has_two |= any(label.isupper() and label != labels[0] for label in labels)
    lines = [_SPEAKER_LABEL.sub(lambda found: "" if found[0].isupper() else found[0], line) for line in lines]
    return one_line(" ".join(lines)), "two speakers" if has_two else "speaker label or speech" * is_unclear


def read_transcript(path: Path, language: str) -> list[Piece]:
    """Reads a plain text and splits it into sentences; long sentences are split into clauses.

    Paragraphs are separated by blank lines if the file has any, otherwise by line breaks.

    Raises `UserError` if the file is not text, or contains no letters or digits.
    """
    pieces, text = [], _read_text(path).strip()
    for paragraph in re.split(r"\n\s*\n" if re.search(r"\n\s*\n", text) else r"\n", text):
        for sentence in split_sentences(one_line(_TAGS.sub(" ", paragraph)), language):
            clauses = _CLAUSE_END.split(sentence) if len(sentence) > 80 else [sentence]
            for one in clauses:
                if count_letters(one):
                    pieces.append(Piece(one, ends_sentence=one is clauses[-1]))
                elif pieces:  # such as a single dash
                    pieces[-1] = Piece(f"{pieces[-1].text} {one}", ends_sentence=one is clauses[-1])
    if not pieces:
        raise UserError(f"{path} contains no letters or digits.")
    return pieces


def _read_text(path):
    try:
        return re.sub("\r\n?", "\n", read_bounded(path, 64 * 2**20))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path} {error}. Save it as UTF-8.") from None


def one_line(text: str) -> str:
    """Returns a text in one line, without `|`, which separates columns in the lists of clips."""
    return " ".join(text.replace("|", " ").split())


def synchronize(
    cues: Sequence[Piece], starts: np.ndarray, ends: np.ndarray, path: Path | None = None
) -> tuple[list[Piece], str]:
    """Corrects offset and drift of subtitles; `starts` and `ends` are the times of speech segments, `(N,)` seconds.

    Correlates four-minute windows of cues with the speech, fits a line robustly through the best offsets, and refines
    this line so that cues and segments start together. Also fits time-reversed cues, to see how many match by chance.

    Returns the cues with corrected times, and a note for the user on the correction ("" if it is below 0.1 s). Raises
    `UserError` if the cues match the speech no better than by chance. The message names `path`, the file of the cues.
    """
    times, count = np.array([[cue.start, cue.end] for cue in cues]), len(cues)
    offset, drift, matched = _fit(times, starts, ends)
    chance = _fit(np.sort(times.max() - times[:, ::-1], axis=0), starts, ends)[2]
    if count >= TELLING and matched <= chance + 0.12 + 0.6 / np.sqrt(count):
        shares = f"{matched:.0%} of cues fit, {chance:.0%} by chance"
        raise UserError(f"{path} does not belong to the recording, or is mistimed: {shares}.")
    moved = times * (1 + drift) + offset
    late = _nearest(moved[:, 1], ends)
    near = late[np.abs(late) < 1.0]
    stay = np.clip(-np.median(near), -0.5, 1.0) if len(near) else 0.0  # cues are shown longer than the speech
    spans = zip(moved[:, 0].tolist(), np.maximum(moved[:, 1] - stay, moved[:, 0] + 0.1).tolist())
    parts = [f"{abs(offset):.2f} s {'early' if offset > 0 else 'late'}"] if abs(offset) >= 0.1 else []
    if abs(drift) * times.max() >= 0.1:
        parts.append(f"{100 * abs(drift):.3f} % too {'fast' if drift > 0 else 'slow'}")
    note = f"the subtitles are {' and '.join(parts)}; corrected" if parts else ""
    return [replace(cue, start=start, end=end) for cue, (start, end) in zip(cues, spans)], note


def _fit(times, starts, ends):
    """Fits the times of cues to speech; returns the offset in seconds, the drift, and the fraction of cues that match.

    Subtitles may be timed for another frame rate: the usual ratios of frame rates are tried, and the best fit is used.
    """
    lines, seconds = [], max(times.max() * max(_FRAME_RATE_RATIOS), ends.max()) + 1
    speech, slopes = _signals(starts, ends, seconds), np.linspace(-_MAX_DRIFT, _MAX_DRIFT, 121)
    for ratio in _FRAME_RATE_RATIOS:
        if not (peaks := list(_peaks(times * ratio, speech))):
            continue
        centers, offsets, scores = np.array(peaks).T
        found = []
        for slope in slopes if np.ptp(centers) > 0 else [0.0]:
            at_zero = offsets - slope * centers
            near = np.abs(at_zero[:, np.newaxis] - at_zero) < 0.4
            support = near @ scores
            best = near[support.argmax()]
            found.append((support.max(), np.average(at_zero[best], weights=scores[best]), slope))
        _, offset, slope = max(found, key=lambda one: one[0])
        lines.append(_fit_line(times, starts, offset, ratio * (1 + slope) - 1))
    return max(lines or [_fit_line(times, starts, 0.0, 0.0)], key=lambda line: line[2])


def _signals(starts, ends, seconds):
    """Returns two `(T,)` signals at `_RATE` Hz: activity (0 or 1) minus its mean, and smooth pulses at `starts`."""
    size = int(np.ceil(seconds * _RATE)) + 1
    begins, finishes = (
        np.bincount(np.clip((edges * _RATE).astype(int), 0, size), minlength=size + 1)[:size].astype(float)
        for edges in (starts, ends)
    )
    active = (np.cumsum(begins - finishes) > 0).astype(float)
    return active - active.mean(), gaussian_filter1d(begins, 2.0)


def _peaks(times, speech):
    """Splits the cues into windows. Yields (center of the window in s, likely offset in s, score of the offset)."""
    count = max(1, round(np.ptp(times) / 240.0))
    edges = np.linspace(times.min(), times.max() + 1e-6, count + 1)
    for chosen in np.unique(np.linspace(0, count - 1, 14).astype(int)):
        part = times[(times[:, 0] >= edges[chosen]) & (times[:, 0] < edges[chosen + 1])]
        if len(part) < 2:
            continue
        origin, last = part.min(), int((part.max() + _MAX_OFFSET_SECONDS) * _RATE)
        if (first := int(max(0.0, origin - _MAX_OFFSET_SECONDS) * _RATE)) >= len(speech[0]):
            continue
        own = _signals(part[:, 0] - origin, part[:, 1] - origin, np.ptp(part) + 0.5)
        found = [correlate(theirs[first:last], mine - mine.mean(), "full", "fft") for mine, theirs in zip(own, speech)]
        total = sum(one / (one.std() or 1.0) for one in found)
        offsets = (first + np.arange(len(total)) - (len(own[0]) - 1)) / _RATE - origin
        peaks = find_peaks(total, height=0.0, distance=_RATE // 2)[0]
        for best in peaks[np.argsort(-total[peaks])[:4]]:  # offset hypotheses per window
            yield part.mean(), offsets[best], total[best] ** 2


def _fit_line(times, starts, offset, drift):
    """Aligns starts of cues and speech. Returns the refined `offset` and `drift`, and the fraction of matching cues."""
    cues = times[:, 0]
    late_by = lambda: _nearest(cues * (1 + drift) + offset, starts)
    for near in (1.0, 0.6, 0.4, 0.25, 0.25, 0.15, 0.15):
        late = late_by()
        used = np.abs(late - np.median(late[np.abs(late) < near])) < near if (np.abs(late) < near).any() else []
        if np.count_nonzero(used) < 2:
            break
        x, y, slope = cues[used], late[used], 0.0
        if len(x) >= TELLING and np.ptp(x) > 0:
            few = np.linspace(0, len(x) - 1, min(len(x), 400)).astype(int)
            slope = theilslopes(y[few], x[few]).slope
        offset, drift = offset + np.median(y - slope * x), drift + slope
    late = late_by()
    near = np.abs(late) < _NEAR_SECONDS
    count, error = np.count_nonzero(near), np.inf
    if count >= TELLING:
        error = (1.5 * np.median(np.abs(late[near])) + 0.005) / (np.std(cues[near]) * np.sqrt(count) + 1e-9)
    if abs(drift) <= 2 * error:  # uncertain
        drift = 0.0
    late = late_by()
    near = np.abs(late) < (0.15 if drift else 0.5)
    if drift and np.count_nonzero(near) >= TELLING:
        slope, shift = np.polyfit(cues[near], late[near], 1)  # finer than medians
        offset, drift = offset + shift, drift + slope
    elif not drift and near.any():
        offset += np.median(late[near])
    return offset, drift, np.mean(np.abs(late_by()) < _NEAR_SECONDS)


def _nearest(times, edges):
    """Returns the signed distance in seconds from each time to the nearest of the sorted `edges`."""
    right = np.searchsorted(edges, times)
    left, right = edges[np.maximum(right - 1, 0)] - times, edges[np.minimum(right, len(edges) - 1)] - times
    return np.where(np.abs(left) < np.abs(right), left, right)
