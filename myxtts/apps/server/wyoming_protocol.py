"""Server for the Wyoming protocol, which Home Assistant uses to request speech (github.com/OHF-Voice/wyoming).

The protocol has no API keys. Use it only on this machine or in a trusted network.
"""

import asyncio
import socket
import time

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.server import AsyncEventHandler
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

import myxtts
from myxtts.apps.server.gate import ApiError, ServerSettings, as_api_error, log
from myxtts.apps.server.serving import SEND_SECONDS
from myxtts.apps.server.speaker import Speaker
from myxtts.apps.server.speech import SpeechRequest, find_voice, make_job, without_sections
from myxtts.apps.server.voices import VoiceBook
from myxtts.audio.files import to_int16
from myxtts.text.cleaners import split_sentences
from myxtts.text.reading import SENTENCE_PAUSE_SECONDS

MOST_DATA_BYTES = 2**20


async def serve_wyoming(listener: socket.socket, speaker: Speaker, voices: VoiceBook, settings: ServerSettings) -> None:
    """Serves Wyoming clients on a listening socket until cancelled. Wyoming and HTTP requests share one queue."""
    answer = lambda reader, writer: _Conversation(reader, writer, speaker, voices, settings).run()
    async with await asyncio.start_server(answer, sock=listener) as server:
        host, port = listener.getsockname()[:2]
        log.info("Listening on tcp://%s:%s (Wyoming)", f"[{host}]" if ":" in host else host, port)
        await server.serve_forever()


class _LimitedReader:
    """Stream reader for Wyoming's `async_read_event`; raises `ValueError` for events larger than `MOST_DATA_BYTES`."""

    def __init__(self, reader: asyncio.StreamReader):
        self.readline, self._reader = reader.readline, reader

    async def readexactly(self, length: int) -> bytes:
        if length > MOST_DATA_BYTES:
            raise ValueError("too large")
        return await self._reader.readexactly(length)


class _Conversation(AsyncEventHandler):
    """Connection to a Wyoming client. An event may have a `voice` field: a dict with `name`, `language` or both."""

    def __init__(self, reader, writer, speaker: Speaker, voices: VoiceBook, settings: ServerSettings):
        super().__init__(_LimitedReader(reader), writer)
        self.speaker, self.voices, self.settings = speaker, voices, settings
        self._streamed, self._voice = None, {}

    async def run(self):
        """Answers events until the client disconnects, violates the protocol or does not read."""
        try:
            await super().run()
        except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            # Raised for broken connections and by the event parser. Closing would wait until the client reads.
            self.writer.transport.abort()

    async def handle_event(self, event: Event) -> bool:
        """Answers an event; returns False to disconnect the client. Raises `OSError` if it left or does not read."""
        if not isinstance(event.type, str) or not isinstance(event.data, dict):
            return False
        try:
            await self._answer(event.type, event.data)
        except (ConnectionError, TimeoutError):  # the client has left, or does not read
            self._log("none")
            raise
        except Exception as error:
            shown = as_api_error(error)
            if shown.status == 500:
                log.exception("A Wyoming event failed")
            self._log(shown.status, error=shown.code)
            await self.write_event(Error(shown.message, shown.code).event())
            return False
        return True

    def _log(self, status, **facts):
        self.speaker.metrics["requests"].labels("wyoming", status).inc()
        log.info("request", extra={"fields": dict(path="wyoming", status=status) | facts})

    async def write_event(self, event: Event) -> None:
        """Sends an event to the client. Raises `TimeoutError` if the client does not receive it in time."""
        async with asyncio.timeout(SEND_SECONDS):
            await super().write_event(event)

    async def _answer(self, kind, data):
        voice = data.get("voice") if isinstance(data.get("voice"), dict) else {}
        voice = dict(voice=str(voice.get("name") or ""), language=str(voice.get("language") or ""))
        text = data.get("text") if isinstance(data.get("text"), str) else ""
        if Describe.is_type(kind):
            await self.write_event((await asyncio.to_thread(self._info)).event())
        elif Ping.is_type(kind):
            await self.write_event(Pong().event())
        elif Synthesize.is_type(kind) and self._streamed is None:
            await self._speak(text, voice)
        elif SynthesizeStart.is_type(kind):
            self._streamed, self._voice = "", voice
        elif SynthesizeChunk.is_type(kind) and self._streamed is not None:
            if max(len(self._streamed), len(text)) > self.settings.max_characters:
                raise ApiError(400, f"A sentence must have at most {self.settings.max_characters} characters.")
            self._streamed, is_open = without_sections(self._streamed + text)
            if self._streamed.lstrip()[:7].lower() == "<think>":  # thoughts may be long; only their end matters
                self._streamed = "<think>" + self._streamed.partition(">")[2][-8:]
                return
            if is_open and len(self._streamed) <= self.settings.max_characters:
                return
            _, language = await asyncio.to_thread(find_voice, self._streamed, self.voices, self.settings, **self._voice)
            marks = () if "«" in self._streamed else ("! ", "? ", "… ")  # ` »` may follow
            is_word, is_ended = self._streamed[-1:].isalnum(), self._streamed.endswith(("\n", *marks))
            text = self._streamed + ("x" if is_word else "X" * is_ended)  # an unfinished last word; a next sentence
            pieces = [text, *split_sentences(text, language)]
            start = text.rindex(pieces[-1])
            is_begun = is_word and " " not in pieces[-1] and text.endswith(f" {pieces[-1]}")  # such as "XIX. Jahrh"
            if is_begun and len(text) <= self.settings.max_characters:
                start = max(0, text.rfind(pieces[-2], 0, start))
            sentences, self._streamed = self._streamed[:start], self._streamed[start:]
            if sentences.strip():
                await self._speak(sentences, self._voice, SENTENCE_PAUSE_SECONDS)
        elif SynthesizeStop.is_type(kind) and self._streamed is not None:
            rest, self._streamed = self._streamed, None
            if rest.strip():
                await self._speak(rest, self._voice)
            await self.write_event(SynthesizeStopped().event())

    def _info(self):
        own = dict(attribution=Attribution("MyXTTS", ""), installed=True, version=myxtts.__version__)
        languages = list(self.speaker.synthesizer.tokenizer.languages)
        voices = [
            TtsVoice(name, description=name, languages=[one.language] if one.language else languages, **own)
            for name, one in self.voices.all().items()
        ]
        program = TtsProgram("myxtts", description="MyXTTS", voices=voices, supports_synthesize_streaming=True, **own)
        return Info(tts=[program])

    async def _speak(self, text, voice, pause_seconds=0.0):
        request = SpeechRequest.model_construct(model=self.settings.model, input=text, response_format="pcm", **voice)
        job = await asyncio.to_thread(make_job, request, self.speaker, self.voices, self.settings)
        job.silences = job.silences[0], job.silences[1] + pause_seconds
        form = self.speaker.synthesizer.sample_rate, 2, 1
        began = time.monotonic()
        self.speaker.submit(job)
        try:
            await self.write_event(AudioStart(*form).event())
            while (samples := await job.next()) is not None:
                await self.write_event(AudioChunk(*form, to_int16(samples).tobytes()).event())
            await self.write_event(AudioStop().event())
            self._log(200, characters=len(text), language=job.language, seconds=round(time.monotonic() - began, 4))
        finally:
            self.speaker.cancel(job)
