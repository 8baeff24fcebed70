"""compare_logs.py and analyze_batch_scaling.py, run like users run them, on logs with known figures."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from myxtts.utils.commons import folded

UTILITIES = Path(__file__).resolve().parents[1] / "utilities"

STEP = (
    "12:00:0{i} INFO step {step}/3000 | loss {loss} | text 1.2000 | mel 3.1000 | lr 1.0e-03 | "
    "Avg: {avg}ms, Std: {std}ms | Throughput: {rate} steps/sec | Variation: 8.3% | stall {stall}% | buffer 3/3 | "
    "{gpu}"
)
GPU = "GPU util: data 55%, model 83% | GPU memory: data 1024MB, model 9000MB"


def step_line(step, avg=125.0, std=10.0, rate=8.0, stall=1.2, loss=3.1234, gpu=GPU, i=0):
    return STEP.format(step=step, avg=avg, std=std, rate=rate, stall=stall, loss=loss, gpu=gpu, i=i)


def run_log(batch_size=16, avg=125.0, std=10.0, rate=8.0, stall=1.5):
    return f"""Devices: dual: data on /GPU:0 (GPU 0), model on /GPU:1 (GPU 1)
Batch size: {batch_size}
Effective batch size: {batch_size * 4}
{step_line(100, avg=999.0, rate=1.0)}
{step_line(200, loss=2.5)}
FINAL REPORT
  Avg: {avg}ms, Std: {std}ms
  Throughput: {rate} steps/sec
  Variation: {100 * std / avg:.1f}%
  Stall: {stall}%
  GPU util: data 60%, model 90%
  GPU memory: data 2000MB, model 9500MB
"""


def run(tool, *arguments):
    command = [sys.executable, UTILITIES / f"{tool}.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def read(write, monkeypatch):
    """Reads a log text with the tools' own reader."""
    monkeypatch.syspath_prepend(str(UTILITIES))
    import compare_logs

    return lambda text: SimpleNamespace(**compare_logs.read_logs([write("a.log", text)])[0])


def test_the_final_report_gives_the_figures(read):
    log = read(run_log())
    assert (log.source, log.batch_size, log.steps, log.loss) == ("final report", 16, 200, 2.5)
    assert (log.mean_step_ms, log.std_step_ms, log.steps_per_second, log.samples_per_second) == (125, 10, 8, 128)
    assert (log.variation_percent, log.stall_percent) == (8.0, 1.5)
    assert (log.data_utilization_percent, log.model_utilization_percent) == (60, 90)
    assert (log.data_memory_mb, log.model_memory_mb) == (2000, 9500)
    assert read(run_log(batch_size=4, avg=800_000.0, rate=0.0)).samples_per_second == 0.005


def test_without_a_final_report_the_step_lines_are_averaged(read):
    first = step_line(100, avg=100.0, std=0.0, rate=10.0, stall=2.0)
    second = step_line(200, avg=300.0, std=0.0, rate=3.33, stall=4.0, loss="nan")
    log = read(f"Batch size: 4\n{first}\r{second}")
    assert log.source == "2 step lines" and log.steps == 200 and math.isnan(log.loss)
    assert (log.mean_step_ms, log.std_step_ms, log.variation_percent) == (200, 100, 50)  # the spread between the lines
    assert (log.steps_per_second, log.samples_per_second, log.stall_percent) == (5, 20, 3)


def test_steps_as_the_terminal_gets_them_and_their_accumulation_are_read(read):
    whole = "\n".join(["Batch size: 8 x 4 accumulated", step_line(10), step_line(20, avg=75.0, rate=13.333)])
    folded_lines = "\n".join(folded(line, 80) for line in whole.splitlines())
    assert max(map(len, folded_lines.splitlines())) <= 80 < max(map(len, whole.splitlines()))
    assert (log := read(folded_lines)) == read(whole)
    assert (log.batch_size, log.mean_step_ms, log.data_memory_mb) == (32, 100, 1024)
    assert log.samples_per_second == pytest.approx(32 * log.steps_per_second)


def test_last_run_with_steps_in_a_file_counts(read):
    restated = run_log(batch_size=8, avg=50.0).rstrip() + "\n  Batch size: 8\n"
    assert (read(run_log(batch_size=32) + restated).batch_size, read(restated).mean_step_ms) == (8, 50)
    assert read(restated + "Batch size: 64\nTraceback: it did not start\n").batch_size == 8


def test_compare_shows_both_runs_the_change_and_the_speed_up(write):
    slow, fast = write("slow.log", run_log()), write("fast.log", run_log(avg=62.5, std=5.0, rate=16.0))
    code, out, _ = run("compare_logs", slow, fast)
    assert code == 0
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in out.splitlines()}
    assert rows["Mean step time, ms"].endswith("125.0 62.5 -50.0% better")
    assert rows["Throughput, steps/s"].endswith("8.00 16.00 +100.0% better")
    assert rows["Model GPU utilization, %"].endswith("90 90 +0.0%")
    assert "Speed-up: 2.00x (samples/s)" in out and "sizes differ" not in out
    assert json.loads(run("compare_logs", slow, fast, "--json")[1])["speed_up"] == 2.0


