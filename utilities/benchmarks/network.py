"""Trains with two workers in network namespaces of this machine whose link delays, loses and cuts off packets.

    sudo python utilities/benchmarks/network.py --output /tmp/network
    sudo python utilities/benchmarks/network.py --messages

Slower, never wrong: losses must be those of the perfect link, bit for bit; and where the link is cut, both workers must
end within the time after which a silent one counts as lost, and the same command must go on afterwards. `--messages`
does the same with what workers tell each other, without TensorFlow, in two minutes. The link is a
pair of TUN devices with this program between them, since not every kernel has netem. Linux, as root, with `ip`; skipped
with the reason where one of these is missing.
"""

import argparse
import fcntl
import heapq
import json
import os
import random
import select
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402  from the folder just named

from myxtts.distributed.workers import FAREWELL_SECONDS, LOST_EXIT_CODE, LOST_SECONDS  # noqa: E402

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 23000
LATEST_END_SECONDS = LOST_SECONDS + FAREWELL_SECONDS + 10.0
STEPS = 20
"""Of the DVAE; the link is cut after half of them."""
LINKS = {
    "perfect": (0.0, 0.0),
    "10 ms each way": (0.01, 0.0),
    "2 % lost": (0.0, 0.02),
    "10 ms each way, 2 % lost": (0.01, 0.02),
}
"""Delay in seconds and share of packets lost, in each direction."""


def main():
    """Prints a line per link; exit code 1 where something is other than it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="new folder, of the runs that are trained")
    parser.add_argument("--messages", action="store_true", help="without training")
    arguments = parser.parse_args()
    if not (arguments.messages or arguments.output):
        parser.error("--output is missing")
    if reason := missing():
        sys.exit(print(f"skipped: {reason}"))
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    with Link() as link:
        faults = list(exchange(link) if arguments.messages else train(link, arguments.output))
    print(f"{len(faults)} faults", *faults, sep="\n")
    sys.exit(bool(faults))


MESSAGES = """
import sys, time
from myxtts.distributed.meeting import meet
workers = meet(tuple(sys.argv[3:]), int(sys.argv[1]), {}, 60.0, lambda line: None)
began = time.monotonic()
for number in range(int(sys.argv[2])):
    assert workers.gather([number, workers.index, 0.1]) == [[number, 0, 0.1], [number, 1, 0.1]]
print(f"{1000 * (time.monotonic() - began) / int(sys.argv[2]):.1f} ms a message to all and back")
workers.close()
"""


def exchange(link):
    """Lets two workers tell each other values over each link, and over one that is cut; yields faults."""
    addresses = [f"{address}:{PORT}" for address in ADDRESSES]

    def begin(number):
        begun = [sys.executable, "-c", MESSAGES]
        spaces = enumerate(link.spaces)
        commands = (["ip", "netns", "exec", space, *begun, str(i), str(number), *addresses] for i, space in spaces)
        return [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for command in commands]

    for name, (link.delay, link.loss) in LINKS.items():
        workers = begin(200)
        told = [worker.communicate()[0].strip() for worker in workers]
        print(f"{name}: {told[0]}", flush=True)
        if any(worker.returncode for worker in workers):
            yield f"{name}: exit codes {[worker.returncode for worker in workers]}"
    workers, before = begin(10**9), link.packets
    while link.packets < before + 200:
        time.sleep(0.05)
    yield from cut(link, workers)


def train(link, output):
    """Trains over each link, and over one that is cut; yields faults."""
    output.mkdir(parents=True)
    settings, losses = write_settings(output), {}
    for name, (link.delay, link.loss) in LINKS.items():
        home = output / name.replace(" ", "_").replace("%", "percent").replace(",", "")
        workers, before = start(link, settings, home), link.packets
        codes = [worker.wait() for worker in workers]
        losses[name], step_ms = figures(home)
        told = f"{name}: {step_ms:.0f} ms a step, {link.packets - before} packets, exit codes {codes}"
        is_equal = losses[name] == losses["perfect"]
        print(f"{told}, losses {'as on' if is_equal else 'OTHER THAN'} the perfect link", flush=True)
        if any(codes) or not is_equal:
            yield name
    link.delay, link.loss, home = 0.0, 0.0, output / "cut"
    workers = start(link, settings, home)
    while len(figures(home)[0]) < STEPS // 2 and workers[0].poll() is None:
        time.sleep(0.05)
    yield from cut(link, workers)
    codes = [worker.wait() for worker in start(link, settings, home)]
    is_equal = figures(home)[0] == losses["perfect"]
    print(f"joined again: exit codes {codes}, losses {'as on' if is_equal else 'OTHER THAN'} the perfect link")
    if any(codes) or not is_equal:
        yield "cut: the same command did not go on as it should"


def missing():
    """Why this cannot be tried here; None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "there is no `ip`; install iproute2"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    trial = f"myxtts_{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", trial], capture_output=True).returncode:
        return "`ip netns add` is refused, as within most containers"
    subprocess.run(["ip", "netns", "del", trial])
    return None


