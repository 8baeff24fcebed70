"""What was exported, in its own engine, against the Keras model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.inference.code_engine import CodeStream
from myxtts.inference.synthesizer import Synthesizer
from myxtts.interchange.onnx.builder import FLOAT32
from myxtts.interchange.onnx.speak import Cache, Speaker, gumbel_noise

LIMITS = {"float32": 1e-4, "int8": 0.1}
"""Largest difference of a graph, as a share of what the model gives, both as root mean squares."""
ROUNDING, ROUNDINGS = 1e-7, 5.0
"""A graph of a recording may differ by so many times what noise of this share of its samples changes in the model: an
encoder can make more of the last bit of a sample than the limit above, and processors round that differently."""
NUM_SENTENCES, MOST_CODES = 8, 48
"""Sentences whose codes are compared, and codes of each."""
LEAST_SAME = 0.75
"""Share of draws that must be the same. With 32-bit weights it is all of them, but for ties of rounding."""


@dataclass(frozen=True)
class Finding:
    """One comparison."""

    what: str
    value: float
    limit: float
    is_share: bool = False
    """Whether `value` is a share that is the same, and `limit` its least; else a difference, and its most."""

    @property
    def holds(self) -> bool:
        """Whether it is as it should be; NaN is not."""
        return bool(self.value >= self.limit if self.is_share else self.value <= self.limit)

    def __str__(self) -> str:
        if self.is_share:
            return f"{self.what}: {100 * self.value:.1f} % the same (at least {100 * self.limit:.0f} %)"
        return f"{self.what}: differs by {self.value:.1e} (at most {self.limit:.0e})"


def compare(folder: Path, synthesizer: Synthesizer, weights: str) -> Iterator[Finding]:
    """Each graph on random input, the tokenizer, and the codes of sentences, greedy and sampled in turns."""
    speaker = Speaker(folder)
    random = np.random.default_rng(0)
    wav = (0.1 * random.standard_normal((1, 44_100))).astype(np.float32)
    for what, found, expected in _graphs(speaker, synthesizer.model, random, wav):
        limit = LIMITS[weights] if what.startswith("gpt") else LIMITS[FLOAT32]
        if what in HEARD:
            limit = max(limit, ROUNDINGS * _sensitivity(lambda wav: HEARD[what](synthesizer.model, wav), wav))
        yield Finding(what, _difference(found, np.asarray(expected)), limit)
    texts = [_text(synthesizer.tokenizer, random) for _ in range(NUM_SENTENCES)]
    reference = Tokenizer.from_str(synthesizer.tokenizer.to_json())
    ids = [speaker.vocabulary.raw_ids(text) for text in texts]
    same = np.mean([one == reference.encode(text).ids for one, text in zip(ids, texts)])
    yield Finding("text to ids", float(same), 1.0, is_share=True)
    yield Finding("codes drawn", _same_draws(speaker, synthesizer, ids, random), LEAST_SAME, is_share=True)


def _difference(found, expected):
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if found.shape != expected.shape:
        return float("inf")
    return float(np.sqrt(np.mean((found - expected) ** 2) / max(np.mean(expected**2), 1e-30)))


def _graphs(speaker, model, random, wav):
    """`(name, what the graph gives, what the model gives)`."""
    config, graphs = model.config, speaker.graphs
    yield "conditioning", graphs("conditioning", wav=wav)["latents"], _conditioning(model, wav)
    yield "speaker", graphs("speaker", wav=wav)["speaker"], _speaker(model, wav)
    latents = random.standard_normal((1, 29, config.width)).astype(np.float32)
    vector = random.standard_normal((1, config.speaker_width)).astype(np.float32) / config.speaker_width**0.5
    yield "decoder, whole", speaker.sound(latents[0], vector[0]), model.decoder(latents, vector)[0]
    window = dict(start=np.array([11]), end=np.array([60]))
    frames = model.decoder.latents_to_frames(latents)[:, 11:60]
    found = graphs("decoder", latents=latents, speaker=vector, **window)["samples"]
    yield "decoder, window", found, model.decoder.frames_to_samples(frames, vector)
    yield from _reading(speaker, model, random)


def _conditioning(model, wav):
    return model.gpt.mel_to_latents(model.normalize_mel(MelSpectrogram(CONDITIONING_MEL)(wav)))


def _speaker(model, wav):
    return model.speaker_encoder(MelSpectrogram(SPEAKER_MEL)(wav))


HEARD = {"conditioning": _conditioning, "speaker": _speaker}
"""What hears a recording, and how the model does."""


def _sensitivity(hear, wav):
    """What noise as small as rounding changes in what the model makes of a recording, at most of a few times."""
    random, clean = np.random.default_rng(1), np.asarray(hear(wav))
    noises = (1 + ROUNDING * random.standard_normal((3, *wav.shape))).astype(np.float32)
    return max(_difference(np.asarray(hear(wav * noise)), clean) for noise in noises)


def _reading(speaker, model, random, wav=None):
    """A prompt and two codes after it."""
    config, start = model.config, model.config.start_audio_token
    latents = random.standard_normal((1, config.num_latents, config.width)).astype(np.float32)
    text = random.integers(0, config.num_text_tokens, (1, min(20, config.max_text_tokens))).astype(np.int32)
    cache = Cache(speaker.model)
    found = cache.read(speaker.graphs, latents, text, start, 0)
    *expected, state = model.gpt.prefill(latents, text, np.ones(text.shape, bool), start, 2)
    yield "gpt, prompt: logits", found[0], expected[0]
    yield "gpt, prompt: state", found[1], expected[1]
    for number in range(2):
        code, row = number % config.num_codes, config.num_latents + text.shape[1] + 1 + number
        found = cache.read(speaker.graphs, latents[:, :0], text[:, :0], code, number + 1)
        *expected, state = model.gpt.advance(np.array([code], np.int32), np.array([number]), row, state)
    yield "gpt, step: logits", found[0], expected[0]
    yield "gpt, step: state", found[1], expected[1]


def _text(tokenizer, random):
    """A tag and some tokens, as the tokenizer's own vocabulary spells them, with spaces between."""
    pieces = (tokenizer.decode([number]) for number in random.permutation(tokenizer.num_tokens))
    words = [piece for piece in pieces if piece.isalpha()][:8]
    return f"[{tokenizer.languages[0]}]" + "[SPACE]".join(words)


