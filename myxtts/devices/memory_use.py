"""How much main memory this process takes while something runs."""

import threading
from pathlib import Path

INTERVAL_SECONDS = 0.005


def resident_bytes() -> int | None:
    """Main memory that this process holds now, in bytes; None where /proc does not tell."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int | None:
    """Most main memory that this process has held at one time, in bytes; None where /proc does not tell."""
    return _status_bytes("VmHWM")


def _status_bytes(key):
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else ()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


class PeakMemory:
    """A `with` block during which the most memory that this process holds is sampled, every few milliseconds."""

    def __init__(self):
        self.peak: int | None = None
        """Bytes, after the block; None where /proc does not tell."""
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="myxtts-memory", daemon=True)

    def _sample(self):
        while not self._ended.wait(INTERVAL_SECONDS):
            self._look()

    def _look(self):
        if (held := resident_bytes()) is not None:
            self.peak = max(self.peak or 0, held)

    def __enter__(self):
        self._look()
        self._sampler.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._sampler.join()
        self._look()
