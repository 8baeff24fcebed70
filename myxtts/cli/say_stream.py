"""Sound on standard output while it is made."""

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from myxtts.audio.encoding import resampled, wav_header
from myxtts.audio.files import to_pcm16


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


def play(stream: Iterator[np.ndarray], sound: BinaryIO, from_rate: int, to_rate: int, sound_format: str) -> int:
    """Writes a stream of samples as 16-bit PCM, after a WAV header where asked; ends when nobody listens any more."""
    started, first_seconds, num_samples = time.monotonic(), None, 0
    try:
        if sound_format == "wav":
            sound.write(wav_header(to_rate))
        for samples in resampled(stream, from_rate, to_rate):
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
