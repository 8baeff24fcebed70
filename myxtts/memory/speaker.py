"""Memory of training the speaker encoder; see `memory/estimates.py`."""

from myxtts.config.config import ModelConfig
from myxtts.config.model import SPEAKER_BLOCKS, SPEAKER_NUM_MELS
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.memory.estimates import FLOAT, UNFOLDED_BYTES, MemoryEstimate, Optimizations, Shapes, with_optimizer

ATTENTION_WIDTH = 128
"""Hidden channels of the encoder's pooling."""
FRAMES_PER_SECOND = 100


def count_speaker(model: ModelConfig) -> tuple[int, int]:
    """Numbers of trained and of other weights of the speaker encoder; the others are batch-norm statistics."""
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


def estimate_speaker(
    model: ModelConfig, shapes: Shapes, optimizations: Optimizations = Optimizations()
) -> MemoryEstimate:
    """Estimates the memory of training the speaker encoder; only precision, accumulation and averages change it.

    The classifier, one row per speaker, is not counted.
    """
    trained, others = count_speaker(model)
    number = optimizations.compute_bytes
    frames = round(FRAMES_PER_SECOND * shapes.codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE) + 1
    activations, widest = _activations(model, frames, number)
    activations = shapes.batch * activations + trained * number * (number < FLOAT)
    working = min(shapes.batch * widest, UNFOLDED_BYTES)
    return with_optimizer(trained, others, optimizations, activations=activations, working=working)


def _activations(model, frames, number):
    """Activations of the encoder and its widest unfolded image, bytes per clip.

    Per block: the inputs of both norms in float32 (mixed precision keeps both forms), their outputs, and the output;
    the first block of a group adds the shortcut's norm and its input, padded and strided. The stem is a convolution and
    a norm. The pooling keeps four copies of the frames and two of its hidden layer.
    """
    normed = FLOAT + number * (number < FLOAT)
    bands, kept, widest, before = SPEAKER_NUM_MELS, 0, 0, None
    for width, count in zip(model.speaker_channels, SPEAKER_BLOCKS, strict=True):
        if before is not None:
            kept += (frames + 2) * (bands + 2) * before * number
            frames, bands = -(-frames // 2), -(-bands // 2)
            kept += frames * bands * (before * number + width * normed)
        image = frames * bands * width
        kept += image * (count * (2 * normed + 3 * number) + (before is None) * (normed + number))
        widest, before = max(widest, 9 * image * number), width
    pooled = bands * before
    return kept + frames * (4 * pooled + 2 * ATTENTION_WIDTH) * FLOAT, widest
