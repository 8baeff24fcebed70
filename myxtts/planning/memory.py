"""How much memory training the GPT takes, predicted from `ModelConfig` alone: nothing is built, no TensorFlow imported.

Weights are counted exactly, layer by layer. Activations are what the backward pass needs of the forward pass, counted from
the operations of each layer as TensorFlow runs them without XLA; each function says which tensors those are. The peak of a
step comes at the start of the backward pass, when all of them are there, or at the update, when all gradients are, or (long
conditioning, short text) at the start of the conditioning encoder's part; the largest of the three counts.
`utilities/benchmarks/memory_plan.py` holds the prediction against measured peaks.

Symbols in comments: W width, h heads, V vocabulary.
"""

from bisect import bisect_right
from dataclasses import dataclass, fields, replace

from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE

FLOAT = 4
"""Bytes of a float32."""
TEXT_MARKS, AUDIO_MARKS = 2, 5
"""Positions that teacher forcing adds to text and codes: `[START]`, `[STOP]`; one start, four stops."""
CONDITIONING_HOP = 256
"""Samples at 22 050 Hz between conditioning frames."""
CHUNK_KEYS = 256
"""Keys that memory-efficient attention works on at a time."""
TOKENS_PER_SECOND = 7
"""Text tokens that go with a second of speech, roughly."""
MOST_CLIPS = 2**16
"""A batch that no GPU holds."""
RESERVED_GB = 1.0
"""Of a GPU, for CUDA's context, libraries' workspaces and fragments. A usual figure, not a measured one."""
LORA_WIDTHS = 16
"""Widths of one block's adapters together: in and out of qkv 1 + 3, projection 1 + 1, MLP 1 + 4 and 4 + 1."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of a padded batch."""

    batch: int
    """Clips."""
    text: int
    """Text tokens, without marks."""
    codes: int
    """Audio codes, without marks."""
    frames: int
    """Conditioning frames."""

    @classmethod
    def of_data(cls, data, batch, seconds=None):
        """Sizes of a batch whose longest clip has `seconds`, or `data.max_seconds` for None, by the rules of a
        `DataConfig`."""
        seconds = seconds or data.max_seconds
        # Conditioning clips are no longer than the clips that they come from.
        conditioning_seconds = min(seconds, data.conditioning_seconds[1])
        return cls(
            batch,
            min(round(TOKENS_PER_SECOND * seconds), data.max_text_length),
            int(seconds * MODEL_SAMPLE_RATE) // CODE_STRIDE_SAMPLES + 1,
            int(conditioning_seconds * MODEL_SAMPLE_RATE) // CONDITIONING_HOP + 1,
        )


@dataclass(frozen=True)
class Optimizations:
    """The switches that change memory, as `TrainingConfig` has them."""

    precision: str = "float32"
    gradient_checkpointing: bool = False
    attention: str = "standard"
    """`standard` or `memory-efficient`."""
    accumulation: int = 1
    lora_rank: int = 0
    ema: bool = False

    @property
    def compute_bytes(self):
        """Bytes of a number in the layers' compute dtype."""
        return FLOAT if self.precision == "float32" else 2


