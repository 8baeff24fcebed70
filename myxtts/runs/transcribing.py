"""Recordings without texts in `--train-data`: cut and transcribed into a data set in the run's folder."""

import io
import json
import re
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path

from myxtts.config.checks import UserError, counted, printable, require, say
from myxtts.config.config import XTTSConfig
from myxtts.data.corpora import SUBTITLES, TextsMissing, files_beside
from myxtts.hearing.recognizers import settle_recognizer
from myxtts.storage.files import digest_bytes, digest_file

DATA_SETS = "dataset"
"""Folder within the run's. Each set of recordings, language and recognizer has a folder of its own in it."""
DEFAULT_RECOGNIZER = "base"


def transcribe(config: XTTSConfig, missing: TextsMissing, quiet: bool = False) -> XTTSConfig:
    """Cuts the recordings into clips with texts, as `myxtts make-dataset` does; finished recordings are kept.

    Subtitles beside a recording are used; else `evaluation_recognizer` transcribes it, by default Whisper base. Each
    folder of recordings is a speaker; a single recording is a speaker of its own name. Recordings that cannot be used
    are reported and skipped.

    Returns:
        The configuration with the new data set as its training data.

    Raises:
        UserError: The recognizer cannot be used, no clip could be made, or the run's folder is among the recordings.
    """
    data, home, root = config.data, Path(config.training.checkpoint_dir), missing.root
    outside = not home.resolve().is_relative_to(root.resolve())
    require(outside, "--checkpoint-dir", "a folder outside of the recordings", printable(str(home)))
    recognizer = config.training.evaluation_recognizer or ""
    if not recognizer and not all(files_beside(path, SUBTITLES) for path in missing.recordings):
        recognizer = DEFAULT_RECOGNIZER
    language = data.language or "en"
    folder = home / DATA_SETS / _key(missing.recordings, language, recognizer)
    finished, with_set = folder.with_suffix(".done"), replace(config, data=replace(data, train_data=str(folder)))
    if finished.is_file() and folder.is_dir():
        return with_set
    if recognizer:
        settle_recognizer(recognizer)
    if not quiet:
        how = f"with the recognizer {printable(recognizer)}" if recognizer else "by the subtitles"
        recordings = counted(len(missing.recordings), "recording")
        say(f"{printable(str(root))}: cutting {recordings} in {language} into clips {how}, in {folder}")
    longest = min(11.5, data.max_seconds)
    options = dict(recognizer=recognizer, language=language, max_seconds=longest, min_seconds=min(1.0, longest / 2))
    with redirect_stdout(io.StringIO()) if quiet else nullcontext():
        if _make(missing, folder, options):
            finished.touch()
    return with_set


def _make(missing, folder, options):
    """Adds the recordings of each speaker to the set, one by one if some cannot be used. Returns whether all could."""
    import myxtts  # the data set maker is an app

    speakers: dict[str, list[Path]] = {}
    for path in missing.recordings:
        speakers.setdefault(_speaker_of(path, missing.root), []).append(path)
    pending = list(speakers.items())
    fault = None
    while pending:
        speaker, paths = pending.pop(0)
        try:
            myxtts.make_dataset(paths, folder, speaker=speaker, **options)
        except UserError as error:
            fault = error
            if len(paths) > 1:
                pending = [(speaker, [path]) for path in paths] + pending
            else:
                say(f"Skipped {printable(str(paths[0]))}: {error}")
    lists = [one.read_text("utf-8").splitlines() for one in folder.glob("metadata_*.csv")]
    if fault and not any(len(lines) > 1 for lines in lists):
        raise fault
    return fault is None


def _speaker_of(path, root):
    """Returns the name of a single recording, or the path of its folder below the recordings."""
    inner = "_".join(path.parent.relative_to(root).parts) if path != root else path.stem
    return " ".join(re.split(r"[|\s]+", inner or root.resolve().name)).strip() or "speaker"


def _key(recordings, language, recognizer):
    """Returns a folder name that changes with the recordings, their subtitles and language, and the recognizer."""
    files = [file for path in recordings for file in (path, *files_beside(path, SUBTITLES))]
    contents = [[file.name, digest_file(file) if file.is_file() else ""] for file in files]
    return digest_bytes(json.dumps([contents, language, recognizer]).encode(), 4)
