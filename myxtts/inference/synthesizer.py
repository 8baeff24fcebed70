"""Text and a reference recording -> speech: latents, codes, mel, waveform."""

import logging
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.files import read_audio
from myxtts.audio.griffin_lim import log_mel_to_wav
from myxtts.audio.mel import CONDITIONING_MEL, DVAE_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.audio.resample import resample
from myxtts.config.checks import UserError
from myxtts.config.loading import config_from_dict
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, MODEL_SAMPLE_RATE
from myxtts.devices.kinds import runs_on_cpu
from myxtts.interchange.coqui_import import MEL_STATS
from myxtts.models.layers.convolution import set_fewer_products
from myxtts.models.sampling import EXCLUDED, sample
from myxtts.models.xtts import XTTS
from myxtts.planning.memory import count_dvae, count_gpt
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name, read_json
from myxtts.text.languages import get_language
from myxtts.text.sentences import split_text
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)

DECODER_SAMPLE_RATE = 24000
SPEAKER_SAMPLE_RATE = 16000
PAUSE_SECONDS = 0.25
"""Silence between the sentences of one text."""
SPOKEN_TOGETHER = 8
"""Pieces of a long text whose codes are drawn in one batch: more would take memory and wait for the longest."""
SHORTEST_CHUNK_SECONDS = 0.33
"""A shorter last piece of the reference is dropped when there are others."""


class SpeechError(UserError):
    """A text or a language that the model cannot speak; the message says why."""


