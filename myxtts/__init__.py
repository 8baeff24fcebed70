# ruff: noqa: F401
"""MyXTTS: train, fine-tune and speak with XTTS in TensorFlow and Keras.

    import myxtts

    run = myxtts.train(train_data="recordings", model_size="nano", max_steps=2000)
    run.speak("Good morning.").save("morning.wav")

Public names are imported when first used, so importing the package loads neither TensorFlow nor Keras.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; `_HOMES` has the same names
    from myxtts.api import from_preset, load, plan, train
    from myxtts.apps.datasets.command import make_dataset
    from myxtts.apps.evaluation.command import evaluate
    from myxtts.config.checks import UserError
    from myxtts.config.config import DataConfig, ModelConfig, SamplingConfig, TrainingConfig, XTTSConfig
    from myxtts.inference.loading import save_to_preset
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.interchange.hub import push
    from myxtts.models.xtts import XTTS
    from myxtts.runs.run import Run
    from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
    from myxtts.training.trainer import XTTSTrainer

__version__ = "0.1.0"

# TensorFlow reads this when it is imported. By default it uses oneDNN on processors with AVX-512 only, but on others,
# oneDNN makes training steps 1.3 to 2 times as fast too (two cores, docs/experiments.md).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

_NAMES = {
    "myxtts.api": ("train", "load", "plan", "from_preset"),
    "myxtts.apps.evaluation.command": ("evaluate",),
    "myxtts.apps.datasets.command": ("make_dataset",),
    "myxtts.runs.run": ("Run",),
    "myxtts.models.xtts": ("XTTS",),
    "myxtts.training.trainer": ("XTTSTrainer",),
    "myxtts.training.memory_isolated_trainer": ("MemoryIsolatedDualGPUTrainer",),
    "myxtts.inference.loading": ("save_to_preset",),
    "myxtts.inference.synthesizer": ("Synthesizer",),
    "myxtts.interchange.hub": ("push",),
    "myxtts.config.config": ("XTTSConfig", "DataConfig", "ModelConfig", "TrainingConfig", "SamplingConfig"),
    "myxtts.config.checks": ("UserError",),
}
"""Public names of the package, by the module that defines them."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from myxtts.config.settings import nearest

        raise AttributeError(f"module 'myxtts' has no attribute {name!r}.{nearest(name, _HOMES)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
