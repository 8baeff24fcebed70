"""Workers: connection, exchange of values, refusal of different settings, joint training, and loss of a worker."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import tiny_run_config, untraced

from myxtts.config.checks import UserError
from myxtts.config.training import workers_in, workers_of_slurm
from myxtts.devices.device_plan import plan_devices
from myxtts.distributed import workers as launching
from myxtts.distributed.workers import LOST_EXIT_CODE, WorkerLost, Workers, free_addresses
from myxtts.runs import machine_report
from myxtts.runs.run import Run
from myxtts.training.loop.device_pipeline import timing_of_all


class Board:
    """The key-value store of the coordination service for workers in threads of this process."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()
        self.strategy = None

    def write(self, key, value):
        with self.changed:
            if key in self.values:
                raise ConnectionError("exists")
            self.values[key] = value
            self.changed.notify_all()

    def read(self, key):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values)
            return self.values[key]

    def delete(self, key):
        with self.changed:
            for name in [name for name in self.values if f"{name}/".startswith(f"{key}/")]:
                del self.values[name]

    def failure(self, index, seconds):
        return None


def together(count, work):
    """Runs `work(workers)` for `count` workers in threads; returns the result or the error of each."""
    addresses, board, found = tuple(f"127.0.0.1:{place}" for place in range(1, count + 1)), Board(), {}

    def run(index):
        try:
            found[index] = work(Workers(addresses, index, board))
        except UserError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return [found[index] for index in range(count)]


def test_gathered_values_come_in_order_and_bit_for_bit():
    def work(workers):
        given = [workers.gather([workers.index, 0.1 + workers.index]), workers.ask(lambda: f"of {workers.index}")]
        workers.close()
        return given

    assert together(3, work) == [[[[0, 0.1], [1, 1.1], [2, 2.1]], "of 0"]] * 3


def test_log_lines_have_the_timing_of_each():
    def work(workers):
        own = {"avg_ms": 100.0 + workers.index, "stall": 0.5 * workers.index, "buffer": 1.0, "variation": 0.1}
        reported = timing_of_all(own, workers), timing_of_all({}, workers)
        workers.close()
        return reported

    (first, none), (second, _) = together(2, work)
    assert none == {} and first["avg_ms"] == 100.0 and second["avg_ms"] == 101.0
    assert first["worker_1_avg_ms"] == 101.0 and first["worker_1_stall"] == 0.5 and first["worker_0_buffer"] == 1.0


def test_stop_of_one_worker_stops_all():
    def work(workers):
        event = threading.Event()
        if workers.index == 1:
            event.set()
        agreed = workers.agree(event)
        workers.close()
        return agreed, event.is_set()

    assert together(2, work) == [(True, True)] * 2


@pytest.mark.parametrize(
    ("values", "found"), [([{"seed": number, "size": "nano"} for number in (0, 1)], "seed 1"), (["ab", "cd"], "cd")]
)
def test_differing_settings_are_refused_by_name_on_all_workers(values, found):
    def work(workers):
        try:
            workers.require_equal("recordings", values[workers.index], "Copy them.")
        finally:
            workers.close()

    first, second = map(str, together(2, work))
    assert first == second and f"Worker 1 (127.0.0.1:2) has {found}, worker 0" in first
    assert first.endswith(". Copy them.")


def test_sums_are_measured_and_extended_to_the_gradients_of_each_size(monkeypatch):
    seconds_of = lambda strategy, size, repeats: size / 2**20 / 1000  # 1 ms a MB
    monkeypatch.setattr("myxtts.training.watching.measurement.seconds_of_sum", seconds_of)
    lines = [*machine_report._sums(SimpleNamespace(count=2, strategy=None, watch=lambda seconds: None), 9.0)]
    assert lines[0] == "Sum of 1 MB over all: 1.0 ms, 1000 MB/s through each worker"
    assert "Gradients of the GPT, normal: 573 MB, 573 ms to sum" in lines


