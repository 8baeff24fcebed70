"""A folder of a training run, or of `myxtts convert` -> model, tokenizer and configuration."""

import logging
from pathlib import Path

from myxtts.config.config import ModelConfig, XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.models.xtts import XTTS
from myxtts.planning.memory import count_dvae, count_gpt
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name, read_json
from myxtts.storage.parts import MEL_STATS, current_names, read_part
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)


def load_model(folder: str | Path, which: str = "best") -> tuple[XTTS, XTTSTokenizer, XTTSConfig]:
    """Reads everything that speaking needs.

    Args:
        folder: Holds `config.json`, `vocab.json` and a folder per trained part.
        which: `best` or `last` checkpoint of the GPT; of the other parts the last is taken.

    Raises:
        CheckpointError: Something is missing or damaged; the message says what and how to get it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"--checkpoint must be the folder of a training run. {folder} is not a folder.")
    config = config_from_dict(read_json(folder / "config.json"))
    stores = _trained_parts(folder)
    _check_claims(config.model, stores)
    _check_lineage(folder, stores, which)
    model = XTTS(config.model, parts=tuple(stores))
    for part, store in stores.items():
        step = _step_of(part, store, which)
        weights, files = model.part_weights(part), ["model"]
        if part == "gpt" and "dvae" not in stores:
            weights, files = {**weights, MEL_STATS: model.mel_stats}, ["model", MEL_STATS]
        assign_by_name(current_names(weights), read_part(store, step, files), str(store.path(step)))
    return model, _read_tokenizer(folder / "vocab.json"), config


def _trained_parts(folder: Path) -> dict[str, CheckpointStore]:
    """The stores of the parts that have a checkpoint; raises unless together they can speak."""
    stores = {part: CheckpointStore(folder / part) for part in ("dvae", "gpt", "decoder")}
    stores = {part: store for part, store in stores.items() if store.steps()}
    for part, instead in (("gpt", None), ("dvae", "decoder")):
        if part not in stores and instead not in stores:
            nor = f" and no waveform {instead}: its codes cannot become sound" if instead else " yet"
            raise CheckpointError(
                f"{folder} has no trained {part}{nor}. Train it with: python train_main.py --stage "
                f"{part} --checkpoint-dir {folder} --train-data …"
            )
    if "decoder" not in stores:
        logger.info("No trained waveform decoder in %s: the mel is turned into sound by Griffin-Lim.", folder)
    return stores


def _step_of(part: str, store: CheckpointStore, which: str) -> int:
    steps, best = store.steps(), store.best_step()
    return best if part == "gpt" and which == "best" and best in steps else steps[-1]


def _check_claims(config: ModelConfig, stores: dict[str, CheckpointStore]) -> None:
    """Raises for a `config.json` whose model is far larger than the stored weights: making it could take all memory."""
    counts = {"gpt": count_gpt(config), "dvae": sum(count_dvae(config))}
    for part in counts.keys() & stores.keys():
        step = stores[part].steps()[-1]
        stores[part].verify(step)  # a damaged file is not taken for a wrong config.json
        file = stores[part].path(step) / "model.safetensors"
        claimed, held = 4 * counts[part], file.stat().st_size
        if claimed > 4 * held + 2**20:  # weights may be kept in half precision
            raise CheckpointError(
                f"config.json describes a {part} of {claimed / 2**20:,.0f} MB, and {file} holds "
                f"{held / 2**20:,.0f} MB. They do not belong together: take the config.json that was "
                "written with these weights."
            )


def _check_lineage(folder: Path, stores: dict[str, CheckpointStore], which: str) -> None:
    """Raises where the GPT speaks the codes of a DVAE that is not the one in the folder."""
    if "dvae" not in stores:
        return
    trained_on = stores["gpt"].read_state(_step_of("gpt", stores["gpt"], which)).get("lineage", {}).get("dvae")
    if trained_on and trained_on != stores["dvae"].digest(stores["dvae"].steps()[-1]):
        raise CheckpointError(
            f"The GPT in {folder} was trained on the codes of another DVAE than the one there. "
            "Train the GPT anew with --stage gpt --reset-training."
        )


def _read_tokenizer(path: Path) -> XTTSTokenizer:
    if not path.is_file():
        raise CheckpointError(f"{path} is not there. Is this the folder of a training run or of `myxtts convert`?")
    try:
        return XTTSTokenizer.from_file(path)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
