"""The acceptance test of GPUs: its report with simulated measurements, and cases that really run."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from logical_devices import on_logical_devices
from tiny import untraced

from utilities import gpu_acceptance
from utilities.gpu_acceptance import cases, judge, main

PAIR, PRIVATE = ["--data-gpu", "0", "--model-gpu", "1"], "/home/em ma=emma/my emma"


def figures(batch=16, rate=2.0, memory=8000, **more):
    """Returns figures as the profiler writes them, for two busy GPUs."""
    gpus = [{"mean_utilization": 62.0}, {"mean_utilization": 91.0}]
    more = {"peak_memory_mb": memory, "is_possible": True, **more}
    found = dict(batch_size=batch, steps_per_second=rate, step_ms=1000 / rate, variation=0.1, speedup=1.7, ceiling=1.9)
    return {**found, "gpu": {"gpus": gpus}, "devices": "single: data and model on /GPU:0 (GPU 0)", **more}


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    monkeypatch.setattr(gpu_acceptance, "visible_gpus", lambda: [None, None])


def measured(case, flags, steps, seconds):
    """Simulates a machine that meets all targets, and on which batches of 96 do not fit."""
    if case.tool != "profile":
        return {"equal": True} if case.tool == "resume" else dict(steps=900, minutes=5.0, growth=0.01, ok=True)
    if case.group in ("batch", "beyond"):
        size = int(case.name)
        error = {"error": f"out of memory\n | at '{PRIVATE}/b.wav' on /GPU:1, emma/b"}
        return error if size >= 96 else figures(size, 40 / (size + 8))
    if case.name == "all":
        return figures(rate=4.4, memory=3900)
    return figures(rate=2.5 if case.name == "8" and case.group == "workers" else 2.0)


def test_report_has_every_target_and_the_flags_to_use(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_acceptance, "run_case", measured)
    assert main([*PAIR, "--train-data", PRIVATE, f"--config={PRIVATE}", "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu_report.json").read_text())
    verdicts = {row["target"]: row["verdict"] for row in report["judgements"]}
    assert set(verdicts.values()) == {"pass"} and len(verdicts) == 14
    assert report["measured"]["beyond"]["128"] == {"skipped": "a smaller batch failed"}
    assert report["flags"].startswith("--batch-size 48") and "--num-workers 8" in report["flags"]
    assert "--optimizations aggressive" in report["flags"]
    page = (tmp_path / "gpu_report.md").read_text()
    assert "| model GPU utilisation at least 80 % (stretch 90 %) | 91 % | pass |" in page
    assert "--config=… --minutes 20 --steps 30`" in page and "| out of memory / at '…' on /GPU:1, … |" in page
    assert "emma" not in page + json.dumps(report) and "14 targets met, 0 missed" in capsys.readouterr().out


def test_missed_targets_are_reported_and_the_command_fails(tmp_path, monkeypatch):
    def slow(case, *rest):
        if case.group == "batch" and case.name == "48":
            return {"error": "out of memory"}
        return {"equal": False} if case.tool == "resume" else {**measured(case, *rest), "variation": 0.4}

    monkeypatch.setattr(gpu_acceptance, "run_case", slow)
    assert main([*PAIR, "--report", str(tmp_path)]) == 1
    rows = json.loads((tmp_path / "gpu_report.json").read_text())["judgements"]
    assert [row["found"] for row in rows if row["verdict"] == "fail"] == ["40%", "out of memory", "other weights"]


def test_overlap_is_judged_only_where_there_is_data_work_to_hide():
    found = {"profile": {"dual": figures(speedup=1.1, ceiling=1.2), "single": figures(speedup=0.8)}}
    verdicts = {row.target[:10]: row.verdict for row in judge(found, False)}
    assert verdicts["dual devic"] == "not evaluated" and verdicts["single-GPU"] == "fail"
    found["profile"] = {"dual": figures(speedup=6.6, is_possible=False), "single": figures(devices="single: /CPU:0")}
    assert next(row.verdict for row in judge(found, False) if row.target.startswith("single-GPU")) == "fail"
    assert [row.found for row in judge(found, False) if "unreliable" in row.found]
    found["batch"] = {"8": figures(memory=24_000), "16": figures(memory=25_000), "24": figures(memory=None)}
    assert [row.verdict[:4] for row in judge(found, False) if "24 GB" in row.target][:3] == ["pass", "fail", "not "]


@on_logical_devices
def accepted(corpus, config, folder):
    """Runs a case of the table with the profiler itself on virtual devices; returns exit code and report."""
    from utilities.dual_gpu_bottleneck_profiler import main as profile

    dual = cases()[0]

    def profiled(case, flags, steps, seconds):
        result = Path(folder, f"{case.group}.json")
        assert profile([*flags, *case.flags, "--num-steps", str(steps), "--json", str(result)]) == 0
        return json.loads(result.read_text())

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()), untraced():
        patch.setattr(gpu_acceptance, "cases", lambda: [dual])
        patch.setattr(gpu_acceptance, "run_case", profiled)
        argv = ["--virtual-devices", "2", "--train-data", corpus, "--config", config, "--report", folder]
        code = main([*argv, "--steps", "2"])
    return code, json.loads(Path(folder, "gpu_report.json").read_text())


def test_one_gpu_with_both_roles_is_isolated_by_memory(monkeypatch):
    assert gpu_acceptance.parse(["--data-gpu", "0", "--model-gpu", "0"])[1][-1] == "--enable-memory-isolation"
    assert gpu_acceptance.parse(PAIR)[1] == list(PAIR)
    monkeypatch.setenv("MYXTTS_VIRTUAL_DEVICES", "2")
    assert gpu_acceptance.parse(PAIR)[0].virtual


@pytest.mark.parametrize("argv", [PAIR[:2], [*PAIR[:3], "2"], [*PAIR, "--report", "/proc"]])
def test_wrong_requests_end_before_the_first_case(argv, monkeypatch):
    monkeypatch.setattr(gpu_acceptance, "run_case", pytest.fail)
    assert main(argv) == 2


def test_case_runs_on_virtual_devices(tiny_corpus, tiny_yaml, tmp_path):
    code, report = accepted(str(tiny_corpus), str(tiny_yaml), str(tmp_path))
    assert code == 0 and report["virtual"] and not any(row["verdict"] == "pass" for row in report["judgements"])
    found = report["measured"]["profile"]["dual"]
    assert found["step_ms"] > 0 and found["batch_size"] == 3 and found["virtual"]
