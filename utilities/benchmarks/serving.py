"""Measures a server under load: concurrent clients, time to the first byte, disconnects.

    python utilities/benchmarks/serving.py --checkpoint runs/mine --clients 1 4 16 32 --disconnects 1000

`myxtts serve` runs in its own process, the clients are threads. The checkpoint may be a run, `base` or an exported
folder. Each number of clients requests the same texts; the audio is compared with that for the first number of clients.
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]

SENTENCES = """My mother sees the red house today.
The teacher sees the green garden now.
Our neighbour likes a cup of tea.
The little girl looks for the blue book in the morning.
He reads.""".splitlines()
HEAD = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def body_of(number: int, voice: str) -> bytes:
    """Returns the body of a request for one to four sentences."""
    chosen = (SENTENCES[(number + n * (1 + number % 3)) % len(SENTENCES)] for n in range(1 + number % 4))
    asked = dict(model="tts-1", input="\n\n".join(chosen), voice=voice, response_format="pcm", seed=number)
    return json.dumps(asked).encode()


class Server(AbstractContextManager):
    """Context manager that runs `myxtts serve` on a free port, with additional `flags`."""

    def __init__(self, checkpoint: str, *flags: str):
        self.log = tempfile.TemporaryFile("w+")
        words = [*"-m myxtts serve --port 0 --max-connections 0 --checkpoint".split(), checkpoint, *flags]
        began = time.monotonic()
        self.command = subprocess.Popen([sys.executable, *words], cwd=ROOT, stderr=self.log)
        self.process = psutil.Process(self.command.pid)
        self.port = int(self._wait_for(lambda: re.search(r"Listening on .*:(\d+)", self._read_log()))[1])
        self._wait_for(lambda: self.load()["ready"])
        memory = self.process.memory_info().rss / 2**20
        print(f"ready after {time.monotonic() - began:.1f} s, {self.work():.1f} s of CPU time, with {memory:.0f} MB")

    def _read_log(self):
        self.log.seek(0)
        return self.log.read()

    def _wait_for(self, condition):
        while not (found := condition()):
            if self.command.poll() is not None:
                sys.exit(self._read_log())
            time.sleep(0.02)
        return found

    def load(self) -> dict:
        """Returns the response of `/ready`: `ready`, and the numbers of texts that wait and that are being spoken."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("GET", "/ready")
        return json.loads(connection.getresponse().read())

    def work(self) -> float:
        """Returns the CPU seconds that the server has used so far."""
        return sum(self.process.cpu_times()[:2])

    def state(self) -> tuple[float, int, int]:
        """Waits until the server is idle; returns its memory in MB and its numbers of threads and open files."""
        self._wait_for(lambda: self.load()["waiting"] == self.load()["speaking"] == 0)
        time.sleep(2)
        return self.process.memory_info().rss / 2**20, self.process.num_threads(), self.process.num_fds()

    def __exit__(self, *_):
        self.command.terminate()
        self.command.wait()


def others_seconds() -> float:
    """Returns the CPU seconds of all other processes since the machine started, to detect a busy machine."""
    total = psutil.cpu_times()
    return total.user + total.nice + total.system - sum(os.times()[:2])


class Timed:
    """A sent request, with its status, its audio, and the seconds until the first and until the last byte."""

    def __init__(self, server: Server, number: int, voice: str):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=3600)
        began = time.monotonic()
        connection.request("POST", "/v1/audio/speech", body_of(number, voice), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.status, first = answer.status, answer.read(1)
        self.first = time.monotonic() - began
        self.sound = first + answer.read()
        self.seconds = time.monotonic() - began


def difference(one: Timed, other: Timed) -> float:
    """Returns the largest difference of two 16-bit signals; infinity if their lengths differ, 0 if one was refused."""
    if not one.status == other.status == 200:
        return 0.0
    pair = [np.frombuffer(answer.sound, "<i2").astype(int) for answer in (one, other)]
    return float(np.abs(np.subtract(*pair)).max()) if len(one.sound) == len(other.sound) else float("inf")


def load(server: Server, clients: int, requests: int, voice: str) -> tuple[list[Timed], str]:
    """Sends the requests from `clients` threads; returns the responses and a row of the table."""
    began, worked = time.monotonic(), server.work()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda number: Timed(server, number, voice), range(requests)))
    if not (spoken := [one for one in answers if one.status == 200]):
        sys.exit(f"No request was answered. Status {answers[0].status}: {answers[0].sound.decode(errors='replace')}")
    seconds, worked = time.monotonic() - began, server.work() - worked
    sound, firsts = sum(len(one.sound) for one in spoken) / 48e3, sorted(one.first for one in spoken)
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**10
    late = lambda values: sorted(values)[int(0.95 * (len(values) - 1))]
    row = f"| {clients} | {len(spoken)} | {median(firsts):.2f} s | {late(firsts):.2f} s "
    row += f"| {firsts[-1] / median(firsts):.1f} | {late([one.seconds for one in spoken]):.2f} s "
    return answers, row + f"| {sound / seconds:.1f} | {sound / worked:.1f} | {peak:.0f} "


def disconnects(server: Server, count: int, voice: str) -> str:
    """Lets clients disconnect during the request, before the audio or during the audio; returns a report on leaks."""
    chosen, before = random.Random(0), server.state()
    body = body_of(3, voice)

    def leave(number):
        with socket.create_connection(("127.0.0.1", server.port), timeout=600) as connection:
            if number % 3 == 0:
                connection.sendall(HEAD[: chosen.randrange(len(HEAD))].encode())
                return
            connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if number % 3 == 1:
                time.sleep(chosen.random() * 0.3)
            else:
                connection.recv(1)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(count)))
    left = [f"{was:.0f} -> {now:.0f}" for was, now in zip(before, server.state())]
    answer = f"the next request is answered with {Timed(server, 0, voice).status}"
    return f"{count} disconnects: {left[0]} MB, {left[1]} threads, {left[2]} files; {answer}"


def main() -> None:
    """Prints a table row for each number of clients, then the server's resources before and after disconnects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", metavar="FOLDER", required=True, help="base, a run or an exported folder")
    parser.add_argument("--voice", default="alloy", help="English voice")
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 4, 16, 32))
    parser.add_argument("--requests", type=int, default=64, help="requests for each number of clients")
    parser.add_argument("--disconnects", type=int, default=1000)
    arguments = parser.parse_args()
    others, began = others_seconds(), time.monotonic()
    with Server(arguments.checkpoint) as server:
        print("| clients | answered | first byte | p95 | longest/median | all, p95 | audio/s | …/CPU s | MB | apart |")
        print("|---" * 10 + "|")
        Timed(server, 3, arguments.voice)
        alone = None
        for clients in arguments.clients:
            answers, row = load(server, clients, arguments.requests, arguments.voice)
            alone = alone or answers
            apart = max(map(difference, alone, answers))
            print(f"{row}| {apart:g} |", flush=True)
        if arguments.disconnects:
            print(disconnects(server, arguments.disconnects, arguments.voice))
        used = others_seconds() - others - server.work()
    print(f"Other processes used {used / (time.monotonic() - began):.1f} of {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
