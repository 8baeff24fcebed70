"""Sound on its way to a client: the answer begins with the first sound, and ends the speaking when nobody listens."""

import asyncio
import base64
import json

import numpy as np
from starlette.responses import JSONResponse, Response

from myxtts.apps.server.errors import told
from myxtts.apps.server.speaker import Speaker, SpeechJob
from myxtts.audio.encoding import SoundEncoder, StreamResampler

SOUND_RATE = 24_000
"""Of all sound that is sent, in Hz: what clients of OpenAI take PCM for."""
MEDIA_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg", "flac": "audio/flac", "wav": "audio/wav", "pcm": "audio/pcm"}
SEND_SECONDS = 30.0
"""How long a client may take to read what it was sent before it is given up."""


class Listener:
    """The sound of a `SpeechJob` for a coroutine; made in the thread of its event loop."""

    def __init__(self):
        self._loop, self._sound = asyncio.get_running_loop(), asyncio.Queue()

    def tell(self, item: np.ndarray | Exception | None) -> None:
        """As `SpeechJob.tell`; any thread may call it."""
        try:
            self._loop.call_soon_threadsafe(self._sound.put_nowait, item)
        except RuntimeError:
            pass  # the loop is closed: nobody listens any more

    async def next(self) -> np.ndarray | None:
        """The next samples; None at the end. Raises the error that ended the speech."""
        item = await self._sound.get()
        if isinstance(item, Exception):
            raise item
        return item


class SpeechResponse(Response):
    """Speaks one job and sends it.

    Args:
        job: With the `tell` of `listener`.
        is_open: Send the sound while it is made; else when all is known.
        events: Send it as server-sent events, in OpenAI's form.
    """

    def __init__(
        self, speaker: Speaker, job: SpeechJob, listener: Listener, sound_format: str, is_open: bool, events: bool
    ):
        self.speaker, self.job, self.listener, self.events = speaker, job, listener, events
        self.encoder = SoundEncoder(sound_format, SOUND_RATE, is_open)
        self.resampler = StreamResampler(speaker.synthesizer.sample_rate, SOUND_RATE)
        self.is_open, self.background = is_open, None
        self._started = False

    async def __call__(self, scope, receive, send):
        """See https://asgi.readthedocs.io/en/latest/specs/www.html."""
        speaking = asyncio.create_task(self._speak(scope, receive, send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((speaking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                speaking.result()
        finally:
            self.speaker.cancel(self.job)
            for task in (speaking, leaving):
                task.cancel()
            await asyncio.gather(speaking, leaving, return_exceptions=True)
            self._tell(scope)

    async def _speak(self, scope, receive, send):
        try:
            self.speaker.submit(self.job)
            while (samples := await self.listener.next()) is not None:
                await self._send(send, self.encoder.add(self.resampler.add(samples)))
            await self._send(send, self.encoder.add(self.resampler.end()) + self.encoder.end(), is_last=True)
        except TimeoutError:
            return  # it does not read; without an end, the server closes the connection
        except Exception as error:
            answer = told(error)
            if not self._started:
                await JSONResponse(answer.body(), answer.status, answer.headers())(scope, receive, send)
            elif self.events:
                await self._body(send, _event(answer.body() | {"type": "error"}))
            # What has begun stays without an end, so that nobody takes a part for the whole.

    async def _send(self, send, content, is_last=False):
        if not (content or is_last):
            return
        if not self._started:
            self._started = True
            await self._start(send, content if is_last and not self.events else None)
        if self.events:
            parts = [_event({"type": "speech.audio.delta", "audio": base64.b64encode(content).decode()})]
            parts += [_event({"type": "speech.audio.done", "usage": self._usage()})] if is_last else []
            content = b"".join(parts)
        await self._body(send, content, more=not is_last)

    async def _start(self, send, whole=None):
        kind = "text/event-stream" if self.events else MEDIA_TYPES[self.encoder.sound_format]
        headers = {"content-type": kind, "cache-control": "no-store", "x-accel-buffering": "no"}
        if whole is not None:
            headers["content-length"] = str(len(whole))
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})

    async def _body(self, send, content, more=True):
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": content, "more_body": more})

    def _usage(self):
        return dict(
            input_tokens=len(self.job.text),
            output_tokens=self.job.num_codes,
            total_tokens=len(self.job.text) + self.job.num_codes,
        )

    def _tell(self, scope):
        """Leaves what the log is to say of it; of texts their length alone."""
        job = self.job
        facts = dict(characters=len(job.text), codes=job.num_codes, cancelled=job.cancelled)
        facts["sound_seconds"] = round(job.num_samples / self.speaker.synthesizer.sample_rate, 3)
        if job.first_sound:
            facts |= dict(first_sound=round(job.first_sound - job.arrived, 4))
        if job.begun:
            facts |= dict(queued=round(job.begun - job.arrived, 4))
        scope.setdefault("state", {})["told"] = facts


async def _until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(value):
    return f"data: {json.dumps(value)}\n\n".encode()
