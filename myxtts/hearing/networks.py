"""Pretrained networks for evaluation and segmentation: DNSMOS, speaker encoders, and Silero voice activity detection.

The weights are read from files that the user names, or from installed Python packages. Nothing is downloaded.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soxr
from scipy.special import expit

from myxtts.config.checks import UserError, needing, require
from myxtts.hearing.recognizers import SAMPLE_RATE, at_rate
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint

DNSMOS_HINT = 'pip install onnxruntime speechmos, or "myxtts[eval]"'
TO_SCORES = {
    "signal": np.poly1d([-0.08397278, 1.22083953, 0.0052439]),
    "background": np.poly1d([-0.13166888, 1.60915514, -0.39604546]),
    "overall": np.poly1d([-0.06766283, 1.11546468, 0.04602535]),
}
"""Polynomials, one per score, that map outputs of the network to the DNSMOS scale of 1 to 5, as in `speechmos`."""
ENCODER_HINT = "pip install --no-deps resemblyzer (its own code and torch are not needed), or --speaker-encoder FILE"
HOP_SAMPLES = 160
PART_FRAMES = 160
"""Length of the segments that the speaker encoder embeds, in frames: 1.6 s, as in its training."""
PART_STEP_FRAMES = 77
"""Frames from the start of one segment to the start of the next: 0.77 s, so that segments overlap by about half."""
_ROWS, _COLUMNS = 8, 128
"""Block sizes for splitting the LSTM's matrix products. On busy machines, one large product takes 80 times longer."""

Encoder = Callable[[np.ndarray, int], np.ndarray]
"""Speaker encoder: function of samples `(S,)` and their rate in Hz that returns a unit-length embedding `(E,)`."""
WINDOW_SAMPLES, CONTEXT_SAMPLES = 512, 64
"""Input sizes of Silero in 16 kHz samples: the window to classify, and the end of the previous window as context."""


