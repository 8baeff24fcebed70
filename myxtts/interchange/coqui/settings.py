"""The settings of a released XTTS checkpoint and ours, in both directions."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from myxtts.config.checks import brief
from myxtts.config.config import DataConfig, ModelConfig, SamplingConfig, XTTSConfig
from myxtts.config.model import SPEAKER_BLOCKS
from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE, NUM_MELS
from myxtts.config.settings import MAX_NUMBER
from myxtts.config.sizes import MODEL_SIZES
from myxtts.interchange.coqui.unpickling import StubObject
from myxtts.storage.files import CheckpointError, read_json
from myxtts.text.tokenizer import XTTSTokenizer

_HEAD_WIDTH = 64
"""Channels of one attention head of the released trunk, and of any perceiver."""
_FIXED_ARGUMENTS = dict(gpt_code_stride_len=CODE_STRIDE_SAMPLES, input_sample_rate=MODEL_SAMPLE_RATE)
_FIXED_ARGUMENTS |= dict(output_sample_rate=DECODER_SAMPLE_RATE, output_hop_length=MEL_HOP_SAMPLES)
_FIXED_ARGUMENTS |= dict(gpt_use_perceiver_resampler=True, cond_d_vector_in_each_upsampling_layer=True)
"""Fields of `model_args` that this model knows one value of."""
_SAMPLING = dict(temperature=0.75, top_k=50, top_p=0.85, repetition_penalty=5.0)
_RELEASED = _SAMPLING | dict(gpt_cond_len=30, gpt_cond_chunk_len=4, max_ref_len=30, model_args={})
"""What the `config.json` of the released model says, for files that come without one."""
_LONGEST_TRAINING_SECONDS = 11.6
"""The released model was trained on at most 255 995 samples at 22 050 Hz."""
_FINE_TUNING = dict(min_seconds=0.5, conditioning_seconds=(3.0, 6.0), conditioning_source="clip")
_FINE_TUNING |= dict(conditioning_padding="zeros", augment=False)
"""`DataConfig` fields of the reference's recipe for fine-tuning."""
_SHAPES_BY_DESIGN = dict(conditioning_blocks=6, num_latents=32, perceiver_depth=2, perceiver_heads=8)
_SHAPES_BY_DESIGN |= dict(perceiver_head_width=_HEAD_WIDTH, num_mels=NUM_MELS, decoder_channels=512)
_SHAPES_BY_DESIGN |= dict(decoder_type="hifigan")
_SHAPES_BY_DESIGN |= dict(speaker_channels=(32, 64, 128, 256), speaker_width=512)
"""`ModelConfig` fields that no setting of the reference can change."""
_SAME_BUT_GPT = "layers max_audio_tokens max_text_tokens start_text_token stop_text_token".split()
_SAME_BUT_GPT += "num_audio_tokens start_audio_token stop_audio_token".split()
"""Fields of `ModelConfig` that `model_args` has under the same names with `gpt_` in front."""
TensorShapes = Mapping[str, tuple[int, ...]]
"""TensorShapes of tensors by name."""


def read_settings(path: Path | None, stored: Any) -> dict[str, Any]:
    """The settings of a checkpoint, nested dictionaries, with the released model's values where nothing is said.

    Args:
        path: Its `config.json`, or None.
        stored: What the checkpoint itself holds as `config`: a dictionary, an object of the reference's, or None.

    Raises:
        CheckpointError: The file is not JSON, or the settings are of a model that cannot be represented here.
    """
    settings = _plain(stored)
    if path is not None:
        try:
            settings = read_json(path)
        except CheckpointError as error:
            raise CheckpointError(f"--config must be the config.json of an XTTS model. {error}") from None
    given = settings if isinstance(settings, dict) else {}
    settings = _RELEASED | {name: value for name, value in given.items() if value is not None}
    arguments = settings["model_args"]
    if not isinstance(arguments, dict):
        raise CheckpointError(f"model_args must be a mapping of settings. Received: {brief(arguments)}.")
    numbers = {name: value for name, value in settings.items() if name in _RELEASED and name != "model_args"}
    for name, value in (numbers | {"gpt_n_heads": arguments.get("gpt_n_heads") or 1}).items():
        kind = int if name in ("top_k", "gpt_n_heads") else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool) or not abs(value) <= MAX_NUMBER:
            raise CheckpointError(f"{name} must be a number of at most {MAX_NUMBER:,}. Received: {brief(value)}.")
    for name, known in _FIXED_ARGUMENTS.items():
        value = arguments.get(name)
        if value is not None and value != known:
            rule = f"model_args.{name} must be {known}, as in XTTS v2"
            raise CheckpointError(f"{rule}. Received: {brief(value)}. This is a checkpoint of another model.")
    return settings


