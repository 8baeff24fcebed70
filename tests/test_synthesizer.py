"""Synthesis with a tiny random model: audio, seeds, sentences, limits, and required files of a folder."""

import dataclasses
import json
import logging

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny import random_model, spread, tiny_model_config, tiny_run_config, voiced, write_run

from myxtts.audio.mel import log_mel_to_wav, resample
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference import code_engine, self_check
from myxtts.inference.loading import load_model, save_to_preset
from myxtts.inference.self_check import DISTORTION, judge
from myxtts.inference.synthesizer import Speech, SpeechError, Synthesizer
from myxtts.inference.voices import Voice
from myxtts.memory.report import check_claims
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.speakers import write_speaker_clips, write_speakers
from myxtts.text.reading import CUT_PAUSE_SECONDS, SENTENCE_PAUSE_SECONDS

GREEDY = SamplingConfig(temperature=0.0, repetition_penalty=1.0)


@pytest.fixture(scope="module")
def synthesizer(tokenizer):
    model, config = random_model(tokenizer)
    spread(model.gpt.trainable_variables, 0.2)
    model.mel_stats.assign(np.full(80, 3.0, "float32"))
    model.dvae.decoder_output.bias.assign(np.full(80, -2.0, "float32"))
    return Synthesizer(model, tokenizer, config)


@pytest.fixture(scope="module")
def voice(synthesizer):
    return synthesizer.voice(voiced(1.0, 150, 1))


@pytest.fixture
def biased(synthesizer):
    """Sets the bias of an audio token, and restores it afterwards."""
    bias = synthesizer.model.gpt.audio_head.bias
    before = bias.numpy().copy()

    def set_bias(token, value, others=0.0):
        bias.assign(np.where(np.arange(len(before)) == token, value, before + others))

    yield set_bias
    bias.assign(before)


def test_speech_has_the_duration_of_its_codes(synthesizer, voice, biased):
    biased(synthesizer.config.model.stop_audio_token, 2.0)
    speech = synthesizer.speak("one two", voice, "en", seed=3)
    assert speech.sample_rate == 22050 and speech.samples.dtype == np.float32 and speech.samples.ndim == 1
    assert np.isfinite(speech.samples).all() and np.abs(speech.samples).max() > 0
    assert speech.stopped and len(speech.codes) > 0
    assert speech.mel.shape == (4 * len(speech.codes), 80)
    assert abs(len(speech.samples) - 1024 * len(speech.codes)) <= 1024


@pytest.mark.usefixtures("without_griffin_lim")
def test_codes_are_codes_of_the_codebook(synthesizer, voice, biased):
    # A random model would sample the start code as often as any other, but it is not audio.
    biased(synthesizer.config.model.start_audio_token, 4.0)
    codes = np.concatenate([synthesizer.speak("one", voice, "en", seed=seed).codes for seed in range(3)])
    assert len(codes) and codes.min() >= 0 and codes.max() < synthesizer.config.model.num_codes


def test_voice_may_be_samples_and_is_required(synthesizer):
    sound = voiced(1.0, 150, 1)
    of_array = synthesizer._voice_and_language("one", sound, None)[0].latents
    np.testing.assert_array_equal(of_array, synthesizer.voice(sound).latents)
    with pytest.raises(SpeechError, match="No voice given"):
        synthesizer.speak("one two")


def test_voice_is_checked_before_the_language_is_logged(synthesizer, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "myxtts.inference")
    write_speakers(tmp_path, {"fa_ana": (synthesizer.voice(voiced(1.0, 150, 1)).latents, np.zeros((1, 8), "float32"))})
    (tmp_path / "vocab.json").write_text('"[fa]"')
    monkeypatch.setattr(synthesizer, "folder", tmp_path)
    with pytest.raises(CheckpointError) as refusal:
        synthesizer.speak("Guten Morgen, mein Freund", "fa_anna")
    assert "voice=" in refusal.value.__notes__[0] and not caplog.records
    assert synthesizer._voice_and_language("Guten Morgen, mein Freund", "fa_ana", None)[1] in caplog.text


