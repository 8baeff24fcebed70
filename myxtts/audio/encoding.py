"""Writing audio files, and encoding audio while it is generated.

libsndfile writes to file descriptors. Python's file objects would need callbacks, which lose exceptions and Ctrl-C.
"""

import errno
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile
import soxr

from myxtts.audio.files import MPEG_BITRATES, AudioError, to_int16
from myxtts.storage.files import AnyPath, write_whole

_FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", None), ".ogg": ("OGG", "VORBIS")}
_SUFFIXES = tuple(_FORMATS)
_FORMATS |= {".opus": ("OGG", "OPUS"), ".pcm": ("RAW", "PCM_16")}
OPEN_FORMATS = ("mp3", "opus", "wav", "pcm")
"""Formats that can be streamed before the length is known. FLAC is excluded, because readers need the length."""
_BLOCK_SAMPLES = 2**14
_HARMLESS = 0, errno.EINTR, errno.ESPIPE, errno.ENOTTY, errno.EDOM, errno.ERANGE  # the last two are of `math.h`


def check_suffix(path: AnyPath) -> str:
    """Returns the lower-case suffix of `path`. Raises `AudioError` if `write_audio` does not support it."""
    if (suffix := Path(path).suffix.lower()) not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise AudioError(path, "unsupported", f"the suffix must be one of {known}. Received: {suffix or 'none'}.")
    return suffix


def write_audio(path: AnyPath, samples: np.ndarray, sample_rate: int, from_rate: int | None = None) -> None:
    """Writes a mono audio file atomically. The suffix of `path` selects the format. WAV and FLAC files have 16 bits.

    If `from_rate` is not None, `samples`, `(S,)` floats, are first resampled from `from_rate` to `sample_rate` Hz.
    Samples are clipped to `[-1, 1]`. Raises `AudioError` if `samples` is empty or not finite, if the folder does not
    exist, or if the format is unknown or does not support `sample_rate`.
    """
    check_suffix(path)
    samples = np.asarray(samples, np.float32)
    if samples.ndim != 1:
        raise ValueError(f"samples must have the shape (S,), one channel. Received: {samples.shape}.")
    if not len(samples):
        raise AudioError(path, "no audio", "there are no samples to write.")
    if not Path(path).parent.is_dir():
        raise AudioError(path, "no folder", f"the folder {Path(path).parent} does not exist; create it first.")
    with write_whole(path) as temporary, AudioFile(temporary, path, sample_rate, from_rate) as file:
        file.write(samples)


