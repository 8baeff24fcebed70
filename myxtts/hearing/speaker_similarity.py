"""Speaker embeddings of recordings by an encoder that is independent of all models here."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import expit

from myxtts.config.checks import UserError
from myxtts.hearing.dnsmos import open_network
from myxtts.hearing.recognizers import SAMPLE_RATE, at_rate
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint

HOW_TO_GET = "pip install --no-deps resemblyzer (its own code and torch are not needed), or --speaker-encoder FILE"
HOP_SAMPLES = 160
PART_FRAMES = 160
"""Length of the training examples of the network, 1.6 s."""
PART_STEP_FRAMES = 77
"""Distance between parts, 1.3 per second."""
_ROWS, _COLUMNS = 8, 128
"""Sizes of matrix products that OpenBLAS computes on one thread; two were 80 times slower on a busy machine."""

Encoder = Callable[[np.ndarray, int], np.ndarray]
"""Function from samples `(S,)` and their rate in Hz to a vector of length 1."""


def find_encoder(path: str | None = None) -> Encoder | None:
    """Opens the encoder of a file, `.onnx` or Resemblyzer's `pretrained.pt`, or by default of the installed package.

    Returns None if there is neither.

    Raises:
        UserError: The file does not exist or is not an encoder.
    """
    if path is None:
        package = importlib.util.find_spec("resemblyzer")
        return package and DVector.read(Path(package.submodule_search_locations[0], "pretrained.pt"))
    if not Path(path).is_file():
        raise UserError(f"--speaker-encoder must be a file. {path} does not exist.")
    return OnnxEncoder(path) if Path(path).suffix == ".onnx" else DVector.read(path)


class DVector:
    """Resemblyzer's encoder in NumPy: three LSTM layers over mel spectrograms of 1.6 s, whose vectors are averaged.

    From Wan et al., "Generalized end-to-end loss for speaker verification" (2018). Silence is not removed.

    Args:
        layers: Input weights `(4 H, in)`, recurrent weights `(4 H, H)` and summed biases `(4 H,)` of each LSTM layer;
            gates in PyTorch's order: input, forget, cell, output.
        projection: Weights `(E, H)` and bias `(E,)` of the last layer.
    """

    def __init__(self, layers: list[tuple[np.ndarray, np.ndarray, np.ndarray]], projection: tuple):
        self._layers, self._projection = layers, projection

    @classmethod
    def read(cls, path: str | Path) -> "DVector":
        """Opens `pretrained.pt`."""
        try:
            state = read_torch_checkpoint(path)["model_state"]
            array = {name: np.array(values, np.float32) for name, values in state.items()}
            layers = []
            for i in range(3):
                bias = array[f"lstm.bias_ih_l{i}"] + array[f"lstm.bias_hh_l{i}"]
                layers.append((array[f"lstm.weight_ih_l{i}"], array[f"lstm.weight_hh_l{i}"], bias))
            return cls(layers, (array["linear.weight"], array["linear.bias"]))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(
                f"--speaker-encoder must be an .onnx file or Resemblyzer's pretrained.pt. Received: {path}."
            ) from None

    def __call__(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        return _unit(self.parts(samples, sample_rate).mean(axis=0))

    def parts(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """Returns vectors of length 1 for parts of 1.6 s, every 0.77 s, `(N, E)`."""
        import librosa  # takes a second or two

        sound = at_rate(samples, sample_rate)
        level = 10 * np.log10(np.mean(sound.astype(np.float64) ** 2) + 1e-12)
        sound = sound * np.float32(10 ** (np.clip(-30 - level, 0, 60) / 20))  # quiet recordings are raised to -30 dB
        end = max(1, len(sound) // HOP_SAMPLES + 2 - PART_FRAMES + PART_STEP_FRAMES)
        starts = np.arange(0, end, PART_STEP_FRAMES)
        if len(starts) > 1 and len(sound) / HOP_SAMPLES - starts[-1] < 0.75 * PART_FRAMES:
            starts = starts[:-1]  # too much of the last part would be padding
        sound = np.pad(sound, (0, max(0, (starts[-1] + PART_FRAMES) * HOP_SAMPLES - len(sound))))
        options = dict(sr=SAMPLE_RATE, n_fft=400, hop_length=HOP_SAMPLES, n_mels=40, pad_mode="constant")
        mel = librosa.feature.melspectrogram(y=sound, **options).T
        return self.embed(np.stack([mel[start : start + PART_FRAMES] for start in starts]))

    def embed(self, mels: np.ndarray) -> np.ndarray:
        """Returns vectors of length 1 `(B, E)` for mel power spectrograms `(B, F, 40)`."""
        if len(mels) > _ROWS:
            return np.concatenate([self.embed(mels[start : start + _ROWS]) for start in range(0, len(mels), _ROWS)])
        x = mels.astype(np.float32)
        for to_gates, state_to_gates, bias in self._layers:
            gates_of_input = x @ to_gates.T + bias
            state = memory = np.zeros((len(x), state_to_gates.shape[1]), np.float32)
            to_some = [state_to_gates[start : start + _COLUMNS].T for start in range(0, len(bias), _COLUMNS)]
            states = []
            for frame in range(x.shape[1]):
                gates = gates_of_input[:, frame] + np.concatenate([state @ some for some in to_some], axis=1)
                enter, forget, new, out = np.split(gates, 4, axis=1)
                memory = expit(forget) * memory + expit(enter) * np.tanh(new)
                state = expit(out) * np.tanh(memory)
                states.append(state)
            x = np.stack(states, axis=1)
        weights, bias = self._projection
        return _unit(np.maximum(x[:, -1] @ weights.T + bias, 0))


class OnnxEncoder:
    """ONNX network from 16 kHz samples `(1, S)` float32 to a vector `(1, E)`."""

    def __init__(self, path: str | Path):
        self._session = open_network(path, "--speaker-encoder")
        inputs = self._session.get_inputs()
        if [(one.type, len(one.shape)) for one in inputs] != [("tensor(float)", 2)]:
            raise UserError(f"--speaker-encoder {path} must have one input, 16 kHz samples (1, S) float32.")
        self._name = inputs[0].name

    def parts(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """Returns vectors of length 1 for parts of 1.6 s, every 0.77 s, `(N, E)`."""
        size, step = (sample_rate * frames * HOP_SAMPLES // SAMPLE_RATE for frames in (PART_FRAMES, PART_STEP_FRAMES))
        starts = range(0, max(1, len(samples) - size + 1), step)
        return np.stack([self(samples[start : start + size], sample_rate) for start in starts])

    def __call__(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        embedding = self._session.run(None, {self._name: at_rate(samples, sample_rate)[None]})[0]
        return _unit(np.asarray(embedding, np.float32).reshape(-1))


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)
