"""GPUMonitor on a stand-in NVML, whose GPUs report a scripted utilization and memory."""

import sys
import threading
from types import SimpleNamespace

import pytest

from myxtts.devices.gpu_monitor import GPU, GPUMonitor, NVMLUnavailable, list_gpus

MB = 2**20


class StandInNVML:
    """Replaces `pynvml`. GPU i has UUID `GPU-iiiiiiii` and 1000·(i+1) MB; a `count` of None means no driver."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801 (pynvml's own name)
        pass

    def __init__(self, count=2):
        self.count, self.open, self.lost = count, 0, False
        self.asked = threading.Semaphore(0)
        self.utilization = [[10 * (i + 1)] for i in range(count or 0)]
        self.used_mb = [[100 * (i + 1)] for i in range(count or 0)]
        self.without_utilization = set()

    def nvmlInit(self):
        if self.count is None:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{str(handle) * 8}"

    def nvmlDeviceGetName(self, handle):
        return f"stand-in {handle}"

    @staticmethod
    def _next(script):
        return script.pop(0) if len(script) > 1 else script[0]

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle in self.without_utilization:
            raise self.NVMLError_NotSupported("Not Supported")
        self.asked.release()
        return SimpleNamespace(gpu=self._next(self.utilization[handle]))

    def nvmlDeviceGetMemoryInfo(self, handle):
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=self._next(self.used_mb[handle]) * MB, total=1000 * (handle + 1) * MB)


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(count=2):
        stand_in = StandInNVML(count)
        monkeypatch.setitem(sys.modules, "pynvml", stand_in)
        return stand_in

    return install


VISIBLE = {None: "0 1 2", "2,0": "2 0", "": "", "-1": "", "1,7,0": "1", "GPU-22,0": "GPU-22 0", "GPU-": "", "MIG-1": ""}


@pytest.mark.parametrize("visible, ids", VISIBLE.items())
def test_visible_gpus_follow_cudas_rules(nvml, monkeypatch, visible, ids):
    stand_in = nvml(3)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus, ids = list_gpus(), ids.split()
    assert [gpu.id for gpu in gpus] == ids
    if "2" in ids:
        assert GPU("2", "stand-in 2", 3000) in gpus
    assert stand_in.open == 0


def test_report_has_mean_and_maximum_of_what_was_sampled(nvml):
    stand_in = nvml()
    stand_in.utilization[1], stand_in.used_mb[1] = [20, 80, 50], [500, 700, 600]
    with GPUMonitor(interval_seconds=0.002) as monitor:
        for _ in range(7):  # both GPUs three times; the seventh request comes after these figures were added
            stand_in.asked.acquire()
        assert monitor.report().gpus[1].num_samples >= 3
    first, second = monitor.report().gpus
    n = second.num_samples
    assert (first.id, first.mean_utilization, first.total_memory_mb) == ("0", 10, 1000)
    assert second.mean_utilization == pytest.approx((20 + 80 + 50 * (n - 2)) / n)
    assert (second.max_utilization, second.max_memory_mb) == (80, 700)
    assert second.mean_memory_mb == pytest.approx((500 + 700 + 600 * (n - 2)) / n)
    assert stand_in.open == 0


def test_gpus_are_reported_in_the_order_asked_with_their_roles(nvml):
    nvml(4)
    with GPUMonitor([3, 1, 2]) as monitor:
        report = monitor.report()
    assert [usage.id for usage in report.gpus] == ["3", "1", "2"]
    figures = {"data_gpu_percent": 40, "model_gpu_percent": 25, "data_gpu_mb": 400, "model_gpu_mb": 300}
    assert report.figures(("data", "model", "model")) == figures


def test_a_gpu_without_utilization_reports_memory_only(nvml):
    nvml().without_utilization.add(0)
    with GPUMonitor([0]) as monitor:
        report = monitor.report()
    assert report.gpus[0].mean_utilization is None and report.gpus[0].max_memory_mb == 100
    assert report.figures(["model"]) == {"model_gpu_mb": 100}


@pytest.mark.parametrize(
    "count, indices, lost, reason",
    [
        (None, None, False, "no NVIDIA driver: Driver Not Loaded"),
        (0, None, False, "no GPU is visible"),
        (2, [0, 5], False, "NVML finds no GPU 5"),
        (2, (), False, "this run uses no GPU"),
        (2, None, True, "NVML stopped answering: GPU is lost"),
    ],
)
def test_without_a_gpu_the_report_is_not_available_rather_than_zero(nvml, count, indices, lost, reason):
    stand_in = nvml(count)
    stand_in.lost = lost
    threads = threading.active_count()
    with GPUMonitor(indices) as monitor:
        assert threading.active_count() == threads
    report = monitor.report()
    assert report.gpus == () and reason in report.unavailable_reason
    assert report.figures(()) == {} and stand_in.open == 0


def test_missing_nvml_package_is_named(nvml, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NVMLUnavailable, match="nvidia-ml-py is not installed"):
        list_gpus()


def test_no_thread_is_left_after_stop_an_exception_or_a_lost_gpu(nvml):
    stand_in = nvml()
    threads = threading.active_count()
    monitor = GPUMonitor(interval_seconds=1e6).start()  # so long that `stop` must wake the thread
    assert threading.active_count() == threads + 1
    monitor.stop()
    assert threading.active_count() == threads
    with pytest.raises(KeyError), GPUMonitor():
        raise KeyError
    assert threading.active_count() == threads and stand_in.open == 0

    monitor = GPUMonitor(interval_seconds=0.002).start()
    stand_in.lost = True
    for thread in threading.enumerate():
        if thread.name == "gpu-monitor":
            thread.join()
    assert threading.active_count() == threads
    assert monitor.stop().gpus[0].max_memory_mb == 100  # what was seen before stays
    assert stand_in.open == 0
