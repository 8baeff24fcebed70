"""DNSMOS P.835's signal score: how little distorted speech sounds, from 1 to 5, without the original to compare with.

The network is the one in the package `speechmos`, whose own code needs more packages than it (Reddy, Gopal and Cutler,
"DNSMOS P.835: A non-intrusive perceptual objective speech quality metric to evaluate noise suppressors", 2022).
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soxr

SAMPLE_RATE = 16000
NUM_SAMPLES = int(9.01 * SAMPLE_RATE)
MODEL_FILE = "dnsmos_models/sig_bak_ovr.onnx"
TO_SIGNAL_SCORE = np.poly1d([-0.08397278, 1.22083953, 0.0052439])
"""From what the network gives to what listeners gave, as in `speechmos`."""


class SignalScore:
    """The score of single clips. Made by `load`, which gives None where a package of the extra `bench` is missing."""

    def __init__(self, session):
        self._session = session

    @classmethod
    def load(cls) -> "SignalScore | None":
        """Opens the network, for one thread."""
        package = importlib.util.find_spec("speechmos")
        if package is None or importlib.util.find_spec("onnxruntime") is None:
            return None
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = Path(package.submodule_search_locations[0], MODEL_FILE)
        return cls(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))

    def __call__(self, samples: np.ndarray, sample_rate: int) -> float:
        """Scores one clip `(S,)`, repeated to nine seconds as upstream does, of which the first nine count."""
        samples = np.clip(np.asarray(samples, np.float32), -1, 1)
        samples = samples if sample_rate == SAMPLE_RATE else soxr.resample(samples, sample_rate, SAMPLE_RATE)
        heard = np.resize(np.clip(samples, -1, 1), NUM_SAMPLES)
        return float(TO_SIGNAL_SCORE(self._session.run(None, {"input_1": heard[None]})[0][0, 0]))

    def mean(self, clips: Sequence[np.ndarray], sample_rate: int) -> float:
        """Mean score of clips of one sample rate."""
        return float(np.mean([self(clip, sample_rate) for clip in clips]))
