"""Which stretches of speech hold which pieces of text, with the certainty of each boundary.

A path through stretches and pieces matches some stretches with some pieces, skips speech that is not in the text, and
skips text that is not spoken. Its probability follows from durations, lengths of pauses and the times of the pieces.
All paths are summed by the forward-backward algorithm (Rabiner 1989, "A Tutorial on Hidden Markov Models", section
III), so that a boundary is believed for what all paths together say, not because the best path passes it.
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
# Low, so that speech in no text makes what is around it doubtful rather than wrong.
_SKIP_SPEECH, _SKIP_SPEECH_PER_SECOND, _SKIP_SPEECH_MOST = 2.5, 0.1, 4.0
_SKIP_TEXT, _SKIP_TEXT_PER_CHARACTER, _SKIP_TEXT_MOST = 6.0, 0.1, 14.0
_RUN_ON_SENTENCE, _RUN_ON_CLAUSE = -3.5, -1.5
_PAUSE_STEEPNESS, _PAUSE_DOUBT = 3.0, 0.03
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
        pieces: In the order in which they are spoken, with times in the recording.

    Returns:
        Groups in order, which cover all stretches and all pieces.
    """
    if not len(starts) or not pieces:
        return [Group(0, len(starts), 0, len(pieces))] if len(starts) or pieces else []
    groups = _certain_groups(_Lattice(starts, ends, pieces, _first_pace(pieces)))
    told = [one for one in groups if not one.doubt and one.last > one.first and one.last_piece > one.first_piece]
    if len(told) < 3:
        return groups
    lengths = ends - starts
    paces = [
        lengths[one.first : one.last].sum() / sum(p.num_characters for p in pieces[one.first_piece : one.last_piece])
        for one in told
    ]
    return _certain_groups(_Lattice(starts, ends, pieces, float(np.median(paces))))


def fits_better_than_chance(starts: np.ndarray, ends: np.ndarray, pieces: Sequence[Piece]) -> bool:
    """Whether the pieces in their order are far more probable than in two others: else they belong to other speech.

    Too few pieces cannot tell, and are believed. Times stay where they are; arguments are those of `align`.
    """
    count = len(pieces)
    if count < _TELLING_PIECES:
        return True

    def log_probability(texts):
        moved = [replace(one, start=there.start, end=there.end) for one, there in zip(texts, pieces)]
        lattice = _Lattice(starts, ends, moved, _first_pace(moved))
        return lattice.forward()[-1, count - lattice.low[-1]]

    third = count // 3
    others = [*pieces[third:], *pieces[:third]], pieces[::-1]
    return log_probability(pieces) > max(map(log_probability, others)) + _OVER_CHANCE_PER_PIECE * count


def _first_pace(pieces):
    """Seconds of speech a character, before anything is aligned."""
    return float(np.median([(one.end - one.start) / one.num_characters for one in pieces]))


