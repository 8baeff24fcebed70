"""Standard error of a command shows Python's output and errors of native code, but no start-up messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import os, sys
from myxtts.devices import tensorflow_start
tensorflow_start.GPU_DRIVER_PLACES = {places}
tensorflow_start.filter_native_errors()
import logging
logging.getLogger("tensorflow").warning("5 out of the last 11 calls to f triggered tf.function retracing.")
print("from Python", file=sys.stderr)
for line in {lines}:
    os.write(2, line.encode() + b"\\n")
"""
HARMLESS = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795379571.968217   10333 port.cc:153] oneDNN custom operations are on.",
    "To enable the following instructions: AVX2, rebuild TensorFlow with the appropriate compiler flags.",
    "E0000 00:00:1795380337.042979   10892 util.cc:131] oneDNN supports DT_INT32 only on platforms with AVX-512. Fall",
]
CUDA = "E0000 00:00:1795380260.575247   10892 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error"
REAL = ["E0000 00:00:1795380260.575247   10892 op.cc:52] No space", "F0000 00:00:1.5  1 a.cc:2] Check failed", "Killed"]


def reported(lines, places=(), **environment):
    command = [sys.executable, "-c", SCRIPT.format(lines=lines, places=places)]
    environment = {"PYTHONPATH": str(ROOT), **environment}
    return sorted(subprocess.run(command, capture_output=True, text=True, env=environment).stderr.splitlines())


def test_start_up_messages_are_left_out_and_errors_come_through_as_of_a_driver_where_there_is_a_gpu():
    assert reported([*HARMLESS, CUDA, *REAL]) == sorted(["from Python", *REAL])
    assert reported([CUDA], places=("/",)) == sorted(["from Python", CUDA])


@pytest.mark.parametrize("level", ["0", "1"])
def test_messages_are_shown_on_request(level):
    assert reported(HARMLESS, TF_CPP_MIN_LOG_LEVEL=level) == sorted(["from Python", *HARMLESS])


@pytest.mark.parametrize("words", ["prepare --checkpoint none --output shards", "serve --host 0.0.0.0"])
def test_command_prints_only_its_error(words, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-m", "myxtts", *words.split()]
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)}
    )
    assert ran.returncode == 2 and ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1, ran.stderr


def test_public_names_are_imported_without_start_up_messages(tmp_path):
    device = f"class config:\n    list_physical_devices = lambda: os.write(2, {CUDA.encode()})\n"
    (tmp_path / "tensorflow.py").write_text(f"import os\nos.write(2, {HARMLESS[1].encode()})\n{device}name = 1")
    script = "import myxtts; from myxtts.devices import tensorflow_start as it; it.GPU_DRIVER_PLACES = ()\n"
    script = [sys.executable, "-c", script + "myxtts._HOMES['name'] = 'tensorflow'; assert myxtts.name"]
    assert not subprocess.run(script, capture_output=True, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, check=True).stderr


def test_unneeded_packages_are_not_loaded_and_can_be_imported_later(tmp_path):
    (tmp_path / "tensorflow.py").write_text("try:\n    import matplotlib\nexcept ImportError:\n    spared = True\n")
    (tmp_path / "matplotlib.py").write_text("")
    script = (
        "from myxtts.devices.tensorflow_start import import_tensorflow as start; start()\n"
        "import matplotlib, tensorflow; print(tensorflow.spared, matplotlib.__name__)"
    )
    places = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=places)
    assert ran.stdout == "True matplotlib\n", ran.stderr
