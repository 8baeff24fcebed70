"""Writing audio files, and encoding audio while it is generated."""

import io
import signal
import struct
import threading
from contextlib import closing, contextmanager
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
"""Formats that can be streamed before the length is known. FLAC is excluded, because readers need the length."""
_BLOCK_SAMPLES = 2**14


def check_suffix(path: AnyPath) -> str:
    """Returns the lower-case suffix of `path`. Raises `AudioError` if `write_audio` does not support it."""
    suffix = Path(path).suffix.lower()
    if suffix not in _OF_SUFFIX:
        known = ", ".join(_OF_SUFFIX)
        raise AudioError(path, "unsupported", f"the suffix must be one of {known}. Received: {suffix or 'none'}.")
    return suffix


def write_audio(path: AnyPath, samples: np.ndarray, sample_rate: int, from_rate: int | None = None) -> None:
    """Writes a mono audio file atomically. The suffix of `path` selects the format. WAV and FLAC files have 16 bits.

    If `from_rate` is not None, `samples`, `(S,)` floats, are first resampled from `from_rate` to `sample_rate` Hz.
    Samples are clipped to `[-1, 1]`. Raises `AudioError` if `samples` is empty or not finite, if the folder does not
    exist, or if the format is unknown or does not support `sample_rate`.
    """
    samples = np.asarray(samples, np.float32)
    if samples.ndim != 1:
        raise ValueError(f"samples must have the shape (S,), one channel. Received: {samples.shape}.")
    if not len(samples):
        raise AudioError(path, "no audio", "there are no samples to write.")
    if not Path(path).parent.is_dir():
        raise AudioError(path, "no folder", f"the folder {Path(path).parent} does not exist; create it first.")
    with write_whole(path) as temporary, closing(AudioFile(temporary, path, sample_rate, from_rate)) as file:
        file.write(samples)


@contextmanager
def _uninterrupted():
    """Postpones Ctrl-C and SIGTERM during a `with` block, because cffi discards exceptions raised in its callbacks."""
    waiting, is_main = [], threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()  # other threads are not interrupted
    before = {number: signal.signal(number, lambda *received: waiting.append(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for number, _ in waiting:
            signal.raise_signal(number)


class _Disk:
    """File for libsndfile. Stores the first exception of a write, because libsndfile would hide the exception."""

    def __init__(self, path):
        self._file, self.error = open(path, "wb", buffering=0), None
        self.seek, self.tell, self.close = self._file.seek, self._file.tell, self._file.close

    def write(self, content):
        """Writes `content`, unless a write has failed. Always returns `len(content)`, so that libsndfile continues."""
        left = memoryview(content)
        while left and not self.error:
            try:
                left = left[self._file.write(left) :]
            except BaseException as error:
                self.error = error
        return len(content)

    def check(self):
        """Raises the first exception raised in a write, if any."""
        if self.error:
            raise self.error


class AudioFile:
    """Mono audio file that is written in parts. If the process is killed, the written parts remain.

    `place` is the path to write to, e.g. of a temporary file. `path` is the final path, for error messages; its suffix
    selects the format. WAV and FLAC have 16 bits. If `from_rate` is not None, `write` resamples from `from_rate` to
    `sample_rate` (in Hz). Raises `AudioError` for an unsupported `sample_rate`, and `OSError` if the disk is full.
    """

    def __init__(self, place: AnyPath, path: AnyPath, sample_rate: int, from_rate: int | None = None):
        self.path, self.num_samples, self._resampler = path, 0, _resampler(from_rate, sample_rate)
        (container, subtype), self._disk = _OF_SUFFIX[check_suffix(path)], _Disk(place)
        try:
            with _uninterrupted():
                self._file = soundfile.SoundFile(self._disk, "w", sample_rate, 1, subtype, format=container)
        except soundfile.LibsndfileError as error:
            self._disk.close()
            raise AudioError(path, "unsupported", f"{container} at {sample_rate} Hz: {error.error_string}") from error
        if container == "WAV":  # SFC_SET_UPDATE_HEADER_AUTO: each write updates the length in the header
            soundfile._snd.sf_command(self._file._file, 0x1061, soundfile._ffi.NULL, 1)

    def write(self, samples: np.ndarray, last: bool = False) -> None:
        """Adds samples `(S,)`, clipped to [-1, 1]. Raises `AudioError` for NaN or inf. `last` flushes the resampler."""
        samples = self._resampler.resample_chunk(samples, last=last) if self._resampler else samples
        if not np.isfinite(samples).all():
            raise AudioError(self.path, "not finite", "the samples to write contain NaN or infinity.")
        # Rounding is done here, because libsndfile rounds a few samples differently.
        samples = to_int16(samples) if self._file.subtype == "PCM_16" else np.clip(samples, -1, 1)
        for first in range(0, len(samples), _BLOCK_SAMPLES):  # in one call, Vorbis would need a stack of that size
            with _uninterrupted():
                self._file.write(samples[first : first + _BLOCK_SAMPLES])
        self.num_samples += len(samples)
        self._disk.check()

    def close(self) -> None:
        """Writes the samples that the resampler still contains, and closes the file."""
        with _uninterrupted(), closing(self._disk), closing(self._file):
            self.write(np.zeros(0, np.float32), last=True)
        self._disk.check()


def _resampler(from_rate, to_rate):
    return None if from_rate in (None, to_rate) else soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32")


class _Buffer(io.BytesIO):
    def close(self):
        """Does nothing: garbage collection may call `close` while the sound file still has to write to the buffer."""


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
        self.sound_format, self.sample_rate, self.is_open = sound_format, sample_rate, is_open
        self._resampler = _resampler(from_rate, sample_rate)
        self._buffer, self._given, self._file = _Buffer(), 0, None
        if sound_format == "wav" and is_open:
            form = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
            chunks = struct.pack("<4sI4s4sI", b"RIFF", OPEN_LENGTH, b"WAVE", b"fmt ", len(form))
            self._buffer.write(chunks + form + struct.pack("<4sI", b"data", OPEN_LENGTH))
        elif sound_format in _OF_STREAM:
            container, subtype = _OF_STREAM[sound_format]
            # With a constant bit rate, readers can compute the length of an MP3 stream.
            rate = dict(bitrate_mode="CONSTANT", compression_level=0.5) if sound_format == "mp3" else {}
            with _uninterrupted():
                self._file = soundfile.SoundFile(self._buffer, "w", sample_rate, 1, subtype, format=container, **rate)
            if sound_format == "opus" and is_open:  # pages of 50 ms; by default libsndfile collects 1 s of audio
                soundfile._snd.sf_command(self._file._file, 0x1302, soundfile._ffi.new("double *", 50), 8)

    def add(self, samples: np.ndarray, last: bool = False) -> bytes:
        """Encodes samples `(S,)`, clipped to [-1, 1]. If `is_open`, returns new bytes. `last` flushes the resampler."""
        if self._resampler:
            samples = self._resampler.resample_chunk(samples, last=last)
        if self._file:
            with _uninterrupted():
                self._file.write(to_int16(samples) if self._file.subtype == "PCM_16" else np.clip(samples, -1, 1))
        else:
            self._buffer.write(to_int16(samples).tobytes())
        return self._new() if self.is_open else b""

    def end(self) -> bytes:
        """Finishes the file. If `is_open`, returns the bytes that `add` has not returned; otherwise the whole file."""
        content = self.add(np.zeros(0, np.float32), last=True)
        if self._file:
            with _uninterrupted():
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
