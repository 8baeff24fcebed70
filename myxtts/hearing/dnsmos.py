"""DNSMOS P.835: how a clip would be judged by listeners from 1 to 5, without the original to compare with.

The network is the one in the package `speechmos`, whose own code needs more packages than it (Reddy, Gopal and Cutler,
"DNSMOS P.835: A non-intrusive perceptual objective speech quality metric to evaluate noise suppressors", 2022).
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.hearing.recognizers import at_rate

HOW_TO_GET = 'pip install onnxruntime speechmos, or "myxtts[eval]"'
SAMPLE_RATE = 16000
NUM_SAMPLES = int(9.01 * SAMPLE_RATE)
MODEL_FILE = "dnsmos_models/sig_bak_ovr.onnx"
TO_SCORES = (
    np.poly1d([-0.08397278, 1.22083953, 0.0052439]),
    np.poly1d([-0.13166888, 1.60915514, -0.39604546]),
    np.poly1d([-0.06766283, 1.11546468, 0.04602535]),
)
"""From what the network gives to what listeners gave, as in `speechmos`."""


class Scores(NamedTuple):
    """How little the speech sounds distorted, how little the background disturbs, and both together."""

    signal: float
    background: float
    overall: float


class DNSMOS:
    """Scores single clips. Made by `load`, which gives None where a package of the extra `eval` is missing."""

    def __init__(self, session):
        self._session = session

    @classmethod
    def load(cls) -> "DNSMOS | None":
        """Opens the network, for one thread."""
        package = importlib.util.find_spec("speechmos")
        if package is None or importlib.util.find_spec("onnxruntime") is None:
            return None
        return cls(open_network(Path(package.submodule_search_locations[0], MODEL_FILE)))

    def __call__(self, samples: np.ndarray, sample_rate: int) -> Scores:
        """Scores one clip `(S,)`, repeated to nine seconds as upstream does, of which the first nine count."""
        heard = np.resize(at_rate(samples, sample_rate), NUM_SAMPLES)
        raw = self._session.run(None, {"input_1": heard[None]})[0][0]
        return Scores(*(float(to_score(value)) for to_score, value in zip(TO_SCORES, raw, strict=True)))

    def mean_signal(self, clips: Sequence[np.ndarray], sample_rate: int) -> float:
        """Mean signal score of clips of one sample rate."""
        return float(np.mean([self(clip, sample_rate).signal for clip in clips]))


def open_network(path: Path):
    """An ONNX network on the processor, for one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
