"""Which stretches of speech hold which pieces of text, with the certainty of each boundary.

A path through stretches and pieces matches some stretches with some pieces, skips speech that is not in the text, and
skips text that is not spoken. Its probability follows from durations, lengths of pauses and, for cues, times. All paths
are summed by the forward-backward algorithm (Rabiner 1989, "A Tutorial on Hidden Markov Models", section III), so that
a boundary is believed for what all paths together say, not because the best path passes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from myxtts.apps.datasets.pieces import Piece

CERTAIN = 0.975
"""A boundary of this probability is believed."""

_MAX_STRETCHES, _MAX_PIECES = 16, 4
_HINT_SECONDS, _HINT_BONUS = 0.2, 1.5  # the density at its time, against that of a boundary anywhere
_HINT_FLOOR = -14.0  # what a cue's time far off costs at most
_HINT_STEEPNESS = 1.5
_HINT_GAP_SECONDS, _RUN_ON_GAP = 0.2, -8.0
_HINT_REACH_SECONDS = 8.0
_TEXT_REACH_SECONDS, _TEXT_REACH_SHARE = 60.0, 0.1
# Low, so that speech in no text makes what is around it doubtful rather than wrong.
_SKIP_SPEECH, _SKIP_SPEECH_PER_SECOND, _SKIP_SPEECH_MOST = 2.5, 0.1, 4.0
_SKIP_TEXT, _SKIP_TEXT_PER_CHARACTER, _SKIP_TEXT_MOST = 6.0, 0.1, 14.0
_RUN_ON_SENTENCE, _RUN_ON_CLAUSE = -3.5, -1.5
_PAUSE_STEEPNESS, _PAUSE_DOUBT = 3.0, 0.03
_RATE_ROUNDS = 2
_TELLING_PIECES = 12
_OVER_CHANCE_PER_PIECE = 0.25  # right texts have 0.4 to 5, those in a wrong order less than 0.2
# Of the logarithm of seconds a character: measured on LJSpeech, VCTK and a German corpus, and a fifth more.
_RATE_VARIANCE, _RATE_VARIANCE_OF_ONE = 0.006, 0.6


@dataclass(frozen=True)
class Group:
    """Stretches `[first, last)` and pieces `[first_piece, last_piece)` between two certain boundaries.

    `doubt` says what is uncertain between them; "" where the text is that of the speech.
    """

    first: int
    last: int
    first_piece: int
    last_piece: int
    doubt: str = ""


def align(starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]) -> list[Group]:
    """Aligns pieces with stretches of speech.

    Args:
        starts, ends: Of each stretch, `(N,)` seconds.
        pieces: In the order in which they are spoken, with times in the recording or without.

    Returns:
        Groups in order, which cover all stretches and all pieces.
    """
    if not len(starts) or not pieces:
        return [Group(0, len(starts), 0, len(pieces))] if len(starts) or pieces else []
    pace = _first_pace(starts, ends, pieces)
    for round_left in reversed(range(_RATE_ROUNDS)):
        problem = _Problem(starts, ends, pieces, pace)
        groups = _certain_groups(problem)
        spoken = [_pace_of(group, starts, ends, pieces) for group in groups if _is_told(group)]
        if round_left and len(spoken) >= 3:
            pace = float(np.median(spoken))
    return groups


def fits_better_than_chance(starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]) -> bool:
    """Whether the pieces in their order are far more probable than in two others: else they belong to other speech.

    Too few pieces cannot tell, and are believed. Times stay where they are; arguments are those of `align`.
    """
    count = len(pieces)
    if count < _TELLING_PIECES:
        return True
    times = [(one.start, one.end) for one in pieces]

    def log_probability(texts):
        moved = [replace(one, start=start, end=end) for one, (start, end) in zip(texts, times)]
        problem = _Problem(starts, ends, moved, _first_pace(starts, ends, moved))
        return problem.forward()[-1, count - problem.low[-1]]

    third = count // 3
    others = [*pieces[third:], *pieces[:third]], pieces[::-1]
    return log_probability(pieces) > max(map(log_probability, others)) + _OVER_CHANCE_PER_PIECE * count


def _first_pace(starts, ends, pieces):
    """Seconds of speech a character, before anything is aligned."""
    if pieces[0].start is not None:
        return float(np.median([(one.end - one.start) / one.num_characters for one in pieces]))
    return float((ends - starts).sum() / sum(one.num_characters for one in pieces))


def _is_told(group):
    return not group.doubt and group.last > group.first and group.last_piece > group.first_piece


def _pace_of(group, starts, ends, pieces):
    characters = sum(one.num_characters for one in pieces[group.first_piece : group.last_piece])
    return (ends[group.first : group.last] - starts[group.first : group.last]).sum() / characters


class _Problem:
    """Stretches and pieces as arrays, from either end: boundaries `i` of N stretches and `j` of M pieces, from 0."""

    def __init__(self, starts, ends, pieces, pace):
        self.num_stretches, self.num_pieces, self.pace = len(starts), len(pieces), pace
        self.speech = np.concatenate([[0], np.cumsum(ends - starts)])
        self.characters = np.concatenate([[0], np.cumsum([one.num_characters for one in pieces])]).astype(float)
        self.is_hinted = pieces[0].start is not None
        hints = [(one.start, one.end) for one in pieces] if self.is_hinted else np.zeros((len(pieces), 2))
        self.hint_starts, self.hint_ends = np.array(hints, float).T
        self.starts, self.ends = starts, ends
        # Forced cuts have no pause at all.
        gaps = np.concatenate([[np.inf], np.maximum(starts[1:] - ends[:-1], 0.05), [np.inf]])
        is_sentence = np.array([True, *(one.ends_sentence for one in pieces)])
        self.log_ends, self.log_inner = self._pause_costs(gaps, is_sentence)
        self.is_sentence = is_sentence
        self.run_on = np.where(is_sentence, _RUN_ON_SENTENCE, _RUN_ON_CLAUSE)
        if self.is_hinted:
            self.run_on[1:-1][self.hint_starts[1:] - self.hint_ends[:-1] > _HINT_GAP_SECONDS] = _RUN_ON_GAP
        lengths, counts = ends - starts, np.diff(self.characters)
        self.skip_speech = -np.minimum(_SKIP_SPEECH + _SKIP_SPEECH_PER_SECOND * lengths, _SKIP_SPEECH_MOST)
        self.skip_text = -np.minimum(_SKIP_TEXT + _SKIP_TEXT_PER_CHARACTER * counts, _SKIP_TEXT_MOST)
        self.low, self.width = self._band()

    def reversed(self) -> "_Problem":
        """The same from the other end."""
        other = object.__new__(_Problem)
        vars(other).update(vars(self))
        last = max(self.ends[-1], self.hint_ends[-1])
        other.speech, other.characters = (
            self.speech[-1] - self.speech[::-1],
            self.characters[-1] - self.characters[::-1],
        )
        other.starts, other.ends = last - self.ends[::-1], last - self.starts[::-1]
        other.hint_starts, other.hint_ends = last - self.hint_ends[::-1], last - self.hint_starts[::-1]
        for name in ("log_ends", "log_inner", "is_sentence", "run_on", "skip_speech", "skip_text"):
            setattr(other, name, getattr(self, name)[::-1])
        other.low = self.num_pieces - (self.low[::-1] + self.width - 1)
        return other

    def _pause_costs(self, gaps, is_sentence):
        """Log-probabilities that a pause lies between sentences, and that it does not, `(N + 1,)` each.

        What counts as long follows from how many sentences and pauses there are.
        """
        inner = gaps[1:-1]
        share = 0.9 * np.count_nonzero(is_sentence[1:-1]) / max(1, len(inner))
        usual = np.quantile(inner, 1 - np.clip(share, 0.05, 0.95)) if len(inner) else 0.5
        odds = _PAUSE_STEEPNESS * np.log(np.minimum(gaps, 60) / max(usual, 0.1))
        between = np.clip(1 / (1 + np.exp(-odds)), _PAUSE_DOUBT, 1 - _PAUSE_DOUBT)
        return np.log(between), np.log(1 - between)

    def _band(self):
        """The first boundary of text to be looked at for each of speech, `(N + 1,)`, and how many."""
        if self.is_hinted:
            times = np.concatenate([[self.starts[0]], (self.ends[:-1] + self.starts[1:]) / 2, [self.ends[-1]]])
            low = np.searchsorted(self.hint_ends, times - _HINT_REACH_SECONDS)
            high = np.searchsorted(self.hint_starts, times + _HINT_REACH_SECONDS) + 1
        else:
            reach = max(_TEXT_REACH_SECONDS, _TEXT_REACH_SHARE * self.speech[-1]) / self.speech[-1]
            shares, texts = self.speech / self.speech[-1], self.characters / self.characters[-1]
            low, high = np.searchsorted(texts, shares - reach), np.searchsorted(texts, shares + reach) + 1
        low[0], high[-1] = 0, self.num_pieces + 1
        width = int((high - low).max()) + 1
        return np.maximum.accumulate(np.clip(low, 0, max(0, self.num_pieces + 1 - width))), width

    def forward(self) -> np.ndarray:
        """Log-probability of all paths up to each boundary, `(N + 1, width)`; column 0 of row `i` is `low[i]`."""
        table = np.full((self.num_stretches + 1, self.width), -np.inf)
        skipped = np.concatenate([[0], np.cumsum(self.skip_text)])
        for i in range(self.num_stretches + 1):
            columns = self.low[i] + np.arange(self.width)
            valid = (columns >= 0) & (columns <= self.num_pieces)
            inside = np.clip(columns, 0, self.num_pieces)
            row = np.where(columns == 0, 0.0, -np.inf) if i == 0 else self._arrive(table, i, columns, inside)
            row = np.where(valid, row, -np.inf) - skipped[inside]
            table[i] = np.where(valid, np.logaddexp.accumulate(row) + skipped[inside], -np.inf)
        return table

    def _arrive(self, table, i, columns, inside):
        """Log-probability of arriving at each boundary of text at boundary `i` of speech, by a match or a skip."""
        befores = np.arange(i - 1, max(-1, i - 1 - _MAX_STRETCHES), -1)
        counts = np.arange(1, _MAX_PIECES + 1)
        from_columns = columns - counts[:, np.newaxis]
        start = np.clip(from_columns, 0, self.num_pieces)
        number = np.maximum(self.characters[inside] - self.characters[start], 1.0)
        spread = np.sqrt(_RATE_VARIANCE + _RATE_VARIANCE_OF_ONE / number)
        run_on = np.concatenate([[0.0], np.cumsum(self.run_on)])
        text = run_on[inside] - run_on[np.minimum(start + 1, self.num_pieces + 1)] - np.log(spread)
        at_start = np.where(self.is_sentence[start], 0.5, 0.0)
        at_end = np.where(self.is_sentence[inside], 0.5, 0.0)
        text = text + at_end * self.log_ends[i] + (0.5 - at_end) * -0.7
        inner = np.concatenate([[0.0], np.cumsum(self.log_inner)])
        speech = self.speech[i] - self.speech[befores]
        away = (np.log(speech)[:, None, None] - np.log(number * self.pace)) / spread
        score = -0.5 * away**2 + text + (inner[i] - inner[befores + 1])[:, None, None]
        score += at_start * self.log_ends[befores][:, None, None] + (0.5 - at_start) * -0.7
        if self.is_hinted:
            last = np.clip(inside - 1, 0, self.num_pieces - 1)
            first = np.minimum(start, self.num_pieces - 1)
            score += _hint(self.ends[i - 1] - self.hint_ends[last])
            score += _hint(self.starts[befores][:, None, None] - self.hint_starts[first])
        index = from_columns - self.low[befores][:, None, None]
        found = table[befores[:, None, None], np.clip(index, 0, self.width - 1)]
        allowed = (index >= 0) & (index < self.width) & (from_columns >= 0)
        matched = np.where(allowed, found + score, -np.inf).reshape(-1, len(columns))
        index = columns - self.low[i - 1]
        skip = np.where((index >= 0) & (index < self.width), table[i - 1][np.clip(index, 0, self.width - 1)], -np.inf)
        return _logsumexp(np.concatenate([matched, skip[np.newaxis] + self.skip_speech[i - 1]]))


def _hint(away):
    """Log-probability of a time of a cue that is off by so much; people are off by half a second now and then."""
    return np.maximum(_HINT_BONUS - _HINT_STEEPNESS * np.log1p((away / _HINT_SECONDS) ** 2), _HINT_FLOOR)


def _logsumexp(rows):
    most = rows.max(axis=0)
    safe = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(rows - safe).sum(axis=0)) + safe


def _certain_groups(problem):
    n, m = problem.num_stretches, problem.num_pieces
    forward = problem.forward()
    backward = problem.reversed().forward()[::-1, ::-1]
    # Column c of row i of `backward` is boundary low[i] + c as well: the other end's band was made from this one.
    total = forward[n, m - problem.low[n]]
    posterior = np.exp(np.minimum(forward + backward - total, 0.0))
    columns = problem.low[:, np.newaxis] + np.arange(problem.width)
    certain = np.argwhere((posterior >= CERTAIN) & (columns <= m))
    boundaries = sorted({(0, 0), (n, m), *((int(i), int(problem.low[i] + c)) for i, c in certain)})
    unheard, unsaid = _skips(problem, forward, backward, total)
    groups = []
    for (i, j), (i_next, j_next) in zip(boundaries, boundaries[1:]):
        doubt = ""
        if i_next > i and j_next > j:
            odd = max(unheard[i:i_next].max(), unsaid[j:j_next].max())
            doubt = "doubtful text" if odd > 1 - CERTAIN else ""
        groups.append(Group(i, i_next, j, j_next, doubt))
    return groups


def _skips(problem, forward, backward, total):
    """Probabilities that a stretch is not in the text, `(N,)`, and that a piece is not spoken, `(M,)`."""
    n, m, width = problem.num_stretches, problem.num_pieces, problem.width
    unheard, unsaid = np.zeros(n), np.zeros(m)
    for i in range(n + 1):
        if i < n:
            index = np.arange(width) + problem.low[i] - problem.low[i + 1]
            inside = (index >= 0) & (index < width)
            through = forward[i][inside] + backward[i + 1][index[inside]] + problem.skip_speech[i] - total
            unheard[i] = np.exp(np.minimum(logsumexp(through), 0.0)) if len(through) else 0.0
        pieces = problem.low[i] + np.arange(width - 1)
        inside = (pieces >= 0) & (pieces < m)
        through = forward[i][:-1] + backward[i][1:] + problem.skip_text[np.clip(pieces, 0, m - 1)] - total
        np.add.at(unsaid, pieces[inside], np.exp(np.minimum(through[inside], 0.0)))
    return unheard, unsaid
