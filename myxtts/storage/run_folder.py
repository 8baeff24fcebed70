"""Folder of a run: its settings, vocabulary and checkpoints. Training locks the folder. A reset moves the files aside.

The settings and the vocabulary in a checkpoint take precedence over `config.json` and `vocab.json` in the run's folder.
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from myxtts.config.checks import UserError
from myxtts.config.config import XTTSConfig
from myxtts.config.model import ModelConfig
from myxtts.config.stages import STAGES
from myxtts.storage import files
from myxtts.storage.base_model import HOMES, require_kind
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import AnyPath, CheckpointError
from myxtts.storage.saved_state import config_of
from myxtts.storage.speakers import SPEAKER_CLIPS, SPEAKERS_FILE

logger = logging.getLogger(__name__)

VOCABULARY = "vocab.json"
MEL_STATS = "mel_stats"
"""Name of the tensor with a scale per mel band, stored in the DVAE's checkpoints or, without a DVAE, in the GPT's."""
CONFIDENCE_FILE = "confidence.json"  # the `Calibration` of a model
JUDGED = ("gpt", "decoder")
"""Stages whose best checkpoint is used for speech. The other stages use their last checkpoint."""
TAKEN_FROM = "taken_from"
"""Key in a checkpoint's state for the folder that its weights were copied from."""
_PART_OF = {"num_mels": "dvae", "num_codes": "dvae", "codebook_width": "dvae", "dropout": None}
"""Part whose shapes a model setting determines (None: no part), for settings whose prefix does not name this part."""
GATHERED = ".before_reset"
"""Temporary folder in which a reset collects the files of a run before it moves them aside."""
METRICS = "metrics.jsonl"
"""File with the losses and timings of a run, one JSON object per line."""
RUN_FILES = ("config.json", VOCABULARY, SPEAKERS_FILE, SPEAKER_CLIPS, "samples", "tensorboard", METRICS, "curves.png")
"""Names of the files and folders of a run, except for the folders of its stages."""
LOG = "train.log"
TRAIN = "python train_main.py --stage {} --checkpoint-dir {} --train-data …"
"""Command that trains a missing stage, for error messages."""
RETRAIN = "Train it again with --stage {} --reset-training."
"""Hint for a stage that does not fit the rest of its run, for error messages."""
_REPORTS = (LOG, "inspected_*.json", "clips_*.csv", "diverged_*.json")
"""Patterns of the names of a run's reports, which a reset does not move aside."""


def stores_in(folder: Path) -> dict[str, CheckpointStore]:
    """Returns `{stage: CheckpointStore}` for each stage that has checkpoints, in training order."""
    stores = {stage: CheckpointStore(folder / stage) for stage in STAGES}
    return {stage: store for stage, store in stores.items() if store.steps()}


def chosen_step(store: CheckpointStore, part: str, which: str = "best") -> int:
    """Returns the last step; with `which="best"`, instead the best step if it is known and `part` is in `JUDGED`."""
    best = store.best_step() if which == "best" and part in JUDGED else None
    return store.steps()[-1] if best is None else best


def require_trained(folder: Path, what: str) -> None:
    """Raises `CheckpointError` if the stage in `folder` is not fully trained. The error message begins with `what`."""
    name, state = folder.name, CheckpointStore(folder).newest_state()
    if state is None:
        raise CheckpointError(f"{what} needs a trained {name}. Leave out --stage, or train it with --stage {name}.")
    if not state["finished"]:
        step = state["step"]
        accept = f" (--max-steps {step} accepts it as it is)" * bool(step)
        raise CheckpointError(f"{what} needs a {name} trained to the end. Resume {folder} with --stage {name}{accept}.")


def is_start(state: dict | None) -> bool:
    """Returns whether `state` describes weights that were copied from another run and are not trained yet."""
    return bool(state) and TAKEN_FROM in state and not state["finished"]


def shape_settings(model: ModelConfig, parts: Collection[str]) -> dict[str, Any]:
    """Returns `{name: value}` of model settings that determine the weight shapes of `parts`, e.g. "gpt" or "dvae"."""
    named = lambda name: next((part for part in ("dvae", "speaker", "decoder") if name.startswith(f"{part}_")), "gpt")
    return {name: value for name, value in asdict(model).items() if _PART_OF.get(name, named(name)) in parts}


def read_config(folder: Path) -> XTTSConfig:
    """Returns `config.json`'s settings, but `data.g2p` and the shapes of DVAE and GPT from the newest GPT checkpoint.
    If only the file or only the checkpoint has settings, returns these. If neither has, raises `CheckpointError`."""
    store, path = CheckpointStore(folder / "gpt"), folder / "config.json"
    state = store.newest_state()
    own = None if state is None else config_of(state, str(store.folder))
    if own is not None and not path.exists():
        logger.warning("%s is missing: using the settings in the checkpoints of %s.", path, store.folder)
        return own
    config = config_of({"config": files.read_json(path)}, str(path))
    clips = Path(config.data.train_data or "")
    here = folder.absolute() / "dataset" / clips.name
    if clips.parent.name == "dataset" and not os.path.exists(clips) and here.is_dir():  # moved together with the run
        config = replace(config, data=replace(config.data, train_data=str(here)))
    if own is None:  # older checkpoints contain no settings
        return config
    model, beside = (shape_settings(one.model, ("dvae", "gpt")) for one in (own, config))
    if differing := [f"{name} {beside[name]} for {value}" for name, value in model.items() if beside[name] != value]:
        message = "%s describes another model (%s) than the checkpoints in %s. The checkpoints are used."
        logger.warning(message, path, "; ".join(differing[:3]), store.folder)
    # The g2p setting also belongs to the weights, since it decides which letters or phonemes the ids stand for.
    return replace(config, model=replace(config.model, **model), data=replace(config.data, g2p=own.data.g2p))


