"""Progress bars of commands; none where the output is not a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def clip_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar as a function of `(done, total)`, for `inspect_corpus`, in a `with` block."""
    with tqdm(desc=title, unit="clip", disable=not sys.stdout.isatty(), leave=False, dynamic_ncols=True) as bar:

        def progress(done, total):
            bar.total = total
            bar.update(done - bar.n)

        yield progress
