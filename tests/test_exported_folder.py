"""Exported folders: serving without TensorFlow, and with `--format web` synthesis in Chromium, equal to `speak.py`."""

import http.client
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
from page_browser import CHROMIUM, DRIVER, ROOT, chromium, free_port
from test_declared_imports import declared
from test_export import export, exported, run, synthesizer  # noqa: F401, F811  fixtures
from tiny import WORDS, voiced

from myxtts.__main__ import main
from myxtts.apps.server.options import build_parser
from myxtts.cli.errors import language_code
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.speech import Manner
from myxtts.inference.text_front import TextFront
from myxtts.inference.text_stream import SpeechStream
from myxtts.interchange.onnx import forms as web
from myxtts.interchange.onnx.exported import ExportedModel
from myxtts.interchange.onnx.exporting import settings
from myxtts.interchange.onnx.speak import Speaker, read_wav
from myxtts.storage.files import read_json, write_json
from myxtts.storage.speakers import language_of, write_speaker_clips, write_speakers
from myxtts.text.cleaners import split_text
from myxtts.text.language_guess import language_to_read
from myxtts.text.tokenizer import XTTSTokenizer

NO_BROWSER = ["selenium"] * (find_spec("selenium") is None)
NO_BROWSER += [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]


@pytest.fixture(scope="module")
def served(exported, tmp_path_factory):  # noqa: F811
    """Port and process id of `myxtts serve` with the exported folder."""
    pytest.importorskip("uvicorn", reason="needs the extra server")
    port, voices = free_port(), tmp_path_factory.mktemp("voices")
    soundfile.write(voices / "me.wav", voiced(1.3, 150, 1), MODEL_SAMPLE_RATE, subtype="PCM_24")
    words = ["serve", "--checkpoint", str(exported), "--voices", str(voices), "--allow-uploads", "--port", str(port)]
    light = declared({"name": "", "dependencies": (ROOT / "deploy/docker/light.txt").read_text().split("\n")[2:-1]})
    heavy = declared(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]) - light
    assert "tensorflow" in heavy and "librosa" in heavy
    removed = re.search(r"pip uninstall -y (.*?) &&", (ROOT / "deploy/docker/Dockerfile").read_text())[1]
    missing = [*heavy, "pynvml", *removed.replace("-", "_").split()]  # None in sys.modules: importing it fails
    start = f"import sys; sys.modules.update(dict.fromkeys({missing})); from myxtts.__main__ import run; run()"
    assert subprocess.run([sys.executable, "-c", start, "serve", "--port", "-1"], cwd=ROOT).returncode == 2
    with subprocess.Popen(
        [sys.executable, "-c", start, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while "Listening" not in process.stderr.readline():
                assert process.poll() is None
            yield port, process.pid, voices
        finally:
            process.terminate()


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_exported_folder_is_served_by_the_packages_of_the_light_image_with_the_samples_of_speak(served, exported):  # noqa: F811
    port, pid, voices = served
    while ask(port, "GET", "/ready")[0] != 200:
        time.sleep(0.05)
    speaker = Speaker(exported)
    for text, voice, values in [
        ("one two. three", "emma", {}),
        ("five six. " * 20, "emma", dict(seed=5, speed=1.3, temperature=0.0)),
        ("two", "me", dict(seed=1)),
    ]:
        asked = dict(model="tts-1", input=text, voice=voice, language="en", response_format="pcm") | values
        status, pcm = ask(port, "POST", "/v1/audio/speech", json.dumps(asked))
        expected = speaker.speak(text, voice if voice == "emma" else str(voices / "me.wav"), "en", **values)
        assert status == 200
        found, whole = np.frombuffer(pcm, "<i2").astype(int), np.rint(np.clip(expected, -1, 1) * 32767)
        assert len(found) == len(whole) and np.abs(found - whole).max() <= 1, "windows may round differently"
    assert ask(port, "PUT", "/v1/audio/voices/other", (voices / "me.wav").read_bytes())[0] == 201
    assert ask(port, "PUT", "/v1/audio/voices/text", b"no audio")[1].count(b"The recording") == 1
    asked |= dict(voice="other")
    assert ask(port, "POST", "/v1/audio/speech", json.dumps(asked))[1] == pcm
    process = Path("/proc", str(pid))
    if process.is_dir():
        assert "tensorflow" not in (process / "maps").read_text()
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        assert int(status["VmHWM"].split()[0]) < 350 * 1024


def test_trained_voices_of_an_exported_model_are_known_by_their_recordings(exported, tmp_path):  # noqa: F811
    open_model = pytest.importorskip("myxtts.apps.server.serving", exc_type=ImportError).open_model
    with np.load(exported / "voices.npz") as stored:
        voices = {name: np.repeat(array, 2, axis=0) for name, array in stored.items()}
    voices |= dict(names=["Gene", "de_anna"], languages=["en", "de"], trained=[False, True])
    np.savez(shutil.copytree(exported, tmp_path / "copy") / "voices.npz", **voices)
    given = build_parser().parse_args(["--checkpoint", str(tmp_path / "copy"), "--warm", "none"])
    assert open_model(given, None)[2].find("alloy", "en").name == "de_anna"


def edit(folder, **changes):
    write_json(folder / "config.json", read_json(folder / "config.json") | changes)


def test_stream_of_an_exported_model_has_windows_of_a_sentence(exported):  # noqa: F811
    model, text = ExportedModel(exported), "five six. " * 20
    manner = Manner(model.as_voice("emma"), "en", model.config.sampling, 3)
    stream = SpeechStream(model, model.text_front.pieces(text, "en"), manner, hurry=True, check=False)
    stream.open()
    parts, counts, rows = [], [], [stream.num_rows]
    while not stream.finished:
        parts.append(stream.more())
        counts.append(stream.num_codes)
        if not stream.finished:
            stream.look_ahead()
        rows.append(stream.num_rows)
    assert {*rows} == {0, 1} and not rows[0], "a sentence that is only opened is not being sampled"
    assert 0 < counts[0] < counts[-1] and counts == sorted(counts)
    assert sum(len(part) > 0 for part in parts) > len(stream.spans) > 1
    np.testing.assert_allclose(np.concatenate(parts), model.exported.speak(text, "emma", "en", 3), atol=1e-4)
    assert rows[-1] == 0 and not any(one.stream.cancelled for one in stream._sentences)
    stream.close()
    assert all(one.stream.cancelled and not one.stream.states for one in stream._sentences)
    model.exported.found.clear()  # as if the folder had been exported again
    assert "replaced" in str(pytest.raises(RuntimeError, model.exported.run, "speaker").value)


@pytest.mark.parametrize("choice", read_json(ROOT / "tests/data/export_choices.json"))
def test_exported_model_chooses_voice_and_language_as_say(exported, tmp_path, capsys, monkeypatch, choice):  # noqa: F811
    trained, voice, language, text, expected, is_noted = choice
    speaker, codes = Speaker(exported), ("am", "de", "en")
    speaker.config["languages"] = dict.fromkeys(codes, 100)
    speaker.voice_languages = {"am_a": "am", "de_ann": "de", "en_a": "en", "Gene": ""}
    speaker.trained = {name: name in trained for name in speaker.voice_languages}
    assert list(speaker.choose(voice, language, text)) == expected
    assert ("is read as" in capsys.readouterr().err) == is_noted
    (tmp_path / "vocab.json").write_text('"[am]" "[de]" "[en]"')
    write_speakers(tmp_path, dict.fromkeys(speaker.voice_languages, (np.zeros(1, "f4"), np.zeros(1, "f4"))))
    write_speaker_clips(tmp_path, {name: (b"", speaker.voice_languages[name], ()) for name in trained})
    own = language_of(tmp_path, voice if voice != "a.wav" else None)
    assert language_to_read(text, language_code(language), own, "", codes)[0] == expected[1], "say's own choice"
    with pytest.raises(ValueError, match="--text: The text is in Latin letters.*--language de or en"):
        speaker.choose(language="am", text="Hello.")
    speaker.config["languages"] = {"am": 100, "de": 100}
    if not trained:
        with pytest.raises(ValueError, match="speaks am, de, not English"):
            speaker.speak("Hello.", "a.wav")
    speaker.config["languages"] = dict.fromkeys(codes, 100)
    monkeypatch.setattr("myxtts.text.language_guess._identifier", Mock(side_effect=ImportError))
    for voice, found in (("de_ann", "de"), ("am_a", "en")):  # Amharic is not written in Latin letters
        assert speaker.choose(voice, None, "Guten Morgen.")[1] == found
        assert ("py3langid is not installed" in capsys.readouterr().err) == (found == "en")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda folder: (folder / "voices.npz").write_bytes(b""), "Run `myxtts export` again"),
        (lambda folder: (folder / "config.json").write_text("{}"), "Run `myxtts export` again"),
        (lambda folder: edit(folder, windows={"factors": [1.0]}), "Run `myxtts export` again"),
        (lambda folder: (folder / "gpt.onnx").write_bytes(b"\0" * 100), "Run `myxtts export` again"),
        (lambda folder: (folder / "speaker.onnx").write_bytes(b"0") and ["--warm", "all"], "speaker.onnx cannot"),
        (lambda folder: (folder / "gpt.onnx").unlink(), "without gpt.onnx"),
        (lambda folder: (folder / "speaker.onnx").unlink(), "speaker.onnx"),
        (lambda folder: ["--which", "last"], "--which must be left out"),
    ],
)
def test_exported_folder_that_cannot_be_served_is_one_error_message(exported, tmp_path, capsys, change, said):  # noqa: F811
    shutil.copytree(exported, tmp_path / "copy")
    flags = change(tmp_path / "copy")
    flags = flags if isinstance(flags, list) else []
    assert main(["serve", "--checkpoint", str(tmp_path / "copy"), "--port", "0", *flags]) == 2
    reported = capsys.readouterr().err
    assert said in reported and reported.count("\n") == 1


