"""Device plans: computing them, and applying them to a stand-in TensorFlow with CUDA's numbering of GPUs, and to the
real TensorFlow with logical CPU devices."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in_machine import stand_in_machine

from myxtts.__main__ import main
from myxtts.devices import configuration as devices
from myxtts.devices.configuration import DeviceError, early_gpu_configuration, plan_devices
from myxtts.devices.gpu_monitor import GPU

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def machine():
    """Simulates a machine with a number of GPUs; returns a function that returns the imported TensorFlow."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(stand_in_machine(*args, **kwargs))


# Computing plans.


def test_default_is_single_mode_on_the_first_gpu_or_the_cpu():
    for num_gpus, device in ((2, "/GPU:0"), (0, "/CPU:0")):
        plan = plan_devices(num_gpus=num_gpus)
        assert (plan.mode, plan.data_device, plan.model_devices) == ("single", device, (device,))
        assert not plan.is_dual and len(plan.model_devices) == 1


def test_several_model_gpus_are_replicas_that_one_data_gpu_feeds():
    plan = plan_devices(data_gpu=0, model_gpus=[3, 1, 2], num_gpus=4)
    assert plan.model_devices == ("/GPU:1", "/GPU:2", "/GPU:3")
    assert plan.visible == (0, 3, 1, 2) and len(plan.model_devices) == 3
    assert plan.gpu_roles == ("data", "model", "model", "model")


def test_one_gpu_plays_both_roles_under_isolation():
    plan = plan_devices(data_gpu=1, model_gpu=1, num_gpus=2, memory_isolation=True, data_gpu_memory=2000)
    assert (plan.mode, plan.data_device, plan.model_device) == ("isolated", "/GPU:0", "/GPU:1")
    assert plan.visible == (1,) and (plan.data_memory_mb, plan.model_memory_mb) == (2000, 16384)
    mixed = plan_devices(data_gpu=1, model_gpus=[0, 1], num_gpus=2, memory_isolation=True)
    assert mixed.visible == (1, 0) and mixed.data_device == "/GPU:0"
    assert mixed.model_devices == ("/GPU:2", "/GPU:1")  # GPU 0 comes after both logical devices of GPU 1


def test_virtual_devices_are_logical_cpus_and_reported():
    plan = plan_devices(num_gpus=0, virtual_devices=3)
    assert (plan.data_device, plan.model_devices, plan.virtual) == ("/CPU:0", ("/CPU:1", "/CPU:2"), True)
    assert (plan.data_gpu, plan.model_gpus, plan.visible_ids) == (0, (1, 2), ())
    assert "virtual" in plan.notes[0]
    swapped = plan_devices(data_gpu=1, model_gpu=0, num_gpus=0, virtual_devices=2, memory_isolation=True)
    assert (swapped.mode, swapped.data_device, swapped.model_device) == ("isolated", "/CPU:0", "/CPU:1")
    assert any("not enforced" in note for note in swapped.notes)


@pytest.mark.parametrize(
    "request_, words",
    [
        ({"virtual_devices": 2, "accelerator": "cuda"}, ["demands a GPU"]),
        ({"data_gpu": 0, "model_gpu": 1, "accelerator": "cpu"}, ["=cpu forbids"]),
        ({"accelerator": "tpu"}, ["auto, cpu, cuda, rocm", "tpu"]),
        (
            {"data_gpu": 0, "model_gpu": 0, "memory_isolation": True, "gpus": [GPU("0", "a", 16000)] * 4},
            ["memory limits of GPU 0 must fit in its 16000 MB", "24576 MB"],
        ),
    ],
)
def test_contradictory_requests_are_errors_with_a_hint(request_, words):
    with pytest.raises(DeviceError) as error:
        plan_devices(num_gpus=4, **request_)
    for word in words:
        assert word in str(error.value)


