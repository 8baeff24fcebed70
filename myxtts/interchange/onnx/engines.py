"""Opens a model with a sampling engine: the fastest exact one by default."""

import importlib.util
import logging
from pathlib import Path

import psutil
import tensorflow as tf

from myxtts.config.checks import require
from myxtts.inference.choices import ENGINES
from myxtts.inference.synthesizer import Synthesizer
from myxtts.interchange.onnx.steps import OnnxSteps

logger = logging.getLogger(__name__)

MOST_WEIGHT_BYTES = 10**9
"""Largest GPT for which ONNX Runtime is the default. The 1.5 GB of XTTS v2 take 38 s to convert and a third copy in
memory, which does not pay for a single text."""


def choose_engine(weight_bytes: int) -> str:
    """Name of the fastest engine that samples the same codes as TensorFlow, for a GPT of this size."""
    installed = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
    # Opening a graph needs three copies of the weights: the model's, the graph's and the session's.
    fits = weight_bytes <= MOST_WEIGHT_BYTES and 3 * weight_bytes < psutil.virtual_memory().available
    on_gpu = bool(tf.config.get_visible_devices("GPU"))
    return "onnx-float32" if installed and fits and not on_gpu else "tensorflow"


def load_synthesizer(folder: str | Path, which: str = "best", engine: str | None = None, **options) -> Synthesizer:
    """Loads a model with an engine: one of `ENGINES`, or by default the one of `choose_engine`.

    `options` are those of `Synthesizer.load`.

    Raises:
        UserError: The engine is unknown, or a package is missing.
    """
    require(engine in (None, *ENGINES), "--engine", f"one of {', '.join(ENGINES)}", engine)
    synthesizer = Synthesizer.load(folder, which, **options)
    model = synthesizer.model
    engine = engine or choose_engine(4 * model.gpt.count_params())
    logger.info("Engine: %s", engine)
    synthesizer.make_steps = lambda name: OnnxSteps(model.gpt, model.config, ENGINES[name])
    return synthesizer.with_engine(engine)
