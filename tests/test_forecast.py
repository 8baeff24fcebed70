"""Forecast of a run: required and available memory and disk, and the time of all stages."""

import json
import shutil
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tiny import tiny_run_config
from tqdm import tqdm

import myxtts
from myxtts.cli.train import plan
from myxtts.config.checks import UserError
from myxtts.config.stages import LORA_TARGETS
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_devices
from myxtts.devices.gpu_monitor import GPU
from myxtts.runs import agenda
from myxtts.runs.agenda import StageWork
from myxtts.runs.console import RunConsole
from myxtts.runs.run import Run
from myxtts.training.watching import measurement
from myxtts.training.watching.measurement import try_stage

GB = 2**30
WORKS = [StageWork("dvae", None, 20), StageWork("gpt", None, 40)]


@pytest.fixture
def machine(monkeypatch):
    """Simulates a total memory and a free disk space, in bytes."""

    def has(memory, disk):
        ram = SimpleNamespace(total=memory, limit=None, usable=memory // 2)
        monkeypatch.setattr(agenda, "read_memory", lambda: ram)
        monkeypatch.setattr(agenda, "resident_bytes", lambda: GB // 2)
        monkeypatch.setattr(agenda.shutil, "disk_usage", lambda folder: SimpleNamespace(free=disk))

    return has


def needs(folder, works=WORKS, gpt=None, **training):
    config = tiny_run_config("there", folder, model={"num_text_tokens": 40}, training=training, gpt=gpt)
    return agenda.find_needs(config, works, SimpleNamespace(train=[SimpleNamespace(num_samples=22050)]))


def test_forecast_includes_checkpoints_of_all_stages_and_a_full_disk_is_refused(tmp_path, machine, monkeypatch):
    machine(8 * GB, 8 * GB)
    found = needs(tmp_path / "run")
    assert 0.9 * GB < found.memory < 2 * GB and found.memory_in_all == 8 * GB and found.disk_free == 8 * GB
    only = needs(tmp_path / "run", WORKS[:1])
    assert 0 < only.disk < found.disk and only.disk % 4 == 0
    tuned = [dict(lora_rank=1, lora_targets=one) for one in (("output_projection",), LORA_TARGETS)]
    disks = [needs(tmp_path / "run", WORKS[1:], one).disk for one in tuned]
    assert disks[1] > 1.2 * disks[0], "the adapted kernels are stored twice"
    assert needs(tmp_path / "run", [StageWork("dvae", 20, 20, finished=True)]) is None
    with pytest.raises(UserError, match="--batch-size.* multiple of .* devices, 3. Received: 4"):
        needs(tmp_path / "run", workers=("a:1", "b:1", "c:1"))
    machine(8 * GB, found.disk - 1)
    with pytest.raises(UserError, match="checkpoints do not fit.*--keep"):
        needs(tmp_path / "run")
    machine(GB // 2, 8 * GB)
    with pytest.raises(UserError, match="does not fit.*--batch-size"):
        needs(tmp_path / "run")
    cards = [GPU("0", "small", 4096), GPU("1", "large", 24576)]
    for request, memory in (({"data_gpu": 0, "model_gpu": 1}, 24), ({"data_gpu": 1, "model_gpu": 0}, 4), ({}, 4)):
        monkeypatch.setattr(agenda, "plan_for", lambda: plan_devices(num_gpus=2, gpus=cards, **request))
        monkeypatch.setattr(agenda, "list_gpus", lambda: cards)
        assert needs(tmp_path / "run", WORKS[:1]).memory_in_all == memory * GB  # of the GPU that trains
    cards[0] = GPU("0", "tiny", 1)
    assert needs(tmp_path / "run", WORKS[:1], optimizations="aggressive"), "auto may choose what needs less memory"


def test_plan_estimates_the_time_of_each_stage_and_starts_no_run(tiny_corpus, tmp_path, capsys):
    flags = "--model-size nano --batch-size 2 --stage dvae --time --max-steps".split()
    folder = ["--checkpoint-dir", str(tmp_path / "run")]
    assert plan([str(tiny_corpus), *flags, "200", *folder, "--json", str(tmp_path / "plan.json")]) == 0
    (stage, seconds), *others = json.loads((tmp_path / "plan.json").read_text())["seconds"].items()
    assert stage == "dvae" and 0.5 < seconds < 6000 and not others
    assert tqdm.format_interval(seconds) in capsys.readouterr().out
    assert plan([str(tiny_corpus), *flags, "200", *folder, "--max-text-length", "1"]) == 2
    assert "MEMORY, MB" in (said := capsys.readouterr()).out and "no usable clips.\n" in said.err
    short = dict(train_data=tiny_corpus, stage="dvae", max_steps=3, checkpoint_dir=tmp_path / "run")
    found = myxtts.plan(time=True, **short)
    assert found["seconds"] == {} and "fewer than 40 steps" in found["not_timed"] and "than 40 steps" in str(found)
    (tmp_path / "talk").mkdir()
    shutil.copy(next(tiny_corpus.glob("wavs/*.wav")), tmp_path / "talk/a.wav")
    (tmp_path / "talk/a.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\none two\n")
    planned = myxtts.plan(time=True, **short | dict(train_data=tmp_path / "talk"))["not_timed"]
    assert "training first cuts 1 recording in en into clips by the subtitles, in" in planned
    assert not (tmp_path / "run").exists()


def test_time_left_includes_later_stages_and_is_in_each_log_line(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(agenda.time, "monotonic", lambda: now[0])
    config = tiny_run_config("there", tmp_path)
    left, dear = agenda.TimeLeft(config), agenda.STAGES["gpt"].cost / agenda.STAGES["dvae"].cost
    dear *= config.stage("gpt").batch_size / config.stage("dvae").batch_size
    left.on_agenda(WORKS)
    left.on_stage("dvae", None)
    left.on_start(SimpleNamespace(stage="dvae", step=0, total_steps=20))
    for step in range(1, 11):
        now[0] += 1 if step > agenda.WARMUP_STEPS else 3  # the first are traced
        left.on_step(step)
        assert (left.seconds_left(step) is None) == (step < agenda.WARMUP_STEPS + agenda.TIMED_STEPS)
    timing = {"avg_ms": 1000.0}
    left.on_log(10, {}, timing)
    assert timing["seconds_left"] == pytest.approx(10 + 40 * dear + 9)  # and as long to begin with
    assert timing["stage_seconds_left"] == pytest.approx(10), "of the same mean step as the whole time"
    left.on_log(10, {}, nothing := {})
    assert nothing == {}
    passed = now[0] - 3 * agenda.WARMUP_STEPS
    for own, later in ((0.5, 70.0), (0.5, 7.0), (0.01, 70.0), (0.0, 70.0)):
        left.on_trial({"dvae": (own, 20.0), "gpt": (3.0, later)})
        left.on_stage("dvae", None)
        slower = (passed + later) / (own * passed + later) if own else 1  # a trial step too short to time
        assert left.seconds_left(10) == pytest.approx(10 + slower * later), "slow steps count by the time they took"


def test_time_of_a_run_is_estimated_from_a_trial_of_its_stages(tmp_path, monkeypatch, capsys):
    every = dict.fromkeys(("validate_every_steps", "sample_every_steps", "evaluate_every_steps"), 10)
    config = tiny_run_config("there", tmp_path, training=every)
    dataset = SimpleNamespace(config=config)
    monkeypatch.setattr(agenda.time, "process_time", lambda: 2 * time.monotonic())  # two threads
    monkeypatch.setattr(agenda, "try_stage", lambda data, stage, plan: {"dvae": (0.1, 0.5), "gpt": (0.3, 1.0)}[stage])
    reasons = []
    notify = lambda event, *facts: reasons.extend(facts) if event == "on_no_trial" else None
    tried = lambda works, memory, free=64 * GB: agenda.try_run(
        works, dataset, SimpleNamespace(memory=memory, memory_free=free), notify
    )
    times, opening, stop = tried(WORKS, memory=GB), agenda.OPENING, agenda.STOP_SECONDS
    assert times["dvae"] == (0.5, pytest.approx(20 * 0.5 + 0.1 * opening + 2 * stop))
    assert times["gpt"] == (1.0, pytest.approx(40 * 1.0 + 0.3 * opening + 4 * stop + agenda.CLOSING_SECONDS))
    assert not tried(WORKS[:1], memory=GB), "twenty steps are done before a trial is worth it"
    assert not tried(WORKS, memory=agenda.MOST_TO_TRY + 1)
    assert not tried(WORKS, memory=GB, free=GB - 1), "another program, such as a training, has the memory"
    assert [*tried([StageWork("dvae", 50, 20), WORKS[1]], memory=GB)] == ["gpt"], "no steps are left"
    monkeypatch.setattr(agenda, "plan_for", lambda: plan_devices(num_gpus=0, virtual_devices=3))
    assert not tried(WORKS, memory=GB), "replicas cannot share one clip"
    monkeypatch.setattr(agenda, "plan_for", lambda: plan_devices(num_gpus=1))
    assert not tried(WORKS, memory=GB) and "a GPU" in reasons[-1] and len({*reasons}) == 3
    monkeypatch.setattr("psutil.cpu_percent", lambda: 100.0)
    monkeypatch.setattr("psutil.Process.cpu_percent", lambda process: 0.0)
    console = RunConsole(Run(config, plan_devices(num_gpus=0)))
    (tmp_path / "earlier").write_bytes(bytes(GB // 3))
    console.on_needs(agenda.Needs(2 * GB, 8 * GB, 8 * GB, GB // 5, GB))
    (tmp_path / "model").write_bytes(bytes(GB // 10))
    console.on_trial(times)
    console.on_finished(SimpleNamespace(validation=[]))
    said = capsys.readouterr().out
    assert f"whole run: {tqdm.format_interval(times['dvae'][1] + times['gpt'][1])}, until" in said
    assert "gpt, without speech evaluations and samples). Other programs use about 100% of the cores" in said
    assert "Took:         00:00 (expected 01:" in said and "0.1 GB of disk (expected 0.2)" in said


def test_trial_of_a_stage_leaves_no_trace_and_is_one_step_if_it_is_slow(tiny_corpus, tmp_path, monkeypatch):
    dataset = SpeechDataset.open(tiny_run_config(tiny_corpus, tmp_path))
    files = {*tmp_path.rglob("*")}
    times = [try_stage(dataset, stage, plan_devices(num_gpus=0)) for stage in ("dvae", "gpt")]
    assert all(alone > 0 and each >= 0 for alone, each in times) and {*tmp_path.rglob("*")} == files
    assert not tf.config.functions_run_eagerly()
    steps = []
    monkeypatch.setattr(measurement, "PHASE_SECONDS", 0.0)
    monkeypatch.setattr(measurement, "take_step", lambda *step: steps.append(step))
    alone, each = try_stage(dataset, "dvae", plan_devices(num_gpus=0))
    assert len(steps) == 1 and 0 < each < dataset.config.stage("dvae").batch_size * alone * 2