@dataclass(frozen=True)
class MemoryPlan:
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
    conditioning: int
    """What there is when the backward pass reaches the conditioning encoder: its activations, its work, and the gradients
    of the trunk. More than at the beginning only where conditioning clips are long and texts short."""

    @property
    def resident(self):
        """Bytes that stay between steps."""
        return self.parameters + self.slots + self.averages + self.accumulators

    @property
    def step(self):
        """Bytes that a step takes on top: at the start of its backward pass, at the conditioning encoder's, or at the
        update."""
        return max(self.activations + self.working, self.conditioning, self.gradients)

    @property
    def peak(self):
        """Most bytes at one time."""
        return self.resident + self.step

    def as_dict(self):
        """The plan as JSON types."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "resident": self.resident,
            "step": self.step,
            "peak": self.peak,
        }


def dense(inputs, outputs, bias=True):
    """Weights of a dense layer."""
    return inputs * outputs + bias * outputs


def count_gpt(model):
    """Weights of the GPT with conditioning encoder and perceiver, all of them trained.

    Args:
        model: `ModelConfig` with `num_text_tokens` set.
    """
    width = model.width
    norm = 2 * width
    conditioning_block = norm + dense(width, 3 * width) + dense(width, width)
    attended, hidden = model.perceiver_heads * model.perceiver_head_width, width * 8 // 3
    perceiver_layer = (
        dense(width, 3 * attended, bias=False)
        + dense(attended, width, bias=False)
        + dense(width, 2 * hidden)
        + dense(hidden, width)
    )
    rows = model.num_text_tokens + model.num_audio_tokens + model.max_text_tokens + 2 + model.max_audio_tokens + 3
    return (
        dense(model.num_mels, width)
        + model.conditioning_blocks * conditioning_block
        + model.num_latents * width
        + width
        + model.perceiver_depth * perceiver_layer
        + rows * width
        + model.layers * _count_block(width)
        + 2 * norm
        + dense(width, model.num_text_tokens)
        + dense(width, model.num_audio_tokens)
    )


def _count_block(width):
    return 4 * width + dense(width, 3 * width) + dense(width, width) + dense(width, 4 * width) + dense(4 * width, width)


def count_dvae(model):
    """Weights of the DVAE: `(trained, others)`; the others are codebook, its averages and the mel scale."""
    hidden, wide, vector = model.dvae_hidden, 2 * model.dvae_hidden, model.codebook_width
    block = 2 * dense(3 * wide, wide) + dense(wide, wide)
    trained = (
        dense(3 * model.num_mels, hidden)
        + dense(3 * hidden, wide)
        + dense(wide, vector)
        + dense(vector, wide)
        + 2 * model.dvae_residual_blocks * block
        + dense(3 * wide, wide)
        + dense(3 * wide, hidden)
        + dense(hidden, model.num_mels)
    )
    return trained, 2 * model.num_codes * vector + model.num_codes + model.num_mels


def count_lora(model, rank, train_text_rows):
    """Trained weights with adapters of `rank`, and with the text table and head where the vocabulary grew."""
    text = model.num_text_tokens * model.width + dense(model.width, model.num_text_tokens) if train_text_rows else 0
    return model.layers * LORA_WIDTHS * model.width * rank + text


def block_activations(model, positions, optimizations):
    """Bytes per clip that one transformer block keeps, `positions` long.

    In float32 widths of numbers: of both norms their input, the scale per position and channel that Keras makes of the
    variance and gamma, and their output (2 x 3 W); query, key and value with heads in front (3 W); merged heads (W); of the
    tanh-GELU its input and the tanh, the sum, the half and the product (5 x 4 W). Byte masks of both residual dropouts
    (2 W). For each head and pair of positions the softmax in float32, and of its dropout the mask and the result.
    Lower precision halves all but the norms' own float32 numbers and the softmax, and adds copies of the kernels, which
    `plan_memory` counts.
    """
    width, number = model.width, optimizations.compute_bytes
    dropout = model.dropout > 0
    if optimizations.gradient_checkpointing:
        linear = _checkpointed_block(width, number, dropout)
    else:
        linear = 2 * width * (2 * FLOAT + number) + (3 + 1 + 20) * width * number + 2 * width * dropout
    return positions * (linear + _kept_by_attention(model.heads, positions, positions, width, dropout, optimizations))


def _kept_by_attention(heads, queries, keys, width, dropout, optimizations):
    """Bytes per query that attention keeps beyond query, key, value and merged heads."""
    number = optimizations.compute_bytes
    if optimizations.attention == "memory-efficient":
        return heads * FLOAT + width * number  # the softmax's denominators, and the output before heads are merged
    if optimizations.gradient_checkpointing:
        return heads * keys * FLOAT * dropout  # the random numbers that the mask is made of
    output = width * number * (number == FLOAT)  # before heads are merged: the gradient in float32 reads it
    return output + heads * keys * (FLOAT + (number + 1 if dropout else number * (number < FLOAT)))


def _checkpointed_block(width, number, dropout):
    """Bytes per position between the segments of a recomputed block: its input, qkv, merged heads, the middle of the
    residual stream and the GELU's input."""
    return (1 + 3 + 1 + 1 + 4) * width * number + 2 * width * dropout


def conditioning_activations(model, frames, optimizations):
    """Bytes per clip that the conditioning encoder keeps.

    Its input; and of each block the group norm's input in float32 and its output (2 W), query, key and value (3 W), merged
    heads (W) and the softmax.
    """
    width, number = model.width, optimizations.compute_bytes
    linear = (FLOAT + number) * width + 4 * width * number
    if optimizations.gradient_checkpointing:
        linear = (1 + 1 + 3 + 1) * width * number
    linear += _kept_by_attention(model.conditioning_heads, frames, frames, width, False, optimizations)
    return frames * (model.num_mels * FLOAT + model.conditioning_blocks * linear)


