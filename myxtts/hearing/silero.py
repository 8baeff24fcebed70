"""Silero's speech detector (github.com/snakers4/silero-vad, MIT) through onnxruntime, block by block.

Its file comes with the packages `faster_whisper` and `silero_vad`, or from the user; nothing is downloaded.
"""

import importlib.util
from pathlib import Path

import numpy as np
import soxr

from myxtts.config.checks import UserError
from myxtts.hearing.dnsmos import open_network
from myxtts.hearing.recognizers import SAMPLE_RATE

WINDOW_SAMPLES, CONTEXT_SAMPLES = 512, 64

_PLACES = {"faster_whisper": "assets/silero_vad*.onnx", "silero_vad": "data/silero_vad.onnx"}


def find_model() -> Path | None:
    """The model's file in an installed package, without importing it; None without onnxruntime or such a package."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    for package, pattern in _PLACES.items():
        found = importlib.util.find_spec(package)
        if found and found.origin and (files := sorted(Path(found.origin).parent.glob(pattern))):
            return files[-1]
    return None


class SileroModel:
    """Probabilities of speech of a recording that arrives block by block.

    Both forms of the file are read: one window a call, or many in a row.

    Raises:
        UserError: onnxruntime is not installed, or the file is no such model.
    """

    def __init__(self, path: Path):
        try:
            self._session = open_network(path)
            names = {one.name for one in self._session.get_inputs()}
        except ModuleNotFoundError:
            raise UserError('Silero needs onnxruntime: pip install "myxtts[recordings]", or --vad energy.') from None
        except Exception as error:  # onnxruntime's errors have no common class
            raise UserError(f"--vad-model {path} cannot be opened: {str(error).splitlines()[0]:.200}") from None
        if names not in ({"input", "h", "c"}, {"input", "state", "sr"}):
            raise UserError(f"--vad-model must be a Silero model of version 5 or later. {path} has other inputs.")
        self._takes_rows = "h" in names

    def start(self, sample_rate: int) -> None:
        """Begins a recording at `sample_rate` Hz."""
        self._resampler = soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float32", quality="MQ")
        self._rest = np.zeros(CONTEXT_SAMPLES, np.float32)  # the context of the first window is silence
        self._probabilities = []
        if self._takes_rows:
            self._state = {name: np.zeros((1, 1, 128), np.float32) for name in "hc"}
        else:
            self._state = {"state": np.zeros((2, 1, 128), np.float32), "sr": np.array(SAMPLE_RATE, np.int64)}

    def add(self, block: np.ndarray) -> None:
        """Takes the next `(S,)` float32 samples."""
        self._run(self._resampler.resample_chunk(block))

    def finish(self) -> tuple[np.ndarray, float]:
        """Returns a probability for each window, `(N,)`, and the seconds of one."""
        self._run(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        self._run(np.zeros(WINDOW_SAMPLES - 1, np.float32))  # the last window is filled up
        return np.concatenate(self._probabilities or [np.zeros(1)]), WINDOW_SAMPLES / SAMPLE_RATE

    def _run(self, samples):
        samples = np.concatenate([self._rest, samples])
        count = (len(samples) - CONTEXT_SAMPLES) // WINDOW_SAMPLES
        self._rest = samples[count * WINDOW_SAMPLES :]
        if not count:
            return
        rows = np.lib.stride_tricks.sliding_window_view(samples, CONTEXT_SAMPLES + WINDOW_SAMPLES)
        rows = np.ascontiguousarray(rows[::WINDOW_SAMPLES][:count])
        if self._takes_rows:
            found, self._state["h"], self._state["c"] = self._session.run(None, {"input": rows, **self._state})
            self._probabilities.append(found.reshape(-1))
        else:
            for row in rows:
                found, self._state["state"] = self._session.run(None, {"input": row[np.newaxis], **self._state})
                self._probabilities.append(found.reshape(-1))