class _Lattice:
    """Boundaries `i` of N stretches and `j` of M pieces, from 0, and what the ways between them cost.

    Of each `i` only a band of `j` near its time is looked at: column `c` of row `i` of a table is `low[i] + c`.
    """

    def __init__(self, starts, ends, pieces, pace):
        self.num_stretches, self.num_pieces, self.pace = len(starts), len(pieces), pace
        self.starts, self.ends = starts, ends
        self.hint_starts, self.hint_ends = np.array([(one.start, one.end) for one in pieces], float).T
        self.speech = np.concatenate([[0], np.cumsum(ends - starts)])
        counts = np.array([one.num_characters for one in pieces], float)
        self.characters = np.concatenate([[0], np.cumsum(counts)])
        self.is_sentence = np.array([True, *(one.ends_sentence for one in pieces)])
        # Forced cuts have no pause at all.
        gaps = np.concatenate([[np.inf], np.maximum(starts[1:] - ends[:-1], 0.05), [np.inf]])
        self.log_ends, log_inner = self._pause_costs(gaps)
        self.inner = np.concatenate([[0.0], np.cumsum(log_inner)])
        run_on = np.where(self.is_sentence, _RUN_ON_SENTENCE, _RUN_ON_CLAUSE)
        run_on[1:-1][self.hint_starts[1:] - self.hint_ends[:-1] > _HINT_GAP_SECONDS] = _RUN_ON_GAP
        self.run_on = np.concatenate([[0.0], np.cumsum(run_on)])
        skip_speech = _SKIP_SPEECH + _SKIP_SPEECH_PER_SECOND * (ends - starts)
        self.skip_speech = -np.minimum(skip_speech, _SKIP_SPEECH_MOST)
        self.skip_text = -np.minimum(_SKIP_TEXT + _SKIP_TEXT_PER_CHARACTER * counts, _SKIP_TEXT_MOST)
        times = np.concatenate([[starts[0]], (ends[:-1] + starts[1:]) / 2, [ends[-1]]])
        low = np.searchsorted(self.hint_ends, times - _HINT_REACH_SECONDS)
        high = np.searchsorted(self.hint_starts, times + _HINT_REACH_SECONDS) + 1
        low[0], high[-1] = 0, self.num_pieces + 1
        self.width = int((high - low).max()) + 1
        self.low = np.maximum.accumulate(np.clip(low, 0, max(0, self.num_pieces + 1 - self.width)))

    def _pause_costs(self, gaps):
        """Log-probabilities that a pause lies between sentences, and that it does not, `(N + 1,)` each.

        What counts as long follows from how many sentences and pauses there are.
        """
        inner = gaps[1:-1]
        share = 0.9 * np.count_nonzero(self.is_sentence[1:-1]) / max(1, len(inner))
        usual = np.quantile(inner, 1 - np.clip(share, 0.05, 0.95)) if len(inner) else 0.5
        odds = _PAUSE_STEEPNESS * np.log(np.minimum(gaps, 60) / max(usual, 0.1))
        between = np.clip(1 / (1 + np.exp(-odds)), _PAUSE_DOUBT, 1 - _PAUSE_DOUBT)
        return np.log(between), np.log(1 - between)

    def forward(self) -> np.ndarray:
        """Log-probability of all paths up to each boundary, `(N + 1, width)`."""
        table = np.full((self.num_stretches + 1, self.width), -np.inf)
        for i in range(self.num_stretches + 1):
            if i == 0:
                arrived = np.where(self.columns(0) == 0, 0.0, -np.inf)
            else:
                rows, columns, scores = self.ways_to(i)
                arrived = logsumexp(table[rows, columns] + scores, axis=0)
            table[i] = self._skip_text(i, arrived, 1)
        return table

    def backward(self) -> np.ndarray:
        """Log-probability of all paths from each boundary on, `(N + 1, width)`."""
        table = np.full((self.num_stretches + 1, self.width), -np.inf)
        table[-1, self.num_pieces - self.low[-1]] = 0.0
        for i in range(self.num_stretches, -1, -1):
            table[i] = self._skip_text(i, table[i], -1)
            if i:
                rows, columns, scores = self.ways_to(i)
                np.logaddexp.at(table, (rows, columns), scores + table[i])
        return table

    def columns(self, i):
        """Boundaries of text of row `i`."""
        return self.low[i] + np.arange(self.width)

    def _skip_text(self, i, values, step):
        """Adds the ways that skip pieces, towards the end (`step` 1) or the beginning (-1)."""
        columns = self.columns(i)
        skipped = np.concatenate([[0], np.cumsum(self.skip_text)])[np.minimum(columns, self.num_pieces)]
        row = np.where(columns <= self.num_pieces, values - step * skipped, -np.inf)
        return np.logaddexp.accumulate(row[::step])[::step] + step * skipped

    def ways_to(self, i):
        """Ways to the boundaries of row `i`: the rows and columns they come from and their log-probabilities.

        Matches of up to 16 stretches with up to 4 pieces, and last the way that skips a stretch, `(ways, width)` each.
        """
        columns = self.columns(i)
        inside = np.minimum(columns, self.num_pieces)
        befores = np.arange(i - 1, max(-1, i - 1 - _MAX_STRETCHES), -1)[:, None, None]
        from_columns = columns - np.arange(1, _MAX_PIECES + 1)[:, None]
        start = np.clip(from_columns, 0, self.num_pieces)
        number = np.maximum(self.characters[inside] - self.characters[start], 1.0)
        spread = np.sqrt(_RATE_VARIANCE + _RATE_VARIANCE_OF_ONE / number)
        at_start = np.where(self.is_sentence[start], 0.5, 0.0)
        at_end = np.where(self.is_sentence[inside], 0.5, 0.0)
        text = self.run_on[inside] - self.run_on[np.minimum(start + 1, self.num_pieces + 1)] - np.log(spread)
        text = text + at_end * self.log_ends[i] + (1.0 - at_end - at_start) * -0.7
        text = text + _hint(self.ends[i - 1] - self.hint_ends[np.clip(inside - 1, 0, None)])
        away = (np.log(self.speech[i] - self.speech[befores]) - np.log(number * self.pace)) / spread
        scores = -0.5 * away**2 + text + (self.inner[i] - self.inner[befores + 1]) + at_start * self.log_ends[befores]
        scores += _hint(self.starts[befores] - self.hint_starts[np.minimum(start, self.num_pieces - 1)])
        index = from_columns - self.low[befores]
        scores[(index < 0) | (index >= self.width) | (from_columns < 0)] = -np.inf
        skipped = columns - self.low[i - 1]
        skip = np.where((skipped >= 0) & (skipped < self.width), self.skip_speech[i - 1], -np.inf)
        rows = np.append(np.broadcast_to(befores, scores.shape)[..., 0].reshape(-1, 1), [[i - 1]], axis=0)
        index = np.vstack([index.reshape(-1, self.width), skipped])
        return rows, np.clip(index, 0, self.width - 1), np.vstack([scores.reshape(-1, self.width), skip])