def _plain(value):
    """Objects of unknown classes as dictionaries of their attributes."""
    if isinstance(value, StubObject):
        value = getattr(value, "state", None)
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


class _Sizes:
    """Sizes of a model from the shapes of its tensors; `file` is their file, for messages."""

    def __init__(self, shapes, file):
        self.shapes, self.file = shapes, file

    def __call__(self, name, axis=0):
        """Length of an axis of the tensor `name`."""
        shape = self.shapes.get(name, ())
        if len(shape) <= axis:
            found = self.shapes.get(name, "no such tensor")
            raise CheckpointError(f"{self.file} has no tensor {name} with {axis + 1} axes or more. Received: {found}.")
        return shape[axis]

    def count(self, pattern):
        """One more than the highest number that `pattern` finds in names, 0 where it finds none."""
        found = (re.match(pattern, name) for name in self.shapes)
        return 1 + max((int(match.group(1)) for match in found if match), default=-1)


def model_config(
    shapes: TensorShapes, dvae_shapes: TensorShapes | None, settings: dict, tokenizer: XTTSTokenizer, source: str
) -> ModelConfig:
    """`ModelConfig` that fits the tensors of `model.pth` and `dvae.pth`, whose shapes are given by name.

    None for `dvae_shapes` keeps a DVAE of the released shape. `settings` are those of `read_settings`, `source` is a
    file name for messages.

    Raises:
        CheckpointError: A tensor that says a size is missing, or settings and tensors disagree.
    """
    perceiver, speaker_encoder = "gpt.conditioning_perceiver", "hifigan_decoder.speaker_encoder"
    if f"{perceiver}.latents" not in shapes:
        missing = f"{source} has no tensor {perceiver}.latents"
        raise CheckpointError(
            f"{missing}. Only XTTS v2 and its fine-tunes can be converted; XTTS v1 has no perceiver resampler."
        )
    size = _Sizes(shapes, source)
    rows, width = size("gpt.text_embedding.weight"), size("gpt.text_embedding.weight", 1)
    if tokenizer.num_tokens > rows:
        raise CheckpointError(
            f"The vocabulary must have ids below {rows}, the rows of gpt.text_embedding.weight. "
            f"Received: {tokenizer.num_tokens} ids. It belongs to another checkpoint."
        )
    heads = settings["model_args"].get("gpt_n_heads")
    if heads is None and width != 1024:  # no tensor tells
        problem = f"A model of width {width} may have any number of attention heads"
        raise CheckpointError(f"{problem}. Give its config.json with --config.")
    heads = width // _HEAD_WIDTH if heads is None else heads
    return ModelConfig(
        size=min(MODEL_SIZES, key=lambda name: abs(MODEL_SIZES[name].get("width", ModelConfig.width) - width)),
        num_text_tokens=rows,
        start_text_token=tokenizer.start_id,
        stop_text_token=tokenizer.stop_id,
        max_text_tokens=size("gpt.text_pos_embedding.emb.weight") - 2,
        max_audio_tokens=size("gpt.mel_pos_embedding.emb.weight") - 3,
        layers=size.count(r"gpt\.gpt\.h\.(\d{1,6})\."),
        width=width,
        heads=heads,
        conditioning_blocks=size.count(r"gpt\.conditioning_encoder\.attn\.(\d{1,6})\."),
        conditioning_heads=heads,
        num_latents=size(f"{perceiver}.latents"),
        perceiver_depth=size.count(rf"{re.escape(perceiver)}\.layers\.(\d{{1,6}})\."),
        perceiver_heads=size(f"{perceiver}.layers.0.0.to_q.weight") // _HEAD_WIDTH,
        perceiver_head_width=_HEAD_WIDTH,
        num_mels=size("gpt.conditioning_encoder.init.weight", 1),
        num_codes=size("gpt.mel_embedding.weight") - 2,
        decoder_type="hifigan",
        decoder_channels=size("hifigan_decoder.waveform_decoder.conv_pre.weight"),
        speaker_channels=[size(f"{speaker_encoder}.layer{i + 1}.0.conv1.weight") for i in range(len(SPEAKER_BLOCKS))],
        speaker_width=size(f"{speaker_encoder}.fc.weight"),
        **_dvae_values(dvae_shapes),
    )


