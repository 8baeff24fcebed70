"""Reading and checking audio files.

libsndfile (`soundfile`) decodes WAV (8 to 32 bit, float, mu-law, A-law), FLAC, Ogg and MP3; `soxr` resamples. Headers
are checked before memory is allocated. Each error has one of the reasons listed in `AudioError`.
"""

import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.storage.files import AnyPath

AUDIO_EXTENSIONS = (".wav", ".flac", ".ogg", ".opus", ".mp3")
"""Extensions of audio files. A file name without an extension is tried with each of these, in this order."""
MEDIA_EXTENSIONS = (*AUDIO_EXTENSIONS, *".aac .aif .aiff .avi .m4a .m4b .mka .mkv .mov .mp4 .webm .wma".split())
"""Extensions of audio and video files that ffmpeg can decode."""
CONVERT = "Convert it to WAV, for example with ffmpeg -i a.m4a a.wav"
FFMPEG = "Install ffmpeg (https://ffmpeg.org), or convert it to WAV, FLAC, Ogg or MP3"
MIN_SAMPLE_RATE = 4_000
MAX_SAMPLE_RATE = 384_000
MAX_CHANNELS = 8
MAX_SECONDS = 3_600.0
"""Maximum duration of a recording in seconds. The argument `max_seconds` of `read_audio` can only lower this limit."""
MAX_DECODED_VALUES = 2**26
"""Maximum number of decoded values in all channels: 256 MiB as float32, 50 minutes of mono at 22.05 kHz."""
SILENT_PEAK = 1e-3
"""Audio with a lower amplitude counts as silent: -60 dB of full scale, or 33 quantization steps of a 16-bit file."""
MAX_PEAK = 8.0
"""Maximum peak, 18 dB over full scale. A higher peak is a fault: scaling it to 1 would silence all other samples."""

