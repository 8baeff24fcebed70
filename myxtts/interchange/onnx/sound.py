"""Waveform decoders as ONNX graphs: GPT latents and a speaker vector to samples."""

import numpy as np

from myxtts.interchange.onnx.builder import Builder
from myxtts.models.hifigan import LAST_SLOPE, SLOPE, HifiganGenerator
from myxtts.models.istft import MOST_LOG_MAGNITUDE, IstftGenerator
from myxtts.models.waveform_decoder import WaveformDecoder
from myxtts.models.xtts import XTTS


def build_decoder(model: XTTS) -> Builder:
    """A window of a sentence: `samples` `(B, F hop_length)` of the frames `start` to `end`, both `(1,)` int64.

    `latents` are `(B, n, width)`, all that there are so far, `speaker` is `(B, speaker_width)`. An `end` beyond the
    last frame is the last one.
    """
    graph, decoder, config = Builder("decoder"), model.decoder, model.config
    latents = graph.input("latents", np.float32, "rows", "num_latents", config.width)
    speaker = graph.input("speaker", np.float32, "rows", config.speaker_width)
    start, end = (graph.input(name, np.int64, 1) for name in ("start", "end"))
    frames = graph.slice(_frames(graph, decoder, latents), 1, start, end)
    to_samples = _istft if isinstance(decoder, IstftGenerator) else _hifigan
    graph.output(to_samples(graph, decoder, frames, speaker), "samples", np.float32, "rows", "num_samples")
    return graph


def _frames(graph: Builder, decoder: WaveformDecoder, x: str) -> str:
    """`WaveformDecoder.latents_to_frames`."""
    for factor in decoder.factors():
        length = graph.op("Cast", graph.length(x, 1), to=_DOUBLE)
        length = graph.op("Floor", graph.op("Mul", length, graph.constant(factor, np.float64)))
        place = graph.op("Cast", graph.count(graph.op("Cast", length, to=_INT64)), to=_FLOAT)
        place = graph.op("Mul", graph.op("Add", place, graph.constant(0.5)), graph.constant(1 / factor))
        place = graph.op("Max", graph.op("Sub", place, graph.constant(0.5)), graph.constant(0.0))
        last = graph.op("Sub", graph.length(x, 1), graph.ints(1))
        left = graph.op("Min", graph.op("Cast", place, to=_INT64), last)
        right = graph.op("Min", graph.op("Add", left, graph.ints(1)), last)
        blend = graph.op("Sub", place, graph.op("Cast", left, to=_FLOAT))
        blend = graph.op("Unsqueeze", blend, graph.ints(1))
        rest = graph.op("Sub", graph.constant(1.0), blend)
        parts = (graph.op("Mul", graph.op("Gather", x, at, axis=1), by) for at, by in ((left, rest), (right, blend)))
        x = graph.op("Add", *parts)
    return x


_FLOAT, _INT64, _DOUBLE = 1, 7, 11


def _istft(graph: Builder, decoder: IstftGenerator, frames: str, speaker: str) -> str:
    """`IstftGenerator.frames_to_samples`."""
    scaled = graph.op("Mul", speaker, graph.constant(np.shape(decoder.condition.kernel)[0] ** 0.5))
    condition = graph.linear(scaled, decoder.condition)
    x = graph.transpose(_conv(graph, decoder.conv_pre, graph.transpose(frames, 0, 2, 1)), 0, 2, 1)
    x = graph.op("Add", x, graph.op("Unsqueeze", condition, graph.ints(1)))
    x = graph.layer_norm(x, decoder.norm_pre)
    condition = graph.op("Mul", condition, graph.op("Sigmoid", condition))
    for block in decoder.blocks:
        x = _conv_next(graph, block, x, condition)
    head = graph.linear(graph.layer_norm(x, decoder.norm_post), decoder.head)
    log_magnitude, phase = graph.op("Split", head, outputs=2, axis=-1, num_outputs=2)
    magnitude = graph.op("Exp", graph.op("Min", log_magnitude, graph.constant(MOST_LOG_MAGNITUDE)))
    parts = (graph.op("Mul", magnitude, graph.op(wave, phase)) for wave in ("Cos", "Sin"))
    return _overlapped(graph, decoder, graph.transpose(graph.concat(*parts, axis=-1), 0, 2, 1))