def vocabulary_path(folder: Path) -> Path:
    """Returns the path of the vocabulary in the GPT's newest checkpoint or, if there is none, `folder/vocab.json`."""
    own, beside = CheckpointStore(folder / "gpt").newest_file(VOCABULARY), folder / VOCABULARY
    if own is None:  # an imported model or an older checkpoint
        return beside
    if not beside.is_file() or files.digest_file(beside) != files.digest_file(own):
        logger.warning("%s is not the vocabulary that the GPT was trained with: using %s.", beside, own)
    return own


@contextmanager
def own_run_folder(folder: AnyPath) -> Iterator[Path]:
    """Creates a run's folder if necessary, locks it in a `with` block, and yields it. Cleans up after killed runs.

    After a `UserError` in the block, deletes the folder if it is new and has only a log. Raises `CheckpointError`
    if the folder cannot be written to, is in use by another run, or contains links in place of a run's files.
    """
    folder = require_kind(Path(folder), "--checkpoint-dir", HOMES, "a folder to write to")
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))
            busy = f"Another run is writing to {folder}. Wait for it, stop it, or choose another --checkpoint-dir."
            stack.enter_context(files.locked_folder(folder, busy))
        except OSError as error:
            raise CheckpointError(f"--checkpoint-dir must be a writable folder. {folder}: {error.strerror}.") from error
        _put_back(folder)
        _refuse_links(folder)
        for place in (folder.resolve(), folder / "samples", folder / SPEAKER_CLIPS):
            files.remove_leftovers(place)
        try:
            yield folder
        except UserError:
            if made and {path.name for path in folder.iterdir()} <= {LOG}:
                (folder / LOG).unlink(missing_ok=True)
                with suppress(OSError):  # the folder has other files by now
                    for place in made:
                        place.rmdir()
            raise


def _refuse_links(folder):
    """Raises `CheckpointError` if a run would write through links or devices to files outside of its folder."""
    places = [path for path in folder.iterdir() if any(map(path.match, (*RUN_FILES, *_REPORTS, *STAGES, GATHERED)))]
    for path in chain(places, (inner for place in places if place.is_dir() for inner in place.iterdir())):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CheckpointError(f"{path} is a link, a pipe or a device. Replace it, or use another --checkpoint-dir.")


def set_aside(folder: Path, names: Iterable[str], shared: Iterable[str] = ()) -> Path:
    """Moves a run's files and folders in `names` to a new folder `before_reset`, and returns it. Skips missing files.

    Folders in `shared` are copied instead, because the next run also needs them. After an error, all files are moved
    back. If the process is killed, `own_run_folder` moves them back when the run is next opened.
    """
    gathered = folder / GATHERED
    with files.write_whole_folder(gathered) as new:
        for name in shared:
            shutil.copytree(folder / name, new / name)
    try:
        for name in filter(lambda name: os.path.lexists(folder / name), names):
            os.replace(folder / name, gathered / name)
        aside = gathered.replace(files.free_path(folder / "before_reset"))
    except BaseException:
        for name in shared:
            shutil.rmtree(gathered / name, ignore_errors=True)
        _put_back(folder)
        raise
    files.sync_path(folder)
    return aside


def _put_back(folder):
    """Moves the files of an interrupted reset from the folder `GATHERED` back into the run's folder."""
    gathered = folder / GATHERED
    if not gathered.is_dir() or gathered.is_symlink():
        return
    for entry in list(gathered.iterdir()):
        if not os.path.lexists(folder / entry.name):
            entry.replace(folder / entry.name)
    # Copies of shared folders are left over; they are kept, since the user may need them.
    if any(gathered.iterdir()):
        gathered.replace(files.free_path(folder / "before_reset"))
    else:
        gathered.rmdir()


def listed_seconds(row: dict[str, str]) -> float:
    """Returns the `seconds` in a row of `clips_….csv`. A spreadsheet may have saved them with a decimal comma."""
    return float((row.get("seconds") or "0").replace(",", "."))


def read_metrics(folder: AnyPath) -> list[dict]:
    """Reads a run's `metrics.jsonl`, one dictionary per line; skips incomplete lines, which a killed run may leave."""
    path = Path(folder, METRICS)
    return [*_read_metrics(path, os.path.getsize(path), os.path.getmtime(path))] if path.is_file() else []


@lru_cache(2)  # the page reads them every 2 s
def _read_metrics(path, size, changed):
    found = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict) and {"stage", "step", "kind"} <= one.keys()]