def perceiver_activations(model, frames, optimizations):
    """Bytes per clip that the perceiver keeps.

    Of each layer latents and frames in one (W), their keys and values, the softmax; and of the latents themselves twice
    their width, query, output and merged heads, and about eight hidden widths of the gated MLP.
    """
    width, number = model.width, optimizations.compute_bytes
    context, attended = frames + model.num_latents, model.perceiver_heads * model.perceiver_head_width
    softmax = model.perceiver_heads * model.num_latents * context * (FLOAT + number * (number < FLOAT))
    own = model.num_latents * (2 * width + 3 * attended + 8 * (width * 8 // 3)) * number
    return model.perceiver_depth * (context * (width + 2 * attended) * number + softmax + own)


def logits_bytes(model, shapes):
    """Bytes of the logits of text and codes, float32."""
    return (
        FLOAT
        * shapes.batch
        * ((shapes.text + TEXT_MARKS) * model.num_text_tokens + (shapes.codes + AUDIO_MARKS) * model.num_audio_tokens)
    )


def estimate_gpt(model, shapes, optimizations=Optimizations(), train_text_rows=False):
    """Bytes that a training step of the GPT stage takes.

    Args:
        model: `ModelConfig` with `num_text_tokens` set.
        shapes: `Shapes` of the largest batch.
        optimizations: `Optimizations`.
        train_text_rows: With LoRA, whether the text table and head are trained too.
    """
    count = count_gpt(model)
    rank = optimizations.lora_rank
    trained = count_lora(model, rank, train_text_rows) if rank else count
    frozen = model.layers * LORA_WIDTHS * model.width * rank if rank else 0
    kernels = model.layers * _count_block(model.width)
    positions = model.num_latents + shapes.text + TEXT_MARKS + shapes.codes + AUDIO_MARKS
    number = optimizations.compute_bytes
    block = shapes.batch * block_activations(model, positions, optimizations)
    # After the last block: the slice without latents, two norms as above, and the parts for either head.
    top = shapes.batch * positions * model.width * (2 * (2 * FLOAT + number) + number)
    mask = shapes.batch * positions**2
    conditioning = shapes.batch * conditioning_activations(model, shapes.frames, optimizations)
    perceiver = shapes.batch * perceiver_activations(model, shapes.frames, optimizations)
    activations = model.layers * block + top + mask + conditioning + perceiver + logits_bytes(model, shapes)
    if number < FLOAT:
        activations += count * number
    if rank:
        activations += kernels * number  # each adapted kernel with its adapters added
    accumulating = optimizations.accumulation > 1
    attending = 0
    if model.conditioning_blocks:
        attending = shapes.batch * _made_by_attention(model.conditioning_heads, shapes.frames, optimizations)
    return MemoryPlan(
        parameters=FLOAT * (count + frozen),
        slots=2 * FLOAT * trained,
        averages=FLOAT * trained * optimizations.ema,
        accumulators=FLOAT * trained * accumulating,
        gradients=2 * FLOAT * trained,
        activations=activations,
        working=working_bytes(model, shapes.batch, positions, optimizations),
        conditioning=conditioning + attending + FLOAT * trained,
    )


def working_bytes(model, batch, positions, optimizations):
    """Bytes of the block at work when the backward pass begins, beyond what it keeps.

    Recomputed: the four tensors inside the tanh-GELU that checkpointing does not keep, and its gradient (5 x 4 W); then,
    where that is more, what attention makes. Without checkpointing there is next to nothing: what the backward pass of a
    block makes takes the place of what it lets go.
    """
    if not optimizations.gradient_checkpointing:
        return 0
    mlp = positions * 5 * 4 * model.width * optimizations.compute_bytes
    return batch * max(mlp, _made_by_attention(model.heads, positions, optimizations))


def _made_by_attention(heads, positions, optimizations):
    """Bytes per clip that attention makes in the backward pass: the gradients of scores and softmax, and before them the
    softmax itself where it is recomputed; or, of one chunk, probabilities, their gradient, what the softmax's derivative
    takes off and the product, in float32, and a copy in the compute dtype."""
    if optimizations.attention == "memory-efficient":
        return heads * positions * min(positions, CHUNK_KEYS) * (4 * FLOAT + optimizations.compute_bytes)
    return (2 + optimizations.gradient_checkpointing) * heads * positions**2 * FLOAT


def largest_batch(model, shapes, optimizations, memory_bytes, train_text_rows=False):
    """Most clips per batch whose step fits into `memory_bytes`; 0 where not even one does. Other arguments as of
    `plan_memory`; the batch of `shapes` does not count."""
    return bisect_right(
        range(1, MOST_CLIPS),
        memory_bytes,
        key=lambda batch: plan_memory(model, replace(shapes, batch=batch), optimizations, train_text_rows).peak,
    )
