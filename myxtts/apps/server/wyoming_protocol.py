"""The Wyoming protocol, by which Home Assistant asks for speech (github.com/OHF-Voice/wyoming).

An event is a line of JSON, then `data_length` bytes of JSON, then `payload_length` bytes of sound. The protocol knows
no keys: it is for this machine or for a network of friends.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import myxtts
from myxtts.apps.server.errors import ApiError, told
from myxtts.apps.server.speaker import Speaker, SpeechJob
from myxtts.apps.server.speech_response import SEND_SECONDS, Listener
from myxtts.apps.server.voices import VoiceBook
from myxtts.audio.files import to_pcm16
from myxtts.config.checks import UserError
from myxtts.text.languages import get_language

MOST_LINE_BYTES = 2**16
MOST_DATA_BYTES = 2**20
MOST_CLIENTS = 64
_SENTENCE_END = re.compile(r"[.!?…؟۔।。！？።]['\"”’)]*\s")


class WyomingServer:
    """Speaks for Wyoming clients through the same queue as the HTTP server."""

    def __init__(self, speaker: Speaker, voices: VoiceBook, language: str, max_characters: int):
        self.speaker, self.voices, self.language, self.max_characters = speaker, voices, language, max_characters
        self.port: int | None = None
        """Where it listens, once it does."""
        self._clients = 0

    async def serve(self, host: str, port: int) -> None:
        """Answers until it is cancelled; port 0 takes a free one."""
        server = await asyncio.start_server(self._client, host, port, limit=MOST_LINE_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            await server.serve_forever()

    async def _client(self, reader, writer):
        self._clients += 1
        try:
            if self._clients <= MOST_CLIENTS:
                await _Conversation(self, reader, writer).run()
        except (OSError, TimeoutError):
            pass  # gone
        finally:
            self._clients -= 1
            writer.close()

    def info(self) -> dict:
        """What it can do, in answer to `describe`."""
        origin = {"name": "MyXTTS", "url": "https://github.com/OHF-Voice/wyoming"}
        own = dict(attribution=origin, installed=True, version=myxtts.__version__)
        languages = self.speaker.synthesizer.tokenizer.languages
        voices = [
            {"name": name, "description": name, "languages": [one.language] if one.language else list(languages), **own}
            for name, one in self.voices.all().items()
        ]
        program = {"name": "myxtts", "description": "MyXTTS", "voices": voices, "supports_synthesize_streaming": True}
        return {"tts": [{**program, **own}]}

    def job(self, text: str, asked: dict, tell: Callable) -> SpeechJob:
        """A text and a client's `voice`, checked.

        Raises:
            UserError, ApiError: What is asked for cannot be spoken.
        """
        if len(text) > self.max_characters:
            raise ApiError(400, f"A text has at most {self.max_characters} characters. Received: {len(text)}.")
        voices = self.voices.all()
        name = asked.get("name") or next(iter(voices), "")
        voice, find = self.voices.find(name if isinstance(name, str) else "")
        language = asked.get("language") or voice.language or self.language
        try:
            language = get_language(str(language)).code
        except ValueError as error:
            raise ApiError(400, str(error), "language") from error
        self.speaker.synthesizer.text_front.pieces(text, language)
        return SpeechJob(text, find, tell, language)


class _Conversation:
    """One connection."""

    def __init__(self, server: WyomingServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.server, self.reader, self.writer = server, reader, writer
        self._events, self._gone = asyncio.Queue(16), asyncio.Event()
        self._streamed, self._voice = None, {}

    async def run(self):
        listening = asyncio.create_task(self._listen())
        try:
            while (event := await self._events.get()) is not None:
                kind, data = event
                try:
                    await self._answer(kind, data)
                except (UserError, ApiError) as error:
                    self._streamed = None
                    await self._send("error", {"text": told(error).message, "code": told(error).code})
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self):
        try:
            while event := await _read_event(self.reader):
                await self._events.put(event)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # gone, or not of this protocol: either way the conversation is over
        finally:
            self._gone.set()
            await self._events.put(None)

    async def _answer(self, kind, data):
        voice = data.get("voice") if isinstance(data.get("voice"), dict) else {}
        text = data.get("text") if isinstance(data.get("text"), str) else ""
        if kind == "describe":
            await self._send("info", await asyncio.to_thread(self.server.info))
        elif kind == "ping":
            await self._send("pong", {})
        elif kind == "synthesize" and self._streamed is None:
            await self._speak(text, voice)
        elif kind == "synthesize-start":
            self._streamed, self._voice = "", voice
        elif kind == "synthesize-chunk" and self._streamed is not None:
            self._streamed += text
            if len(self._streamed) > self.server.max_characters:
                raise ApiError(400, f"A sentence has at most {self.server.max_characters} characters.")
            if ends := [end.end() for end in _SENTENCE_END.finditer(self._streamed)]:
                said, self._streamed = self._streamed[: ends[-1]], self._streamed[ends[-1] :]
                await self._speak(said, self._voice)
        elif kind == "synthesize-stop" and self._streamed is not None:
            rest, self._streamed = self._streamed, None
            if rest.strip():
                await self._speak(rest, self._voice)
            await self._send("synthesize-stopped", {})

    async def _speak(self, text, voice):
        server, listener = self.server, Listener()
        job = await asyncio.to_thread(server.job, text, voice, listener.tell)
        form = {"rate": server.speaker.synthesizer.sample_rate, "width": 2, "channels": 1}
        server.speaker.submit(job)
        gone = asyncio.create_task(self._gone.wait())
        try:
            await self._send("audio-start", form)
            while (samples := await _unless(gone, listener.next())) is not None:
                await self._send("audio-chunk", form, to_pcm16(samples))
            await self._send("audio-stop", {})
        finally:
            gone.cancel()
            server.speaker.cancel(job)

    async def _send(self, kind: str, data: dict, payload: bytes = b""):
        content = json.dumps(data, ensure_ascii=False).encode()
        head = {"type": kind, "version": "1.5.4", "data_length": len(content)}
        head |= {"payload_length": len(payload)} if payload else {}
        self.writer.write(json.dumps(head).encode() + b"\n" + content + payload)
        async with asyncio.timeout(SEND_SECONDS):
            await self.writer.drain()


async def _read_event(reader: asyncio.StreamReader) -> tuple[str, dict] | None:
    """The next event, None at the end; raises ValueError for what is none or too large."""
    line = await reader.readline()
    if not line:
        return None
    try:
        head = json.loads(line)
    except RecursionError as error:
        raise ValueError("no event") from error
    if not isinstance(head, dict) or not isinstance(head.get("type"), str):
        raise ValueError("no event")
    data = head["data"] if isinstance(head.get("data"), dict) else {}
    for name in ("data_length", "payload_length"):
        length = head.get(name) or 0
        if type(length) is not int or not 0 <= length <= MOST_DATA_BYTES:
            raise ValueError("too large")
        content = await reader.readexactly(length)
        if name == "data_length" and content:
            more = json.loads(content)
            data |= more if isinstance(more, dict) else {}
    return head["type"], data


async def _unless(gone: asyncio.Task, coming: Coroutine) -> Any:
    """What `coming` gives; raises ConnectionResetError once `gone` is done."""
    task = asyncio.ensure_future(coming)
    await asyncio.wait((gone, task), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    raise ConnectionResetError("The client is gone.")
