"""Recordings without texts in `--train-data`: cut and transcribed into a data set in the run's folder."""

import io
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path

from myxtts.config.checks import counted, printable, say
from myxtts.config.config import XTTSConfig
from myxtts.data.corpora import SUBTITLES, TextsMissing
from myxtts.hearing.recognizers import settle_recognizer

DATA_SET = "dataset"
"""Folder within the run's."""
DEFAULT_RECOGNIZER = "base"


def transcribe(config: XTTSConfig, missing: TextsMissing, quiet: bool = False) -> XTTSConfig:
    """Cuts the recordings into clips with texts, as `myxtts make-dataset` does; finished recordings are kept.

    Subtitles beside a recording are used; else `evaluation_recognizer` transcribes it, by default Whisper base. Each
    folder of recordings is a speaker; a single recording is a speaker of its own name.

    Returns:
        The configuration with the new data set as its training data.

    Raises:
        UserError: No recognizer can be used, or no clip could be made.
    """
    import myxtts  # the data set maker is an app

    data, root = config.data, printable(str(missing.root))
    folder = Path(config.training.checkpoint_dir) / DATA_SET
    has_subtitles = lambda path: any(path.with_suffix(one).is_file() for one in SUBTITLES)
    recognizer = config.training.evaluation_recognizer or ""
    if not recognizer and not all(map(has_subtitles, missing.recordings)):
        recognizer = DEFAULT_RECOGNIZER
    if not quiet:
        how = f"with the recognizer {printable(recognizer)}" if recognizer else "by the subtitles"
        say(f"{root}: cutting {counted(len(missing.recordings), 'recording')} into clips {how}, in {folder}")
    if recognizer:
        settle_recognizer(recognizer)
    speakers: dict[str, list[Path]] = {}
    for path in missing.recordings:
        speakers.setdefault(path.stem if path == missing.root else path.parent.resolve().name, []).append(path)
    options = dict(recognizer=recognizer, max_seconds=min(11.5, data.max_seconds), language=data.language or "en")
    with redirect_stdout(io.StringIO()) if quiet else nullcontext():
        for speaker, paths in speakers.items():
            myxtts.make_dataset(paths, folder, speaker=speaker, **options)
    return replace(config, data=replace(data, train_data=str(folder)))
