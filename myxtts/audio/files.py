"""Reading audio files.

WAV (8 to 32 bit, float, mu-law, A-law), FLAC, Ogg and MP3 are decoded by libsndfile (`soundfile`) and resampled by
`soxr`. Nothing a header claims is believed before it is compared with the file: no allocation follows a claim, and a
clip is refused by a named reason rather than passed on damaged.
"""

import os
import stat
import struct
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
"""File names looked for when a data set names a clip without its extension, in order of preference."""
MEDIA_EXTENSIONS = (*AUDIO_EXTENSIONS, *".aac .aif .aiff .avi .m4a .m4b .mka .mkv .mov .mp4 .webm .wma".split())
"""File names that are taken for recordings."""

MIN_SAMPLE_RATE = 4_000
MAX_SAMPLE_RATE = 384_000
MAX_CHANNELS = 8
MAX_SECONDS = 3_600.0
"""The longest recording ever decoded, whatever the caller asks for."""
MAX_DECODED_VALUES = 2**26
"""Frames times channels ever decoded: 256 MiB as float32, 50 minutes of 22.05 kHz mono."""
SILENT_PEAK = 1e-3
"""-60 dB of full scale, about 5 bits of a 16-bit file: below it there is no speech to learn from."""
MAX_PEAK = 8.0
"""18 dB over full scale: no float recording overshoots by more, and scaled down by more, the speech around one damaged
sample would be silence."""

