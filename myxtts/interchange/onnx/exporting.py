"""Exports a model for use without MyXTTS: ONNX graphs, which are tested, and a script or a web page that runs them."""

import io
import logging
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from myxtts.audio.files import AudioError
from myxtts.audio.mel import CONDITIONING_MEL, SPEAKER_MEL, MelSpectrogram
from myxtts.config.checks import UserError, is_new_or_empty, require
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE
from myxtts.inference.speech import Voice
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import SHORTEST_CHUNK_SAMPLES, stored_voice
from myxtts.inference.windows import WindowShape, gumbel_noise
from myxtts.interchange.onnx import graphs, speak
from myxtts.interchange.onnx.builder import FLOAT32, INT8, import_package
from myxtts.interchange.onnx.forms import FORMATS
from myxtts.interchange.onnx.speak import Cache, Speaker
from myxtts.models.gpt import SamplingValues
from myxtts.storage.files import write_json, write_text, write_whole_folder
from myxtts.storage.run_folder import TRAIN
from myxtts.storage.speakers import read_speakers
from myxtts.text.cleaners import PLAIN_LETTERS, SAME_SOUND
from myxtts.text.g2p import espeak_voice
from myxtts.text.languages import DESCRIPTIONS, get_language

logger = logging.getLogger(__name__)

MODEL_NUMBERS = (
    "layers heads width num_latents speaker_width max_text_tokens max_codes start_text_token stop_text_token "
    "start_audio_token stop_audio_token"
).split()
"""Fields of `ModelConfig` that `speak.py` needs."""
LIMITS = {"float32": 1e-4, "int8": 0.1}
"""Maximum RMS error of a graph's output, relative to the RMS of the Keras model's output, for each number format."""
ROUNDING, ROUNDINGS = 1e-7, 5.0
"""Tolerance for encoders, which may amplify rounding errors. To measure the amplification, the audio samples are
multiplied by 1 + noise of size `ROUNDING`. The export may differ by `ROUNDINGS` times the change due to the noise."""
NUM_SENTENCES, MOST_CODES = 8, 48
"""Number of sentences on which the exported GPT is compared with the original, and maximum codes per sentence."""
LONG_TEXTS, LACKING = 2.2, 0.4
"""Parameters of the test with a long text, which is `LONG_TEXTS` times as long as the longest text that the model
synthesizes at once. `LACKING` is the largest fraction of the original model's audio that may be missing."""


def export_model(
    folder: str | Path,
    output: str | Path,
    form: str = "onnx",
    weights: str | None = None,
    which: str = "best",
    tell: Callable[[str], None] = lambda finding: None,
) -> None:
    """Exports a model: graphs, vocabulary, voices, `config.json`, and `speak.py` with its modules. Tests the graphs.

    Args:
        folder: A training run, or a model converted by `myxtts convert`.
        output: New or empty folder, which is written only if the graphs agree with the model.
        form: One of `FORMATS`.
        weights: Number format of the GPT's matrices, `float32` or `int8`. None means `int8` for `web`, else `float32`.
        which: Checkpoint to export, `best` or `last`.
        tell: Function that is called with one line of text for each comparison.

    Raises `UserError` if the model cannot be exported, a package is missing, or a graph differs from the model.
    """
    require(form in FORMATS, "--format", f"one of {', '.join(FORMATS)}", form)
    weights = weights or (INT8 if form == "web" else FLOAT32)
    require(weights in LIMITS, "--weights", f"one of {', '.join(LIMITS)}", weights)
    output = Path(output)
    require(is_new_or_empty(output), "--output", "a new or empty folder", output, "Name another, or delete it.")
    import_package("onnx")
    import_package("onnxruntime")
    synthesizer = Synthesizer.load(folder, which)
    if "decoder" not in (model := synthesizer.model).parts:
        raise UserError(f"The export needs a waveform decoder. Train it: {TRAIN.format('decoder', folder)}")
    voices, described = _voices(folder, synthesizer), settings(synthesizer, form, weights)
    with write_whole_folder(output) as new:
        FORMATS[form][1](new, voices, described)  # first, because a download may fail
        synthesizer.tokenizer.save(new / "vocab.json")
        np.savez(new / "voices.npz", **voices)
        shutil.copy(speak.__file__, new)
        described["reading"] = _copy_reading(new / "reading")
        write_json(new / "config.json", described)
        write_text(new / "README.md", speak.__doc__ or "")  # none with python -OO
        parts = [graphs.build_reading(model.gpt, model.config, weights), graphs.build_drawing(model.config)]
        parts += [build(model) for build in (graphs.build_conditioning, graphs.build_speaker, graphs.build_decoder)]
        for graph in parts:
            graph.save(new / f"{graph.name}.onnx")
        speaker, random, wrong = Speaker(new), np.random.default_rng(0), []
        for compare in (_other_graphs, _sentences, _long_text):
            for what, value, limit in compare(speaker, synthesizer, random):
                finding = f"{what}: differs by {value:.2g} (at most {limit:.2g})"
                tell(finding)
                if not value <= limit:  # NaN is wrong, too
                    wrong.append(finding)
        if wrong:
            raise UserError(f"Not exported: the graphs differ from the model. {'; '.join(wrong)}.")


