"""Recordings of a speaker -> `Voice`."""

import logging
from collections import OrderedDict
from itertools import groupby
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.files import AudioError, read_audio
from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.audio.resample import resample
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.inference.voice import VOICE_SUFFIX, Voice  # noqa: F401  imported from here too
from myxtts.models.xtts import XTTS
from myxtts.storage.files import digest_bytes
from myxtts.storage.speakers import find_speaker, read_speaker

logger = logging.getLogger(__name__)

SHORTEST_CHUNK_SAMPLES = int(0.33 * MODEL_SAMPLE_RATE)
"""A shorter last piece of the reference is dropped when there are others. The released model drops it in any case, so
that less than this in all is no reference at all."""
Recording = str | Path | np.ndarray
"""An audio file, or `(S,)` float32 samples at 22 050 Hz."""


class VoiceEncoder:
    """Encodes recordings in chunks of the length used in training; `config` is read at each call.

    Args:
        remember: How many voices are kept, by the content of their recordings, and not made again. For weights that do
            not change.
        traced: As in `Synthesizer`.
    """

    def __init__(self, model: XTTS, config: XTTSConfig, remember: int = 0, traced: bool = True):
        self.model, self.config, self.remember = model, config, remember
        self._known: OrderedDict[str, Voice] = OrderedDict()
        to_mel, to_speaker_mel = MelSpectrogram(CONDITIONING_MEL), MelSpectrogram(SPEAKER_MEL)
        to_latents = lambda wav: model.gpt.mel_to_latents(model.normalize_mel(to_mel(wav)))
        to_speaker = lambda wav: model.speaker_encoder(to_speaker_mel(wav))
        # A graph takes little more than half of the time that single operations take.
        self._to_latents, self._to_speaker = to_latents, to_speaker
        if traced:
            graph = dict(input_signature=[tf.TensorSpec([None, None], tf.float32)], autograph=False)
            self._to_latents, self._to_speaker = (tf.function(way, **graph) for way in (to_latents, to_speaker))

    def __call__(self, references: Recording | list[Recording]) -> Voice:
        """Latents, and with a speaker encoder the speaker vector, of one or more recordings of a speaker.

        Raises:
            AudioError: A file cannot be used, or all of them together are shorter than `SHORTEST_CHUNK_SAMPLES`.
        """
        references = [references] if isinstance(references, Recording) else references
        recordings = [one if isinstance(one, np.ndarray) else _read(one) for one in references]
        self._check_length(references, sum(map(len, recordings)))
        content = digest_bytes(repr((len(recordings), self.config.sampling, self.config.data)).encode())
        content += "".join(digest_bytes(np.ascontiguousarray(one).tobytes()) for one in recordings)
        voice = self._known.pop(content, None) or self._encode(recordings)
        if self.remember:
            self._known[content] = voice  # the one used last is the last to go
            while len(self._known) > self.remember:
                self._known.popitem(last=False)
        return voice

    def _encode(self, recordings):
        # Pieces of one length go through the encoder together; the last may be shorter.
        batches = [np.stack(list(same)) for _, same in groupby(self.chunks(np.concatenate(recordings)), key=len)]
        latents = np.concatenate([self._to_latents(batch).numpy() for batch in batches], dtype=np.float32)
        latents = latents.mean(axis=0, keepdims=True)
        if "speaker" not in self.model.parts:
            return Voice(latents, None)
        limit = int(self.config.sampling.reference_seconds * MODEL_SAMPLE_RATE)
        heard = [resample(one[None, :limit], MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE) for one in recordings]
        return Voice(latents, np.mean([self._to_speaker(wav).numpy() for wav in heard], axis=0))

    def _check_length(self, references, num_samples):
        """Arrays come from a training set, whose clips were judged before: what is too short is said of files alone."""
        files = [one for one in references if not isinstance(one, np.ndarray)]
        seconds, least = num_samples / MODEL_SAMPLE_RATE, SHORTEST_CHUNK_SAMPLES / MODEL_SAMPLE_RATE
        if files and seconds < least:
            heard = f"a voice cannot be heard in {seconds:.2g} s; give {least:.2g} s or more, better several seconds."
            raise AudioError(files[0], "too short", heard)
        low, high = self.config.data.conditioning_seconds
        if files and seconds < low:
            usual = f"{low:.2g}" if low == high else f"{low:.2g} to {high:.2g}"
            known = f"the model was trained on {usual} s of a voice, and speaker similarity will suffer"
            logger.warning("The reference lasts %.2g s; %s. Give a longer recording.", seconds, known)

    def chunks(self, samples: np.ndarray) -> list[np.ndarray]:
        """Pieces of a recording `(S,)` for the conditioning encoder."""
        sampling, data = self.config.sampling, self.config.data
        length = int((sampling.reference_chunk_seconds or data.conditioning_seconds[1]) * MODEL_SAMPLE_RATE)
        samples = samples[: int(sampling.reference_seconds * MODEL_SAMPLE_RATE)]
        if data.conditioning_padding == "repeat":
            # As in training: every piece has the full length, filled by repetition.
            samples = np.resize(samples, max(1, round(len(samples) / length)) * length)
        pieces = [samples[start : start + length] for start in range(0, len(samples), length)]
        return [piece for piece in pieces if len(piece) >= SHORTEST_CHUNK_SAMPLES] or pieces[:1]


def stored_voice(folder: str | Path, name: str, listen: VoiceEncoder) -> Voice:
    """One of the voices that come with the model in `folder`, by name (`storage.speakers.read_speakers`).

    Raises:
        CheckpointError: There is no such voice.
    """
    clip = find_speaker(folder, name).clip
    return Voice(*(array.astype(np.float32) for array in read_speaker(folder, name))) if clip is None else listen(clip)


def _read(path: str | Path) -> np.ndarray:
    recording = read_audio(path, MODEL_SAMPLE_RATE)
    for warning in recording.warnings:
        logger.warning("%s: %s", path, warning)
    return recording.samples