_BLOCK_FRAMES = 2**18
_COARSE_SUBTYPES = ("PCM_U8", "PCM_S8", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM")
_STREAM_LENGTH = 0x7FFF_F000  # lengths from here up mean "unknown"; ffmpeg and sox write them into pipes
_FIRST_OGG_PAGE, _LATER_OGG_PAGE = re.compile(rb"OggS\0[\2\3\6\7]"), re.compile(rb"OggS\0[\0\1\4\5]")
_MPEG_HEADER = re.compile(rb"\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd][\x10-\xef]")
MPEG_BITRATES = {
    2: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    10: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    12: (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
}
"""Bitrates of MPEG audio in kbit/s. A key consists of the version and layer bits of a frame header: 2 is MPEG-2, 10 is
MPEG-1 layer III, and 12 is MPEG-1 layer II."""
# MP4, AIFF, AU, CAF, big-endian WAV, Matroska.
_KNOWN_UNSUPPORTED = (b"ftyp", b"FORM", b".snd", b"caff", b"RIFX", b"\x1aE\xdf\xa3")


class AudioError(UserError):
    """Raised for an audio file that cannot be read or written.

    Attributes:
        reason: One of "missing file", "unreadable", "empty file", "not audio", "text, not audio", "unsupported",
            "broken header", "sample rate", "truncated", "damaged", "no audio", "not finite", "absurd level", "silent",
            "too short", "too long" and, when writing, "no folder".
        detail: One sentence for users, without the path.
    """

    def __init__(self, path: AnyPath, reason: str, detail: str):
        super().__init__(path, reason, detail)
        self.path, self.reason, self.detail = Path(path), reason, detail

    def __str__(self):
        return f"{self.path}: {self.detail}"


@dataclass(frozen=True, eq=False)
class Recording:
    """A decoded recording.

    `samples` is `(S,)` float32 in `[-1, 1]` at 22 050 Hz. `warnings` have the form `reason: sentence`.
    """

    samples: np.ndarray
    original_sample_rate: int
    warnings: tuple[str, ...]


def read_audio(path: AnyPath, *, min_seconds: float = 0.1, max_seconds: float = MAX_SECONDS) -> Recording:
    """Reads and checks a recording, mixes it to mono and resamples it to `MODEL_SAMPLE_RATE`.

    The mix is the mean of the channels that are not silent or, if the mean nearly cancels out, the loudest channel.
    If the peak is above full scale, the audio is scaled down, with a warning. The file extension is ignored.

    Raises `AudioError` if the file is missing, damaged, not audio, silent, not finite, too loud, too short or too long.
    """
    warnings = check_container(path)
    with _open(path, max_seconds) as file:
        check_joins(path, file)
        claimed, original_rate, subtype = file.frames, file.samplerate, file.subtype
        frames = _read_frames(path, file)
    # The length of an MP3 without a Xing header is an estimate, up to a few per cent off.
    if len(frames) < 0.95 * claimed:
        raise AudioError(path, "truncated", f"it has only {len(frames)} of {claimed} samples per channel.")
    if (seconds := len(frames) / original_rate) < min_seconds:
        raise AudioError(path, "too short", f"it lasts {seconds:.3g} s; it must last at least {min_seconds:g} s.")
    mono, peak = _mix_to_mono(path, frames)
    samples = _resample(path, mono, original_rate, MODEL_SAMPLE_RATE)
    check_level(path, samples)
    return Recording(samples, original_rate, (*warnings, *_sound_warnings(frames, peak, subtype)))


def load_samples(path: AnyPath, sample_rate: int = MODEL_SAMPLE_RATE) -> np.ndarray:
    """Reads a recording as `(S,)` float32 in `[-1, 1]`, with fewer and faster checks than `read_audio`.

    Raises `AudioError` if the file is missing, damaged, not finite, above `MAX_PEAK` or longer than `MAX_SECONDS`.
    """
    return load_with_rate(path, sample_rate)[0]


def load_with_rate(path: AnyPath, sample_rate: int) -> tuple[np.ndarray, int]:
    """Returns the result of `load_samples`, and the sample rate in Hz of the file itself."""
    _regular_file_size(path)
    with _open(path) as file:
        frames, original_rate = _read_frames(path, file), file.samplerate
    return _resample(path, _mix_to_mono(path, frames)[0], original_rate, sample_rate), original_rate


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Converts floats `(S,)`, clipped to `[-1, 1]`, to little-endian int16. Raises `ValueError` if not finite."""
    return np.round(np.clip(np.asarray_chkfinite(samples), -1.0, 1.0) * 32767.0).astype("<i2")


def _regular_file_size(path):
    try:
        status = os.stat(path)
    except OSError as error:
        reason = "missing file" if isinstance(error, FileNotFoundError) else "unreadable"
        raise AudioError(path, reason, f"it cannot be read: {error.strerror}.") from error
    # Opening a pipe would wait forever for a writer.
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(path, "not audio", "it is not a regular file.")
    if not status.st_size:
        raise AudioError(path, "empty file", "it is an empty file (0 bytes).")
    return status.st_size


def check_container(path: AnyPath) -> tuple[str, ...]:
    """Detects the format from the first bytes, and checks lengths in the header. Returns warnings (see `Recording`).
    Raises `AudioError` if the file is missing, empty, truncated or of an unsupported format."""
    size = _regular_file_size(path)
    try:
        with open(path, "rb") as file:
            magic = file.read(512)
            if magic[:4] in (b"RIFF", b"RF64") and len(magic) >= 12 and magic[8:12] != b"WAVE":
                raise AudioError(path, "unsupported", f"it is a RIFF file but not a WAV file. {CONVERT}.")
            if magic[:4] == b"RIFF":
                return _check_chunks(path, file, size)
            if magic[:4] == b"OggS":
                file.seek(max(0, size - (27 + 255 + 255 * 255)))  # the longest Ogg page
                _, mark, page = file.read().rpartition(b"OggS")
                if mark and len(page) > 1 and page[1] & 4:
                    return ()
                raise AudioError(path, "truncated", "it is truncated: the last Ogg page does not end the stream.")
    except OSError as error:
        raise AudioError(path, "unreadable", f"it cannot be read: {error.strerror}.") from error
    # A frame of MPEG layer II or III; layer I looks like the byte-order mark of UTF-16.
    is_mpeg = len(magic) > 1 and magic[0] == 0xFF and magic[1] & 0xE6 in (0xE2, 0xE4)
    if is_mpeg or magic[:3] == b"ID3" or magic[:4] in (b"fLaC", b"RF64"):
        return ()
    if magic[:4] in _KNOWN_UNSUPPORTED or magic[4:8] in _KNOWN_UNSUPPORTED:
        raise AudioError(path, "unsupported", f"its format is not supported. {CONVERT}.")
    text = (magic := magic.removeprefix(b"\xef\xbb\xbf")).decode(errors="ignore")
    if len(text.encode()) > len(magic) - 4 and "".join(text.split()).isprintable():  # the last character may be cut
        raise AudioError(path, "text, not audio", "it is text, not audio, such as the error page of a download.")
    raise AudioError(path, "not audio", "it is not audio in any supported format.")


def _check_chunks(path, file, size):
    """Checks a WAV header, because libsndfile reads truncated files without an error. Returns warnings."""
    position = 12
    for _ in range(1_000):
        file.seek(position)
        header = file.read(8)
        if len(header) < 8:
            break
        name, length = struct.unpack("<4sI", header)
        position += 8
        if name == b"fmt " and len(fields := file.read(8)) == 8:
            _check_sample_rate(path, struct.unpack("<4xI", fields)[0])
        elif name == b"data":
            missing = length - (size - position)
            if not length and missing < -1_024:
                raise AudioError(path, "broken header", f"its header states no samples, but {-missing} bytes follow.")
            if missing > 1_024 and length < _STREAM_LENGTH:  # some writers include the header in the data length
                raise AudioError(path, "truncated", f"it has only {size - position} of {length} bytes of samples.")
            return (f"header length: the header states {missing} bytes too many.",) if 0 < missing <= 1_024 else ()
        position += length + length % 2
    raise AudioError(path, "broken header", "its WAV header is broken: it ends before the samples begin.")


def _check_sample_rate(path, rate):
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise AudioError(path, "sample rate", f"sample rate {rate} is not {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz.")


@contextmanager
def open_sound(path: AnyPath) -> Iterator[soundfile.SoundFile]:
    """Context manager that opens a recording with libsndfile. Raises `AudioError` if the format is not supported."""
    if os.fspath(path).lower().endswith(".raw"):
        # For this extension, soundfile assumes headerless audio.
        raise AudioError(path, "unsupported", "files named .raw are not supported; use the extension of its format.")
    try:
        file = soundfile.SoundFile(os.fsencode(path))  # soundfile cannot encode names that are not UTF-8
    except soundfile.LibsndfileError as error:
        reason = "not audio" if error.code == 1 else "broken header"  # libsndfile's SF_ERR_UNRECOGNISED_FORMAT
        raise AudioError(path, reason, f"it cannot be opened: {error.error_string}") from error
    file.seekable = lambda: False  # prevents a seek after each block, which would empty an MP3 decoder's bit reservoir
    with file:
        yield file


@contextmanager
def _open(path, max_seconds=MAX_SECONDS):
    with open_sound(path) as file:
        check_header(path, file)
        limit = min(max_seconds, MAX_SECONDS)
        if (seconds := file.frames / file.samplerate) > limit:
            raise AudioError(path, "too long", f"it lasts {seconds:.6g} s; it must last at most {limit:g} s.")
        if (size := file.frames * file.channels) > MAX_DECODED_VALUES:
            raise AudioError(path, "too long", f"it has {size} samples, over {MAX_DECODED_VALUES}. Cut it.")
        yield file


def check_header(path: AnyPath, file: soundfile.SoundFile, is_stream: bool = False) -> None:
    """Raises `AudioError` for an invalid rate, channel count or length. `is_stream` allows a file of unknown length."""
    _check_sample_rate(path, file.samplerate)
    if file.channels > MAX_CHANNELS:
        raise AudioError(path, "unsupported", f"it has {file.channels} channels; at most {MAX_CHANNELS} are supported.")
    # SF_COUNT_MAX: a FLAC stream of unknown length, in which libsndfile cannot seek.
    if file.frames == 2**63 - 1 and not is_stream:
        raise AudioError(path, "broken header", "its header does not state its length; re-encode it to a file.")
    if not file.frames:
        raise AudioError(path, "no audio", "it has no samples.")


def check_joins(path: AnyPath, file: soundfile.SoundFile) -> None:
    """Raises `AudioError` for an MP3 or Ogg file that libsndfile would not read to the end, such as joined files."""
    if file.format not in ("MP3", "OGG"):
        return
    with open(path, "rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if file.format == "OGG":
            if (later := _LATER_OGG_PAGE.search(data)) and _FIRST_OGG_PAGE.search(data, later.end()):
                raise AudioError(path, "unsupported", "it is several Ogg streams, one after the other; re-encode it.")
            return
        seconds, stated = _mpeg_seconds(data), file.frames / file.samplerate
    if 0.95 * seconds > stated:
        raise AudioError(path, "broken header", f"its header states {stated:.3g} of {seconds:.3g} s; re-encode it.")


def _mpeg_seconds(data):
    """Returns the total duration in seconds of the MPEG frames in `data`, without the first 8 frames. Random bytes can
    look like a frame header. Therefore, a frame counts only if another header directly follows the frame."""
    lengths, position = [], 0
    while header := _MPEG_HEADER.search(data, position):
        (_, second, third), start = header[0], header.start()
        kind, position = second & 14, start + 1
        if third & 12 == 12:  # there is no such sample rate
            continue
        rate = (44_100, 48_000, 32_000)[third >> 2 & 3] // {0: 4, 16: 2, 24: 1}[second & 24]
        samples = 576 if kind == 2 else 1152
        bitrates = MPEG_BITRATES[kind if kind & 8 else 2]
        end = start + 125 * samples * bitrates[(third >> 4) - 1] // rate + (third >> 1 & 1)
        if _MPEG_HEADER.match(data, end):
            lengths.append(samples / rate)
            position = end
    return sum(lengths[8:])


def check_peak(path: AnyPath, frames: np.ndarray) -> float:
    """Returns the peak of `(S, C)` samples. Raises `AudioError` if it is NaN, infinite or above `MAX_PEAK`."""
    peak = max(-frames.min(), frames.max())
    if not np.isfinite(peak):
        raise AudioError(path, "not finite", "it has samples that are NaN or infinite.")
    if peak > MAX_PEAK:
        raise AudioError(path, "absurd level", f"its peak is {peak:.3g} times full scale, above {MAX_PEAK:g}.")
    return peak


def check_level(path: AnyPath, samples: np.ndarray) -> None:
    """Raises `AudioError` if samples `(S,)` are silent, or if their peak is NaN, infinite or above `MAX_PEAK`."""
    check_peak(path, samples)
    if np.ptp(samples) / 2 < SILENT_PEAK:
        raise AudioError(path, "silent", f"it is silent: it stays below {SILENT_PEAK:g} of full scale.")


def _read_frames(path, file):
    """Decodes a file to `(S, C)` float32. Reads it in blocks, because the length in its header may be far too large."""
    # NumPy converts 16-bit samples to floats three times faster than libsndfile, with the same result.
    is_16_bit = file.subtype == "PCM_16"
    blocks = []
    try:
        while not blocks or len(blocks[-1]) == _BLOCK_FRAMES:
            blocks.append(file.read(_BLOCK_FRAMES, dtype="int16" if is_16_bit else "float32", always_2d=True))
    except soundfile.LibsndfileError as error:
        raise AudioError(path, "damaged", f"it is damaged: decoding stopped with '{error.error_string}'.") from error
    frames = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    if not len(frames):
        raise AudioError(path, "truncated", f"it has none of its {file.frames} samples per channel.")
    return frames * np.float32(1 / 32768) if is_16_bit else frames


def _mix_to_mono(path, frames):
    """Scales samples `(S, C)` to a peak of at most 1. Returns a mono mix `(S,)` and the original peak."""
    peak = check_peak(path, frames)
    if peak > 1:
        frames = frames / peak
    if frames.shape[1] == 1:
        return frames[:, 0], peak
    frames = frames[:, _sounding_channels(frames)]
    mono = frames.mean(axis=1)
    loudness = np.sqrt(np.mean(np.square(frames), axis=0))
    if np.sqrt(np.mean(np.square(mono))) < 0.1 * loudness.max():  # at -20 dB, the mix has cancelled out
        return np.ascontiguousarray(frames[:, loudness.argmax()]), peak
    return mono, peak


def _sounding_channels(frames):
    """Returns a mask `(C,)` of the channels that are not silent. If all channels are silent, the mask is all True."""
    sounding = np.ptp(frames, axis=0) / 2 >= SILENT_PEAK  # a DC offset has no effect
    return sounding if sounding.any() else np.ones_like(sounding)


def _sound_warnings(frames, peak, subtype):
    if peak > 1:
        yield f"too loud: samples reach {peak:.3g} times full scale and were scaled down."
    sounding = _sounding_channels(frames)
    if not sounding.all():
        yield f"silent channel: {sounding.sum()} of {len(sounding)} channels are used; the rest are silent."
    frames = frames[:, sounding]
    if subtype in _COARSE_SUBTYPES or np.abs(frames).max() < 0.05:  # quantization alone causes flat runs
        return
    flat = (frames == frames.max(axis=0)) | (frames == frames.min(axis=0))
    share = (flat[2:] & flat[1:-1] & flat[:-2]).any(axis=1).sum() / len(frames)
    if share > 5e-4:
        yield f"clipped: {100 * share:.3g} % of it is clipped; record it at a lower level."


def _resample(path, mono, original_rate, sample_rate):
    if original_rate == sample_rate:
        return mono
    samples = soxr.resample(mono, original_rate, sample_rate, quality="HQ")
    if not len(samples):
        raise AudioError(path, "no audio", f"it is empty once resampled to {sample_rate} Hz.")
    # The filter may overshoot full scale.
    return np.clip(samples, -1, 1, out=samples)
