"""The Wyoming protocol as Home Assistant uses it: a running server and the official client."""

import asyncio
import json
import re
import socket
from unittest.mock import AsyncMock, Mock

import pytest

pytest.importorskip("uvicorn", reason="needs the extra server")
pytest.importorskip("wyoming", reason="needs the extra test")

from live_server import is_alike, live_server, talkative_synthesizer, write_voices  # noqa: E402
from test_cleaners import rows  # noqa: E402
from wyoming.client import AsyncTcpClient  # noqa: E402
from wyoming.info import Describe, Info  # noqa: E402
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice  # noqa: E402

from myxtts.apps.server import wyoming_protocol  # noqa: E402
from myxtts.audio.files import to_int16  # noqa: E402


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    home, listener = tmp_path_factory.mktemp("wyoming"), socket.create_server(("127.0.0.1", 0))
    (home / "run").mkdir()
    voices, beside = write_voices(home / "voices"), lambda *parts: wyoming_protocol.serve_wyoming(listener, *parts)
    with live_server(talkative_synthesizer(), home / "run", voices, beside=beside, max_characters=400) as live:
        live.wyoming_port, live.voices = listener.getsockname()[1], voices
        yield live


def talk(live, *events, last):
    """Sends events; returns the received events, up to one of type `last`."""

    async def conversation():
        found = []
        async with AsyncTcpClient("127.0.0.1", live.wyoming_port) as client:
            for event in events:
                await client.write_event(event.event())
            while not found or found[-1].type not in (last, "error"):
                found.append(await asyncio.wait_for(client.read_event(), 900))
            assert found[-1].type != "error" or await client.read_event() is None, "an error ends the connection"
        return found

    return asyncio.run(conversation())


def sound(events):
    return b"".join(event.payload for event in events if event.type == "audio-chunk")


def test_description_names_the_voices(live):
    (info,) = talk(live, Describe(), last="info")
    (program,) = Info.from_event(info).tts
    assert [voice.name for voice in program.voices] == ["high", "low"] and program.supports_synthesize_streaming
    assert all("en" in voice.languages and voice.installed for voice in program.voices)


def test_text_becomes_the_audio_of_the_model(live):
    events = talk(live, Synthesize("one two.", SynthesizeVoice("low")), last="audio-stop")
    assert events[0].type == "audio-start" and events[0].data["rate"] == 24000 and events[0].data["width"] == 2
    expected = live.speaker.synthesizer.speak("one two.", live.voices / "low.wav", "en").samples
    assert is_alike(sound(events), to_int16(expected).tobytes())


def test_streamed_text_is_spoken_by_sentences(live):
    parts = [SynthesizeChunk(part) for part in ("one ", "two.\u200f thr", "ee four")]
    voice = SynthesizeVoice("low")
    events = talk(live, SynthesizeStart(voice=voice), *parts, SynthesizeStop(), last="synthesize-stopped")
    assert [event.type for event in events].count("audio-start") == 2
    say = lambda text, voice: sound(talk(live, Synthesize(text, voice), last="audio-stop"))
    assert is_alike(sound(events), say("one two. ", voice) + bytes(2 * 6000) + say("three four", voice))
    # Without a name, a voice of the language speaks.
    assert is_alike(say("one.", None), say("one.", SynthesizeVoice("high"))) and len(say("", None)) == 2 * 2400


HIDDEN = ["\n<think>Why? " + "So. " * 99 + "\n</think>", "~~~\n~~ one. two\n~~~\n", "```py\nx = 1 # a. b\n\ny\n```\n"]


@pytest.mark.parametrize("chunks", ["(?s).", r"\s*\S+\s?"])
@pytest.mark.parametrize(
    "row, hidden", [*((row, "") for row in rows("sentences.txt")), *(("en | One two. | Three.", one) for one in HIDDEN)]
)
def test_streamed_text_is_split_like_a_whole_text(row, hidden, chunks):
    language, *sentences = row.split(" | ")
    text, said = ("" if language in ("zh-cn", "am") else " ").join(sentences), []
    book = Mock(**{"model.tokenizer.languages": [language], "find.return_value.language": language})
    settings = Mock(language=None, max_characters=max(map(len, (*sentences, *HIDDEN[1:]))) + 2)
    server = wyoming_protocol._Conversation(Mock(), Mock(drain=AsyncMock()), None, book, settings)
    server._speak = lambda text, *_: asyncio.sleep(0, said.append(text))
    with asyncio.Runner() as runner:
        runner.run(server._answer("synthesize-start", {"voice": {"name": "own"}}))
        for chunk in re.findall("(?s)." if language in ("zh-cn", "am") else chunks, hidden + text):
            runner.run(server._answer("synthesize-chunk", {"text": chunk}))
        runner.run(server._answer("synthesize-stop", {}))
    assert "".join(said).lstrip() == text and [one.strip() for one in said] == sentences


@pytest.mark.parametrize("text, voice, fault", [("a", "../low", None), ("one " * 200, "low", None), ("", "", OSError)])
def test_text_that_cannot_be_spoken_is_reported(live, monkeypatch, text, voice, fault):
    monkeypatch.setattr(wyoming_protocol, "make_job", Mock(wraps=wyoming_protocol.make_job, side_effect=fault))
    (error,) = talk(live, Synthesize(text, SynthesizeVoice(voice)), last="error")
    assert error.data["text"] and "Traceback" not in error.data["text"]
    assert live.speaker.metrics["requests"].labels("wyoming", 500 if fault else 400)._value.get()  # like HTTP requests


@pytest.mark.parametrize(
    "content", [b"\x00\xff" * 50_000, b"{}\n", b"[" * 60_000 + b"\n", b'{"type": 5}\n', b'{"data_length": 9999999}\n']
)
def test_bytes_of_another_protocol_end_the_conversation(live, content):
    with socket.create_connection(("127.0.0.1", live.wyoming_port), timeout=900) as connection:
        try:
            connection.sendall(content)
            assert connection.recv(100) == b""
        except ConnectionError:
            pass


def test_client_that_leaves_frees_its_row(live):
    connection = socket.create_connection(("127.0.0.1", live.wyoming_port), timeout=900)
    data = json.dumps({"text": "one two three four. " * 15, "voice": {"name": "low"}}).encode()
    connection.sendall(json.dumps({"type": "synthesize", "data_length": len(data)}).encode() + b"\n" + data)
    assert connection.recv(10)
    connection.close()
    live.wait_until(lambda: live.speaker.load == (0, 0, 0) and not live.speaker.synthesizer.engine._rows)


def test_stop_finishes_the_text_that_is_being_spoken(live):
    live.serving.config.timeout_graceful_shutdown = 900  # on a busy machine, the text takes long

    async def last_event():
        async with AsyncTcpClient("127.0.0.1", live.wyoming_port) as client:
            await client.write_event(Synthesize("one two three four. " * 19, SynthesizeVoice("low")).event())
            while (await client.read_event()).type != "audio-chunk":
                pass
            live.serving.should_exit = True
            while (event := await client.read_event()).type == "audio-chunk":
                pass
            return event

    assert asyncio.run(last_event()).type == "audio-stop"
