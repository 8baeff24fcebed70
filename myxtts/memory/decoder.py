"""How much memory training the waveform decoder takes; see `memory/estimates.py`."""

import math
from dataclasses import replace

from myxtts.config.config import ModelConfig
from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING
from myxtts.config.rates import MEL_HOP_SAMPLES
from myxtts.memory.estimates import FLOAT, MemoryEstimate, Optimizations, Shapes, with_optimizer

TAPS, EXPANSION = 7, 3
PERIODS, PERIOD_CHANNELS = (2, 3, 5, 7, 11), (32, 128, 512, 1024, 1024)
RESOLUTIONS, SPECTRUM_CHANNELS = (512, 1024, 2048), (32, 32, 32, 32, 32)
FEWEST_CHANNELS = 4
DIVISORS = {"nano": 8, "tiny": 4, "small": 2}
"""Shapes of `models/istft.py`, `models/discriminators.py` and `training/stages/decoder.py`."""
KEPT_MAPS = 1.94
"""Times that the maps of one sound are held at the most, as measured: discriminators are done one after another."""
SPECTRAL_NUMBERS = 36
"""Numbers per sample that the spectral losses hold, as measured."""
CONTEXT_FRAMES = {"istft": 34, "hifigan": 26}
"""Frames that the decoder is given besides those of the slice; `istft` with eight blocks has 24 more."""


def count_decoder(model: ModelConfig) -> int:
    """Weights of the waveform decoder; all are trained."""
    speaker, latents = model.speaker_width + 1, model.width
    if model.decoder_type == "istft":
        width, bins = model.decoder_width, 4 * MEL_HOP_SAMPLES + 2
        dense = 2 * EXPANSION * width**2 + (EXPANSION + 1) * width
        block = (TAPS + 1) * width + 2 * width * (width + 1) + dense + width
        edges = (TAPS * latents + 1) * width + speaker * width + 4 * width + (width + 1) * bins
        return edges + model.decoder_blocks * block
    width = model.decoder_channels
    total = (TAPS * latents + 1) * width + speaker * width
    for _, taps in DECODER_UPSAMPLING:
        width //= 2
        convolutions = sum(2 * len(DECODER_DILATIONS) * (size * width + 1) * width for size in DECODER_KERNELS)
        total += (taps * 2 * width + 1) * width + speaker * width + convolutions
    return total + TAPS * width


def count_discriminators(model: ModelConfig) -> int:
    """Weights of the discriminators of a model of this size; all are trained."""
    total = 0
    for channels, inputs, taps, last, score, count in _discriminators(model):
        for index, width in enumerate(channels):
            total += count * (inputs * (last if index == len(channels) - 1 else taps) + 1) * width
            inputs = width
        total += count * (score * inputs + 1)
    return total


def _discriminators(model):
    """Of either kind: channels, inputs, taps of its kernels, of the last one and of the score's, how many there are."""
    divisor = DIVISORS.get(model.size, 1)
    narrow = [[max(FEWEST_CHANNELS, c // divisor) for c in wide] for wide in (PERIOD_CHANNELS, SPECTRUM_CHANNELS)]
    return (narrow[0], 1, 5, 5, 3, len(PERIODS)), (narrow[1], 2, 27, 9, 9, len(RESOLUTIONS))


def _maps(model, samples):
    """Numbers in all maps of all discriminators, scores left out, for one clip of so many samples."""
    (periods, *_), (spectra, *_) = _discriminators(model)
    total = 0
    for period in PERIODS:
        length = -(-samples // period)
        for index, width in enumerate(periods):
            length = length if index == len(periods) - 1 else -(-length // 3)
            total += period * length * width
    for n_fft in RESOLUTIONS:
        bins = n_fft // 2 + 1
        for index, width in enumerate(spectra):
            bins = -(-bins // 2) if 0 < index < len(spectra) - 1 else bins
            total += 4 * samples // n_fft * bins * width
    return total


def _decoder_activations(model, frames, number):
    """Bytes per clip that the decoder keeps.

    `istft`, with D channels, of each block: the padded input (2 D), the convolution's output, of the norm two and of
    its modulation one more, of the tanh-GELU four of width 3 D, and the branch's end, its scaled form and the sum. The
    head has about three numbers per sample of the transform, in float32. `hifigan`, of each residual step: both
    rectified inputs, what the second is made of, and the sum.
    """
    if model.decoder_type == "istft":
        width = model.decoder_width
        blocks = model.decoder_blocks * (2 + 1 + 2 + 1 + 4 * EXPANSION + 3) * width * number
        return frames * (blocks + (model.width + 6 * width) * number + 3 * 4 * MEL_HOP_SAMPLES * FLOAT)
    width, samples, total = model.decoder_channels, frames, model.width + 2 * model.decoder_channels
    total *= frames
    for factor, _ in DECODER_UPSAMPLING:
        width, samples = width // 2, samples * factor
        total += samples * width * (1 + 4 * len(DECODER_DILATIONS) * len(DECODER_KERNELS))
    return total * number


def estimate_decoder(
    model: ModelConfig, shapes: Shapes, optimizations: Optimizations = Optimizations(), train_text_rows: bool = False
) -> MemoryEstimate:
    """What a training step of the decoder stage takes; arguments as of `planning.memory.estimate_gpt`.

    Only precision, accumulation and averages matter. What counts is the decoder's turn, with the maps of recordings and
    of copies, of which the copies' come before and after their activation.
    """
    decoder, discriminators = count_decoder(model), count_discriminators(model)
    trained, number = decoder + discriminators, optimizations.compute_bytes
    context = CONTEXT_FRAMES[model.decoder_type] + 6 * max(0, model.decoder_blocks - 4) * (
        model.decoder_type == "istft"
    )
    samples = shapes.slice_frames * MEL_HOP_SAMPLES
    maps = _maps(model, samples) * (KEPT_MAPS * number)
    spectra = SPECTRAL_NUMBERS * samples * FLOAT
    kept = maps + spectra + _decoder_activations(model, shapes.slice_frames + context, number)
    activations = math.ceil(shapes.batch * kept) + trained * number * (number < FLOAT)
    estimate = with_optimizer(trained, 0, optimizations, activations=activations, working=0)
    return replace(estimate, averages=FLOAT * decoder * optimizations.ema)  # none of the discriminators
