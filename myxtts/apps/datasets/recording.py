"""Long recordings: reading in blocks, and analysis of levels, loudness and voice activity in one pass."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import bilinear, butter, sosfilt

from myxtts.apps.datasets.speech import SILENCE_DB, find_speech
from myxtts.audio.files import FFMPEG, AudioError, check_container, check_header, check_joins, check_peak, open_sound
from myxtts.config.checks import printable
from myxtts.hearing.networks import SileroModel

BLOCK_SECONDS = 30
FRAMES_PER_SECOND = 100

_REPAIR = "ffmpeg may repair it (ffmpeg -i a.mp3 a.wav); then remove this file"
# `file:` and the protocol whitelist prevent network connections by file names and playlists.
_FFMPEG = "ffmpeg -nostdin -v error -protocol_whitelist file,pipe -i file:{} -map 0:a:0 -f au -c:a pcm_f32be -"


class LongAudio:
    """An audio or video file, which can be hours long. It is decoded block by block with libsndfile or ffmpeg.

    Raises `AudioError` if the file is missing, empty or damaged, or if it needs ffmpeg and ffmpeg is not installed.
    """

    def __init__(self, path: Path):
        self.path, self._by_ffmpeg = Path(path), False
        try:
            check_container(self.path)
            self._read_header()
        except AudioError as error:
            if error.reason not in ("unsupported", "not audio", "broken header"):
                raise
            if shutil.which("ffmpeg") is None:
                detail = error.detail.partition(". ")[0].rstrip(".")
                raise AudioError(self.path, error.reason, f"{detail}. {FFMPEG}.") from None
            self._by_ffmpeg = True
            self._read_header()

    def spans(self, spans: Sequence[tuple[int, int]], channel: int | None = None) -> Iterator[np.ndarray]:
        """Yields the samples of each span `[start, end)`, `(S,)` float32. The spans must be sorted by start.

        A `channel` of None means the mean of all channels. Spans that reach beyond the end of the file are shortened.

        Raises `AudioError` if a span starts after the end of the file, or the file is damaged.
        """
        held, start, blocks = np.zeros(0, np.float32), 0, (_to_mono(one, channel) for one in self.channel_blocks())
        for first, last in spans:
            while start + len(held) < last and (block := next(blocks, None)) is not None:
                skipped = min(max(0, first - start), len(held))
                held, start = np.concatenate([held[skipped:], block]), start + skipped
            if first - start >= len(held):
                raise AudioError(self.path, "damaged", "it changed while it was being read.")
            yield held[first - start : last - start]

    def channel_blocks(self) -> Iterator[np.ndarray]:
        """Yields the recording in float32 blocks `(S, C)`. All blocks but the last one consist of whole 10 ms frames.

        Raises `AudioError` if the file is damaged or has values that are not finite.
        """
        size, count = BLOCK_SECONDS * FRAMES_PER_SECOND * (self.sample_rate // FRAMES_PER_SECOND), 0
        with self._open() as file:
            try:
                while len(block := file.read(size, dtype="float32", always_2d=True)):
                    count += len(block)
                    check_peak(self.path, block)
                    yield block
            except soundfile.LibsndfileError as error:
                raise AudioError(self.path, "damaged", f"{error.error_string} {_REPAIR}.") from error
            # The length of an MP3 without Xing header is an estimate with an error of a few percent.
            if not self._by_ffmpeg and count < 0.95 * file.frames:
                detail = f"it has {count} of {file.frames} samples per channel. {_REPAIR}."
                raise AudioError(self.path, "truncated", detail)

    def _read_header(self):
        with self._open() as file:
            self.sample_rate, self.channels = file.samplerate, file.channels
            check_header(self.path, file, is_stream=self._by_ffmpeg)
            check_joins(self.path, file)  # ffmpeg's output, which is AU, needs no check

    @contextmanager
    def _open(self) -> Iterator[soundfile.SoundFile]:
        """Opens the file or, for a format that libsndfile cannot read, the output of ffmpeg."""
        if not self._by_ffmpeg:
            with open_sound(self.path) as file:
                yield file
            return
        command = [word.format(self.path) for word in _FFMPEG.split()]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            try:
                with soundfile.SoundFile(process.stdout.fileno(), closefd=False) as file:
                    yield file
                    failed = not file.read(1).size and process.wait() != 0
            except soundfile.LibsndfileError:
                failed = True
            finally:
                process.kill()
                process.wait()
            if failed:
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines() or ["it has no audio"]
                fault = printable(lines[-1])[:200]
                raise AudioError(self.path, "damaged", f"ffmpeg cannot decode it: {fault}.") from None


@dataclass(frozen=True, eq=False)
class Survey:
    """Levels and voice activity of a recording in frames of about 10 ms."""

    sample_rate: int
    """Sample rate in Hz."""
    num_samples: int
    """Number of samples per channel."""
    frame_samples: int
    """Number of samples per frame."""
    levels_db: np.ndarray
    """K-weighted level of each frame, without frequencies below 120 Hz, `(F,)` dBFS, at least `SILENCE_DB`."""
    peaks: np.ndarray
    """Maximum magnitude of each frame, `(F,)`."""
    speech: np.ndarray
    """Whether each frame contains speech, `(F,)` bool."""
    loudness: float
    """Integrated loudness in LUFS; -inf for silence."""
    channel: int | None
    """The analyzed channel; None for the mean of all channels."""

    @property
    def frame_seconds(self) -> float:
        return self.frame_samples / self.sample_rate


def survey(audio: LongAudio, model: SileroModel | None = None) -> Survey:
    """Analyzes the mean of all channels of a recording or, if the channels cancel out, the loudest channel.

    Raises `AudioError` if the recording is damaged or shorter than a frame.
    """
    found, powers = _survey_channel(audio, model, None)
    if powers[-1] < 0.01 * powers[:-1].max():  # at -20 dB, the channels have opposite polarity
        found, _ = _survey_channel(audio, model, int(powers[:-1].argmax()))
    return found


def _to_mono(block, channel):
    return block.mean(axis=1) if channel is None else np.ascontiguousarray(block[:, channel])


def _survey_channel(audio, model, channel):
    """Returns the `Survey` of a channel or, if `channel` is None, of the mean of all channels. Also returns the mean
    power of each of the C channels and of the analyzed signal, `(C + 1,)`, to detect channels that cancel out."""
    rate, count, energies, kept = audio.sample_rate, 0, np.zeros(audio.channels + 1), []
    size = rate // FRAMES_PER_SECOND
    filters = [_k_weighting(rate), butter(2, 120.0, "highpass", fs=rate, output="sos")]
    states = [np.zeros((len(one), 2)) for one in filters]
    if model is not None:
        model.start(rate)
    for block in audio.channel_blocks():
        mono = _to_mono(block, channel)
        energies += [*np.einsum("sc,sc->c", block, block, dtype=np.float64), np.dot(mono, mono)]
        count += len(mono)
        if model is not None:
            model.add(mono)
        weighted, states[0] = sosfilt(filters[0], mono, zi=states[0])
        voiced, states[1] = sosfilt(filters[1], weighted, zi=states[1])
        rows, whole = np.stack([weighted, voiced, mono]), len(mono) // size * size
        for part in (rows[:, :whole].reshape(3, -1, size), rows[:, np.newaxis, whole:]):
            if part.size:
                kept.append(np.stack([*(part[:2] ** 2).mean(axis=2), np.abs(part[2]).max(axis=1)]))
    if count < size:
        raise AudioError(audio.path, "no audio", "it is too short.")
    k_powers, powers, peaks = np.concatenate(kept, axis=1)
    levels, probabilities = 10 * np.log10(np.maximum(powers, 10 ** (SILENCE_DB / 10))), None
    if model is not None:
        values, step = model.finish()
        centers = (np.arange(len(levels)) + 0.5) * size / rate
        probabilities = values[np.minimum((centers / step).astype(int), len(values) - 1)]
    speech = find_speech(levels, probabilities, size / rate)
    return Survey(rate, count, size, levels, peaks, speech, _integrated_loudness(k_powers), channel), energies / count


def _integrated_loudness(powers: np.ndarray) -> float:
    """Returns integrated loudness in LUFS (ITU-R BS.1770-4, section 3) from the K-weighted power per 10 ms, `(F,)`."""
    steps = powers[: len(powers) // 10 * 10].reshape(-1, 10).mean(axis=1)
    blocks = np.convolve(steps, np.ones(4) / 4, "valid") if len(steps) >= 4 else np.array([powers.mean()])
    to_lufs = lambda power: -0.691 + 10 * np.log10(np.maximum(power, 1e-15))  # BS.1770-4, equation 2
    heard = blocks[to_lufs(blocks) > -70]
    return float(to_lufs(heard[to_lufs(heard) > to_lufs(heard.mean()) - 10].mean())) if len(heard) else -np.inf


def _k_weighting(sample_rate: int) -> np.ndarray:
    """Designs the K-weighting filters of BS.1770-4, annex 1, as second-order sections `(2, 6)`."""
    # The standard has coefficients for 48 kHz; this uses its analog prototypes for any rate, as in libebur128.
    k, q = np.tan(np.pi * min(1681.974450955533 / sample_rate, 0.49)), 0.7071752369554196
    high = 10 ** (3.999843853973347 / 20)
    shelf = bilinear([high, high**0.4996667741545416 / q, 1], [1, 1 / q, 1], 0.5 / k)
    k, q = np.tan(np.pi * 38.13547087602444 / sample_rate), 0.5003270373238773
    _, poles = bilinear([1, 0, 0], [1, 1 / q, 1], 0.5 / k)
    return np.array([np.concatenate(shelf), [1, -2, 1, *poles]])