def test_package_of_the_page_is_checked_and_is_named_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    kept = tmp_path / "myxtts" / "npm" / f"ort-{web.RUNTIME['version']}.tgz"
    refused = lambda: str(pytest.raises(UserError, web.fetch_package, web.RUNTIME).value)
    assert "onnxruntime-web@" in (missing := refused()) and str(kept) in missing
    kept.write_bytes(b"another")
    assert "onnxruntime-web" in refused()
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr("os.path.expanduser", str)  # as for a user id without a home
    assert "XDG_CACHE_HOME" in refused()


def in_node(folder, **given):
    """Runs `tests/data/page/run.mjs` and the page's module in Node.js. Returns what they print."""
    shutil.copytree(ROOT / "tests/data/page", folder / "page")
    shutil.copy(Path(web.__file__).parent / "web/speaker.js", folder / "page/speaker.mjs")
    write_json(folder / "page/input.json", given)
    return json.loads(subprocess.check_output(["node", folder / "page/run.mjs"], text=True))


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
@pytest.mark.parametrize("levels", [(1,), (1, 0), (1, -0.9), (0, 0)])
def test_page_mixes_a_recording_and_refuses_a_silent_one_as_speak_py(tmp_path, levels):
    frames = np.outer(voiced(0.05, 200, 1)[:1000], levels)  # 2.5 pieces of the length in `run.mjs`
    soundfile.write(tmp_path / "a.wav", frames, MODEL_SAMPLE_RATE, subtype="PCM_24")
    found = in_node(tmp_path, recording=frames.T.tolist(), text=(text := "“好。”是！？再见 A. B.” C፡፡D፡E"))
    assert found["cut"] == split_text(text, "zh-cn", 3)
    speaker, samples = Mock(config=found["config"]), read_wav(tmp_path / "a.wav")
    speaker.run.return_value = dict.fromkeys(("latents", "speaker"), np.zeros((1, 1)))
    if any(levels):
        Speaker.listen(speaker, *samples)
        assert "temprature" in found["misspelt"]
        np.testing.assert_allclose(found["mixed"], samples[0], atol=1e-5)
    assert found["lengths"] == [one.kwargs["wav"].shape[1] for one in speaker.run.mock_calls]
    assert ("is silent" in found["error"]) == (not any(levels))


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
@pytest.mark.parametrize("g2p", [(), ("espeak",)])
def test_page_reads_texts_in_the_pieces_and_tokens_of_say(synthesizer, tmp_path, monkeypatch, g2p):  # noqa: F811
    monkeypatch.setattr("myxtts.text.espeak.text_to_ipa", lambda words, *_: words)
    texts = read_json(ROOT / "tests/data/page/texts.json")
    tokenizer = XTTSTokenizer.train([one[::-1] for one in texts["trained"]], 200).with_g2p(g2p)
    monkeypatch.setattr(synthesizer, "tokenizer", tokenizer)
    monkeypatch.setattr(synthesizer, "text_front", front := TextFront(tokenizer, 400, {"en": 80}))
    config = settings(synthesizer, "web", "int8") | {"model": {"max_text_tokens": 400}}
    found = in_node(tmp_path, config=config, vocabulary=json.loads(tokenizer.to_json()), texts=texts["spoken"])
    for (language, text), pieces in zip(texts["spoken"], found, strict=True):
        assert pieces == [[one, front.ids(one, language)] for one, _ in front.pieces(text, language)]