def open_network(path: str | Path, flag: str):
    """Loads an ONNX model for use on one CPU thread. On failure, raises a `UserError` that names the option `flag`."""
    with needing(f"{flag} {path} needs onnxruntime. Install it with: pip install onnxruntime"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise UserError(f"{flag} {path} cannot be opened: {str(error).splitlines()[0]:.200}") from None


def import_librosa():
    """Imports librosa. Raises `UserError` if numba has no folder for librosa's compiled functions."""
    try:
        import librosa.sequence  # takes a second or two; `import librosa` alone defines no compiled functions
    except RuntimeError as error:
        raise UserError(f"Set NUMBA_CACHE_DIR to a private, writable folder: {error}.") from error
    return librosa


class DNSMOS:
    """DNSMOS P.835 (Reddy, Gopal and Cutler 2022): predicts how listeners would rate speech and background noise."""

    def __init__(self):
        (package,) = importlib.util.find_spec("speechmos").submodule_search_locations
        self._session = open_network(Path(package, "dnsmos_models/sig_bak_ovr.onnx"), "DNSMOS")

    @classmethod
    def load(cls) -> "DNSMOS | None":
        """Loads the network; returns None if `speechmos` or onnxruntime is not installed."""
        return cls() if all(map(importlib.util.find_spec, ("speechmos", "onnxruntime"))) else None

    def __call__(self, samples: np.ndarray, sample_rate: int) -> dict[str, float]:
        """Returns the scores `signal`, `background` and `overall` (1 to 5) of `(S,)` samples, averaged over windows of
        9 s that start every second, as in `speechmos` (for clips of up to 16 s). Clips under 9 s are repeated."""
        audio, size = at_rate(samples, sample_rate), int(9.01 * SAMPLE_RATE)
        audio = np.resize(audio, max(size, len(audio)))
        starts = range(0, max(1, len(audio) // SAMPLE_RATE - 9) * SAMPLE_RATE, SAMPLE_RATE)
        raw = [self._session.run(None, {"input_1": audio[None, start : start + size]})[0][0] for start in starts]
        return {name: float(TO_SCORES[name](each).mean()) for name, each in zip(TO_SCORES, np.transpose(raw))}


def find_encoder(path: str | None = None) -> Encoder | None:
    """Loads a speaker encoder from an `.onnx` file or Resemblyzer's `pretrained.pt`; raises `UserError` if that fails.

    If `path` is None, loads the file from the package `resemblyzer`, or returns None if this package is not installed.
    """
    if path is None:
        package = importlib.util.find_spec("resemblyzer")
        return package and DVector(Path(package.submodule_search_locations[0], "pretrained.pt"))
    require(Path(path).is_file(), "--speaker-encoder", "an existing file", path)
    return OnnxEncoder(path) if Path(path).suffix == ".onnx" else DVector(path)


class DVector:
    """NumPy version of Resemblyzer's speaker encoder, an LSTM. Averages the embeddings of segments of 1.6 s.

    Wan et al., "Generalized end-to-end loss for speaker verification" (2018). Unlike Resemblyzer, this class does not
    remove silence. Raises `UserError` if `path` is not Resemblyzer's `pretrained.pt`.
    """

    def __init__(self, path: str | Path):
        try:
            array = {name: np.array(x, np.float32) for name, x in read_torch_checkpoint(path)["model_state"].items()}
            self._layers = []  # weights `(4 H, in)` and `(4 H, H)`, bias `(4 H,)`; gates: input, forget, cell, output
            for i in range(3):
                bias = array[f"lstm.bias_ih_l{i}"] + array[f"lstm.bias_hh_l{i}"]
                self._layers.append((array[f"lstm.weight_ih_l{i}"], array[f"lstm.weight_hh_l{i}"], bias))
            self._projection = array["linear.weight"], array["linear.bias"]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(f"--speaker-encoder must be .onnx or Resemblyzer's pretrained.pt, not {path}.") from None

    def __call__(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        return unit(self.parts(samples, sample_rate).mean(axis=0))

    def parts(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """Returns unit-length embeddings `(N, E)` of overlapping segments: 1.6 s long, with a start every 0.77 s."""
        audio = at_rate(samples, sample_rate)
        level = 10 * np.log10(np.mean(audio.astype(np.float64) ** 2) + 1e-12)
        audio = audio * np.float32(10 ** (np.clip(-30 - level, 0, 60) / 20))  # amplify quiet recordings to -30 dB
        starts = np.arange(0, max(1, len(audio) // HOP_SAMPLES + 2 - PART_FRAMES + PART_STEP_FRAMES), PART_STEP_FRAMES)
        if len(starts) > 1 and len(audio) / HOP_SAMPLES - starts[-1] < 0.75 * PART_FRAMES:
            starts = starts[:-1]  # over a quarter of the last segment would be padding
        audio = np.pad(audio, (0, max(0, (starts[-1] + PART_FRAMES) * HOP_SAMPLES - len(audio))))
        options = dict(sr=SAMPLE_RATE, n_fft=400, hop_length=HOP_SAMPLES, n_mels=40, pad_mode="constant")
        mel = import_librosa().feature.melspectrogram(y=audio, **options).T
        return self.embed(np.stack([mel[start : start + PART_FRAMES] for start in starts]))

    def embed(self, mels: np.ndarray) -> np.ndarray:
        """Computes unit-length speaker embeddings `(B, E)` from mel power spectrograms `(B, F, 40)`."""
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
        return unit(np.maximum(x[:, -1] @ self._projection[0].T + self._projection[1], 0))


class OnnxEncoder:
    """Speaker encoder from an ONNX file that maps `(1, S)` float32 samples at 16 kHz to an embedding `(1, E)`."""

    def __init__(self, path: str | Path):
        self._session = open_network(path, "--speaker-encoder")
        inputs = self._session.get_inputs()
        is_open = [(one.type, len(one.shape)) for one in inputs] == [("tensor(float)", 2)]
        if not is_open or isinstance(inputs[0].shape[1], int):
            raise UserError(f"--speaker-encoder {path} must have one input, 16 kHz samples (1, S) float32 for any S.")
        self._name = inputs[0].name

    def parts(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        """Returns unit-length embeddings `(N, E)` of overlapping segments: 1.6 s long, with a start every 0.77 s."""
        size, step = (sample_rate * frames * HOP_SAMPLES // SAMPLE_RATE for frames in (PART_FRAMES, PART_STEP_FRAMES))
        starts = range(0, max(1, len(samples) - size + 1), step)
        return np.stack([self(samples[start : start + size], sample_rate) for start in starts])

    def __call__(self, samples: np.ndarray, sample_rate: int) -> np.ndarray:
        embedding = self._session.run(None, {self._name: at_rate(samples, sample_rate)[None]})[0]
        return unit(np.asarray(embedding, np.float32).reshape(-1))


def unit(x: np.ndarray) -> np.ndarray:
    """Scales vectors `(..., E)` to unit length."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


def find_silero() -> Path | None:
    """Returns the path of a Silero model in an installed package; None if the model or onnxruntime is missing."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    for package, pattern in (("faster_whisper", "assets/silero_vad*.onnx"), ("silero_vad", "data/silero_vad.onnx")):
        found = importlib.util.find_spec(package)
        files = sorted(Path(found.origin).parent.glob(pattern)) if found and found.origin else []
        if files:
            return files[-1]
    return None


class SileroModel:
    """Streaming voice activity detection with Silero (github.com/snakers4/silero-vad, MIT).

    Call `start`, then `add` for each block of samples, then `finish`. Raises `UserError` if onnxruntime is not
    installed, or if `path` is not a Silero model of version 5 or later.
    """

    def __init__(self, path: Path):
        self._session = open_network(path, "--vad-model")
        names = {one.name for one in self._session.get_inputs()}
        is_silero = names in ({"input", "h", "c"}, {"input", "state", "sr"})
        require(is_silero, "--vad-model", "a Silero model of version 5 or later", path)
        self._takes_rows = "h" in names

    def start(self, sample_rate: int) -> None:
        """Resets the state for a new recording with the given sample rate in Hz."""
        self._resampler = soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float32", quality="MQ")
        self._rest = np.zeros(CONTEXT_SAMPLES, np.float32)  # the context of the first window is silence
        self._probabilities = []
        if self._takes_rows:
            self._state = {name: np.zeros((1, 1, 128), np.float32) for name in "hc"}
        else:
            self._state = {"state": np.zeros((2, 1, 128), np.float32), "sr": np.array(SAMPLE_RATE, np.int64)}

    def add(self, block: np.ndarray) -> None:
        """Processes the next block of the recording, `(S,)` float32 samples."""
        self._run(self._resampler.resample_chunk(block))

    def finish(self) -> tuple[np.ndarray, float]:
        """Ends the recording. Returns the speech probability per window, `(N,)`, and the window length in seconds."""
        self._run(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        self._run(np.zeros(WINDOW_SAMPLES - 1, np.float32))  # pads the last window
        return np.concatenate(self._probabilities or [np.zeros(1)]), WINDOW_SAMPLES / SAMPLE_RATE

    def _run(self, samples):
        samples = np.concatenate([self._rest, samples])
        count = (len(samples) - CONTEXT_SAMPLES) // WINDOW_SAMPLES
        self._rest = samples[count * WINDOW_SAMPLES :]
        if not count:
            return
        rows = np.lib.stride_tricks.sliding_window_view(samples, CONTEXT_SAMPLES + WINDOW_SAMPLES)
        rows = np.ascontiguousarray(rows[::WINDOW_SAMPLES][:count])
        for windows in [rows] if self._takes_rows else rows[:, np.newaxis]:
            found, *states = self._session.run(None, {"input": windows, **self._state})
            self._state |= dict(zip(self._state, states))  # "sr" stays
            self._probabilities.append(found.reshape(-1))
