"""`myxtts doctor`: limits of the machine and its containers, measurements, and the printed report."""

import contextlib
import io
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from logical_devices import on_logical_devices, plan_of
from tiny import tiny_run_config, untraced

from myxtts.cli import doctor
from myxtts.devices import machine
from myxtts.runs import machine_report

GB = 2**30


@pytest.fixture(autouse=True)
def memory_of_16_gb(monkeypatch):
    """Lets psutil report 16 GB of memory, 12 of them available."""
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GB, available=12 * GB))


def fake_root(folder, files):
    """Writes files, given as `{path: text}`."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_machine_without_limits_has_what_is_available(tmp_path):
    memory = machine.read_memory(tmp_path)
    assert (memory.total, memory.limit, memory.usable) == (16 * GB, None, 12 * GB)
    group = "sys/fs/cgroup/memory/memory"
    limit = {f"{group}.limit_in_bytes": "9223372036854771712\n", f"{group}.usage_in_bytes": f"{GB}\n"}
    root = fake_root(tmp_path, {"proc/self/cgroup": "4:memory:/\n", **limit})
    assert machine.read_memory(root).limit is None, "a limit beyond the machine"


def test_limit_of_cgroup_version_2_counts_and_droppable_cache_does_not(tmp_path):
    group = "sys/fs/cgroup/jobs/one"
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            f"{group}/memory.max": "max\n",
            "sys/fs/cgroup/jobs/memory.max": f"{4 * GB}\n",
            "sys/fs/cgroup/jobs/memory.current": f"{3 * GB}\n",
            "sys/fs/cgroup/jobs/memory.stat": f"anon 5\ninactive_file {GB}\n",
            f"{group}/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/jobs/cpu.max": "max 100000\n",
        },
    )
    memory = machine.read_memory(root)
    assert (memory.limit, memory.used_of_limit, memory.usable) == (4 * GB, 2 * GB, 2 * GB)
    assert machine.read_processor(root).quota == 1.5


def test_limit_of_cgroup_version_1_is_found_under_the_containers_own_root(tmp_path):
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB}\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    memory = machine.read_memory(root)
    assert (memory.limit, memory.usable) == (8 * GB, 7 * GB) and machine.read_processor(root).quota == 2.0


def test_disk_speed_is_measured_on_data_files_if_the_cache_can_be_bypassed(tmp_path, monkeypatch):
    (tmp_path / "clip.wav").write_bytes(bytes(3 * 2**20))
    files = machine.probe_files(tmp_path, [tmp_path / "clip.wav"] * 5, most_bytes=4 * 2**20)
    assert files["read_per_second"] > 0 and files["note"].startswith("2 files, 6 MB") and files["free"] > 0
    monkeypatch.delattr(os, "posix_fadvise")
    for paths in ((), [tmp_path / "clip.wav"]):
        disk = machine.probe_files(tmp_path, paths)
        assert disk["read_per_second"] is None and disk["note"].startswith("not measured")


@on_logical_devices
def measured(folder):
    from myxtts.training.watching.measurement import measure_training, synthetic_waves

    config = tiny_run_config(checkpoint_dir=folder)
    waves = synthetic_waves(config, 1.0, 3)
    with untraced():
        times = measure_training(config, plan_of("single"), folder, 0.5, 0.2)
    return times, [np.asarray(field) for field in waves]


def test_measured_steps_are_real_ones_on_clips_of_the_requested_length(tmp_path):
    times, (index, wav, lengths, text, *_) = measured(tmp_path)
    assert times and min(times) > 0 and not list(tmp_path.rglob("*.safetensors"))
    assert wav.shape == (3, 21 * 1024) and lengths.tolist() == [21 * 1024] * 3 and text.shape == (3, 7)


@on_logical_devices
def examined(folder):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = doctor.main(["--seconds", "0", "--checkpoint-dir", folder, "--json", f"{folder}/found.json"])
    return code, out.getvalue()


def test_command_examines_this_machine_and_writes_json(tmp_path):
    code, text = examined(str(tmp_path))
    assert code == 0 and [line for line in text.splitlines() if line.endswith(":")][:2] == ["VERSIONS:", "HARDWARE:"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["automatic"]["largest_batch"]["float32"] > 0 and found["automatic"]["attention"] is None
    assert found["training"] is None and found["precision"]["flops"]["float32"] > 0
    assert found["tensorflow"]["xla_fails"] is None and found["memory"]["usable"] > 0
    gpu = {"id": "0", "name": "NVIDIA L4", "memory_mb": 23034}
    found["gpus"] = {"listed": [gpu], "driver": "550.1", "reason": None}
    found["tensorflow"]["gpus"] = [{"name": "NVIDIA L4", "compute_capability": [8, 9]}]
    found["processor"] |= {"cores": 8, "quota": 2.0}
    found["memory"] |= {"limit": 8 * GB, "used_of_limit": GB, "usable": 7 * GB}
    found["automatic"] |= {"room": 22 * GB, "largest_batch": {"float32": 30, "mixed_bfloat16": 44}}
    sizes = {"size": "tiny", "batch_size": 16, "clip_seconds": 6.0, "precision": "float32", "steps": 40}
    speeds = {"step_seconds": 0.25, "steps_per_second": 4.0, "audio_seconds_per_second": 384.0}
    text = machine_report.describe({**found, "training": sizes | speeds})
    limits = ("limited to 2 cores' worth", "limit of the container 8.0 GB", "7.0 GB can be used", "4 steps/s")
    assert all(words in text for words in (*limits, "0: NVIDIA L4, 23034 MB", "30 in float32, 44 in"))
    assert "no GPU" not in text
