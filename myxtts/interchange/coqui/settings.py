"""Converts the settings of XTTS models from coqui-tts, the reference implementation, to `XTTSConfig`, and back."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from myxtts.config.checks import brief, read_toml
from myxtts.config.config import DataConfig, ModelConfig, SamplingConfig, XTTSConfig
from myxtts.config.model import MODEL_SIZES, SPEAKER_BLOCKS
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.config.settings import MAX_NUMBER
from myxtts.interchange.coqui.torch_checkpoint import StubObject
from myxtts.storage.files import CheckpointError, read_json
from myxtts.text.languages import get_language
from myxtts.text.tokenizer import XTTSTokenizer

_HEAD_WIDTH = 64
"""Width of an attention head in the GPT of XTTS v2, and in every perceiver resampler of coqui-tts."""
_TABLES = read_toml(__file__, "settings.toml")
RELEASED_NAMES: dict[str, str] = _TABLES["files"]
"""File names in Coqui's releases of XTTS, by field of `conversion.CoquiFiles`."""
_RELEASED: dict[str, Any] = _TABLES["sampling"] | _TABLES["conditioning"] | {"model_args": {}}
"""Settings of XTTS v2, as in its `config.json`. They are the defaults for settings that a checkpoint lacks."""
_SUPPORTED = "Supported are converted models, the sizes normal and big, and small with decoder_type hifigan."


def read_settings(path: Path | None, stored: Any) -> dict[str, Any]:
    """Returns the settings of a checkpoint. Settings that are missing get the values of XTTS v2.

    Args:
        path: The checkpoint's `config.json`. If None, `stored` is used instead.
        stored: The entry `config` of the checkpoint: a dictionary, an unpickled coqui-tts object, or None.

    Raises `CheckpointError` if the file is not JSON, or a setting has an unsupported value.
    """
    try:
        given = stored if path is None else read_json(path)
    except CheckpointError as error:
        raise CheckpointError(f"--config must be the config.json of an XTTS model. {error}") from None
    settings = _RELEASED | {name: value for name, value in _fields(given).items() if value is not None}
    settings["model_args"] = arguments = _fields(settings["model_args"])
    numbers = {name: settings[name] for name in _RELEASED if name != "model_args"}
    for name, value in (numbers | {"gpt_n_heads": arguments.get("gpt_n_heads") or 1}).items():
        kinds = (int,) if name in ("top_k", "gpt_n_heads") else (int, float)
        if type(value) not in kinds or not abs(value) <= MAX_NUMBER:
            raise CheckpointError(f"{name} must be a number of at most {MAX_NUMBER:,}. Received: {brief(value)}.")
    for name, known in _TABLES["fixed arguments"].items():
        if (value := arguments.get(name)) is not None and value != known:
            raise CheckpointError(f"model_args.{name} must be {known}, as in XTTS v2. Received: {brief(value)}.")
    return settings


def _fields(value):
    """Returns `value` if it is a dictionary, its attributes if it is an unpickled coqui-tts object, else {}."""
    value = value.state if isinstance(value, StubObject) else value
    return value if isinstance(value, dict) else {}


def _count(pattern, names):
    """Returns the number of layers: the highest index that `pattern` captures in `names`, plus 1; 0 without a match."""
    return 1 + max((int(found[1]) for name in names if (found := re.match(pattern, name))), default=-1)


