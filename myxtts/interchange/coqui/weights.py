"""Maps the tensors of the released XTTS v2 checkpoint to MyXTTS weights, without PyTorch, TensorFlow or Keras.

`model_tensors` and `dvae_tensors` list all weights of `model.pth` and `dvae.pth`, from the names and shapes in
`weights.toml`. Most kernels have reversed axes: PyTorch stores output channels first, Keras last. The speaker encoder
reads spectrograms as (mel, time) in PyTorch, as (time, mel) in MyXTTS. Weight normalization is folded into kernels.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from myxtts.config.checks import read_toml
from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING, SPEAKER_BLOCKS, ModelConfig

_TABLES = read_toml(__file__, "weights.toml")
"""Contents of `weights.toml`: layers of each part of XTTS, tensors of each kind of layer, and tensors to skip."""
FRONT_END: dict[str, float] = _TABLES["front end"]  # checksums of the speaker encoder's mel spectrogram


class Tensor(NamedTuple):
    """A MyXTTS weight, and the one or two Coqui tensors that are converted to it. A kernel with weight
    normalization is converted from two tensors, gain and direction."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    part: str
    """Part of the model to which the weight belongs, one of `models.xtts.PARTS`."""
    weight: str
    """Name of the MyXTTS weight in `XTTS.part_weights`."""
    layout: str
    """How arrays are converted: a key of `_LAYOUTS`."""


def skip_reason(name: str) -> str | None:
    """Returns why a tensor of Coqui's file is not converted, such as `a causal mask`; None for unknown names."""
    return next((reason for pattern, reason in _TABLES["skipped"].items() if re.fullmatch(pattern, name)), None)


def modern_name(name: str) -> str:
    """Returns a tensor's name in current coqui-tts, given its name in an older version or a trainer's checkpoint."""
    name = re.sub("weight_g$", "parametrizations.weight.original0", name.removeprefix("xtts."))
    return re.sub("weight_v$", "parametrizations.weight.original1", name)


def model_tensors(config: ModelConfig) -> list[Tensor]:
    """Returns a `Tensor` for each weight in `model.pth`."""
    mel_stats = Tensor(("mel_stats",), ((config.num_mels,),), "dvae", "mel_stats", "same")
    return [mel_stats, *_gpt(config), *_decoder(config), *_speaker_encoder(config)]


def constant_tensors(config: ModelConfig) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns tensors that coqui-tts requires but MyXTTS lacks. The first dictionary, for `model.pth`, has batch
    counters and spectrogram constants of the speaker encoder. The second, for `dvae.pth`, has buffers of a loss."""
    from myxtts.audio.mel import SPEAKER_MEL  # imports Keras, which an import does not need

    names = [re.sub("running_var$", "num_batches_tracked", tensor.names[0]) for tensor in _speaker_encoder(config)]
    model = {name: np.zeros((), np.int64) for name in names if name.endswith(".num_batches_tracked")}
    filters = np.array([[[-SPEAKER_MEL.preemphasis, 1.0]]], np.float32)
    model |= dict(zip(FRONT_END, (filters, SPEAKER_MEL.window_values(), SPEAKER_MEL.filterbank())))
    loss = {f"discrete_loss.accumulator_{name}": np.zeros(1, np.int64) for name in ("index", "filled")}
    loss["discrete_loss.accumulator"] = np.zeros((100, config.num_codes), np.float32)
    return model, loss


def our_shape(tensor: Tensor) -> tuple[int, ...]:
    """Returns the shape of a weight in MyXTTS. The field `Tensor.shapes` contains the shapes in Coqui's file."""
    shape = tensor.shapes[-1]
    return {"same": shape, "pointwise": shape[1::-1]}.get(tensor.layout, shape[::-1])


def to_ours(arrays: Sequence[np.ndarray], layout: str) -> np.ndarray:
    """Converts Coqui's arrays, ordered like `Tensor.names`, to a float32 MyXTTS weight. `layout` is `Tensor.layout`."""
    return np.asarray(_LAYOUTS[layout][0](*(np.asarray(array, np.float32) for array in arrays)), np.float32)


def to_coqui(array: np.ndarray, layout: str) -> tuple[np.ndarray, ...]:
    """Converts a MyXTTS weight to Coqui arrays, one for each of `Tensor.names`. `layout` is `Tensor.layout`."""
    return _LAYOUTS[layout][1](array)


def _norm_but_first(direction):
    """Returns the L2 norms `(d, 1, 1)` of `direction` over all axes but the first, like PyTorch's weight_norm."""
    # A kernel with weight normalization is `direction gain / norm` (Salimans and Kingma 2016).
    return np.linalg.norm(direction.astype(np.float64), axis=(1, 2), keepdims=True).astype(np.float32)