@dataclass(frozen=True)
class Voice:
    """What the model knows of a speaker."""

    latents: np.ndarray
    """`(1, num_latents, width)` float32."""
    speaker: np.ndarray | None
    """`(1, speaker_width)` float32 for the waveform decoder, or None without one."""


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
        tokenizer: `XTTSTokenizer`.
        config: `XTTSConfig` of the run.
    """

    def __init__(self, model, tokenizer, config):
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self._conditioning_mel = MelSpectrogram(CONDITIONING_MEL)
        speaker_mel = MelSpectrogram(SPEAKER_MEL)
        if "decoder" in model.parts:
            for layer in (model.decoder, model.speaker_encoder):
                set_fewer_products(layer, runs_on_cpu())
        self._to_latents = tf.function(self._wav_to_latents, reduce_retracing=True)
        self._to_mel = tf.function(lambda codes: model.denormalize_mel(model.dvae.decode(codes)), reduce_retracing=True)
        # A graph takes little more than half of the time that single operations take.
        self._to_speaker = tf.function(
            lambda wav: model.speaker_encoder(speaker_mel(wav)),
            input_signature=[tf.TensorSpec([None, None], tf.float32)],
        )
        self._to_wav = tf.function(self._codes_to_wav, reduce_retracing=True)
        self._generators = {}

    @classmethod
    def load(cls, folder, which="best"):
        """Opens a run's folder, or what `myxtts convert` wrote.

        Args:
            folder: Holds `config.json`, `vocab.json` and a folder per trained part.
            which: `best` or `last` checkpoint of the GPT.

        Raises:
            CheckpointError: Something is missing or damaged; the message says what and how to get it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError(f"--checkpoint must be the folder of a training run. {folder} is not a folder.")
        config = config_from_dict(read_json(folder / "config.json"))
        stores = {part: CheckpointStore(folder / part) for part in ("dvae", "gpt", "decoder")}
        parts = [part for part in stores if stores[part].steps()]
        for part, instead in (("gpt", None), ("dvae", "decoder")):
            if part not in parts and instead not in parts:
                nor = f" and no waveform {instead}: its codes cannot become sound" if instead else " yet"
                raise CheckpointError(
                    f"{folder} has no trained {part}{nor}. Train it with: python train_main.py --stage "
                    f"{part} --checkpoint-dir {folder} --train-data …"
                )
        if "decoder" not in parts:
            logger.info("No trained waveform decoder in %s: the mel is turned into sound by Griffin-Lim.", folder)
        _check_claims(config.model, {part: stores[part] for part in parts})
        model = XTTS(config.model, parts=parts)
        for part in parts:
            steps = stores[part].steps()
            step = stores[part].best_step() if which == "best" and part == "gpt" else None
            step = step if step in steps else steps[-1]
            scale_here = part == "gpt" and "dvae" not in parts
            tensors, state = stores[part].read(step, ("model", MEL_STATS) if scale_here else ("model",))
            if scale_here:
                assign_by_name({MEL_STATS: model.mel_stats}, tensors[MEL_STATS], str(stores[part].path(step)))
            codes_from = state.get("lineage", {}).get("dvae")
            if "dvae" in parts and codes_from and codes_from != stores["dvae"].digest(stores["dvae"].steps()[-1]):
                raise CheckpointError(
                    f"The GPT in {folder} was trained on the codes of another DVAE than the one there. "
                    "Train the GPT anew with --stage gpt --reset-training."
                )
            assign_by_name(model.part_weights(part), tensors["model"], str(stores[part].path(step)))
        return cls(model, _read_vocabulary(folder / "vocab.json"), config)

    def voice(self, references):
        """Latents, and with a waveform decoder the speaker vector, of one or more recordings of a speaker.

        Args:
            references: Path or list of paths of recordings, or of `(S,)` float32 arrays at 22 050 Hz.
        """
        if isinstance(references, (str, Path, np.ndarray)):
            references = [references]
        recordings = []
        for reference in references:
            if not isinstance(reference, np.ndarray):
                recording = read_audio(reference, MODEL_SAMPLE_RATE)
                for warning in recording.warnings:
                    logger.warning("%s: %s", reference, warning)
                reference = recording.samples
            recordings.append(reference)
        chunks = self._reference_chunks(np.concatenate(recordings))
        # Pieces of one length go through the encoder together; the last may be shorter.
        batches = [list(same) for _, same in groupby(chunks, key=len)]
        latents = np.concatenate([self._to_latents(tf.constant(np.stack(batch))).numpy() for batch in batches])
        latents = latents.mean(axis=0, keepdims=True)
        speaker = None
        if "decoder" in self.model.parts:
            limit = int(self.config.sampling.reference_seconds * MODEL_SAMPLE_RATE)
            heard = [
                resample(recording[None, :limit], MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE) for recording in recordings
            ]
            speaker = np.mean([self._to_speaker(wav).numpy() for wav in heard], axis=0)
        return Voice(latents, speaker)

    def _reference_chunks(self, samples):
        sampling, data = self.config.sampling, self.config.data
        length = int((sampling.reference_chunk_seconds or data.conditioning_seconds[1]) * MODEL_SAMPLE_RATE)
        samples = samples[: int(sampling.reference_seconds * MODEL_SAMPLE_RATE)]
        if data.conditioning_padding == "repeat":
            # As in training: every piece has the full length, filled by repetition.
            samples = np.resize(samples, max(1, round(len(samples) / length)) * length)
        pieces = [samples[start : start + length] for start in range(0, len(samples), length)]
        shortest = int(SHORTEST_CHUNK_SECONDS * MODEL_SAMPLE_RATE)
        return [piece for piece in pieces if len(piece) >= shortest] or pieces[:1]

    def _wav_to_latents(self, wav):
        return self.model.gpt.mel_to_latents(self.model.normalize_mel(self._conditioning_mel(wav)))

    def speak(self, text, voice, language, sampling=None, seed=0):
        """Speaks one text, sentence by sentence.

        Args:
            text: Any length.
            voice: See `voice`.
            language: Code, such as `en` or `fa`.
            sampling: `SamplingConfig`; None takes the run's.
            seed: Of the draws.

        Returns:
            `Speech`.
        """
        pieces = self._pieces(text, language)
        spoken = []
        for start in range(0, len(pieces), SPOKEN_TOGETHER):
            some = pieces[start : start + SPOKEN_TOGETHER]
            spoken += self.speak_batch(some, [voice] * len(some), [language] * len(some), sampling, seed)
        pause = np.zeros(int(PAUSE_SECONDS * spoken[0].sample_rate), np.float32)
        samples = [piece for one in spoken for piece in (one.samples, pause)][:-1]
        mel = np.concatenate([one.mel for one in spoken]) if "dvae" in self.model.parts else None
        return Speech(
            np.concatenate(samples),
            spoken[0].sample_rate,
            mel,
            np.concatenate([one.codes for one in spoken]),
            all(one.stopped for one in spoken),
        )

    def speak_batch(self, texts, voices, languages, sampling=None, seed=0, max_codes=None):
        """Speaks several short texts at once; see `speak`.

        Returns:
            A `Speech` for each.
        """
        for text, language in zip(texts, languages):
            self._check(text, language, self.config.model.max_text_tokens)
        tokens = [
            [token for token in self.tokenizer.encode(text, language) if token != self.tokenizer.unk_id]
            for text, language in zip(texts, languages)
        ]
        latents = np.concatenate([voice.latents for voice in voices])
        codes = self.generate(tokens, latents, sampling or self.config.sampling, seed, max_codes)
        spoken = []
        for row, voice, ids in zip(codes, voices, tokens):
            ends = np.flatnonzero(row == self.config.model.stop_audio_token)
            length = int(ends[0]) if len(ends) else len(row)
            spoken.append(self._codes_to_speech(row[:length], bool(len(ends)), voice, ids))
        return spoken

    def _check(self, text, language, max_tokens=None):
        """Raises `SpeechError` for a text that cannot be spoken; warns of characters that are left out."""
        if reason := self.tokenizer.check(text, language, max_tokens, allow_unknown=True):
            raise SpeechError(f"{text!r} cannot be spoken by this model: {reason}.")
        if unknown := self.tokenizer.unknown_characters(text, language):
            logger.warning("%r: %s; they are not spoken.", text, unknown)

    def _pieces(self, text, language):
        """Whole sentences where they fit the model, else parts of sentences; those with nothing to say are left out."""
        self._check(text, language)
        limit = get_language(language).char_limit
        pieces = split_text(text, language, limit)
        while (
            limit > 1
            and max(len(self.tokenizer.encode(piece, language)) for piece in pieces) > self.config.model.max_text_tokens
        ):
            limit = limit * 3 // 4
            pieces = split_text(text, language, limit)
        return [piece for piece in pieces if self.tokenizer.check(piece, language, allow_unknown=True) is None]

    def _codes_to_speech(self, codes, stopped, voice, ids):
        if not stopped:
            logger.warning("Speech did not end by itself within %d codes; it was cut there.", len(codes))
        if not len(codes):
            logger.warning("Speech ended at once: the model has nothing to say. Try another seed.")
            mel = np.full((MEL_FRAMES_PER_CODE, DVAE_MEL.num_mels), np.log(DVAE_MEL.log_floor), np.float32)
            return Speech(
                np.zeros(CODE_STRIDE_SAMPLES, np.float32),
                self._sample_rate(),
                mel if "dvae" in self.model.parts else None,
                codes,
                stopped,
            )
        mel = self._to_mel(tf.constant(codes[None]))[0].numpy() if "dvae" in self.model.parts else None
        if "decoder" not in self.model.parts:
            return Speech(log_mel_to_wav(mel), self._sample_rate(), mel, codes, stopped)
        stop = [self.config.model.stop_audio_token] if stopped else []
        samples = self._to_wav(
            tf.constant(voice.latents),
            tf.constant(voice.speaker),
            tf.constant([self._text_inputs(ids)], tf.int32),
            tf.constant([[*codes, *stop]], tf.int32),
        )
        return Speech(samples[0].numpy(), self._sample_rate(), mel, codes, stopped)

    def _sample_rate(self):
        return DECODER_SAMPLE_RATE if "decoder" in self.model.parts else MODEL_SAMPLE_RATE

    def _codes_to_wav(self, latents, speaker, text_inputs, codes):
        hidden = self.model.gpt.codes_to_latents(latents, text_inputs, codes, self.config.model.start_audio_token)
        return self.model.decoder(hidden, speaker)

    def _text_inputs(self, ids):
        return [self.config.model.start_text_token, *ids, self.config.model.stop_text_token]

    def generate(self, tokens, latents, sampling, seed=0, max_codes=None):
        """Draws codes until every row has stopped.

        Args:
            tokens: List of B lists of text ids.
            latents: `(B, num_latents, width)`.
            sampling: `SamplingConfig`.
            seed: Of the draws.
            max_codes: Most codes per row; None takes the model's limit.

        Returns:
            `(B, C)` int32; a row's codes end at its first stop code.
        """
        inputs = [self._text_inputs(ids) for ids in tokens]
        length = max(len(row) for row in inputs)
        text = np.zeros((len(inputs), length), np.int32)
        for row, ids in enumerate(inputs):
            text[row, : len(ids)] = ids
        mask = np.arange(length)[None] < np.array([len(ids) for ids in inputs])[:, None]
        key = (max_codes or self.config.model.max_codes, repr(sampling))
        if key not in self._generators:
            self._generators[key] = make_generator(self.model.gpt, self.config.model, sampling, key[0])
        return self._generators[key](
            tf.constant(latents), tf.constant(text), tf.constant(mask), tf.constant(seed, tf.int32)
        ).numpy()


