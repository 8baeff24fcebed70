"""Maps the tensors of the released XTTS v2 checkpoint to MyXTTS weights: names, shapes and layouts.

`model_tensors` and `dvae_tensors` list all weights of `model.pth` and `dvae.pth`. Most kernels have reversed axes:
PyTorch stores output channels first, Keras last. The speaker encoder reads spectrograms as (mel, time) in PyTorch and
as (time, mel) here. Weight normalization is folded into the kernels. Needs no PyTorch, TensorFlow or Keras.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING, SPEAKER_BLOCKS, ModelConfig

_GAIN, _DIRECTION = "parametrizations.weight.original0", "parametrizations.weight.original1"
SPEAKER_FRONT_END = "hifigan_decoder.speaker_encoder.torch_spec"
"""Name prefix of the constants that the speaker encoder's mel spectrogram is computed with: `.0.filter` (pre-emphasis),
`.1.spectrogram.window` and `.1.mel_scale.fb` (filterbank)."""
_FRONT_END = "front end, which is computed here"
_SKIPPED = {
    r"gpt\.gpt_inference\..+|gpt\.gpt\.wte\.weight": "a copy of another tensor, made for generation",
    r"gpt\.gpt\.h\.\d+\.attn\.(masked_)?bias": "a causal mask",
    r"hifigan_decoder\.speaker_encoder\..+\.num_batches_tracked": "a step counter of batch normalization",
    re.escape(SPEAKER_FRONT_END) + r"\.(0\.filter|1\.spectrogram\.window|1\.mel_scale\.fb)": _FRONT_END,
    r"torch_mel_spectrogram_(style_encoder|dvae)\..+": _FRONT_END,
    r"discrete_loss\..+": "state of a loss that is never used",
}
"""Patterns of the names of released tensors that are not converted, with the reason."""


class Tensor(NamedTuple):
    """A MyXTTS weight and its released tensors: one, or two with weight normalization (gain and direction)."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    part: str
    """Part of the model to which the weight belongs, one of `models.xtts.PARTS`."""
    weight: str
    """Name of the MyXTTS weight in `XTTS.part_weights`."""
    layout: str
    """How arrays are converted: a key of `_LAYOUTS`."""


def skip_reason(name: str) -> str | None:
    """Returns why a released tensor is not converted, such as `a causal mask`; None for unknown names."""
    return next((reason for pattern, reason in _SKIPPED.items() if re.fullmatch(pattern, name)), None)


def modern_name(name: str) -> str:
    """Returns a tensor's name in current coqui-tts, given its name in an older one or in a trainer's checkpoint."""
    return re.sub("weight_v$", _DIRECTION, re.sub(r"weight_g$", _GAIN, name.removeprefix("xtts.")))


def model_tensors(config: ModelConfig) -> list[Tensor]:
    """Lists the weights in `model.pth` as `Tensor`s."""
    mel_stats = Tensor(("mel_stats",), ((config.num_mels,),), "dvae", "mel_stats", "same")
    return [mel_stats, *_gpt(config), *_decoder(config), *_speaker_encoder(config)]


def constant_tensors(config: ModelConfig) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns tensors that coqui-tts requires but MyXTTS lacks, by name: those of `model.pth`, and those of `dvae.pth`.

    Does not include the constants for `model.pth` that `conversion.speaker_front_end` returns.
    """
    names = [re.sub("running_var$", "num_batches_tracked", tensor.names[0]) for tensor in _speaker_encoder(config)]
    counters = {name: np.zeros((), np.int64) for name in names if name.endswith(".num_batches_tracked")}
    loss = {f"discrete_loss.accumulator_{name}": np.zeros(1, np.int64) for name in ("index", "filled")}
    loss["discrete_loss.accumulator"] = np.zeros((100, config.num_codes), np.float32)
    return counters, loss


def our_shape(tensor: Tensor) -> tuple[int, ...]:
    """Returns the shape of the MyXTTS weight that `tensor` describes."""
    shape = tensor.shapes[-1]
    return {"same": shape, "pointwise": shape[1::-1]}.get(tensor.layout, shape[::-1])


def to_ours(arrays: Sequence[np.ndarray], layout: str) -> np.ndarray:
    """Converts released arrays, in the order of `Tensor.names`, to a MyXTTS weight, float32."""
    return np.asarray(_LAYOUTS[layout][0](*(np.asarray(array, np.float32) for array in arrays)), np.float32)


def to_coqui(array: np.ndarray, layout: str) -> tuple[np.ndarray, ...]:
    """Converts a MyXTTS weight to released arrays, in the order of `Tensor.names`."""
    return _LAYOUTS[layout][1](array)


def _norm_but_first(direction):
    """Returns the L2 norm `(d, 1, 1)` of each slice along the first axis, as in PyTorch's weight normalization."""
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
"""Functions of each layout: from released arrays to the MyXTTS weight, and back."""
_BIAS, _BIAS_OF_OUTPUTS_LAST = ("bias", "/bias", "same", 0), ("bias", "/bias", "same", 1)
_NORM = (("weight", "/gamma", "same", None), ("bias", "/beta", "same", None))
_STATISTICS = (("running_mean", "/moving_mean", "same", None), ("running_var", "/moving_variance", "same", None))
_KINDS = {
    "same": (("", "", "same", None),),
    "reversed": (("", "", "reversed", None),),
    "linear": (("weight", "/kernel", "reversed", None), _BIAS),
    "kernel": (("weight", "/kernel", "reversed", None),),
    "pointwise": (("weight", "/kernel", "pointwise", None), _BIAS),
    "inputs_first": (("weight", "/kernel", "same", None), _BIAS_OF_OUTPUTS_LAST),
    "weight_norm": ((f"{_GAIN} {_DIRECTION}", "/kernel", "weight_norm", None), _BIAS_OF_OUTPUTS_LAST),
    "norm": _NORM,
    "batch_norm": _NORM + _STATISTICS,
}
"""Tensors of each kind of layer: (suffix of the released name, suffix of the MyXTTS name, layout, axis). Only a bias
has an axis: the output axis of the released kernel, which is 1 in GPT-2 and transposed convolutions, else 0."""


