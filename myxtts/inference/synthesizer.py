"""Text and a reference recording -> speech: voices, codes, mel, waveform."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from myxtts.audio.mel import DVAE_MEL
from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE
from myxtts.inference.code_generator import CodeGenerator, mark_text, until_stop
from myxtts.inference.loading import load_model
from myxtts.inference.text_front import SpeechError, TextFront
from myxtts.inference.voices import Recording, Voice, VoiceEncoder
from myxtts.inference.waveforms import CodesToMel, DecodedLatents, GriffinLim, SpokenCodes, WaveformMaker
from myxtts.models.xtts import XTTS
from myxtts.text.tokenizer import XTTSTokenizer

__all__ = ["Speech", "SpeechError", "Synthesizer", "Voice"]

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.25
"""Silence between the sentences of one text."""
SPOKEN_TOGETHER = 8
"""Pieces of a long text whose codes are drawn in one batch: more would take memory and wait for the longest."""


@dataclass(frozen=True)
class Speech:
    """One spoken text."""

    samples: np.ndarray
    """`(S,)` float32."""
    sample_rate: int
    """In Hz: 22 050 from Griffin-Lim, 24 000 from the waveform decoder."""
    mel: np.ndarray | None
    """`(T, num_mels)` log-mel that the codes stand for; None without a DVAE."""
    codes: np.ndarray
    """`(C,)` int32, without the stop code."""
    stopped: bool
    """False when generation ran into its limit instead of ending by itself."""


class Synthesizer:
    """Speaks with a trained model.

    Args:
        model: `XTTS` with `gpt` and at least one of `decoder`, which gives the sound where it is there, and `dvae`.
        tokenizer: Of the model.
        config: Of the run.
    """

    def __init__(self, model: XTTS, tokenizer: XTTSTokenizer, config: XTTSConfig):
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.text_front = TextFront(tokenizer, config.model)
        self.voice_encoder = VoiceEncoder(model, config)
        self.code_generator = CodeGenerator(model.gpt, config.model)
        self.codes_to_mel = CodesToMel(model) if "dvae" in model.parts else None
        self.to_waveform: WaveformMaker = (
            DecodedLatents(model, config.model) if "decoder" in model.parts else GriffinLim()
        )

    @classmethod
    def load(cls, folder: str | Path, which: str = "best") -> Self:
        """Opens a run's folder, or what `myxtts convert` wrote; see `load_model`."""
        return cls(*load_model(folder, which))

    def voice(self, references: Recording | Sequence[Recording]) -> Voice:
        """The voice of one or more recordings of a speaker: paths, or `(S,)` float32 arrays at 22 050 Hz."""
        return self.voice_encoder(references)

    def speak(
        self, text: str, voice: Voice, language: str, sampling: SamplingConfig | None = None, seed: int = 0
    ) -> Speech:
        """Speaks one text, sentence by sentence.

        Args:
            text: Any length.
            voice: See `voice`.
            language: Code, such as `en` or `fa`.
            sampling: None takes the run's.
            seed: Of the draws.

        Raises:
            SpeechError: The model cannot speak the text or the language.
        """
        pieces = self.text_front.pieces(text, language)
        spoken = []
        for start in range(0, len(pieces), SPOKEN_TOGETHER):
            some = pieces[start : start + SPOKEN_TOGETHER]
            spoken += self.speak_batch(some, [voice] * len(some), [language] * len(some), sampling, seed)
        sample_rate = self.to_waveform.sample_rate
        pause = np.zeros(int(PAUSE_SECONDS * sample_rate), np.float32)
        samples = np.concatenate([part for one in spoken for part in (one.samples, pause)][:-1])
        mel = np.concatenate([one.mel for one in spoken]) if self.codes_to_mel else None
        codes = np.concatenate([one.codes for one in spoken])
        return Speech(samples, sample_rate, mel, codes, all(one.stopped for one in spoken))

    def speak_batch(
        self,
        texts: Sequence[str],
        voices: Sequence[Voice],
        languages: Sequence[str],
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        max_codes: int | None = None,
    ) -> list[Speech]:
        """Speaks several short texts at once, each into a `Speech` of its own; see `speak` and `generate`."""
        tokens = [self.text_front.ids(text, language) for text, language in zip(texts, languages)]
        latents = np.concatenate([voice.latents for voice in voices])
        rows = self.generate(tokens, latents, sampling or self.config.sampling, seed, max_codes)
        return [self._codes_to_speech(row, voice, ids) for row, voice, ids in zip(rows, voices, tokens)]

    def generate(
        self,
        tokens: Sequence[Sequence[int]],
        latents: np.ndarray,
        sampling: SamplingConfig,
        seed: int = 0,
        max_codes: int | None = None,
    ) -> np.ndarray:
        """Codes of a batch of texts, `(B, C)` int32; see `CodeGenerator`."""
        return self.code_generator(tokens, latents, sampling, seed, max_codes)

    def _codes_to_speech(self, row: np.ndarray, voice: Voice, ids: Sequence[int]) -> Speech:
        codes, stopped = until_stop(row, self.config.model)
        if not stopped:
            logger.warning("Speech did not end by itself within %d codes; it was cut there.", len(codes))
        if not len(codes):
            logger.warning("Speech ended at once: the model has nothing to say. Try another seed.")
            mel = np.full((MEL_FRAMES_PER_CODE, DVAE_MEL.num_mels), np.log(DVAE_MEL.log_floor), np.float32)
            samples = np.zeros(CODE_STRIDE_SAMPLES, np.float32)
        else:
            mel = self.codes_to_mel(codes) if self.codes_to_mel else None
            samples = self.to_waveform(SpokenCodes(codes, stopped, mark_text(ids, self.config.model), voice, mel))
        return Speech(samples, self.to_waveform.sample_rate, mel if self.codes_to_mel else None, codes, stopped)
