"""Metrics of a run in `metrics.jsonl`, and pictures of losses, mel spectrograms and attention."""

import json
import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from myxtts.audio.mel import DVAE_MEL
from myxtts.config.checks import UserError
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.storage.files import append_line, write_whole
from myxtts.storage.run_folder import METRICS, read_metrics
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.watching.callbacks import Callback

logger = logging.getLogger(__name__)

CURVES = "curves.png"
SHOWN_HZ = (250, 500, 1000, 2000, 4000)
"""Ticks on the frequency axis of a mel spectrogram."""
FRAME_SECONDS = DVAE_MEL.hop_length / DVAE_MEL.sample_rate


class MetricsFile(Callback):
    """Appends the figures of each log line and validation; logs the first error of the disk."""

    def __init__(self, folder: str | Path):
        self.path: Path = Path(folder, METRICS)
        self._stage, self._failed = {}, False

    def on_start(self, start):
        self._stage = {"stage": start.stage, "total_steps": start.total_steps}

    def on_log(self, step, losses, timing):
        self._add("training", step, {**losses, **timing})

    def on_validation(self, step, losses, is_best):
        self._add("validation", step, {**losses, "is_best": is_best})

    def _add(self, kind, step, figures):
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        line = json.dumps({**self._stage, "step": step, "kind": kind, **finite}, default=float)
        try:
            append_line(self.path, line)
        except OSError as error:
            if not self._failed:
                logger.error("%s cannot be written to: %s. Training continues.", self.path, error.strerror)
            self._failed = True


def write_curves(folder: str | Path, history: dict[str, list[dict[str, float]]]) -> None:
    """Draws the main training and validation losses of each stage; logs errors. `history` is that of `Run.history`."""
    curves, metrics = {}, read_metrics(folder)
    for stage, validations in history.items():
        main, training = STAGE_CLASSES[stage].main_loss, {}
        for line in metrics:
            if line["stage"] == stage and line["kind"] == "training":
                while training and next(reversed(training)) >= line["step"]:  # the run went back to an earlier step
                    training.popitem()
                if line.get(main) is not None:
                    training[line["step"]] = line[main]
        validation = {one["step"]: one[main] for one in validations}
        shown = {f"training {main}": training, f"validation {main}": validation}
        if shown := {name: losses for name, losses in shown.items() if losses}:
            curves[stage] = shown
    if not curves:
        return
    figure = Figure(figsize=(8, 0.6 + 2.4 * len(curves)), dpi=80, layout="constrained")
    for axes, (stage, losses) in zip(figure.subplots(len(curves), 1, squeeze=False)[:, 0], curves.items()):
        for name, by_step in losses.items():
            marker = "o" if len(by_step) < 40 else None
            axes.plot(*zip(*by_step.items()), label=name, marker=marker, markersize=4)
        axes.set(xlabel="step", ylabel="loss", title=stage)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        _write(figure, Path(folder, CURVES))
    except (OSError, UserError) as error:
        logger.error("The loss curves could not be written to %s: %s", Path(folder, CURVES), error)


class Picture(NamedTuple):
    """A PNG file that notebooks display."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def draw_sounds(
    path: str | Path, title: str, mels: Mapping[str, np.ndarray], attention: np.ndarray | None = None
) -> None:
    """Writes a PNG of mel spectrograms on one time axis and color scale.

    Args:
        mels: Log-mels `(T, num_mels)` of `DVAE_MEL` by name, drawn one below the other.
        attention: Attention of codes to text tokens, `(C, L)`, drawn at the bottom.
    """
    rows = len(mels) + (attention is not None)
    figure = Figure(figsize=(8, 0.8 + 1.9 * rows), dpi=80, layout="constrained")
    all_axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    values = np.concatenate(list(mels.values()))
    look = dict(origin="lower", aspect="auto", interpolation="nearest")
    for axes, (name, mel) in zip(all_axes, mels.items()):
        extent = (0, len(mel) * FRAME_SECONDS, 0, mel.shape[1])
        image = axes.imshow(mel.T, extent=extent, vmin=values.min(), vmax=values.max(), **look)
        axes.set_yticks([DVAE_MEL.band_at(hz) for hz in SHOWN_HZ], [str(hz) for hz in SHOWN_HZ])
        axes.set(ylabel="Hz", xlim=(0, None))
        axes.set_title(name, fontsize="medium", loc="left", parse_math=False)
    figure.colorbar(image, ax=list(all_axes[: len(mels)]), label="log power")
    if attention is not None:
        axes, (codes, tokens) = all_axes[-1], attention.shape
        extent = (0, codes * MEL_FRAMES_PER_CODE * FRAME_SECONDS, 0, tokens)
        image = axes.imshow(attention.T, extent=extent, vmin=0, **look)
        axes.set(ylabel="text token")
        figure.colorbar(image, ax=axes, label="attention")
    all_axes[-1].set(xlabel="seconds", xlim=(0, max(map(len, mels.values())) * FRAME_SECONDS))
    figure.suptitle(title[:100], parse_math=False)
    _write(figure, path)


def _write(figure, path):
    with write_whole(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # scripts that the font lacks
        figure.savefig(temporary, format="png")