def _same_draws(speaker, synthesizer, all_ids, random):
    """Share of draws that are the same, along the codes that the Keras model drew."""
    config, sampling, streams = synthesizer.model.config, synthesizer.config.sampling, []
    voices = [latents[None] for latents, _ in speaker.voices.values()]
    voices = voices or [random.standard_normal((1, config.num_latents, config.width)).astype(np.float32)]
    for number, ids in enumerate(all_ids):
        latents = voices[number % len(voices)]
        drawn = replace(sampling, temperature=0.0) if number % 2 else sampling
        streams.append(synthesizer.engine.open(ids[: config.max_text_tokens], latents, drawn, 0, number, MOST_CODES))
    synthesizer.engine.finish(streams)
    return float(np.mean(np.concatenate([_draws(speaker, stream) for stream in streams])))


def _draws(speaker: Speaker, stream: CodeStream) -> list[bool]:
    model, cache = speaker.model, Cache(speaker.model)
    text = np.array([[model["start_text_token"], *stream.ids, model["stop_text_token"]]], np.int32)
    logits, _ = cache.read(speaker.graphs, stream.voice_latents, text, model["start_audio_token"], 0)
    seen, same = np.zeros(logits.shape, bool), []
    values = speaker.sampling_values(**{name: getattr(stream.sampling, name) for name in speaker.config["sampling"]})
    for number, code in enumerate([*stream.codes, *[model["stop_audio_token"]] * stream.stopped]):
        noise = gumbel_noise(stream.seed, stream.sentence, number, logits.shape[1])
        same.append(int(speaker.graphs("draw", logits=logits, noise=noise, seen=seen, **values)["code"][0]) == code)
        seen[0, code] = True
        logits, _ = cache.read(speaker.graphs, stream.voice_latents[:, :0], text[:, :0], code, number + 1)
    return same