def test_an_unmet_accelerator_is_an_error_and_cpu_keeps_off_the_gpus():
    for accelerator in ("cuda", "rocm"):
        with pytest.raises(DeviceError, match=f"MYXTTS_ACCELERATOR={accelerator} demands a GPU"):
            plan_devices(num_gpus=0, accelerator=accelerator)
    assert plan_devices(num_gpus=2, accelerator="cpu").model_device == "/CPU:0"


# Applying plans to stand-in GPUs.


def test_indices_count_within_the_users_own_visible_devices(machine):
    tensorflow = machine(6, CUDA_VISIBLE_DEVICES="5,1,4")
    plan = early_gpu_configuration(2, 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert tensorflow().boards() == ["4", "5"] and plan.visible_ids == ("4", "5")
    assert "CUDA_DEVICE_ORDER" not in os.environ  # the user's list refers to the user's own order


def test_a_pair_outside_the_users_visible_devices_is_out_of_range(machine):
    machine(6, CUDA_VISIBLE_DEVICES="4,5")
    with pytest.raises(DeviceError, match="--data-gpu 4 is out of range: .* 2 GPUs"):
        early_gpu_configuration(4, 5)


@pytest.mark.parametrize("nvml", [True, False])
def test_an_ascending_pair_works_when_tensorflow_is_imported_already_or_has_to_count_the_gpus(machine, nvml):
    tensorflow = machine(4, nvml=nvml)
    if nvml:
        import tensorflow as _  # noqa: F401
    assert len(devices.visible_gpus()) == 4
    early_gpu_configuration(2, 3)
    assert tensorflow().boards() == ["2", "3"] and tensorflow().state.growth == ["2", "3"]


def test_a_reversed_pair_after_the_import_is_an_error_not_a_swap(machine):
    tensorflow = machine(4)
    import tensorflow as _  # noqa: F401

    with pytest.raises(DeviceError, match="GPUs 3,1 .*CUDA_VISIBLE_DEVICES=3,1 "):
        early_gpu_configuration(3, 1)
    assert tensorflow().boards() == ["0", "1", "2", "3"]


def test_tensorflow_that_cannot_use_the_gpus_is_an_error_for_a_pair(machine, monkeypatch):
    machine(0)
    monkeypatch.setattr(devices, "list_gpus", lambda: (GPU("0", "a", 1), GPU("1", "b", 1)))
    with pytest.raises(DeviceError, match=r"must see 2 GPUs.* It sees 0.*tensorflow\[and-cuda\]"):
        early_gpu_configuration(0, 1)


def test_tensorflow_that_cannot_use_the_gpu_is_reported_by_default(machine, monkeypatch, capsys):
    machine(0)
    monkeypatch.setattr(devices, "list_gpus", lambda: (GPU("0", "a", 1),))
    assert early_gpu_configuration().model_device == "/CPU:0"
    assert "NVML sees 1 GPU" in capsys.readouterr().out


WORKERS = {
    "its own GPUs": ({"num_gpus": 4}, "", ["PCI_BUS_ID 0,1", "PCI_BUS_ID 2,3"]),
    "equally many": ({"num_gpus": 3}, "--data-gpu 0 --model-gpu 0", ["PCI_BUS_ID 0", "PCI_BUS_ID 1"]),
    "MIG and UUID": ({"num_gpus": 2, "CUDA_VISIBLE_DEVICES": "MIG-b,GPU-a"}, "", [" MIG-b", " GPU-a"]),
    "without NVML": ({"num_gpus": 4, "nvml": False, "CUDA_VISIBLE_DEVICES": "3,1,2,0"}, "", [" 3,1", " 2,0"]),
    "no GPU": ({"num_gpus": 0}, "", [" unset", " unset"]),
    "CPU": ({"num_gpus": 1, "MYXTTS_ACCELERATOR": "cpu"}, "", [" unset", " unset"]),
    "virtual devices": ({"num_gpus": 1}, "--virtual-devices 2", [" unset", " unset"]),
}


@pytest.mark.parametrize("machine_, flags, seen", WORKERS.values(), ids=WORKERS)
def test_each_launched_worker_sees(machine_, flags, seen, machine, monkeypatch, tmp_path, capfd):
    (worker := tmp_path / "python").write_text('#!/bin/sh\necho "$CUDA_DEVICE_ORDER ${CUDA_VISIBLE_DEVICES-unset}"\n')
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    machine(**machine_)
    assert main(["launch", "--workers", "2", "--", "train", *flags.split()]) == 0
    assert {f"[{index}] {own}" for index, own in enumerate(seen)} <= {*capfd.readouterr().out.splitlines()}


def test_more_workers_than_gpus_are_refused(machine, capsys):
    machine(1)
    assert main(["launch", "--workers", "2", "--", "train"]) == 2
    assert "--workers must be at most 1" in capsys.readouterr().err


def test_single_mode_takes_one_gpu_and_lets_it_grow(machine, capsys):
    tensorflow = machine(2)
    assert early_gpu_configuration().model_device == "/GPU:0"
    assert tensorflow().boards() == ["0"] and tensorflow().state.growth == ["0"]
    assert tensorflow().state.soft_placement
    assert capsys.readouterr().out == "Devices: single: data and model on /GPU:0\n"
    pytest.raises(DeviceError, devices.plan_for, 0, 0)  # a pair is never one device in silence
    tensorflow().config.experimental.get_device_details = lambda gpu: {"device_name": "ba"[int(gpu.board)]}
    assert [gpu.id for gpu in devices._tensorflow_gpus([GPU("0", "a", 1), GPU("1", "b", 1)])] == ["1", "0"]


@pytest.mark.parametrize(
    "command", ["evaluate base --quick", "export --checkpoint base", "say --text Hi.", "prepare --checkpoint base"]
)
def test_every_command_that_speaks_refuses_a_missing_accelerator(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(devices, "_applied", None)
    monkeypatch.setenv("MYXTTS_ACCELERATOR", "cuda")
    options = ["--output", str(tmp_path / ("out.wav" if command.startswith("say") else "out"))]
    options += ["--format", "onnx"] if command.startswith("export") else []
    assert main([*command.split(), *options]) == 2
    assert "MYXTTS_ACCELERATOR=cuda" in capsys.readouterr().err


def test_accelerator_and_virtual_devices_come_from_the_environment(machine):
    tensorflow = machine(2, MYXTTS_ACCELERATOR="cpu", URVC_ACCELERATOR="cuda")
    assert early_gpu_configuration().model_device == "/CPU:0"
    assert tensorflow().boards() == []  # the GPUs are hidden
    machine(2, URVC_ACCELERATOR="rocm")
    with pytest.raises(DeviceError, match="built with rocm"):
        early_gpu_configuration()
    pytest.raises(DeviceError, devices.plan_for)
    machine(0, MYXTTS_VIRTUAL_DEVICES="2")
    assert early_gpu_configuration().virtual and main(["plan", "--enable-memory-isolation"]) == 0
    machine(0, MYXTTS_VIRTUAL_DEVICES="two")
    with pytest.raises(DeviceError, match="MYXTTS_VIRTUAL_DEVICES .*: two"):
        early_gpu_configuration()


def test_the_same_request_again_is_the_same_plan_and_another_pair_or_limit_is_an_error(machine, capsys):
    tensorflow = machine(4)
    plan = early_gpu_configuration(3, 1)
    said = capsys.readouterr().out
    devices.check_devices(3, 1)
    assert early_gpu_configuration(3, 1) is plan and devices.plan_for() is plan
    assert capsys.readouterr().out == "" and said
    assert (tensorflow().state.soft_placement, tensorflow().state.policy) == (False, "silent")
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    with pytest.raises(DeviceError, match="already configured .*GPU 3.*new process"):
        early_gpu_configuration(0, 1)
    tensorflow, asked = machine(2), dict(data_gpu=1, model_gpu=1, memory_isolation=True, data_gpu_memory=1000)
    plan = early_gpu_configuration(**asked, model_gpu_memory=2000)
    assert early_gpu_configuration(**asked, model_gpu_memory=2000) is plan and plan.mode == "isolated"
    assert list(tensorflow().state.limits.values()) == [[1000, 2000]]
    with pytest.raises(DeviceError, match="already configured"):
        early_gpu_configuration(**asked, model_gpu_memory=3000)


def test_an_initialized_runtime_is_an_error_that_names_who_imported_tensorflow(machine):
    tensorflow = machine(2)
    import tensorflow as stand_in

    stand_in.state.initialized = True
    guilty = type(sys)("my_script")
    guilty.tf = stand_in
    sys.modules["my_script"] = guilty
    with pytest.raises(DeviceError) as error:
        early_gpu_configuration(0, 1)
    for words in (
        "before it is initialized",
        "imported by my_script",
        "Call early_gpu_configuration before",
        "Visible devices cannot be modified after being initialized",
    ):
        assert words in str(error.value)
    assert tensorflow().state.growth == []


# Applying plans to the real TensorFlow, on logical CPU devices.

REAL = """
import json, sys
from myxtts.devices.configuration import DeviceError, early_gpu_configuration, require_placement
found = {"light": "tensorflow" not in sys.modules}
plan = early_gpu_configuration(virtual_devices=3)
import keras
import tensorflow as tf
from tensorflow.python.eager import context
found["runtime started"] = context.context()._initialized

one = early_gpu_configuration(0, 1, virtual_devices=2)  # nothing has started yet: planning again is fine
with tf.device(one.model_device):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
variables = [(v.path, v) for v in model.variables + optimizer.variables]
found["audit"] = require_placement(variables, one)
with tf.device(one.data_device):
    lost = keras.Variable([0.0], name="lost")
def audit(variables, plan):
    try:
        return require_placement(variables, plan)
    except DeviceError as error:
        return str(error)
found["stray"] = audit([*variables, ("lost", lost)], one)
found["plain"] = audit([("raw", model.trainable_variables[0].value)], one)

strategy = tf.distribute.MirroredStrategy(plan.model_devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
with strategy.scope():
    mirrored = keras.Variable([0.0], name="mirrored")
found["mirrored"] = [audit([("m", mirrored)], plan), audit([("m", mirrored)], one)]
try:
    with tf.device("/CPU:7"):
        tf.constant(1.0)
except tf.errors.InvalidArgumentError:
    found["missing device"] = "error"
try:
    early_gpu_configuration(virtual_devices=5)
except DeviceError as error:
    found["initialized"] = str(error)
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def real_run():
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    text, _, found = done.stdout.rpartition("FOUND")
    return text, json.loads(found)


def test_planning_starts_nothing_and_a_virtual_run_is_reported_as_virtual(real_run):
    text, found = real_run
    assert found["light"] and not found["runtime started"]
    roles = "Data Processing GPU: 0\nModel Training GPU: 1,2\nSet visible devices: GPU 0 and GPU 1 and GPU 2 (virtual)"
    assert roles in text and "Note: These devices are virtual" in text
    assert "memory growth" not in text


def test_audit_finds_model_slots_dropout_state_and_all_of_a_mirrored_variable_and_names_a_stray(real_run):
    found = real_run[1]
    assert found["audit"] == "Placement audit: 9 variables, all on /CPU:1"
    stray = "1 of 10 variables are on the wrong device: lost lives on /CPU:0 instead of /CPU:1."
    assert found["stray"].startswith(stray) and found["plain"].startswith("Placement audit: 1 variables")
    good, bad = found["mirrored"]
    assert good.endswith("all on /CPU:1, /CPU:2") and "m lives on /CPU:1, /CPU:2 instead of /CPU:1" in bad


def test_missing_device_and_a_runtime_that_has_started_are_errors(real_run):
    assert real_run[1]["missing device"] == "error"
    assert "TensorFlow was imported by __main__" in real_run[1]["initialized"]
    assert "Virtual devices cannot be modified after being initialized" in real_run[1]["initialized"]
