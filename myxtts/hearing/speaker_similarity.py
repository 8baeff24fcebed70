"""Whether two recordings are of one voice, by an encoder that no model here was trained with."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np

from myxtts.config.checks import UserError
from myxtts.hearing.dnsmos import open_network
from myxtts.hearing.recognizers import at_rate
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint

SAMPLE_RATE = 16000
PACKAGE, WEIGHTS = "resemblyzer", "pretrained.pt"
HOW_TO_GET = f"pip install --no-deps {PACKAGE} (its own code and torch are not needed), or --speaker-encoder FILE"
N_FFT, HOP_SAMPLES, NUM_MELS = 400, 160, 40
PART_FRAMES = 160
"""1.6 s, which the network was trained on."""
PART_STEP_FRAMES = 77
"""1.3 parts begin in a second."""
LEAST_COVERED = 0.75
"""Share of a last part that must be sound."""
TARGET_DB = -30.0
"""Quieter recordings are raised to this mean power."""
_ROWS, _COLUMNS = 8, 128
# Products of up to 2 ** 18 multiplications stay in one thread of OpenBLAS. The 480 small ones of a clip took 24 s
# instead of 0.3 on a machine one of whose two cores was busy: each of two threads waited for the other.

Encoder = Callable[[np.ndarray, int], np.ndarray]
"""Samples `(S,)` and their rate in Hz -> a vector of length 1."""


def find_encoder(path: str | None = None) -> Encoder | None:
    """The encoder in a file, `.onnx` or Resemblyzer's `pretrained.pt`, else the one in the installed package.

    None where neither is there.

    Raises:
        UserError: The file that was named is not there or is no such encoder.
    """
    if path is None:
        package = importlib.util.find_spec(PACKAGE)
        place = package and Path(package.submodule_search_locations[0], WEIGHTS)
        return DVector.read(place) if place and place.is_file() else None
    if not Path(path).is_file():
        raise UserError(f"--speaker-encoder must be a file. {path} is not there.")
    return OnnxEncoder(path) if Path(path).suffix == ".onnx" else DVector.read(path)


class DVector:
    """Resemblyzer's encoder, in NumPy: three LSTM layers over mel spectrograms of 1.6 s, whose vectors are averaged.

    From Wan et al., "Generalized end-to-end loss for speaker verification" (2018). Silence at the ends is left to the
    caller, and that within clips is heard.

    Args:
        layers: For each LSTM layer the weights of input and state, `(4 H, in)` and `(4 H, H)`, and the sum of their
            biases, `(4 H,)`; gates in PyTorch's order: input, forget, cell, output.
        projection: Weights `(E, H)` and bias `(E,)` of the last layer.
    """

    def __init__(self, layers: list[tuple[np.ndarray, np.ndarray, np.ndarray]], projection: tuple):
        import librosa  # takes a second or two to import

        self._layers, self._projection = layers, projection
        self._filters = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=N_FFT, n_mels=NUM_MELS).T

    @classmethod
    def read(cls, path: str | Path) -> "DVector":
        """Opens `pretrained.pt`."""
        try:
            state = read_torch_checkpoint(path)["model_state"]
            array = lambda name: np.array(state[name], np.float32)
            layers = [
                (array(f"lstm.weight_ih_l{i}"), array(f"lstm.weight_hh_l{i}"))
                + (array(f"lstm.bias_ih_l{i}") + array(f"lstm.bias_hh_l{i}"),)
                for i in range(3)
            ]
            return cls(layers, (array("linear.weight"), array("linear.bias")))
        except (KeyError, TypeError):
            rule = f"--speaker-encoder must be an .onnx file or the {WEIGHTS} of the package {PACKAGE}"
            raise UserError(f"{rule}. {path} holds something else.") from None

    def __call__(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """See `Encoder`."""
        return _unit(self.parts(samples, sample_rate).mean(axis=0))

    def parts(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """A vector of length 1 for each 1.6 s, every 0.77 s, `(N, E)`."""
        sound = at_rate(samples, sample_rate, SAMPLE_RATE)
        below = TARGET_DB - 10 * np.log10(np.mean(sound.astype(np.float64) ** 2) + 1e-12)
        sound = sound * np.float32(10 ** (np.clip(below, 0, 60) / 20))
        starts = np.arange(0, max(1, -(-(len(sound) + 1) // HOP_SAMPLES) - PART_FRAMES + PART_STEP_FRAMES + 1))
        starts = starts[::PART_STEP_FRAMES]
        covered = (len(sound) / HOP_SAMPLES - starts[-1]) / PART_FRAMES
        starts = starts[:-1] if covered < LEAST_COVERED and len(starts) > 1 else starts
        mel = self._mel(np.pad(sound, (0, max(0, (starts[-1] + PART_FRAMES) * HOP_SAMPLES - len(sound)))))
        return self.embed(np.stack([mel[start : start + PART_FRAMES] for start in starts]))

    def embed(self, mels: np.ndarray) -> np.ndarray:
        """Vectors of length 1 `(B, E)` of mel power spectrograms `(B, F, 40)`."""
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
                memory = _sigmoid(forget) * memory + _sigmoid(enter) * np.tanh(new)
                state = _sigmoid(out) * np.tanh(memory)
                states.append(state)
            x = np.stack(states, axis=1)
        weights, bias = self._projection
        return _unit(np.maximum(x[:, -1] @ weights.T + bias, 0))

    def _mel(self, sound):
        padded = np.pad(sound, N_FFT // 2)
        frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP_SAMPLES]
        window = np.hanning(N_FFT + 1)[:-1].astype(np.float32)
        return (np.abs(np.fft.rfft(frames * window)) ** 2).astype(np.float32) @ self._filters


class OnnxEncoder:
    """Any network that turns 16 kHz samples `(1, S)` float32 into a vector `(1, E)`."""

    def __init__(self, path: str | Path):
        try:
            self._session = open_network(Path(path))
        except ModuleNotFoundError:
            raise UserError('An .onnx file needs onnxruntime. Install it with: pip install "myxtts[eval]"') from None
        except Exception as error:  # onnxruntime's errors have no common class
            raise UserError(f"--speaker-encoder {path} cannot be opened: {str(error).splitlines()[0]:.200}") from None
        found = [(one.type, one.shape) for one in self._session.get_inputs()]
        if len(found) != 1 or found[0][0] != "tensor(float)" or len(found[0][1]) != 2:
            rule = "--speaker-encoder must be a network that takes samples at 16 kHz, (1, S) float32, alone"
            raise UserError(f"{rule}. {path} takes: {found}.")
        self._name = self._session.get_inputs()[0].name

    def parts(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """A vector of length 1 for each 1.6 s, every 0.77 s, `(N, E)`."""
        size, step = (sample_rate * frames * HOP_SAMPLES // SAMPLE_RATE for frames in (PART_FRAMES, PART_STEP_FRAMES))
        starts = range(0, max(1, len(samples) - size + 1), step)
        return np.stack([self(samples[start : start + size], sample_rate) for start in starts])

    def __call__(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """See `Encoder`."""
        heard = at_rate(samples, sample_rate, SAMPLE_RATE)
        return _unit(np.asarray(self._session.run(None, {self._name: heard[None]})[0], np.float32).reshape(-1))


def _sigmoid(x):
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)
