"""MyXTTS: train, fine-tune and speak with XTTS in TensorFlow and Keras.

    import myxtts

    run = myxtts.train(train_data="recordings", model_size="nano", max_steps=2000)
    run.speak("Good morning.").save("morning.wav")

Public names are imported when first used, so importing the package loads neither TensorFlow nor Keras.
"""

import ast
import importlib
import os
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# TensorFlow reads this variable at import. By default, it uses oneDNN only on processors with AVX-512, but oneDNN also
# makes training steps 1.3 to 2 times as fast on other processors (two cores, docs/experiments.md).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime sends telemetry to Microsoft

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
_HOMES = {one.name: str(home.module) for home in _STUB.body if isinstance(home, ast.ImportFrom) for one in home.names}
"""Module that defines each public name. The names come from the stub file, which editors also read."""
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from myxtts.config.settings import nearest

        raise AttributeError(f"module 'myxtts' has no attribute {name!r}.{nearest(name, _HOMES)}")
    from myxtts.devices.tensorflow_start import starting_quietly

    with starting_quietly():
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
