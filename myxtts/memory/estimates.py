"""Estimates the memory needed to train the GPT and the DVAE from `ModelConfig`, without TensorFlow.

Weights are counted exactly, layer by layer. Activations are the tensors of the forward pass that the backward pass
reads. Docstrings and comments list these tensors, with W for the model width. With XLA on a GPU, the GPT stores only
the inputs of its blocks; this is assumed for CPUs too. Estimates of other stages ignore XLA. Memory can peak at three
points of a step: when the backward pass starts (all activations are stored), when it reaches the conditioning encoder,
and at the update (all gradients are stored). `utilities/benchmarks/memory_estimate.py` checks the estimates.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from myxtts.config.config import DataConfig, ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.config.stages import StageConfig

FLOAT = 4  # size of a float32 in bytes
CHUNK_KEYS = 256
"""Number of keys in a chunk of memory-efficient attention, as in `models.attention.CHUNK`."""
TOKENS_PER_SECOND = 7
"""Approximate number of text tokens per second of speech."""
RESERVED_GB = 1.0
"""GPU memory in GB reserved for CUDA's context, library workspaces and fragmentation; typical value, not measured."""
UNFOLDED_BYTES = 2**25
"""Maximum size in bytes of TensorFlow's buffer for a convolution's unfolded input. It fits the last-level cache."""
LORA_KERNELS = {"qkv": (1, 3), "output_projection": (1, 1), "mlp_in": (1, 4), "mlp_out": (4, 1)}
"""Kernels of a GPT block that can have LoRA adapters, with their shapes in multiples of the model width."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of a padded batch. `text` and `codes` exclude start and stop tokens; `frames` are conditioning frames."""

    batch: int
    text: int
    codes: int
    frames: int
    slice_frames: int = 32
    """Number of frames in a training slice of the waveform decoder."""

    @classmethod
    def of_data(
        cls, data: DataConfig, batch: int, seconds: float | None = None, settings: StageConfig | None = None
    ) -> "Shapes":
        """Returns sizes for clips of `seconds` (default: `data.max_seconds`), cropped to `settings.crop_seconds`. Clips
        have at most `max_mel_frames`, if set. With `static_shapes`, they have this length, and texts the maximum."""
        seconds = seconds or data.max_seconds
        if frames := data.max_mel_frames:
            limit = frames * MEL_HOP_SAMPLES / MODEL_SAMPLE_RATE
            seconds = limit if data.static_shapes else min(seconds, limit)
        if settings and settings.crop_seconds:
            seconds = min(seconds, settings.crop_seconds)
        text = data.max_text_length
        text = text if data.static_shapes else min(round(TOKENS_PER_SECOND * seconds), text)
        codes = int(seconds * MODEL_SAMPLE_RATE) // CODE_STRIDE_SAMPLES + 1
        voice = min(data.conditioning_seconds[1], seconds if data.conditioning_padding == "repeat" else math.inf)
        frames = int(voice * MODEL_SAMPLE_RATE) // MEL_HOP_SAMPLES + 1
        return cls(batch, text, codes, frames, getattr(settings, "frames", cls.slice_frames))


@dataclass(frozen=True)
class Optimizations:
    """Training settings that change how much memory is needed. `attention` is `standard` or `memory-efficient`."""

    precision: str = "float32"
    gradient_checkpointing: bool = False
    attention: str = "standard"
    accumulation: int = 1
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = tuple(LORA_KERNELS)
    ema: bool = False
    xla: bool = False

    @property
    def recomputes(self) -> bool:
        """Whether blocks of the GPT are recomputed in the backward pass."""
        return self.gradient_checkpointing or self.xla

    @property
    def compute_bytes(self) -> int:
        """Size in bytes of a value in the layers' compute dtype."""
        return FLOAT if self.precision == "float32" else 2

    @property
    def cast_bytes(self) -> int:
        """Size in bytes of the half-precision copy that mixed precision makes of a float32 value; 0 in float32."""
        return 0 if self.precision == "float32" else 2


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory in bytes that training needs, with one field for each purpose."""

    parameters: int
    """Trained and frozen weights."""
    slots: int
    """AdamW's two moments for each trained weight."""
    averages: int
    """Moving averages of the weights (EMA)."""
    accumulators: int
    """Sums of gradients over several batches; 0 without gradient accumulation."""
    gradients: int
    """Gradients of the trained weights, and their clipped copies at the update."""
    activations: int
    """Tensors of the forward pass that the backward pass reads."""
    working: int
    """Temporary tensors of the block that is being computed."""
    conditioning: int = 0
    """Memory in use at the start of the conditioning encoder's backward pass, without `resident`."""

    @property
    def resident(self) -> int:
        """Bytes that stay allocated between steps."""
        return self.parameters + self.slots + self.averages + self.accumulators

    @property
    def step(self) -> int:
        """Bytes that a step needs in addition to `resident`."""
        return max(self.activations + self.working, self.conditioning, self.gradients)

    @property
    def peak(self) -> int:
        """Largest number of bytes that are allocated at the same time."""
        return self.resident + self.step