_LAYOUTS = {
    "same": (lambda value: value, lambda weight: (weight,)),
    "reversed": (lambda value: value.transpose(), lambda weight: (weight.transpose(),)),
    "pointwise": (lambda value: value[..., 0].transpose(), lambda weight: (weight.transpose()[..., np.newaxis],)),
    "weight_norm": (
        lambda gain, direction: (direction * (gain / _norm_but_first(direction))).transpose(),
        lambda weight: (_norm_but_first(weight.transpose()), weight.transpose()),
    ),
}
"""Two functions for each `Tensor.layout`: from Coqui's arrays to the MyXTTS weight, and from the weight to arrays."""


def _tensors(part, table, **numbers):
    """Yields a `Tensor` for each weight in `[part][table]` of `weights.toml`. `numbers` replace the placeholders."""
    for line in _TABLES[part][table].splitlines():
        kind, theirs, ours, *sizes = line.format(**numbers).split()
        shape = [math.prod(int(numbers.get(factor, factor)) for factor in size.split("*")) for size in sizes]
        for one in _TABLES["kinds"][kind]:
            names = tuple(theirs + end for end in one["theirs"])
            shapes = [(shape[one["axis"]],) if "axis" in one else tuple(shape)]
            if one["layout"] == "weight_norm":
                shapes.insert(0, (shape[0], 1, 1))
            yield Tensor(names, tuple(shapes), part, ours + one["ours"], one["layout"])


def dvae_tensors(config: ModelConfig, prefix: str = "") -> list[Tensor]:
    """Returns a `Tensor` for each weight of the DVAE. `prefix` is put before the names of all Coqui tensors."""
    count, hidden = config.dvae_residual_blocks, config.dvae_hidden
    numbers = dict(hidden=hidden, book=config.codebook_width, codes=config.num_codes, mels=config.num_mels)
    tensors = [*_tensors("dvae", "encoder", **numbers)]
    for i in range(count):
        tensors += _tensors("dvae", "encoder_block", i=i, at=2 + i, **numbers)
    tensors += _tensors("dvae", "codebook", at=2 + count, **numbers)
    for i in range(count):
        tensors += _tensors("dvae", "decoder_block", i=i, at=1 + i, **numbers)
    tensors += _tensors("dvae", "decoder", first=1 + count, second=2 + count, third=3 + count, **numbers)
    return [one._replace(names=tuple(prefix + name for name in one.names)) for one in tensors]


def _gpt(config):
    numbers = dict(
        width=config.width,
        mels=config.num_mels,
        text=config.num_text_tokens,
        audio=config.num_audio_tokens,
        text_positions=config.max_text_tokens + 2,
        audio_positions=config.max_audio_tokens + 3,
        latents=config.num_latents,
        attended=config.perceiver_heads * config.perceiver_head_width,
        hidden=config.width * 8 // 3,
    )
    for table in _TABLES["gpt"]:  # a repeated table has the name of the config field with the number of repeats
        for i in range(getattr(config, table, 1)):
            yield from _tensors("gpt", table, i=i, **numbers)


def _decoder(config):
    numbers = dict(width=config.width, speaker=config.speaker_width)
    yield from _tensors("decoder", "start", wide=config.decoder_channels, **numbers)
    for stage, (_, taps) in enumerate(DECODER_UPSAMPLING):
        numbers |= dict(stage=stage, narrow=config.decoder_channels // 2 ** (stage + 1))
        yield from _tensors("decoder", "stage", taps=taps, **numbers)
        for number, taps in enumerate(DECODER_KERNELS):
            stack = dict(at=stage * len(DECODER_KERNELS) + number, stack=f"stack_{stage}_{number}", taps=taps)
            for i in range(len(DECODER_DILATIONS)):
                yield from _tensors("decoder", "convs", i=i, **stack, **numbers)
    yield from _tensors("decoder", "end", **numbers)


def _speaker_encoder(config):
    width_in = config.speaker_channels[0]
    yield from _tensors("speaker", "stem", width=width_in)
    for group, (width, num_blocks) in enumerate(zip(config.speaker_channels, SPEAKER_BLOCKS, strict=True)):
        for i in range(num_blocks):
            names = dict(name=f"layer{group + 1}.{i}", ours=f"group_{group}_block_{i}")
            numbers = dict(width=width, width_in=width_in, squeezed=width // 8)
            yield from _tensors("speaker", "block", **names, **numbers)
            if group and i == 0:
                yield from _tensors("speaker", "shortcut", **names, **numbers)
            width_in = width
    # 64 mel bands, halved three times
    yield from _tensors("speaker", "end", pooled=width_in * 8, speaker=config.speaker_width)
