"""GPT of XTTS (Casanova et al. 2024), and functions that sample audio codes from its logits."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from myxtts.config.config import SamplingConfig
from myxtts.config.model import ModelConfig
from myxtts.models.attention import HIDDEN, SITES_PER_BLOCK, STANDARD, MemoryUse, TransformerBlock
from myxtts.models.conditioning import ConditioningEncoder, PerceiverResampler
from myxtts.models.layers import Dropout, Layer, Shape, Tensor, layer_norm, normal, torch_linear


def sinusoids(shape: Shape, dtype=None) -> Tensor:
    """Keras initializer of position embeddings `(rows, width)`: sinusoids (Vaswani et al. 2017, section 3.5).

    The longest period is 1,000 times the shortest. The RMS is half the RMS of initial token embeddings. With smaller
    random values, as in the reference implementation (standard deviation 0.02), models align text and audio far later.
    """
    rows, width = shape
    half = (width + 1) // 2
    angles = np.arange(rows)[:, None] * 1000.0 ** (-np.arange(half) / half)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width]
    return ops.convert_to_tensor(table * np.sqrt(0.5), dtype or "float32")


class TeacherForcing(NamedTuple):
    """Inputs, targets and masks of a training batch. Text is `(B, L + 2)` for L tokens, audio `(B, C + 5)` for C codes.

    Inputs begin with a start token, and padding is replaced by stop tokens. The target of a position is the next input.
    Target masks are True for targets in the loss, including one stop token of the text and four of the audio.
    `key_mask` `(B, L + C + 7)` covers text and audio, and is False where attention must ignore the input.
    """

    text_inputs: Tensor
    text_targets: Tensor
    text_target_mask: Tensor
    audio_inputs: Tensor
    audio_targets: Tensor
    audio_target_mask: Tensor
    key_mask: Tensor


def teacher_forcing(
    config: ModelConfig, text: Tensor, text_lengths: Tensor, codes: Tensor, code_lengths: Tensor
) -> TeacherForcing:
    """Creates training inputs and targets from text tokens and codes.

    Attention sees the text's `[STOP]`, as it does in synthesis. The reference implementation hides it in training.

    `text` is `(B, L)` and `codes` `(B, C)` int32; the values of padding do not matter. `text_lengths` and
    `code_lengths`, `(B,)` int32, are the lengths without padding.
    """
    text_lengths, code_lengths = text_lengths[:, None], code_lengths[:, None]

    def shifted(ids, lengths, start, stop, num_stops):
        position = ops.arange(ids.shape[1] or ops.shape(ids)[1])[None]
        ids = ops.pad(ops.where(position < lengths, ids, stop), ((0, 0), (0, num_stops)), constant_values=stop)
        inputs = ops.pad(ids, ((0, 0), (1, 0)), constant_values=start)
        targets = ops.pad(ids, ((0, 0), (0, 1)), constant_values=stop)
        return inputs, targets, ops.arange(ops.shape(inputs)[1])[None] < lengths + num_stops

    text = shifted(text, text_lengths, config.start_text_token, config.stop_text_token, 1)
    audio = shifted(codes, code_lengths, config.start_audio_token, config.stop_audio_token, 4)  # stops in the loss
    text_keys = ops.arange(ops.shape(text[0])[1])[None] <= text_lengths + 1
    return TeacherForcing(*text, *audio, key_mask=ops.concatenate([text_keys, audio[-1]], axis=1))


class DecodingState(NamedTuple):
    """State of autoregressive decoding for B sentences. The key-value cache has S positions."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    """Cached values; like `keys`, one tensor `(B, heads, S, D)` per layer."""
    logits: Tensor
    """`(B, num_audio_tokens)` float32: logits of the next code."""
    hidden: Tensor
    """`(B, width)` float32: GPT latents from which the logits were computed."""
    seen: Tensor
    """`(B, num_audio_tokens)` bool: True for codes sampled so far, to which the repetition penalty applies."""


class GPT(Layer):
    """Conditioning encoder, perceiver, embeddings, GPT-2 trunk and output heads.

    `config` is a `ModelConfig`, or its fields as a dictionary.

    Call arguments: conditioning `latents` `(B, N, width)`; `text_inputs` `(B, L)` and `audio_inputs` `(B, C)` int32;
    `key_mask` `(B, L + C)` bool or None; `seed` (see `Dropout`); `see_input`, `run_block` (see `hidden`). Returns text
    logits `(B, L, num_text_tokens)` and audio logits `(B, C, num_audio_tokens)`, both float32.
    """

    def __init__(self, config: ModelConfig | dict, **kwargs):
        super().__init__(**kwargs)
        self.config = config if isinstance(config, ModelConfig) else ModelConfig(**config)
        config, width, policy = self.config, self.config.width, self.dtype_policy
        self.embedding_dropout = Dropout(config.dropout, site=SITES_PER_BLOCK * config.layers)
        table = lambda name, rows, start: self.add_weight(shape=(rows, width), name=name, initializer=start)
        options = width, config.heads, config.dropout, 0.02 / (2 * config.layers) ** 0.5
        block = lambda i: TransformerBlock(*options, SITES_PER_BLOCK * i, dtype=policy, name=f"block_{i}")
        sizes = config.num_mels, width, config.conditioning_blocks, config.conditioning_heads
        self.conditioning_encoder = ConditioningEncoder(*sizes, dtype=policy, name="conditioning_encoder")
        sizes = config.num_latents, config.perceiver_depth, config.perceiver_heads, config.perceiver_head_width
        # Activations of the bundled model's perceiver exceed the range of float16.
        precise = "float32" if self.compute_dtype == "float16" else policy
        self.perceiver = PerceiverResampler(width, *sizes, dtype=precise, name="perceiver")
        self.text_embedding = table("text_embedding", config.num_text_tokens, normal(1.0))
        self.audio_embedding = table("audio_embedding", config.num_audio_tokens, normal(1.0))
        self.text_positions = table("text_position_embedding", config.max_text_tokens + 2, sinusoids)
        self.audio_positions = table("audio_position_embedding", config.max_audio_tokens + 3, sinusoids)
        self.blocks = [block(i) for i in range(config.layers)]
        self.trunk_norm, self.final_norm = (layer_norm(width, name, policy) for name in ("trunk_norm", "final_norm"))
        self.text_head = torch_linear(config.num_text_tokens, width, "text_head", dtype=policy)
        self.audio_head = torch_linear(config.num_audio_tokens, width, "audio_head", dtype=policy)

    def set_memory_use(self, attention: str = STANDARD, recompute: Callable[[Callable, str], Callable] | None = None):
        """Sets how the trunk and the conditioning encoder save memory in training; their outputs do not change.

        Args:
            attention: Implementation of attention, `STANDARD` or `MEMORY_EFFICIENT`.
            recompute: Called as `recompute(function, block=name)`, where `function` is a part of the block `name`. Must
                return `function` with gradient checkpointing. None turns checkpointing off.
        """
        for name, blocks in (("block", self.blocks), ("conditioning_block", self.conditioning_encoder.blocks)):
            for number, block in enumerate(blocks):
                segment = [partial(recompute, block=f"{name}_{number}")] if recompute else []
                block.memory_use = MemoryUse(attention, *segment)

    def mel_to_latents(self, mel: Tensor, run_block: Callable | None = None) -> Tensor:
        """Computes conditioning latents: mel `(B, T, num_mels)` -> `(B, num_latents, width)`.

        If given, `run_block(x, number=number)` is called instead of each conditioning block, to run compiled code.
        """
        return self.perceiver(self.conditioning_encoder(mel, run_block=run_block))

    def _prompt(self, latents, text_inputs, audio_inputs):
        num_text, num_audio = ops.shape(text_inputs)[1], ops.shape(audio_inputs)[1]
        text = ops.take(self.text_embedding, text_inputs, axis=0) + self.text_positions[:num_text]
        audio = ops.take(self.audio_embedding, audio_inputs, axis=0) + self.audio_positions[:num_audio]
        return ops.concatenate([ops.cast(part, self.compute_dtype) for part in (latents, text, audio)], axis=1)

    def hidden(
        self,
        latents: Tensor,
        text_inputs: Tensor,
        audio_inputs: Tensor,
        key_mask=None,
        seed=None,
        see_input=None,
        run_block=None,
    ) -> Tensor:
        """Returns the normalized output of the trunk at the L text and C audio positions, `(B, L + C, width)`.

        If given, `see_input(number, x)` is called with each block's number and input (see `text_attention`). If given,
        `run_block(x, number=number, key_mask=..., seed=...)` is called instead of each block, to run compiled code.
        """
        x = self.embedding_dropout(self._prompt(latents, text_inputs, audio_inputs), seed=seed)
        if key_mask is not None:
            key_mask = ops.pad(key_mask, ((0, 0), (self.config.num_latents, 0)), constant_values=True)
        for number, block in enumerate(self.blocks):
            if see_input is not None:
                see_input(number, x)
            options = dict(key_mask=key_mask, seed=seed)
            x = run_block(x, number=number, **options) if run_block else block(x, **options)
        return self.final_norm(self.trunk_norm(x[:, self.config.num_latents :]))

    def call(
        self, latents: Tensor, text_inputs: Tensor, audio_inputs: Tensor, key_mask=None, seed=None, **hooks
    ) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(latents, text_inputs, audio_inputs, key_mask, seed, **hooks)
        num_text = ops.shape(text_inputs)[1]
        text_logits, audio_logits = self.text_head(hidden[:, :num_text]), self.audio_head(hidden[:, num_text:])
        return ops.cast(text_logits, "float32"), ops.cast(audio_logits, "float32")

    def text_attention(self, number: int, x: Tensor, text_mask: Tensor) -> Tensor:
        """Returns the attention probabilities from audio to text in the first head of a block, `(B, C, L)` float32.

        `x` `(B, num_latents + L + C, width)` is the input of block `number`; `text_mask` `(B, L)` is False for padding.
        """
        block, first = self.blocks[number], self.config.num_latents
        query, key, _ = ops.split(block.attention.qkv(block.attention_norm(x[:, first:])), 3, axis=-1)
        num_text, width = ops.shape(text_mask)[1], query.shape[-1] // block.attention.heads
        query, key = query[..., :width] / width**0.5, key[..., :width]
        scores = ops.cast(ops.matmul(query[:, num_text:], ops.transpose(key[:, :num_text], (0, 2, 1))), "float32")
        return ops.softmax(ops.where(text_mask[:, None], scores, HIDDEN), axis=-1)

    def codes_to_latents(self, latents: Tensor, text_inputs: Tensor, codes: Tensor, text_mask=None) -> Tensor:
        """Computes GPT latents, the waveform decoder's input. They are the hidden states that predict `codes`.

        Args:
            latents: Conditioning latents, `(B, num_latents, width)`.
            text_inputs: Text tokens between `[START]` and `[STOP]`, `(B, L)` int32.
            codes: Codes with the final stop code, `(B, C)` int32.
            text_mask: `(B, L)` bool, False for padding; None if there is no padding.

        Returns `(B, C, width)`.
        """
        audio_inputs = ops.pad(codes, ((0, 0), (1, 0)), constant_values=self.config.start_audio_token)[:, :-1]
        key_mask = None
        if text_mask is not None:
            key_mask = ops.concatenate([text_mask, ops.ones_like(audio_inputs, dtype="bool")], axis=1)
        return self.hidden(latents, text_inputs, audio_inputs, key_mask)[:, ops.shape(text_inputs)[1] :]

    def prefill(self, latents: Tensor, text_inputs: Tensor, text_mask: Tensor) -> DecodingState:
        """Processes the prompt, which consists of latents, text and start code.

        Args:
            latents: Conditioning latents, `(B, num_latents, width)`.
            text_inputs: Text tokens between `[START]` and `[STOP]`, then padding, `(B, L)` int32.
            text_mask: `(B, L)` bool, False for padding.

        Returns the state before the first code, with `num_latents + L + 1` positions in the cache.
        """
        start = ops.full((ops.shape(text_inputs)[0], 1), self.config.start_audio_token, dtype="int32")
        x = self._prompt(latents, text_inputs, start)
        key_mask = ops.pad(text_mask, ((0, 0), (self.config.num_latents, 1)), constant_values=True)
        cache = []
        for block in self.blocks:
            x, key, value = block.prefill(x, key_mask)
            cache.append((key, value))
        keys, values = zip(*cache)
        logits, hidden = self._predict(x[:, -1])
        return DecodingState(keys, values, logits, hidden, ops.zeros_like(logits, dtype="bool"))

    def advance(
        self, codes: Tensor, index: Tensor, position: Tensor, key_mask: Tensor, state: DecodingState, run_block=None
    ) -> DecodingState:
        """Processes one code per sentence and predicts the next one; returns the new state.

        Args:
            codes: Last code of each sentence, `(B,)` int32.
            index: Number of sampled codes before the last code, `(B,)` or scalar int32. The start code does not count.
            position: Free cache position to write, scalar int32. Position embeddings do not depend on it.
            key_mask: `(B, S)` bool, True for cache positions to attend to; must be True at `position`.
            run_block: Function to call instead of `TransformerBlock.advance`, with the same arguments and results.
        """
        run_block = run_block or TransformerBlock.advance
        x = ops.take(self.audio_embedding, codes, axis=0) + ops.take(self.audio_positions, index + 1, axis=0)
        x = ops.cast(x, self.compute_dtype)[:, None]
        cache = []
        for block, key, value in zip(self.blocks, state.keys, state.values):
            x, key, value = run_block(block, x, key, value, position, key_mask)
            cache.append((key, value))
        keys, values = zip(*cache)
        logits, hidden = self._predict(x[:, 0])
        seen = ops.logical_or(state.seen, ops.arange(self.config.num_audio_tokens) == codes[:, None])
        return DecodingState(keys, values, logits, hidden, seen)

    def _predict(self, x):
        hidden = self.final_norm(self.trunk_norm(x))
        return ops.cast(self.audio_head(hidden), "float32"), ops.cast(hidden, "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": asdict(self.config)}


SamplingValues = namedtuple("SamplingValues", "temperature top_k top_p repetition_penalty")
"""The fields of `SamplingConfig` as tensors: scalar, or `(B, 1)` with one value for each sentence."""


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Lowers the logits of codes that were sampled before (Keskar et al. 2019, section 4.1).

    `logits` and `seen` (bool: sampled before) are `(B, V)`. `penalty` divides positive and multiplies negative logits.
    """
    return ops.where(seen, ops.where(logits < 0, logits * penalty, logits / penalty), logits)


