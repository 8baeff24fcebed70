"""An exported model speaks like the original, and the ONNX engine samples the same codes as TensorFlow."""

import errno
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import soundfile
from tiny import WORDS, random_model, spread, tiny_model_config, voiced
from tokenizers import Tokenizer

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from myxtts.__main__ import main
from myxtts.audio.encoding import write_audio
from myxtts.audio.files import AudioError, read_audio
from myxtts.audio.mel import CONDITIONING_MEL, MelSpectrogram
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.code_engine import CodeEngine
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.text_front import TextFront
from myxtts.inference.voices import Voice
from myxtts.interchange.onnx import exporting
from myxtts.interchange.onnx.builder import Builder
from myxtts.interchange.onnx.engines import OnnxSteps, choose_engine, load_synthesizer
from myxtts.interchange.onnx.exporting import settings
from myxtts.interchange.onnx.graphs import build_decoder
from myxtts.interchange.onnx.speak import RULES, Speaker, Vocabulary, read_wav
from myxtts.models.layers import dense
from myxtts.models.xtts import XTTS
from myxtts.storage.files import read_json, write_json
from myxtts.storage.speakers import read_speaker, write_speaker_clips, write_speakers
from myxtts.text.tokenizer import XTTSTokenizer

SAMPLED = dict(temperature=1.1, top_k=12, top_p=0.95, repetition_penalty=1.3)
GREEDY = dict(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


@pytest.fixture(scope="module")
def synthesizer(small_speaker_encoders, tokenizer):
    model, config = random_model(tokenizer, ("gpt", "speaker", "decoder"))
    spread(model.trainable_variables, 0.2)
    model.mel_stats.assign(np.full(80, 3.0, "float32"))
    return Synthesizer(model, tokenizer, config)


@pytest.fixture(scope="module")
def run(synthesizer, tmp_path_factory):
    """A model folder with one voice."""
    config, random = synthesizer.model.config, np.random.default_rng(1)
    latents = random.standard_normal((1, config.num_latents, config.width)).astype("float32")
    vector = random.standard_normal((1, config.speaker_width)).astype("float32")
    write_speakers(folder := tmp_path_factory.mktemp("run"), {"emma": (latents, vector)})
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def export(run, synthesizer):
    """Exports the model into a folder."""

    def call(folder, *words):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Synthesizer, "load", lambda *arguments, **options: synthesizer)  # traced once for all
            return main(["export", "--checkpoint", str(run), "--output", str(folder), *words])

    return call


@pytest.fixture(scope="module")
def exported(export, tmp_path_factory):
    """An exported folder."""
    folder = tmp_path_factory.mktemp("exported")
    assert export(folder) == 0
    return folder


def draw(synthesizer, speaker, values, number):
    """The stream of the Keras model, and the codes of `speak.py` for the same input."""
    ids = speaker.text_ids(" ".join(WORDS[number : number + 2]), "en")
    latents = speaker.voices["emma"][0]
    stream = synthesizer.engine.open(ids, latents[None], SamplingConfig(**values), 5, number)
    synthesizer.engine.finish([stream])
    states, codes = zip(*speaker.draw(ids, latents, 5, number, **values))
    return stream, (list(codes[:-1]), np.concatenate(states), codes[-1] is not None)


@pytest.mark.parametrize("values", [GREEDY, GREEDY | {"temperature": 1.3e-38}, SAMPLED])
def test_exported_model_samples_the_codes_of_the_model(synthesizer, exported, values):
    speaker, lengths = Speaker(exported), set()
    for number in range(4):
        stream, (codes, states, stopped) = draw(synthesizer, speaker, values, number)
        assert codes == stream.codes and stopped == stream.stopped
        np.testing.assert_allclose(states, stream.latents(), atol=1e-4)
        lengths.add(len(codes))
    assert max(lengths) > 5


@pytest.mark.parametrize("speed", [1.0, 1.4])
def test_exported_model_generates_the_audio_of_the_model(synthesizer, exported, speed):
    speaker = Speaker(exported)
    latents, vector = speaker.voices["emma"]
    text = "one two. three"
    expected = synthesizer.speak(text, Voice(latents[None], vector[None]), "en", seed=3, speed=speed)
    np.testing.assert_allclose(speaker.speak(text, "emma", "en", seed=3, speed=speed), expected.samples, atol=1e-4)
    assert not len(speaker.sentence([], latents, vector, max_codes=1, speed=4.0)[0]), "less than a frame"


