"""Waveform decoders as ONNX graphs: GPT latents and a speaker vector to samples."""

import numpy as np

from myxtts.interchange.onnx.builder import Builder
from myxtts.models.waveform_decoders import LAST_SLOPE, MOST_LOG_MAGNITUDE, SLOPE, IstftGenerator
from myxtts.models.xtts import XTTS


def build_decoder(model: XTTS) -> Builder:
    """Waveform decoder for one window of a sentence.

    Inputs: all `latents` so far, `(B, n, width)`; `speaker` `(B, speaker_width)`; `start` and `end` of the window in
    frames, `(1,)` int64. An `end` beyond the last frame means the last frame.
    Output: `samples` `(B, F hop_length)` of the window's F frames.
    """
    graph, decoder, config = Builder("decoder"), model.decoder, model.config
    latents = graph.input("latents", np.float32, "rows", "num_latents", config.width)
    speaker = graph.input("speaker", np.float32, "rows", config.speaker_width)
    start, end = (graph.input(name, np.int64, 1) for name in ("start", "end"))
    frames = _frames(graph, decoder, latents).slice(1, start, end)
    to_samples = _istft if isinstance(decoder, IstftGenerator) else _hifigan
    graph.output(to_samples(graph, decoder, frames, speaker), "samples", np.float32, "rows", "num_samples")
    return graph


def _frames(graph, decoder, x):
    """Computes `WaveformDecoder.latents_to_frames`."""
    for factor in decoder.factors():
        size = graph.op("Floor", x.length(1).cast(np.float64) * graph.constant(factor, np.float64)).cast(np.int64)
        place = graph.op("Max", (graph.count(size).cast(np.float32) + 0.5) * (1 / factor) - 0.5, 0.0)
        last = x.length(1) - [1]
        left = graph.op("Min", place.cast(np.int64), last)
        right = graph.op("Min", left + [1], last)
        blend = (place - left.cast(np.float32)).unsqueeze(1)
        x_left, x_right = (graph.op("Gather", x, at, axis=1) for at in (left, right))
        x = x_left * (graph.constant(1.0) - blend) + x_right * blend
    return x


def _istft(graph, decoder, frames, speaker):
    """Computes `IstftGenerator.frames_to_samples`."""
    condition = graph.linear(speaker * np.shape(decoder.condition.kernel)[0] ** 0.5, decoder.condition)
    x = graph.conv(frames.transpose(0, 2, 1), decoder.conv_pre).transpose(0, 2, 1) + condition.unsqueeze(1)
    x = graph.layer_norm(x, decoder.norm_pre)
    condition = condition * graph.op("Sigmoid", condition)
    for block in decoder.blocks:
        x = _conv_next(graph, block, x, condition)
    log_magnitude, phase = graph.linear(graph.layer_norm(x, decoder.norm_post), decoder.head).split(2)
    magnitude = graph.op("Exp", graph.op("Min", log_magnitude, MOST_LOG_MAGNITUDE))
    spectrum = graph.concat(*(magnitude * graph.op(wave, phase) for wave in ("Cos", "Sin")), axis=-1)
    return _overlap_add(graph, decoder, spectrum.transpose(0, 2, 1))


def _conv_next(graph, block, x, condition):
    """Applies a `ConvNextBlock` to `(B, F, width)`."""
    kernel, after = np.asarray(block.kernel), block.lookahead
    shape = dict(pads=[len(kernel) - 1 - after, after], group=kernel.shape[1])
    hidden = graph.op("Conv", x.transpose(0, 2, 1), kernel.transpose(1, 2, 0), block.bias, **shape)
    hidden = graph.layer_norm(hidden.transpose(0, 2, 1), block.norm, kernel.shape[1])
    scale, shift = graph.linear(condition, block.modulation).unsqueeze(1).split(2)
    hidden = hidden * (scale + 1.0) + shift
    hidden = graph.linear(graph.op("Gelu", graph.linear(hidden, block.widen), approximate="tanh"), block.narrow)
    return x + hidden * block.factor


def _overlap_add(graph, decoder, spectrum):
    """Inverse Fourier transform, window and overlap-add, as one transposed convolution of `(B, 2 bins, F)`."""
    hop, size = decoder.hop_length, 4 * decoder.hop_length
    shape = dict(strides=[hop], pads=[3 * hop // 2] * 2)
    waves = (_waves(graph, size) * decoder.window).unsqueeze(1)
    x = graph.op("ConvTranspose", spectrum, waves, **shape)
    ones = graph.op("Expand", 1.0, graph.concat([1, 1], spectrum.length(2), axis=0))
    envelope = graph.op("ConvTranspose", ones, decoder.window[None, None] ** 2, **shape)
    x = graph.op("Clip", x / graph.op("Max", envelope, 1e-3), -1.0, 1.0)
    return graph.op("Squeeze", x, [1])


def _waves(graph, size):
    """Waves that the real and imaginary part of each bin add to a frame, `(2 (size / 2 + 1), size)`.

    The graph computes them, once, when ONNX Runtime loads it: stored, they would be most of a small model's file.
    """
    bins = np.arange(size // 2 + 1)
    turns = graph.constant(bins[:, None]) * graph.count([size])
    angle = graph.op("Mod", turns, size).cast(np.float32) * (2 * np.pi / size)
    inner = (bins > 0) & (bins < size // 2)
    real = graph.op("Cos", angle) * ((1 + inner) / size)[:, None]
    imaginary = graph.op("Sin", angle) * (-2.0 * inner / size)[:, None]
    return graph.concat(real, imaginary, axis=0)


def _hifigan(graph, decoder, frames, speaker):
    """Computes `HifiganGenerator.frames_to_samples`, channels first."""
    leaky = lambda x, slope=SLOPE: graph.op("LeakyRelu", x, alpha=slope)
    conditioned = lambda x, layer: x + graph.linear(speaker, layer).unsqueeze(2)
    x = conditioned(graph.conv(frames.transpose(0, 2, 1), decoder.conv_pre), decoder.condition_pre)
    for upsample, condition, stage in zip(decoder.upsamples, decoder.conditions, decoder.stacks, strict=True):
        x = conditioned(_conv_transpose(graph, upsample, leaky(x)), condition)
        outputs = []
        for stack in stage:
            hidden = x
            for dilated, plain in zip(stack.dilated, stack.plain, strict=True):
                hidden = hidden + graph.conv(leaky(graph.conv(leaky(hidden), dilated)), plain)
            outputs.append(hidden)
        x = graph.op("Mean", *outputs)
    return graph.op("Squeeze", graph.op("Tanh", graph.conv(leaky(x, LAST_SLOPE), decoder.conv_post)), [1])


def _conv_transpose(graph, layer, x):
    """Applies a `ConvTranspose1D` to `(B, C, T)`."""
    shape = dict(strides=[layer.stride], pads=[(layer.kernel_size - layer.stride) // 2] * 2)
    return graph.op("ConvTranspose", x, np.asarray(layer.kernel).transpose(), layer.bias, **shape)
