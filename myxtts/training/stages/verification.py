"""How well speaker vectors tell voices apart."""

import numpy as np


def equal_error_rate(same: np.ndarray, different: np.ndarray) -> float:
    """The share of wrong answers where both kinds are equally frequent, from 0 to 1; 0.5 is chance.

    A pair of clips counts as one voice where its score is at least a threshold. Between two thresholds the rates are
    taken for straight lines.

    Args:
        same: Scores of pairs of one voice, `(P,)`, at least one.
        different: Scores of pairs of two voices, `(Q,)`, at least one.
    """
    thresholds = np.unique(np.concatenate([same, different]))
    same, different = np.sort(same), np.sort(different)
    missed = np.append(np.searchsorted(same, thresholds, "left") / len(same), 1.0)
    taken = np.append(1.0 - np.searchsorted(different, thresholds, "left") / len(different), 0.0)
    place = int(np.argmax(missed >= taken))
    if place == 0:
        return float((missed[0] + taken[0]) / 2)
    gaps = taken[place - 1] - missed[place - 1], missed[place] - taken[place]
    share = gaps[0] / max(sum(gaps), 1e-12)
    return float(missed[place - 1] + share * (missed[place] - missed[place - 1]))


def verification_scores(vectors: np.ndarray, voices: np.ndarray, judged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of all pairs with a clip of a judged voice: those of one voice, and those of two.

    Args:
        vectors: `(N, D)` of unit length.
        voices: `(N,)`, whose each is; those below 0 are left out.
        judged: `(N,)` bool, whether a clip is of a voice that counts.
    """
    known = voices >= 0
    vectors, voices, judged = vectors[known], voices[known], judged[known]
    one, other = np.triu_indices(len(voices), k=1)
    counts = judged[one] | judged[other]
    one, other = one[counts], other[counts]
    scores = np.einsum("nd,nd->n", vectors[one], vectors[other])
    is_same = voices[one] == voices[other]
    return scores[is_same], scores[~is_same]