def _dvae_values(shapes):
    """The fields of `ModelConfig` that the DVAE has."""
    if shapes is None:
        return dict(dvae_hidden=512, codebook_width=512)
    size = _Sizes(shapes, "the DVAE")
    blocks = size.count(r"encoder\.(\d{1,6})\.net\.0\.weight") - 2
    widths = dict(dvae_hidden=size("encoder.0.0.weight"), codebook_width=size("codebook.embed"))
    return widths | dict(dvae_residual_blocks=blocks)


def run_config(model: ModelConfig, settings: dict) -> XTTSConfig:
    """`XTTSConfig` of a converted model: its sampling defaults, from `read_settings`, and a recipe for fine-tuning."""
    longest = math.floor(10 * model.max_codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE) / 10
    limits = dict(max_seconds=min(_LONGEST_TRAINING_SECONDS, longest), max_text_length=min(200, model.max_text_tokens))
    seconds = settings["gpt_cond_len"] if settings["gpt_cond_len"] > 0 else settings["max_ref_len"]
    values = {name: settings[name] for name in _SAMPLING}
    values |= dict(repetition_penalty=float(settings["repetition_penalty"]), reference_seconds=float(seconds))
    sampling = SamplingConfig(**values, reference_chunk_seconds=float(settings["gpt_cond_chunk_len"]))
    return XTTSConfig(model=model, data=DataConfig(**limits, **_FINE_TUNING), sampling=sampling)


def coqui_settings(config: XTTSConfig, languages: Iterable[str]) -> dict[str, Any]:
    """The `config.json` with which the reference loads an exported model; `languages` are those of its vocabulary.

    Raises:
        CheckpointError: The model has a shape that the reference cannot have; all such settings are named.
    """
    model, sampling = config.model, config.sampling
    fixed = {name: (getattr(model, name), value) for name, value in _SHAPES_BY_DESIGN.items()}
    fixed["conditioning_heads"] = model.conditioning_heads, model.heads
    wrong = [f"model.{name} is {value} and not {only}" for name, (value, only) in fixed.items() if value != only]
    if wrong:
        way_out = "Models of the sizes normal and big, small ones with decoder_type hifigan, and converted ones can be."
        raise CheckpointError(f"The reference's XTTS cannot have this model's shape: {', '.join(wrong)}. {way_out}")
    arguments = {f"gpt_{name}": getattr(model, name) for name in _SAME_BUT_GPT} | {
        "gpt_n_model_channels": model.width,
        "gpt_n_heads": model.heads,
        "gpt_max_prompt_tokens": 70,
        "gpt_number_text_tokens": model.num_text_tokens,
        "decoder_input_dim": model.width,
        "d_vector_dim": model.speaker_width,
    }
    rates = dict(sample_rate=MODEL_SAMPLE_RATE, output_sample_rate=DECODER_SAMPLE_RATE)
    return {
        "model": "xtts",
        "model_args": arguments | _FIXED_ARGUMENTS,
        "languages": list(languages),
        "audio": rates | dict(dvae_sample_rate=MODEL_SAMPLE_RATE),
        **{name: getattr(sampling, name) for name in _SAMPLING},
        "length_penalty": 1.0,
        "gpt_cond_len": round(sampling.reference_seconds),
        "max_ref_len": round(sampling.reference_seconds),
        "gpt_cond_chunk_len": round(sampling.reference_chunk_seconds or config.data.conditioning_seconds[1]),
    }
