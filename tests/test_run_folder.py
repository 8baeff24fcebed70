"""The folder of a run: one writer at a time, removal of partial files, and clear errors for unusable folders."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny import full_disk, tiny_run_config, with_training

from myxtts.api import _requested
from myxtts.config.checks import UserError
from myxtts.config.flags import StartOptions
from myxtts.data.corpora import TextsMissing
from myxtts.runs.origin import settle_origin
from myxtts.runs.setup import require_run, transcribe, with_own_data
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import temporary_path, write_json
from myxtts.storage.run_folder import own_run_folder

ROOT = Path(__file__).resolve().parents[1]
HOLD = (
    "import sys; from myxtts.storage.run_folder import own_run_folder\n"
    "with own_run_folder(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
)


def test_second_run_in_the_same_folder_is_refused_until_the_first_is_dead(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match="Another run is writing to"), own_run_folder(tmp_path):
        pass
    other.send_signal(signal.SIGKILL)
    other.wait(60)
    with own_run_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_one_of_several_simultaneous_runs_gets_the_folder(tmp_path):
    at_once, all_tried = threading.Barrier(3), threading.Barrier(3)

    def begin(folder):
        at_once.wait(60)
        try:
            with own_run_folder(folder):
                all_tried.wait(60)
                return "began"
        except CheckpointError as error:
            all_tried.wait(60)
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        for number in range(100):
            folder = tmp_path / str(number)
            outcomes = sorted(pool.map(begin, [folder] * 3))
            assert outcomes[2] == "began" and all(one.startswith("Another run is writing to") for one in outcomes[:2])
            assert not list(folder.iterdir())


def test_only_partial_files_of_a_killed_run_are_deleted(tmp_path):
    kept = {"config.json", "notes.tmp", ".hidden", ".mine.tmp"}
    for name in (".folder.tmp", "samples"):
        (tmp_path / name).mkdir()
    partial = temporary_path(tmp_path / "config.json"), temporary_path(tmp_path / "samples/a.wav")
    for path in (*partial, *map(tmp_path.joinpath, kept)):
        path.write_text("x")
    with own_run_folder(tmp_path) as folder:
        assert {path.name for path in folder.rglob("*")} == {"samples", ".folder.tmp", *kept}


@pytest.mark.parametrize(
    "place",
    "train.log config.json vocab.json gpt dvae decoder samples tensorboard gpt/best.json gpt/step_00000002 "
    "samples/step_000001_a.wav tensorboard/gpt clips_train.csv inspected_1f.json .before_reset".split(),
)
@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
def test_link_in_a_received_folder_is_refused_and_not_followed(tmp_path, place, kind):
    victim, link = tmp_path / "victim", tmp_path / "run" / place
    if kind == "folder":
        victim.mkdir()
        temporary_path(victim / "a").write_text("mine")
    elif kind == "file":
        victim.write_text("mine")
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=f"{place} is a link.*--checkpoint-dir"), own_run_folder(tmp_path / "run"):
        pytest.fail("the run began")
    assert sorted(tmp_path.rglob("*")) == before and (kind != "file" or victim.read_text() == "mine")


def test_pipe_instead_of_the_log_is_refused(tmp_path):
    (tmp_path / ".before_reset").mkdir()  # an interrupted reset, whose files return first
    os.mkfifo(tmp_path / ".before_reset/train.log")
    with pytest.raises(CheckpointError, match="train.log is a link, a pipe"), own_run_folder(tmp_path):
        pytest.fail("the run began")


def test_run_folder_that_is_a_link_and_links_of_the_users_own_are_fine(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "data").symlink_to(tmp_path)
    (tmp_path / "checkpoints").symlink_to("disk")
    temporary_path(tmp_path / "disk" / "config.json").write_text("x")
    with own_run_folder(tmp_path / "checkpoints"):
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["data"]


def test_recordings_sorted_into_folders_of_speakers_are_cut_again(tmp_path):
    config, planned = tiny_run_config(None, tmp_path / "run"), set()
    for path in (tmp_path / "talks/a.srt", tmp_path / "talks/ann/a.srt"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        planned.add(transcribe(config, TextsMissing("", tmp_path / "talks", [path.with_suffix(".wav")]), plan=True))
    assert len(planned) == 2
    words = "In der Sprache der Drucker heißt das noch nicht viel, aber es genügt uns für den Anfang. " * 2
    path.write_text(f"1\n00:00:01,000 --> 00:00:09,000\n{words}\n")
    assert " in de into " in transcribe(config, TextsMissing("", path, [path.with_suffix(".wav")]), plan=True)
    german = path.rename(path.with_name("a.de.srt")).read_text()
    path.with_name("a.en.srt").write_text(german.replace(words, "The words that all of us know and the others do not."))
    assert " in en into " in transcribe(config, TextsMissing("", path, [path.with_suffix(".wav")]), plan=True)


def test_unwritable_folder_is_one_error_message(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="--checkpoint-dir .*file is a file"), own_run_folder(tmp_path / "file"):
        pass
    monkeypatch.setattr("tempfile.TemporaryFile", full_disk)
    with pytest.raises(CheckpointError, match="No space left on device"), own_run_folder(tmp_path / "run"):
        pass


def test_resume_of_a_copy_without_a_whole_checkpoint_is_refused_and_changes_nothing(tmp_path, capsys):
    store = CheckpointStore(tmp_path / "gpt")
    store.write(1, {"model": {"a": np.zeros(3, np.float32)}}, {})
    CheckpointStore(tmp_path / "dvae").write(1, {}, {})
    config = tiny_run_config(None, tmp_path)
    require_run(config)
    (store.path(1) / "model.safetensors").unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="--resume .*checkpoint, but .*gpt has none"):
        require_run(config)
    assert sorted(tmp_path.rglob("*")) == before
    write_json(tmp_path / "config.json", tiny_run_config(ROOT, data={"val_data": "held"}).to_dict())
    assert with_own_data(config).data.val_data == "held"
    for workers in {}, {"workers": ("a:1", "b:1"), "worker_index": 1}:
        continued = _requested(None, {"checkpoint_dir": str(tmp_path), **workers}, StartOptions())  # not sample.yaml
        assert continued.recipe() == config.recipe() and continued.data.val_data == "held"
    assert continued.training.worker_index == 1
    reset = _requested(None, {"checkpoint_dir": str(tmp_path), "reset_training": True}, StartOptions())
    assert reset.recipe() == config.recipe()
    write_json(tmp_path / "config.json", tiny_run_config(ROOT, training={"init_from": "a", "tune": ("gpt",)}).to_dict())
    for again in ({}, {"stage": "speaker"}, {"reset_training": True}):
        assert _requested(None, {"checkpoint_dir": str(tmp_path), **again}, StartOptions()).training.tune == ("gpt",)
    (tmp_path / "sample_corpus").mkdir()  # recordings of the user's own
    write_json(tmp_path / "config.json", tiny_run_config(tmp_path / "sample_corpus").to_dict())
    assert with_own_data(config).data.train_data == str(tmp_path / "sample_corpus")
    (tmp_path / "model.bin").touch()
    given = tiny_run_config("data", tmp_path, data={"prepared": "gs://b/a", "audio_roots": ("../b",)})
    places, here = {"tensorboard_log_dir": "logs", "evaluation_recognizer": os.path.relpath(tmp_path)}, Path.cwd()
    settled = settle_origin(with_training(given, reset_training=True, **places))[0]
    data, training = settled.data, settled.training
    assert [data.train_data, data.prepared, *data.audio_roots] == [f"{here}/data", "gs://b/a", f"{here.parent}/b"]
    assert [training.evaluation_recognizer, training.tensorboard_log_dir] == [str(tmp_path), f"{here}/logs"]
    (tmp_path / "dataset/a1").mkdir(parents=True)  # cut by the run, which was moved
    write_json(tmp_path / "config.json", tiny_run_config("/gone/dataset/a1", data={"prepared": "/gone/b"}).to_dict())
    assert with_own_data(config).data.train_data == f"{tmp_path}/dataset/a1" and "/gone/b" in capsys.readouterr().out
    write_json(tmp_path / "config.json", tiny_run_config("gone").to_dict())
    for config.training.reset_training in (False, True):
        with pytest.raises(UserError, match=f"data set, {here}/gone, does not exist.* --config {tmp_path}/config.json"):
            with_own_data(config)