def _dense(inputs, outputs):
    return (inputs + 1) * outputs


def count_gpt(model: ModelConfig) -> int:
    """Counts the weights of GPT, conditioning encoder and perceiver. `model.num_text_tokens` must be set."""
    width, text, audio = model.width, model.num_text_tokens, model.num_audio_tokens
    attended, hidden = model.perceiver_heads * model.perceiver_head_width, width * 8 // 3
    conditioning_block = 2 * width + _dense(width, 3 * width) + _dense(width, width)
    perceiver_layer = 4 * width * attended + _dense(width, 2 * hidden) + _dense(hidden, width)
    rows = text + audio + model.max_text_tokens + 2 + model.max_audio_tokens + 3 + model.num_latents
    block = 4 * width + sum(_dense(rows * width, columns * width) for rows, columns in LORA_KERNELS.values())
    blocks = model.conditioning_blocks * conditioning_block + model.perceiver_depth * perceiver_layer
    norms = width + 2 * 2 * width
    heads = _dense(width, text) + _dense(width, audio)
    return _dense(model.num_mels, width) + blocks + model.layers * block + rows * width + norms + heads


def count_dvae(model: ModelConfig) -> tuple[int, int]:
    """Returns two counts: the DVAE's trained weights, and all values in codebook, codebook averages and `mel_stats`."""
    hidden, wide, vector, mels = model.dvae_hidden, 2 * model.dvae_hidden, model.codebook_width, model.num_mels
    block = 2 * _dense(3 * wide, wide) + _dense(wide, wide)
    encoder = _dense(3 * mels, hidden) + _dense(3 * hidden, wide) + _dense(wide, vector)
    decoder = _dense(vector, wide) + _dense(3 * wide, wide) + _dense(3 * wide, hidden) + _dense(hidden, mels)
    others = 2 * model.num_codes * vector + model.num_codes + mels
    return encoder + decoder + 2 * model.dvae_residual_blocks * block, others


def count_lora(model: ModelConfig, optimizations: Optimizations) -> tuple[int, int]:
    """Returns two counts: the LoRA weights, and the weights of text embedding and text head, which are trained too."""
    widths = sum(sum(LORA_KERNELS[target]) for target in optimizations.lora_targets)
    text = model.num_text_tokens * model.width + _dense(model.width, model.num_text_tokens)
    return model.layers * widths * model.width * optimizations.lora_rank, text


def count_adapted(model: ModelConfig, optimizations: Optimizations) -> int:
    """Returns the number of weights in the kernels to which LoRA adds adapters."""
    return model.layers * model.width**2 * sum(math.prod(LORA_KERNELS[target]) for target in optimizations.lora_targets)