def _tensors(part, theirs, ours, rows):
    """Yields a `Tensor` per row `("kind released_name our_name", *shape)`; `theirs`, `ours` are name prefixes."""
    for row, *shape in rows:
        kind, name, weight = row.split()
        for ends, our_end, layout, axis in _KINDS[kind]:
            names = tuple(f"{theirs}{name}.{end}" for end in ends.split()) or (theirs + name,)
            shapes = (tuple(shape if axis is None else shape[axis : axis + 1]),)
            if layout == "weight_norm":
                shapes = ((shape[0], 1, 1), *shapes)
            yield Tensor(names, shapes, part, f"{ours}{weight}{our_end}", layout)


def _numbered(count, *rows):
    """Returns `count` copies of rows for `_tensors`, with the number of the copy (0, 1, …) in place of `#`."""
    return [(row.replace("#", str(i)), *shape) for i in range(count) for row, *shape in rows]


def dvae_tensors(config: ModelConfig, prefix: str = "") -> list[Tensor]:
    """Lists the weights in `dvae.pth` as `Tensor`s; `prefix` is put before the released names."""
    hidden, wide, book, codes = config.dvae_hidden, 2 * config.dvae_hidden, config.codebook_width, config.num_codes
    count, mels = config.dvae_residual_blocks, config.num_mels

    def blocks(side, first):
        for i in range(count):
            for j, taps in enumerate((3, 3, 1)):
                yield f"linear {side}.{first + i}.net.{2 * j} {side}_block_{i}/conv_{j}", wide, wide, taps

    rows = (
        ("linear encoder.0.0 encoder_conv_0", hidden, mels, 3),
        ("linear encoder.1.0 encoder_conv_1", wide, hidden, 3),
        *blocks("encoder", 2),
        (f"linear encoder.{2 + count} encoder_output", book, wide, 1),
        ("reversed codebook.embed quantizer/codebook", book, codes),
        ("reversed codebook.embed_avg quantizer/codebook_sum", book, codes),
        ("same codebook.cluster_size quantizer/cluster_size", codes),
        ("linear decoder.0 decoder_input", wide, book, 1),
        *blocks("decoder", 1),
        (f"linear decoder.{1 + count}.0.conv decoder_conv_0", wide, wide, 3),
        (f"linear decoder.{2 + count}.0.conv decoder_conv_1", hidden, wide, 3),
        (f"linear decoder.{3 + count} decoder_output", mels, hidden, 1),
    )
    return list(_tensors("dvae", prefix, "dvae/", rows))


