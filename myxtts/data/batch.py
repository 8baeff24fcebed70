"""The batch contract: names, shapes, dtypes and units of everything that moves from recordings to a train step."""

from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES


class WaveBatch(NamedTuple):
    """What the host makes: padded waveforms and token ids. B clips, S and R samples at 22 050 Hz, L tokens."""

    index: object  # `(B,)` int32, which utterances of the set these are
    wav: object  # `(B, S)` float32 in [-1, 1], zero-padded; S is a multiple of 1024
    wav_lengths: object  # `(B,)` int32, samples of each clip
    text: object  # `(B, L)` int32 token ids, language tag first, zero-padded, without `[START]` and `[STOP]`
    text_lengths: object  # `(B,)` int32
    conditioning: object  # `(B, R)` float32, the clip that the voice is taken from; R is 0 in the DVAE stage
    conditioning_span: object  # `(B, 2)` int32, first and last + 1 sample of `wav` that it shows; 0, 0: another clip


WAVE_DTYPES = WaveBatch(np.int32, np.float32, np.int32, np.int32, np.int32, np.float32, np.int32)
WAVE_RANKS = WaveBatch(1, 2, 1, 2, 1, 2, 2)


def noise_batch(
    num_clips: int, num_samples: int, num_tokens: int, num_conditioning_samples: int, num_text_tokens: int
) -> WaveBatch:
    """A `WaveBatch` (B, S, L, R) of arrays without padding: noise and random text, for measurements."""
    draw = np.random.default_rng(0)
    return WaveBatch(
        np.zeros(num_clips, np.int32),
        0.1 * draw.standard_normal((num_clips, num_samples), np.float32),
        np.full(num_clips, num_samples, np.int32),
        draw.integers(0, num_text_tokens, (num_clips, num_tokens), np.int32),
        np.full(num_clips, num_tokens, np.int32),
        0.1 * draw.standard_normal((num_clips, num_conditioning_samples), np.float32),
        np.zeros((num_clips, 2), np.int32),
    )


class DVAEBatch(NamedTuple):
    """What the DVAE trains on, made on the data device. T mel frames, a multiple of 4."""

    index: object  # `(B,)` int32
    mel: object  # `(B, T, num_mels)` float32, normalized log-mel
    mel_lengths: object  # `(B,)` int32, frames of each clip


class GPTBatch(NamedTuple):
    """What the GPT trains on, made on the data device. C codes, F conditioning frames."""

    index: object  # `(B,)` int32
    text: object  # `(B, L)` int32
    text_lengths: object  # `(B,)` int32
    conditioning_mel: object  # `(B, F, num_mels)` float32, normalized log-mel
    codes: object  # `(B, C)` int32
    code_lengths: object  # `(B,)` int32, `ceil(samples / 1024)`
    conditioning_codes: object  # `(B, 2)` int32, first and last + 1 code that it shows and the loss leaves out


class BatchError(ValueError):
    """A batch that breaks the contract; the message names the field, the rule and what came."""


def check_wave_batch(batch: WaveBatch) -> WaveBatch:
    """Raises `BatchError` unless `batch` (NumPy arrays) keeps the contract. Called where batches are made."""
    rows = len(batch.index)
    for name, value, dtype, rank in zip(WaveBatch._fields, batch, WAVE_DTYPES, WAVE_RANKS):
        if value.dtype != dtype or value.ndim != rank or len(value) != rows:
            rule = f"WaveBatch.{name} must be {np.dtype(dtype).name} of rank {rank} with {rows} rows."
            raise BatchError(f"{rule} Received: {value.dtype} {value.shape}.")
    if batch.wav.shape[1] % CODE_STRIDE_SAMPLES:
        rule = f"WaveBatch.wav must have a multiple of {CODE_STRIDE_SAMPLES} samples."
        raise BatchError(f"{rule} Received: {batch.wav.shape}.")
    for lengths, padded in ((batch.wav_lengths, batch.wav), (batch.text_lengths, batch.text)):
        if rows and (lengths.min() < 1 or lengths.max() > padded.shape[1]):
            raise BatchError(f"Lengths must lie within 1 and {padded.shape[1]}. Received: {lengths}.")
    return batch