def _block_activations(model, positions, optimizations):
    """Returns the bytes that the activations of one transformer block take per clip. Each position stores:

    - three tensors of each norm (input, output, and gamma / standard deviation): 2 x 3 W values
    - query, key, value and merged heads: 4 W values
    - five tensors of the tanh-GELU (input, tanh, sum, half and product): 5 x 4 W values
    - masks of both residual dropouts: 2 W bytes
    - for each head and key position: the softmax, and the mask and output of the softmax's dropout
    Values are float32. Mixed precision halves all of them except the softmax and two tensors in each norm.
    """
    width, number, dropout = model.width, optimizations.compute_bytes, model.dropout > 0
    if optimizations.xla:
        return positions * width * number  # the input
    if optimizations.gradient_checkpointing:
        # Input, qkv, merged heads, the residual stream after attention, the GELU's input.
        linear = (1 + 3 + 1 + 1 + 4) * width * number
    else:
        linear = 2 * width * (2 * FLOAT + number) + (3 + 1 + 20) * width * number
    linear += 2 * width * dropout
    return positions * (linear + _kept_by_attention(model.heads, positions, width, dropout, optimizations))


def _kept_by_attention(heads, keys, width, dropout, optimizations):
    """Returns the bytes that attention stores per query position, not counting query, key, value and merged heads."""
    number = optimizations.compute_bytes
    if optimizations.attention == "memory-efficient":
        return heads * FLOAT + width * number  # softmax denominators, and the output before heads are merged
    if optimizations.gradient_checkpointing:
        return heads * keys * FLOAT * dropout  # random numbers of the dropout mask
    output = width * number * (number == FLOAT)  # before heads are merged; read by the float32 gradient
    return output + heads * keys * (FLOAT + (number + 1 if dropout else optimizations.cast_bytes))


def _conditioning_activations(model, frames, optimizations):
    """Returns the bytes that the activations of the conditioning encoder take per clip."""
    # The mel; per block: norm input in float32, norm output (2 W), query, key, value (3 W), merged heads (W), softmax.
    width, number = model.width, optimizations.compute_bytes
    if optimizations.xla:
        return frames * (model.num_mels * FLOAT + model.conditioning_blocks * width * number)
    linear = width * (number if optimizations.gradient_checkpointing else FLOAT) + (1 + 3 + 1) * width * number
    linear += _kept_by_attention(model.conditioning_heads, frames, width, False, optimizations)
    return frames * (model.num_mels * FLOAT + model.conditioning_blocks * linear)


