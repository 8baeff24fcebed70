"""Silero voice activity detection (github.com/snakers4/silero-vad, MIT) with onnxruntime, block by block.

The model is a file of the user or part of the packages `faster_whisper` and `silero_vad`; nothing is downloaded.
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
    """Finds the model in an installed package without importing it; None without onnxruntime or such a package."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    for package, pattern in _PLACES.items():
        found = importlib.util.find_spec(package)
        if found and found.origin and (files := sorted(Path(found.origin).parent.glob(pattern))):
            return files[-1]
    return None


class SileroModel:
    """Computes speech probabilities of a recording block by block.

    Some model files take one window per call, others many.

    Raises:
        UserError: onnxruntime is not installed, or the file is not a Silero model of version 5 or later.
    """

    def __init__(self, path: Path):
        self._session = open_network(path, "--vad-model")
        names = {one.name for one in self._session.get_inputs()}
        if names not in ({"input", "h", "c"}, {"input", "state", "sr"}):
            raise UserError(f"--vad-model must be a Silero model of version 5 or later. Received: {path}.")
        self._takes_rows = "h" in names

    def start(self, sample_rate: int) -> None:
        """Starts a recording at `sample_rate` Hz."""
        self._resampler = soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float32", quality="MQ")
        self._rest = np.zeros(CONTEXT_SAMPLES, np.float32)  # the context of the first window is silence
        self._probabilities = []
        if self._takes_rows:
            self._state = {name: np.zeros((1, 1, 128), np.float32) for name in "hc"}
        else:
            self._state = {"state": np.zeros((2, 1, 128), np.float32), "sr": np.array(SAMPLE_RATE, np.int64)}

    def add(self, block: np.ndarray) -> None:
        """Processes the next `(S,)` float32 samples."""
        self._run(self._resampler.resample_chunk(block))

    def finish(self) -> tuple[np.ndarray, float]:
        """Returns the probability of each window, `(N,)`, and the length of a window in seconds."""
        self._run(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        self._run(np.zeros(WINDOW_SAMPLES - 1, np.float32))  # pads the last window
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
