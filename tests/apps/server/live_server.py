"""A server with a tiny random model, on a free port of this machine."""

import functools
import http.client
import json
import logging
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
from test_streaming import make_synthesizer
from tiny import WORDS, voiced

from myxtts.audio.encoding import write_audio
from myxtts.storage.speakers import read_speakers
from myxtts.text.tokenizer import XTTSTokenizer


@functools.cache
def talkative_synthesizer():
    """Returns the synthesizer of all tests, with a random model that seldom stops before the maximum of codes."""
    tokenizer = XTTSTokenizer.train([(f"{word}.", "en") for word in WORDS])
    return make_synthesizer(tokenizer, "istft", ("dvae", "gpt", "speaker", "decoder"), 63)


def write_voices(folder):
    """Creates `folder`, writes the recordings `low.wav` and `high.wav` into it, and returns it."""
    folder.mkdir()
    for name, pitch_hz in (("low", 110), ("high", 220)):
        write_audio(folder / f"{name}.wav", voiced(1.0, pitch_hz, 1), 22050)
    return folder


def is_alike(pcm, other):
    """Whether two 16-bit signals differ by at most one step; rounding depends on the rest of the batch."""
    samples, others = (np.frombuffer(sound, "<i2").astype(int) for sound in (pcm, other))
    return len(samples) == len(others) and np.abs(samples - others).max() <= 1


class Live:
    """A running server with a simple client."""

    def __init__(self, serving, speaker, port):
        self.serving, self.speaker, self.port = serving, speaker, port
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, method, path, body=None, headers=(), timeout=900):
        """Sends a request; returns status, headers and body of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if not isinstance(body, bytes | None):
            body = json.dumps(body).encode()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def speech(self, text="one two.", voice="low", **fields):
        """Requests speech, as PCM by default; returns status, headers and body."""
        fields = dict(model="tts-1", input=text, voice=voice, response_format="pcm") | fields
        return self.ask("POST", "/v1/audio/speech", fields)

    def wait_until(self, condition, seconds=900):
        """Polls a condition until it is true; fails after a time limit."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.005)


@contextmanager
def live_server(
    synthesizer, run, voices=None, max_waiting=32, queue_seconds=600.0, beside=lambda *_: None, most=0, **settings
):
    """Runs a server in a thread until the block ends; stops it as a signal does."""
    from myxtts.apps.server.app import make_app
    from myxtts.apps.server.gate import ServerSettings
    from myxtts.apps.server.serving import Serving
    from myxtts.apps.server.speaker import Speaker
    from myxtts.apps.server.voices import VoiceBook

    speaker = Speaker(synthesizer, max_waiting, queue_seconds, warm="none")
    speakers = {name: one.language for name, one in read_speakers(run).items()}
    synthesizer.folder = run
    parts = speaker, VoiceBook(synthesizer, speakers, voices), ServerSettings("tiny", **settings)
    serving = Serving(make_app(*parts), speaker, most, 10, beside(*parts))
    thread = threading.Thread(target=serving.run, args=([socket.create_server(("127.0.0.1", 0))],), name="serving")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    thread.start()
    try:
        while not (serving.started and speaker.ready):
            assert thread.is_alive()
            time.sleep(0.01)
        yield Live(serving, speaker, serving.servers[0].sockets[0].getsockname()[1])
    finally:
        serving.should_exit = True
        thread.join(120)
        assert not thread.is_alive() and not speaker.alive
