"""Invalid requests: each gets an error in OpenAI's format in bounded time, and writes nothing."""

import json
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra server")

from live_server import live_server, talkative_synthesizer, write_voices  # noqa: E402
from starlette.responses import PlainTextResponse  # noqa: E402

GOOD = dict(model="tts-1", input="one.", voice="low", response_format="pcm")
VOICES = ["../low", "voices/low", "/etc/passwd", "low.wav", "..", ".", "low\x00", "C:\\low", "~", "", " ", "a" * 201]
FIELDS = json.loads((Path(__file__).resolve().parents[2] / "data/wrong_fields.json").read_text("utf-8"))
BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"1",
    "not a number": json.dumps(GOOD).replace('"one."', '"one.", "speed": NaN').encode(),
    "infinity": json.dumps(GOOD).replace('"one."', '"one.", "temperature": Infinity').encode(),
    "a number that never ends": json.dumps(GOOD).replace('"one."', '"one.", "seed": ' + "9" * 5000).encode(),
    "deep": b'{"input":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "another encoding": json.dumps(GOOD).encode("cp037"),
    "broken UTF-8": b'{"input": "\xff\xfe"}',
    "a form": b"input=one&voice=low",
    "random bytes": bytes(range(256)) * 40,
    "no voice": json.dumps({"model": "tts-1", "input": "one."}).encode(),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    home = tmp_path_factory.mktemp("requests")
    (home / "run").mkdir()
    voices = write_voices(home / "voices")
    (voices / "link.wav").symlink_to("/etc/passwd")
    (voices / "broken.wav").write_bytes(b"RIFF")
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if not path.is_symlink()}
    settings = dict(max_characters=400, body_seconds=1.0, allow_uploads=True)
    with live_server(talkative_synthesizer(), home / "run", voices, **settings) as live:
        yield live
        live.wait_until(lambda: live.speaker.load == (0, 0, 0))
        assert live.speaker.alive
    assert before == {path: path.stat().st_mtime_ns for path in home.rglob("*") if not path.is_symlink()}


def refused(answer, *allowed):
    status, headers, body = answer
    error = json.loads(body)["error"]
    assert status in (allowed or (400,)) and set(error) == {"message", "type", "param", "code"} and error["message"]
    assert headers["x-request-id"] and "Traceback" not in error["message"] and len(body) < 3000
    return error


@pytest.mark.parametrize("voice", [*VOICES, "link", "broken"])
def test_invalid_voice_is_refused(live, voice):
    assert refused(live.ask("POST", "/v1/audio/speech", {**GOOD, "voice": voice}))["param"] == "voice"


@pytest.mark.parametrize("name, value", FIELDS)
def test_invalid_field_is_refused(live, name, value):
    error = refused(live.ask("POST", "/v1/audio/speech", {**GOOD, "temperature": 0.5, name: value}), 400, 404)
    assert error["param"] in (name, f"{name}.id", f"{name}.more")


def test_text_in_other_letters_than_those_of_the_language_is_refused(live):
    asked = {**GOOD, "input": "Привет, как дела?", "language": "en"}
    assert "Russian" in refused(live.ask("POST", "/v1/audio/speech", asked))["message"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_invalid_body_is_refused(live, body):
    refused(live.ask("POST", "/v1/audio/speech", body))


@pytest.mark.parametrize(
    "header, value, status",
    [
        ("Content-Type", "text/plain", 400),  # as a form on a foreign page may send it
        ("Content-Type", "multipart/form-data; boundary=x", 400),
        ("Host", "evil.example", 403),
    ],
)
def test_request_that_a_foreign_page_could_send_is_refused(live, header, value, status):
    refused(live.ask("POST", "/v1/audio/speech", GOOD, {header: value}), status)


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/v1/audio/speech", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/v1/models/..%2f..%2fetc", 404),
        ("PUT", "/v1/audio/voices/..%2fup", 404),
        ("PUT", "/v1/audio/voices/.hidden", 400),
        ("PUT", "/v1/audio/voices/" + "%F0%A0%80%80" * 60, 400),  # letters of four bytes
        ("PUT", "/v1/audio/voices/" + "a" * 300, 400),
        ("PUT", "/v1/audio/voices/low", 409),
    ],
)
def test_unknown_path_is_refused(live, method, path, status):
    assert "--allow-uploads" not in refused(live.ask(method, path, b"x" * (method == "PUT")), status)["message"]


def raw(live, head, body=b"", seconds=10):
    """Sends bytes; returns what the server sends until it has answered or closed the connection."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=seconds) as connection:
        connection.sendall(head + body)
        return connection.recv(4096)


def test_bodies_too_large_or_too_slow_and_bytes_of_other_protocols_are_refused(live):
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert b" 408 " in raw(live, head + b"Content-Length: 100\r\n\r\n", b'{"model":')
    for other in (b"\x16\x03\x01\x02\x00\x01\x00" * 4, b"SPEAK"):
        assert b" 400 " in raw(live, other + b"\r\n\r\n")
    assert b" 413 " in raw(live, head + b"Content-Length: 999999999999\r\n\r\n")
    assert b" 413 " in raw(live, head + b"Transfer-Encoding: chunked\r\n\r\n", b"20000\r\n" + b" " * 0x20000 + b"\r\n")
    assert b" 400 " in raw(live, head + b"Content-Length: -5\r\n\r\n")


def test_incomplete_requests_are_closed_and_do_not_block_others(tmp_path, monkeypatch):
    for limit in ("HEAD_SECONDS", "SEND_SECONDS"):
        monkeypatch.setattr(f"myxtts.apps.server.serving.{limit}", 1.0)
    (tmp_path / "run").mkdir()
    with live_server(talkative_synthesizer(), tmp_path / "run", write_voices(tmp_path / "voices"), most=10) as live:
        ends, place = [], ("127.0.0.1", live.port)
        for _ in range(50):
            ends.append(socket.create_connection(place, timeout=60))
            ends[-1].sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: loc")
        assert live.speech()[0] == 200
        assert len(live.serving.server_state.connections) <= 10
        for one in ends:  # each is closed, by its deadline or to make room
            try:
                assert one.recv(10) == b""
            except ConnectionError:
                pass
        # The server does not wait for a body that nothing reads: uploads are off.
        head = b"PUT /v1/audio/voices/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        assert b" 404 " in raw(live, head, seconds=5)
        assert b"--allow-uploads" in live.ask("PUT", "/v1/audio/voices/a", b"x")[2]
        live.serving.config.app.mount("/ui", PlainTextResponse("large" * 2**22))
        with socket.create_connection(place) as slow:
            slow.sendall(b"GET /ui/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            count = sum(len(slow.recv(2**16)) for _ in range(40) if not time.sleep(0.1))  # longer than the limit
            assert count + sum(map(len, iter(lambda: slow.recv(2**20), b""))) > 5 * 2**22
        with socket.create_connection(place) as silent:  # does not read the response
            silent.sendall(b"GET /ui/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
            live.wait_until(lambda: live.serving.server_state.connections)
            live.wait_until(lambda: not live.serving.server_state.connections)
