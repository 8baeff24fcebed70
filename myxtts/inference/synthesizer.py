"""Text and a reference recording -> speech: voice, codes, mel, waveform."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import tensorflow as tf

from myxtts.config.config import SamplingConfig, XTTSConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FLOOR, MEL_FRAMES_PER_CODE, NUM_MELS
from myxtts.devices.kinds import runs_on_cpu
from myxtts.inference.code_generator import CodeGenerator, mark_text
from myxtts.inference.loading import load_model
from myxtts.inference.text_front import SpeechError, TextFront  # noqa: F401  callers catch it
from myxtts.inference.voices import Voice, VoiceEncoder
from myxtts.inference.waveforms import GriffinLim, LatentDecoder, SpokenText
from myxtts.models.layers.convolution import set_fewer_products
from myxtts.models.xtts import XTTS
from myxtts.text.tokenizer import XTTSTokenizer

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
    """Speaks with a model that has a trained `gpt`, and a `decoder`, which then makes the sound, or a `dvae`.

    `voice` turns recordings into a `Voice`; `generate` draws the codes of text ids.
    """

    def __init__(self, model: XTTS, tokenizer: XTTSTokenizer, config: XTTSConfig):
        self.model, self.tokenizer, self.config = model, tokenizer, config
        if "decoder" in model.parts:
            for layer in (model.decoder, model.speaker_encoder):
                set_fewer_products(layer, runs_on_cpu())
        self.text_front = TextFront(tokenizer, config.model.max_text_tokens)
        self.voice = VoiceEncoder(model, config)
        self.generate = CodeGenerator(model.gpt, config.model)
        self.to_waveform = LatentDecoder(model) if "decoder" in model.parts else GriffinLim()
        codes = [tf.TensorSpec([None, None], tf.int32)]
        self._to_mel = tf.function(lambda codes: model.denormalize_mel(model.dvae.decode(codes)), input_signature=codes)

    @classmethod
    def load(cls, folder: str | Path, which: str = "best") -> Self:
        """Opens a run's folder, or what `myxtts convert` wrote; see `load_model`."""
        synthesizer = cls(*load_model(folder, which))
        if "decoder" not in synthesizer.model.parts:
            logger.info("No trained waveform decoder in %s: Griffin-Lim turns the mel into sound.", folder)
        return synthesizer

    def set_g2p(self, languages: Sequence[str]) -> None:
        """Writes text as it sounds in these languages alone; by default in those that the model was trained so with.

        Raises:
            SpeechError: There are no rules for the sounds of one of them.
        """
        try:
            self.tokenizer = self.tokenizer.with_g2p(languages)
        except ValueError as error:
            raise SpeechError(f"--g2p: {error}") from None
        self.text_front = TextFront(self.tokenizer, self.config.model.max_text_tokens)

    def speak(
        self, text: str, voice: Voice, language: str, sampling: SamplingConfig | None = None, seed: int = 0
    ) -> Speech:
        """Speaks one text of any length, sentence by sentence; raises `SpeechError` where the model cannot.

        Args:
            language: Code, such as `en` or `fa`.
            sampling: How codes are drawn; None takes the run's.
        """
        pieces = self.text_front.pieces(text, language)
        spoken: list[Speech] = []
        for start in range(0, len(pieces), SPOKEN_TOGETHER):
            some = pieces[start : start + SPOKEN_TOGETHER]
            spoken += self.speak_batch(some, [voice] * len(some), [language] * len(some), sampling, seed)
        sample_rate = self.to_waveform.sample_rate
        pause = np.zeros(int(PAUSE_SECONDS * sample_rate), np.float32)
        samples = np.concatenate([part for one in spoken for part in (one.samples, pause)][:-1])
        mel = np.concatenate([one.mel for one in spoken]) if "dvae" in self.model.parts else None
        codes = np.concatenate([one.codes for one in spoken])
        return Speech(samples, sample_rate, mel, codes, all(one.stopped for one in spoken))

    def speak_batch(
        self,
        texts: list[str],
        voices: list[Voice],
        languages: list[str],
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        max_codes: int = 0,
    ) -> list[Speech]:
        """Speaks several short texts at once, each into a `Speech` of its own; see `speak` and `generate`."""
        tokens = [self.text_front.ids(text, language) for text, language in zip(texts, languages)]
        latents = np.concatenate([voice.latents for voice in voices])
        rows = self.generate(tokens, latents, sampling or self.config.sampling, seed, max_codes)
        return [self._codes_to_speech(row, voice, ids) for row, voice, ids in zip(rows, voices, tokens)]

    def _codes_to_speech(self, row: np.ndarray, voice: Voice, ids: list[int]) -> Speech:
        stops, has_mel = np.flatnonzero(row == self.config.model.stop_audio_token), "dvae" in self.model.parts
        end = int(stops[0]) if len(stops) else len(row)
        if not len(stops):
            logger.warning("Speech did not end by itself within %d codes; it was cut there.", end)
        if end:
            mel = self._to_mel(row[None, :end])[0].numpy() if has_mel else None
            samples = self.to_waveform(SpokenText(mark_text(ids, self.config.model), voice, row[: end + 1], mel))
        else:
            logger.warning("Speech ended at once: the model has nothing to say. Try another seed.")
            mel = np.full((MEL_FRAMES_PER_CODE, NUM_MELS), np.log(MEL_FLOOR), np.float32) if has_mel else None
            samples = np.zeros(CODE_STRIDE_SAMPLES, np.float32)
        return Speech(samples, self.to_waveform.sample_rate, mel, row[:end], bool(len(stops)))