def _check_claims(model_config, stores):
    """Raises for a `config.json` whose model is far larger than the weights beside it: making it could take all memory."""
    counts = {"gpt": count_gpt(model_config), "dvae": sum(count_dvae(model_config))}
    for part in counts.keys() & stores.keys():
        step = stores[part].steps()[-1]
        stores[part].verify(step)  # a damaged file is not taken for a wrong config.json
        file = stores[part].path(step) / "model.safetensors"
        claimed, held = 4 * counts[part], file.stat().st_size
        if claimed > 4 * held + 2**20:  # weights may be kept in half precision
            raise CheckpointError(
                f"config.json describes a {part} of {claimed / 2**20:,.0f} MB, and {file} holds "
                f"{held / 2**20:,.0f} MB. They do not belong together: take the config.json that was "
                "written with these weights."
            )


def _read_vocabulary(path):
    if not path.is_file():
        raise CheckpointError(f"{path} is not there. Is this the folder of a training run or of `myxtts convert`?")
    try:
        return XTTSTokenizer.from_file(path)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def make_generator(gpt, model_config, sampling, max_codes):
    """A traced loop `(latents, text_inputs, text_mask, seed) -> codes (B, max_codes)`; see `Synthesizer.generate`."""
    stop = model_config.stop_audio_token
    # The start code stands for no sound, so it is never drawn.
    never = tf.range(model_config.num_audio_tokens) == model_config.start_audio_token

    def generate(latents, text_inputs, text_mask, seed):
        logits, state = gpt.prefill(latents, text_inputs, text_mask, model_config.start_audio_token, max_codes)
        num_rows, num_prompt = tf.shape(text_inputs)[0], tf.shape(state.key_mask)[1] - max_codes
        codes = tf.fill((max_codes, num_rows), stop)
        done = tf.zeros((num_rows,), tf.bool)
        seen = tf.zeros((num_rows, model_config.num_audio_tokens), tf.bool)

        def more(index, codes, done, seen, logits, state):
            return (index < max_codes) & ~tf.reduce_all(done)

        def draw(index, codes, done, seen, logits, state):
            logits = tf.where(never, EXCLUDED, logits)
            code = tf.where(done, stop, sample(logits, sampling, seen, tf.stack([seed, index])))
            codes = tf.tensor_scatter_nd_update(codes, [[index]], code[None])
            seen = seen | tf.cast(tf.one_hot(code, model_config.num_audio_tokens), tf.bool)
            logits, state = gpt.advance(code, index, num_prompt, state)
            return index + 1, codes, done | (code == stop), seen, logits, state

        drawn = tf.while_loop(more, draw, (tf.constant(0), codes, done, seen, logits, state))[1]
        return tf.transpose(drawn)

    return tf.function(generate, reduce_retracing=True)