def _hint(away):
    """Log-probability of a time of a cue that is off by so much; people are off by half a second now and then."""
    return np.maximum(_HINT_BONUS - _HINT_STEEPNESS * np.log1p((away / _HINT_SECONDS) ** 2), _HINT_FLOOR)


def _certain_groups(lattice):
    n, m, low = lattice.num_stretches, lattice.num_pieces, lattice.low
    forward, backward = lattice.forward(), lattice.backward()
    total = forward[n, m - low[n]]
    posterior = np.exp(np.minimum(forward + backward - total, 0.0))
    certain = [(int(i), int(low[i] + c)) for i, c in np.argwhere(posterior >= CERTAIN) if low[i] + c <= m]
    boundaries = sorted({(0, 0), (n, m), *certain})
    unheard, unsaid = _skips(lattice, forward, backward, total)
    groups = []
    for (i, j), (i_next, j_next) in zip(boundaries, boundaries[1:]):
        odd = max([*unheard[i:i_next], *unsaid[j:j_next]]) if i_next > i and j_next > j else 0.0
        groups.append(Group(i, i_next, j, j_next, "doubtful text" if odd > 1 - CERTAIN else ""))
    return groups


def _skips(lattice, forward, backward, total):
    """Probabilities that a stretch is not in the text, `(N,)`, and that a piece is not spoken, `(M,)`."""
    n, m, width = lattice.num_stretches, lattice.num_pieces, lattice.width
    unheard, unsaid = np.zeros(n), np.zeros(m)
    for i in range(n + 1):
        if i < n:
            index = lattice.columns(i) - lattice.low[i + 1]
            inside = (index >= 0) & (index < width)
            through = forward[i][inside] + backward[i + 1][index[inside]] + lattice.skip_speech[i] - total
            unheard[i] = np.exp(np.minimum(logsumexp(through), 0.0)) if len(through) else 0.0
        pieces = lattice.columns(i)[:-1]
        inside = pieces < m
        through = forward[i][:-1] + backward[i][1:] + lattice.skip_text[np.minimum(pieces, m - 1)] - total
        np.add.at(unsaid, pieces[inside], np.exp(np.minimum(through[inside], 0.0)))
    return unheard, unsaid