def test_the_only_speaker_is_encoded_once_and_read_in_its_language(synthesizer, voice, tmp_path, monkeypatch):
    write_speaker_clips(tmp_path, {"tom": (b"", "de", ())})
    monkeypatch.setattr(synthesizer, "folder", tmp_path)
    monkeypatch.setattr(synthesizer, "voice", lambda clip: encoded.append(clip) or voice)
    for name, encoded in (("tom", []), (None, [])):
        assert synthesizer._voice_and_language(None, name, None)[1] == "de"
        assert synthesizer._voice_and_language(None, name, None)[0] is voice and len(encoded) == 2
    write_speaker_clips(tmp_path, {"José": (b"", "fr", ())})
    assert synthesizer._voice_and_language(None, "Jose\u0301", None)[1] == "fr"


def test_speech_depends_on_its_seed_alone(synthesizer, voice):
    one, same, other = (synthesizer.speak("one two", voice, "en", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.codes, same.codes)
    np.testing.assert_array_equal(one.samples, same.samples)
    assert not np.array_equal(one.codes, other.codes)


def test_speech_that_ends_at_once_is_silence_and_reported(synthesizer, voice, biased, caplog):
    biased(synthesizer.config.model.stop_audio_token, 1e9)
    with caplog.at_level(logging.WARNING, "myxtts.inference"):
        speech = synthesizer.speak("one", voice, "en")
    assert speech.stopped and len(speech.codes) == 0
    assert len(speech.samples) and not speech.samples.any() and speech.mel.shape[1] == 80
    assert "No speech for" in caplog.text


@pytest.mark.usefixtures("without_griffin_lim")
def test_long_text_is_spoken_in_pieces_that_fit_the_model(synthesizer, voice, biased):
    biased(synthesizer.config.model.stop_audio_token, -1e9)
    text = "one two three four five six. " * 3 + "one two three four five six " * 4
    speech = synthesizer.speak(text, voice, "en")
    spoken = [piece.text for piece in speech.pieces]
    assert " ".join(" ".join(spoken).split()) == " ".join(text.split())
    limit = synthesizer.config.model.max_text_tokens
    assert len(spoken) > 3 and all(len(synthesizer.tokenizer.encode(piece, "en")) <= limit for piece in spoken)
    long, short = (int(seconds * 22050) for seconds in (SENTENCE_PAUSE_SECONDS, CUT_PAUSE_SECONDS))
    pauses = sum(long if piece.endswith(".") else short for piece in spoken[:-1])
    assert (speech.samples == 0).sum() == pauses
    assert len(speech.samples) == 1024 * len(speech.codes) + pauses
    for one, after in zip(speech.pieces, (*speech.pieces[1:], None)):
        sound = speech.samples[round(one.start_seconds * 22050) : round(one.end_seconds * 22050)]
        assert len(sound) == 1024 * len(one.codes) and sound.all()
        assert abs(sound[0]) < 0.01 and abs(sound[-1]) < 0.01  # no discontinuity at the edges next to silence
        assert after is None or after.start_seconds > one.end_seconds


@pytest.mark.parametrize(
    "text, language, words",
    [*((text, "en", "text") for text in ("", "   ", "?!")), ("one " * 200, "xx", "xx"), ("eins", "de", "German")],
)
def test_text_that_cannot_be_spoken_is_one_error_message(synthesizer, voice, text, language, words):
    for speak in (synthesizer.speak, synthesizer.stream):
        with pytest.raises(SpeechError) as error:
            speak(text, voice, language)
        assert words in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "name, value",
    [
        *(("text", text) for text in (None, 5, b"one", ["one"], [])), ("voice", 5), ("voice", []), ("seed", 1.5),
        *(("voice", np.full(shape, one)) for shape, one in ((9999, 7), (9999, np.nan), ((9999, 2), 0.1), (99, 0.1))),
        *(("speed", speed) for speed in (0, 0.2, 4.1, np.nan, "fast")), ("seed", None), ("seed", -3), ("retries", -5),
        *(("sample_rate", rate) for rate in (-8000, 8000.5, "16000", 200_001, 10**9)),
    ],
)  # fmt: skip
def test_wrong_argument_is_named(synthesizer, voice, name, value):
    given = dict(text="one", voice=voice, language="en") | {name: value}
    save = lambda sample_rate, **_: Speech(np.zeros(9, np.float32), 24000, ()).save("a.ogg", sample_rate)
    calls = {"retries": [synthesizer.speak], "sample_rate": [save]}
    for speak in calls.get(name, [synthesizer.speak, synthesizer.stream]):
        with pytest.raises(UserError, match=f"^{name} must be .* Received: "):
            speak(**given)


