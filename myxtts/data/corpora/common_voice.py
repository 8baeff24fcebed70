"""Mozilla Common Voice: `.tsv` lists with a header, audio in `clips/`."""

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.folder import ClipRefused
from myxtts.data.corpora.split_lists import read_split

CLIPS = "clips"


def read(reading: Reading, place: Place) -> bool:
    """Reads `train.tsv`, else `validated.tsv`, or the list that is named itself.

    `dev.tsv` is for validation, without one `test.tsv`.
    """
    files = reading.folder.files(place.path)
    if place.path / CLIPS not in reading.folder.subfolders(place.path):
        return False
    if place.list_path:
        return read_split(reading, place, place.list_path, None, (), (place.path / CLIPS,))
    lists = {
        name: place.path / f"{name}.tsv" for name in ("train", "validated", "dev", "test") if f"{name}.tsv" in files
    }
    training = lists.get("train", lists.get("validated"))
    if training is None:
        return False
    validation, *others = [lists[name] for name in ("dev", "test") if name in lists] or [None]
    if not read_split(reading, place, training, validation, others, (place.path / CLIPS,)):
        raise ClipRefused("unreadable", f"{training.name} has no header with the columns path and sentence.")
    if "train" in lists and "validated" in lists:
        reading.notes.append("validated.tsv has more clips than train.tsv; to train on them, name that file itself.")
    return True


_HINT = "train.tsv or validated.tsv (Common Voice, audio in clips/)"
FORMAT = CorpusFormat("common-voice", 6, _HINT, read, ("train.tsv", "validated.tsv", f"{CLIPS}/"))
