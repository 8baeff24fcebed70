"""xtts-finetune-webui: `metadata_train.csv` and `metadata_eval.csv` with a header, and the language in `lang.txt`."""

from myxtts.data.corpora.base import CorpusFormat, Place, Reading
from myxtts.data.corpora.split_lists import read_split

TRAINING, VALIDATION, LANGUAGE = "metadata_train.csv", "metadata_eval.csv", "lang.txt"


def read(reading: Reading, place: Place) -> bool:
    """Reads `metadata_train.csv`, or either of the two where it is named itself; the other one is for validation."""
    files, named = reading.folder.files(place.path), place.list_path.name if place.list_path else TRAINING
    if named not in (TRAINING, VALIDATION) or named not in files:
        return False
    validation = place.path / VALIDATION if VALIDATION in files and not place.list_path else None
    language = ""
    if LANGUAGE in files:
        language = reading.folder.read_text(place.path / LANGUAGE, 100).strip()
    audio_places = (place.path, place.path / "wavs")
    return read_split(reading, place, place.path / named, validation, (), audio_places, language)


_HINT = f"{TRAINING} and {VALIDATION} (xtts-finetune-webui: a header audio_file|text|speaker_name, and {LANGUAGE})"
FORMAT = CorpusFormat("finetune-webui", 4, _HINT, read, (TRAINING, VALIDATION, LANGUAGE))
