"""Encodes recordings of a speaker to a `Voice`."""

import logging
import threading
from itertools import groupby
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError, check_level, read_audio
from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpectrogram, resample
from myxtts.config.checks import brief, require
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.inference.advancing import maybe_traced
from myxtts.inference.speech import Voice
from myxtts.models.xtts import XTTS
from myxtts.storage.files import digest_bytes
from myxtts.storage.speakers import find_speaker, read_speaker

logger = logging.getLogger(__name__)

SHORTEST_CHUNK_SAMPLES = int(0.33 * MODEL_SAMPLE_RATE)
"""Minimum total length of a voice's files, and minimum length of a chunk, in samples. XTTS v2 drops shorter chunks."""
Recording = str | Path | np.ndarray
"""Path of an audio file, or `(S,)` float32 samples at 22 050 Hz."""


class VoiceEncoder:
    """Encodes recordings of one speaker to a `Voice`.

    Args:
        config: Settings, which are read at each call and may change between calls.
        remember: Number of encoded voices to cache. Must be 0 if the weights may change.
        traced: Whether to trace the encoders to graphs.
    """

    def __init__(self, model: XTTS, config: XTTSConfig, remember: int = 0, traced: bool = True):
        self.model, self.config, self.remember = model, config, remember
        self._known: dict[str, Voice] = {}
        self._lock = threading.Lock()
        to_mel, to_speaker_mel = MelSpectrogram(CONDITIONING_MEL), MelSpectrogram(SPEAKER_MEL)
        to_latents = lambda wav: model.gpt.mel_to_latents(model.normalize_mel(to_mel(wav)))
        to_speaker = lambda wav: model.speaker_encoder(to_speaker_mel(wav))
        samples = tf.TensorSpec([None, None])
        self._to_latents, self._to_speaker = (maybe_traced(traced, one, samples) for one in (to_latents, to_speaker))

    def __call__(self, references: Recording | list[Recording]) -> Voice:
        """Encodes one or more recordings of a speaker.

        Raises `AudioError` if a file cannot be read, if a recording is silent or its peak is too high, or if the files
        together are shorter than `SHORTEST_CHUNK_SAMPLES`.
        """
        recordings, files, sampling = [], [], self.config.sampling
        for one in references if isinstance(references, list | tuple) and references else [references]:
            is_array = isinstance(one, np.ndarray)
            is_mono = is_array and one.ndim == 1 and one.dtype.kind == "f" and len(one) >= MODEL_SAMPLE_RATE // 10
            fits = is_mono and np.isfinite(one).all() if is_array else isinstance(one, Recording)
            require(fits, "voice", "a name, file, finite float samples of 0.1 s or more, or a list", brief(one))
            if is_array:
                check_level("The array", one)
            else:
                files.append(one)
                recording = read_audio(one)
                for warning in recording.warnings:
                    logger.warning("%s: %s", one, warning)
                one = recording.samples
            recordings.append(one)
        seconds, least = sum(map(len, recordings)) / MODEL_SAMPLE_RATE, SHORTEST_CHUNK_SAMPLES / MODEL_SAMPLE_RATE
        if files and seconds < least:
            raise AudioError(files[0], "too short", f"a voice needs {least:.2g} s or more. Received: {seconds:.2g} s.")
        limit = int((sampling.recording_seconds or sampling.reference_seconds) * MODEL_SAMPLE_RATE)
        recordings = [one[:limit] for one in recordings]
        used = np.concatenate(recordings)[: int(sampling.reference_seconds * MODEL_SAMPLE_RATE)]
        check_level(f"The used part of {files[0] if files else 'the array'}", used)
        if files and seconds < 0.95 * (low := self.config.data.conditioning_seconds[0]):
            logger.warning("The reference lasts %.2g s; training used %.2g s or more. Use a longer one.", seconds, low)
        content = digest_bytes(repr((len(recordings), sampling, self.config.data)).encode())
        content += "".join(digest_bytes(np.ascontiguousarray(one).tobytes()) for one in recordings)
        device = self.model.gpt.audio_head.bias.value.device  # server and page have threads without a device scope
        with self._lock, tf.device(device):  # so that no two threads encode the same recordings
            self._known[content] = voice = self._known.pop(content, None) or self._encode(recordings)
            while len(self._known) > self.remember:  # the least recently used voice is first
                del self._known[next(iter(self._known))]
        return voice

    def _encode(self, recordings):
        # Chunks of equal length are one batch; the last may be shorter.
        batches = [np.stack(list(same)) for _, same in groupby(self.chunks(np.concatenate(recordings)), key=len)]
        latents = np.concatenate([self._to_latents(batch).numpy() for batch in batches], dtype=np.float32)
        latents = latents.mean(axis=0, keepdims=True)
        if "speaker" not in self.model.parts:
            return Voice(latents, None)
        heard = [resample(one[None], MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE) for one in recordings]
        return Voice(latents, np.mean([self._to_speaker(wav).numpy() for wav in heard], axis=0))

    def chunks(self, samples: np.ndarray) -> list[np.ndarray]:
        """Splits the first `reference_seconds` of a recording `(S,)` into chunks for the conditioning encoder."""
        sampling, data = self.config.sampling, self.config.data
        length = int((sampling.reference_chunk_seconds or data.conditioning_seconds[1]) * MODEL_SAMPLE_RATE)
        samples = samples[: int(sampling.reference_seconds * MODEL_SAMPLE_RATE)]
        if data.conditioning_padding == "repeat":
            # As in training: all chunks have the full length, filled by repetition.
            samples = np.resize(samples, max(1, round(len(samples) / length)) * length)
        pieces = [samples[start : start + length] for start in range(0, len(samples), length)]
        return [piece for piece in pieces if len(piece) >= SHORTEST_CHUNK_SAMPLES] or pieces[:1]


def stored_voice(folder: str | Path, name: str, listen: VoiceEncoder) -> Voice:
    """Loads a voice that comes with the model in `folder`. If the voice is stored as a recording, `listen` encodes it.

    Raises `CheckpointError` if the model has no voice with this name.
    """
    clip = find_speaker(folder, name).clip
    return Voice(*(array.astype(np.float32) for array in read_speaker(folder, name))) if clip is None else listen(clip)
