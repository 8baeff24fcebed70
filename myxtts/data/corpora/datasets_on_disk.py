"""Layout of `datasets.Dataset.save_to_disk`: Arrow files that contain the audio, read by the library `datasets`.

The recordings are extracted once, into the user's cache, as audio files.
"""

from myxtts.config.checks import UserError
from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused
from myxtts.data.corpora.tables import cells_to_utterance, names_to_columns, read_parts
from myxtts.storage.files import digest_bytes, user_cache, write_whole

STATE, SPLITS = "state.json", "dataset_dict.json"


def read(reading: Reading, place: Place) -> bool:
    """Reads a saved data set, or the `train` and `validation` (else `test`) parts of a saved `DatasetDict`."""
    if not {STATE, SPLITS} & {*reading.folder.files(place.path)}:
        return False
    if not reading.folder.has(place.path, SPLITS):
        _read_saved(reading, place)
        return True
    names = {path.name: path for path in reading.folder.subfolders(place.path) if reading.folder.has(path, STATE)}
    if not names:
        raise ClipRefused("unreadable", f"{SPLITS} is there, but no part of the data set.")
    training = "train" if "train" in names else next(iter(names))
    read_parts(reading, place, names, training, lambda part: _read_saved(reading, part))
    return True


def _read_saved(reading, place):
    try:
        import datasets
    except ImportError as error:
        missing = f"{place.path} was saved by the library datasets, which is not installed"
        raise UserError(f'{missing}. Install it with: pip install datasets (or ".[datasets]").') from error
    rows = datasets.load_from_disk(str(place.path))
    audio = next((name for name, kind in rows.features.items() if isinstance(kind, datasets.Audio)), None)
    labels = {name: kind for name, kind in rows.features.items() if isinstance(kind, datasets.ClassLabel)}
    is_text = lambda name: getattr(rows.features[name], "dtype", "") in ("string", "large_string")
    names = [name for name in rows.column_names if name == audio or name in labels or is_text(name)]
    columns = dict(zip(names, names_to_columns(["audio" if name == audio else name for name in names])))
    if audio is None or not {"text", "normalized"} & {*columns.values()}:
        columns = ", ".join(rows.column_names)[:200]
        raise UserError(f"{place.path} must have a column of audio and one of text. Its columns are: {columns}.")
    rows = rows.select_columns(names).cast_column(audio, datasets.Audio(decode=False))
    target = _recordings_folder(place.path, rows)
    reading.folder.allow(target)
    reading.notes.append(f"The recordings in {reading.folder.relative(place.path)} were extracted to {target}.")
    for number, row in enumerate(rows, 1):
        with reading.clip(f"row {number}", number, place.path / STATE):
            row |= {name: kind.int2str(row[name]) for name, kind in labels.items() if row[name] is not None}
            cells = {columns[n]: " ".join(str(row[n] or "").split()) for n in names if n != audio and columns[n]}
            cells["id"] = _extract(row[audio] or {}, target, number)
            reading.add(cells_to_utterance(reading, place, cells, number, (place.path,)))


def _recordings_folder(path, rows):
    name = digest_bytes(f"{path}\n{rows._fingerprint}\n{(path / STATE).stat().st_mtime_ns}".encode(), 8)
    folder = user_cache() / "datasets" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _extract(recording, folder, number):
    """Returns the path of one row's recording: of a file with the bytes in the row, else the path in the row."""
    content = recording.get("bytes")
    if content is None:
        return str(recording.get("path") or "")
    path = folder / f"{number:07}.wav"  # whatever its format is: audio is recognized by content
    if not path.is_file() or path.stat().st_size != len(content):
        with write_whole(path) as temporary:
            temporary.write_bytes(content)
    return str(path)


FORMAT = CorpusFormat("datasets", 2, f"{STATE} and .arrow files (Hugging Face datasets)", read)
