"""Which shapes of batch XLA draws."""

from collections import Counter, defaultdict, deque
from statistics import median

WORTH_COMPILING_STEPS = 1000
"""Steps of one shape after which XLA compiles it. On two cores compiling took the time that it saves in 300 steps of
four rows of `small`, 800 of one row of `small`, and 1,800 of one row of `nano`."""
TRIALS = 4
"""Calls of each graph, of one shape, that are timed."""

BatchShape = tuple[int, int]
"""Rows, and rows of cache."""


class Compilation:
    """The rule by which a shape is drawn by XLA or by the plain graph; the codes are the same.

    Compiling takes as long as some hundred steps, which is nothing to a server and more than a sentence to `say`. A
    shape whose steps so far would have paid for it is compiled, so at worst it costs as much again (the rule of who
    rents skis). Nobody who waits for the first sound waits for a compiler. Once compiled, both graphs are timed, and
    the shape stays with the quicker one.
    """

    def __init__(self):
        self.steps: Counter[BatchShape] = Counter()
        """Drawn so far, by shape."""
        self._given_up: set[BatchShape] = set()
        self._seconds = defaultdict(lambda: deque(maxlen=TRIALS))

    def wants_xla(self, shape: BatchShape, is_compiled: bool, hurry: bool) -> bool:
        """Whether XLA is to draw rows of this shape, which `is_compiled` already or not; `hurry` if one waits."""
        if shape in self._given_up:
            return False
        if not is_compiled:
            return self.steps[shape] >= WORTH_COMPILING_STEPS and not hurry
        xla, plain = self._seconds[shape, True], self._seconds[shape, False]
        if len(xla) < TRIALS:
            return True
        return len(plain) == TRIALS and median(xla) <= median(plain)

    def count(self, shape: BatchShape, steps: int, xla: bool, seconds: float | None) -> None:
        """Of one call: the steps that it drew, by XLA or not, and how long it took; None for one that says nothing."""
        self.steps[shape] += steps
        if seconds is not None:
            self._seconds[shape, xla].append(seconds / steps)

    def time_anew(self, shape: BatchShape) -> None:
        """Forgets what the plain graph took while a compiler ran beside it."""
        self._seconds.pop((shape, False), None)

    def give_up(self, shape: BatchShape) -> None:
        """Says that XLA cannot compile it."""
        self._given_up.add(shape)