@pytest.mark.usefixtures("without_griffin_lim")
def test_sentence_without_known_letters_is_dropped(synthesizer, voice):
    speech = synthesizer.speak("one two three. ضضض ضضض ضضض. four five six.", voice, "en")
    assert speech.pieces and not any("ض" in piece.text for piece in speech.pieces)
    with pytest.raises(SpeechError, match="Write it in English letters"):
        synthesizer.speak("ضضض", voice, "en")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_voice_that_is_not_finite_is_refused(synthesizer, tmp_path, value):
    config = synthesizer.config.model
    save_file({"latents": np.full((1, config.num_latents, config.width), value)}, tmp_path / "a.voice")
    with np.errstate(over="ignore"), pytest.raises(SpeechError, match="a.voice .*NaN or infinity"):
        synthesizer.as_voice(tmp_path / "a.voice")


def chunks_of(synthesizer, seconds, padding, sampling=None):
    data = dataclasses.replace(synthesizer.config.data, conditioning_padding=padding, conditioning_seconds=(0.5, 1.0))
    config = dataclasses.replace(synthesizer.config, sampling=SamplingConfig(**(sampling or {})), data=data)
    samples = np.arange(int(seconds * MODEL_SAMPLE_RATE), dtype=np.float32)
    chunks = Synthesizer(synthesizer.model, synthesizer.tokenizer, config).voice.chunks(samples)
    return [(int(chunk[0]), len(chunk)) for chunk in chunks]


