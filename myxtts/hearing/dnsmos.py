"""DNSMOS P.835: predicted listening scores of a clip, 1 to 5, without a reference.

Reddy, Gopal and Cutler, "DNSMOS P.835: A non-intrusive perceptual objective speech quality metric to evaluate noise
suppressors", 2022. The network is part of the package `speechmos`, whose code needs further packages and is not used.
"""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.config.checks import UserError
from myxtts.hearing.recognizers import SAMPLE_RATE, at_rate

HOW_TO_GET = 'pip install onnxruntime speechmos, or "myxtts[eval]"'
NUM_SAMPLES = int(9.01 * SAMPLE_RATE)
TO_SCORES = (
    np.poly1d([-0.08397278, 1.22083953, 0.0052439]),
    np.poly1d([-0.13166888, 1.60915514, -0.39604546]),
    np.poly1d([-0.06766283, 1.11546468, 0.04602535]),
)
"""Polynomials from network outputs to scores, as in `speechmos`."""


class Scores(NamedTuple):
    """Predicted scores of the speech, of the background, and overall, 1 to 5."""

    signal: float
    background: float
    overall: float


class DNSMOS:
    """Scores single clips with the network of `speechmos`, on one thread."""

    def __init__(self):
        package = importlib.util.find_spec("speechmos")
        self._session = open_network(
            Path(package.submodule_search_locations[0], "dnsmos_models/sig_bak_ovr.onnx"), "DNSMOS"
        )

    @classmethod
    def load(cls) -> "DNSMOS | None":
        """Opens the network; returns None if `speechmos` or onnxruntime is not installed."""
        return cls() if all(map(importlib.util.find_spec, ("speechmos", "onnxruntime"))) else None

    def __call__(self, samples: np.ndarray, sample_rate: int) -> Scores:
        """Scores the first nine seconds of a clip `(S,)`; a shorter one is repeated, as in `speechmos`."""
        clip = np.resize(at_rate(samples, sample_rate), NUM_SAMPLES)
        raw = self._session.run(None, {"input_1": clip[None]})[0][0]
        return Scores(*(float(to_score(value)) for to_score, value in zip(TO_SCORES, raw, strict=True)))


def open_network(path: str | Path, flag: str):
    """Opens an ONNX network on the CPU, on one thread.

    Raises:
        UserError: onnxruntime is not installed, or the file is not an ONNX network; the message names `flag`.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise UserError(f"{flag} {path} needs onnxruntime. Install it with: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise UserError(f"{flag} {path} cannot be opened: {str(error).splitlines()[0]:.200}") from None