def test_exported_model_encodes_a_recording_like_the_model(synthesizer, exported, tmp_path):
    samples, model = voiced(1.3, 150, 1), synthesizer.model
    soundfile.write(tmp_path / "a.wav", samples, MODEL_SAMPLE_RATE, subtype="PCM_24")
    latents, vector = Speaker(exported).voice(str(tmp_path / "a.wav"))
    pieces = synthesizer.voice.chunks(samples)
    mels = [model.normalize_mel(MelSpectrogram(CONDITIONING_MEL)(piece[None])) for piece in pieces]
    expected = np.mean([np.asarray(model.gpt.mel_to_latents(mel)) for mel in mels], axis=0)
    np.testing.assert_allclose(latents[None], expected, atol=1e-3)
    assert len(pieces) > 1 and abs(np.linalg.norm(vector) - 1) < 1e-4
    (speaker := Speaker(exported)).config["listening"]["most_samples"] = 4000  # a short `reference_seconds`
    load, loaded = speaker.runtime.InferenceSession, []
    slow = lambda *given, **options: loaded.append(given) or time.sleep(0.2) or load(*given, **options)
    speaker.runtime = SimpleNamespace(InferenceSession=slow)
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda _: speaker.listen(samples, MODEL_SAMPLE_RATE)[0].shape, range(2))]
    assert found == [latents.shape] * 2 and len(loaded) == 2, "one session per encoder"


