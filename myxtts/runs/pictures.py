"""Pictures of sound, of how speech follows its text, and of losses, as PNG files."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from myxtts.audio.mel import DVAE_MEL
from myxtts.config.rates import MEL_FRAMES_PER_CODE
from myxtts.storage.files import write_whole

SHOWN_HZ = (250, 500, 1000, 2000, 4000)
"""Marked on the axis of a mel spectrogram."""
CODE_SECONDS = MEL_FRAMES_PER_CODE * DVAE_MEL.hop_length / DVAE_MEL.sample_rate
Curves = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Losses by stage, by what they are called, by step."""


class Picture(NamedTuple):
    """A PNG file, which a notebook shows."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def draw_sounds(
    path: str | Path, title: str, mels: Mapping[str, np.ndarray], attention: np.ndarray | None = None
) -> None:
    """Writes a picture of log-mels `(T, num_mels)` of `DVAE_MEL`, one below the other, on one time axis and scale.

    Args:
        mels: By name.
        attention: Where codes look in their text, `(C, L)`; shown below the last one.
    """
    rows = len(mels) + (attention is not None)
    figure = Figure(figsize=(8, 0.8 + 1.9 * rows), dpi=80, layout="constrained")
    all_axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    values = np.concatenate(list(mels.values()))
    lowest, highest = values.min(), values.max()
    marks = [DVAE_MEL.band_at(hz) for hz in SHOWN_HZ]
    for axes, (name, mel) in zip(all_axes, mels.items()):
        seconds = len(mel) * DVAE_MEL.hop_length / DVAE_MEL.sample_rate
        look = dict(origin="lower", aspect="auto", interpolation="nearest", vmin=lowest, vmax=highest)
        image = axes.imshow(mel.T, extent=(0, seconds, 0, mel.shape[1]), **look)
        axes.set_yticks(marks, [str(hz) for hz in SHOWN_HZ])
        axes.set(ylabel="Hz", xlim=(0, None))
        axes.set_title(name, fontsize="medium", loc="left", parse_math=False)
    figure.colorbar(image, ax=list(all_axes[: len(mels)]), label="log power")
    if attention is not None:
        axes, (codes, tokens) = all_axes[-1], attention.shape
        look = dict(origin="lower", aspect="auto", interpolation="nearest", vmin=0)
        image = axes.imshow(attention.T, extent=(0, codes * CODE_SECONDS, 0, tokens), **look)
        axes.set(ylabel="text token")
        figure.colorbar(image, ax=axes, label="attention")
    longest = max(len(mel) for mel in mels.values()) * DVAE_MEL.hop_length / DVAE_MEL.sample_rate
    all_axes[-1].set(xlabel="seconds", xlim=(0, longest))
    figure.suptitle(title[:100], parse_math=False)  # a text may hold dollar signs
    _write(figure, path)


def draw_curves(path: str | Path, curves: Curves) -> None:
    """Writes a picture of losses, a field for each stage."""
    figure = Figure(figsize=(8, 0.6 + 2.4 * len(curves)), dpi=80, layout="constrained")
    for axes, (stage, losses) in zip(figure.subplots(len(curves), 1, squeeze=False)[:, 0], curves.items()):
        for name, by_step in losses.items():
            steps = sorted(by_step)
            look = dict(marker="o", markersize=4) if len(steps) < 40 else {}
            axes.plot(steps, [by_step[step] for step in steps], label=name, **look)
        axes.set(xlabel="step", ylabel="loss")
        axes.set_title(stage, parse_math=False)
        axes.grid(alpha=0.3)
        axes.legend()
    _write(figure, path)


def _write(figure, path):
    with write_whole(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a script that the font lacks
        figure.savefig(temporary, format="png")
