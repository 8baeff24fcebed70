import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from tqdm import tqdm

from myxtts.utils import commons

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def logger():
    return logging.getLogger("myxtts")  # left afterwards as it was found, see conftest.py


def test_setup_logging_prints_each_line_once_however_often_it_is_called(logger, capsys):
    for _ in range(3):
        commons.setup_logging()
    logging.getLogger("myxtts.training").info("step 1")
    logging.getLogger("myxtts.training").debug("detail")
    out, err = capsys.readouterr()
    assert out.count("step 1") == 1 and "INFO step 1" in out and "detail" not in out and err == ""


def test_a_log_line_does_not_run_through_a_progress_bar(logger, capsys):
    commons.setup_logging()
    with tqdm(total=2, file=sys.stdout, leave=False) as bar:
        bar.update()
        logger.info("between")
    lines = capsys.readouterr().out.replace("\r", "\n").split("\n")
    assert [line for line in lines if "between" in line and "|" not in line]


def test_progress_bars_are_shown_in_notebooks(monkeypatch, capsys):
    widget = type("widget", (tqdm,), {"display": lambda self, *shown, **more: print(self.n, self.total)})
    for kind, shown in ((tqdm, ""), (widget, "1 2")):
        monkeypatch.setattr(commons, "tqdm", kind)
        with commons.progress_bar("title") as progress:
            progress(1, 2)
        assert shown in (out := capsys.readouterr().out) and bool(out) == bool(shown)


def test_long_lines_are_folded_on_a_terminal_and_whole_elsewhere(logger, capsys, monkeypatch):
    long = " ".join(["eleven char"] * 30)
    commons.setup_logging()
    logger.info(long)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for plain in ("", "1"):  # https://no-color.org
        monkeypatch.setenv("NO_COLOR", plain)
        assert ("\x1b[1;31mError\x1b[0m: x" == commons.folded_on_terminal("Error: x", sys.stdout)) is not bool(plain)
    logger.info(long)
    whole, *lines = capsys.readouterr().out.splitlines()
    assert whole.endswith(long) and " ".join(map(str.strip, lines)).endswith(long)
    assert max(map(len, lines)) <= 120 and lines[1].startswith("  ")
    assert commons.folded("x" * 200) == "x" * 200, "nothing is cut within a word"
    for command in ("  myxtts say --text '{}' \\", "    --text='{}'", "Logs:  tensorboard --logdir '{}'"):
        assert commons.folded(command.format(long)) == command.format(long), "it can be pasted"
    assert f"\n  `myxtts say '{long}'`\n" in commons.folded(f"Error: --to {long} `myxtts say '{long}'` {long}")


def test_device_context_is_the_given_device_or_the_first_gpu_or_the_cpu(monkeypatch):
    import tensorflow as tf

    default = "GPU:0" if tf.config.get_visible_devices("GPU") else "CPU:0"
    with commons.get_device_context():
        assert tf.constant(1.0).device.endswith(default)
    with commons.get_device_context("/CPU:0"):
        assert tf.constant(1.0).device.endswith("CPU:0")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["stand-in"])
    monkeypatch.setattr(tf, "device", lambda name: name)
    assert commons.get_device_context() == "/GPU:0"
    assert commons.get_device_context("/CPU:1") == "/CPU:1"


def test_gpu_placement_without_a_gpu_returns_the_tensor_itself():
    import tensorflow as tf

    if tf.config.get_visible_devices("GPU"):
        pytest.skip("this machine has a GPU")
    tensor = tf.constant([1.0, 2.0])
    assert commons.ensure_gpu_placement(tensor) is tensor
    np.testing.assert_array_equal(commons.ensure_gpu_placement(np.arange(3)), [0, 1, 2])


def test_gpu_placement_copies_to_the_first_gpu(monkeypatch):
    import tensorflow as tf

    asked = []
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["stand-in"])
    real_device = tf.device
    monkeypatch.setattr(tf, "device", lambda name: asked.append(name) or real_device("/CPU:0"))
    np.testing.assert_array_equal(commons.ensure_gpu_placement(tf.constant([1.0, 2.0])), [1.0, 2.0])
    assert asked == ["/GPU:0"]
