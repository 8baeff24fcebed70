"""Replicas of `myxtts serve` behind nginx, one of which is killed under load.

    python utilities/benchmarks/replicas.py --checkpoint runs/mine --voices voices --voice me

The proxy has the settings of deploy/compose/nginx.conf, with the addresses of this machine. Says how many requests were
answered whole, how the others ended, and whether a replica that is started again is asked again.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "deploy/compose/nginx.conf"
TEXT = "My mother sees the red house today.\n\nThe little girl looks for the blue book in the morning.\n\nHe reads."
SEEDS = 4
"""Texts that differ; each is spoken once before, to compare with."""


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(port: int, path: str, body: dict | None = None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    try:
        kind = {"Content-Type": "application/json"}
        connection.request("POST" if body else "GET", path, body and json.dumps(body), kind)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_ready(port: int) -> bool:
    """Whether a server says that it takes texts."""
    try:
        return ask(port, "/ready")[0] == 200
    except OSError:
        return False


def wait_until(condition, seconds: float = 600) -> float:
    """Polls, and returns how many seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            sys.exit("It did not happen in time.")
        time.sleep(0.1)
    return time.monotonic() - began


def start_replica(port: int, flags: list[str], log) -> subprocess.Popen:
    """A server as a process of its own."""
    command = [sys.executable, "-m", "myxtts", "serve", "--port", str(port), *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


@contextmanager
def proxy(nginx: str, ports: list[int], home: Path):
    """nginx in front of replicas; gives its port."""
    port, servers = free_port(), iter(ports)
    settings = re.sub(r"speech-\d:8000", lambda _: f"127.0.0.1:{next(servers)}", SETTINGS.read_text())
    settings = settings.replace("listen 8080", f"listen 127.0.0.1:{port}").replace(" /tmp/", f" {home}/")
    (home / "nginx.conf").write_text(settings)
    with open(home / "nginx.log", "w") as log:
        command = [nginx, "-p", str(home), "-e", "stderr", "-c", str(home / "nginx.conf"), "-g", "daemon off;"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or is_ready(port))
        yield port
    finally:
        process.terminate()
        process.wait()


class Load:
    """Requests through the proxy; `ended` counts how."""

    def __init__(self, port: int, voice: str):
        self.port, self.voice, self.ended, self.begun, self._lock = port, voice, Counter(), 0, threading.Lock()
        self.known = [ask(port, "/v1/audio/speech", self.body(number))[1] for number in range(SEEDS)]

    def body(self, number: int) -> dict:
        """A request."""
        return dict(model="tts-1", input=TEXT, voice=self.voice, response_format="pcm", seed=number % SEEDS)

    def one(self, number: int) -> None:
        """Asks, and counts."""
        with self._lock:
            self.begun += 1
        try:
            status, sound = ask(self.port, "/v1/audio/speech", self.body(number))
            how = "whole" if len(sound) == len(self.known[number % SEEDS]) else "shorter, and not told so"
            how = how if status == 200 else f"status {status}"
        except (OSError, http.client.HTTPException) as error:
            how = f"broken off ({type(error).__name__})"
        with self._lock:
            self.ended[how] += 1


def main() -> None:
    """Starts, loads, kills, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", metavar="RUN", required=True)
    parser.add_argument("--voices", metavar="FOLDER", required=True)
    parser.add_argument("--voice", default="low", help="one of them (default: low)")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--nginx", default=shutil.which("nginx"), metavar="FILE", help="the program")
    arguments = parser.parse_args()
    if not arguments.nginx:
        sys.exit("This needs nginx (apt-get install nginx), or --nginx FILE.")
    flags = ["--checkpoint", arguments.checkpoint, "--voices", arguments.voices, "--queue", str(arguments.requests)]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log, ports = stack.enter_context(open(home / "replicas.log", "w")), [free_port(), free_port()]
        replicas = [start_replica(port, flags, log) for port in ports]
        stack.callback(lambda: [one.kill() for one in replicas])
        print(f"two replicas ready after {wait_until(lambda: all(map(is_ready, ports))):.1f} s", flush=True)
        port = stack.enter_context(proxy(arguments.nginx, ports, home))
        load = Load(port, arguments.voice)
        with ThreadPoolExecutor(arguments.requests) as pool:
            asked = [pool.submit(load.one, number) for number in range(arguments.requests)]
            wait_until(lambda: sum(load.ended.values()) >= arguments.requests // 8)
            replicas[0].send_signal(signal.SIGKILL)
            began, before = time.monotonic(), sum(load.ended.values())
            more = [pool.submit(load.one, number) for number in range(arguments.requests // 4)]
            [one.result() for one in asked + more]
        print(f"killed after {before} of {load.begun} had ended; all had ended {time.monotonic() - began:.1f} s later")
        print(", ".join(f"{count} {how}" for how, count in load.ended.most_common()), flush=True)
        replicas[0] = start_replica(ports[0], flags, log)
        seconds = wait_until(lambda: is_ready(ports[0]))
        time.sleep(11)  # as long as nginx leaves it alone
        load.ended.clear()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(load.one, range(16)))
        spoken = [re.search(rb"^myxtts_texts_total (\S+)", ask(one, "/metrics")[1], re.M) for one in ports]
        told = " and ".join(found[1].decode() if found else "0" for found in spoken)
        print(f"started again: ready after {seconds:.1f} s; {dict(load.ended)}; texts of the replicas: {told}")


if __name__ == "__main__":
    main()