def test_speaking_needs_no_package_of_ours(exported, tmp_path):
    (tmp_path / "myxtts").mkdir()
    (tmp_path / "myxtts/__init__.py").write_text("raise ImportError('another version')")
    hide = f"import runpy, sys; sys.modules |= dict.fromkeys({['tensorflow', 'keras', 'tokenizers', 'soundfile']})"
    loaded = "print(*(vars(one).get('__file__') for name, one in sys.modules.items() if name.startswith('myxtts')))"
    code = f"{hide}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); {loaded}"
    text = "Dr. One, 2 two."
    arguments = [exported / "speak.py", "--text", text, "--voice", "emma", "--output", tmp_path / "صدا.wav"]
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "cp1252"}  # as for a pipe on Windows
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # where ONNX Runtime's telemetry keeps its files
    del environment["ORT_DISABLE_TELEMETRY"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and not (tmp_path / "cache").exists(), done.stderr
    described = subprocess.check_output([sys.executable, arguments[0], "--help"], text=True, env={"COLUMNS": "80"})
    assert max(map(len, described.splitlines())) <= 80
    assert "--list-voices" in (exported / "README.md").read_text()
    samples, rate = soundfile.read(tmp_path / "صدا.wav")
    np.testing.assert_allclose(samples, Speaker(exported).speak(text, "emma"), atol=1e-4)
    assert rate == 24000 and "emma" in done.stdout and "en" in done.stdout
    modules = {str(path) for path in (exported / "reading").rglob("*.py") if path.name != "windows.py"}  # by its path
    assert set(done.stdout.splitlines()[-1].split()) - {"None"} == modules, "an export has the modules that it imports"


@pytest.mark.parametrize(
    "words",
    [
        ["--speed", "0.0"], ["--output", "/no/where.wav"], ["--output", "a.mp3"], ["--voice", __file__],
        ["--temperature", "nan"], ["--top-k", "-1"], ["--top-p", "2.0"], ["--output", "a.wav", "--voice", "a.wav"],
        ["--repetition-penalty", "0.0"], ["gpt.onnx"], ["voices.npz"], ["--threads", "9999"], ["--seed", "-3"],
    ],
)  # fmt: skip
def test_wrong_value_or_missing_file_is_one_error_message(exported, words, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(exported, tmp_path / "copy")
    if missing := words[1:] == []:
        (folder / words[0]).unlink()
    monkeypatch.setattr(sys, "argv", ["speak.py", "--text", "One.", *words * (not missing)])
    monkeypatch.setattr(sys, "stdout", None)  # as if it were closed
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(folder / "speak.py"), run_name="__main__")
    reported = capsys.readouterr().err.rpartition("error: ")[2]
    assert words[-1] in reported and (words[0] in reported or words[0] == "--voice")


def test_rules_of_speak_py_are_those_of_say():
    for name, (kind, _, rule, holds) in list(RULES.items())[2:]:
        for value in map(kind, (-1, 0, 1e-7, 1e-6, 1, 2)):
            try:
                SamplingConfig(**{name: value})
                assert holds(value)
            except UserError as error:
                assert not holds(value) and f"must be {rule}. Received: {value}" in str(error)


def test_eight_bits_are_smaller_and_sample_nearly_the_same_codes(export, exported, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(exporting, "_other_graphs", lambda *_: ())  # these have float32 weights again
    assert export(folder := tmp_path / "8 bits", "--weights", "int8") == 0
    reported = capsys.readouterr().out
    assert "gpt, states: differs by" in reported and "codes: differs by" in reported and "Amharic" not in reported
    assert json.loads((folder / "config.json").read_text())["weights"] == "int8"
    assert (folder / "gpt.onnx").stat().st_size < 0.8 * (exported / "gpt.onnx").stat().st_size
    command = next(line for line in reported.splitlines() if "speak.py" in line and "python" in line)
    subprocess.run(command.replace("python", sys.executable), shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "out.wav").is_file()


def test_hifigan_is_exported_too():
    keras.utils.set_random_seed(0)
    model = XTTS(tiny_model_config(decoder_type="hifigan"), parts=("decoder",))
    random = np.random.default_rng(0)
    latents = random.standard_normal((1, 3, model.config.width)).astype("float32")
    vector = random.standard_normal((1, model.config.speaker_width)).astype("float32")
    window = dict(start=np.array([0]), end=np.array([2**31 - 1]))
    (found,) = build_decoder(model).session().run(None, dict(latents=latents, speaker=vector, **window))
    expected = np.asarray(model.decoder(latents, vector))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-3


def test_a_graph_that_is_not_the_model_or_does_not_fit_the_disk_is_not_written(export, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(exporting, "_other_graphs", lambda *_: ())
    monkeypatch.setattr(exporting, "LIMITS", {"float32": 1e-12})
    assert export(tmp_path / "wrong") == 2
    assert "differ from the model. gpt, states: differs by" in capsys.readouterr().err
    monkeypatch.setattr(Builder, "save", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "gpt.onnx")))
    assert export(tmp_path / "new") == 2
    reported = capsys.readouterr().err
    assert reported.startswith("Error: gpt.onnx ") and "No space left on device" in reported
    assert reported.count("\n") == 1 and not [*tmp_path.iterdir()]


def test_one_recording_that_is_too_short_leaves_out_its_voice_alone(run, synthesizer, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    write_audio(tmp_path / "short.flac", np.zeros(2000, np.float32), 22050)
    write_speaker_clips(tmp_path, {"tom": ((tmp_path / "short.flac").read_bytes(), "en", ())})
    assert list(exporting._voices(tmp_path, synthesizer)["names"]) == ["emma"]


def test_a_missing_package_or_engine_is_one_error_message(run, tmp_path, capsys, monkeypatch):
    words = ["say", "--checkpoint", str(run), "--speaker", "emma", "--text", "one", "--engine", "magic"]
    assert main(words) == 2 and "--engine must be one of tensorflow, onnx" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", "--checkpoint", str(run), "--output", str(tmp_path / "new")]) == 2
    assert 'pip install "myxtts[onnx]"' in capsys.readouterr().err


def test_ids_equal_the_tokenizers_package(tmp_path):
    texts = ["naïve café, 3 times!", "می‌خواهم بروم.", "ሰላም ለዓለም።", "नमस्ते दुनिया।", "你好 世界", "a_b c-d ..."]
    corpus = [(text, "en") for text in texts for _ in range(3)] + [("", "fa"), ("", "am"), ("", "hi")]
    XTTSTokenizer.train(corpus, 300).save(trained := tmp_path / "vocab.json")
    document = read_json(trained)
    document["model"]["merges"] *= 2  # XTTS v2 repeats a quarter of its merges
    write_json(repeating := tmp_path / "repeating.json", document)
    released = Path(__file__).resolve().parents[2] / "shared/reference/xtts_vocab.json"
    for path in (trained, repeating, *[released] * released.exists()):
        reference, vocabulary = Tokenizer.from_file(str(path)), Vocabulary(path)
        pieces = np.random.default_rng(0).choice([*vocabulary.ids, *"".join(texts)], (1000, 9))
        for text in [*texts, "unseen ☃ letters ﷺ", "[en]x[SPACE]y[STOP]", "  two  blanks ", *map("".join, pieces)]:
            for form in (text, text.replace(" ", "[SPACE]")):
                assert vocabulary.raw_ids(form) == reference.encode(form).ids


@pytest.mark.parametrize("form", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32"])
@pytest.mark.parametrize("channels", [(1,), (1, 1), (1, 0), (1, -0.9), (0, 0), (1e-4,), "cut", (1,) * 9, "rate", "odd"])
def test_wav_files_are_mixed_or_refused_as_by_say(tmp_path, form, subtype, channels):
    levels, rate = (1,) if isinstance(channels, str) else channels, 3000 if channels == "rate" else MODEL_SAMPLE_RATE
    soundfile.write(path := tmp_path / "voice.wav", np.outer(voiced(0.2, 200, 1), levels), rate, subtype, format=form)
    if channels in ("cut", "odd"):  # "odd" lacks the byte that must follow a chunk of odd length
        content = path.read_bytes()
        path.write_bytes(content[:-1200] if channels == "cut" else content[:12] + b"LIST\5\0\0\0INFOx" + content[12:])
    try:
        expected = read_audio(path).samples
    except AudioError:
        heard = dict(sample_rate=MODEL_SAMPLE_RATE, least_samples=1, most_samples=10**6, piece_samples=9)
        with pytest.raises(ValueError, match="voice.wav is .* .*voice.wav-pcm.wav|recording is silent"):
            Speaker.listen(Mock(config={"listening": heard}), *read_wav(path))
    else:
        found, rate = read_wav(path, 0.1)
        assert rate == MODEL_SAMPLE_RATE
        np.testing.assert_allclose(found, expected[:2205], atol=1e-5)


def test_onnx_engine_samples_the_codes_of_tensorflow(synthesizer):
    model, config = synthesizer.model, synthesizer.model.config
    engine = CodeEngine(OnnxSteps(model.gpt, config, "float32", threads=1), config)
    random, streams = np.random.default_rng(0), []
    requests = []
    for number in range(10):
        latents = random.standard_normal((1, config.num_latents, config.width)).astype("float32")
        ids = random.integers(4, config.num_text_tokens, 2 + number).tolist()
        values = GREEDY if number % 3 == 0 else SAMPLED
        requests.append((ids, latents, SamplingConfig(**values), 3, number, 0 if number % 2 else 7, number == 4))
    for request in requests:  # they join while others are drawn
        streams.append(engine.open(*request))
        engine.wait(lambda: any(stream.codes or not stream.active for stream in streams[-2:]))
    engine.finish(streams)
    expected = [synthesizer.engine.open(*request) for request in requests]
    synthesizer.engine.finish(expected)
    for found, one in zip(streams, expected):
        assert found.codes == one.codes and found.stopped == one.stopped
        np.testing.assert_allclose(found.latents(), one.latents(), atol=1e-4)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_session_keeps_the_weights_of_its_creation(weights):
    layer = dense(96, 64, "dense")  # 24 kB, handed over in memory
    layer.kernel.assign(kernel := np.random.default_rng(0).standard_normal((64, 96)).astype("float32"))
    graph = Builder("one", weights)
    graph.output(graph.linear(graph.input("x", np.float32, 1, 64), layer), "y", np.float32, 1, 96)
    session = graph.session(1)
    del graph
    layer.kernel.assign(np.zeros((64, 96)))
    x = np.random.default_rng(1).standard_normal((1, 64)).astype("float32")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ kernel, atol=1e-4 if weights == "float32" else 0.3)


def test_onnx_engine_speaks_and_streams(synthesizer, run, monkeypatch):
    fresh = Synthesizer(synthesizer.model, synthesizer.tokenizer, synthesizer.config)
    monkeypatch.setattr(Synthesizer, "load", lambda *given: fresh)
    onnx = load_synthesizer(run, engine="onnx")
    assert isinstance(onnx.engine.steps, OnnxSteps)
    onnx.to_waveform = synthesizer.to_waveform  # traced already
    latents, vector = read_speaker(run, "emma")
    speech = onnx.speak("one two", Voice(latents, vector), "en", seed=3)
    made, load = [], onnx.make_steps
    onnx.make_steps = lambda name: made.append(name) or time.sleep(0.2) or load(name)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(onnx.with_engine, ["onnx-float32"] * 2)
    assert one.engine is other.engine and made == ["onnx-float32"]
    streamed = np.concatenate([*onnx.stream("one two", Voice(latents, vector), "en", seed=3)])
    np.testing.assert_allclose(streamed, speech.samples, atol=1e-5)
    assert len(speech.codes) > 3
    onnx.warm_up("all")  # nothing to compile


def test_engine_is_the_fastest_exact_one_that_is_installed_and_fits(monkeypatch):
    assert choose_engine(10**6) == "onnx-float32" and choose_engine(2**50) == "tensorflow"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_engine(10**6) == "tensorflow"


def test_exported_sentences_are_no_longer_than_training_texts(exported, synthesizer, monkeypatch, capsys):
    monkeypatch.setattr(synthesizer, "text_front", replace(synthesizer.text_front, longest_texts={"en": 20}))
    (speaker := Speaker(exported)).config = settings(synthesizer, "onnx", "float32")
    pieces = speaker.sentences("One two. One two three. One two three. One.", "en")
    assert [text for text, _ in pieces] == ["One two.", "One two three.", "One two three. One."]
    speaker.config["longest_texts"] = {"en": 4}
    assert speaker.sentences("One thirteen", "en") == [("One", 0.05), ("thirteen", 0.05)]
    speaker.config["longest_texts"] = {"en": 60}
    speaker.model["max_text_tokens"], one = 9, "One two. One two three. One two three four five six, seven."
    front = TextFront(synthesizer.tokenizer, 9, {"en": 60})
    for text in (one, "One, two\n\nthree.\n \nژژ. Four;\n\n...", "ñ two " * 3, "One two ژ " * 3):
        assert (pieces := front.pieces(text, "en")) == speaker.sentences(text, "en")
        assert [front.ids(piece, "en") for piece, _ in pieces] == [speaker.text_ids(one, "en") for one, _ in pieces]
    speaker.config["longest_texts"] = {"en": 6}
    monkeypatch.setattr(speaker, "sentence", lambda *_: (np.zeros(1), [1], True))
    assert len(speaker.speak("One. ژژژ.", "emma", "en")) == 1
    assert " in en: ژ" in capsys.readouterr().err
    for error, wrong in ((ValueError, {"top_k": 2.7}), (TypeError, {"temprature": 0.3}), (ValueError, {"seed": 1.5})):
        pytest.raises(error, Speaker(exported).speak, "One.", "emma", **wrong)


def test_export_that_truncates_a_long_text_is_not_written(export, monkeypatch, tmp_path, capsys):
    for check in ("_other_graphs", "_sentences"):
        monkeypatch.setattr(exporting, check, lambda *_: ())
    sentences, spoken = Speaker.sentences, Speaker.sentence
    monkeypatch.setattr(Speaker, "sentence", lambda *given, **values: (*spoken(*given, **values)[:2], False))
    monkeypatch.setattr(Speaker, "sentences", lambda *given: sentences(*given)[:1])
    assert export(tmp_path / "wrong") == 2
    printed, reported = capsys.readouterr()
    assert "ut off" not in printed + reported, "the text of the check has no meaning"
    assert "a long text, pieces: differs" in reported and "a long text, missing audio: differs" in reported


def test_exported_model_reads_texts_like_the_model(exported, synthesizer, monkeypatch, tmp_path):
    speaker = Speaker(exported)
    for text in ("One two three.", "Dr. Óne paid $2.50 (100 %) “in 3 dáys” [STOP]!", "1999 – 2004: №3", "onE\ttwo 🙂"):
        assert speaker.text_ids(text, "en") == replace(synthesizer.text_front, max_tokens=200).ids(text, "en")
    speaker.reader = speaker.reader._replace(g2p=("espeak",))
    assert speaker.reader.spoken("Hello, world.", "en") == "həlˈoʊ, wˈɜːld."
    monkeypatch.delattr("myxtts.text.espeak.text_to_ipa")  # an error of the program is not called a damaged file
    with pytest.raises(AttributeError):
        speaker.text_ids("Hello, you.", "en")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(NameError):
        patch.setattr(Vocabulary, "__init__", Mock(side_effect=NameError))
        Speaker(exported)
    module = shutil.copytree(exported, tmp_path / "copy") / "reading/myxtts/text/espeak.py"
    module.write_bytes((content := module.read_bytes()).replace(b"\n", b"\r\n"))  # as by git on Windows
    Speaker(tmp_path / "copy")
    module.write_bytes(content[: content.rindex(b"\ndef")])
    with pytest.raises(ValueError, match="espeak.py is missing or damaged"):
        Speaker(tmp_path / "copy")