def _copy_reading(folder):
    """Fills `folder` with the modules that `speak.py` imports. Returns `{relative path: digest of the file}`."""
    package, copy = Path(speak.__file__).parents[2], folder / "myxtts"
    unused = shutil.ignore_patterns("__pycache__", "tokenizer.py", "speech_rates.py")
    shutil.copytree(package / "text", copy / "text", ignore=unused)
    for module in ("config/checks.py", "inference/windows.py"):
        (copy / module).parent.mkdir()
        shutil.copy(package / module, copy / module)
    (copy / "__init__.py").touch()  # so that no other folder of this name is imported
    return {path.relative_to(folder).as_posix(): speak.digest(path) for path in copy.rglob("*") if path.is_file()}


def settings(synthesizer: Synthesizer, form: str, weights: str) -> dict:
    """Returns the contents of `config.json`, which `speak.py` reads."""
    sampling, data = synthesizer.config.sampling, synthesizer.config.data
    seconds = sampling.reference_chunk_seconds or data.conditioning_seconds[1]
    tokenizer, front = synthesizer.tokenizer, synthesizer.text_front
    spoken = [get_language(code) for code in tokenizer.languages]
    return {
        "format": form,
        "weights": weights,
        "sample_rate": DECODER_SAMPLE_RATE,
        "languages": {one.code: one.char_limit for one in spoken},
        "longest_texts": {code: front.longest_text(code) for code in tokenizer.languages},
        "written_as_it_sounds": [code for code in tokenizer.g2p if code in tokenizer.languages],
        "transliterated": [one.code for one in spoken if one.romanize or one.code in tokenizer.g2p],  # not by the page
        "scripts": {one.code: one.scripts for one in spoken},
        "normalize": {code: one["normalize"] for code, one in DESCRIPTIONS.items() if "normalize" in one},
        "variants": PLAIN_LETTERS | SAME_SOUND,
        "espeak_voices": {one: name for one in tokenizer.languages if (name := espeak_voice(one, tokenizer.g2p))},
        "sampling": {name: getattr(sampling, name) for name in SamplingValues._fields},
        "model": {name: getattr(synthesizer.model.config, name) for name in MODEL_NUMBERS},
        "windows": {name: getattr(synthesizer.model.decoder, name) for name in WindowShape._fields},
        "listening": {
            "sample_rate": MODEL_SAMPLE_RATE,
            "speaker_sample_rate": SPEAKER_SAMPLE_RATE,
            "most_samples": int((sampling.recording_seconds or sampling.reference_seconds) * MODEL_SAMPLE_RATE),
            "conditioning_samples": int(sampling.reference_seconds * MODEL_SAMPLE_RATE),
            "piece_samples": int(seconds * MODEL_SAMPLE_RATE),
            "least_samples": SHORTEST_CHUNK_SAMPLES,
            "repeats": data.conditioning_padding == "repeat",
        },
    }


