"""The commands: a run from recordings to speech, and the one sentence for what a user got wrong."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import soundfile
import yaml
from test_run import untraced
from tiny import make_tiny_corpus, voiced

from myxtts.cli import main as myxtts_command
from myxtts.cli import say, train
from myxtts.config.stages import STAGES, StageEntry
from myxtts.devices import configuration as devices
from myxtts.runs.opening import finished, newest_step
from myxtts.runs.signals import stops_on_signals

ROOT = Path(__file__).resolve().parents[1]
TINY_MODEL = dict(
    size="nano",
    max_text_tokens=24,
    max_audio_tokens=48,
    layers=1,
    width=16,
    heads=2,
    conditioning_blocks=1,
    conditioning_heads=2,
    num_latents=2,
    perceiver_heads=2,
    perceiver_head_width=8,
    num_codes=16,
    dvae_hidden=8,
    dvae_residual_blocks=1,
    codebook_width=8,
)


@pytest.fixture(autouse=True)
def devices_as_before(monkeypatch):
    monkeypatch.setattr(devices, "_applied", None)


@pytest.fixture(scope="module")
def tiny_yaml(tmp_path_factory):
    """A configuration file of a run of two steps a stage."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": TINY_MODEL,
                "data": {
                    "max_seconds": 1.5,
                    "max_text_length": 20,
                    "batch_size": 3,
                    "num_buckets": 2,
                    "num_workers": 1,
                    "pipeline_buffer_size": 2,
                    "validation_share": 0.2,
                },
                "training": {
                    "dvae": {"max_steps": 2},
                    "gpt": {"max_steps": 2},
                    "log_every_steps": 1,
                    "validate_every_steps": 2,
                    "checkpoint_every_steps": 2,
                    "sample_every_steps": 2,
                    "num_samples": 1,
                },
            }
        )
    )
    return path


