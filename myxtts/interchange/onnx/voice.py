"""Encoders of a recording as ONNX graphs: conditioning latents and speaker vector."""

import numpy as np

from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpec
from myxtts.interchange.onnx.builder import Builder
from myxtts.models.conditioning_encoder import num_groups
from myxtts.models.xtts import XTTS


def build_conditioning(model: XTTS) -> Builder:
    """Pieces of a recording at 22 050 Hz, `wav` `(B, S)`, to `latents` `(B, num_latents, width)`."""
    graph, gpt, config = Builder("conditioning"), model.gpt, model.config
    wav = graph.input("wav", np.float32, "pieces", "samples")
    mel = graph.op("Div", log_mel(graph, CONDITIONING_MEL, wav), graph.constant(model.mel_stats))
    x = graph.linear(mel, gpt.conditioning_encoder.input_projection)
    for block in gpt.conditioning_encoder.blocks:
        x = _conditioning_block(graph, block, x, config.width)
    graph.output(_resampled(graph, gpt.perceiver, x), "latents", np.float32, "pieces", config.num_latents, config.width)
    return graph


def log_mel(graph: Builder, spec: MelSpec, wav: str) -> str:
    """`audio.mel.MelSpectrogram`: `(B, S)` to `(B, F, num_mels)`."""
    if spec.preemphasis:
        before = graph.concat(graph.slice(wav, 1, 1, 2), graph.slice(wav, 1, 0, -1), axis=1)
        wav = graph.op("Sub", wav, graph.op("Mul", before, graph.constant(spec.preemphasis)))
    half = spec.win_length // 2
    wav = graph.op("Pad", wav, graph.ints(0, half, 0, spec.win_length - half), mode="reflect")
    # The window lies at the left of the transform, which reaches beyond the last frame.
    wav = graph.op("Pad", wav, graph.ints(0, 0, 0, spec.n_fft - spec.win_length))
    window = np.pad(spec.window_values(), (0, spec.n_fft - spec.win_length))
    signal = graph.op("Unsqueeze", wav, graph.ints(2))
    spectrum = graph.op("STFT", signal, graph.number(spec.hop_length), graph.constant(window), graph.number(spec.n_fft))
    power = graph.op("ReduceSumSquare", spectrum, graph.ints(3), keepdims=0)
    filters = spec.filterbank()
    reached = int(np.flatnonzero(filters.any(axis=1))[-1]) + 1
    mel = graph.op("MatMul", graph.slice(power, 2, 0, reached), graph.constant(filters[:reached]))
    if spec.log_floor:
        mel = graph.op("Max", mel, graph.constant(spec.log_floor))
    return graph.op("Log", graph.op("Add", mel, graph.constant(spec.log_offset)) if spec.log_offset else mel)


def _conditioning_block(graph, block, x, width):
    groups, depth = num_groups(width), width // block.heads
    by_group = graph.reshape(graph.transpose(x, 0, 2, 1), 0, groups, -1)
    plain = graph.constant(np.ones(groups)), graph.constant(np.zeros(groups))
    by_group = graph.op("InstanceNormalization", by_group, *plain, epsilon=block.norm.epsilon)
    x = graph.transpose(graph.reshape(by_group, 0, width, -1), 0, 2, 1)
    x = graph.op("Add", graph.op("Mul", x, graph.constant(block.norm.gamma)), graph.constant(block.norm.beta))
    # Channels lie as heads of query, key and value.
    qkv = graph.transpose(graph.reshape(graph.linear(x, block.qkv), 0, 0, block.heads, 3 * depth), 0, 2, 1, 3)
    attended = _attend(graph, *graph.op("Split", qkv, outputs=3, axis=-1, num_outputs=3), depth)
    return graph.op("Add", x, graph.linear(attended, block.output_projection))


def _attend(graph, query, key, value, depth):
    """Queries, keys and values `(B, heads, T, depth)` to `(B, T, heads * depth)`; all see all."""
    query = graph.op("Mul", query, graph.constant(depth**-0.5))
    shares = graph.op("Softmax", graph.op("MatMul", query, graph.transpose(key, 0, 1, 3, 2)), axis=-1)
    return graph.reshape(graph.transpose(graph.op("MatMul", shares, value), 0, 2, 1, 3), 0, 0, -1)


