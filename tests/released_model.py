"""Released models of a minimal shape, as files, for the tests of `myxtts convert`."""

import json

import numpy as np

from myxtts.__main__ import main
from myxtts.config.config import ModelConfig
from myxtts.interchange.coqui import weights as coqui
from myxtts.interchange.coqui.torch_checkpoint import write_torch_checkpoint
from myxtts.models.xtts import PARTS
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.text.tokenizer import XTTSTokenizer
from utilities.parity.seeded_weights import seeded_tensor, seeded_values

_SHAPE = dict(num_text_tokens=60, max_text_tokens=12, max_audio_tokens=30, layers=2, width=16, heads=2, num_latents=4)
_SHAPE |= dict(conditioning_blocks=1, conditioning_heads=2, perceiver_depth=1, perceiver_heads=1)
_SHAPE |= dict(num_codes=8, dvae_hidden=4, dvae_residual_blocks=1, codebook_width=4)
MINIMAL = ModelConfig(**_SHAPE, decoder_channels=32, speaker_channels=(8, 8, 16, 16), speaker_width=6)
SETTINGS = dict(model_args={"gpt_n_heads": 2}, temperature=0.6, top_k=40, top_p=0.9, repetition_penalty=3.0)
SETTINGS |= dict(gpt_cond_len=24, max_ref_len=20, gpt_cond_chunk_len=5)


def state_dicts(config):
    """Returns the tensors of `model.pth` and of `dvae.pth` in the released layout, random values seeded by name."""

    def drawn(tensors):
        return {
            name: seeded_tensor(name, shape) for tensor in tensors for name, shape in zip(tensor.names, tensor.shapes)
        }

    constants, dvae_constants = coqui.constant_tensors(config)
    return (drawn(coqui.model_tensors(config)) | constants, drawn(coqui.dvae_tensors(config)) | dvae_constants)


def write_release(folder, config=MINIMAL, model=None, dvae=True, settings=SETTINGS):
    """Writes the files of a released model; `model` replaces the contents of `model.pth`."""
    folder.mkdir(parents=True, exist_ok=True)
    model_tensors, dvae_tensors = state_dicts(config)
    write_torch_checkpoint(folder / "model.pth", {"model": model_tensors} if model is None else model)
    if dvae:
        write_torch_checkpoint(folder / "dvae.pth", dvae_tensors)
    write_torch_checkpoint(folder / "mel_stats.pth", model_tensors["mel_stats"])
    voice = {
        "gpt_cond_latent": seeded_values("voice", (1, config.num_latents, config.width)),
        "speaker_embedding": seeded_values("voice", (1, config.speaker_width, 1)),
    }
    write_torch_checkpoint(folder / "speakers_xtts.pth", {"Ana Ruiz": voice, "Bo/Li": voice})
    XTTSTokenizer.train([("the quick brown fox", "en"), ("", "fa")], 50).save(folder / "vocab.json")
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def convert(*arguments):
    """Runs `myxtts convert` and returns the exit code."""
    return main(["convert", *map(str, arguments)])


def weights(folder):
    """Reads all weights of a converted folder, `{part: {name: array}}`."""
    parts = [part for part in PARTS if (folder / part).is_dir()]
    return {part: CheckpointStore(folder / part).read(0, ("model",))[0]["model"] for part in parts}


def assert_same_weights(folder, other):
    np.testing.assert_equal(weights(folder), weights(other))