def sentence_of(capsys, main, *argv):
    """Runs a command that must fail as a user can mend; returns its one sentence."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in argv])
    except SystemExit as exit:  # argparse
        code = exit.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    last = error.strip().splitlines()[-1]
    assert re.match(r"Error: |.*: error: ", last), error
    return last


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--model-size", "huge"], ["--model-size", "huge", "nano"]),
        (["--batch-size", "0"], ["data.batch_size", "1 or more", "0"]),
        (["--batch-size", "many"], ["--batch-size", "many"]),
        (["--lr", "-1"], ["learning_rate", "-1"]),
        (["--epochs", "0"], ["training.epochs", "0"]),
        (["--max-mel-frames", "1022"], ["max_mel_frames", "1022", "1020 or 1024"]),
        (["--max-text-length", "999"], ["--max-text-length", "200", "999"]),
        (["--stage", "vocoder"], ["--stage", "vocoder", "dvae"]),
        (["--precision", "float8"], ["training.precision", "float8", "mixed_bfloat16"]),
        (["--config", "nowhere.yaml"], ["--config", "nowhere.yaml is not there"]),
        (["--model-gpus", "1,x"], ["--model-gpus", "1,x"]),
        (["--data-gpu", "0"], ["--data-gpu", "--model-gpu"]),
        (["--enable-static-shapes", "--disable-static-shapes"], ["not allowed with"]),
    ],
)
def test_bad_flag_is_one_sentence(capsys, tiny_corpus, tmp_path, argv, words):
    line = sentence_of(capsys, train.main, "--train-data", tiny_corpus, "--checkpoint-dir", tmp_path / "run", *argv)
    assert all(word in line for word in words), line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content, words",
    [
        ("model: [", ["cannot be read"]),
        ("model: " + 2000 * "[", ["cannot be read"]),
        ("modell: {}", ["Did you mean model?"]),
        ("data: {batch_size: two}", ["data.batch_size", "whole number"]),
    ],
)
def test_corrupt_config_is_one_sentence(capsys, tmp_path, content, words):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    line = sentence_of(capsys, train.main, "--config", path, "--train-data", tmp_path)
    assert all(word in line for word in words), line


def test_bad_data_folder_is_one_sentence(capsys, tmp_path, tiny_yaml):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_list/wavs").mkdir(parents=True)
    soundfile.write(tmp_path / "no_list/wavs/a.wav", voiced(0.5, 110, 0), 22050)
    for folder, words in [("nowhere", "nowhere"), ("empty", "empty"), ("no_list", "metadata.csv")]:
        line = sentence_of(
            capsys,
            train.main,
            "--train-data",
            tmp_path / folder,
            "--config",
            tiny_yaml,
            "--checkpoint-dir",
            tmp_path / "run",
        )
        assert words in line, line


def test_bad_vocabulary_is_one_sentence(capsys, tiny_corpus, tiny_yaml, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for name in ("nowhere.json", "bad.json"):
        line = sentence_of(
            capsys,
            train.main,
            "--train-data",
            tiny_corpus,
            "--config",
            tiny_yaml,
            "--vocabulary",
            tmp_path / name,
            "--checkpoint-dir",
            tmp_path / "run",
        )
        assert name in line and "--vocabulary" in line, line
    (tmp_path / "run/vocab.json").write_text("{")
    line = sentence_of(
        capsys, train.main, "--train-data", tiny_corpus, "--config", tiny_yaml, "--checkpoint-dir", tmp_path / "run"
    )
    assert "run/vocab.json" in line and "own vocabulary" in line


def test_gpt_stage_without_a_dvae_is_one_sentence(capsys, tiny_corpus, tiny_yaml, tmp_path):
    line = sentence_of(
        capsys,
        train.main,
        "--train-data",
        tiny_corpus,
        "--config",
        tiny_yaml,
        "--stage",
        "gpt",
        "--checkpoint-dir",
        tmp_path / "run",
    )
    assert "needs a trained dvae" in line and "--stage dvae" in line


def test_resume_never_starts_a_run(capsys, tiny_corpus, tiny_yaml, tmp_path):
    argv = ["--train-data", tiny_corpus, "--config", tiny_yaml, "--checkpoint-dir", tmp_path / "run", "--resume"]
    assert "holds no checkpoint" in sentence_of(capsys, train.main, *argv)
    assert "give one of the two" in sentence_of(capsys, train.main, *argv, "--init-from", tmp_path)
    assert "not allowed with" in sentence_of(capsys, train.main, *argv, "--reset-training")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error, code, words",
    [
        (OSError(5, "Input/output error", "/mnt/x"), 2, "Input/output error: '/mnt/x'"),
        (KeyboardInterrupt(), 130, "Stopped at once"),
    ],
)
def test_disk_error_and_ctrl_c_end_without_a_traceback(capsys, monkeypatch, error, code, words):
    monkeypatch.setattr(train, "config_from_arguments", mock.Mock(side_effect=error))
    assert train.main([]) == code
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


def test_download_without_a_folder_is_one_sentence(capsys, tiny_yaml):
    assert "--train-data" in sentence_of(capsys, train.main, "--config", tiny_yaml, "--download-ljspeech")


def test_flags_win_over_the_file(tiny_yaml):
    parser = train.build_parser()
    config = train.config_from_arguments(
        parser.parse_args(
            [
                "--config",
                str(tiny_yaml),
                "--batch-size",
                "5",
                "--lr",
                "0.1",
                "--max-steps",
                "9",
                "--num-workers",
                "4",
                "--buffer-size",
                "7",
                "--grad-accum",
                "2",
                "--enable-static-shapes",
                "--train-data",
                "x",
                "--seed",
                "3",
            ]
        )
    )
    assert config.data.batch_size == config.stage("gpt").batch_size == config.stage("dvae").batch_size == 5
    assert config.stage("dvae").learning_rate == config.stage("gpt").learning_rate == 0.1
    assert config.stage("dvae").max_steps == 9 and config.training.gradient_accumulation == 2
    assert (config.data.num_workers, config.data.pipeline_buffer_size, config.data.static_shapes) == (4, 7, True)
    assert config.training.seed == 3 and config.model.width == 16


def test_registered_stage_has_its_place_in_the_flags(monkeypatch):
    rates = STAGES["gpt"].learning_rates
    monkeypatch.setitem(STAGES, "echo", StageEntry("echo", "nowhere:Echo", ("gpt",), learning_rates=rates))
    argv = ["--train-data", "x", "--stage", "echo", "--max-steps", "9", "--lr", "0.1", "--batch-size", "5"]
    config = train.config_from_arguments(train.build_parser().parse_args(argv))
    stage = config.stage("echo")
    assert (config.training.stage, stage.max_steps, stage.learning_rate, stage.batch_size) == ("echo", 9, 0.1, 5)


def test_switch_that_is_not_given_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / "strict.yaml"
    path.write_text("training: {strict: true, reset_training: true, tf32: true}")
    given = lambda *flags: train.config_from_arguments(train.build_parser().parse_args(["--config", str(path), *flags]))
    assert given().training.strict and given().training.reset_training and not given("--no-tf32").training.tf32


def test_flags_of_the_contract_and_their_defaults():
    arguments = train.build_parser().parse_args(["--pad-to-fixed-length"])
    assert arguments.static_shapes is True
    assert (arguments.data_gpu_memory, arguments.model_gpu_memory) == (8192, 16384)
    config = train.config_from_arguments(train.build_parser().parse_args(["--train-data", "x"]))
    assert config.model.size == "tiny" and config.data.batch_size == 16 and config.training.epochs == 500
    assert not config.data.static_shapes and config.training.checkpoint_dir == "./checkpoints"


@pytest.fixture(scope="module")
def trained(tiny_corpus, tiny_yaml, tmp_path_factory):
    """Arguments and folder of a run of both stages."""
    home = tmp_path_factory.mktemp("trained") / "run"
    argv = ["--train-data", str(tiny_corpus), "--config", str(tiny_yaml), "--checkpoint-dir", str(home)]
    devices._applied = None
    with untraced():
        assert train.main(argv) == 0
    return argv, home


def files_and_times(home):
    return {path: path.stat().st_mtime_ns for stage in ("dvae", "gpt") for path in (home / stage).rglob("*")}


def test_run_leaves_checkpoints_logs_pictures_and_speech(trained):
    _, home = trained
    for stage in ("dvae", "gpt"):
        assert (home / stage / "step_00000002/model.safetensors").is_file()
        assert list((home / "tensorboard" / stage).glob("events.*"))
    assert json.loads((home / "config.json").read_text())["model"]["width"] == 16
    wavs, pictures = sorted((home / "samples").glob("*.wav")), sorted((home / "samples").glob("*.png"))
    assert len(wavs) == len(pictures) == 1
    samples, rate = soundfile.read(wavs[0])
    assert rate == 22050 and len(samples)


def test_finished_stages_are_not_trained_again(trained, capsys):
    argv, home = trained
    before = files_and_times(home)
    assert train.main(argv) == 0
    said = capsys.readouterr().out
    assert "Stage dvae: trained already" in said and "Stage gpt: trained already" in said
    assert files_and_times(home) == before


def test_run_of_another_size_leaves_the_run_alone(trained, capsys):
    argv, home = trained
    before = (home / "config.json").read_text()
    other = [*argv, "--model-size", "tiny"]
    line = sentence_of(capsys, train.main, *other)
    assert "another model" in line and "--checkpoint-dir" in line
    assert (home / "config.json").read_text() == before


def test_say_speaks_with_what_was_trained(trained, tiny_corpus, tmp_path, capsys):
    out = tmp_path / "out.wav"
    reference = tiny_corpus / "wavs/low_one.wav"
    assert (
        say.main(
            [
                "--checkpoint",
                str(trained[1]),
                "--text",
                "one two",
                "--reference-audio",
                str(reference),
                "--output",
                str(out),
            ]
        )
        == 0
    )
    samples, rate = soundfile.read(out)
    assert rate == 22050 and len(samples)
    assert str(out) in capsys.readouterr().out


@pytest.mark.parametrize(
    "change, words",
    [
        ({"--checkpoint": "nowhere"}, ["--checkpoint", "nowhere is not a folder"]),
        ({"--checkpoint": "."}, ["config.json", "is not there"]),
        ({"--reference-audio": "nobody.wav"}, ["nobody.wav"]),
        ({"--text": "  "}, ["no text"]),
        ({"--language": "xx"}, ["xx"]),
        ({"--temperature": "-1"}, ["--temperature", "-1"]),
        ({"--top-p": "0"}, ["--top-p", "0"]),
        ({"--top-k": "some"}, ["--top-k", "some"]),
        ({"--output": "no/such/folder/out.wav"}, ["no/such/folder"]),
    ],
)
def test_say_with_something_wrong_is_one_sentence(trained, tiny_corpus, tmp_path, monkeypatch, capsys, change, words):
    monkeypatch.chdir(tmp_path)
    given = {
        "--checkpoint": trained[1],
        "--text": "one",
        "--reference-audio": tiny_corpus / "wavs/low_one.wav",
        "--output": tmp_path / "out.wav",
        **change,
    }
    line = sentence_of(capsys, say.main, *[part for item in given.items() for part in item])
    assert all(word in line for word in words), line
    assert not (tmp_path / "out.wav").exists()


def test_stage_whose_finished_checkpoint_is_damaged_is_not_finished(trained, tiny_yaml, tmp_path):
    argv = ["--config", str(tiny_yaml), "--checkpoint-dir", str(tmp_path)]
    config = train.config_from_arguments(train.build_parser().parse_args(argv))
    shutil.copytree(trained[1] / "dvae", tmp_path / "dvae")
    assert finished(config, "dvae", newest_step(tmp_path, "dvae"))
    file = tmp_path / "dvae/step_00000002/model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert not finished(config, "dvae", newest_step(tmp_path, "dvae"))
    assert (tmp_path / "dvae/damaged_step_00000002").is_dir()


def test_folder_of_recordings_is_not_changed_by_a_run(trained, tiny_corpus, tmp_path):
    fresh = make_tiny_corpus(tmp_path / "fresh")
    for folder in (tiny_corpus, fresh):
        assert {path.relative_to(folder) for path in folder.rglob("*")} == {
            path.relative_to(fresh) for path in fresh.rglob("*")
        }
    for path in fresh.rglob("*.*"):
        assert (tiny_corpus / path.relative_to(fresh)).read_bytes() == path.read_bytes()


def test_first_signal_asks_for_a_stop_and_the_second_stops_at_once():
    trainer = SimpleNamespace(stop_requested=threading.Event(), under_way=True)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stops_on_signals(trainer):
        os.kill(os.getpid(), signal.SIGTERM)
        assert trainer.stop_requested.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_signal_before_the_first_step_ends_the_run_at_once(capfd):
    for interrupted_as in (None, RuntimeError("what TensorFlow makes of an interruption")):
        trainer = SimpleNamespace(stop_requested=threading.Event(), under_way=False)
        with stops_on_signals(trainer):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
                pytest.fail("went on")
            except KeyboardInterrupt as interruption:
                raise interrupted_as or interruption from None
        assert trainer.stop_requested.is_set()
        assert "SIGTERM: stopping before the first step" in capfd.readouterr().out
    trainer = SimpleNamespace(stop_requested=threading.Event(), under_way=False)
    with pytest.raises(RuntimeError), stops_on_signals(trainer):
        raise RuntimeError("without a signal")


def test_process_that_gets_a_signal_while_it_traces_ends_well(tiny_corpus, tmp_path):
    command = [
        sys.executable,
        "train_main.py",
        "--train-data",
        str(tiny_corpus),
        "--checkpoint-dir",
        str(tmp_path / "run"),
        "--stage",
        "dvae",
        "--batch-size",
        "4",
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Placement audit"):
                time.sleep(1)
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, said
    assert "SIGTERM: stopping before the first step\n" in said
    assert f"Stopped. Run the same command again to resume from {tmp_path / 'run'}/dvae\n" == said[-1]
    assert not (tmp_path / "run" / "dvae").exists() or not list((tmp_path / "run" / "dvae").glob("step_*"))


def test_myxtts_lists_its_commands_and_refuses_others(capsys):
    assert myxtts_command.main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("train", "say", "doctor"))
    assert myxtts_command.main(["sing"]) == 2
    assert "sing is not a command" in capsys.readouterr().err


@pytest.mark.parametrize("command", myxtts_command.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as exit:
        myxtts_command.main([command, "--help"])
    assert exit.value.code == 0 and "usage" in capsys.readouterr().out


def test_train_main_ends_with_code_2_and_without_a_traceback(tmp_path):
    result = subprocess.run(
        [sys.executable, "train_main.py", "--config", str(tmp_path / "nowhere.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert result.returncode == 2
    assert result.stderr.startswith("Error: ") and len(result.stderr.strip().splitlines()) == 1
