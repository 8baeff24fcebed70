"""The released XTTS v2 checkpoint beside our weights: every tensor's name and shape there, its name and layout here.

`model_tensors` and `dvae_tensors` list all weights of `model.pth` and `dvae.pth`, one by one. PyTorch keeps output
channels first, Keras last, and the speaker encoder's images are (mel, time) there and (time, mel) here: most kernels
have their axes reversed. Convolutions of the vocoder come with weight norm, which is folded. Nothing here needs
PyTorch, TensorFlow or Keras.
"""

import re
from typing import NamedTuple

import numpy as np

SPEAKER_BLOCKS = (3, 4, 6, 3)
"""Residual blocks in each group of the speaker encoder."""
VOCODER_UPSAMPLING = ((8, 16), (8, 16), (2, 4), (2, 4))
"""Rate and taps of each transposed convolution of the vocoder."""
VOCODER_KERNELS = (3, 7, 11)
"""Taps of the residual stacks of each stage of the vocoder."""
VOCODER_DILATIONS = 3
"""Dilated convolutions in a residual stack."""
_GAIN, _DIRECTION = "parametrizations.weight.original0", "parametrizations.weight.original1"

_DUPLICATE = "a copy of another tensor, made for generation"
_COUNTER = "a step counter of batch normalisation"
_FRONT_END = "front-end that is computed here"
_SKIPPED = (
    (re.compile(r"gpt\.gpt_inference\..+|gpt\.gpt\.wte\.weight"), _DUPLICATE),
    (re.compile(r"gpt\.gpt\.h\.\d+\.attn\.(masked_)?bias"), "a causal mask"),
    (re.compile(r"hifigan_decoder\.speaker_encoder\..+\.num_batches_tracked"), _COUNTER),
    (
        re.compile(
            r"hifigan_decoder\.speaker_encoder\.torch_spec\.(0\.filter|1\.spectrogram\.window|1\.mel_scale\.fb)"
        ),
        _FRONT_END,
    ),
    (re.compile(r"torch_mel_spectrogram_(style_encoder|dvae)\..+"), _FRONT_END),
    (re.compile(r"discrete_loss\..+"), "state of a loss that is never used"),
)


class Tensor(NamedTuple):
    """One of our weights and the one or, with weight norm, two tensors that it comes from."""

    names: tuple
    """Names in the released files."""
    shapes: tuple
    """Their shapes."""
    part: str
    """`dvae`, `gpt` or `decoder`."""
    weight: str
    """Our name within the part, see `XTTS.part_weights`."""
    layout: str
    """How the values are arranged: a key of `_TO_OURS`."""


def skip_reason(name):
    """Why a tensor of the released files has no weight here, or None for a name that is not known to be of no use."""
    return next((reason for pattern, reason in _SKIPPED if pattern.fullmatch(name)), None)


def modern_name(name):
    """The name in today's files: without a trainer's prefix, with today's spelling of weight norm."""
    name = name.removeprefix("xtts.")
    if name.endswith(".weight_g"):
        return name.removesuffix("weight_g") + _GAIN
    return name.removesuffix("weight_v") + _DIRECTION if name.endswith(".weight_v") else name


def model_tensors(config):
    """All `Tensor`s of `model.pth` for a `ModelConfig`."""
    return [
        _same("mel_stats", "dvae", "mel_stats", (config.num_mels,)),
        *_gpt(config),
        *_vocoder(config),
        *_speaker_encoder(config),
    ]


