"""What a run is said to take: memory and disk beside what there is, and the time left of all its stages."""

from types import SimpleNamespace

import pytest
from tiny import tiny_run_config

from myxtts.config.checks import UserError
from myxtts.runs import agenda
from myxtts.runs.agenda import StageWork

GB = 2**30
WORKS = [StageWork("dvae", None, 20), StageWork("gpt", None, 40)]


@pytest.fixture
def machine(monkeypatch):
    """Sets bytes of memory in all and of disk that is free."""

    def has(memory, disk):
        ram = SimpleNamespace(total=memory, limit=None, usable=memory // 2)
        monkeypatch.setattr(agenda, "read_memory", lambda: ram)
        monkeypatch.setattr(agenda, "resident_bytes", lambda: GB // 2)
        monkeypatch.setattr(agenda.shutil, "disk_usage", lambda folder: SimpleNamespace(free=disk))

    return has


def needs(folder, works=WORKS):
    config = tiny_run_config("there", folder, model={"num_text_tokens": 40})
    return agenda.find_needs(config, works, SimpleNamespace(train=[SimpleNamespace(num_samples=22050)]))


def test_needs_hold_checkpoints_of_all_stages_and_what_does_not_fit_is_refused(tmp_path, machine):
    machine(8 * GB, 8 * GB)
    found = needs(tmp_path / "run")
    assert GB < found.memory < 2 * GB and found.memory_in_all == 8 * GB and found.disk_free == 8 * GB
    only = needs(tmp_path / "run", WORKS[:1])
    assert 0 < only.disk < found.disk and only.disk % 4 == 0
    assert needs(tmp_path / "run", [StageWork("dvae", 20, 20, finished=True)]) is None
    machine(8 * GB, found.disk - 1)
    with pytest.raises(UserError, match="checkpoints do not fit.*--keep"):
        needs(tmp_path / "run")
    machine(GB // 2, 8 * GB)
    with pytest.raises(UserError, match="does not fit.*--batch-size"):
        needs(tmp_path / "run")


def test_time_left_counts_stages_to_come_and_comes_with_each_log_line(tmp_path, monkeypatch):
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
    left.on_log(10, {}, nothing := {})
    assert nothing == {}
