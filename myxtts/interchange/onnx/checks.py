"""Compares an exported model with the Keras model; `speak.py` runs the exported one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.inference.speech import Voice
from myxtts.inference.synthesizer import Synthesizer
from myxtts.interchange.onnx.builder import FLOAT32
from myxtts.interchange.onnx.speak import Cache, Speaker, gumbel_noise

LIMITS = {"float32": 1e-4, "int8": 0.1}
"""Largest allowed RMS difference from the Keras model's output, relative to its RMS, by number format."""
ROUNDING, ROUNDINGS = 1e-7, 5.0
"""Relative size of noise on the samples, and largest allowed difference of an encoder's output, as a multiple of that
noise's effect: encoders can amplify the last bit of a sample, which processors round differently."""
NUM_SENTENCES, MOST_CODES = 8, 48
"""Number of sentences for which the GPT is compared, and maximum codes per sentence."""
MOST_OTHER_CODES = 0.25
"""Largest allowed share of different codes; in float32, codes differ only where two of them have equal scores."""
LONG_TEXTS, LACKING = 2.2, 0.4
"""Length of the long text, relative to the longest text that the model speaks at once, and the largest share of its
audio that may be missing."""


class Finding(NamedTuple):
    """Result of one comparison: what was compared, the relative difference, and its limit."""

    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within the limit; false for NaN."""
        return bool(self.value <= self.limit)

    def __str__(self) -> str:
        return f"{self.what}: differs by {self.value:.2g} (at most {self.limit:.2g})"


def compare(folder: Path, synthesizer: Synthesizer, weights: str) -> Iterator[Finding]:
    """Compares encoders and decoder on noise, tokenizer and GPT on random sentences, and speech of a long text."""
    speaker, random = Speaker(folder), np.random.default_rng(0)
    yield from _other_graphs(speaker, synthesizer.model, random)
    yield from _sentences(speaker, synthesizer, random, LIMITS[weights])
    yield from _long_text(speaker, synthesizer, random)


def _difference(found, expected):
    """RMS of the difference, relative to the RMS of `expected`; infinite for different shapes."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        return float("inf")
    return float(np.sqrt(np.mean((found - expected) ** 2) / max(np.mean(expected**2), 1e-30)))


def _normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def _other_graphs(speaker, model, random):
    """Compares encoders and decoder on random input."""
    wav = 0.1 * _normal(random, 1, 44_100)
    noises = 1 + ROUNDING * np.random.default_rng(1).standard_normal((3, *wav.shape))
    to_latents = lambda mel: model.gpt.mel_to_latents(model.normalize_mel(mel))
    encoders = ("latents", CONDITIONING_MEL, to_latents), ("speaker", SPEAKER_MEL, model.speaker_encoder)
    for what, (output, spec, encode) in zip(("conditioning", "speaker"), encoders):
        to_mel = MelSpectrogram(spec)
        expected = encode(to_mel(wav))
        rounding = max(_difference(encode(to_mel(wav * noise.astype(np.float32))), expected) for noise in noises)
        found = speaker.run(what, wav=wav)[output]
        yield Finding(what, _difference(found, expected), max(LIMITS[FLOAT32], ROUNDINGS * rounding))
    config = model.config
    latents, vector = _normal(random, 1, 29, config.width), _normal(random, 1, config.speaker_width)
    vector /= config.speaker_width**0.5
    whole = _difference(speaker.sound(latents[0], vector[0]), model.decoder(latents, vector)[0])
    yield Finding("decoder, whole", whole, LIMITS[FLOAT32])
    window = dict(start=np.array([11]), end=np.array([60]))
    expected = model.decoder.frames_to_samples(model.decoder.latents_to_frames(latents)[:, 11:60], vector)
    found = speaker.run("decoder", latents=latents, speaker=vector, **window)["samples"]
    yield Finding("decoder, window", _difference(found, expected), LIMITS[FLOAT32])