def dvae_tensors(config):
    """All `Tensor`s of `dvae.pth` for a `ModelConfig`."""
    hidden, wide, book = config.dvae_hidden, 2 * config.dvae_hidden, config.codebook_width
    blocks = config.dvae_residual_blocks

    def block(name, weight):
        return [
            *_layer(f"{name}.net.0", "dvae", f"{weight}/conv_0", (wide, wide, 3)),
            *_layer(f"{name}.net.2", "dvae", f"{weight}/conv_1", (wide, wide, 3)),
            *_layer(f"{name}.net.4", "dvae", f"{weight}/conv_2", (wide, wide, 1)),
        ]

    tensors = [
        *_layer("encoder.0.0", "dvae", "dvae/encoder_conv_0", (hidden, config.num_mels, 3)),
        *_layer("encoder.1.0", "dvae", "dvae/encoder_conv_1", (wide, hidden, 3)),
    ]
    for i in range(blocks):
        tensors += block(f"encoder.{2 + i}", f"dvae/encoder_block_{i}")
    tensors += [
        *_layer(f"encoder.{2 + blocks}", "dvae", "dvae/encoder_output", (book, wide, 1)),
        _single("codebook.embed", "dvae", "dvae/quantizer/codebook", (book, config.num_codes), "reversed"),
        _single("codebook.embed_avg", "dvae", "dvae/quantizer/codebook_sum", (book, config.num_codes), "reversed"),
        _same("codebook.cluster_size", "dvae", "dvae/quantizer/cluster_size", (config.num_codes,)),
        *_layer("decoder.0", "dvae", "dvae/decoder_input", (wide, book, 1)),
    ]
    for i in range(blocks):
        tensors += block(f"decoder.{1 + i}", f"dvae/decoder_block_{i}")
    return [
        *tensors,
        *_layer(f"decoder.{1 + blocks}.0.conv", "dvae", "dvae/decoder_conv_0", (wide, wide, 3)),
        *_layer(f"decoder.{2 + blocks}.0.conv", "dvae", "dvae/decoder_conv_1", (hidden, wide, 3)),
        *_layer(f"decoder.{3 + blocks}", "dvae", "dvae/decoder_output", (config.num_mels, hidden, 1)),
    ]


def constant_tensors(config):
    """Tensors without a weight here that the reference's strict loading asks for, at their initial values.

    The speaker encoder's front-end is not among them, see `coqui_export.speaker_front_end`.

    Returns:
        Two dictionaries of arrays by name, for `model.pth` and for `dvae.pth`.
    """
    norms = [
        tensor.names[0].removesuffix("running_var")
        for tensor in _speaker_encoder(config)
        if tensor.names[0].endswith(".running_var")
    ]
    counters = {f"{norm}num_batches_tracked": np.zeros((), np.int64) for norm in norms}
    return counters, {
        "discrete_loss.accumulator_index": np.zeros(1, np.int64),
        "discrete_loss.accumulator_filled": np.zeros(1, np.int64),
        "discrete_loss.accumulator": np.zeros((100, config.num_codes), np.float32),
    }


def our_shape(tensor):
    """Shape of the weight that a `Tensor` becomes."""
    return _OUR_SHAPE[tensor.layout](tensor.shapes[-1])


def to_ours(arrays, layout):
    """Values of a `Tensor`, in the order of its names, as our weight, float32."""
    return np.asarray(_TO_OURS[layout](*(np.asarray(array, np.float32) for array in arrays)), np.float32)


def to_coqui(array, layout):
    """Our weight as the values of a `Tensor`, in the order of its names."""
    return _TO_COQUI[layout](array)


def fold_weight_norm(gain, direction):
    """The plain weight of a weight-normalised layer, `direction gain / |direction|` (Salimans and Kingma 2016).

    The norm is over all axes but the first, also in transposed convolutions, whose first axis is the input channel.

    Args:
        gain: `(d, 1, 1)` float32.
        direction: `(d, m, k)` float32.

    Returns:
        `(d, m, k)` float32.
    """
    return direction * (gain / _norm_but_first(direction))


def _norm_but_first(direction):
    norm = np.sqrt(np.sum(np.square(direction, dtype=np.float64), axis=(1, 2), keepdims=True))
    return norm.astype(np.float32)


_TO_OURS = {
    "same": lambda value: value,
    "reversed": lambda value: value.transpose(),
    "pointwise": lambda value: value[..., 0].transpose(),
    "weight_norm": lambda gain, direction: fold_weight_norm(gain, direction).transpose(),
}
_OUR_SHAPE = {
    "same": lambda shape: shape,
    "reversed": lambda shape: shape[::-1],
    "pointwise": lambda shape: shape[1::-1],
    "weight_norm": lambda shape: shape[::-1],
}
_TO_COQUI = {
    "same": lambda value: (value,),
    "reversed": lambda value: (value.transpose(),),
    "pointwise": lambda value: (value.transpose()[..., np.newaxis],),
    "weight_norm": lambda value: (_norm_but_first(value.transpose()), value.transpose()),
}


def _single(name, part, weight, shape, layout):
    return Tensor((name,), (tuple(shape),), part, weight, layout)


def _same(name, part, weight, shape):
    return _single(name, part, weight, shape, "same")