def _conv_next(graph, block, x, condition):
    """One `ConvNextBlock`, `(B, F, width)`."""
    kernel, after = np.asarray(block.kernel), block.lookahead
    pads = [len(kernel) - 1 - after, after]
    arrays = graph.constant(np.transpose(kernel, (1, 2, 0))), graph.constant(block.bias)
    hidden = graph.op("Conv", graph.transpose(x, 0, 2, 1), *arrays, pads=pads, group=kernel.shape[1])
    hidden = graph.layer_norm(graph.transpose(hidden, 0, 2, 1), block.norm, kernel.shape[1])
    modulation = graph.op("Unsqueeze", graph.linear(condition, block.modulation), graph.ints(1))
    scale, shift = graph.op("Split", modulation, outputs=2, axis=-1, num_outputs=2)
    scale = graph.op("Add", scale, graph.constant(1.0))
    hidden = graph.op("Add", graph.op("Mul", hidden, scale), shift)
    hidden = graph.linear(graph.op("Gelu", graph.linear(hidden, block.widen), approximate="tanh"), block.narrow)
    return graph.op("Add", x, graph.op("Mul", hidden, graph.constant(block.factor)))


def _overlapped(graph, decoder, spectrum):
    """Inverse Fourier transform, window and overlap as one transposed convolution of `(B, 2 bins, F)`."""
    hop, size = decoder.hop_length, 4 * decoder.hop_length
    crop, window = 3 * hop // 2, graph.constant(decoder.window)
    waves = graph.op("Mul", _waves(graph, size), window)
    shape = dict(strides=[hop], pads=[crop, crop])
    x = graph.op("ConvTranspose", spectrum, graph.op("Unsqueeze", waves, graph.ints(1)), **shape)
    ones = graph.op("Expand", graph.constant(1.0), graph.concat(graph.ints(1, 1), graph.length(spectrum, 2), axis=0))
    envelope = graph.op("ConvTranspose", ones, graph.constant(decoder.window[None, None] ** 2), **shape)
    x = graph.op("Div", x, graph.op("Max", envelope, graph.constant(1e-3)))
    return graph.op("Squeeze", graph.op("Clip", x, graph.constant(-1.0), graph.constant(1.0)), graph.ints(1))


def _waves(graph, size):
    """What each bin's real and imaginary parts add to a frame, `(2 (size / 2 + 1), size)`.

    Made by the graph, since the table would be the larger part of a small model's file; ONNX Runtime computes it once,
    when the file is loaded.
    """
    bins = np.arange(size // 2 + 1)
    turns = graph.op("Mul", graph.constant(bins[:, None], np.int64), graph.count(graph.ints(size)))
    turns = graph.op("Cast", graph.op("Mod", turns, graph.number(size)), to=_FLOAT)
    angle = graph.op("Mul", turns, graph.constant(2 * np.pi / size))
    inner = (bins > 0) & (bins < size // 2)
    real = graph.op("Mul", graph.op("Cos", angle), graph.constant(((1 + inner) / size)[:, None]))
    imaginary = graph.op("Mul", graph.op("Sin", angle), graph.constant((-2.0 * inner / size)[:, None]))
    return graph.concat(real, imaginary, axis=0)


def _hifigan(graph: Builder, decoder: HifiganGenerator, frames: str, speaker: str) -> str:
    """`HifiganGenerator.frames_to_samples`, channels first."""

    def conditioned(x, layer):
        return graph.op("Add", x, graph.op("Unsqueeze", graph.linear(speaker, layer), graph.ints(2)))

    leaky = lambda x, slope=SLOPE: graph.op("LeakyRelu", x, alpha=slope)
    x = conditioned(_conv(graph, decoder.conv_pre, graph.transpose(frames, 0, 2, 1)), decoder.condition_pre)
    for upsample, condition, stage in zip(decoder.upsamples, decoder.conditions, decoder.stacks, strict=True):
        x = conditioned(_conv_transpose(graph, upsample, leaky(x)), condition)
        outputs = []
        for stack in stage:
            hidden = x
            for dilated, plain in zip(stack.dilated, stack.plain, strict=True):
                inner = leaky(_conv(graph, dilated, leaky(hidden)))
                hidden = graph.op("Add", hidden, _conv(graph, plain, inner))
            outputs.append(hidden)
        x = graph.op("Mean", *outputs)
    x = graph.op("Tanh", _conv(graph, decoder.conv_post, leaky(x, LAST_SLOPE)))
    return graph.op("Squeeze", x, graph.ints(1))


def _conv(graph, layer, x):
    """A `Conv1D` on `(B, C, T)`."""
    kernel = graph.constant(np.transpose(np.asarray(layer.kernel), (2, 1, 0)))
    bias = [graph.constant(layer.bias)] if layer.use_bias else []
    shape = dict(strides=[layer.stride], dilations=[layer.dilation], pads=[layer.padding] * 2)
    return graph.op("Conv", x, kernel, *bias, **shape)


def _conv_transpose(graph, layer, x):
    """A `ConvTranspose1D` on `(B, C, T)`."""
    kernel = graph.constant(np.transpose(np.asarray(layer.kernel), (2, 1, 0)))
    padding = (layer.kernel_size - layer.stride) // 2
    shape = dict(strides=[layer.stride], pads=[padding, padding])
    return graph.op("ConvTranspose", x, kernel, graph.constant(layer.bias), **shape)