def filter_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Applies temperature, top-k and top-p (Holtzman et al. 2020, section 3.1) to logits `(B, V)`.

    Removed logits become -1e30. Top-k keeps all logits equal to the k-th largest; top-p keeps at least one logit. A
    `top_k` of 0 turns top-k off, and a `top_p` of 1 turns top-p off.
    """
    top_k, top_p = ops.convert_to_tensor(top_k, "int32"), ops.convert_to_tensor(top_p, "float32")
    logits = logits / temperature
    descending = ops.flip(ops.sort(logits, axis=-1), axis=-1)
    is_among_best = ops.arange(logits.shape[-1]) < ops.where(top_k > 0, top_k, logits.shape[-1])
    kth = ops.min(ops.where(is_among_best, descending, -HIDDEN), axis=-1, keepdims=True)
    logits = ops.where(logits < kth, HIDDEN, logits)
    descending = ops.where(descending < kth, HIDDEN, descending)
    # A logit is kept while the probabilities above it sum to less than top_p. A top_p of 1 keeps all: sums may pass 1.
    probabilities = ops.softmax(descending, axis=-1)
    above = ops.cumsum(probabilities, axis=-1) - probabilities
    kept = ops.where((above < top_p) | (top_p >= 1.0), descending, -HIDDEN)
    return ops.where(logits < ops.min(kept, axis=-1, keepdims=True), HIDDEN, logits)


def sample(logits: Tensor, sampling: SamplingValues | SamplingConfig, seen: Tensor, noise: Tensor) -> Tensor:
    """Samples the next code of each sentence, `(B,)` int32, as the argmax of logits plus Gumbel noise (Gumbel 1954).

    `logits`, `seen` (bool, the codes sampled before) and `noise` (Gumbel noise) are `(B, V)`. At a temperature below
    1e-6, the noise is ignored: the code with the highest logit after the repetition penalty is chosen.
    """
    logits = penalize_repetition(logits, seen, sampling.repetition_penalty)
    temperature = ops.convert_to_tensor(sampling.temperature, "float32")
    is_greedy = temperature < 1e-6
    filtered = filter_logits(logits, ops.where(is_greedy, 1.0, temperature), sampling.top_k, sampling.top_p)
    return ops.cast(ops.argmax(ops.where(is_greedy, logits, filtered + noise), axis=-1), "int32")