JOIN = """
import sys, time
from myxtts.config.checks import UserError
from myxtts.config.training import TrainingConfig
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.distributed.workers import join_workers
training = TrainingConfig(workers=tuple(sys.argv[3:]), worker_index=int(sys.argv[1]))
training.worker_timeout_seconds = float(sys.argv[2])  # shorter than a setting can be
plan = early_gpu_configuration(None, None)
try:
    workers = join_workers(training, plan, {"seed": 0})
except UserError as error:
    sys.exit(f"Error: {error}")
print("met", flush=True)
workers.gather() if workers.index == 2 else time.sleep(60)
"""


def start(index, addresses, seconds=20):
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, "-c", JOIN, str(index), str(seconds), *addresses], **pipes)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_ends_the_others_with_its_name_and_code_75(killed):
    addresses = free_addresses(3)
    workers = [start(index, addresses) for index in range(3)]
    for worker in workers:
        assert any(line == "met\n" for line in worker.stdout)
    workers[killed].kill()
    for index, worker in enumerate(workers):
        _, printed = worker.communicate(timeout=60)
        if index != killed:
            assert worker.returncode == LOST_EXIT_CODE == WorkerLost.exit_code
            assert f"Error: Worker {killed} ({addresses[killed]}) is gone" in printed


@pytest.mark.slow
def test_a_missing_worker_is_named():
    addresses = free_addresses(2)
    _, printed = start(0, addresses, 2).communicate(timeout=100)
    assert f"Worker 1 ({addresses[1]}) is missing." in printed


@pytest.mark.slow
def test_strangers_at_the_port_of_worker_0_neither_join_nor_stop_the_workers():
    addresses = free_addresses(2)
    place = "127.0.0.1", int(addresses[0].rpartition(":")[2])
    workers, held = [start(0, addresses, 100)], None
    while held is None:
        with suppress(ConnectionError):
            held = socket.create_connection(place)  # stays open
    for junk in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(range(256)) * 40):
        with socket.create_connection(place) as stranger:
            stranger.sendall(junk)
    workers.append(start(1, addresses, 100))
    for worker in workers:
        assert any(line == "met\n" for line in worker.stdout)
    for worker in workers:  # not before all have met: worker 1 still reads from worker 0
        worker.kill()
        worker.communicate()


@pytest.mark.slow
def test_another_program_at_the_address_of_worker_0_is_not_taken_for_it():
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        addresses = f"127.0.0.1:{stranger.getsockname()[1]}", *free_addresses(1)
        _, printed = start(1, addresses, 2).communicate(timeout=100)
    assert f"Worker 1 ({addresses[1]}) could not connect to all 2 workers within 2 s" in printed


def test_worker_that_leaves_ends_the_others_with_its_reason_and_code(monkeypatch):
    heard = []
    monkeypatch.setattr(Workers, "_end", lambda workers, *end: heard.append((workers.index, *end)))

    def work(workers):
        if workers.index == 1:
            workers.leave("was stopped before its first step", 0)
            workers.close()
        workers._listener.join(20.0)

    together(2, work)
    assert (0, 1, "was stopped before its first step", 0) in heard


def test_a_worker_that_waits_too_long_in_a_collective_operation_ends_all(monkeypatch):
    monkeypatch.setattr("myxtts.distributed.workers.CHECK_SECONDS", 0.05)
    ends, ended = [], threading.Event()
    monkeypatch.setattr(Workers, "_end", lambda workers, *end: ends.append(end) or ended.set())

    def work(workers):
        workers.watch(30.0)
        workers.watch(None)
        if workers.index == 1:
            workers.watch(0.1)
            ended.wait(20.0)
        workers.close()

    together(2, work)
    index, why, code = ends[0]
    assert (index, code) == (1, LOST_EXIT_CODE) and "training.worker_timeout_seconds" in why


def test_a_worker_that_hangs_when_another_is_lost_is_killed_once(monkeypatch, capsys):
    monkeypatch.setattr(launching, "LOST_PATIENCE_SECONDS", 0.1)
    commands = "exit 75", "exec sleep 60", "kill -STOP $$"
    workers = [subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) for command in commands]
    assert launching._follow(workers) == LOST_EXIT_CODE
    reported = capsys.readouterr().out.splitlines()
    assert reported == [f"Worker {index} did not end within 0 s and was killed." for index in (1, 2)]