def _voices(folder, synthesizer):
    """Returns the arrays of `voices.npz` by name, with a row per voice. The array `trained` marks training speakers."""
    config, stored, voices = synthesizer.model.config, read_speakers(folder), {}
    for name in sorted(stored, key=lambda one: stored[one].clip is None):  # speakers of the training data first
        try:
            voices[name] = stored_voice(folder, name, synthesizer.voice)
        except AudioError as error:  # such as a recording that is too short
            logger.warning("Voice %s was not exported: %s", name, error)
    if not voices:
        logger.warning("%s has no voices: speak.py will need a WAV file for --voice.", folder)
    stacked = lambda arrays, *shape: np.reshape(np.array(arrays, np.float32), (-1, *shape))
    return {
        "names": np.array(list(voices), np.str_),
        "languages": np.array([stored[name].language or "" for name in voices], np.str_),
        "trained": np.array([stored[name].clip is not None for name in voices], bool),
        "latents": stacked([one.latents for one in voices.values()], config.num_latents, config.width),
        "speakers": stacked([one.speaker for one in voices.values()], config.speaker_width),
    }


def _difference(found, expected):
    """Returns RMS(`found` - `expected`) / RMS(`expected`), or infinity if the shapes differ."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        return float("inf")
    return float(np.sqrt(np.mean((found - expected) ** 2) / max(np.mean(expected**2), 1e-30)))


def _normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def _other_graphs(speaker, synthesizer, random):
    """Compares the exported encoders and waveform decoder with the model, on random input.

    Yields tuples `(what was compared, relative difference, maximum allowed difference)`.
    """
    model, wav = synthesizer.model, 0.1 * _normal(random, 1, 44_100)
    noises = 1 + ROUNDING * np.random.default_rng(1).standard_normal((3, *wav.shape))
    to_latents = lambda mel: model.gpt.mel_to_latents(model.normalize_mel(mel))
    encoders = ("latents", CONDITIONING_MEL, to_latents), ("speaker", SPEAKER_MEL, model.speaker_encoder)
    for what, (output, spec, encode) in zip(("conditioning", "speaker"), encoders):
        to_mel = MelSpectrogram(spec)
        expected = encode(to_mel(wav))
        rounding = max(_difference(encode(to_mel(wav * noise.astype(np.float32))), expected) for noise in noises)
        found = speaker.run(what, wav=wav)[output]
        yield what, _difference(found, expected), max(LIMITS[FLOAT32], ROUNDINGS * rounding)
    config = model.config
    latents, vector = _normal(random, 1, 29, config.width), _normal(random, 1, config.speaker_width)
    vector /= config.speaker_width**0.5
    whole = _difference(speaker.sound(latents[0], vector[0]), model.decoder(latents, vector)[0])
    yield "decoder, whole", whole, LIMITS[FLOAT32]
    expected = model.decoder.frames_to_samples(model.decoder.latents_to_frames(latents)[:, 11:60], vector)
    found = speaker.run("decoder", latents=latents, speaker=vector, start=np.array([11]), end=np.array([60]))["samples"]
    yield "decoder, window", _difference(found, expected), LIMITS[FLOAT32]


def _sentences(speaker, synthesizer, random):
    """Compares token ids, GPT latents and codes between export and model. Yields tuples like `_other_graphs`."""
    tokenizer, config, sampling = synthesizer.tokenizer, synthesizer.model.config, synthesizer.config.sampling
    voices = [one[None] for one, _ in speaker.voices.values()] or [_normal(random, 1, config.num_latents, config.width)]
    reference = Tokenizer.from_str(tokenizer.to_json())
    ids_differ, streams = [], []
    for number in range(NUM_SENTENCES):
        pieces = (tokenizer.decode([token]) for token in random.permutation(tokenizer.num_tokens))
        text = f"[{tokenizer.languages[0]}]" + "[SPACE]".join([one for one in pieces if one.isalpha()][:8])
        ids = speaker.vocabulary.raw_ids(text)
        ids_differ.append(ids != reference.encode(text).ids)
        drawn = replace(sampling, temperature=0.0) if number % 2 else sampling
        latents = voices[number % len(voices)]
        streams.append(synthesizer.engine.open(ids[: config.max_text_tokens], latents, drawn, 0, number, MOST_CODES))
    yield "text to ids", np.mean(ids_differ), 0.0
    synthesizer.engine.finish(streams)
    states, expected, codes_differ, model = [], [], [], speaker.model
    for stream in streams:
        cache, ids = Cache(model), [model["start_text_token"], *stream.ids, model["stop_text_token"]]
        text, latents, code = np.array([ids], np.int32), stream.voice_latents, model["start_audio_token"]
        values = {name: getattr(stream.sampling, name) for name in speaker.config["sampling"]}
        seen, codes = np.zeros((1, config.num_audio_tokens), bool), list(stream.codes)
        if stream.stopped:
            codes.append(model["stop_audio_token"])
        for number, expected_code in enumerate(codes):
            logits, hidden = cache.read(speaker.run, latents, text, code, number)
            noise = gumbel_noise(stream.seed, stream.sentence, number, 1, logits.shape[1])
            arrays = dict(logits=logits, noise=noise, seen=seen, **speaker.sampling_values(**values))
            codes_differ.append(speaker.run("draw", **arrays)["code"][0] != expected_code)
            states.append(hidden)
            latents, text, code = latents[:, :0], text[:, :0], expected_code
            seen[0, code] = True
        expected.append(stream.latents()[: number + 1])
    differs = _difference(np.concatenate(states), np.concatenate(expected))
    yield "gpt, states", differs, LIMITS[speaker.config["weights"]]
    yield "codes", float(np.mean(codes_differ)), 0.25  # in float32, codes differ only where scores tie


def _long_text(speaker, synthesizer, random):
    """Compares how the export and the model split and speak a long text. Yields tuples like `_other_graphs`."""
    settings, config = speaker.config, synthesizer.model.config
    language = min(settings["languages"], key=lambda code: code != "en")
    tokens = [synthesizer.tokenizer.decode([number]) for number in range(synthesizer.tokenizer.num_tokens)]
    letters = sorted(set("".join(filter(str.isalpha, tokens))))
    letters = [letter for letter in letters if letter.isascii()] or letters
    longest = min(settings["languages"][language], settings["longest_texts"][language])
    text = ""
    while len(text) < LONG_TEXTS * longest:
        text += " ".join("".join(random.choice(letters, 5)) for _ in range(3)) + ". "
    # The letters of a vocabulary of phonemes may not be those of the language, so no check of letters is involved.
    pieces, found = synthesizer.text_front.pieces(text, language), speaker.sentences(text, language)
    yield "a long text, pieces", float(found != pieces), 0.0
    voice = next((one for name, one in speaker.voices.items() if speaker.voice_languages[name] == language), None)
    voice = voice or (_normal(random, config.num_latents, config.width), _normal(random, config.speaker_width))
    ids = [speaker.text_ids(piece, language) for piece, _ in found]
    spoken = sum(len(speaker.sentence(one, *voice, number=number)[0]) for number, one in enumerate(ids))
    with redirect_stderr(io.StringIO()) as unread, redirect_stdout(unread):  # hides warnings about meaningless speech
        stream = synthesizer.stream(pieces, Voice(*(part[None] for part in voice)), language, check=False)
        expected = sum(map(len, stream)) - sum(int(pause * speaker.sample_rate) for _, pause in pieces[:-1])
    yield "a long text, missing audio", max(0.0, 1 - spoken / expected), LACKING
