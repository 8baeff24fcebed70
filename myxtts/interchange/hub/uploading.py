"""A model into the Hugging Face hub, with a card that says what it was trained on, for how long, and how well."""

import csv
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import myxtts
from myxtts.config.checks import printable
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.stages import STAGES
from myxtts.interchange.hub.fetching import HubError, hub_errors, import_hub, is_hub_name, parse_hub_name
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import write_json, write_text
from myxtts.storage.speakers import SPEAKERS_FILE


def push_model(
    write_model: Callable[[str], Any],
    config: XTTSConfig,
    origin: str | os.PathLike | None,
    target: str,
    private: bool = False,
    licence: str | None = None,
) -> str:
    """Uploads a model with its card and returns its address.

    The repository is made if need be, and what an earlier model left there in the folders of parts is removed. Paths of
    this machine and recordings of speakers stay here.

    Args:
        write_model: Writes the model into the folder it is called with, such as `XTTS.save_to_preset`.
        config: The settings that belong to the model.
        origin: Folder that the weights came from, whose history the card tells, and whose voices go along.
        target: `hf://owner/name`, or with `@branch`.
        private: Of a repository that is made now.
        licence: Identifier for the card, such as `cc-by-4.0`.

    Raises:
        HubError: The name is none, or the hub refuses.
        UserError: The model cannot be written.
    """
    if not is_hub_name(target):
        raise HubError(f"A model must be pushed to hf://owner/name. Received: {target}.")
    name, hub = parse_hub_name(target), import_hub()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")
        write_model(str(folder))
        write_json(folder / "config.json", without_places(config).to_dict())
        if origin is not None and (voices := Path(origin, SPEAKERS_FILE)).is_file():
            shutil.copyfile(voices, folder / SPEAKERS_FILE)
        write_text(folder / "README.md", model_card(name.repository, config, origin, licence))
        with hub_errors(target):
            url = hub.create_repo(name.repository, private=private, exist_ok=True)
            hub.upload_folder(
                repo_id=name.repository,
                revision=name.revision,
                folder_path=folder,
                commit_message=f"Model trained with MyXTTS {myxtts.__version__}",
                delete_patterns=[f"{part}/*" for part in STAGES],
            )
    return str(url)


def without_places(config: XTTSConfig) -> XTTSConfig:
    """The settings without folders of this machine."""
    data = replace(config.data, **dict.fromkeys((*PATHS, "vocabulary")), audio_roots=())
    base = config.training.init_from if is_hub_name(config.training.init_from) else None
    places = dict(checkpoint_dir="./checkpoints", tensorboard_log_dir=None, init_from=base)
    return replace(config, data=data, training=replace(config.training, **places))


def model_card(repository: str, config: XTTSConfig, origin: str | os.PathLike | None, licence: str | None) -> str:
    """The `README.md` of a model on the hub: a head for its index, data, steps, scores, and how to speak with it."""
    base = config.training.init_from
    head = {"license": licence, "pipeline_tag": "text-to-speech", "library_name": "myxtts"}
    head |= {"base_model": parse_hub_name(base).repository} if is_hub_name(base) else {}
    head["tags"] = ["text-to-speech", "xtts", "voice-cloning"]
    head = yaml.safe_dump({name: value for name, value in head.items() if value}, sort_keys=False)
    shape = f"{config.model.layers} layers of width {config.model.width}, {config.model.num_text_tokens} text tokens"
    origin = None if origin is None else Path(origin)
    data = list(_data(origin)) if origin else []
    steps = list(_stages(origin)) if origin else []
    scores = list(_scores(origin)) if origin else []
    lines = [
        *("---", head.rstrip(), "---", f"# {repository}", ""),
        f"XTTS, multilingual text to speech with zero-shot voice cloning: a GPT of {shape}. "
        f"Trained with MyXTTS {myxtts.__version__}.",
        *("", "## Data", "", *(data or ["Not recorded."])),
        *(
            "",
            "## Training",
            "",
            "| stage | steps | best at step |",
            "|---|---|---|",
            *(steps or ["| not recorded | | |"]),
        ),
        *("", "## Scores", ""),
        *(["Validation losses of the best checkpoints:", "", *scores] if scores else ["Not recorded."]),
        *("", "## Use", "", "```sh", f"myxtts say --checkpoint hf://{repository} --reference-audio voice.wav \\"),
        *('    --language en --text "Good morning." --output out.wav', "```", ""),
        "A voice may be cloned only with its owner's consent.",
    ]
    return "\n".join(lines) + "\n"


def _data(origin) -> Iterator[str]:
    is_split = not (origin / "clips_validation.csv").is_file()
    for name, what in (("train", "Training"), ("validation", "Validation")):
        path = origin / f"clips_{name}.csv"
        if path.is_file():
            with open(path, encoding="utf-8", newline="") as file:
                rows = [row for row in csv.DictReader(file) if row.get("verdict") != "rejected"]
            minutes = sum(float(row["seconds"] or 0) for row in rows) / 60
            told = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
            yield f"- {what}: {len(rows)} recordings, {told}" + (
                ", some of them kept for validation" if is_split else ""
            )


def _states(origin):
    """`(stage, its store, the state of its newest checkpoint)` of what is there."""
    for stage in STAGES:
        store = CheckpointStore(origin / stage)
        if store.steps():
            yield stage, store, store.read_state(store.steps()[-1])


def _stages(origin) -> Iterator[str]:
    for stage, store, state in _states(origin):
        if "position" in state and "taken_from" not in state:
            yield f"| {stage} | {state['step']} | {store.best_step() or state['step']} |"
        else:
            yield f"| {stage} | as it was in the model that training began from | |"


def _scores(origin) -> Iterator[str]:
    for stage, store, state in _states(origin):
        history = {row["step"]: row for row in state.get("history", [])}
        best = history.get(store.best_step()) or (history[max(history)] if history else {})
        losses = [f"{printable(name)} {value:.4f}" for name, value in best.items() if name != "step"]
        if losses:
            yield f"- {stage}, step {best['step']}: {', '.join(losses)}"