def test_a_worker_terminated_before_it_connects_ends_the_others_at_once_though_nobody_reads(monkeypatch):
    monkeypatch.setattr(launching, "print", lambda *_, **__: open("/"), raising=False)  # OSError, as a closed pipe
    commands = "seq 20000; exit 143", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.1; done"
    workers = [subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) for command in commands]
    workers[1].stdout.readline()
    assert launching._follow(workers) == 143


def test_a_taken_port_ends_all_workers_at_once_with_an_error_message(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(launching, "FAREWELL_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(launching.__file__).parents[2]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = f"127.0.0.1:{port}", *free_addresses(1)
        monkeypatch.setattr(launching, "free_addresses", lambda count: addresses)
        assert launching.launch(["train", "--checkpoint-dir", "run"], [{}, {}]) == 2
    assert f"[0] Error: Worker 0 (127.0.0.1:{port})" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_workers_are_read_from_tf_config():
    config = {"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    assert workers_in({"TF_CONFIG": json.dumps(config)}) == (("c:1", "a:1", "b:1"), 2)
    assert workers_in({}) is None and workers_in({"TF_CONFIG": "{}"}) is None
    for task in ({"type": "ps", "index": 0}, {"type": "worker", "index": 2}):
        with pytest.raises(UserError, match="TF_CONFIG must name this process"):
            workers_in({"TF_CONFIG": json.dumps(config | {"task": task})})
    with pytest.raises(UserError, match="TF_CONFIG must be JSON"):
        workers_in({"TF_CONFIG": "{"})


def test_workers_are_read_from_slurms_variables():
    step = {"SLURM_PROCID": "2", "SLURM_JOB_ID": "3", "SLURM_STEP_NODELIST": "n[08-09,11],gpu"}
    step["SLURM_STEP_TASKS_PER_NODE"] = "1(x2),2,1"
    addresses, index = workers_of_slurm(step)
    assert index == 2
    assert addresses == ("n08:23048", "n09:23048", "n11:23048", "n11:23049", "gpu:23048")
    with pytest.raises(UserError, match="SLURM_PROCID is not set. Start it with srun"):
        workers_of_slurm({})
    with pytest.raises(UserError, match="variables of this job step"):
        workers_of_slurm(step | {"SLURM_STEP_NODELIST": "n[08-"})


@pytest.mark.slow
def test_two_workers_have_the_losses_of_one_process(tiny_corpus, tmp_path, two_stages, monkeypatch):
    every = dict(log_every_steps=2, validate_every_steps=1, checkpoint_every_steps=2, leave_out=())
    shape, steps = dict(layers=1, num_latents=2, dropout=0.0), {"max_steps": 2}
    data = dict(augment=True, num_workers=1, num_buckets=1)
    made_of = dict(model=shape, data=data, training=every, dvae=steps, gpt=steps)
    config = tiny_run_config(tiny_corpus, tmp_path / "one", **made_of)
    alone = Run(config, plan_devices(num_gpus=0))
    with untraced():
        assert alone.train()

    path = tmp_path / "config.json"
    settings = config.to_dict()
    settings["training"] |= {"checkpoint_dir": str(tmp_path / "two"), "leave_out": ["speaker", "decoder"]}
    path.write_text(json.dumps(settings))  # JSON is YAML
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    assert launching.launch(["train", "--config", str(path)], [{}, {}]) == 0

    together = Run(tiny_run_config(tiny_corpus, tmp_path / "two", **made_of), alone.plan)
    assert together.history.keys() == alone.history.keys() == {"dvae", "gpt"}
    for stage, losses in alone.history.items():
        for found, expected in zip(together.history[stage], losses, strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
    lone = ["--checkpoint-dir", str(tmp_path / "lone"), "--stage", "dvae", "--workers", *free_addresses(1)]
    assert subprocess.run([sys.executable, "-m", "myxtts", "train", "--config", str(path), *lone]).returncode == 0
