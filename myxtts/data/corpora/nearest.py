"""What to say of a folder that no format recognizes: what was seen there, and which format it comes nearest to."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import counted, printable
from myxtts.data.corpora.base import CorpusFormat, Place

_MOST_NAMES = 2_000
_LEVELS = 3


def nothing_fits(place: Place, formats: Sequence[CorpusFormat]) -> str:
    """The message for a place that none of the formats reads; the way out is the nearest format's."""
    names = [*islice(_names(place.path), _MOST_NAMES)]
    known = {form: [sign for sign in form.signs if any(_fits(name, sign) for name in names)] for form in formats}
    usual = next((form for form in formats if form.name == "ljspeech"), formats[0])
    # Any audio, any list: a name says more than a suffix.
    nearest = max([usual, *formats], key=lambda form: sum(0.3 if "*" in sign else 1 for sign in known[form]))
    if place.list_path:
        what = f"{place.list_path} is not a list of clips that is known"
    elif len(formats) > 1:
        what = f"{place.path} holds no metadata.csv and nothing else that is known"
    else:
        what = f"{place.path} is not of the format {formats[0].name}"
    there = f"; of that, {' and '.join(known[nearest])} is there" if known[nearest] else ""
    way_out = f"The nearest format is {nearest.name}: a folder with {nearest.hint or 'a list with a header'}{there}"
    return f"{what}. Seen: {_summary(names)}. {way_out}. docs/data.md shows all formats."


def _names(root: Path) -> Iterator[str]:
    """Names of files and, with a slash, of folders, a few levels down; links are not followed."""
    for folder, folders, files in os.walk(root):
        yield from (f"{name}/" for name in sorted(folders))
        yield from sorted(files)
        too_deep = len(Path(folder).relative_to(root).parts) + 1 >= _LEVELS
        folders[:] = [] if too_deep else sorted(name for name in folders if name[0] != ".")


def _fits(name, sign):
    if sign == "*.wav":
        return name.lower().endswith(AUDIO_EXTENSIONS)
    return fnmatch(name, sign)


def _summary(names):
    counts = Counter(os.path.splitext(name)[1].lower() or "without suffix" for name in names if name[-1] != "/")
    folders = [name for name in names if name[-1] == "/"]
    seen = [f"{counted(count, 'file')} {ending}" for ending, count in counts.most_common(5)]
    seen += [f"folders {', '.join(folders[:5])}{', …' if folders[5:] else ''}"] if folders else []
    few = [name for name in names if name[-1] != "/" and not name.lower().endswith(AUDIO_EXTENSIONS)][:5]
    return printable("; ".join([*seen, *([f"such as {', '.join(few)}"] if few else [])]) or "nothing")