def _perceiver_activations(model, frames, optimizations):
    """Returns the bytes that the activations of the perceiver take per clip."""
    # Per layer: concatenated latents and frames (W), their keys and values, and the softmax. Per latent: 2 W, query,
    # output and merged heads, and about eight hidden widths of the gated MLP.
    width, number = model.width, optimizations.compute_bytes
    context, attended = frames + model.num_latents, model.perceiver_heads * model.perceiver_head_width
    softmax = model.perceiver_heads * model.num_latents * context * (FLOAT + optimizations.cast_bytes)
    own = model.num_latents * (2 * width + 3 * attended + 8 * (width * 8 // 3)) * number
    return model.perceiver_depth * (context * (width + 2 * attended) * number + softmax + own)


def estimate_gpt(model: ModelConfig, shapes: Shapes, optimizations: Optimizations = Optimizations()) -> MemoryEstimate:
    """Estimates the memory needed to train the GPT. `model.num_text_tokens` must be set."""
    count, number, uses_lora = count_gpt(model), optimizations.compute_bytes, optimizations.lora_rank > 0
    adapters, text_weights = count_lora(model, optimizations)
    trained = adapters + text_weights if uses_lora else count
    # Teacher forcing adds `[START]` and `[STOP]` to a text, 1 start and 4 stops to codes.
    text, audio, frames = shapes.text + 2, shapes.codes + 5, shapes.frames
    positions = model.num_latents + text + audio
    blocks = model.layers * _block_activations(model, positions, optimizations)
    # After the last block: the slice without latents, two norms as in a block, and the inputs of both heads.
    top = positions * model.width * (2 * (2 * FLOAT + number) + number)
    conditioning = _conditioning_activations(model, frames, optimizations)
    perceiver = _perceiver_activations(model, frames, optimizations)
    logits = FLOAT * (text * model.num_text_tokens + audio * model.num_audio_tokens)
    copies = count * optimizations.cast_bytes
    if uses_lora:  # sums of kernels and adapters
        copies += count_adapted(model, optimizations) * number
    # Recomputed in the last block: four tensors of the tanh-GELU and its gradient (5 x 4 W), or attention's tensors if
    # they are larger. Without recomputation, a block's backward pass allocates no more than it frees.
    recomputed = max(positions * 20 * model.width * number, _attention_workspace(model.heads, positions, optimizations))
    attending = _attention_workspace(model.conditioning_heads, frames, optimizations) * (model.conditioning_blocks > 0)
    batch, mask = shapes.batch, positions**2
    return with_optimizer(
        trained,
        count + adapters - trained,
        optimizations,
        activations=batch * (blocks + top + mask + conditioning + perceiver + logits) + copies,
        working=batch * recomputed * optimizations.recomputes,
        conditioning=batch * (conditioning + attending) + FLOAT * trained,
    )


def with_optimizer(trained: int, others: int, optimizations: Optimizations, **terms: int) -> MemoryEstimate:
    """Creates a `MemoryEstimate`, given how many weights are trained and how many are not. `terms` are other fields."""
    return MemoryEstimate(
        parameters=FLOAT * (trained + others),
        slots=2 * FLOAT * trained,
        averages=FLOAT * trained * optimizations.ema,
        accumulators=FLOAT * trained * (optimizations.accumulation > 1),
        gradients=2 * FLOAT * trained,
        **terms,
    )


def _attention_workspace(heads, positions, optimizations):
    """Returns the bytes that temporary tensors of attention's backward pass take per clip."""
    # Standard: gradients of scores and softmax, and the softmax if it is recomputed. Memory-efficient: per chunk, four
    # float32 tensors (probabilities, gradient, correction, product) and one in the compute dtype.
    if optimizations.attention == "memory-efficient":
        return heads * positions * min(positions, CHUNK_KEYS) * (4 * FLOAT + optimizations.compute_bytes)
    return (2 + optimizations.recomputes) * heads * positions**2 * FLOAT


def estimate_dvae(model: ModelConfig, shapes: Shapes, optimizations: Optimizations = Optimizations()) -> MemoryEstimate:
    """Estimates the memory for training the DVAE. Of `optimizations`, uses only `precision`, `accumulation`, `ema`."""
    trained, others = count_dvae(model)
    number, batch_codes = optimizations.compute_bytes, shapes.batch * shapes.codes
    # A code has four mel frames. H is the number of hidden channels; residual blocks have 2 H. Encoder: the padded mel;
    # outputs of both strided convolutions, the first also padded (2 x 2 H + 2 H). Per block: both ReLU outputs and the
    # sum (3 x 2 H). Decoder: its input (2 H); upsampled inputs of the last convolutions (2 x 2 H, 4 x 2 H) and their
    # outputs (2 x 2 H, 4 H); the last block's sum is freed. In float32: vectors, quantized vectors, their difference,
    # the decoder's input, and the mel twice for the loss.
    hidden, wide, mels = model.dvae_hidden, 2 * model.dvae_hidden, MEL_FRAMES_PER_CODE * model.num_mels
    blocks = 2 * model.dvae_residual_blocks * 3 * wide
    layers = mels + (2 * 2 + 4) * hidden + (1 + 1 + 2 + 4 + 2) * wide + blocks - (wide if blocks else 0)
    activations = batch_codes * (layers * number + (4 * model.codebook_width + 2 * mels) * FLOAT)
    activations += trained * optimizations.cast_bytes
    # The widest convolution, the decoder's second to last, computes its kernel's gradient from its unfolded input.
    working = min(batch_codes * MEL_FRAMES_PER_CODE * 3 * wide * number, UNFOLDED_BYTES)
    return with_optimizer(trained, others, optimizations, activations=activations, working=working)


def largest_batch(
    model: ModelConfig, shapes: Shapes, optimizations: Optimizations, memory: float, estimate: Callable = estimate_gpt
) -> int:
    """Returns the largest batch size below 65,536 whose `estimate` fits in `memory` bytes; 0 if none fits."""
    peak = lambda batch: estimate(model, replace(shapes, batch=batch), optimizations).peak
    return bisect_right(range(1, 2**16), memory, key=peak)