@pytest.mark.parametrize("tool", ["compare_logs", "analyze_batch_scaling"])
def test_only_the_same_stage_of_runs_is_compared(write, tool):
    stage = lambda name, **figures: f"Stage {name}: 300 steps, 0 done, model tiny, 9 weights\n{run_log(**figures)}"
    whole = write("whole.log", stage("dvae", avg=20.0, rate=50.0) + stage("gpt") + stage("decoder"))
    stopped = write("stopped.log", stage("dvae", avg=10.0, rate=100.0) + stage("gpt", avg=62.5, rate=16.0))
    printed = lambda *flags: run(tool, whole, stopped, *flags, "--json")[1]
    rates = lambda *flags: sorted(re.findall(r'"steps_per_second": ([0-9.]+)', printed(*flags)))
    assert rates() == ["16.0", "8.0"] and rates("--stage", "dvae") == ["100.0", "50.0"]
    code, out, err = run(tool, stopped, write("alone.log", stage("decoder")))
    assert (code, out) == (2, "") and "stopped.log has dvae, gpt; " in err and "alone.log has decoder." in err
    assert run(tool, whole, stopped, "--stage", "decoder")[2].startswith("The logs must all have the stage decoder:")


def test_compare_marks_missing_values_and_different_batch_sizes(write):
    one = write("one.log", "Batch size: 8\n" + step_line(10, gpu="GPU: not available"))
    code, out, _ = run("compare_logs", one, write("two.log", run_log()))
    assert code == 0 and "n/a" in out and "The batch sizes differ" in out
    assert "Speed-up: 2.00x (samples/s)" in out  # 64 against 128 samples/s at the same steps/s


@pytest.mark.parametrize("tool", ["compare_logs", "analyze_batch_scaling"])
@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, "cannot be read: No such file or directory."),
        ("", "is empty."),
        (" \n\r\n", "is empty."),
        ("import failed\nTraceback\n", "holds no training step: expected lines with"),
    ],
)
def test_a_log_without_figures_is_one_error_message_and_exit_code_2(write, tmp_path, tool, text, sentence):
    good = write("test_batch_8.log", run_log())
    bad = tmp_path / "bad.log" if text is None else write("bad.log", text)
    code, out, err = run(tool, good, bad)
    assert (code, out) == (2, "") and err.startswith(f"{bad} {sentence}") and err.count("\n") == 1


def test_scaling_sorts_by_batch_size_and_recommends_the_smallest_good_one(write):
    logs = [
        write("test_batch_32.log", run_log(32, avg=250.0, rate=4.0)),
        write("test_batch_8.log", run_log(8)),
        write("test_batch_16.log", run_log(16, avg=127.0, rate=7.9)),
    ]
    code, out, _ = run("analyze_batch_scaling", *logs)
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:5]]
    assert [row[0] for row in rows] == ["8", "16", "32"]
    assert [row[7] for row in rows] == ["64.0", "126.0", "128.0"]  # samples/s
    assert [row[8] for row in rows] == ["100", "98", "50"]  # efficiency against batch size 8
    assert [row[-1] for row in rows] == [str(logs[place]) for place in (1, 2, 0)]
    assert f"Best throughput: {logs[0]}, 128.0 samples/s." in out
    assert f"Recommended: --batch-size 16 ({logs[2]}), within 5 %" in out


def test_scaling_recommends_what_was_accumulated_as_it_was(write):
    parts = write("parts.log", run_log("4 x 8 accumulated", avg=250.0, rate=4.0))
    out = run("analyze_batch_scaling", parts, write("whole.log", run_log(16, avg=249.0, rate=4.02)))[1]
    assert [line.split()[:3] for line in out.splitlines()[2:4]] == [["16", "1", "16"], ["4", "8", "32"]]
    assert f"Recommended: --batch-size 4 --grad-accum 8 ({parts})." in out
    found = json.loads(run("analyze_batch_scaling", parts, "--json")[1])
    assert (found["recommended_batch_size"], found["recommended_accumulation"]) == (4, 8)


def test_scaling_shows_a_run_that_went_out_of_memory(write):
    oom = "ResourceExhaustedError: OOM when allocating tensor"
    logs = [write("test_batch_8.log", run_log(8)), write("test_batch_48.log", f"Batch size: 48\n{oom}\n")]
    code, out, _ = run("analyze_batch_scaling", *logs, write("late.log", f"Batch size: 32\n{step_line(10)}\n{oom}\n"))
    assert code == 0 and "batch size 32, 48" in out and "--grad-accum" in out
    assert f"{logs[1]}: out of memory" in out and f"Recommended: --batch-size 8 ({logs[0]})." in out
    code, out, _ = run("analyze_batch_scaling", logs[1])
    assert code == 0 and "--batch-size 24" in out
    code, _, err = run("compare_logs", *logs)
    assert code == 2 and "the run was out of memory" in err