def _layer(name, part, weight, shape, layout="reversed", bias=True):
    """Kernel and bias of a linear layer or convolution; `shape` is that of the released kernel, outputs first."""
    kernel = _single(f"{name}.weight", part, f"{weight}/kernel", shape, layout)
    return [kernel, _same(f"{name}.bias", part, f"{weight}/bias", shape[:1])] if bias else [kernel]


def _norm(name, part, weight, width):
    return [
        _same(f"{name}.weight", part, f"{weight}/gamma", (width,)),
        _same(f"{name}.bias", part, f"{weight}/beta", (width,)),
    ]


def _batch_norm(name, weight, width):
    return [
        *_norm(name, "decoder", weight, width),
        _same(f"{name}.running_mean", "decoder", f"{weight}/moving_mean", (width,)),
        _same(f"{name}.running_var", "decoder", f"{weight}/moving_variance", (width,)),
    ]


def _gpt(config):
    width = config.width

    def table(name, weight, rows):
        return _same(name, "gpt", f"gpt/{weight}", (rows, width))

    def trunk_linear(name, weight, num_in, num_out):  # GPT-2's own layer keeps inputs first, as Keras does
        return [
            _same(f"{name}.weight", "gpt", f"{weight}/kernel", (num_in, num_out)),
            _same(f"{name}.bias", "gpt", f"{weight}/bias", (num_out,)),
        ]

    tensors = [
        table("gpt.text_embedding.weight", "text_embedding", config.num_text_tokens),
        table("gpt.mel_embedding.weight", "audio_embedding", config.num_audio_tokens),
        table("gpt.text_pos_embedding.emb.weight", "text_position_embedding", config.max_text_tokens + 2),
        table("gpt.mel_pos_embedding.emb.weight", "audio_position_embedding", config.max_audio_tokens + 3),
        *_layer(
            "gpt.conditioning_encoder.init",
            "gpt",
            "gpt/conditioning_encoder/input_projection",
            (width, config.num_mels, 1),
            "pointwise",
        ),
    ]
    for i in range(config.conditioning_blocks):
        name, weight = f"gpt.conditioning_encoder.attn.{i}", f"gpt/conditioning_encoder/block_{i}"
        tensors += [
            *_norm(f"{name}.norm", "gpt", f"{weight}/norm", width),
            *_layer(f"{name}.qkv", "gpt", f"{weight}/qkv", (3 * width, width, 1), "pointwise"),
            *_layer(f"{name}.proj_out", "gpt", f"{weight}/output_projection", (width, width, 1), "pointwise"),
        ]
    attended, hidden = config.perceiver_heads * config.perceiver_head_width, width * 8 // 3
    tensors += [
        table("gpt.conditioning_perceiver.latents", "perceiver/latents", config.num_latents),
        _same("gpt.conditioning_perceiver.norm.gamma", "gpt", "gpt/perceiver/gamma", (width,)),
    ]
    for i in range(config.perceiver_depth):
        name, weight = f"gpt.conditioning_perceiver.layers.{i}", f"gpt/perceiver/layer_{i}"
        tensors += [
            *_layer(f"{name}.0.to_q", "gpt", f"{weight}/query", (attended, width), bias=False),
            *_layer(f"{name}.0.to_kv", "gpt", f"{weight}/key_value", (2 * attended, width), bias=False),
            *_layer(f"{name}.0.to_out", "gpt", f"{weight}/output_projection", (width, attended), bias=False),
            *_layer(f"{name}.1.0", "gpt", f"{weight}/mlp_in", (2 * hidden, width)),
            *_layer(f"{name}.1.2", "gpt", f"{weight}/mlp_out", (width, hidden)),
        ]
    for i in range(config.layers):
        name, weight = f"gpt.gpt.h.{i}", f"gpt/block_{i}"
        tensors += [
            *_norm(f"{name}.ln_1", "gpt", f"{weight}/attention_norm", width),
            *trunk_linear(f"{name}.attn.c_attn", f"{weight}/attention/qkv", width, 3 * width),
            *trunk_linear(f"{name}.attn.c_proj", f"{weight}/attention/output_projection", width, width),
            *_norm(f"{name}.ln_2", "gpt", f"{weight}/mlp_norm", width),
            *trunk_linear(f"{name}.mlp.c_fc", f"{weight}/mlp_in", width, 4 * width),
            *trunk_linear(f"{name}.mlp.c_proj", f"{weight}/mlp_out", 4 * width, width),
        ]
    return [
        *tensors,
        *_norm("gpt.gpt.ln_f", "gpt", "gpt/trunk_norm", width),
        *_norm("gpt.final_norm", "gpt", "gpt/final_norm", width),
        *_layer("gpt.text_head", "gpt", "gpt/text_head", (config.num_text_tokens, width)),
        *_layer("gpt.mel_head", "gpt", "gpt/audio_head", (config.num_audio_tokens, width)),
    ]


