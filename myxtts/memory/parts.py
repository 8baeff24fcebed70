"""Estimates the memory to train the speaker encoder and the waveform decoder, by the method of `estimates.py`."""

import math
from dataclasses import replace

from myxtts.config.config import ModelConfig
from myxtts.config.model import DECODER_DILATIONS, DECODER_KERNELS, DECODER_UPSAMPLING, SPEAKER_BLOCKS, SPEAKER_NUM_MELS
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.memory.estimates import FLOAT, UNFOLDED_BYTES, MemoryEstimate, Optimizations, Shapes, with_optimizer

ATTENTION_WIDTH = 128
"""Width of the hidden layer in the speaker encoder's pooling."""
FRAMES_PER_SECOND = 100
TAPS, EXPANSION = 7, 3
PERIODS, PERIOD_CHANNELS = (2, 3, 5, 7, 11), (32, 128, 512, 1024, 1024)
RESOLUTIONS, SPECTRUM_CHANNELS = (512, 1024, 2048), (32, 32, 32, 32, 32)
FEWEST_CHANNELS = 4
"""Minimum number of channels in a discriminator's layers. This constant and those above repeat values of `models`."""
DIVISORS = {"nano": 8, "tiny": 4, "small": 2}
"""Divisor of the discriminators' numbers of channels, by model size; 1 for sizes not listed."""


