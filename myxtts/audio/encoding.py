"""Writing audio files, and encoding audio while it is generated."""

import io
import struct
from pathlib import Path

import numpy as np
import soundfile
import soxr

from myxtts.audio.files import MPEG_BITRATES, AudioError, to_int16
from myxtts.storage.files import AnyPath, write_whole

_OF_SUFFIX = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", None), ".ogg": ("OGG", "VORBIS")}
_OF_STREAM = dict(wav=_OF_SUFFIX[".wav"], flac=_OF_SUFFIX[".flac"], mp3=("MP3", "MPEG_LAYER_III"), opus=("OGG", "OPUS"))
OPEN_LENGTH = 0xFFFFFFFF
"""Length in the WAV header of a stream whose length is not known; players and `read_audio` accept it."""
OPEN_FORMATS = ("mp3", "opus", "wav", "pcm")
"""Formats that can be streamed before the length is known. FLAC cannot, because its readers need the length."""
_BLOCK_SAMPLES = 2**14


def check_suffix(path: AnyPath) -> str:
    """Returns the lower-case suffix of `path`. Raises `AudioError` if `write_audio` does not support it."""
    suffix = Path(path).suffix.lower()
    if suffix not in _OF_SUFFIX:
        known = ", ".join(_OF_SUFFIX)
        raise AudioError(path, "unsupported", f"the suffix must be one of {known}. Received: {suffix or 'none'}.")
    return suffix


def write_audio(path: AnyPath, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a mono audio file atomically, in the format of its suffix; WAV and FLAC have 16 bits.

    `samples` are `(S,)` floats, clipped to `[-1, 1]`, at `sample_rate` Hz. Raises `AudioError` if `samples` is empty or
    not finite, the folder does not exist, or the format is unknown or does not support `sample_rate`.
    """
    suffix, samples = check_suffix(path), np.asarray(samples, np.float32)
    if not len(samples):
        raise AudioError(path, "no audio", "there are no samples to write.")
    if not np.isfinite(samples).all():
        raise AudioError(path, "not finite", "the samples to write contain NaN or infinity.")
    if not Path(path).parent.is_dir():
        raise AudioError(path, "no folder", f"the folder {Path(path).parent} does not exist; create it first.")
    container, subtype = _OF_SUFFIX[suffix]
    # Rounding is done here, because libsndfile rounds a few samples differently.
    samples = to_int16(samples) if subtype == "PCM_16" else np.clip(samples, -1, 1)
    content = io.BytesIO()  # encoded in memory, so that disk errors are not taken for errors of the format
    try:
        with soundfile.SoundFile(content, "w", sample_rate, 1, subtype, format=container) as file:
            for first in range(0, len(samples), _BLOCK_SAMPLES):  # in one call, Vorbis needs a stack of that size
                file.write(samples[first : first + _BLOCK_SAMPLES])
    except soundfile.LibsndfileError as error:
        raise AudioError(path, "unsupported", f"{container} at {sample_rate} Hz: {error.error_string}") from error
    with write_whole(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def wav_header(sample_rate: int) -> bytes:
    """Returns the header of a mono 16-bit WAV file of unknown length."""
    form = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    chunks = struct.pack("<4sI4s4sI", b"RIFF", OPEN_LENGTH, b"WAVE", b"fmt ", len(form))
    return chunks + form + struct.pack("<4sI", b"data", OPEN_LENGTH)


class _Buffer(io.BytesIO):
    def close(self):
        """Does nothing: garbage collection may call `close` while the sound file still has to write to the buffer."""


class SoundEncoder:
    """Streaming encoder of a mono audio file.

    Args:
        sound_format: One of `OPEN_FORMATS`, or "flac" if `is_open` is false. WAV, FLAC and PCM have 16 bits.
        sample_rate: Sample rate of the file in Hz. MP3 and Opus support few rates; all formats support 24 000.
        is_open: Whether to stream: `add` returns bytes as soon as they are ready, and the header has no length.
            If false, `end` returns the whole file.
        from_rate: Sample rate in Hz of the samples given to `add`, which are resampled; None means `sample_rate`.
    """

    def __init__(self, sound_format: str, sample_rate: int, is_open: bool, from_rate: int | None = None):
        if sound_format not in OPEN_FORMATS and (is_open or sound_format != "flac"):
            raise ValueError(f"sound_format must be one of {', '.join(OPEN_FORMATS)}. Received: {sound_format}.")
        self.sound_format, self.sample_rate, self.is_open = sound_format, sample_rate, is_open
        is_same = from_rate in (None, sample_rate)
        self._resampler = None if is_same else soxr.ResampleStream(from_rate, sample_rate, 1, dtype="float32")
        self._buffer, self._given, self._file = _Buffer(), 0, None
        if sound_format == "wav" and is_open:
            self._buffer.write(wav_header(sample_rate))
        elif sound_format in _OF_STREAM:
            container, subtype = _OF_STREAM[sound_format]
            # With a constant bit rate, readers can compute the length of an MP3 stream.
            rate = dict(bitrate_mode="CONSTANT", compression_level=0.5) if sound_format == "mp3" else {}
            self._file = soundfile.SoundFile(self._buffer, "w", sample_rate, 1, subtype, format=container, **rate)
            if sound_format == "opus" and is_open:  # pages of 50 ms; by default libsndfile collects 1 s of audio
                soundfile._snd.sf_command(self._file._file, 0x1302, soundfile._ffi.new("double *", 50), 8)

    def add(self, samples: np.ndarray, last: bool = False) -> bytes:
        """Encodes samples `(S,)`, clipped to `[-1, 1]`; returns bytes if `is_open`. `last` flushes the resampler."""
        if self._resampler:
            samples = self._resampler.resample_chunk(samples, last=last)
        if self._file:
            self._file.write(to_int16(samples) if self._file.subtype == "PCM_16" else np.clip(samples, -1, 1))
        else:
            self._buffer.write(to_int16(samples).tobytes())
        return self._new() if self.is_open else b""

    def end(self) -> bytes:
        """Finishes the file. Returns its remaining bytes if `is_open`, else the whole file."""
        content = self.add(np.zeros(0, np.float32), last=True)
        if self._file:
            self._file.close()
        return content + self._new()

    def _new(self):
        content = self._buffer.getbuffer()
        if self.sound_format == "mp3" and self.is_open and not self._given:
            if len(content) < 4:
                return b""
            # Skip the first frame: it has no audio, only the length, which is not yet known.
            self._given = 72_000 * MPEG_BITRATES[2][(content[2] >> 4) - 1] // self.sample_rate + (content[2] >> 1 & 1)
        new = bytes(content[self._given :])
        self._given += len(new)
        return new
