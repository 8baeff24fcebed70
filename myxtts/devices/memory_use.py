"""How much main memory this process takes while something runs."""

import threading
from pathlib import Path

INTERVAL_SECONDS = 0.005


def resident_bytes() -> int | None:
    """Main memory that this process holds now, in bytes; None where /proc does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return None
    import resource  # not on Windows, where there is no /proc either

    return int(statm.read_text().split()[1]) * resource.getpagesize()


def peak_resident_bytes() -> int | None:
    """Most main memory that this process has held at one time, in bytes; None where /proc does not tell."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.is_file() else ():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return None


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
        held = resident_bytes()
        if held is not None:
            self.peak = max(self.peak or 0, held)

    def __enter__(self):
        self._look()
        self._sampler.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._sampler.join()
        self._look()
