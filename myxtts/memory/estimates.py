"""How much memory training a stage takes, from `ModelConfig` alone: nothing is built, no TensorFlow imported.

Weights are counted exactly, layer by layer. Activations are what the backward pass needs of the forward pass, counted
from the operations of each layer as TensorFlow runs them without XLA; each function says which tensors those are. A
step takes most at the start of the backward pass, when all of them are there, or at the update, when all gradients are,
or (long conditioning, short text) at the start of the conditioning encoder's part; the largest of the three counts.
`utilities/benchmarks/memory_estimate.py` compares the estimates with measured peaks.

Symbols in comments: W width, h heads, V vocabulary.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from myxtts.config.config import DataConfig, ModelConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE

FLOAT = 4
"""Bytes of a float32."""
TEXT_MARKS, AUDIO_MARKS = 2, 5
"""Positions that teacher forcing adds to text and codes: `[START]`, `[STOP]`; one start, four stops."""
CHUNK_KEYS = 256
"""Keys that memory-efficient attention works on at a time."""
TOKENS_PER_SECOND = 7
"""Text tokens that go with a second of speech, roughly."""
MOST_CLIPS = 2**16
"""A batch that no GPU holds."""
RESERVED_GB = 1.0
"""Of a GPU, for CUDA's context, libraries' workspaces and fragments. A usual figure, not a measured one."""
UNFOLDED_BYTES = 2**25
"""Most of a convolution's input that is unfolded at a time; TensorFlow takes what fits the last cache of a CPU."""
LORA_KERNELS = {"qkv": (1, 3), "output_projection": (1, 1), "mlp_in": (1, 4), "mlp_out": (4, 1)}
"""Shapes, in widths of the model, of a block's kernels that can have adapters."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of a padded batch: clips, text tokens and audio codes, both without marks, and conditioning frames."""

    batch: int
    text: int
    codes: int
    frames: int
    slice_frames: int = 32
    """Frames of the waveform decoder in the slice of a clip that its stage trains on."""

    @classmethod
    def of_data(cls, data: DataConfig, batch: int, seconds: float | None = None) -> "Shapes":
        """Sizes of a batch whose longest clip has `seconds`, or `data.max_seconds` for None."""
        seconds = seconds or data.max_seconds
        # Conditioning clips are no longer than the clips that they come from.
        conditioning_seconds = min(seconds, data.conditioning_seconds[1])
        text = min(round(TOKENS_PER_SECOND * seconds), data.max_text_length)
        codes = int(seconds * MODEL_SAMPLE_RATE) // CODE_STRIDE_SAMPLES + 1
        return cls(batch, text, codes, int(conditioning_seconds * MODEL_SAMPLE_RATE) // MEL_HOP_SAMPLES + 1)


@dataclass(frozen=True)
class Optimizations:
    """The switches that change memory, as `TrainingConfig` has them."""

    precision: str = "float32"
    gradient_checkpointing: bool = False
    attention: str = "standard"
    """`standard` or `memory-efficient`."""
    accumulation: int = 1
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = tuple(LORA_KERNELS)
    ema: bool = False

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the layers' compute dtype."""
        return FLOAT if self.precision == "float32" else 2


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that training takes, by what they are for."""

    parameters: int
    """Weights, frozen ones included."""
    slots: int
    """AdamW's two moments of each trained weight."""
    averages: int
    """Moving averages of the weights (EMA)."""
    accumulators: int
    """Sums of gradients over the batches of one step."""
    gradients: int
    """Gradients of the trained weights and, at the update, their clipped copies."""
    activations: int
    """What the forward pass leaves for the backward pass."""
    working: int
    """What the one block that is being computed takes besides."""
    conditioning: int = 0
    """What there is when the backward pass reaches the conditioning encoder: its activations, its work, and the
    gradients of the trunk. More than at the beginning only where conditioning clips are long and texts short."""

    @property
    def resident(self) -> int:
        """Bytes that stay between steps."""
        return self.parameters + self.slots + self.averages + self.accumulators

    @property
    def step(self) -> int:
        """Bytes on top: at the start of the backward pass, at the conditioning encoder's, or at the update."""
        return max(self.activations + self.working, self.conditioning, self.gradients)

    @property
    def peak(self) -> int:
        """Most bytes at one time."""
        return self.resident + self.step

    def as_dict(self) -> dict[str, int]:
        """The estimate as JSON types."""
        return asdict(self) | {"resident": self.resident, "step": self.step, "peak": self.peak}


def _dense(inputs, outputs):
    """Weights of a layer with a bias."""
    return (inputs + 1) * outputs


def count_gpt(model: ModelConfig) -> int:
    """Weights of the GPT with conditioning encoder and perceiver; all are trained. `num_text_tokens` must be set."""
    width, text, audio = model.width, model.num_text_tokens, model.num_audio_tokens
    attended, hidden = model.perceiver_heads * model.perceiver_head_width, width * 8 // 3
    conditioning_block = 2 * width + _dense(width, 3 * width) + _dense(width, width)
    perceiver_layer = 4 * width * attended + _dense(width, 2 * hidden) + _dense(hidden, width)
    rows = text + audio + model.max_text_tokens + 2 + model.max_audio_tokens + 3 + model.num_latents
    blocks = model.conditioning_blocks * conditioning_block + model.perceiver_depth * perceiver_layer
    norms = width + 2 * 2 * width
    heads = _dense(width, text) + _dense(width, audio)
    return _dense(model.num_mels, width) + blocks + model.layers * _count_block(width) + rows * width + norms + heads


def _count_block(width):
    mlp = _dense(width, 4 * width) + _dense(4 * width, width)
    return 4 * width + _dense(width, 3 * width) + _dense(width, width) + mlp


def count_dvae(model: ModelConfig) -> tuple[int, int]:
    """Weights of the DVAE: `(trained, others)`; the others are codebook, its averages and the mel scale."""
    hidden, wide, vector, mels = model.dvae_hidden, 2 * model.dvae_hidden, model.codebook_width, model.num_mels
    block = 2 * _dense(3 * wide, wide) + _dense(wide, wide)
    encoder = _dense(3 * mels, hidden) + _dense(3 * hidden, wide) + _dense(wide, vector)
    decoder = _dense(vector, wide) + _dense(3 * wide, wide) + _dense(3 * wide, hidden) + _dense(hidden, mels)
    others = 2 * model.num_codes * vector + model.num_codes + mels
    return encoder + decoder + 2 * model.dvae_residual_blocks * block, others


def count_lora(model: ModelConfig, optimizations: Optimizations, train_text_rows: bool) -> int:
    """Trained weights with adapters, and with the text table and head where the vocabulary grew."""
    text = model.num_text_tokens * model.width + _dense(model.width, model.num_text_tokens) if train_text_rows else 0
    widths = sum(sum(LORA_KERNELS[target]) for target in optimizations.lora_targets)
    return model.layers * widths * model.width * optimizations.lora_rank + text


def _block_activations(model, positions, optimizations):
    """Bytes per clip that one transformer block keeps, `positions` long.

    In float32 widths of numbers: of both norms their input, the scale per position and channel that Keras makes of the
    variance and gamma, and their output (2 x 3 W); query, key and value with heads in front (3 W); merged heads (W); of
    the tanh-GELU its input and the tanh, the sum, the half and the product (5 x 4 W). Byte masks of both residual
    dropouts (2 W). For each head and pair of positions the softmax in float32, and of its dropout the mask and the
    result. Lower precision halves all but the norms' own float32 numbers and the softmax, and adds copies of the
    kernels, which `estimate_gpt` counts.
    """
    width, number = model.width, optimizations.compute_bytes
    dropout = model.dropout > 0
    if optimizations.gradient_checkpointing:
        # Between the segments: input, qkv, merged heads, the middle of the residual stream, the GELU's input.
        linear = (1 + 3 + 1 + 1 + 4) * width * number
    else:
        linear = 2 * width * (2 * FLOAT + number) + (3 + 1 + 20) * width * number
    linear += 2 * width * dropout
    return positions * (linear + _kept_by_attention(model.heads, positions, width, dropout, optimizations))


def _kept_by_attention(heads, keys, width, dropout, optimizations):
    """Bytes per query that attention keeps beyond query, key, value and merged heads."""
    number = optimizations.compute_bytes
    if optimizations.attention == "memory-efficient":
        return heads * FLOAT + width * number  # the softmax's denominators, and the output before heads are merged
    if optimizations.gradient_checkpointing:
        return heads * keys * FLOAT * dropout  # the random numbers that the mask is made of
    output = width * number * (number == FLOAT)  # before heads are merged: the gradient in float32 reads it
    return output + heads * keys * (FLOAT + (number + 1 if dropout else number * (number < FLOAT)))


def _conditioning_activations(model, frames, optimizations):
    """Bytes per clip that the conditioning encoder keeps.

    Its input; and of each block the group norm's input in float32 and its output (2 W), query, key and value (3 W),
    merged heads (W) and the softmax.
    """
    width, number = model.width, optimizations.compute_bytes
    linear = width * (number if optimizations.gradient_checkpointing else FLOAT) + (1 + 3 + 1) * width * number
    linear += _kept_by_attention(model.conditioning_heads, frames, width, False, optimizations)
    return frames * (model.num_mels * FLOAT + model.conditioning_blocks * linear)


def _perceiver_activations(model, frames, optimizations):
    """Bytes per clip that the perceiver keeps.

    Of each layer latents and frames in one (W), their keys and values, the softmax; and of the latents themselves twice
    their width, query, output and merged heads, and about eight hidden widths of the gated MLP.
    """
    width, number = model.width, optimizations.compute_bytes
    context, attended = frames + model.num_latents, model.perceiver_heads * model.perceiver_head_width
    softmax = model.perceiver_heads * model.num_latents * context * (FLOAT + number * (number < FLOAT))
    own = model.num_latents * (2 * width + 3 * attended + 8 * (width * 8 // 3)) * number
    return model.perceiver_depth * (context * (width + 2 * attended) * number + softmax + own)


def estimate_gpt(
    model: ModelConfig, shapes: Shapes, optimizations: Optimizations = Optimizations(), train_text_rows: bool = False
) -> MemoryEstimate:
    """What a training step of the GPT stage takes with a batch of these `shapes`.

    `model.num_text_tokens` must be set; `train_text_rows` says whether LoRA trains the text table and head too.
    """
    count, number, uses_lora = count_gpt(model), optimizations.compute_bytes, optimizations.lora_rank > 0
    trained = count_lora(model, optimizations, train_text_rows) if uses_lora else count
    adapters = count_lora(model, optimizations, False)
    text, audio, frames = shapes.text + TEXT_MARKS, shapes.codes + AUDIO_MARKS, shapes.frames
    positions = model.num_latents + text + audio
    blocks = model.layers * _block_activations(model, positions, optimizations)
    # After the last block: the slice without latents, two norms as in a block, and the parts for either head.
    top = positions * model.width * (2 * (2 * FLOAT + number) + number)
    mask = positions**2
    conditioning = _conditioning_activations(model, frames, optimizations)
    perceiver = _perceiver_activations(model, frames, optimizations)
    logits = FLOAT * (text * model.num_text_tokens + audio * model.num_audio_tokens)
    copies = count * number * (number < FLOAT)
    if uses_lora:  # each adapted kernel with its adapters added
        shapes_of_kernels = (LORA_KERNELS[target] for target in optimizations.lora_targets)
        copies += model.layers * sum(rows * columns for rows, columns in shapes_of_kernels) * model.width**2 * number
    # The block at work when the backward pass begins: the four tensors inside the tanh-GELU that checkpointing does not
    # keep, and its gradient (5 x 4 W), then, where that is more, what attention makes. Without checkpointing there is
    # next to nothing: what the backward pass of a block makes takes the place of what it lets go.
    recomputed = max(positions * 20 * model.width * number, _made_by_attention(model.heads, positions, optimizations))
    attending = _made_by_attention(model.conditioning_heads, frames, optimizations) * (model.conditioning_blocks > 0)
    batch = shapes.batch
    terms = dict(
        activations=batch * (blocks + top + mask + conditioning + perceiver + logits) + copies,
        working=batch * recomputed * optimizations.gradient_checkpointing,
        conditioning=batch * (conditioning + attending) + FLOAT * trained,
    )
    return with_optimizer(trained, count + adapters - trained, optimizations, **terms)


def with_optimizer(trained: int, others: int, optimizations: Optimizations, **terms: int) -> MemoryEstimate:
    """`MemoryEstimate` from the numbers of trained and other weights and the terms that depend on the batch."""
    return MemoryEstimate(
        parameters=FLOAT * (trained + others),
        slots=2 * FLOAT * trained,
        averages=FLOAT * trained * optimizations.ema,
        accumulators=FLOAT * trained * (optimizations.accumulation > 1),
        gradients=2 * FLOAT * trained,
        **terms,
    )


def _made_by_attention(heads, positions, optimizations):
    """Bytes per clip that attention makes in the backward pass: the gradients of scores and softmax, and before them
    the softmax itself where it is recomputed; or, of one chunk, probabilities, their gradient, what the softmax's
    derivative takes off and the product, in float32, and a copy in the compute dtype."""
    if optimizations.attention == "memory-efficient":
        return heads * positions * min(positions, CHUNK_KEYS) * (4 * FLOAT + optimizations.compute_bytes)
    return (2 + optimizations.gradient_checkpointing) * heads * positions**2 * FLOAT


def estimate_dvae(
    model: ModelConfig, shapes: Shapes, optimizations: Optimizations = Optimizations(), train_text_rows: bool = False
) -> MemoryEstimate:
    """What a training step of the DVAE stage takes; arguments as of `estimate_gpt`.

    Only precision, accumulation and averages matter: there is no attention, no recomputation and no LoRA here.
    """
    trained, others = count_dvae(model)
    number, codes = optimizations.compute_bytes, shapes.batch * shapes.codes
    activations = codes * _dvae_activations(model, number) + trained * number * (
        number < FLOAT
    )  # copies of the kernels
    # The widest convolution, the decoder's second to last, finds the gradient of its kernel from its unfolded input.
    unfolded = codes * MEL_FRAMES_PER_CODE * 3 * 2 * model.dvae_hidden * number
    return with_optimizer(
        trained, others, optimizations, activations=activations, working=min(unfolded, UNFOLDED_BYTES)
    )


def _dvae_activations(model, number):
    """Bytes per code that the DVAE keeps, `number` bytes for each value of a layer.

    With H hidden channels and 2 H in the residual blocks, four mel frames to a code. Encoder: the padded mel; both
    strided convolutions' outputs, the first with a padded copy (2 x 2 H + 2 H). Each block: both rectified outputs and
    the sum (3 x 2 H). Decoder: its input (2 H), the repeated inputs of the convolutions after the blocks (2 x 2 H, 4 x
    2 H) and their outputs (2 x 2 H, 4 H); the sum of the last block is repeated and let go. In float32: vectors, their
    codes' vectors, the difference of both, what is decoded, and twice the mel for the loss.
    """
    hidden, wide, mels = model.dvae_hidden, 2 * model.dvae_hidden, MEL_FRAMES_PER_CODE * model.num_mels
    blocks = 2 * model.dvae_residual_blocks * 3 * wide
    layers = mels + (2 * 2 + 4) * hidden + (1 + 1 + 2 + 4 + 2) * wide + blocks - (wide if blocks else 0)
    return layers * number + (4 * model.codebook_width + 2 * mels) * FLOAT


def largest_batch(
    model: ModelConfig,
    shapes: Shapes,
    optimizations: Optimizations,
    memory_bytes: float,
    train_text_rows: bool = False,
    estimate: Callable[..., MemoryEstimate] = estimate_gpt,
) -> int:
    """Most clips per batch whose step fits into `memory_bytes`, 0 where not even one does, by the `estimate` of a
    stage. The batch of `shapes` does not count; other arguments as of `estimate_gpt`."""

    def peak(batch):
        return estimate(model, replace(shapes, batch=batch), optimizations, train_text_rows).peak

    return bisect_right(range(1, MOST_CLIPS), memory_bytes, key=peak)
