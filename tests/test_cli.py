"""The command line: flags and files become settings, and user errors are one-line messages."""

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from command_helpers import sentence_of

from myxtts import __main__ as myxtts_command
from myxtts.audio.encoding import AudioFile, write_audio
from myxtts.cli import arguments, train
from myxtts.cli.errors import exits_with_sentence, require_output

pytestmark = pytest.mark.usefixtures("devices_as_before")

ROOT = Path(__file__).resolve().parents[1]


def settings_of(*flags):
    """Returns the configuration for a command line."""
    return train.config_from_arguments(train.build_parser().parse_args([str(flag) for flag in flags]))


@pytest.fixture
def argv(tiny_corpus, tiny_yaml, tmp_path):
    """Returns a command line that would train."""
    return ["--train-data", tiny_corpus, "--config", tiny_yaml, "--checkpoint-dir", tmp_path / "run"]


def test_run_without_its_dependencies_is_one_error_message(capsys, tmp_path, argv):
    line = sentence_of(capsys, train.main, *argv, "--stage", "gpt")
    assert "needs a trained dvae" in line and "--stage dvae" in line
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/vocab.json").write_text("{")
    line = sentence_of(capsys, train.main, *argv)
    assert "run/vocab.json" in line and "own vocabulary" in line


@pytest.mark.parametrize(
    "error, code, words",
    [
        (OSError(5, "Input/output error", "/mnt/x"), 2, "/mnt/x cannot be used: Input/output error"),
        (KeyboardInterrupt(), 130, "Stopped immediately"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_disk_error_and_ctrl_c_end_without_a_traceback(capsys, monkeypatch, error, code, words):
    monkeypatch.setattr("myxtts.api.configure", mock.Mock(side_effect=error))
    assert train.main([]) == code
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


def test_choices_are_named_whether_python_quotes_them_or_not():
    for choices in ("'best', 'last'", "best, last"):
        assert "best, last" in arguments._choice("--which", "bset", choices)


FILE_COMMANDS = {
    "say --checkpoint base --text one --speaker Ann": "--output",
    "plan --model-size nano": "--json",
    "doctor --seconds 0": "--json",
    "doctor data none": "--report",
}
FOLDER_COMMANDS = dict.fromkeys(["convert --from-coqui none", "convert --to-coqui none"], "--output")
"""These commands create missing parent folders."""


@pytest.mark.parametrize(
    "command, output",
    [
        *itertools.product(FILE_COMMANDS, ["", "none/a", "file/a", "folder", "link"]),
        *itertools.product(FOLDER_COMMANDS, ["", "file/a", "file/a/b"]),
        *itertools.product(["plan --model-size nano", "doctor --seconds 0"], ["file"]),  # somebody's
    ],
)
def test_unwritable_output_is_one_error_message_before_the_work(capsys, tmp_path, monkeypatch, command, output):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("none/a")
    for work in ("api.plan", "runs.machine_report.examine"):
        monkeypatch.setattr(f"myxtts.{work}", mock.Mock(side_effect=AssertionError("the work began")))
    flag = {**FILE_COMMANDS, **FOLDER_COMMANDS}[command]
    line = sentence_of(capsys, myxtts_command.main, *command.split(), flag, output)
    assert line.startswith(f"Error: {flag} must ") and output in line, line
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "link"}


def test_flags_win_over_the_file(tiny_yaml):
    flags = "--batch-size 5 --lr 0.1 --max-steps 9 --num-workers 4 --buffer-size 7 --grad-accum 2 --seed 3"
    config = settings_of("--config", tiny_yaml, *flags.split(), "--pad-to-fixed-length", "--train-data", "x")
    assert config.data.batch_size == config.stage("gpt").batch_size == config.stage("dvae").batch_size == 5
    assert config.stage("dvae").learning_rate == config.stage("gpt").learning_rate == 0.1
    assert config.stage("dvae").max_steps == 9 and config.training.gradient_accumulation == 2
    assert (config.data.num_workers, config.data.pipeline_buffer_size, config.data.static_shapes) == (4, 7, True)
    assert config.training.seed == 3 and config.model.width == 16


def test_switch_that_is_not_given_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / "strict.yaml"
    path.write_text("training: {strict: true, reset_training: true, tf32: true}")
    training = settings_of("--config", path).training
    assert training.strict and training.reset_training and training.tf32
    assert not settings_of("--config", path, "--no-tf32").training.tf32


def test_myxtts_lists_its_commands_and_refuses_others(capsys):
    assert myxtts_command.main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("train", "say", "doctor"))
    assert myxtts_command.main(["sing"]) == 2
    assert "sing is not a command" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0, 0.5, 0.999])
