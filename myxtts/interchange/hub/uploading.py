"""Uploads a model to the Hugging Face hub, with a card that states its data, steps and scores."""

import csv
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import yaml

import myxtts
from myxtts.config.checks import printable
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.stages import STAGES
from myxtts.interchange.hub.fetching import hub_errors, import_hub, is_hub_name, parse_hub_name
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import write_json, write_text
from myxtts.storage.speakers import SPEAKERS_FILE


def push(model: Any, target: str, private: bool = False, licence: str | None = None) -> str:
    """Uploads an `XTTS` with its card and voices to `target`, `hf://owner/name[@branch]`; returns its web address.

    Creates the repository if necessary, and removes the checkpoints of an earlier model from it. Paths of this machine
    and recordings of speakers are not uploaded.

    Args:
        private: Whether a new repository is private.
        licence: Identifier for the model card, such as `cc-by-4.0`.

    Raises:
        HubError: `target` is not a hub name, or the hub reports an error.
        UserError: The model has no tokenizer.
    """
    (repository, branch), hub = parse_hub_name(str(target)), import_hub()
    from myxtts.inference.loading import save_to_preset  # imports TensorFlow, which the card does not need

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")
        save_to_preset(model, folder)
        config = model.preset[1]
        write_json(folder / "config.json", without_places(config).to_dict())
        if model.origin and (voices := Path(model.origin, SPEAKERS_FILE)).is_file():
            shutil.copyfile(voices, folder / SPEAKERS_FILE)
        write_text(folder / "README.md", model_card(repository, config, model.origin, licence))
        with hub_errors(target):
            url = hub.create_repo(repository, private=private, exist_ok=True)
            hub.upload_folder(
                repo_id=repository,
                revision=branch,
                folder_path=folder,
                commit_message=f"Model trained with MyXTTS {myxtts.__version__}",
                delete_patterns=[f"{part}/*" for part in STAGES],
            )
    return str(url)


def without_places(config: XTTSConfig) -> XTTSConfig:
    """Returns the settings without paths of this machine."""
    data = replace(config.data, **dict.fromkeys((*PATHS, "vocabulary")), audio_roots=())
    base = config.training.init_from if is_hub_name(config.training.init_from) else None
    places = dict(checkpoint_dir="./checkpoints", tensorboard_log_dir=None, init_from=base)
    return replace(config, data=data, training=replace(config.training, **places))


def model_card(repository: str, config: XTTSConfig, origin: str | os.PathLike | None, licence: str | None) -> str:
    """Returns the `README.md` of a model on the hub, with data, steps and losses of the run in the folder `origin`."""
    base = config.training.init_from
    head = {
        "license": licence,
        "pipeline_tag": "text-to-speech",
        "library_name": "myxtts",
        "base_model": parse_hub_name(base)[0] if is_hub_name(base) else None,
        "tags": ["text-to-speech", "xtts", "voice-cloning"],
    }
    template = Path(__file__).with_name("card.md").read_text("utf-8")
    return jinja2.Template(template, trim_blocks=True, keep_trailing_newline=True).render(
        repository=repository,
        head=yaml.safe_dump({name: value for name, value in head.items() if value}, sort_keys=False),
        version=myxtts.__version__,
        model=config.model,
        lists=list(_lists(Path(origin))) if origin else [],
        stages=list(_stages(Path(origin))) if origin else [],
    )


def _lists(origin):
    """Yields title, number of accepted clips and their minutes for the training and the validation set."""
    for name, title in (("train", "Training"), ("validation", "Validation")):
        path = origin / f"clips_{name}.csv"
        if path.is_file():
            with open(path, encoding="utf-8", newline="") as file:
                rows = [row for row in csv.DictReader(file) if row.get("verdict") != "rejected"]
            yield title, len(rows), sum(float(row["seconds"] or 0) for row in rows) / 60


def _stages(origin):
    """Yields for each stage: name, (last step, best step) or False if untrained, step of the best losses, losses."""
    for stage in STAGES:
        store = CheckpointStore(origin / stage)
        if steps := store.steps():
            state, best_step = store.read_state(steps[-1]), store.best_step()
            was_trained = "position" in state and "taken_from" not in state
            history = {row["step"]: row for row in state.get("history", [])}
            best = history.get(best_step) or (history[max(history)] if history else {})
            losses = [f"{printable(name)} {value:.4f}" for name, value in best.items() if name != "step"]
            yield stage, was_trained and (state["step"], best_step or state["step"]), best.get("step"), losses
