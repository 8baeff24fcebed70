"""Check of settings against weights files, before the settings become a model."""

from collections.abc import Mapping

from myxtts.config.model import ModelConfig
from myxtts.memory.decoder import count_decoder
from myxtts.memory.estimates import FLOAT, count_dvae, count_gpt
from myxtts.memory.speaker import count_speaker
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore

_COUNTS = {
    "gpt": count_gpt,
    "dvae": lambda model: sum(count_dvae(model)),
    "decoder": count_decoder,
    "speaker": lambda model: sum(count_speaker(model)),
}


def check_claims(model: ModelConfig, stores: Mapping[str, CheckpointStore]) -> None:
    """Raises `CheckpointError` for settings of a far larger model than the weights, which could take all memory.

    `stores` are the checkpoints of the model's parts, by part.
    """
    for part in _COUNTS.keys() & stores.keys():
        store, step = stores[part], stores[part].steps()[-1]
        store.verify(step)  # so that a damaged file is reported as such
        file = store.path(step) / "model.safetensors"
        claimed_mb, held_mb = FLOAT * _COUNTS[part](model) / 2**20, file.stat().st_size / 2**20
        if claimed_mb > 4 * held_mb + 1:  # weights may be kept in half precision
            sizes = f"config.json describes a {part} of {claimed_mb:,.0f} MB, but {file} has {held_mb:,.0f} MB"
            raise CheckpointError(f"{sizes}. Use the config.json written with these weights.")
