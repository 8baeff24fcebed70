"""Encoders of a recording as ONNX graphs: conditioning latents and speaker vector."""

import numpy as np

from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpec
from myxtts.interchange.onnx.builder import Builder, Tensor
from myxtts.models.conditioning import num_groups
from myxtts.models.xtts import XTTS


def build_conditioning(model: XTTS) -> Builder:
    """Conditioning encoder: `wav` `(B, S)` at 22 050 Hz to `latents` `(B, num_latents, width)`."""
    graph, gpt, config = Builder("conditioning"), model.gpt, model.config
    wav = graph.input("wav", np.float32, "pieces", "samples")
    x = graph.linear(log_mel(graph, CONDITIONING_MEL, wav) / model.mel_stats, gpt.conditioning_encoder.input_projection)
    for block in gpt.conditioning_encoder.blocks:
        x = _conditioning_block(graph, block, x, config.width)
    graph.output(_resample(graph, gpt.perceiver, x), "latents", np.float32, "pieces", config.num_latents, config.width)
    return graph


def build_speaker(model: XTTS) -> Builder:
    """Speaker encoder: `wav` `(B, S)` at 16 000 Hz to the `speaker` vector `(B, speaker_width)`."""
    graph, encoder = Builder("speaker"), model.speaker_encoder
    mel = log_mel(graph, SPEAKER_MEL, graph.input("wav", np.float32, "recordings", "samples"))
    x = _instance_norm(graph, mel.transpose(0, 2, 1), SPEAKER_MEL.num_mels, 1e-5)
    # Channels first, then time and bands.
    x = x.transpose(0, 2, 1).unsqueeze(1)
    x = _batch_norm(graph.op("Relu", graph.conv(x, encoder.stem)), encoder.stem_norm)
    for block in encoder.blocks:
        x = _residual_block(graph, block, x)
    pooled = _pool(graph, encoder.pooling, x.transpose(0, 2, 1, 3).reshape(0, 0, -1))
    vector = _unit(graph, graph.linear(pooled, encoder.project))
    graph.output(vector, "speaker", np.float32, "recordings", encoder.embedding_width)
    return graph


def log_mel(graph: Builder, spec: MelSpec, wav: Tensor) -> Tensor:
    """Computes `audio.mel.MelSpectrogram`: `(B, S)` to `(B, F, num_mels)`."""
    if spec.preemphasis:
        wav = wav - graph.concat(wav.slice(1, 1, 2), wav.slice(1, 0, -1), axis=1) * spec.preemphasis
    half, unused = spec.win_length // 2, spec.n_fft - spec.win_length
    wav = graph.op("Pad", wav, [0, half, 0, spec.win_length - half], mode="reflect")
    # The window lies at the left of the transform, which extends beyond the last frame.
    wav = graph.op("Pad", wav, [0, 0, 0, unused])
    window = np.pad(spec.window_values(), (0, unused))
    spectrum = graph.op("STFT", wav.unsqueeze(2), spec.hop_length, window, spec.n_fft)
    power = graph.op("ReduceSumSquare", spectrum, [3], keepdims=0)
    filters = spec.filterbank()
    used = int(np.flatnonzero(filters.any(axis=1))[-1]) + 1
    mel = power.slice(2, 0, used) @ filters[:used]
    if spec.log_floor:
        mel = graph.op("Max", mel, spec.log_floor)
    return graph.op("Log", mel + spec.log_offset if spec.log_offset else mel)


def _instance_norm(graph, x, channels, epsilon):
    return graph.op("InstanceNormalization", x, np.ones(channels), np.zeros(channels), epsilon=epsilon)


def _unit(graph, x):
    """L2-normalizes along the last axis."""
    return x / graph.op("Max", graph.op("ReduceL2", x, [-1], keepdims=1), 1e-12)


def _conditioning_block(graph, block, x, width):
    groups, depth = num_groups(width), width // block.heads
    by_group = _instance_norm(graph, x.transpose(0, 2, 1).reshape(0, groups, -1), groups, block.norm.epsilon)
    x = by_group.reshape(0, width, -1).transpose(0, 2, 1) * block.norm.gamma + block.norm.beta
    # Channels are ordered as heads of query, key and value.
    qkv = graph.linear(x, block.qkv).reshape(0, 0, block.heads, 3 * depth).transpose(0, 2, 1, 3)
    return x + graph.linear(_attend(graph, *qkv.split(3), depth), block.output_projection)


def _attend(graph, query, key, value, depth):
    """Unmasked attention of `(B, heads, T, depth)`, with heads merged: `(B, T, heads * depth)`."""
    shares = graph.op("Softmax", (query * depth**-0.5) @ key.transpose(0, 1, 3, 2), axis=-1)
    return (shares @ value).transpose(0, 2, 1, 3).reshape(0, 0, -1)


def _resample(graph, perceiver, context):
    """Perceiver resampler: frames `(B, T, width)` to `(B, num_latents, width)`."""
    start, heads, depth = np.asarray(perceiver.latents), perceiver.heads, perceiver.head_width
    latents = graph.op("Expand", start[None], graph.concat(context.length(0), start.shape, axis=0))
    for layer in perceiver.layers:
        by_head = lambda x: x.reshape(0, 0, heads, depth).transpose(0, 2, 1, 3)
        key, value = graph.linear(graph.concat(latents, context, axis=1), layer.key_value).split(2)
        attended = _attend(graph, by_head(graph.linear(latents, layer.query)), by_head(key), by_head(value), depth)
        latents = latents + graph.linear(attended, layer.output_projection)
        update, gate = graph.linear(latents, layer.mlp_in).split(2)
        latents = latents + graph.linear(update * graph.op("Gelu", gate), layer.mlp_out)
    return _unit(graph, latents) * (start.shape[1] ** 0.5 * np.asarray(perceiver.gamma))


def _batch_norm(x, layer, channels_last=False):
    """Batch normalization with the statistics of training, folded into a scale and a shift per channel."""
    scale = np.asarray(layer.gamma) / np.sqrt(np.asarray(layer.moving_variance) + layer.epsilon)
    shift = np.asarray(layer.beta) - np.asarray(layer.moving_mean) * scale
    shape = (-1,) if channels_last else (-1, 1, 1)
    return x * scale.reshape(shape) + shift.reshape(shape)


def _residual_block(graph, block, x):
    shortcut = x
    if block.shortcut_conv is not None:
        shortcut = _batch_norm(graph.conv(x, block.shortcut_conv), block.shortcut_norm)
    x = _batch_norm(graph.op("Relu", graph.conv(x, block.conv1)), block.norm1)
    x = _batch_norm(graph.conv(x, block.conv2), block.norm2)
    squeezed = graph.linear(graph.op("ReduceMean", x, [2, 3], keepdims=0), block.gate.squeeze, "Relu")
    gate = graph.linear(squeezed, block.gate.excite, "Sigmoid").unsqueeze(2, 3)
    return graph.op("Relu", x * gate + shortcut)


def _pool(graph, pooling, x):
    """Attentive statistics pooling: weighted mean and standard deviation over time, `(B, T, C)` to `(B, 2 C)`."""
    hidden = _batch_norm(graph.linear(x, pooling.hidden, "Relu"), pooling.norm, channels_last=True)
    weight = graph.op("Softmax", graph.linear(hidden, pooling.score), axis=1)
    sum_over_time = lambda x: graph.op("ReduceSum", x, [1], keepdims=0)
    mean = sum_over_time(weight * x)
    variance = sum_over_time(weight * (x * x)) - mean * mean
    return graph.concat(mean, graph.op("Sqrt", graph.op("Max", variance, 1e-5)), axis=-1)
