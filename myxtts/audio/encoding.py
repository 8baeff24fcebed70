"""Samples -> sound files: whole, in the format of the file's name, or as bytes while the samples come."""

import io
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr

from myxtts.audio.files import AudioError, to_int16, to_pcm16
from myxtts.storage.files import AnyPath, write_whole

_OF_SUFFIX = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", None), ".ogg": ("OGG", "VORBIS")}
_OF_STREAM = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}
OPEN_LENGTH = 0xFFFFFFFF
"""In a WAV header: as much as comes. Players and `read_audio` take it so."""
SOUND_FORMATS = ("mp3", "opus", "flac", "wav", "pcm")
"""What `SoundEncoder` writes; wav, flac and pcm have 16 bits."""
OPEN_FORMATS = ("mp3", "opus", "wav", "pcm")
"""Those that can be sent before their length is known. Readers of FLAC want to know it."""
_MPEG2_LAYER3_KBPS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


def check_suffix(path: AnyPath) -> str:
    """The suffix of `path` in lower case; raises `AudioError` unless `write_audio` knows its format."""
    suffix = Path(path).suffix.lower()
    if suffix not in _OF_SUFFIX:
        known = ", ".join(_OF_SUFFIX)
        raise AudioError(path, "unsupported", f"sound is written to files named {known}. Received: {suffix or 'none'}.")
    return suffix


def write_audio(path: AnyPath, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a mono file in the format of its suffix, wav and flac with 16 bits. It appears whole or not at all.

    `samples` are `(S,)` floats at `sample_rate` Hz; what lies beyond `[-1, 1]` is clipped.

    Raises:
        AudioError: There is nothing to write, a sample is not finite, the folder does not exist, or the suffix is of
            no format that can hold the rate.
    """
    suffix, samples = check_suffix(path), np.asarray(samples, np.float32)
    if samples.ndim != 1:
        raise ValueError(f"samples must have the shape (S,), one channel. Received: {samples.shape}.")
    if not len(samples):
        raise AudioError(path, "no audio", "there are no samples to write.")
    if not np.isfinite(samples).all():
        raise AudioError(path, "not finite", "the samples to write hold NaN or infinity.")
    if not Path(path).parent.is_dir():
        raise AudioError(path, "no folder", f"the folder {Path(path).parent} does not exist; create it first.")
    # libsndfile's own rounding to 16 bit differs in a few samples.
    samples = to_int16(samples) if suffix == ".wav" else np.clip(samples, -1, 1)
    container, subtype = _OF_SUFFIX[suffix]
    content = io.BytesIO()  # so that errors of the format are distinguished from errors of the disk
    try:
        soundfile.write(content, samples, sample_rate, format=container, subtype=subtype)
    except soundfile.LibsndfileError as error:
        detail = f"{suffix[1:]} cannot be written at {sample_rate} Hz: {error.error_string}"
        raise AudioError(path, "unsupported", detail) from error
    with write_whole(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def wav_header(sample_rate: int, num_bytes: int | None = None) -> bytes:
    """Of a mono 16-bit WAV with `num_bytes` of samples; None where that is not known yet."""
    form = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    whole, data = (OPEN_LENGTH, OPEN_LENGTH) if num_bytes is None else (20 + len(form) + num_bytes, num_bytes)
    chunks = struct.pack("<4sI4s4sI", b"RIFF", whole, b"WAVE", b"fmt ", len(form))
    return chunks + form + struct.pack("<4sI", b"data", data)


class StreamResampler:
    """Changes the sample rate of a sound that comes in parts, `(S,)` float32 each."""

    def __init__(self, from_rate: int, to_rate: int):
        self._resampler = None if from_rate == to_rate else soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32")

    def add(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """What is known of the result, none or many samples; all that is left of it after the `last` part."""
        return self._resampler.resample_chunk(samples, last=last) if self._resampler else samples

    def end(self) -> np.ndarray:
        """The rest."""
        return self.add(np.zeros(0, np.float32), last=True)


def resampled(stream: Iterable[np.ndarray], from_rate: int, to_rate: int) -> Iterator[np.ndarray]:
    """A stream of samples `(S,)` float32 at another rate, in Hz; none of its parts is empty."""
    resampler = StreamResampler(from_rate, to_rate)
    for samples in stream:
        if len(ready := resampler.add(samples)):
            yield ready
    if len(rest := resampler.end()):
        yield rest


class SoundEncoder:
    """A mono sound file that is written while its samples come.

    Args:
        sound_format: One of `SOUND_FORMATS`.
        sample_rate: Of the samples, in Hz. MP3 and Opus know few of them; 24 000 suits all.
        is_open: Give bytes as soon as they are known, with a header that leaves the length open; only for
            `OPEN_FORMATS`. Else all of them come from `end`.
    """

    def __init__(self, sound_format: str, sample_rate: int, is_open: bool):
        if sound_format not in (OPEN_FORMATS if is_open else SOUND_FORMATS):
            raise ValueError(f"sound_format must be one of {', '.join(OPEN_FORMATS)}. Received: {sound_format}.")
        self.sound_format, self.sample_rate, self.is_open = sound_format, sample_rate, is_open
        self._buffer, self._given, self._file = io.BytesIO(), 0, None
        if sound_format in _OF_STREAM:
            container, subtype = _OF_STREAM[sound_format]
            # Of a constant rate, readers of an open MP3 can tell the length.
            rate = dict(bitrate_mode="CONSTANT", compression_level=0.5) if sound_format == "mp3" else {}
            self._file = soundfile.SoundFile(self._buffer, "w", sample_rate, 1, subtype, format=container, **rate)
        elif sound_format == "wav" and is_open:
            self._buffer.write(wav_header(sample_rate))

    def add(self, samples: np.ndarray) -> bytes:
        """Takes samples `(S,)`, beyond `[-1, 1]` clipped; returns what can be sent, which may be nothing."""
        if self._file:
            self._file.write(to_int16(samples) if self.sound_format == "flac" else np.clip(samples, -1, 1))
        else:
            self._buffer.write(to_pcm16(samples))
        return self._new() if self.is_open else b""

    def end(self) -> bytes:
        """The last bytes."""
        if self._file:
            self._file.close()
        elif self.sound_format == "wav" and not self.is_open:
            samples = self._buffer.getvalue()
            return wav_header(self.sample_rate, len(samples)) + samples
        return self._new()

    def _new(self):
        content = self._buffer.getbuffer()
        if self.sound_format == "mp3" and self.is_open and not self._given:
            if len(content) < 4:
                return b""
            # The first frame holds no sound: it tells the length, which is filled in at the end and wrong until then.
            self._given = 72_000 * _MPEG2_LAYER3_KBPS[content[2] >> 4] // self.sample_rate + (content[2] >> 1 & 1)
        new = bytes(content[self._given :])
        self._given += len(new)
        return new
