"""How a server does under load: many requests at once, first sound, listeners that leave.

    python utilities/benchmarks/serving.py --checkpoint runs/mine --requests 200 --disconnects 1000

A live server in this process, clients in threads. All figures are of one run and in turns where they are compared; read
their ratios. Those of processor time count the clients too, and say how much less there is to do; those of the clock
also hold what two cores do at once, and what others do on this machine.
"""

import argparse
import http.client
import json
import logging
import os
import random
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "apps" / "server")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
from bench_extra import others_seconds, process_state  # noqa: E402
from live_server import Live, live_server, write_voices  # noqa: E402

from myxtts.inference.synthesizer import Synthesizer  # noqa: E402

SENTENCES = (
    "My mother sees the red house today.",
    "The teacher sees the green garden now.",
    "Our neighbour likes a cup of tea.",
    "The little girl looks for the blue book in the morning.",
    "He reads.",
)


def text_of(number: int) -> str:
    """Texts of one to four sentences."""
    chosen = (SENTENCES[(number + n * (1 + number % 3)) % len(SENTENCES)] for n in range(1 + number % 4))
    return "\n\n".join(chosen)


class Timed:
    """A request, and when its first and last bytes came, in seconds from its start."""

    def __init__(self, live: Live, number: int):
        body = dict(model="tts-1", input=text_of(number), voice="low", response_format="pcm", seed=number)
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=3600)
        began = time.monotonic()
        connection.request("POST", "/v1/audio/speech", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.status, first = answer.status, answer.read(1)
        self.first = time.monotonic() - began
        self.sound = first + answer.read()
        self.seconds = time.monotonic() - began
        connection.close()


def difference(one: bytes, other: bytes) -> float:
    """Largest difference of two sounds in steps of 16 bits; infinite for sounds of different lengths."""
    if len(one) != len(other):
        return float("inf")
    return float(np.abs(np.frombuffer(one, "<i2").astype(int) - np.frombuffer(other, "<i2")).max())


def load(live: Live, count: int, alone: int) -> None:
    """Requests one after the other, then all at once."""
    began, worked = time.monotonic(), time.process_time()
    one_by_one = [Timed(live, number) for number in range(alone)]
    alone_rates = rates(one_by_one, began, worked)
    began, worked = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(count) as pool:
        together = list(pool.map(lambda number: Timed(live, number), range(count)))
    by_clock, by_work = rates(together, began, worked)
    waits = sorted(one.first for one in together)
    mixed = max(difference(one.sound, other.sound) for one, other in zip(one_by_one, together))
    print(f"{count} requests at once: {sum(one.status == 200 for one in together)} answered")
    print(f"largest difference from the same {alone} alone: {mixed:g} of 32768")
    print(f"first sound: median {median(waits):.2f} s, longest {waits[-1]:.2f} s ({waits[-1] / median(waits):.2f}x)")
    ratios = f"{by_clock / alone_rates[0]:.2f}x one at a time, by processor time {by_work / alone_rates[1]:.2f}x"
    print(f"throughput: {by_clock:.1f} s of sound a second, {ratios}")


def rates(answers: list[Timed], began: float, worked: float) -> tuple[float, float]:
    """Seconds of sound in a second of the clock, and of processor time, since these."""
    seconds = sum(len(one.sound) for one in answers) / 48e3
    return seconds / (time.monotonic() - began), seconds / (time.process_time() - worked)


def first_sound(live: Live, turns: int) -> None:
    """Of a server with nothing to do, against the engine's own, in turns."""
    synthesizer = live.speaker.synthesizer
    voice = synthesizer.as_voice(live.voices / "low.wav")
    over_http, own = [], []

    def ask(turn):
        over_http.append(Timed(live, turn).first)
        live.wait_until(lambda: live.speaker.load == (0, 0, 0))

    def stream(turn):
        began = time.monotonic()
        sound = synthesizer.stream(text_of(turn), voice, "en", seed=turn)
        next(sound)
        own.append(time.monotonic() - began)
        sound.close()

    for turn in range(turns):
        for one in (ask, stream) if turn % 2 else (stream, ask):  # neither is always the one that comes second
            one(turn)
    ratio = median(over_http) / median(own)
    told = f"{1e3 * median(over_http):.0f} ms over HTTP, {1e3 * median(own):.0f} ms by the engine"
    print(
        f"first sound, medians of {turns}: {told} ({ratio:.2f}x); shortest {min(over_http) / min(own):.2f}x", flush=True
    )


def disconnects(live: Live, count: int) -> None:
    """Listeners that leave at random moments, and what is left of them."""
    chosen, before = random.Random(0), process_state()

    def leave(number):
        body = json.dumps(dict(model="tts-1", input=text_of(3), voice="low", response_format="pcm")).encode()
        head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(chosen.random() * 0.5)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(count)))
    live.wait_until(lambda: live.speaker.load == (0, 0, 0) and not live.speaker.synthesizer.engine._rows, 600)
    after, files = process_state(), len(os.listdir("/proc/self/fd"))
    grown = f"memory {(after[0] - before[0]) / 2**20:+.0f} MB, {files} files open"
    told = f"rows 0, threads {before[2]} -> {after[2]}, {grown}"
    print(f"{count} disconnects: {told}; the next request is answered with {Timed(live, 0).status}")


def main() -> None:
    """Runs all three and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", metavar="RUN", required=True, help="a trained model, of English")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--alone", type=int, help="requests that are also made one by one (default: all)")
    plain = "never compile: what is compiled on the way, after a thousand steps of a shape, is waited for by all"
    parser.add_argument("--plain", action="store_const", const=False, dest="compiled", help=plain)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--disconnects", type=int, default=1000)
    arguments = parser.parse_args()
    logging.getLogger("myxtts").setLevel(logging.ERROR)
    home, others, began = Path(tempfile.mkdtemp()), others_seconds(), time.monotonic()
    (home / "run").mkdir()
    voices = write_voices(home / "voices")
    synthesizer = Synthesizer.load(arguments.checkpoint, compiled=arguments.compiled)
    with live_server(synthesizer, home / "run", voices, arguments.requests, queue_seconds=3600) as live:
        live.voices = voices
        Timed(live, 3)  # traces
        first_sound(live, arguments.turns)
        load(live, arguments.requests, arguments.requests if arguments.alone is None else arguments.alone)
        if arguments.disconnects:
            disconnects(live, arguments.disconnects)
    busy = (others_seconds() - others) / (time.monotonic() - began)
    print(f"threads left: {threading.active_count()}; others used {busy:.1f} of {os.cpu_count()} cores meanwhile")


if __name__ == "__main__":
    main()
