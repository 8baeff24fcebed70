"""Writing audio in the format that a file's name asks for."""

import io
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.files import AudioError, to_pcm16
from myxtts.storage.files import AnyPath, write_whole

_SOUNDFILE_FORMATS = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".mp3": ("MP3", None),
    ".ogg": ("OGG", "VORBIS"),
}
WRITTEN_SUFFIXES = tuple(_SOUNDFILE_FORMATS)
"""Names that `write_audio` knows the format of."""


def check_suffix(path: AnyPath) -> str:
    """The suffix of `path` in lower case; raises `AudioError` unless it is among `WRITTEN_SUFFIXES`."""
    suffix = Path(path).suffix.lower()
    if suffix not in WRITTEN_SUFFIXES:
        known = ", ".join(WRITTEN_SUFFIXES)
        raise AudioError(path, "unsupported", f"sound is written to files named {known}. Received: {suffix or 'none'}.")
    return suffix


def write_audio(path: AnyPath, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a mono file in the format of its suffix, wav and flac with 16 bits. It appears whole or not at all.

    `samples` are `(S,)` floats at `sample_rate` Hz; what lies beyond `[-1, 1]` is clipped.

    Raises:
        AudioError: As `write_wav`; the suffix is none of `WRITTEN_SUFFIXES`, or the format cannot hold the rate.
    """
    _write(path, samples, sample_rate, check_suffix(path))


def write_wav(path: AnyPath, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a mono 16-bit WAV file, whatever its name; otherwise as `write_audio`.

    Raises:
        AudioError: There is nothing to write, a sample is not finite, or the folder does not exist.
    """
    _write(path, samples, sample_rate, ".wav")


def _write(path, samples, sample_rate, suffix):
    samples = np.asarray(samples, np.float32)
    if samples.ndim != 1:
        raise ValueError(f"samples must have the shape (S,), one channel. Received: {samples.shape}.")
    if not len(samples):
        raise AudioError(path, "no audio", "there are no samples to write.")
    if not np.isfinite(samples).all():
        raise AudioError(path, "not finite", "the samples to write hold NaN or infinity.")
    if not Path(path).parent.is_dir():
        raise AudioError(path, "no folder", f"the folder {Path(path).parent} does not exist; create it first.")
    # libsndfile's own rounding to 16 bit differs in a few samples.
    samples = np.frombuffer(to_pcm16(samples), "<i2") if suffix == ".wav" else np.clip(samples, -1, 1)
    container, subtype = _SOUNDFILE_FORMATS[suffix]
    content = io.BytesIO()  # so that what the format cannot hold is told from what the disk cannot
    try:
        soundfile.write(content, samples, sample_rate, format=container, subtype=subtype)
    except soundfile.LibsndfileError as error:
        detail = f"{suffix[1:]} cannot be written at {sample_rate} Hz: {error.error_string}"
        raise AudioError(path, "unsupported", detail) from error
    with write_whole(path) as temporary:
        temporary.write_bytes(content.getbuffer())
