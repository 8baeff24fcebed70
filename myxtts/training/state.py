"""What a run of a stage has come to, as a checkpoint keeps it.

Everything that is drawn is a function of the seed and a position (docs/architecture.md), so weights, optimizer state
and positions are all there is. Whatever else must survive a stop is one of `TrainingState.parts`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

import myxtts
from myxtts.config.config import XTTSConfig
from myxtts.config.loading import config_from_dict
from myxtts.config.settings import run_settings
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import new_hasher


@dataclass
class TrainingState:
    """Where a stage's training is; the trainer owns it and nobody else changes it."""

    lineage: dict = field(default_factory=dict)
    """What the stage builds on, as JSON values; a checkpoint made on something else is not resumed."""
    step: int = 0
    """Optimizer steps taken."""
    position: int = 0
    """Batches trained on, which is the place in the order of the data."""
    data_digest: str | None = None
    """Identifies the training clips that the position counts in."""
    history: list[dict] = field(default_factory=list)
    """Validation losses: `step` and each loss by name."""
    best: tuple[float, int] | None = None
    """`(main validation loss, step)` so far."""
    finished: bool = False
    """Whether the stage's last step was taken, at the checkpoint written or read last."""
    parts: dict[str, Any] = field(default_factory=dict)
    """What else a checkpoint keeps, by name: `state()` gives it as JSON values, `restore(state)` takes it up."""

    def as_dict(self) -> dict:
        """The state as JSON values."""
        data = {"position": self.position, "data": self.data_digest}
        losses = {"history": list(self.history), "best": self.best}
        parts = {name: part.state() for name, part in self.parts.items()}
        return {"finished": self.finished, "lineage": self.lineage, **losses, **data, "parts": parts}

    def restore(self, step: int, saved: dict, where: str) -> None:
        """Takes up what `as_dict` gave at `step`.

        Raises:
            CheckpointError: It is of no run, of another lineage, or lacks a part that is registered.
        """
        if "position" not in saved:
            raise CheckpointError(f"{where} holds weights but no run to continue. Start from them with --init-from.")
        if saved["lineage"] != self.lineage:
            raise CheckpointError(
                f"{where} was trained on the codes of another DVAE than the one there is now, so training on would "
                "teach another language of codes. Train the stage anew with --reset-training, or bring the DVAE back."
            )
        missing = ", ".join(sorted(self.parts.keys() - saved["parts"].keys()))
        if missing:
            way_out = "Turn that off, or start anew with --reset-training."
            raise CheckpointError(f"{where} was written without {missing}. {way_out}")
        self.step, self.position, self.history = step, saved["position"], saved["history"]
        self.best = tuple(saved["best"]) if saved["best"] else None
        self.data_digest, self.finished = saved["data"], saved["finished"]
        for name, part in self.parts.items():
            part.restore(saved["parts"][name])


def data_digest(clips: Iterable) -> str:
    """Identifies a list of `Clip`s in their order, on which the order of batches rests."""
    hasher = new_hasher()
    for clip in clips:
        hasher.update(json.dumps([clip.id, clip.num_samples, clip.tokens]).encode())
    return hasher.hexdigest()


def versions() -> dict[str, str]:
    """Of what decides the last bits of a loss."""
    return {"myxtts": myxtts.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}


def differences(saved: dict, config: XTTSConfig) -> Iterator[str]:
    """Lines on what makes the losses from here on other than those of an unbroken run."""
    if changed := changed_settings(saved, config):
        yield f"Settings changed since the checkpoint: {'; '.join(changed.values())}"
    if saved["versions"] != versions():
        yield f"The checkpoint was written with {saved['versions']}; now it is {versions()}: last bits may differ."


def changed_settings(saved: dict, config: XTTSConfig) -> dict[str, str]:
    """The settings of the recipe that are other than in a checkpoint: `name before -> now` by dotted name."""
    before, now = (_flat(json.loads(json.dumps(one.to_dict()))) for one in (config_from_dict(saved["config"]), config))
    without_effect = run_settings(XTTSConfig)
    return {
        name: f"{name} {before.get(name)!r} -> {value!r}"
        for name, value in now.items()
        if value != before.get(name) and name not in without_effect and not name.startswith("sampling.")
    }


def _flat(values, where=""):
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{where}{name}.") if isinstance(value, dict) else {where + name: value}
    return flat
