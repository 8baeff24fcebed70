"""Sound on standard output while it is made."""

import io
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import soxr

from myxtts.audio.files import to_pcm16

OPEN_LENGTH = 0xFFFFFFFF
"""In a WAV header: as much as comes. Players and `read_audio` take it so."""


@contextmanager
def standard_output_for_sound() -> Iterator[BinaryIO]:
    """Yields standard output for bytes; whatever else is written to it meanwhile goes to standard error."""
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation):
        number = 1
    with os.fdopen(os.dup(number), "wb", buffering=0) as sound:
        os.dup2(2, number)
        try:
            yield sound
        finally:
            sys.stdout.flush()
            os.dup2(sound.fileno(), number)


def wav_header(sample_rate: int) -> bytes:
    """Of a mono 16-bit WAV whose length is not known yet."""
    form = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    chunks = struct.pack("<4sI4s4sI", b"RIFF", OPEN_LENGTH, b"WAVE", b"fmt ", len(form))
    return chunks + form + struct.pack("<4sI", b"data", OPEN_LENGTH)


def play(stream: Iterator[np.ndarray], sound: BinaryIO, from_rate: int, to_rate: int, sound_format: str) -> int:
    """Writes a stream of samples as 16-bit PCM, after a WAV header where asked; ends when nobody listens any more."""
    started, first_seconds, num_samples = time.monotonic(), None, 0
    try:
        if sound_format == "wav":
            sound.write(wav_header(to_rate))
        for samples in _resampled(stream, from_rate, to_rate):
            if first_seconds is None:
                first_seconds = time.monotonic() - started
            num_samples += len(samples)
            sound.write(to_pcm16(samples))
    except BrokenPipeError:
        print("The listener is gone; the rest was not spoken.", file=sys.stderr)
        return 0
    finally:
        stream.close()
    spoken = f"Spoke {num_samples / to_rate:.2f} s at {to_rate} Hz"
    print(f"{spoken}; the first sound came after {first_seconds:.2f} s", file=sys.stderr)
    return 0


def _resampled(stream, from_rate, to_rate):
    if from_rate == to_rate:
        yield from stream
        return
    resampler = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32")
    for samples in stream:
        if len(ready := resampler.resample_chunk(samples)):
            yield ready
    yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