def _gpt(config):
    width, text, audio = config.width, config.num_text_tokens, config.num_audio_tokens
    attended, hidden = config.perceiver_heads * config.perceiver_head_width, width * 8 // 3
    projection = "conditioning_encoder.attn.#.proj_out conditioning_encoder/block_#/output_projection"
    rows = (
        ("same text_embedding.weight text_embedding", text, width),
        ("same mel_embedding.weight audio_embedding", audio, width),
        ("same text_pos_embedding.emb.weight text_position_embedding", config.max_text_tokens + 2, width),
        ("same mel_pos_embedding.emb.weight audio_position_embedding", config.max_audio_tokens + 3, width),
        ("pointwise conditioning_encoder.init conditioning_encoder/input_projection", width, config.num_mels, 1),
        *_numbered(
            config.conditioning_blocks,
            ("norm conditioning_encoder.attn.#.norm conditioning_encoder/block_#/norm", width),
            ("pointwise conditioning_encoder.attn.#.qkv conditioning_encoder/block_#/qkv", 3 * width, width, 1),
            (f"pointwise {projection}", width, width, 1),
        ),
        ("same conditioning_perceiver.latents perceiver/latents", config.num_latents, width),
        ("same conditioning_perceiver.norm.gamma perceiver/gamma", width),
        *_numbered(
            config.perceiver_depth,
            ("kernel conditioning_perceiver.layers.#.0.to_q perceiver/layer_#/query", attended, width),
            ("kernel conditioning_perceiver.layers.#.0.to_kv perceiver/layer_#/key_value", 2 * attended, width),
            ("kernel conditioning_perceiver.layers.#.0.to_out perceiver/layer_#/output_projection", width, attended),
            ("linear conditioning_perceiver.layers.#.1.0 perceiver/layer_#/mlp_in", 2 * hidden, width),
            ("linear conditioning_perceiver.layers.#.1.2 perceiver/layer_#/mlp_out", width, hidden),
        ),
        *_numbered(
            config.layers,
            ("norm gpt.h.#.ln_1 block_#/attention_norm", width),
            ("inputs_first gpt.h.#.attn.c_attn block_#/attention/qkv", width, 3 * width),
            ("inputs_first gpt.h.#.attn.c_proj block_#/attention/output_projection", width, width),
            ("norm gpt.h.#.ln_2 block_#/mlp_norm", width),
            ("inputs_first gpt.h.#.mlp.c_fc block_#/mlp_in", width, 4 * width),
            ("inputs_first gpt.h.#.mlp.c_proj block_#/mlp_out", 4 * width, width),
        ),
        ("norm gpt.ln_f trunk_norm", width),
        ("norm final_norm final_norm", width),
        ("linear text_head text_head", text, width),
        ("linear mel_head audio_head", audio, width),
    )
    return _tensors("gpt", "gpt.", "gpt/", rows)


def _decoder(config):
    wide, speaker = config.decoder_channels, config.speaker_width
    rows = [
        ("linear conv_pre conv_pre", wide, config.width, 7),
        ("pointwise cond_layer condition_pre", wide, speaker, 1),
    ]
    for stage, (_, taps) in enumerate(DECODER_UPSAMPLING):
        narrow = wide // 2
        rows.append((f"weight_norm ups.{stage} upsample_{stage}", wide, narrow, taps))
        rows.append((f"pointwise conds.{stage} condition_{stage}", narrow, speaker, 1))
        for stack, taps in enumerate(DECODER_KERNELS):
            theirs, ours = f"resblocks.{stage * len(DECODER_KERNELS) + stack}", f"stack_{stage}_{stack}"
            rows += _numbered(
                len(DECODER_DILATIONS),
                (f"weight_norm {theirs}.convs1.# {ours}/dilated_#", narrow, narrow, taps),
                (f"weight_norm {theirs}.convs2.# {ours}/plain_#", narrow, narrow, taps),
            )
        wide = narrow
    rows.append(("kernel conv_post conv_post", 1, wide, 7))
    return _tensors("decoder", "hifigan_decoder.waveform_decoder.", "decoder/", rows)


def _speaker_encoder(config):
    widths = config.speaker_channels
    width_in = widths[0]
    rows = [("linear conv1 stem", width_in, 1, 3, 3), ("batch_norm bn1 stem_norm", width_in)]
    for group, (width, num_blocks) in enumerate(zip(widths, SPEAKER_BLOCKS, strict=True)):
        for i in range(num_blocks):
            name, weight = f"layer{group + 1}.{i}", f"group_{group}_block_{i}"
            rows += [
                (f"kernel {name}.conv1 {weight}/conv1", width, width_in, 3, 3),
                (f"batch_norm {name}.bn1 {weight}/norm1", width),
                (f"kernel {name}.conv2 {weight}/conv2", width, width, 3, 3),
                (f"batch_norm {name}.bn2 {weight}/norm2", width),
                (f"linear {name}.se.fc.0 {weight}/gate/squeeze", width // 8, width),
                (f"linear {name}.se.fc.2 {weight}/gate/excite", width, width // 8),
            ]
            if group and i == 0:
                rows += [
                    (f"kernel {name}.downsample.0 {weight}/shortcut_conv", width, width_in, 1, 1),
                    (f"batch_norm {name}.downsample.1 {weight}/shortcut_norm", width),
                ]
            width_in = width
    pooled = width_in * 8  # 64 mel bands, halved three times
    rows += [
        ("pointwise attention.0 pooling/hidden", 128, pooled, 1),
        ("batch_norm attention.2 pooling/norm", 128),
        ("pointwise attention.3 pooling/score", pooled, 128, 1),
        ("linear fc project", config.speaker_width, 2 * pooled),
    ]
    return _tensors("speaker", "hifigan_decoder.speaker_encoder.", "speaker_encoder/", rows)
