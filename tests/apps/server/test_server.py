"""The HTTP server from its clients' point of view: a running server with a tiny random model."""

import base64
import http.client
import io
import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import soundfile

pytest.importorskip("uvicorn", reason="needs the extra server")

from command_helpers import sentence_of  # noqa: E402
from live_server import is_alike, live_server, talkative_synthesizer, write_voices  # noqa: E402
from tiny import voiced  # noqa: E402

from myxtts.__main__ import main  # noqa: E402
from myxtts.apps.server import options, serving, speech  # noqa: E402
from myxtts.apps.server.serving import log_as_json  # noqa: E402
from myxtts.audio.encoding import write_audio  # noqa: E402
from myxtts.audio.files import to_int16  # noqa: E402
from myxtts.config.checks import UserError  # noqa: E402
from myxtts.inference.code_engine import MOST_ROWS  # noqa: E402
from myxtts.storage.speakers import write_speaker_clips  # noqa: E402

LONG = "one two three four. " * 40


@pytest.fixture(scope="module")
def synthesizer():
    return talkative_synthesizer()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run with a trained speaker, and a folder of voices."""
    home = tmp_path_factory.mktemp("server")
    run, clip = home / "run", io.BytesIO()
    run.mkdir()
    soundfile.write(clip, voiced(1.0, 180, 2), 22050, format="FLAC")
    write_speaker_clips(run, {"emma": (clip.getvalue(), "en", ("a",))})
    return run, write_voices(home / "voices")


@pytest.fixture(scope="module")
def live(synthesizer, folders):
    with live_server(synthesizer, *folders, max_waiting=4, max_characters=2000) as live:
        yield live


@pytest.fixture
def client(live):
    openai = pytest.importorskip("openai", reason="needs the extra test")  # slow to import
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def idle(live):
    return live.speaker.load == (0, 0, 0) and not live.speaker.synthesizer.engine._rows


def test_openai_client_gets_every_format(live, client):
    read = {}
    for sound_format in ("wav", "flac", "mp3", "opus"):
        asked = dict(model="tts-1", voice="low", input="one two.", response_format=sound_format)
        samples, rate = soundfile.read(io.BytesIO(client.audio.speech.create(**asked).read()))
        read[sound_format] = len(samples) / rate
    pcm = client.audio.speech.create(model="tiny", voice={"id": "low"}, input="one two.", response_format="pcm").read()
    assert len(pcm) > 10_000 and np.frombuffer(pcm, "<i2").any()
    assert read["wav"] == read["flac"] == len(pcm) / 48_000
    assert all(abs(seconds - read["wav"]) < 0.1 for seconds in read.values())


def test_streamed_samples_equal_the_whole(live, client, synthesizer, folders):
    text = "one two three. four five."
    whole = synthesizer.speak(text, folders[1] / "low.wav", "en", seed=3)
    _, _, pcm = live.speech(text, seed=3)
    assert is_alike(pcm, to_int16(whole.samples).tobytes())
    at_once = live.speech(text, seed=3, response_format="wav", stream=False, stream_format="audio")
    assert is_alike(at_once[2][44:], pcm) and int(at_once[1]["content-length"]) == len(at_once[2])
    is_open = live.speech(text, seed=3, response_format="wav")
    assert is_alike(is_open[2][44:], pcm) and is_open[2][40:44] == b"\xff" * 4 and "content-length" not in is_open[1]
    asked = dict(model="tts-1", voice="low", input=text, response_format="pcm", extra_body={"seed": 3})
    with client.audio.speech.with_streaming_response.create(**asked) as answer:
        parts = list(answer.iter_bytes(4096))
    assert is_alike(b"".join(parts), pcm)
    status, headers, events = live.speech(text, seed=3, stream_format="sse")
    reported = [json.loads(event.removeprefix("data: ")) for event in events.decode().split("\n\n")[:-1]]
    sound = b"".join(base64.b64decode(one["audio"]) for one in reported if one["type"] == "speech.audio.delta")
    assert headers["content-type"] == "text/event-stream" and is_alike(sound, pcm) and len(reported) > 3
    assert headers["content-language"] == "en"
    assert reported[-1]["type"] == "speech.audio.done" and reported[-1]["usage"]["output_tokens"] > 0


def test_captioned_speech_is_the_same_audio_with_the_time_of_each_word(live):
    text = "[pause:290ms] one two three, four. [pause:0.5s] five % one."
    _, _, pcm = live.speech(text, seed=3)
    body = dict(model="kokoro", input=text, voice="low", seed=3, response_format="pcm", return_timestamps=True)
    ask = lambda **more: live.ask("POST", "/dev/captioned_speech", body | more)
    status, headers, content = ask()
    assert status == 200, content
    lines = [json.loads(line) for line in content.decode().splitlines()]
    assert headers["content-type"] == "application/json" and len(lines) > 1 and all(line["audio"] for line in lines)
    assert is_alike(b"".join(base64.b64decode(line["audio"]) for line in lines), pcm)
    times = [time for line in lines for time in line["timestamps"]]
    assert [one["word"] for one in times] == ["one", "two", "three,", "four.", "five", "%", "one."]
    bounds = [bound for one in times for bound in (one["start_time"], one["end_time"])]
    assert bounds == sorted(bounds) and bounds[0] >= 0.29 and bounds[-1] <= len(pcm) / 48_000 + 0.01
    assert times[4]["start_time"] >= times[3]["end_time"] + 0.5
    whole = json.loads(ask(stream=False)[2])
    assert whole["timestamps"] == times and is_alike(base64.b64decode(whole["audio"]), pcm)
    assert json.loads(ask(input="🙂", stream=False)[2])["timestamps"] == []
    assert ask(voice="nobody")[0] in (400, 404)


def test_first_bytes_are_sent_before_all_codes_are_sampled(live):
    connection = begin(live)
    assert connection.recv(1000) and live.speaker.load[1] == 1
    connection.close()
    live.wait_until(lambda: idle(live))


def test_requests_do_not_affect_each_other(live, synthesizer):
    asked = [dict(text=f"{word} two.", voice=voice, seed=seed) for word, voice, seed in zip(
        ("one", "three", "four", "five", "six", "two", "one six", "four two"), ("low", "high", "emma") * 3, range(8)
    )]  # fmt: skip
    alone = [live.speech(**one)[2] for one in asked]
    assert len(set(alone)) == len(alone)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: live.speech(**one)[2], asked))
    assert all(map(is_alike, alone, together))


def begin(live, text=LONG):
    """Sends a request and does not read the response."""
    body = json.dumps(dict(model="tts-1", input=text, voice="low", response_format="pcm")).encode()
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=300)
    head = ["POST /v1/audio/speech HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    return connection


def test_queue_is_limited_and_disconnected_clients_free_their_places(live, monkeypatch):
    assert live.speech()[0] == 200  # after which the thread for sound is there
    threads = threading.active_count()
    listeners = [begin(live) for _ in range(MOST_ROWS)]
    live.wait_until(lambda: live.speaker.load[1] == MOST_ROWS)
    listeners += [begin(live) for _ in range(4)]
    live.wait_until(lambda: live.speaker.load[0] == 4)
    status, headers, body = live.speech()
    assert status == 429 and int(headers["Retry-After"]) >= 1
    assert json.loads(body)["error"]["type"] == "rate_limit_error"
    steps = live.speaker.synthesizer.engine.steps
    monkeypatch.setattr(steps, "draw", draw := Mock(wraps=steps.draw))
    for one in listeners:
        one.close()
    live.wait_until(lambda: idle(live))
    assert draw.call_count <= 2 * MOST_ROWS  # not the hundreds that the texts would take
    assert live.speech()[0] == 200 and threading.active_count() <= threads + 6


def test_text_that_waits_too_long_is_refused(synthesizer, folders):
    with live_server(synthesizer, *folders) as live:
        listeners = [begin(live) for _ in range(MOST_ROWS)]
        live.wait_until(lambda: live.speaker.load[1] == MOST_ROWS)
        live.speaker._queue_seconds = 0.05  # from here on, or these could wait too long themselves
        status, headers, body = live.speech()
        assert status == 503 and headers["Retry-After"] and json.loads(body)["error"]["code"] == "queue_timeout"
        for one in listeners:
            one.close()


def test_stop_finishes_texts_being_spoken_and_rejects_queued_ones(synthesizer, folders, monkeypatch):
    steps, is_stopped = synthesizer.engine.steps, threading.Event()
    draw = steps.draw  # no text ends before the queued one is rejected, however slow the machine is
    monkeypatch.setattr(steps, "draw", lambda *given: is_stopped.wait(900) and draw(*given))
    with ThreadPoolExecutor(MOST_ROWS + 2) as pool, live_server(synthesizer, *folders) as live:
        live.serving.config.timeout_graceful_shutdown = 900
        live.serving.config.app.mount("/ui", lambda scope, receive, send: speech._until_gone(receive))
        pool.submit(live.ask, "GET", "/ui/")  # a page that is open in a browser, which must not hold the server
        spoken = [pool.submit(live.speech) for _ in range(MOST_ROWS)]
        live.wait_until(lambda: live.speaker.load[1] == MOST_ROWS)
        waiting = pool.submit(live.speech)
        live.wait_until(lambda: live.speaker.load[0] == 1)
        live.serving.should_exit = True
        assert waiting.result()[0] == 503
        is_stopped.set()
        answers = [one.result() for one in spoken]
    assert {status for status, *_ in answers} == {200} and len({len(body) for *_, body in answers}) == 1


def test_stop_answers_texts_that_exceed_the_time_limit(synthesizer, folders):
    with ThreadPoolExecutor(1) as pool, live_server(synthesizer, *folders) as live:
        whole = pool.submit(live.speech, LONG, response_format="flac")
        live.wait_until(lambda: live.speaker.load[1] == 1)
        live.serving.config.timeout_graceful_shutdown = 0
        live.serving.should_exit = True
        status, _, body = whole.result()
    assert status == 503 and json.loads(body)["error"]["code"] == "stopping"


@pytest.mark.parametrize("call", [1, 20], ids=["before the first sound", "after it"])
def test_error_of_the_model_ends_its_texts_and_not_the_server(live, monkeypatch, call):
    steps = live.speaker.synthesizer.engine.steps
    outcomes = [DEFAULT] * (call - 1) + [MemoryError("no room")] + [DEFAULT] * 999
    monkeypatch.setattr(steps, "draw", Mock(wraps=steps.draw, side_effect=outcomes))
    if call == 1:
        status, _, body = live.speech(LONG)
        assert status == 500 and "no room" not in body.decode() and "error" in json.loads(body)
    else:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):  # what has begun gets no proper end
            live.speech(LONG)
    live.wait_until(lambda: idle(live))
    assert live.speech()[0] == 200


def test_lists_have_the_formats_of_clients(live, client):
    assert {"tiny", "tts-1"} <= {one.id for one in client.models.list()}
    assert client.models.retrieve("tiny").id == "tiny"
    voices = json.loads(live.ask("GET", "/v1/audio/voices")[2])["voices"]
    assert [(one["id"], one["name"]) for one in voices] == [("emma", "emma"), ("high", "high"), ("low", "low")]
    assert {one["id"] for one in json.loads(live.ask("GET", "/v1/audio/models")[2])["models"]} >= {"tiny"}


def test_state_and_figures_are_reported(live):
    assert live.ask("GET", "/health")[0] == 200 and live.ask("GET", "/ready")[0] == 200
    before, said = live.ask("GET", "/metrics")[2].decode(), live.speech()
    after = live.ask("GET", "/metrics")[2].decode()
    figure = lambda text, name: next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))
    assert figure(after, "myxtts_texts_total") == figure(before, "myxtts_texts_total") + 1
    assert figure(after, "myxtts_first_sound_seconds_count") > figure(before, "myxtts_first_sound_seconds_count")
    assert figure(after, "myxtts_codes_total") > figure(before, "myxtts_codes_total") and said[1]["x-request-id"]
    assert "/v1/audio/speech" in json.loads(live.ask("GET", "/openapi.json")[2])["paths"]


def test_pages_have_valid_links_and_working_examples(live, tmp_path, monkeypatch):
    start, docs = (live.ask("GET", path)[2].decode() for path in ("/", "/docs"))
    links = re.findall(r"(?:href|src)=([^ >]+)", start + docs)
    assert {live.ask("GET", link)[0] for link in links} == {200} and {"/docs", "/v1/audio/voices"} < {*links}
    shell, python, script = (unescape(one) for one in re.findall(r"<pre>(.*?)</pre>", docs, re.DOTALL))
    monkeypatch.chdir(tmp_path)
    exec(python, {})
    said = Path("out.wav").read_bytes()
    assert said[:4] == b"RIFF" and len(said) > 10_000
    if shutil.which("curl"):
        Path("out.wav").unlink()
        subprocess.run(["sh", "-c", shell], check=True)
        assert is_alike(Path("out.wav").read_bytes()[44:], said[44:])
    asked = json.loads("{" + re.sub(r"(\w+): ", r'"\1": ', re.search(r"JSON.stringify\(\{(.*)\}\)", script)[1]) + "}")
    assert f"{live.url}/v1/audio/speech" in script and live.ask("POST", "/v1/audio/speech", asked)[0] == 200


def test_requests_of_other_programs_are_accepted(live, caplog):
    asked = dict(lang_code="e", volume_multiplier=1.0, model="kokoro")
    assert is_alike(live.speech(voice=" alloy", **asked)[2], live.speech(voice="emma")[2])  # the one with a language
    assert is_alike(live.speech(voice="nova", language="en-US")[2], live.speech(voice="emma")[2])
    assert live.speech(response_format="flac", stream=True, stream_format="audio")[2][:4] == b"fLaC"
    for text, samples in (("", 2400), ("🙂", 2400), ("[pause:1s]", 24_000)):
        assert live.speech(text)[2] == bytes(2 * samples)
    one, two = live.speech("one.")[2], live.speech("one.[pause:1s]")[2]
    assert len(two) - len(one) == 48_000 and len(live.speech("[pause:0.5s]one.")[2]) - len(one) == 24_000
    assert is_alike(live.speech("**one two.**")[2], live.speech("one two.")[2])
    said, parts = live.speech("one two.")[2], live.speech("one. [pause:2s] two.")[2]
    assert len(parts) > 96_000 and said and bytes(96_000) in parts
    for text, known in (("one. [pause:2s]你[pause:1s]", "one.[pause:3s]"), ("你[pause:1s]one.", "[pause:1s]one.")):
        assert is_alike(live.speech(text)[2], live.speech(known)[2]), "unknown letters are left out, pauses are not"
    assert live.speech("你[pause:1s]好")[0] == 400


def test_key_is_required_and_cors_allows_only_the_given_origins(live, synthesizer, folders):
    origin, wanted = {"Origin": "https://chat.example"}, {"Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in live.ask("GET", "/v1/models", headers=origin)[1]
    with live_server(synthesizer, *folders, cors=("https://chat.example/",), api_key="a-secret") as other:
        status, headers, _ = other.ask("OPTIONS", "/v1/audio/speech", headers=origin | wanted)
        assert status == 200 and headers["access-control-allow-origin"] == "https://chat.example"
        status, headers, _ = other.ask("GET", "/v1/models", headers=origin)
        assert status == 401 and headers["access-control-allow-origin"] == "https://chat.example"
        assert other.ask("OPTIONS", "/v1/models", headers=wanted | {"Origin": "https://evil.example"})[0] == 400
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic a-secret"}):
            status, _, body = other.ask("GET", "/v1/models", headers=headers)
            assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key"
        assert other.ask("GET", "/metrics")[0] == 401 and other.ask("GET", "/health")[0] == 200
        assert other.ask("GET", "/v1/models", headers={"Authorization": "Bearer a-secret"})[0] == 200


def test_log_has_the_id_and_not_the_text(live, monkeypatch):
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    before = {name: vars(logging.getLogger(name)).copy() for name in ("myxtts", "uvicorn.error")}
    log_as_json()
    try:
        for number, text in enumerate(("one six.", "one six Ω☃ naïve.", "漢字")):
            body = dict(model="tts-1", input=text, voice="low" if number < 2 else "six", secret="one six")
            live.ask("POST", "/v1/audio/speech", body, {"X-Request-ID": f"mine-{number}"})
            live.wait_until(lambda: f'"mine-{number}"' in log.getvalue())
    finally:
        for name, state in before.items():
            vars(logging.getLogger(name)).update(state)
    reported = {one.get("request_id"): one for one in map(json.loads, log.getvalue().splitlines())}
    assert reported["mine-0"]["codes"] > 0 and reported["mine-0"]["language"] == "en"
    assert reported["mine-0"]["first_sound"] > 0 and not reported["mine-0"]["cancelled"]
    assert reported["mine-0"]["ignored_fields"] == 1 and "they are not spoken" in log.getvalue()
    assert reported["mine-2"]["error"] == "voice_not_found"
    assert not [part for part in ("six", "Ω", "☃", "ïve", "naive", "漢") if part in log.getvalue()]


def test_a_changed_recording_is_another_voice(synthesizer, folders, tmp_path):
    write_audio(tmp_path / "you.wav", voiced(1.0, 140, 1), 22050)
    with live_server(synthesizer, folders[0], tmp_path) as live:
        first, same = (live.speech(voice="you")[-1] for _ in range(2))
        write_audio(tmp_path / "you.wav", voiced(1.2, 220, 2), 22050)
        assert is_alike(first, same) and not is_alike(first, live.speech(voice="you")[-1])


def test_only_trained_speaker_is_the_default_voice_and_has_the_names_of_openai(synthesizer, folders, monkeypatch):
    monkeypatch.setattr(serving, "local_folder", lambda *_, **__: folders[0])
    monkeypatch.setattr(serving, "_open_trained", lambda *_: (synthesizer, {"de_f1": "de", "emma": "en"}, ["emma"], {}))
    flags = ["--checkpoint", "run", "--warm", "none", "--voice-map", "nova=de_f1"]
    voices, settings = serving.open_model(options.build_parser().parse_args(flags), None)[2:]
    assert settings.language == "en", "of all training speakers"
    assert [voices.find(name, "de").name for name in ("", "alloy", "onyx", "nova")] == ["emma"] * 3 + ["de_f1"]
    given = options.build_parser().parse_args([*flags[:-1], "emma=de_f1"])
    pytest.raises(UserError, serving.open_model, given, None).match("--voice-map.* emma ")
    given = options.build_parser().parse_args(["--port", "0", "--language", "German"])
    assert options.check_options(given) is None and (given.language, given.checkpoint) == ("German", "base")


def test_uploaded_voice_is_kept_and_spoken_with(synthesizer, folders, tmp_path, monkeypatch):
    voices = tmp_path / "voices"
    voices.mkdir()
    write_audio(tmp_path / "me.wav", voiced(1.0, 140, 1), 22050)
    recording = (tmp_path / "me.wav").read_bytes()
    with live_server(synthesizer, folders[0], voices, allow_uploads=True) as live:
        assert live.ask("PUT", "/v1/audio/voices/me", recording)[0] == 201
        assert [path.name for path in voices.iterdir()] == ["me.voice"] and live.speech(voice="me")[0] == 200
        (voices / "linked.voice").symlink_to("../outside.voice")
        for name, content, status in [("other", b"no sound", 400), ("a%00b", recording, 400)] + [
            (name, recording, 409) for name in ("ME", "emma", "linked", "alloy", "af_heart")
        ]:
            assert live.ask("PUT", f"/v1/audio/voices/{name}", content)[0] == status, name
        assert {path.name for path in tmp_path.rglob("*.voice")} == {"me.voice", "linked.voice"}
        monkeypatch.setattr("myxtts.apps.server.voices.MOST_VOICES", 1)
        monkeypatch.setattr(Path, "iterdir", lambda at, real=Path.iterdir: [*real(at), at / "removed.wav"])
        assert live.ask("PUT", "/v1/audio/voices/other", recording)[0] == 403


@pytest.mark.parametrize("flag", ["--port", "--wyoming-port"])
def test_port_taken_while_the_model_loads_is_one_error_message(monkeypatch, capsys, flag):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port, flags = held.getsockname()[1], ["--port", "0"] * (flag == "--wyoming-port")
    monkeypatch.setattr(serving, "open_model", lambda *_: [socket.create_server(("127.0.0.1", port))] * 4)
    monkeypatch.setattr(serving, "log_as_json", lambda: None)
    assert f"{flag} {port}" in sentence_of(capsys, main, "serve", "--checkpoint", "base", *flags, flag, port)
    given = options.build_parser().parse_args([flag, str(port)])
    assert options.check_options(given) is None, "a replica does not use the port, but Ray may"
    monkeypatch.setitem(sys.modules, "wyoming.audio", None)
    monkeypatch.delitem(sys.modules, "myxtts.apps.server.wyoming_protocol", raising=False)
    monkeypatch.setattr(serving, "open_model", None)  # the package is missed before a model is loaded
    assert "wyoming" in sentence_of(capsys, main, "serve", "--port", "0", "--wyoming-port", "0")


ENDS = """
import atexit, signal
from types import SimpleNamespace
from myxtts.apps.server import __main__, serving
serving.open_model = lambda *_: [None, SimpleNamespace(alive={}), None, None]
serving.Serving = lambda *_: SimpleNamespace(run=lambda _: signal.raise_signal({} - 128))
atexit.register(print, "cleanup")
__main__._mount_page = lambda *_: None
__main__.main(["--port", "0", {}])
"""


@pytest.mark.parametrize("warms_up, flag, code", [(1, "", 143), (1, "", 130), (0, "", 143), (0, "'--ui=.'", 130)])
def test_stopped_server_skips_cleanup_that_crashes_or_waits(warms_up, flag, code):
    done = subprocess.run([sys.executable, "-c", ENDS.format(warms_up, code, flag)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if warms_up or flag else "cleanup\n"), done.stderr