def write_settings(folder):
    """A configuration file of a small DVAE."""
    every = dict(log_every_steps=1, validate_every_steps=STEPS, checkpoint_every_steps=2, sample_every_steps=0)
    corpus, data = make_tiny_corpus(folder / "corpus"), dict(augment=True, num_workers=1, num_buckets=1)
    config = tiny_run_config(corpus, data=data, training=every, dvae={"max_steps": STEPS}).to_dict()
    path = folder / "settings.json"
    path.write_text(json.dumps(config))
    return path


def start(link, settings, home):
    """Two workers, one in each namespace."""
    addresses, workers = ",".join(f"{address}:{PORT}" for address in ADDRESSES), []
    for index, space in enumerate(link.spaces):
        command = ["ip", "netns", "exec", space, sys.executable, "-m", "myxtts", "train", "--config", str(settings)]
        command += ["--stage", "dvae", "--checkpoint-dir", str(home), "--workers", addresses]
        with open(f"{home}.{index}.log", "ab") as log:
            command += ["--worker-index", str(index)]
            workers.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log))
    return workers


def figures(home):
    """Losses by step, those of a step taken twice of the second time; and the median time of a step in ms."""
    path = home / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    steps = [line for line in lines if line["kind"] == "training"]
    times = [line["avg_ms"] for line in steps if "avg_ms" in line]
    return {line["step"]: line["loss"] for line in steps}, statistics.median(times or [0.0])


def cut(link, workers):
    """Cuts the link until both workers have ended; yields what is other than it should be."""
    link.loss = 1.0
    began, codes = time.monotonic(), []
    for worker in workers:
        try:
            codes.append(worker.wait(max(0.1, began + LATEST_END_SECONDS - time.monotonic())))
        except subprocess.TimeoutExpired:
            worker.kill()
            yield f"cut: a worker is still there after {LATEST_END_SECONDS:.0f} s"
    print(f"cut: both ended after {time.monotonic() - began:.0f} s with {codes}", flush=True)
    if codes != [LOST_EXIT_CODE] * 2:
        yield f"cut: exit codes {codes}"
    link.loss = 0.0


class Link:
    """Two namespaces with a TUN device each, and a thread that hands packets from one to the other."""

    def __init__(self):
        self.delay, self.loss, self.packets = 0.0, 0.0, 0
        self.spaces = [f"myxtts_{os.getpid()}_{index}" for index in range(2)]
        self._draw, self._ended = random.Random(0), threading.Event()

    def __enter__(self):
        self._ends = [self._make(*pair) for pair in zip(self.spaces, ADDRESSES)]
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()
        return self

    def _make(self, space, address):
        tun_set_interface, is_tun, without_header = 0x400454CA, 0x0001, 0x1000
        device, name = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK), f"mx{os.getpid() % 100000}_{space[-1]}"
        fcntl.ioctl(device, tun_set_interface, struct.pack("16sH22x", name.encode(), is_tun | without_header))
        inside = ["ip", "-n", space]
        for command in (
            ["ip", "netns", "add", space],
            ["ip", "link", "set", name, "netns", space],
            [*inside, "address", "add", f"{address}/24", "dev", name],
            [*inside, "link", "set", name, "up"],
            [*inside, "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True)
        return device

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()
        for device, space in zip(self._ends, self.spaces):
            os.close(device)
            subprocess.run(["ip", "netns", "del", space])

    def _forward(self):
        due, count = [], 0
        while not self._ended.is_set():
            wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.1
            for device in select.select(self._ends, [], [], min(wait, 0.1))[0]:
                try:
                    packet = os.read(device, 65536)
                except BlockingIOError:
                    continue
                self.packets += 1
                if self._draw.random() >= self.loss:
                    count += 1
                    other = self._ends[device == self._ends[0]]
                    heapq.heappush(due, (time.monotonic() + self.delay, count, other, packet))
            while due and due[0][0] <= time.monotonic():
                *_, other, packet = heapq.heappop(due)
                try:
                    os.write(other, packet)
                except OSError:
                    continue  # a full queue loses packets, as any


if __name__ == "__main__":
    main()