class AudioFile:
    """Mono audio file that is written in parts, in a `with` block. If the process is killed, the written parts remain.

    `place`, a path (often of a temporary file) or an open descriptor, is where the file is written. `path` is the final
    path. Its suffix selects the format, and errors name this path. WAV and FLAC have 16 bits. If `from_rate` is not
    None, `write` resamples from `from_rate` to `sample_rate` (in Hz). `options` are those of `soundfile.SoundFile`.
    Raises `AudioError` for an unsupported `sample_rate` or a WAV file of 4 GiB, and `OSError` if the disk is full.
    """

    def __init__(self, place: AnyPath | int, path: AnyPath, sample_rate: int, from_rate: int | None = None, **options):
        self.path, self.num_samples, is_same_rate = path, 0, from_rate in (None, sample_rate)
        self._resampler = None if is_same_rate else soxr.ResampleStream(from_rate, sample_rate, 1, dtype="float32")
        container, subtype = _FORMATS[Path(path).suffix.lower()]
        self._is_limited = container == "WAV" and not isinstance(place, int)  # not a stream
        place = place if isinstance(place, int) else os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            with _disk_errors():
                self._file = soundfile.SoundFile(place, "w", sample_rate, 1, subtype, format=container, **options)
        except soundfile.LibsndfileError as error:  # libsndfile has closed the descriptor
            raise AudioError(path, "unsupported", f"{container} at {sample_rate} Hz: {error.error_string}") from error
        except (TypeError, OverflowError):  # a rate that is no number of 32 bits
            os.close(place)
            raise
        if container == "WAV":  # SFC_SET_UPDATE_HEADER_AUTO: each write updates the length in the header
            soundfile._snd.sf_command(self._file._file, 0x1061, soundfile._ffi.NULL, 1)

    def write(self, samples: np.ndarray, last: bool = False) -> None:
        """Adds samples `(S,)`, clipped to [-1, 1]. Raises `AudioError` for NaN or inf. `last` flushes the resampler."""
        samples = self._resampler.resample_chunk(samples, last=last) if self._resampler else samples
        if not np.isfinite(samples).all():
            raise AudioError(self.path, "not finite", "the samples to write contain NaN or infinity.")
        # Rounding is done here, because libsndfile rounds a few samples differently.
        samples = to_int16(samples) if self._file.subtype == "PCM_16" else np.clip(samples, -1, 1)
        if self._is_limited and 44 + 2 * (self.num_samples + len(samples)) >= 2**32:  # the header has 32 bits for it
            raise AudioError(self.path, "too long", "a WAV file has at most 4 GiB; write .flac or .mp3 instead.")
        for first in range(0, len(samples), _BLOCK_SAMPLES):  # in one call, Vorbis would need a stack of that size
            with _disk_errors():
                self._file.write(samples[first : first + _BLOCK_SAMPLES])
        self.num_samples += len(samples)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Closes the file. Unless the `with` block raised an error, first writes the rest of the resampled audio."""
        try:
            if kind is None:
                self.write(np.zeros(0, np.float32), last=True)
        finally:
            # `SoundFile.close` waits for the disk and, after a signal, closes twice. Its `__del__` would lose a signal.
            with _disk_errors():
                fields = vars(self._file)
                handle, fields["_file"], self._file = fields["_file"], None, None
                soundfile._snd.sf_close(handle)


@contextmanager
def _disk_errors():
    """Context manager that raises `OSError` for failed writes; libsndfile hides the reason, and even some failures."""
    soundfile._ffi.errno = 0
    try:
        yield
    finally:
        if (number := soundfile._ffi.errno) not in _HARMLESS:
            raise OSError(number, os.strerror(number))


class SoundEncoder:
    """Streaming encoder of a mono audio file.

    Args:
        sound_format: One of `OPEN_FORMATS`, or "flac" if `is_open` is false. WAV, FLAC and PCM have 16 bits.
        sample_rate: Sample rate of the file in Hz. MP3 and Opus support few rates; all formats support 24 000.
        is_open: If true, `add` returns bytes as soon as they are ready, and the header contains no length. If false,
            `end` returns the whole file.
        from_rate: Sample rate in Hz of the samples given to `add`, which are resampled; None means `sample_rate`.
    """

    def __init__(self, sound_format: str, sample_rate: int, is_open: bool, from_rate: int | None = None):
        if sound_format not in OPEN_FORMATS and (is_open or sound_format != "flac"):
            raise ValueError(f"sound_format must be one of {', '.join(OPEN_FORMATS)}. Received: {sound_format}.")
        self.sound_format, self.sample_rate, self.is_open, self._given = sound_format, sample_rate, is_open, 0
        # With a constant bit rate, readers can compute the length of an MP3 stream.
        rate = dict(bitrate_mode="CONSTANT", compression_level=0.5) if sound_format == "mp3" else {}
        with open(os.memfd_create("audio"), "w") if hasattr(os, "memfd_create") else tempfile.TemporaryFile() as file:
            self._place = os.dup(file.fileno())  # libsndfile closes its own descriptor
        self._file = AudioFile(self._place, f"stream.{sound_format}", sample_rate, from_rate, **rate)
        if sound_format == "opus" and is_open:  # pages of 50 ms; by default libsndfile collects 1 s of audio
            soundfile._snd.sf_command(self._file._file._file, 0x1302, soundfile._ffi.new("double *", 50), 8)

    def add(self, samples: np.ndarray) -> bytes:
        """Encodes samples `(S,)`, clipped to [-1, 1]. If `is_open`, returns new bytes. Raises `ValueError` for NaN."""
        if not np.isfinite(samples).all():  # the model's fault: no `UserError`, which HTTP clients would see as theirs
            raise ValueError("The generated audio contains NaN or infinity.")
        self._file.write(samples)
        return self._new() if self.is_open else b""

    def end(self) -> bytes:
        """Finishes the file. If `is_open`, returns the bytes that `add` has not returned; otherwise the whole file."""
        with open(os.dup(self._place), "rb", buffering=0) as file:  # libsndfile closes its own descriptor
            with self._file:
                self._place = file.fileno()
            return self._new()

    def _new(self):
        size = os.fstat(self._place).st_size
        is_start = self.is_open and size and not self._given
        if is_start and self.sound_format == "mp3":
            # Skip the first frame: it has no audio, only the length, which is not yet known.
            third = os.pread(self._place, 1, 2)[0]
            self._given = 72_000 * MPEG_BITRATES[2][(third >> 4) - 1] // self.sample_rate + (third >> 1 & 1)
        new = os.pread(self._place, max(0, size - self._given), self._given)
        self._given += len(new)
        os.ftruncate(self._place, 0)  # frees the memory; libsndfile continues at its offset
        if is_start and self.sound_format == "wav":  # players and `read_audio` accept these as an unknown length
            return new[:4] + 4 * b"\xff" + new[8:40] + 4 * b"\xff" + new[44:]
        return new
