"""The training command: a whole run, its repetition, synthesis with it, and stops by signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from command_helpers import sentence_of
from crash_points import contents
from tiny import make_tiny_corpus, untraced

from myxtts.cli import say, train
from myxtts.devices import configuration as devices
from myxtts.runs.agenda import make_agenda
from myxtts.runs.run import stops_on_signals
from myxtts.storage.checkpoint import CheckpointStore

pytestmark = pytest.mark.usefixtures("devices_as_before", "small_speaker_encoders")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def trained(tiny_corpus, tiny_yaml, small_speaker_encoders, tmp_path_factory):
    """Arguments and folder of a run of all stages."""
    home = tmp_path_factory.mktemp("trained") / "run"
    argv = ["--train-data", str(tiny_corpus), "--config", str(tiny_yaml), "--checkpoint-dir", str(home)]
    devices._applied = None
    with untraced():
        assert train.main(argv) == 0
    return argv, home


def test_run_leaves_checkpoints_logs_pictures_and_speech(trained):
    _, home = trained
    for stage in ("dvae", "gpt"):
        assert (home / stage / "step_00000002/model.safetensors").is_file()
        assert list((home / "tensorboard" / stage).glob("events.*"))
    store = CheckpointStore(home / "decoder")
    state = store.read_state(store.steps()[-1])
    assert state["finished"] and set(state["lineage"]) == {"dvae", "gpt", "speaker"}
    assert json.loads((home / "config.json").read_text())["model"]["width"] == 16
    wavs, pictures = sorted((home / "samples").glob("*.wav")), sorted((home / "samples").glob("*.png"))
    (spoken,) = [path.stem for path in pictures if path.stem.startswith("step_")]
    clip = spoken.removeprefix("step_000002_")
    kinds = ("decoder_000002", "dvae_000002", "step_000002")
    assert [path.stem for path in pictures] == [f"{kind}_{clip}" for kind in kinds]
    recordings = [f"{kind}_{clip}" for kind in (*kinds[:2], "recording", kinds[2])]
    assert [path.stem for path in wavs] == sorted(["final_1", *recordings])
    assert (home / "curves.png").is_file() and (home / "metrics.jsonl").read_text().count("\n") >= 4
    samples, rate = soundfile.read(home / "samples" / f"{spoken}.wav")
    assert rate == 22050 and len(samples)


def test_run_of_another_size_leaves_the_run_alone(trained, capsys):
    argv, home = trained
    before = (home / "config.json").read_text()
    line = sentence_of(capsys, train.main, *argv, "--model-size", "tiny")
    assert "another model" in line and "--checkpoint-dir" in line
    assert (home / "config.json").read_text() == before


def test_say_speaks_in_the_voices_of_the_training_by_name(trained, tmp_path, capsys):
    home, out = str(trained[1]), str(tmp_path / "out.wav")
    assert say.main(["--checkpoint", home, "--list-speakers"]) == 0
    assert capsys.readouterr().out == "high\ten\nlow\ten\n"
    with untraced():
        assert say.main(["--checkpoint", home, "--text", "one", "--speaker", "low", "--output", out]) == 0
    samples, rate = soundfile.read(out)
    assert rate == 24000 and len(samples)
    line = sentence_of(capsys, say.main, "--checkpoint", home, "--text", "one", "--speaker", "lo", "--output", out)
    assert "one of the model's 2 voices. Received: lo. Similar: low" in line


def test_say_with_infinite_weights_is_one_error_message(trained, tiny_corpus, tmp_path, capsys):
    home = shutil.copytree(trained[1], tmp_path / "run")
    store = CheckpointStore(home / "gpt")
    (tensors, state), voice = store.read(2, ("model",)), tiny_corpus / "wavs/low_one.wav"
    name = "gpt/audio_head/bias"
    tensors["model"][name] = np.full_like(tensors["model"][name], np.inf)
    store.write(2, tensors, state)
    argv = ["--checkpoint", home, "--text", "one", "--reference-audio", voice, "--output", tmp_path / "out.wav"]
    line = sentence_of(capsys, say.main, *argv)
    assert all(word in line for word in ("step_00000002", "NaN or infinity in 1 weights", name, "--which")), line
    assert not (tmp_path / "out.wav").exists()


def test_stage_whose_finished_checkpoint_is_damaged_is_not_finished(trained, tiny_yaml, tmp_path):
    argv = ["--config", str(tiny_yaml), "--checkpoint-dir", str(tmp_path)]
    config = train.config_from_arguments(train.build_parser().parse_args(argv))
    shutil.copytree(trained[1] / "dvae", tmp_path / "dvae")
    dataset = SimpleNamespace(train=(), speakers=())
    assert not make_agenda(config, dataset)[0].trains
    file = tmp_path / "dvae/step_00000002/model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert make_agenda(config, dataset)[0].trains
    assert (tmp_path / "dvae/damaged_step_00000002").is_dir()


def test_folder_of_recordings_is_not_changed_by_a_run(trained, tiny_corpus, tmp_path):
    assert contents(tiny_corpus) == contents(make_tiny_corpus(tmp_path / "fresh"))


def test_first_signal_requests_a_stop_and_the_second_stops_at_once(monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", open(os.devnull))  # writing fails, as after the end of `tee`
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
        assert "SIGTERM: stopping " in capfd.readouterr().out
    trainer = SimpleNamespace(stop_requested=threading.Event(), under_way=False)
    with pytest.raises(RuntimeError), stops_on_signals(trainer):
        raise RuntimeError("without a signal")


TRAIN_WHOSE_TRACING_WAITS = """
import sys, time
from myxtts.cli import train
from myxtts.training.stages.dvae import DVAEObjective

def loss_sums(self, batch, seed=None):
    print("tracing", flush=True)
    time.sleep(600)

DVAEObjective.loss_sums = loss_sums
sys.exit(train.main(sys.argv[1:]))
"""


def test_process_that_gets_a_signal_while_tracing_ends_cleanly(tiny_corpus, tiny_yaml, tmp_path):
    folders = "--train-data", str(tiny_corpus), "--checkpoint-dir", str(tmp_path / "run")
    command = [sys.executable, "-u", "-c", TRAIN_WHOSE_TRACING_WAITS, *folders, "--config", str(tiny_yaml)]
    both = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(command, cwd=ROOT, **both) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line == "tracing\n":
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, said
    assert "SIGTERM: stopping before " in "".join(said)
    assert said[-1].startswith("Stopped.") and said[-1].endswith(f" {tmp_path / 'run'}/dvae\n")
    assert not (tmp_path / "run" / "dvae").exists() or not list((tmp_path / "run" / "dvae").glob("step_*"))
