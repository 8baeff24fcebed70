"""The first pass over a recording: levels every 10 ms, loudness, peaks and, with a model, probabilities of speech."""

from dataclasses import dataclass

import numpy as np
from scipy.signal import butter, sosfilt

from myxtts.apps.datasets.decoding import LongAudio
from myxtts.audio.files import AudioError
from myxtts.hearing.silero import SileroModel

FRAMES_PER_SECOND = 100
SILENCE_DB = -90.0
"""Below it nothing is told apart: about the last bit of a 16-bit file."""

_CANCELLED_SHARE = 0.1  # -20 dB of the loudest channel; a mean below it is what opposite polarity left over
_SPEECH_LOWEST_HZ = 120.0
_GATE_LUFS, _RELATIVE_GATE_LU = -70.0, -10.0


@dataclass(frozen=True, eq=False)
class Survey:
    """What one pass over a recording tells. Frame `k` covers `[k, k + 1) * frame_seconds`.

    Attributes:
        sample_rate: In Hz.
        num_samples: Per channel.
        frame_samples: Length of a frame, about 10 ms.
        levels_db: Level above 120 Hz, weighted as loudness is, `(F,)` dB of full scale, at least `SILENCE_DB`.
        peaks: Largest magnitude, `(F,)`.
        loudness: Integrated loudness in LUFS; -inf where all is silent.
        probabilities: Of speech by the model, `(F,)`; None without one.
        channel: Which channel is used; None for the mean of all.
    """

    sample_rate: int
    num_samples: int
    frame_samples: int
    levels_db: np.ndarray
    peaks: np.ndarray
    loudness: float
    probabilities: np.ndarray | None
    channel: int | None

    @property
    def seconds(self) -> float:
        return self.num_samples / self.sample_rate

    @property
    def frame_seconds(self) -> float:
        return self.frame_samples / self.sample_rate


def survey(audio: LongAudio, model: SileroModel | None = None) -> Survey:
    """Passes over a recording once; a second time where its channels cancel each other and the loudest is used alone.

    Raises:
        AudioError: The recording is damaged, or shorter than a frame.
    """
    found, powers = _survey_channel(audio, model, None)
    if powers[-1] < _CANCELLED_SHARE**2 * powers[:-1].max():
        found, _ = _survey_channel(audio, model, int(powers[:-1].argmax()))
    return found


def integrated_loudness(powers: np.ndarray, frames_per_step: int = 10) -> float:
    """Integrated loudness by ITU-R BS.1770-4, section 3: blocks of 400 ms every 100 ms, gated twice.

    Args:
        powers: Mean square of K-weighted samples, `(F,)`, a frame of 10 ms each.
        frames_per_step: Frames in a quarter of a block.

    Returns:
        LUFS; -inf where no block passes the gates.
    """
    steps = powers[: len(powers) // frames_per_step * frames_per_step].reshape(-1, frames_per_step).mean(axis=1)
    blocks = np.convolve(steps, np.ones(4) / 4, "valid") if len(steps) >= 4 else np.array([powers.mean()])
    to_lufs = lambda power: -0.691 + 10 * np.log10(np.maximum(power, 1e-15))  # BS.1770-4, equation 2
    heard = blocks[to_lufs(blocks) > _GATE_LUFS]
    if not len(heard):
        return -np.inf
    return float(to_lufs(heard[to_lufs(heard) > to_lufs(heard.mean()) + _RELATIVE_GATE_LU].mean()))


def k_weighting(sample_rate: int) -> np.ndarray:
    """The two filters of BS.1770-4, annex 1, as `(2, 6)` second-order sections.

    The standard gives coefficients at 48 kHz; these are its analog prototypes at any rate, as libebur128 has them.
    """
    k, q = np.tan(np.pi * min(1681.974450955533 / sample_rate, 0.49)), 0.7071752369554196
    high = 10 ** (3.999843853973347 / 20)
    middle = high**0.4996667741545416
    a0 = 1 + k / q + k * k
    shelf = [high + middle * k / q + k * k, 2 * (k * k - high), high - middle * k / q + k * k]
    shelf = [*(value / a0 for value in shelf), 1, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0]
    k, q = np.tan(np.pi * 38.13547087602444 / sample_rate), 0.5003270373238773
    a0 = 1 + k / q + k * k
    return np.array([shelf, [1, -2, 1, 1, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0]])


class _Frames:
    """Cuts a stream into frames and keeps a value of each."""

    def __init__(self, sample_rate: int):
        self.size = sample_rate // FRAMES_PER_SECOND
        self._k_sections = k_weighting(sample_rate)
        self._speech_sections = butter(2, _SPEECH_LOWEST_HZ, "highpass", fs=sample_rate, output="sos")
        self._states = [np.zeros((len(one), 2)) for one in (self._k_sections, self._speech_sections)]
        self._rest, self._kept = np.zeros((3, 0)), []

    def add(self, samples):
        weighted, self._states[0] = sosfilt(self._k_sections, samples, zi=self._states[0])
        speech, self._states[1] = sosfilt(self._speech_sections, weighted, zi=self._states[1])
        rows = np.concatenate([self._rest, [weighted, speech, samples]], axis=1)
        count = rows.shape[1] // self.size
        self._rest = rows[:, count * self.size :]
        self._keep(rows[:, : count * self.size].reshape(3, count, self.size))

    def finish(self):
        if self._rest.shape[1]:
            self._keep(self._rest[:, np.newaxis])
        return np.concatenate(self._kept, axis=1)

    def _keep(self, frames):
        """Mean squares of K-weighted samples and of those above 120 Hz, and peaks, `(3, F)`."""
        self._kept.append(np.stack([*(frames[:2] ** 2).mean(axis=2), np.abs(frames[2]).max(axis=1)]))


def _survey_channel(audio, model, channel):
    """Returns the survey and the mean squares of every channel and of what was used, `(C + 1,)`."""
    frames, count, energies = _Frames(audio.sample_rate), 0, np.zeros(audio.channels + 1)
    if model is not None:
        model.start(audio.sample_rate)
    for block in audio.channel_blocks():
        mono = block.mean(axis=1) if channel is None else np.ascontiguousarray(block[:, channel])
        energies += [*np.einsum("sc,sc->c", block, block, dtype=np.float64), np.dot(mono, mono)]
        count += len(mono)
        frames.add(mono)
        if model is not None:
            model.add(mono)
    if count < frames.size:
        raise AudioError(audio.path, "no audio", "it holds no sound.")
    k_powers, speech_powers, peaks = frames.finish()
    levels = 10 * np.log10(np.maximum(speech_powers, 10 ** (SILENCE_DB / 10)))
    probabilities = None
    if model is not None:
        values, step = model.finish()
        centers = (np.arange(len(levels)) + 0.5) * frames.size / audio.sample_rate
        probabilities = values[np.minimum((centers / step).astype(int), len(values) - 1)]
    loudness = integrated_loudness(k_powers)
    found = Survey(audio.sample_rate, count, frames.size, levels, peaks, loudness, probabilities, channel)
    return found, energies / max(count, 1)
