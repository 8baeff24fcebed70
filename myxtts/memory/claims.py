"""Whether settings and the weights that come with them can belong together, before a model is made of the settings."""

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
    """Raises `CheckpointError` for settings whose model is far larger than its weights: it could take all memory.

    `stores` are those of the parts, by part.
    """
    for part in _COUNTS.keys() & stores.keys():
        store, step = stores[part], stores[part].steps()[-1]
        store.verify(step)  # a damaged file is not taken for wrong settings
        file = store.path(step) / "model.safetensors"
        claimed_mb, held_mb = FLOAT * _COUNTS[part](model) / 2**20, file.stat().st_size / 2**20
        if claimed_mb > 4 * held_mb + 1:  # weights may be kept in half precision
            sizes = f"config.json describes a {part} of {claimed_mb:,.0f} MB, and {file} holds {held_mb:,.0f} MB"
            way_out = "They do not belong together: use the config.json that was written with these weights."
            raise CheckpointError(f"{sizes}. {way_out}")
