"""Conditioning of a model on a speaker, and its file. Imports neither TensorFlow nor Keras."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from myxtts.config.checks import UserError, require
from myxtts.storage.checkpoint import read_tensors, tensor_names, write_tensors
from myxtts.storage.files import CheckpointError

VOICE_SUFFIX = ".voice"
"""Suffix of the file of a `Voice`."""


@dataclass(frozen=True, eq=False)
class Voice:
    """Conditioning of a model on a speaker, made by that model's own encoders."""

    latents: np.ndarray
    """`(1, num_latents, width)` float32."""
    speaker: np.ndarray | None
    """`(1, speaker_width)` float32 for the waveform decoder; None without a speaker encoder."""

    def save(self, path: str | Path) -> None:
        """Writes a file that `load` reads."""
        arrays = {"latents": self.latents} | ({} if self.speaker is None else {"speaker": self.speaker})
        write_tensors(path, {name: array.shape for name, array in arrays.items()}, arrays.values())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file of `save`.

        Raises:
            CheckpointError: The file is missing, damaged or not a voice.
        """
        names = tensor_names(path)
        if not {"latents"} <= set(names) <= {"latents", "speaker"}:
            raise CheckpointError(f"{path} is not a voice. Write one with `Voice.save`.")
        arrays = {name: array.astype(np.float32) for name, array in zip(names, read_tensors(path, names))}
        return cls(arrays["latents"], arrays.get("speaker"))

    @classmethod
    def blend(cls, voices: Sequence[Self], weights: Sequence[float] | None = None) -> Self:
        """Averages voices of one model; `weights` need not sum to 1, None weighs them equally."""
        shares = np.ones(len(voices)) if weights is None else np.array(weights, np.float64)
        fits = len(voices) == len(shares) > 0 and shares.min() >= 0 < shares.sum()
        require(fits, "weights", "at least 0 for each voice, and not all 0", f"{weights} for {len(voices)} voices")
        if len({(voice.latents.shape, voice.speaker is None) for voice in voices}) > 1:
            raise UserError("The voices of a blend must be of one model. These have different shapes.")
        mean = lambda arrays: np.average(list(arrays), axis=0, weights=shares).astype(np.float32)
        speaker = None if voices[0].speaker is None else mean(voice.speaker for voice in voices)
        return cls(mean(voice.latents for voice in voices), speaker)