def model_config(shapes: Mapping[str, tuple[int, ...]], settings: dict, tokenizer: XTTSTokenizer) -> ModelConfig:
    """Returns the `ModelConfig` of a checkpoint, given `{tensor name: shape}` and the result of `read_settings`.

    If no name starts with `dvae.`, the DVAE gets the shape of XTTS v2. Raises `CheckpointError` if a tensor that
    determines a size is missing, or if tensors, settings and vocabulary disagree.
    """

    def size(name, axis=0):
        shape = shapes.get(name, ())
        if len(shape) <= axis:
            raise CheckpointError(f"There is no tensor {name} with {axis + 1} axes, as in XTTS v2 and its fine-tunes.")
        return shape[axis]

    width, rows = size("gpt.text_embedding.weight", 1), size("gpt.text_embedding.weight")
    if tokenizer.num_tokens > rows:
        raise CheckpointError(f"gpt.text_embedding.weight has rows for ids below {rows}, not {tokenizer.num_tokens}.")
    heads = settings["model_args"].get("gpt_n_heads")
    if heads is None and width != 1024:
        raise CheckpointError("The tensors do not give the number of heads. Give its config.json with --config.")
    heads = width // _HEAD_WIDTH if heads is None else heads
    dvae = dict(dvae_hidden=512, codebook_width=512)
    if any(name.startswith("dvae.") for name in shapes):
        dvae = dict(dvae_hidden=size("dvae.encoder.0.0.weight"), codebook_width=size("dvae.codebook.embed"))
        dvae["dvae_residual_blocks"] = _count(r"dvae\.encoder\.(\d{1,6})\.net\.0\.weight", shapes) - 2
    sizes = {field: size(tensor, axis) - less for field, (tensor, axis, less) in _TABLES["sizes"].items()}
    layers = {field: _count(pattern, shapes) for field, pattern in _TABLES["layers"].items()}
    encoder_widths = "hifigan_decoder.speaker_encoder.layer{}.0.conv1.weight"
    return ModelConfig(
        size=min(MODEL_SIZES, key=lambda name: abs(MODEL_SIZES[name].get("width", ModelConfig.width) - width)),
        num_text_tokens=rows,
        start_text_token=tokenizer.start_id,
        stop_text_token=tokenizer.stop_id,
        width=width,
        heads=heads,
        conditioning_heads=heads,
        perceiver_heads=size("gpt.conditioning_perceiver.layers.0.0.to_q.weight") // _HEAD_WIDTH,
        perceiver_head_width=_HEAD_WIDTH,
        decoder_type="hifigan",
        speaker_channels=[size(encoder_widths.format(number + 1)) for number in range(len(SPEAKER_BLOCKS))],
        **(sizes | layers | dvae),
    )


def run_config(model: ModelConfig, settings: dict) -> XTTSConfig:
    """Returns the `XTTSConfig` of a converted model. The sampling options come from the Coqui settings `settings`."""
    longest = math.floor(10 * model.max_codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE) / 10
    limits = dict(max_seconds=min(_TABLES["longest seconds"], longest), max_text_length=min(200, model.max_text_tokens))
    # coqui-tts cuts each recording to `max_ref_len` and then, if `gpt_cond_len` is positive, all of them to that.
    seconds = [min(settings[name], 3600) for name in ("gpt_cond_len", "max_ref_len") if settings[name] > 0] or [0]
    lengths = dict(reference_seconds=seconds[0], recording_seconds=seconds[-1])
    lengths["reference_chunk_seconds"] = settings["gpt_cond_chunk_len"]
    sampling = SamplingConfig(**{name: settings[name] for name in _TABLES["sampling"]}, **lengths)
    return XTTSConfig(model=model, data=DataConfig(**limits, **_TABLES["fine-tuning"]), sampling=sampling)


def coqui_settings(config: XTTSConfig, languages: Iterable[str]) -> dict[str, Any]:
    """Returns the contents of the `config.json` that coqui-tts needs to load an exported model.

    `languages` are language codes. Raises `CheckpointError` if coqui-tts does not support the model's shape.
    """
    model, sampling = config.model, config.sampling
    released = ModelConfig(size="big")
    fixed = {name: (getattr(model, name), getattr(released, name)) for name in _TABLES["shapes by design"]}
    fixed["conditioning_heads"] = model.conditioning_heads, model.heads
    if wrong := [f"model.{name} is {value} and not {only}" for name, (value, only) in fixed.items() if value != only]:
        raise CheckpointError(f"coqui-tts does not support this model's shape: {', '.join(wrong)}. {_SUPPORTED}")
    arguments = {f"gpt_{name}": getattr(model, name) for name in _TABLES["gpt arguments"]} | {
        "gpt_n_model_channels": model.width,
        "gpt_n_heads": model.heads,
        "gpt_max_prompt_tokens": 70,
        "gpt_number_text_tokens": model.num_text_tokens,
        "decoder_input_dim": model.width,
        "d_vector_dim": model.speaker_width,
    }
    rates = dict(sample_rate=MODEL_SAMPLE_RATE, output_sample_rate=DECODER_SAMPLE_RATE)
    whole, chunk = sampling.reference_seconds, sampling.reference_chunk_seconds or config.data.conditioning_seconds[1]
    lengths = dict(gpt_cond_len=whole, max_ref_len=sampling.recording_seconds or whole, gpt_cond_chunk_len=chunk)
    return {
        "model": "xtts",
        "model_args": arguments | _TABLES["fixed arguments"],
        "languages": [get_language(code).tag.strip("[]") for code in languages],  # zh-cn, not zh
        "audio": rates | dict(dvae_sample_rate=MODEL_SAMPLE_RATE),
        **{name: getattr(sampling, name) for name in _TABLES["sampling"]},
        "length_penalty": 1.0,
        **{name: max(1, round(seconds)) for name, seconds in lengths.items()},  # coqui-tts cannot use 0
    }