def count_speaker(model: ModelConfig) -> tuple[int, int]:
    """Returns two counts: the speaker encoder's trained weights, and its batch-norm statistics."""
    inputs = model.speaker_channels[0]
    kernels, normalized, bands = 9 * inputs + inputs, inputs, SPEAKER_NUM_MELS
    for group, (width, count) in enumerate(zip(model.speaker_channels, SPEAKER_BLOCKS, strict=True)):
        bands = -(-bands // 2) if group else bands
        for block in range(count):
            hidden = width // 8
            kernels += 9 * (inputs + width) * width + (width + 1) * hidden + (hidden + 1) * width
            has_shortcut = (group > 0 and block == 0) or inputs != width
            kernels += inputs * width * has_shortcut
            normalized += (2 + has_shortcut) * width
            inputs = width
    pooled = bands * inputs
    kernels += (pooled + 1) * ATTENTION_WIDTH + (ATTENTION_WIDTH + 1) * pooled + (2 * pooled + 1) * model.speaker_width
    normalized += ATTENTION_WIDTH
    return kernels + 2 * normalized, 2 * normalized


def estimate_speaker(model: ModelConfig, shapes: Shapes, optimizations=Optimizations()) -> MemoryEstimate:
    """Estimates the memory needed to train the speaker encoder. The classifier, which has one row per speaker,
    is not included. Of `optimizations`, uses only `precision`, `accumulation` and `ema`."""
    trained, others = count_speaker(model)
    number = optimizations.compute_bytes
    frames = round(FRAMES_PER_SECOND * shapes.codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE) + 1
    # Per block: the inputs of both norms (in mixed precision also in float32), their outputs, and the block's output;
    # the first block of a group adds the shortcut's norm and input, padded and strided. The stem is a convolution and
    # a norm. The pooling keeps four copies of the frames and two of its hidden layer.
    normed = FLOAT + optimizations.cast_bytes
    bands, kept, widest, before = SPEAKER_NUM_MELS, 0, 0, None
    for width, count in zip(model.speaker_channels, SPEAKER_BLOCKS, strict=True):
        if before is not None:
            kept += (frames + 2) * (bands + 2) * before * number
            frames, bands = -(-frames // 2), -(-bands // 2)
            kept += frames * bands * (before * number + width * normed)
        image = frames * bands * width
        kept += image * (count * (2 * normed + 3 * number) + (before is None) * (normed + number))
        widest, before = max(widest, 9 * image * number), width
    kept += frames * (4 * bands * before + 2 * ATTENTION_WIDTH) * FLOAT
    activations = shapes.batch * kept + trained * optimizations.cast_bytes
    working = min(shapes.batch * widest, UNFOLDED_BYTES)
    return with_optimizer(trained, others, optimizations, activations=activations, working=working)


def count_decoder(model: ModelConfig) -> int:
    """Counts the weights of the waveform decoder."""
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
    return sum((taps * inputs + 1) * outputs for taps, inputs, outputs, _ in _discriminator_layers(model, 0))


def _discriminator_layers(model, samples):
    """Yields `(kernel size, input channels, output channels, output positions)` of each discriminator layer, for a clip
    of `samples` samples. For a score layer, the number of positions is 0, because scores are not stored."""
    divisor = DIVISORS.get(model.size, 1)
    for period in PERIODS:
        length, inputs = -(-samples // period), 1
        for index, width in enumerate(PERIOD_CHANNELS, 1):
            outputs = max(FEWEST_CHANNELS, width // divisor)
            length = length if index == len(PERIOD_CHANNELS) else -(-length // 3)
            yield 5, inputs, outputs, period * length
            inputs = outputs
        yield 3, inputs, 1, 0  # the score is not kept
    for n_fft in RESOLUTIONS:
        bins, inputs = n_fft // 2 + 1, 2
        for index, width in enumerate(SPECTRUM_CHANNELS, 1):
            outputs, is_last = max(FEWEST_CHANNELS, width // divisor), index == len(SPECTRUM_CHANNELS)
            bins = -(-bins // 2) if 1 < index and not is_last else bins
            yield 9 if is_last else 27, inputs, outputs, 4 * samples // n_fft * bins
            inputs = outputs
        yield 9, inputs, 1, 0


def _decoder_activations(model, frames, number):
    """Returns the bytes that the activations of the decoder take per clip; `number` is the size of a value in bytes.

    An `istft` block with D channels stores, per frame:
    - the padded input: 2 D values
    - the outputs of convolution and modulation, and two tensors of the norm: 4 D values
    - four tensors of the tanh-GELU: 4 x 3 D values
    - the output of the branch before and after scaling, and the output of the block: 3 D values
    The head stores about three float32 values per FFT sample. A residual step of `hifigan` stores both ReLU inputs, the
    output of the first convolution, and the sum.
    """
    if model.decoder_type == "istft":
        width = model.decoder_width
        blocks = model.decoder_blocks * (2 + 1 + 2 + 1 + 4 * EXPANSION + 3) * width * number
        return frames * (blocks + (model.width + 6 * width) * number + 3 * 4 * MEL_HOP_SAMPLES * FLOAT)
    width, samples, total = model.decoder_channels, frames, frames * (model.width + 2 * model.decoder_channels)
    for factor, _ in DECODER_UPSAMPLING:
        width, samples = width // 2, samples * factor
        total += samples * width * (1 + 4 * len(DECODER_DILATIONS) * len(DECODER_KERNELS))
    return total * number


def estimate_decoder(model: ModelConfig, shapes: Shapes, optimizations=Optimizations()) -> MemoryEstimate:
    """Estimates the memory for training the decoder. Of `optimizations`, uses only `precision`, `accumulation`, `ema`.

    Memory peaks when the decoder is updated: feature maps of recordings and of generated audio are then stored.
    Together, these two sets of feature maps take 1.94 times the memory of one set (measured)."""
    decoder, discriminators = count_decoder(model), count_discriminators(model)
    trained, number = decoder + discriminators, optimizations.compute_bytes
    # Frames around a slice that affect its audio.
    context = 34 + 6 * max(0, model.decoder_blocks - 4) if model.decoder_type == "istft" else 26
    samples = shapes.slice_frames * MEL_HOP_SAMPLES
    maps = sum(outputs * positions for _, _, outputs, positions in _discriminator_layers(model, samples))
    spectra = 36 * samples * FLOAT  # measured
    kept = maps * 1.94 * number + spectra + _decoder_activations(model, shapes.slice_frames + context, number)
    activations = math.ceil(shapes.batch * kept) + trained * optimizations.cast_bytes
    estimate = with_optimizer(trained, 0, optimizations, activations=activations, working=0)
    return replace(estimate, averages=FLOAT * decoder * optimizations.ema)  # discriminators have no averages
