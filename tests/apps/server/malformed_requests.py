"""Malformed requests, of which a server must answer each with 4xx in bounded time, without writing anything."""

import json
import random
import socket
import string
import time
from collections.abc import Iterator
from urllib.parse import quote

ALPHABET = string.printable + "\x00\x7f\u200f\ud7ff\U0001f600漢یé"
PATHS = (
    "../{}",
    "..%2f{}",
    "/etc/passwd",
    "..\\{}",
    "{}/..",
    "{}.wav",
    "file:///{}",
    "~/{}",
    "{}\x00",
    ".{}",
    "{} ",
    "$({})",
)
CODINGS = ("cp037", "cp500", "cp1026")
"""In which a request is no JSON; UTF-16 and UTF-32 are known from their first bytes."""
WRONG = {
    "input": ("", None, 5, [], {}, True, "…", "\x00", "one " * 5_000),
    "model": ("", None, 5, "gpt-9", "../model"),
    "voice": (None, 3, {}, [], {"id": 3}, {"id": "../a"}, "", "a" * 300),
    "response_format": ("exe", "aac", "", None, 7, "wav/../pcm"),
    "speed": (0, -1, 5, "1", True, None, [], 1e308),
    "seed": (-1, 2**64, 1.5, "1", [], 10**400),
    "temperature": (-1, 100, "hot", []),
    "top_p": (-0.1, 2, "x"),
    "top_k": (-5, 1.5, "x"),
    "repetition_penalty": (0, -1, "x"),
    "language": ("xx", "../en", 3, []),
    "stream_format": ("ws", 1, []),
}
HEAD = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\n"


def posted(body: bytes, kind: str = "application/json") -> bytes:
    """A request with a body."""
    return (HEAD.format(kind) + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


class Malformed:
    """Draws requests, none of which is right; each method is a way to be wrong.

    Args:
        good: The fields of a request that is right.
    """

    def __init__(self, good: dict, seed: int = 0):
        self.good, self.drawn = good, random.Random(seed)

    def wrong_field(self) -> bytes:
        """A value that a field may not have."""
        name = self.drawn.choice(list(WRONG))
        return posted(json.dumps({**self.good, name: self.drawn.choice(WRONG[name])}).encode())

    def missing_field(self) -> bytes:
        """One that must be there is not."""
        name = self.drawn.choice(("model", "input", "voice"))
        return posted(json.dumps({key: value for key, value in self.good.items() if key != name}).encode())

    def unknown_field(self) -> bytes:
        """One that there is not."""
        return posted(json.dumps({**self.good, "x" + "".join(self.drawn.choices(ALPHABET, k=8)): 1}).encode())

    def path_as_voice(self) -> bytes:
        """A voice that looks like a path."""
        return posted(json.dumps({**self.good, "voice": self.drawn.choice(PATHS).format(self.good["voice"])}).encode())

    def cut_body(self) -> bytes:
        """The beginning of a request."""
        body = json.dumps(self.good).encode()
        return posted(body[: self.drawn.randrange(len(body))])

    def other_encoding(self) -> bytes:
        """Not UTF-8."""
        return posted(json.dumps(self.good).encode(self.drawn.choice(CODINGS)))

    def other_type(self) -> bytes:
        """What a form on a page elsewhere may send."""
        kind = self.drawn.choice(("text/plain", "image/png", "multipart/form-data"))
        return posted(json.dumps(self.good).encode(), kind)

    def random_bytes(self) -> bytes:
        """No text at all."""
        return posted(self.drawn.randbytes(self.drawn.choice((1, 100, 10_000))))

    def deep(self) -> bytes:
        """Brackets in brackets."""
        depth = self.drawn.choice((100, 5_000, 20_000))
        return posted(b'{"input":' + b"[" * depth + b"]" * depth + b"}")

    def too_large(self) -> bytes:
        """A length that is none or too large."""
        head = HEAD.format("application/json").encode()
        return (
            head
            + self.drawn.choice((b"Content-Length: 99999999999", b"Content-Length: -5", b"Content-Length: x"))
            + b"\r\n\r\n"
        )

    def slow(self) -> bytes:
        """A body that does not come."""
        return HEAD.format("application/json").encode() + b'Content-Length: 100\r\n\r\n{"model":'

    def wrong_path(self) -> bytes:
        """A path or a method that there is not."""
        name = quote(self.drawn.choice(PATHS).format(self.good["voice"]), safe="/.%~")
        line = self.drawn.choice(("GET /{}", "PUT /v1/audio/voices/..%2f{}", "DELETE /v1/models", "GET /v1/models/{}"))
        return f"{line.format(name)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()

    def other_host(self) -> bytes:
        """A foreign name for this machine."""
        return posted(json.dumps(self.good).encode()).replace(b"Host: localhost", b"Host: evil.example")

    def no_http(self) -> bytes:
        """Another protocol."""
        tls, nothing = b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 64
        return self.drawn.choice((tls, nothing, b"SPEAK\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n")) + b"\r\n\r\n"


def requests(count: int, good: dict) -> Iterator[tuple[str, bytes]]:
    """`(kind, bytes)`, of each kind in turn."""
    malformed = Malformed(good)
    ways = [name for name in vars(Malformed) if not name.startswith("_")]
    for number in range(count):
        way = ways[number % len(ways)]
        yield way.replace("_", " "), getattr(malformed, way)()


def send(port: int, data: bytes, seconds: float) -> tuple[str, float]:
    """Status of the answer and how long it took."""
    began = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
            connection.sendall(data)
            status = connection.recv(65536).split(b" ", 2)[1:2]
    except TimeoutError:
        status = [b"none in time"]
    except ConnectionError:
        status = [b"closed"]
    return (status[0] if status else b"closed").decode("latin-1"), time.monotonic() - began