def test_reference_is_cut_into_chunks_of_the_training_length(synthesizer):
    second = MODEL_SAMPLE_RATE
    # Filled by repetition up to a whole number of chunks; one chunk at least.
    assert chunks_of(synthesizer, 0.3, "repeat") == [(0, second)]
    assert chunks_of(synthesizer, 1.2, "repeat") == [(0, second)]
    assert chunks_of(synthesizer, 1.8, "repeat") == [(0, second), (second, second)]
    # As in the reference: the last chunk is not padded, and dropped if it is short and not the only one.
    assert chunks_of(synthesizer, 2.2, "zeros") == [(0, second), (second, second)]
    assert chunks_of(synthesizer, 2.5, "zeros") == [(0, second), (second, second), (2 * second, second // 2)]
    assert chunks_of(synthesizer, 0.2, "zeros") == [(0, second // 5)]
    assert len(chunks_of(synthesizer, 9.0, "zeros", {"reference_seconds": 4.0})) == 4
    assert len(chunks_of(synthesizer, 9.0, "zeros", {"reference_chunk_seconds": 3.0})) == 3


@pytest.fixture
def run_folder(synthesizer, tokenizer, tmp_path):
    return write_run(tmp_path / "run", synthesizer.model, tokenizer, synthesizer.config)


@pytest.mark.usefixtures("without_griffin_lim")
def test_loaded_model_speaks_like_the_saved_one(synthesizer, voice, run_folder):
    loaded = Synthesizer.load(run_folder)
    assert loaded.config == synthesizer.config
    request = ["one two"], [voice], ["en"], GREEDY
    codes, expected = (one.batch(*request, max_codes=10)[0].codes for one in (loaded, synthesizer))
    np.testing.assert_array_equal(codes, expected)


def test_best_and_last_checkpoint_are_distinguished(synthesizer, run_folder):
    weights = {name: v.numpy() for name, v in synthesizer.model.part_weights("gpt").items()}
    later = {**weights, "gpt/audio_head/bias": np.full_like(weights["gpt/audio_head/bias"], 7.0)}
    CheckpointStore(run_folder / "gpt").write(9, {"model": later}, {"finished": True})
    for which, bias in (("best", weights["gpt/audio_head/bias"]), ("last", 7.0)):
        loaded = Synthesizer.load(run_folder, which).model.gpt.audio_head.bias.numpy()
        np.testing.assert_array_equal(loaded, np.broadcast_to(bias, loaded.shape))
    pytest.raises(UserError, Synthesizer.load, run_folder, "newest").match("^which must be best or last")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("dvae", None, ["no trained dvae", "--stage dvae"]),
        ("gpt", None, ["no trained gpt", "--stage gpt"]),
        ("config.json", None, ["config.json", "does not exist"]),
        ("vocab.json", None, ["vocab.json"]),
        ("config.json", '{"model": ', ["config.json", "damaged"]),
        ("vocab.json", '{"model": ', ["vocab.json"]),
        ("gpt/step_00000004/model.safetensors", "cut short", ["model.safetensors", "bytes instead of"]),
    ],
)
def test_missing_part_of_a_folder_is_an_error_with_a_hint(run_folder, name, content, words):
    path = run_folder / name
    path.write_text(content) if content else path.rename(run_folder / "elsewhere")
    with pytest.raises(UserError) as error:
        Synthesizer.load(run_folder)
    message = str(error.value)
    assert all(word in message for word in words) and message.count("vocab.json") < 2, message


def test_gpt_of_another_dvae_is_refused(synthesizer, run_folder):
    weights = {name: v.numpy() for name, v in synthesizer.model.part_weights("gpt").items()}
    CheckpointStore(run_folder / "gpt").write(5, {"model": weights}, {"lineage": {"dvae": "0" * 32}}, best=True)
    with pytest.raises(CheckpointError, match="another DVAE"):
        Synthesizer.load(run_folder)


def test_configuration_of_a_far_larger_model_than_its_weights_is_refused(run_folder, monkeypatch):
    monkeypatch.setattr("myxtts.inference.loading.XTTS", None)  # nothing may be built
    settings = json.loads((run_folder / "config.json").read_text())
    settings["model"]["width"] = 65536
    (run_folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="config.json describes a gpt of"):
        Synthesizer.load(run_folder)


@pytest.mark.parametrize("part, name", [("speaker", "speaker_width"), ("decoder", "decoder_width")])
def test_configuration_of_a_far_larger_part_than_its_weights_is_refused(tmp_path, part, name):
    model = tiny_model_config(**{name: 65536}, decoder_type="istft")
    store = CheckpointStore(tmp_path / part)
    store.write(1, {"model": {"a": np.zeros(3, np.float32)}}, {})
    with pytest.raises(CheckpointError, match=f"config.json describes a {part} of"):
        check_claims(model, {part: store})


@pytest.fixture(scope="module")
def with_decoder(synthesizer, small_speaker_encoders, tokenizer):
    """A synthesizer with a waveform decoder, and the GPT and DVAE of `synthesizer`."""
    config = synthesizer.config
    model = XTTS.assemble(config.model, synthesizer.model, XTTS(config.model, parts=("speaker", "decoder")))
    return Synthesizer(model, tokenizer, config)


def test_decoder_speaks_at_its_own_rate_with_the_codes_of_griffin_lim(with_decoder, synthesizer):
    voice = with_decoder.voice([voiced(0.7, 150, 1), voiced(0.5, 150, 2)])
    assert voice.speaker.shape == (1, with_decoder.config.model.speaker_width)
    speech = with_decoder.batch(["one"], [voice], ["en"], GREEDY, max_codes=6)[0]
    assert speech.sample_rate == 24000 and np.isfinite(speech.samples).all()
    assert speech.mel.shape == (4 * len(speech.codes), 80)
    # 1024 samples at 22 050 Hz for each code and for the latent after the last code.
    assert abs(len(speech.samples) - 24000 / 22050 * 1024 * (len(speech.codes) + 1)) < 300
    for other in (np.zeros((1, 5), np.float32), np.zeros(16, np.float32), None):
        with pytest.raises(SpeechError, match="a voice of another model"):
            with_decoder.batch(["one"], [Voice(voice.latents, other)], ["en"])
    by_griffin_lim = synthesizer.batch(["one"], [voice], ["en"], GREEDY, max_codes=6)[0]
    np.testing.assert_array_equal(by_griffin_lim.codes, speech.codes)
    for model in (synthesizer, with_decoder):
        short = model.batch(["one"], [voice], ["en"], GREEDY, max_codes=1, speed=4.0)[0]
        assert len(short.codes) == 1 and len(short.samples) and np.isfinite(short.samples).all()
    pytest.raises(UserError, synthesizer.batch, ["one"], [voice], ["en"], max_codes=-5).match("^max_codes must be")


def test_speech_that_does_not_follow_its_codes_is_flagged(with_decoder, synthesizer, monkeypatch):
    voice, found = with_decoder.voice(voiced(0.7, 150, 1)), []
    monkeypatch.setattr(self_check, "judge", lambda *heard: found.append(heard[-1]) or judge(*heard))
    for speed in (1.0, 2.0):
        (speech,) = with_decoder.batch(["one"], [voice], ["en"], GREEDY, max_codes=6, speed=speed)
    assert found[1] == 0.0, "not at another speed"
    own = resample(log_mel_to_wav(with_decoder.codes_to_mel(speech.codes))[None], 22050, 24000)[0].numpy()
    assert with_decoder.distortion(speech.codes, own) < DISTORTION[0] < DISTORTION[1] < found[0]  # untrained
    assert synthesizer.distortion(speech.codes, 0.1 * own) == 0.0  # Griffin-Lim


def test_decoder_needs_its_speaker_encoder_and_griffin_lim_does_not(with_decoder, tokenizer, tmp_path, caplog):
    folder = write_run(tmp_path / "run", with_decoder.model, tokenizer, with_decoder.config)
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens, "decoder_type": "hifigan"})
    released = write_run(tmp_path / "hifigan", XTTS(config.model, parts=PARTS), tokenizer, config)
    (released / "speaker_clips").mkdir()
    (released / "confidence.json").write_text('{"languages": [], "intercept": 0.0, "weights": {}}')
    save_to_preset(load_model(released, only_speech=True), tmp_path / "preset")  # without a DVAE
    assert "speaker_clips" in caplog.text and (tmp_path / "preset/confidence.json").is_file()
    assert set(load_model(folder, only_speech=True).parts) == {"dvae", *load_model(tmp_path / "preset").parts}
    (folder / "speaker").rename(tmp_path / "speaker")
    with pytest.raises(CheckpointError, match="no speaker encoder.*--stage speaker"):
        load_model(folder)
    (folder / "decoder").rename(tmp_path / "decoder")
    (tmp_path / "speaker").rename(folder / "speaker")
    assert load_model(folder).parts == ("dvae", "gpt")


@pytest.mark.usefixtures("without_griffin_lim")
def test_warm_up_leaves_nothing_to_trace(synthesizer, tokenizer, voice, monkeypatch):
    monkeypatch.setattr(code_engine, "CACHE_SIZES", (128,))
    monkeypatch.setattr(code_engine, "MOST_ROWS", 2)
    fresh = Synthesizer(synthesizer.model, tokenizer, synthesizer.config)
    fresh.warm_up("none")
    assert fresh.engine.steps.num_traces == 0
    fresh.warm_up("short")
    assert fresh.engine.steps.num_traces == 1
    fresh.warm_up("all")
    assert fresh.engine.steps.num_traces == 2 and fresh.engine.steps.shapes == {(1, 128), (2, 128)}
    expected = synthesizer.batch(["one two", "three"], [voice] * 2, ["en"] * 2, seed=1)
    for one, other in zip(fresh.batch(["one two", "three"], [voice] * 2, ["en"] * 2, seed=1), expected):
        np.testing.assert_array_equal(one.codes, other.codes)
    assert fresh.engine.steps.num_traces == 2 and len(fresh.engine.steps.shapes) == 2
    with pytest.raises(UserError, match="none, short, all"):
        fresh.warm_up("long")
