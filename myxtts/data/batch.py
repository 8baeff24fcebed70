"""The batch contract: names, shapes, dtypes and units of the data between recordings and the training step."""

from typing import NamedTuple

import numpy as np

from myxtts.config.rates import CODE_STRIDE_SAMPLES, DECODER_SAMPLE_RATE, MEL_HOP_SAMPLES, MODEL_SAMPLE_RATE


class WaveBatch(NamedTuple):
    """Padded waveforms and token ids, made on the host. B clips, S and R samples at 22 050 Hz, L tokens.

    The last five fields are for stages whose `StageEntry` asks for `targets`, `speakers` or `codes`; for others they
    are zeros or have width 0.
    """

    index: object  # `(B,)` int32, positions of the clips in the set
    wav: object  # `(B, S)` float32 in [-1, 1], zero-padded; S is a multiple of 1024
    wav_lengths: object  # `(B,)` int32, in samples
    text: object  # `(B, L)` int32 token ids, language tag first, zero-padded, without `[START]` and `[STOP]`
    text_lengths: object  # `(B,)` int32
    conditioning: object  # `(B, R)` float32, conditioning clip; R is 0 in the DVAE stage
    conditioning_span: object  # `(B, 2)` int32, its start and end in `wav`; 0, 0 if it is another clip
    target_wav: object  # `(B, target_width(S))` float32, the same audio at 24 000 Hz, resampled from the file
    target_lengths: object  # `(B,)` int32, in samples at 24 000 Hz
    source_rate: object  # `(B,)` int32, sample rate of the file in Hz
    speaker: object  # `(B,)` int32, index into the sorted speakers of the training set; -1 if unknown
    # `(B, S / 1024)` int32, zero-padded, of prepared clips, whose `wav` is empty; width 0: codes are computed
    codes: object = np.zeros((0, 0), np.int32)


WAVE_DTYPES = WaveBatch(*map(np.dtype, "i4 f4 i4 i4 i4 f4 i4 f4 i4 i4 i4 i4".split()))
WAVE_RANKS = WaveBatch(1, 2, 1, 2, 1, 2, 2, 2, 1, 1, 1, 2)
TARGET_GRID = (147, 160)
"""Numbers of samples at 22 050 and at 24 000 Hz of equal duration; slices start on multiples of them."""


def target_width(num_samples: int) -> int:
    """Returns the samples at 24 000 Hz, in whole decoder frames, that hold `num_samples` at 22 050 Hz."""
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
    """Makes a `WaveBatch` of noise and random text without padding, for measurements."""
    rng, num_targets = np.random.default_rng(0), target_width(num_samples) if targets else 0
    noise = lambda size: 0.1 * rng.standard_normal((num_clips, size), np.float32)
    full = lambda value, *size: np.full((num_clips, *size), value, np.int32)
    wav, text = noise(num_samples), rng.integers(0, num_text_tokens, (num_clips, num_tokens), np.int32)
    spoken = full(0), wav, full(num_samples), text, full(num_tokens), noise(num_conditioning_samples), full(0, 2)
    target = noise(num_targets), full(num_targets), full(DECODER_SAMPLE_RATE * targets)
    return WaveBatch(*spoken, *target, full(0), full(0, 0))


class DVAEBatch(NamedTuple):
    """Training batch of the DVAE, made on the data device. T mel frames, a multiple of 4."""

    index: object  # `(B,)` int32
    mel: object  # `(B, T, num_mels)` float32, normalized log-mel
    mel_lengths: object  # `(B,)` int32, in frames


class GPTBatch(NamedTuple):
    """Training batch of the GPT, made on the data device. C codes, F conditioning frames."""

    index: object  # `(B,)` int32
    text: object  # `(B, L)` int32
    text_lengths: object  # `(B,)` int32
    conditioning_mel: object  # `(B, F, num_mels)` float32, normalized log-mel
    codes: object  # `(B, C)` int32
    code_lengths: object  # `(B,)` int32, `ceil(samples / 1024)`
    conditioning_codes: object  # `(B, 2)` int32, start and end of the codes that it contains, which the loss skips


class SpeakerBatch(NamedTuple):
    """Training batch of the speaker encoder, made on the data device. F frames, 100 per second."""

    index: object  # `(B,)` int32
    mel: object  # `(B, F, 64)` float32, log-mel of audio at 16 000 Hz; short clips are repeated
    speaker: object  # `(B,)` int32, class: a speaker of the training set at one speed; -1 if unknown


class DecoderBatch(NamedTuple):
    """Training batch of the waveform decoder, made on the data device. F frames of a slice and its context, S samples.

    The target starts after `history_frames` of the decoder and ends before `lookahead_frames`; in validation the slice
    is the whole clip.
    """

    index: object  # `(B,)` int32
    frames: object  # `(B, F, width)` float32, GPT latents on the decoder's grid
    present: object  # `(B, F)` bool, False where the clip has no frame
    speaker: object  # `(B, speaker_width)` float32, speaker vector
    target: object  # `(B, S)` float32, audio at 24 000 Hz; zeros where the clip has no frame
    source_rate: object  # `(B,)` int32, sample rate of the file in Hz


class BatchError(ValueError):
    """A batch that breaks the contract."""


def check_wave_batch(batch: WaveBatch) -> WaveBatch:
    """Returns `batch` (NumPy arrays); raises `BatchError` if it breaks the contract. Called where batches are made."""

    def require(holds, name, rule, received):
        if not holds:
            raise BatchError(f"WaveBatch.{name} must {rule}. Received: {received}.")

    rows = len(batch.index)
    for name, value, dtype, rank in zip(WaveBatch._fields, batch, WAVE_DTYPES, WAVE_RANKS):
        holds = value.dtype == dtype and value.ndim == rank and len(value) == rows
        require(holds, name, f"be {dtype.name} of rank {rank} with {rows} rows", f"{value.dtype} {value.shape}")
    num_samples, num_targets, num_codes = (value.shape[1] for value in (batch.wav, batch.target_wav, batch.codes))
    is_whole, width = num_samples % CODE_STRIDE_SAMPLES == 0, target_width(num_samples)
    require(is_whole, "wav", f"have a multiple of {CODE_STRIDE_SAMPLES} samples", num_samples)
    require(not (num_samples and num_codes), "wav", "be empty if there are codes", num_samples)
    require(num_targets in (0, width), "target_wav", f"have {width} samples or none", num_targets)
    sizes = {"wav_lengths": num_samples or num_codes * CODE_STRIDE_SAMPLES, "text_lengths": batch.text.shape[1]}
    sizes |= {"target_lengths": num_targets} if num_targets else {}
    for name, size in sizes.items():
        lengths = getattr(batch, name)
        require(np.all((lengths >= 1) & (lengths <= size)), name, f"be within 1 and {size}", lengths)
    return batch