_BLOCK_FRAMES = 2**18
_CANCELLED_SHARE = 0.1  # -20 dB of the louder channel; a sum below it is what opposite polarity left over
_CLIPPED_SHARE = 5e-4  # at least this share of a clipped recording lies in flat runs at its extremes
_CLIPPED_MIN_PEAK = 0.05  # below it, quantization alone makes flat tops
_COARSE_SUBTYPES = ("PCM_U8", "PCM_S8", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM")
_STREAM_LENGTH = 0x7FFF_F000  # writers into a pipe (ffmpeg, sox) cannot know it and leave a marker from here up
_SLOPPY_BYTES = 1_024  # some writers count the header into the data length; that loses no sound
_MAX_CHUNKS = 1_000
_MAX_OGG_PAGE = 27 + 255 + 255 * 255
# libsndfile's SF_ERR_UNRECOGNISED_FORMAT and SF_ERR_SYSTEM.
_OPEN_ERRORS = {
    1: ("not audio", "it is not audio in any supported format."),
    2: ("unreadable", "it cannot be opened; look at its permissions."),
}
_KNOWN_UNSUPPORTED = {
    b"ftyp": "an MP4 or M4A file",
    b"FORM": "an AIFF file",
    b".snd": "an AU file",
    b"caff": "a CAF file",
    b"RIFX": "a big-endian WAV file",
    b"\x1aE\xdf\xa3": "a Matroska or WebM file",
}


class AudioError(UserError):
    """A file that cannot be used as audio, and why.

    Attributes:
        reason: Two or three words that stay the same between versions, to count by: "missing file", "unreadable",
            "empty file", "not audio", "unsupported", "broken header", "sample rate", "truncated", "damaged",
            "no audio", "not finite", "absurd level", "silent", "too short", "too long"; for writing also "no folder".
        detail: One sentence for people, without the path.
    """

    def __init__(self, path: AnyPath, reason: str, detail: str):
        super().__init__(path, reason, detail)
        self.path, self.reason, self.detail = Path(path), reason, detail

    def __str__(self):
        return f"{self.path}: {self.detail}"


@dataclass(frozen=True, eq=False)
class Recording:
    """A decoded recording.

    `samples` is `(S,)` float32 in `[-1, 1]` at `sample_rate` Hz; the file had `original_sample_rate` Hz. Each warning
    reads `reason: sentence`.
    """

    samples: np.ndarray
    sample_rate: int
    original_sample_rate: int
    warnings: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


def read_audio(
    path: AnyPath, sample_rate: int = MODEL_SAMPLE_RATE, *, min_seconds: float = 0.1, max_seconds: float | None = None
) -> Recording:
    """Reads, checks, mixes to mono and resamples one recording.

    Channels are averaged over those that carry sound. Samples up to `MAX_PEAK` beyond full scale are scaled
    down, with a warning.

    Args:
        path: An audio file of any supported format, recognized by content.
        sample_rate: Of the result, in Hz.
        min_seconds, max_seconds: Others are refused, longer ones before they are decoded. None: `MAX_SECONDS`.

    Raises:
        AudioError: The file is missing, damaged, not audio, silent, not finite, of absurd level, or outside the
            limits.
    """
    warnings = check_container(path)
    with _open(path, max_seconds) as file:
        claimed, original_rate, subtype = file.frames, file.samplerate, file.subtype
        frames = _read_frames(path, file)
    # An MP3 without a Xing header states an estimate, up to a few per cent off.
    if len(frames) < 0.95 * claimed:
        raise AudioError(path, "truncated", f"it promises {claimed} samples per channel and holds {len(frames)}.")
    if (seconds := len(frames) / original_rate) < min_seconds:
        raise AudioError(path, "too short", f"it lasts {seconds:.3g} s; the least is {min_seconds:g} s.")
    mono, peak = _mix_to_mono(path, frames)
    samples = _resample(path, mono, original_rate, sample_rate)
    if _amplitude(samples) < SILENT_PEAK:
        raise AudioError(path, "silent", f"it is silent: nothing in it passes {SILENT_PEAK:g} of full scale.")
    return Recording(samples, sample_rate, original_rate, (*warnings, *_sound_warnings(frames, peak, subtype)))


def load_samples(path: AnyPath, sample_rate: int = MODEL_SAMPLE_RATE) -> np.ndarray:
    """Reads a recording that `read_audio` has accepted before: the same samples, without the checks that take time.

    Returns:
        `(S,)` float32 in `[-1, 1]` at `sample_rate` Hz.

    Raises:
        AudioError: The file has vanished, cannot be decoded, is not finite or of absurd level, or is longer than
            `MAX_SECONDS`.
    """
    return load_with_rate(path, sample_rate)[0]


def load_with_rate(path: AnyPath, sample_rate: int) -> tuple[np.ndarray, int]:
    """What `load_samples` gives, and the sample rate in Hz that the file has."""
    _regular_file_size(path)
    with _open(path) as file:
        frames, original_rate = _read_frames(path, file), file.samplerate
    mono, _ = _mix_to_mono(path, frames)
    return _resample(path, mono, original_rate, sample_rate), original_rate


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples of 16 bit from `(S,)` floats; what lies beyond `[-1, 1]` is clipped."""
    return np.round(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")


def to_pcm16(samples: np.ndarray) -> bytes:
    """16-bit little-endian PCM of `(S,)` floats, as `to_int16`."""
    return to_int16(samples).tobytes()


def _regular_file_size(path):
    try:
        status = os.stat(path)
    except OSError as error:
        reason = "missing file" if isinstance(error, FileNotFoundError) else "unreadable"
        raise AudioError(path, reason, f"it cannot be read: {error.strerror}.") from error
    # Opening a pipe would wait for a writer for ever.
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(path, "not audio", "it is not a regular file.")
    if not status.st_size:
        raise AudioError(path, "empty file", "it is an empty file (0 bytes).")
    return status.st_size


def check_container(path: AnyPath) -> tuple[str, ...]:
    """Recognizes the format by its first bytes and compares what it claims with the file. Returns warnings.

    Raises:
        AudioError: The file is missing, empty, cut short, or of a format that is not read.
    """
    size = _regular_file_size(path)
    try:
        with open(path, "rb") as file:
            magic = file.read(12)
            if magic[:4] in (b"RIFF", b"RF64") and len(magic) == 12 and magic[8:] != b"WAVE":
                raise AudioError(path, "unsupported", "it is a RIFF file but not a WAV file; convert it to WAV.")
            if magic[:4] == b"RIFF":
                return _check_chunks(path, file, size)
            if magic[:4] == b"OggS":
                file.seek(max(0, size - _MAX_OGG_PAGE))
                _, mark, page = file.read().rpartition(b"OggS")
                if mark and len(page) > 1 and page[1] & 4:
                    return ()
                raise AudioError(path, "truncated", "it is cut short: its last Ogg page does not end the stream.")
    except OSError as error:
        raise AudioError(path, "unreadable", f"it cannot be read: {error.strerror}.") from error
    # A frame of MPEG layer II or III; layer I would also be the byte-order mark of UTF-16.
    is_mpeg = len(magic) > 1 and magic[0] == 0xFF and magic[1] & 0xE6 in (0xE2, 0xE4)
    if is_mpeg or magic[:3] == b"ID3" or magic[:4] in (b"fLaC", b"RF64"):
        return ()
    if name := _KNOWN_UNSUPPORTED.get(magic[:4]) or _KNOWN_UNSUPPORTED.get(magic[4:8]):
        raise AudioError(path, "unsupported", f"it is {name}; convert it to WAV, FLAC, Ogg or MP3.")
    raise AudioError(path, "not audio", "it is not audio: its first bytes are those of no supported format.")


def _check_chunks(path, file, size):
    """Walks the chunks of a WAV file up to its samples: libsndfile takes a file cut short for a shorter one."""
    position = 12
    for _ in range(_MAX_CHUNKS):
        file.seek(position)
        header = file.read(8)
        if len(header) < 8:
            break
        name, length = struct.unpack("<4sI", header)
        position += 8
        if name == b"fmt ":
            fields = file.read(8)
            if len(fields) < 8:
                break
            _check_sample_rate(path, struct.unpack("<HHI", fields)[2])
        elif name == b"data":
            missing = length - (size - position)
            if missing > _SLOPPY_BYTES and length < _STREAM_LENGTH:
                detail = f"it is cut short: {size - position} of {length} bytes of samples are there."
                raise AudioError(path, "truncated", detail)
            return (f"header length: its header promises {missing} bytes more than there are.",) if missing > 0 else ()
        position += length + length % 2
    raise AudioError(path, "broken header", "its WAV header is broken: it ends before the samples begin.")


def _check_sample_rate(path, rate):
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        readable = f"{MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz can be read."
        raise AudioError(path, "sample rate", f"its header states a sample rate of {rate} Hz; {readable}")


@contextmanager
def _open(path, max_seconds=None):
    path = os.fspath(path)
    if path.lower().endswith(".raw"):
        # libsndfile's binding takes the name for the format here, whatever the content.
        raise AudioError(path, "unsupported", "files named .raw are not read; give it the extension of its format.")
    try:
        file = soundfile.SoundFile(path)
    except soundfile.LibsndfileError as error:
        broken = "broken header", f"its header is broken: {error.error_string}"
        raise AudioError(path, *_OPEN_ERRORS.get(error.code, broken)) from error
    with file:
        check_header(path, file)
        limit = MAX_SECONDS if max_seconds is None else min(max_seconds, MAX_SECONDS)
        if (seconds := file.frames / file.samplerate) > limit:
            raise AudioError(path, "too long", f"it lasts {seconds:.6g} s; the most is {limit:g} s.")
        if file.frames * file.channels > MAX_DECODED_VALUES:
            raise AudioError(path, "too long", f"it has {file.frames} samples in each of {file.channels} channels.")
        yield file


def check_header(path: AnyPath, file: soundfile.SoundFile, is_stream: bool = False) -> None:
    """Raises `AudioError` where the header of an open file claims what is not read; a stream may lack a length."""
    _check_sample_rate(path, file.samplerate)
    if file.channels > MAX_CHANNELS:
        raise AudioError(path, "unsupported", f"it has {file.channels} channels; at most {MAX_CHANNELS} are read.")
    # libsndfile's SF_COUNT_MAX: a FLAC stream of unstated length, in which it cannot keep its position.
    if file.frames == 2**63 - 1 and not is_stream:
        raise AudioError(path, "broken header", "its header does not state its length; encode it again into a file.")
    if not file.frames:
        raise AudioError(path, "no audio", "it has a header and no samples.")


def check_peak(path: AnyPath, frames: np.ndarray) -> float:
    """The largest magnitude of samples; raises `AudioError` where it is not finite or beyond `MAX_PEAK`."""
    low, high = frames.min(), frames.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise AudioError(path, "not finite", "it holds samples that are NaN or infinite.")
    peak = max(-low, high)
    if peak > MAX_PEAK:
        cause = "damaged samples, or numbers of another scale stored as float"
        raise AudioError(path, "absurd level", f"its samples reach {peak:.3g} times full scale: {cause}.")
    return peak


def _read_frames(path, file):
    """Decodes to `(S, C)` float32, in blocks, so that memory follows what is there and not what was promised."""
    # Three times faster than libsndfile's own conversion of 16 bit, and the same numbers.
    is_16_bit = file.subtype == "PCM_16"
    blocks = []
    try:
        while not blocks or len(blocks[-1]) == _BLOCK_FRAMES:
            blocks.append(file.read(_BLOCK_FRAMES, dtype="int16" if is_16_bit else "float32", always_2d=True))
    except soundfile.LibsndfileError as error:
        raise AudioError(path, "damaged", f"it is damaged: decoding stopped with '{error.error_string}'.") from error
    frames = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    if not len(frames):
        raise AudioError(path, "truncated", f"it promises {file.frames} samples per channel and holds none.")
    return frames * np.float32(1 / 32768) if is_16_bit else frames


def _mix_to_mono(path, frames):
    """Returns the mix, `(S,)` within `[-1, 1]`, and the peak that the file had."""
    peak = check_peak(path, frames)
    if peak > 1:
        frames = frames / peak
    if frames.shape[1] == 1:
        return frames[:, 0], peak
    frames = frames[:, _sounding_channels(frames)]
    mono = frames.mean(axis=1)
    loudness = np.sqrt(np.mean(np.square(frames), axis=0))
    if np.sqrt(np.mean(np.square(mono))) < _CANCELLED_SHARE * loudness.max():
        return np.ascontiguousarray(frames[:, loudness.argmax()]), peak
    return mono, peak


def _sounding_channels(frames):
    """Which channels carry sound, `(C,)` bool: all of them where none does."""
    sounding = _amplitude(frames) >= SILENT_PEAK
    return sounding if sounding.any() else np.ones_like(sounding)


def _amplitude(samples):
    """Half of peak to peak, per channel, halved first so that float32 cannot overflow. A constant offset has none."""
    return samples.max(axis=0) / 2 - samples.min(axis=0) / 2


def _sound_warnings(frames, peak, subtype):
    if peak > 1:
        yield f"too loud: samples reach {peak:.3g} times full scale and were scaled down."
    sounding = _sounding_channels(frames)
    if not sounding.all():
        yield f"silent channel: {sounding.sum()} of {len(sounding)} channels carry sound; the others were left out."
    frames = frames[:, sounding]
    if subtype in _COARSE_SUBTYPES or np.abs(frames).max() < _CLIPPED_MIN_PEAK:
        return
    flat = (frames == frames.max(axis=0)) | (frames == frames.min(axis=0))
    share = (flat[2:] & flat[1:-1] & flat[:-2]).any(axis=1).sum() / len(frames)
    if share > _CLIPPED_SHARE:
        yield f"clipped: {100 * share:.2g} % of it is cut off flat at the top; record it at a lower level."


def _resample(path, mono, original_rate, sample_rate):
    if original_rate == sample_rate:
        return mono
    samples = soxr.resample(mono, original_rate, sample_rate, quality="HQ")
    if not len(samples):
        raise AudioError(path, "no audio", f"nothing of it is left at {sample_rate} Hz.")
    # The filter may ring a little over full scale.
    return np.clip(samples, -1, 1, out=samples)
