"""The batch contract: names, shapes, dtypes and units of everything that moves from recordings to a train step."""

from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE


class WaveBatch(NamedTuple):
    """What the host makes: padded waveforms and token ids. B clips, S and R samples at 22 050 Hz, L tokens.

    The last five fields are for stages whose `StageEntry` asks for them: `targets`, `speakers`, `codes`. For others
    they are without width or zero.
    """

    index: object  # `(B,)` int32, which utterances of the set these are
    wav: object  # `(B, S)` float32 in [-1, 1], zero-padded; S is a multiple of 1024
    wav_lengths: object  # `(B,)` int32, samples of each clip
    text: object  # `(B, L)` int32 token ids, language tag first, zero-padded, without `[START]` and `[STOP]`
    text_lengths: object  # `(B,)` int32
    conditioning: object  # `(B, R)` float32, the clip that the voice is taken from; R is 0 in the DVAE stage
    conditioning_span: object  # `(B, 2)` int32, first and last + 1 sample of `wav` that it shows; 0, 0: another clip
    target_wav: object  # `(B, target_width(S))` float32, the same sound at 24 000 Hz, from the recording itself
    target_lengths: object  # `(B,)` int32, samples of it
    source_rate: object  # `(B,)` int32, Hz that the recordings have
    speaker: object  # `(B,)` int32, index into the sorted speakers of the training set; -1: none of them
    # `(B, S / 1024)` int32 of prepared clips, zero-padded, whose `wav` has no samples; without width: to be computed
    codes: object = np.zeros((0, 0), np.int32)


WAVE_DTYPES = WaveBatch(*map(np.dtype, "i4 f4 i4 i4 i4 f4 i4 f4 i4 i4 i4 i4".split()))
WAVE_RANKS = WaveBatch(1, 2, 1, 2, 1, 2, 2, 2, 1, 1, 1, 2)
TARGET_GRID = (147, 160)
"""Samples at 22 050 and at 24 000 Hz that last equally long: where a clip may begin, so that both begin together."""


def target_width(num_samples: int) -> int:
    """Samples at 24 000 Hz that hold as many at 22 050 Hz, in whole frames of the waveform decoder."""
    frames = -(-num_samples * DECODER_SAMPLE_RATE // (MODEL_SAMPLE_RATE * MEL_HOP_SAMPLES))
    return frames * MEL_HOP_SAMPLES


def noise_batch(
    num_clips: int,
    num_samples: int,
    num_tokens: int,
    num_conditioning_samples: int,
    num_text_tokens: int,
    targets: bool = False,
) -> WaveBatch:
    """A `WaveBatch` (B, S, L, R) of arrays without padding: noise and random text, for measurements."""
    draw, num_targets = np.random.default_rng(0), target_width(num_samples) if targets else 0
    noise = lambda size: 0.1 * draw.standard_normal((num_clips, size), np.float32)
    same = lambda value, *size: np.full((num_clips, *size), value, np.int32)
    wav, text = noise(num_samples), draw.integers(0, num_text_tokens, (num_clips, num_tokens), np.int32)
    spoken = same(0), wav, same(num_samples), text, same(num_tokens), noise(num_conditioning_samples), same(0, 2)
    target = noise(num_targets), same(num_targets), same(DECODER_SAMPLE_RATE * targets)
    return WaveBatch(*spoken, *target, same(0), same(0, 0))


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


class SpeakerBatch(NamedTuple):
    """What the speaker encoder trains on, made on the data device. F frames, 100 per second."""

    index: object  # `(B,)` int32
    mel: object  # `(B, F, 64)` float32, log-mel of 16 000 Hz sound, short clips repeated to fill it
    speaker: object  # `(B,)` int32, which voice: a speaker of the training set, at a speed; -1: none of them


class DecoderBatch(NamedTuple):
    """What the waveform decoder trains on, made on the data device. F frames of a slice and its context, S samples.

    The slice begins after `history_frames` of the decoder and ends before `lookahead_frames`; in validation it is the
    whole clip.
    """

    index: object  # `(B,)` int32
    frames: object  # `(B, F, width)` float32, GPT latents on the decoder's grid
    present: object  # `(B, F)` bool, frames that the clip has
    speaker: object  # `(B, speaker_width)` float32, speaker vector
    target: object  # `(B, S)` float32, the recording at 24 000 Hz; zeros where the clip has no frames
    source_rate: object  # `(B,)` int32, Hz that the recording has


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
    num_samples = batch.wav.shape[1]
    if batch.codes.shape[1]:
        if num_samples:
            raise BatchError(f"WaveBatch.wav must be empty beside codes. Received: {batch.wav.shape}.")
        num_samples = batch.codes.shape[1] * CODE_STRIDE_SAMPLES
    checked = [(batch.wav_lengths, num_samples), (batch.text_lengths, batch.text.shape[1])]
    if width := batch.target_wav.shape[1]:
        if width != target_width(batch.wav.shape[1]):
            rule = f"WaveBatch.target_wav must have {target_width(batch.wav.shape[1])} samples or none."
            raise BatchError(f"{rule} Received: {batch.target_wav.shape}.")
        checked.append((batch.target_lengths, width))
    for lengths, most in checked:
        if rows and (lengths.min() < 1 or lengths.max() > most):
            raise BatchError(f"Lengths must lie within 1 and {most}. Received: {lengths}.")
    return batch