def _sentences(speaker, synthesizer, random, limit):
    """Compares token ids, and GPT states and codes with teacher forcing; every second sentence is decoded greedily."""
    tokenizer, config, sampling = synthesizer.tokenizer, synthesizer.model.config, synthesizer.config.sampling
    voices = [latents[None] for latents, _ in speaker.voices.values()]
    voices = voices or [_normal(random, 1, config.num_latents, config.width)]
    reference, ids_differ, streams = Tokenizer.from_str(tokenizer.to_json()), [], []
    for number in range(NUM_SENTENCES):
        pieces = (tokenizer.decode([token]) for token in random.permutation(tokenizer.num_tokens))
        text = f"[{tokenizer.languages[0]}]" + "[SPACE]".join([one for one in pieces if one.isalpha()][:8])
        ids_differ.append((ids := speaker.vocabulary.raw_ids(text)) != reference.encode(text).ids)
        drawn = replace(sampling, temperature=0.0) if number % 2 else sampling
        latents = voices[number % len(voices)]
        streams.append(synthesizer.engine.open(ids[: config.max_text_tokens], latents, drawn, 0, number, MOST_CODES))
    yield Finding("text to ids", np.mean(ids_differ), 0.0)
    synthesizer.engine.finish(streams)
    states, expected, codes_differ, model = [], [], [], speaker.model
    for stream in streams:
        cache, ids = Cache(model), [model["start_text_token"], *stream.ids, model["stop_text_token"]]
        text, latents, code = np.array([ids], np.int32), stream.voice_latents, model["start_audio_token"]
        values = {name: getattr(stream.sampling, name) for name in speaker.config["sampling"]}
        seen, sampled = np.zeros((1, config.num_audio_tokens), bool), [model["stop_audio_token"]] * stream.stopped
        for number, expected_code in enumerate([*stream.codes, *sampled]):
            logits, hidden = cache.read(speaker.run, latents, text, code, number)
            noise = gumbel_noise(stream.seed, stream.sentence, number, logits.shape[1])
            arrays = dict(logits=logits, noise=noise, seen=seen, **speaker.sampling_values(**values))
            codes_differ.append(speaker.run("draw", **arrays)["code"][0] != expected_code)
            states.append(hidden)
            latents, text, code = latents[:, :0], text[:, :0], expected_code
            seen[0, code] = True
        expected.append(stream.latents()[: number + 1])
    yield Finding("gpt, states", _difference(np.concatenate(states), np.concatenate(expected)), limit)
    yield Finding("codes", float(np.mean(codes_differ)), MOST_OTHER_CODES)


def _long_text(speaker, synthesizer, random):
    """Compares the pieces of a text that is too long to speak at once, and the duration of its speech."""
    settings, config = speaker.config, synthesizer.model.config
    languages = [code for code in settings["languages"] if code not in settings["written_as_it_sounds"]]
    if not languages:
        return
    language = min(languages, key=lambda code: code != "en")
    tokens = map(synthesizer.tokenizer.decode, ([number] for number in range(synthesizer.tokenizer.num_tokens)))
    letters = sorted(set("".join(filter(str.isalpha, tokens))))
    letters = [letter for letter in letters if letter.isascii()] or letters
    longest, text = min(settings["languages"][language], settings["longest_texts"][language]), ""
    while len(text) < LONG_TEXTS * longest:
        text += " ".join("".join(random.choice(letters, 5)) for _ in range(3)) + ". "
    pieces = [piece.text for piece in synthesizer.text_front.pieces(text, language)]
    yield Finding("a long text, pieces", float(speaker.sentences(text, language) != pieces), 0.0)
    voice = next((one for name, one in speaker.voices.items() if speaker.voice_languages[name] == language), None)
    voice = voice or (_normal(random, config.num_latents, config.width), _normal(random, config.speaker_width))
    speaker.voices["checked"] = voice
    spoken = speaker.speak(text, "checked", language)
    stream = synthesizer.stream(text, Voice(*(part[None] for part in voice)), language, check=False)
    expected = sum(map(len, stream))
    yield Finding("a long text, missing audio", max(0.0, 1 - len(spoken) / expected), LACKING)