@pytest.mark.skipif(bool(NO_BROWSER), reason=f"needs {', '.join(NO_BROWSER)}")
def test_page_in_a_browser_has_the_samples_of_speak_py_and_sends_no_other_requests(export, tmp_path):  # noqa: F811
    try:
        web.fetch_package(web.RUNTIME)
    except UserError as error:
        pytest.skip(str(error))
    assert export(tmp_path / "page", "--format", "web", "--weights", "float32") == 0
    speaker, voices = Speaker(tmp_path / "page"), json.loads((tmp_path / "page/voices.json").read_text())
    copied = voices[0] | {"name": "Gene", "language": "en", "trained": False}  # from base
    (tmp_path / "page/voices.json").write_text(json.dumps([copied, *(one | {"trained": True} for one in voices)]))
    text = f"{WORDS[0]} {WORDS[1]}. {WORDS[2]}, {WORDS[0]}."
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "page")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = chromium(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        try:
            browser.set_script_timeout(120)
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            spoken = browser.execute_async_script((ROOT / "tests/data/page/speak.js").read_text(), text)
            assert browser.execute_script("return document.getElementById('voice').value") == "emma"
            note = browser.find_element("id", "note")
            assert "numbers" in note.text and not note.get_attribute("class")
            browser.find_element("id", "text").send_keys(" 3")
            assert note.get_attribute("class") == "wrong"
            entries = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
        finally:
            browser.quit()
            server.shutdown()
    assert not isinstance(spoken, str), spoken
    np.testing.assert_allclose(np.array(spoken, "float32"), speaker.speak(text, "emma"), atol=1e-3)
    assert entries and all(f"127.0.0.1:{server.server_port}" in one for one in entries)
