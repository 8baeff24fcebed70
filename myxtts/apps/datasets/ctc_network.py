"""A user's CTC network as an ONNX file: probabilities of letters over a recording of any length."""

import json
from pathlib import Path

import numpy as np
import soxr

from myxtts.apps.datasets.decoding import LongAudio
from myxtts.config.checks import UserError
from myxtts.hearing.dnsmos import open_network

SAMPLE_RATE = 16_000
VOCABULARY = "vocab.json"
_BLANKS = ("<pad>", "[PAD]", "<blank>", "<blk>", "<eps>", "_")
_SEPARATORS = ("|", " ", "▁")
_CORE_SECONDS, _CONTEXT_SECONDS = 20, 1


class CtcNetwork:
    """A network that takes 16 kHz samples, `(1, S)` float32, and gives `(1, T, V)` scores of letters, as Wav2Vec2 does.

    Beside it lies `vocab.json`, from letters to places among V, with the blank as `<pad>` or `<blank>`.

    Raises:
        UserError: onnxruntime is missing, or one of the files cannot be used.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise UserError(f"--aligner must be an .onnx file or a recognizer. {path} is not there.")
        self.vocabulary = _read_vocabulary(path.parent / VOCABULARY)
        self.blank = next((self.vocabulary[one] for one in _BLANKS if one in self.vocabulary), None)
        if self.blank is None:
            raise UserError(f"{path.parent / VOCABULARY} must hold a blank, one of {' '.join(_BLANKS)}.")
        self._separator = next((self.vocabulary[one] for one in _SEPARATORS if one in self.vocabulary), None)
        try:
            self._session = open_network(path)
        except ModuleNotFoundError:
            raise UserError('--aligner FILE.onnx needs onnxruntime: pip install "myxtts[recordings]".') from None
        except Exception as error:  # onnxruntime's errors have no common class
            raise UserError(f"--aligner: {path} cannot be opened: {str(error).splitlines()[0][:200]}.") from None
        takes = [(one.type, len(one.shape)) for one in self._session.get_inputs()]
        if takes != [("tensor(float)", 2)]:
            raise UserError(f"--aligner must take 16 kHz samples, (1, S) float32, alone. {path} takes: {takes}.")
        self._name = self._session.get_inputs()[0].name

    def ids(self, text: str) -> list[int]:
        """The letters of a normalized text that the network knows, as they are, lower or upper."""
        found: list[int] = []
        for letter in text.replace(" ", "|"):
            known = (self.vocabulary.get(one) for one in (letter, letter.lower(), letter.upper()))
            place = self._separator if letter == "|" else next((one for one in known if one is not None), None)
            if place is not None:
                found.append(place)
        return found

    def hear(self, audio: LongAudio, channel: int | None) -> tuple[np.ndarray, float]:
        """Log-probabilities `(T, V)` float32 over a whole recording, and the seconds of a frame."""
        parts, seconds = [], 0.0
        for left, core, right in _windows(audio, channel):
            samples = np.concatenate([left, core, right])
            scores = self._session.run(None, {self._name: normalized_samples(samples)[None]})[0][0]
            if scores.ndim != 2 or scores.shape[1] <= max(self.vocabulary.values()):
                raise UserError(f"--aligner must give (1, T, V) scores of V letters. It gives {(1, *scores.shape)}.")
            per_sample = len(scores) / len(samples)
            scores = scores[round(len(left) * per_sample) : round((len(left) + len(core)) * per_sample)]
            parts.append(log_softmax(scores).astype(np.float32))
            seconds += len(core) / SAMPLE_RATE
        log_probabilities = np.concatenate(parts)
        return log_probabilities, seconds / len(log_probabilities)


def normalized_samples(samples: np.ndarray) -> np.ndarray:
    """Samples `(S,)` with mean 0 and variance 1, as Wav2Vec2 takes them, float32."""
    return ((samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)).astype(np.float32)


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Log-probabilities of scores `(T, V)`."""
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def _windows(audio, channel):
    """Samples at 16 kHz as (before, core, after), so that no network hears more than half a minute."""
    resampler = soxr.ResampleStream(audio.sample_rate, SAMPLE_RATE, 1, dtype="float32")
    core, context = _CORE_SECONDS * SAMPLE_RATE, _CONTEXT_SECONDS * SAMPLE_RATE
    left, held = np.zeros(0, np.float32), np.zeros(0, np.float32)
    for block in audio.blocks(channel):
        held = np.concatenate([held, resampler.resample_chunk(block)])
        while len(held) >= core + context:
            yield left, held[:core], held[core : core + context]
            left, held = held[core - context : core], held[core:]
    held = np.concatenate([held, resampler.resample_chunk(np.zeros(0, np.float32), last=True)])
    if len(held):
        yield left, held, np.zeros(0, np.float32)


def _read_vocabulary(path):
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"--aligner: {path} is not there. It must hold the network's letters and their places."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"--aligner: {path} cannot be read: {str(error)[:200]}.") from None
    if not isinstance(found, dict) or not all(isinstance(one, int) and one >= 0 for one in found.values()) or not found:
        raise UserError(f'--aligner: {path} must map letters to places, as {{"<pad>": 0, "a": 1}}.')
    return found