def _resampled(graph, perceiver, context):
    """The perceiver: frames `(B, T, width)` to `(B, num_latents, width)`."""
    start = graph.constant(np.asarray(perceiver.latents)[None])
    shape = graph.concat(graph.length(context, 0), graph.ints(*np.shape(perceiver.latents)), axis=0)
    latents = graph.op("Expand", start, shape)
    heads, depth = perceiver.heads, perceiver.head_width
    for layer in perceiver.layers:
        by_head = lambda x: graph.transpose(graph.reshape(x, 0, 0, heads, depth), 0, 2, 1, 3)
        read = graph.linear(graph.concat(latents, context, axis=1), layer.key_value)
        key, value = graph.op("Split", read, outputs=2, axis=-1, num_outputs=2)
        attended = _attend(graph, by_head(graph.linear(latents, layer.query)), by_head(key), by_head(value), depth)
        latents = graph.op("Add", latents, graph.linear(attended, layer.output_projection))
        update, gate = graph.op("Split", graph.linear(latents, layer.mlp_in), outputs=2, axis=-1, num_outputs=2)
        gated = graph.op("Mul", update, graph.op("Gelu", gate))
        latents = graph.op("Add", latents, graph.linear(gated, layer.mlp_out))
    norm = graph.op("Max", graph.op("ReduceL2", latents, graph.ints(-1), keepdims=1), graph.constant(1e-12))
    width = np.shape(perceiver.latents)[1]
    return graph.op("Mul", graph.op("Div", latents, norm), graph.constant(width**0.5 * np.asarray(perceiver.gamma)))


def build_speaker(model: XTTS) -> Builder:
    """A recording at 16 000 Hz, `wav` `(B, S)`, to the `speaker` vector `(B, speaker_width)`."""
    graph, encoder = Builder("speaker"), model.speaker_encoder
    wav = graph.input("wav", np.float32, "recordings", "samples")
    mel = graph.transpose(log_mel(graph, SPEAKER_MEL, wav), 0, 2, 1)
    plain = graph.constant(np.ones(SPEAKER_MEL.num_mels)), graph.constant(np.zeros(SPEAKER_MEL.num_mels))
    x = graph.op("InstanceNormalization", mel, *plain, epsilon=1e-5)
    # Channels first, then time and bands.
    x = graph.op("Unsqueeze", graph.transpose(x, 0, 2, 1), graph.ints(1))
    x = _batch_norm(graph, graph.op("Relu", _conv(graph, encoder.stem, x)), encoder.stem_norm)
    for block in encoder.blocks:
        x = _residual_block(graph, block, x)
    x = graph.transpose(x, 0, 2, 1, 3)
    pooled = _pooled(graph, encoder.pooling, graph.reshape(x, 0, 0, -1))
    vector = graph.linear(pooled, encoder.project)
    norm = graph.op("Max", graph.op("ReduceL2", vector, graph.ints(-1), keepdims=1), graph.constant(1e-12))
    graph.output(graph.op("Div", vector, norm), "speaker", np.float32, "recordings", encoder.embedding_width)
    return graph


def _conv(graph, layer, x):
    kernel = graph.constant(np.transpose(np.asarray(layer.kernel), (3, 2, 0, 1)))
    bias = [graph.constant(layer.bias)] if layer.use_bias else []
    return graph.op("Conv", x, kernel, *bias, strides=[layer.stride] * 2, pads=[layer.padding] * 4)


def _batch_norm(graph, x, layer, channels_last=False):
    """With the statistics of training, as one scale and one shift for each channel."""
    scale = np.asarray(layer.gamma) / np.sqrt(np.asarray(layer.moving_variance) + layer.epsilon)
    shift = np.asarray(layer.beta) - np.asarray(layer.moving_mean) * scale
    shape = (-1,) if channels_last else (-1, 1, 1)
    scale, shift = (graph.constant(part.reshape(shape)) for part in (scale, shift))
    return graph.op("Add", graph.op("Mul", x, scale), shift)


def _residual_block(graph, block, x):
    shortcut = x
    if block.shortcut_conv is not None:
        shortcut = _batch_norm(graph, _conv(graph, block.shortcut_conv, x), block.shortcut_norm)
    x = _batch_norm(graph, graph.op("Relu", _conv(graph, block.conv1, x)), block.norm1)
    x = _batch_norm(graph, _conv(graph, block.conv2, x), block.norm2)
    squeezed = graph.linear(graph.op("ReduceMean", x, graph.ints(2, 3), keepdims=0), block.gate.squeeze, "Relu")
    gate = graph.linear(squeezed, block.gate.excite, "Sigmoid")
    x = graph.op("Mul", x, graph.op("Unsqueeze", gate, graph.ints(2, 3)))
    return graph.op("Relu", graph.op("Add", x, shortcut))


def _pooled(graph, pooling, x):
    """Weighted mean and standard deviation over time, `(B, T, C)` to `(B, 2 C)`."""
    hidden = _batch_norm(graph, graph.linear(x, pooling.hidden, "Relu"), pooling.norm, channels_last=True)
    weight = graph.op("Softmax", graph.linear(hidden, pooling.score), axis=1)
    sum_over_time = lambda x: graph.op("ReduceSum", x, graph.ints(1), keepdims=0)
    mean = sum_over_time(graph.op("Mul", weight, x))
    square = sum_over_time(graph.op("Mul", weight, graph.op("Mul", x, x)))
    variance = graph.op("Sub", square, graph.op("Mul", mean, mean))
    return graph.concat(mean, graph.op("Sqrt", graph.op("Max", variance, graph.constant(1e-5))), axis=-1)
