"""Which frames of two recordings of a text belong together: dynamic time warping."""

import numpy as np
from scipy.spatial.distance import cdist


def align(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The path of least summed Euclidean distance through two sequences of frames.

    Steps go to the next frame of the one, the other or both, all at the same price (Sakoe and Chiba, "Dynamic
    programming algorithm optimization for spoken word recognition", 1978); both ends are fixed.

    Args:
        first, second: `(T, C)` and `(U, C)`, at least one frame each.

    Returns:
        Indices `(P,)` into each, and the distances `(P,)`.
    """
    distances = cdist(first, second)
    total = _accumulate(distances)
    i, j = len(first) - 1, len(second) - 1
    path = [(i, j)]
    while i or j:
        if not i or (j and total[i, j - 1] < min(total[i - 1, j], total[i - 1, j - 1])):
            j -= 1
        elif not j or total[i - 1, j] < total[i - 1, j - 1]:
            i -= 1
        else:
            i, j = i - 1, j - 1
        path.append((i, j))
    rows, columns = np.array(path[::-1]).T
    return rows, columns, distances[rows, columns]


def _accumulate(distances):
    """Least sum of distances up to each pair of frames."""
    total = np.empty_like(distances)
    total[0] = np.cumsum(distances[0])
    for row in range(1, len(distances)):
        above = total[row - 1]
        entered = np.minimum(above, np.concatenate([[np.inf], above[:-1]])) + distances[row]
        # Where a row is entered, and the way along it from there: both in one running minimum.
        along = np.cumsum(distances[row])
        total[row] = np.minimum.accumulate(entered - along) + along
    return total
