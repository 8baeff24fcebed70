"""DNSMOS P.835: scores that listeners would give a clip, 1 to 5, without the original to compare with.

The network is the one in the package `speechmos`, whose own code needs more packages than it (Reddy, Gopal and Cutler,
"DNSMOS P.835: A non-intrusive perceptual objective speech quality metric to evaluate noise suppressors", 2022).
"""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.hearing.recognizers import SAMPLE_RATE, at_rate

HOW_TO_GET = 'pip install onnxruntime speechmos, or "myxtts[eval]"'
NUM_SAMPLES = int(9.01 * SAMPLE_RATE)
TO_SCORES = (
    np.poly1d([-0.08397278, 1.22083953, 0.0052439]),
    np.poly1d([-0.13166888, 1.60915514, -0.39604546]),
    np.poly1d([-0.06766283, 1.11546468, 0.04602535]),
)
"""Outputs of the network to scores of listeners, as in `speechmos`."""


class Scores(NamedTuple):
    """Quality of the speech, of the background, and of both together, 1 to 5."""

    signal: float
    background: float
    overall: float


class DNSMOS:
    """Scores single clips with the network of the package `speechmos`, in one thread."""

    def __init__(self):
        package = importlib.util.find_spec("speechmos")
        path = Path(package.submodule_search_locations[0], "dnsmos_models/sig_bak_ovr.onnx")
        self._session = open_network(path)

    @classmethod
    def load(cls) -> "DNSMOS | None":
        """Opens the network; None if a package of the extra `eval` is missing."""
        return cls() if all(map(importlib.util.find_spec, ("speechmos", "onnxruntime"))) else None

    def __call__(self, samples: np.ndarray, sample_rate: int) -> Scores:
        """Scores one clip `(S,)`, repeated to nine seconds as upstream does, of which the first nine count."""
        clip = np.resize(at_rate(samples, sample_rate), NUM_SAMPLES)
        raw = self._session.run(None, {"input_1": clip[None]})[0][0]
        return Scores(*(float(to_score(value)) for to_score, value in zip(TO_SCORES, raw, strict=True)))


def open_network(path: Path):
    """An ONNX network on the CPU, in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
