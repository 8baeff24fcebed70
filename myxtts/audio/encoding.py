"""Writing sound in the format that a file's name asks for."""

import io
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.files import AudioError, check_writable, write_wav
from myxtts.storage.files import AnyPath, write_whole

_SOUNDFILE_FORMATS = {".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", None), ".ogg": ("OGG", "VORBIS")}
WRITTEN_SUFFIXES = (".wav", *_SOUNDFILE_FORMATS)
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
    suffix = check_suffix(path)
    if suffix == ".wav":
        write_wav(path, samples, sample_rate)
        return
    samples = np.clip(check_writable(path, samples), -1, 1)
    container, subtype = _SOUNDFILE_FORMATS[suffix]
    content = io.BytesIO()  # so that what the format cannot hold is told from what the disk cannot
    try:
        soundfile.write(content, samples, sample_rate, format=container, subtype=subtype)
    except soundfile.LibsndfileError as error:
        detail = f"{suffix[1:]} cannot be written at {sample_rate} Hz: {error.error_string}"
        raise AudioError(path, "unsupported", detail) from error
    with write_whole(path) as temporary:
        temporary.write_bytes(content.getbuffer())
