"""The Wyoming protocol, by which Home Assistant asks for speech (github.com/OHF-Voice/wyoming).

The protocol knows no keys: it is for this machine or for a network of friends.
"""

import asyncio
import re

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

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

    def info(self) -> Info:
        """What it can do, in answer to `describe`."""
        own = dict(attribution=Attribution("MyXTTS", ""), installed=True, version=myxtts.__version__)
        languages = list(self.speaker.synthesizer.tokenizer.languages)
        voices = [
            TtsVoice(name, description=name, languages=[one.language] if one.language else languages, **own)
            for name, one in self.voices.all().items()
        ]
        program = TtsProgram("myxtts", description="MyXTTS", voices=voices, supports_synthesize_streaming=True, **own)
        return Info(tts=[program])

    def job(self, text: str, asked: dict, listener: Listener) -> SpeechJob:
        """A text and a client's `voice`, checked.

        Raises:
            UserError, ApiError: What is asked for cannot be spoken.
        """
        if len(text) > self.max_characters:
            raise ApiError(400, f"A text has at most {self.max_characters} characters. Received: {len(text)}.")
        name = asked.get("name") or next(iter(self.voices.all()), "")
        voice, find = self.voices.find(str(name))
        try:
            language = get_language(str(asked.get("language") or voice.language or self.language)).code
        except ValueError as error:
            raise ApiError(400, str(error), "language") from error
        self.speaker.synthesizer.text_front.pieces(text, language)
        return SpeechJob(text, find, listener.tell, language)


class _LimitedReader:
    """A stream for `async_read_event` that refuses what no event needs."""

    def __init__(self, reader: asyncio.StreamReader):
        self.readline, self._reader = reader.readline, reader

    async def readexactly(self, length: int) -> bytes:
        if not isinstance(length, int) or length > MOST_DATA_BYTES:
            raise ValueError("too large")
        return await self._reader.readexactly(length)


class _Conversation:
    """One connection."""

    def __init__(self, server: WyomingServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.server, self.reader, self.writer = server, _LimitedReader(reader), writer
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(16)
        self._streamed, self._voice = None, {}

    async def run(self):
        """Answers one event after another, until the client is gone or speaks another protocol."""
        listening = asyncio.create_task(self._listen())
        answering = asyncio.create_task(self._answer_all())
        await asyncio.wait((listening, answering), return_when=asyncio.FIRST_COMPLETED)
        for task in (listening, answering):
            task.cancel()
        await asyncio.gather(listening, answering, return_exceptions=True)

    async def _listen(self):
        # Other protocols end in these errors, and a client that is gone in None.
        try:
            while (event := await async_read_event(self.reader)) and isinstance(event.type, str):
                await self._events.put(event)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, asyncio.IncompleteReadError):
            pass

    async def _answer_all(self):
        while event := await self._events.get():
            try:
                await self._answer(event.type, event.data if isinstance(event.data, dict) else {})
            except (UserError, ApiError) as error:
                self._streamed = None
                await self._send(Error(told(error).message, told(error).code).event())

    async def _answer(self, kind, data):
        voice = data.get("voice") if isinstance(data.get("voice"), dict) else {}
        text = data.get("text") if isinstance(data.get("text"), str) else ""
        if Describe.is_type(kind):
            await self._send((await asyncio.to_thread(self.server.info)).event())
        elif Ping.is_type(kind):
            await self._send(Pong().event())
        elif Synthesize.is_type(kind) and self._streamed is None:
            await self._speak(text, voice)
        elif SynthesizeStart.is_type(kind):
            self._streamed, self._voice = "", voice
        elif SynthesizeChunk.is_type(kind) and self._streamed is not None:
            self._streamed += text
            if len(self._streamed) > self.server.max_characters:
                raise ApiError(400, f"A sentence has at most {self.server.max_characters} characters.")
            if ends := [end.end() for end in _SENTENCE_END.finditer(self._streamed)]:
                said, self._streamed = self._streamed[: ends[-1]], self._streamed[ends[-1] :]
                await self._speak(said, self._voice)
        elif SynthesizeStop.is_type(kind) and self._streamed is not None:
            rest, self._streamed = self._streamed, None
            if rest.strip():
                await self._speak(rest, self._voice)
            await self._send(SynthesizeStopped().event())

    async def _speak(self, text, voice):
        server, listener = self.server, Listener()
        job = await asyncio.to_thread(server.job, text, voice, listener)
        form = server.speaker.synthesizer.sample_rate, 2, 1
        server.speaker.submit(job)
        try:
            await self._send(AudioStart(*form).event())
            while (samples := await listener.next()) is not None:
                await self._send(AudioChunk(*form, to_pcm16(samples)).event())
            await self._send(AudioStop().event())
        finally:
            server.speaker.cancel(job)

    async def _send(self, event: Event):
        async with asyncio.timeout(SEND_SECONDS):
            await async_write_event(event, self.writer)
