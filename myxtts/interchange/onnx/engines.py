"""Chooses the engine that samples the codes: the fastest exact one, unless another is named."""

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
"""Weights of a GPT up to which ONNX Runtime is the default. XTTS v2's GPT has 1.5 GB: converting it takes 38 s and a
third copy of the weights, which a single text does not earn back."""


def choose_engine(weight_bytes: int) -> str:
    """The name of the fastest engine that gives the model's own codes, for a GPT of so many bytes of weights."""
    installed = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
    # While a graph is opened there are three copies of the weights: the model's, the graph's and the session's.
    fits = weight_bytes <= MOST_WEIGHT_BYTES and 3 * weight_bytes < psutil.virtual_memory().available
    on_gpu = bool(tf.config.get_visible_devices("GPU"))
    return "onnx-float32" if installed and fits and not on_gpu else "tensorflow"


def load_synthesizer(folder: str | Path, which: str = "best", engine: str | None = None, **options) -> Synthesizer:
    """Opens a model to speak with the engine asked for; `options` are those of `Synthesizer.load`.

    Args:
        engine: One of `ENGINES`, or None for the one of `choose_engine`.

    Raises:
        UserError: There is no such engine, or a package is missing.
    """
    require(engine in (None, *ENGINES), "--engine", f"one of {', '.join(ENGINES)}", engine)
    synthesizer = Synthesizer.load(folder, which, **options)
    model = synthesizer.model
    engine = engine or choose_engine(4 * model.gpt.count_params())
    logger.info("Engine: %s", engine)
    synthesizer.make_steps = lambda name: OnnxSteps(model.gpt, model.config, ENGINES[name])
    return synthesizer.with_engine(engine)
