"""Lists with a header that belong together: one to train on, one for validation, and those that are not used."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from myxtts.config.checks import counted, printable
from myxtts.data.corpora.base import Place, Reading
from myxtts.data.corpora.tables import Table, cells_or_none, header_table, read_table

VALIDATION = ("validation", "valid", "val", "dev", "eval", "test")
"""Names of parts of a data set, those first that are validated on where there are several."""


def read_header_list(reading: Reading, place: Place, table: Table, left_out: Collection[str] = ()):
    """Reads a list with a header, and notes which line that was."""
    line = reading.folder.read_lines(table.path)[table.header_line][:100]
    where = f"Line {table.header_line + 1} of {reading.folder.relative(table.path)}"
    reading.notes.append(f"{where} was read as a header: {printable(line)}")
    read_table(reading, place, table, left_out)


def read_split(
    reading: Reading,
    place: Place,
    training: Path,
    validation: Path | None,
    others: Sequence[Path],
    audio_places: Sequence[Path],
    language: str = "",
) -> bool:
    """Reads a training list, and a validation list where there is one. Returns False where `training` has no header.

    Clips that the validation list or one of the `others` names are not trained on. A validation list that leaves
    nothing to train on is passed over.
    """
    table, folder = header_table(reading, training, audio_places, language), reading.folder
    if table is None:
        return False
    named = _clip_names(reading, table)
    kept_back: set[str] = set()
    for path in filter(None, (validation, *others)):
        other = header_table(reading, path, audio_places, language)
        if other is None:
            reading.notes.append(f"{folder.relative(path)} was passed over: its first line names no columns.")
            continue
        names = _clip_names(reading, other)
        if named <= names:
            why = f"it names all clips of {folder.relative(training)}"
            reading.notes.append(f"{folder.relative(path)} was passed over: {why}.")
            continue
        kept_back |= names
        if path == validation:
            read_header_list(reading, place._replace(validation=True), other)
        else:
            reading.notes.append(f"{folder.relative(path)} was left for tests: none of its clips is used.")
    if common := len(named & kept_back):
        was, it = ("was", "it") if common == 1 else ("were", "them")
        left_out = f"{counted(common, 'clip')} of {folder.relative(training)} {was} left out"
        reading.notes.append(f"{left_out}: another list keeps {it} from training.")
    read_header_list(reading, place, table, kept_back)
    return True


def read_parts(reading: Reading, place: Place, parts: dict[str, Path], training: str, read: Callable[[Place], object]):
    """Reads the folder of a data set's training part and, for validation, the best suited of `VALIDATION`.

    Others of these are noted as left for tests. `read` is called with the place of each part that is used.
    """
    validation, *others = [name for name in VALIDATION if name in parts and name != training] or [None]
    for name in others:
        reading.notes.append(f"The folder {reading.folder.relative(parts[name])} was left for tests: it is not used.")
    for name in filter(None, (validation, training)):
        read(place.below(parts[name], validation=name == validation))


def _clip_names(reading, table):
    """Names in the column of clips; lines that cannot be split are reported when the list is read."""
    lines, column = reading.folder.read_lines(table.path), table.columns.index("id")
    rows = [cells_or_none(table.dialect, line) or [] for index, line in enumerate(lines) if index != table.header_line]
    return {cells[column].strip() for cells in rows if len(cells) > column}