@pytest.mark.parametrize("name", ["out.wav", "out.flac", "out.mp3", "deep/../out.ogg"])
def test_full_disk_is_an_error_message_with_the_file_and_a_hint(tmp_path, capsys, name, share):
    (tmp_path / "deep").mkdir()
    path, samples = tmp_path / name, np.random.default_rng(0).uniform(-1, 1, 24000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    write_audio(path, samples, 24000)
    whole = path.read_bytes()

    @exits_with_sentence
    def write(argv=None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * len(whole)), limits[1]))
        try:
            write_audio(path, samples, 24000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert str(path) in (reported := sentence_of(capsys, write)) and "File too large" in reported
    assert path.read_bytes() == whole and len(list(tmp_path.iterdir())) == 2
    (full := tmp_path / "full.wav").symlink_to("/dev/full")
    reported = sentence_of(capsys, exits_with_sentence(lambda _: write_audio(full, np.ones(9), 24000)))
    assert f"{full} " in reported and "No space left on device" in reported
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), AudioFile(writer, "a.ogg", 24000) as file:
        file.write(samples)


def test_train_main_ends_with_code_2_and_without_a_traceback(tmp_path):
    command = [sys.executable, "train_main.py", "--config", str(tmp_path / "nowhere.yaml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("Error: ") and len(result.stderr.strip().splitlines()) == 1


def test_terminated_command_leaves_no_partial_files(tmp_path):
    """A command for tests that gets SIGTERM while it writes."""
    (tmp_path / "writing.py").write_text(
        "import os, signal, sys, time\n"
        "from myxtts import __main__ as entry\n"
        "from myxtts.storage.files import write_whole\n"
        "def main(arguments):\n"
        "    with write_whole(sys.argv[1]) as temporary:\n"
        "        temporary.write_bytes(b'half')\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(10)\n"
        "entry.COMMANDS['write'] = ('__main__:main', 'writes')\n"
        "sys.exit(entry.main(['write']))\n"
    )
    output = tmp_path / "output"
    output.mkdir()
    command = [sys.executable, tmp_path / "writing.py", output / "sound.wav"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (ended.returncode, list(output.iterdir())) == (143, [])


def test_a_command_ends_although_native_code_lost_the_exception_of_the_signal():
    script = """
import ctypes, os, signal, sys, time
from myxtts import __main__ as entry
def main(arguments):
    ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))()
    print("lost", flush=True)
    time.sleep(100)
entry.COMMANDS["sleep"] = ("__main__:main", "sleeps")
sys.exit(entry.main(["sleep"]))
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, "lost\n")


@pytest.mark.parametrize("end, code", [("return 3", 3), ("sys.exit(4)", 4)])
def test_a_command_ends_with_its_code_while_native_code_is_still_busy(end, code):
    script = f"""
import atexit, sys, time
from myxtts.devices.tensorflow_start import AbandonedThread, run_to_exit
def main():
    AbandonedThread(target=lambda: time.sleep(600), name="busy", daemon=False).start()
    print("done")
    {end}
atexit.register(print, "put away")
run_to_exit(main)
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (code, "done\nput away\n")
    assert ended.stderr == ""


def test_closed_standard_streams_are_empty_and_others_take_every_letter():
    script = "import sys; from myxtts.devices.tensorflow_start import run_to_exit as run\n"
    script += "run(lambda: print('\\udcff ش') or len(sys.stdin.read()))"
    twice = 'PYTHONIOENCODING=latin-1 "$@" </dev/null && "$@" <&- >&-'
    assert subprocess.run(["sh", "-c", twice, "sh", sys.executable, "-c", script], cwd=ROOT).returncode == 0


def test_a_folder_that_is_replaced_needs_a_parent_to_write_to(tmp_path, monkeypatch):
    probed = []
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: probed.append(Path(dir)) or mock.Mock())
    for replaces in (False, True):
        require_output("--output", str(tmp_path), makes_folders=True, replaces=replaces)
    assert probed == [tmp_path, tmp_path.parent]