def _vocoder(config):
    channels, speaker = config.decoder_channels, config.speaker_width
    root = "hifigan_decoder.waveform_decoder"

    def layer(name, weight, shape, layout="reversed", bias=True):
        return _layer(f"{root}.{name}", "decoder", f"decoder/{weight}", shape, layout, bias)

    def weight_normed(name, weight, shape, num_out):
        name, weight = f"{root}.{name}", f"decoder/{weight}"
        return [
            Tensor(
                (f"{name}.{_GAIN}", f"{name}.{_DIRECTION}"),
                ((shape[0], 1, 1), shape),
                "decoder",
                f"{weight}/kernel",
                "weight_norm",
            ),
            _same(f"{name}.bias", "decoder", f"{weight}/bias", (num_out,)),
        ]

    tensors = [
        *layer("conv_pre", "conv_pre", (channels, config.width, 7)),
        *layer("cond_layer", "condition_pre", (channels, speaker, 1), "pointwise"),
    ]
    for stage, (_, taps) in enumerate(VOCODER_UPSAMPLING):
        wide, channels = channels, channels // 2
        tensors += [
            *weight_normed(f"ups.{stage}", f"upsample_{stage}", (wide, channels, taps), channels),
            *layer(f"conds.{stage}", f"condition_{stage}", (channels, speaker, 1), "pointwise"),
        ]
        for stack, kernel_size in enumerate(VOCODER_KERNELS):
            block = f"resblocks.{stage * len(VOCODER_KERNELS) + stack}"
            for i in range(VOCODER_DILATIONS):
                for convs, kind in (("convs1", "dilated"), ("convs2", "plain")):
                    tensors += weight_normed(
                        f"{block}.{convs}.{i}",
                        f"stack_{stage}_{stack}/{kind}_{i}",
                        (channels, channels, kernel_size),
                        channels,
                    )
    return [*tensors, *layer("conv_post", "conv_post", (1, channels, 7), bias=False)]


def _speaker_encoder(config):
    root, ours = "hifigan_decoder.speaker_encoder", "speaker_encoder"

    def layer(name, weight, shape, layout="reversed", bias=True):
        return _layer(f"{root}.{name}", "decoder", f"{ours}/{weight}", shape, layout, bias)

    def norm(name, weight, width):
        return _batch_norm(f"{root}.{name}", f"{ours}/{weight}", width)

    widths = config.speaker_channels
    tensors = [*layer("conv1", "stem", (widths[0], 1, 3, 3)), *norm("bn1", "stem_norm", widths[0])]
    width_in = widths[0]
    for group, (width, num_blocks) in enumerate(zip(widths, SPEAKER_BLOCKS, strict=True)):
        for i in range(num_blocks):
            name, weight = f"layer{group + 1}.{i}", f"group_{group}_block_{i}"
            tensors += [
                *layer(f"{name}.conv1", f"{weight}/conv1", (width, width_in, 3, 3), bias=False),
                *norm(f"{name}.bn1", f"{weight}/norm1", width),
                *layer(f"{name}.conv2", f"{weight}/conv2", (width, width, 3, 3), bias=False),
                *norm(f"{name}.bn2", f"{weight}/norm2", width),
                *layer(f"{name}.se.fc.0", f"{weight}/gate/squeeze", (width // 8, width)),
                *layer(f"{name}.se.fc.2", f"{weight}/gate/excite", (width, width // 8)),
            ]
            if group and i == 0:
                tensors += [
                    *layer(f"{name}.downsample.0", f"{weight}/shortcut_conv", (width, width_in, 1, 1), bias=False),
                    *norm(f"{name}.downsample.1", f"{weight}/shortcut_norm", width),
                ]
            width_in = width
    pooled = width_in * 8  # 64 mel bands, halved three times
    return [
        *tensors,
        *layer("attention.0", "pooling/hidden", (128, pooled, 1), "pointwise"),
        *norm("attention.2", "pooling/norm", 128),
        *layer("attention.3", "pooling/score", (pooled, 128, 1), "pointwise"),
        *layer("fc", "project", (config.speaker_width, 2 * pooled)),
    ]
