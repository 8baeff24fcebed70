"""The bottleneck profiler: verdicts for given figures, and real measurements on two logical devices."""

import contextlib
import io
import json
import os

import numpy as np
import pytest
from logical_devices import on_logical_devices
from tiny import tiny_run_config, untraced

from myxtts.config.settings import Default
from myxtts.devices.device_plan import plan_devices
from myxtts.devices.gpu_monitor import GPUReport, GPUUsage
from utilities.dual_gpu_bottleneck_profiler import Profile, judge, main

PAIR = plan_devices(data_gpu=0, model_gpu=1, num_gpus=2)


def phases(load=0.05, preprocess=0.30, transfer=0.05, train=0.60):
    return {"load": load, "preprocess": preprocess, "transfer": transfer, "train": train}


def pipeline(step_times=(0.6,) * 4, **shares):
    mean, std = np.mean(step_times), np.std(step_times)
    shares = {"stall": 0.0, "preparing": 0.0, "copying": 0.0, **shares}
    timing = dict(avg_ms=1e3 * mean, std_ms=1e3 * std, steps_per_second=1 / mean, variation=std / mean, **shares)
    return list(step_times), timing, []


def verdicts(measured, variation=0.1, plan=PAIR, **settings):
    return {verdict.bottleneck: verdict for verdict in judge(measured, variation, tiny_run_config(**settings), plan)}


def profile_of(measured, whole, plan=PAIR, gpus=()):
    return Profile(tiny_run_config(), plan, measured, *whole, GPUReport(gpus, "this run uses no GPU"))


def test_balanced_pipeline_is_reported_as_such():
    profile = profile_of(phases(), pipeline(), gpus=(GPUUsage("3", "A", 1, 40, 60, 400), GPUUsage("1", "B", 1)))
    assert "  GPU 3 (A): utilization mean 40%, max 60%; memory mean 400MB" in profile.describe()
    assert "utilization not reported" in profile.describe() and profile.as_dict()["gpu"]["gpus"][0]["id"] == "3"
    assert profile.verdicts == [] and "NO MAJOR BOTTLENECKS DETECTED" in profile.describe()
    sections = ("TIMING BREAKDOWN:", "GPU UTILIZATION:", "BOTTLENECK ANALYSIS:", "RECOMMENDATIONS:")
    places = [profile.describe().index(section) for section in sections]
    assert places == sorted(places)


def test_phases_add_up_and_give_ceiling_and_efficiency():
    measured = phases(0.1, 0.3, 0.0, 0.4)
    profile = profile_of(measured, pipeline([0.5, 0.5, 0.4, 0.6]))
    assert profile.efficiency == pytest.approx(0.8) and profile.as_dict()["ceiling"] == pytest.approx(2.0)
    assert [profile.as_dict()[name] for name in ("sum_of_phases_ms", "speedup")] == pytest.approx([800, 1.6])
    assert profile_of(phases(), pipeline(stall=0.2, preparing=0.3, copying=0.1)).busy == pytest.approx((0.4, 0.8))
    assert "Unreliable" not in profile.describe()
    assert "Unreliable: both " in profile_of(measured, pipeline([0.3, 0.3])).describe()
    ahead = profile_of(phases(0.3, 0.3, 0.1, 0.4), pipeline([0.4, 0.4]))  # reading ahead of preparing
    assert ahead.efficiency == pytest.approx(1.75) and "Unreliable" not in ahead.describe()


@pytest.mark.parametrize(
    "bottleneck, measured, inside",
    [
        ("data loading", phases(load=0.21, preprocess=0.1, train=0.64), phases(load=0.19, preprocess=0.1, train=0.66)),
        ("transfer", phases(transfer=0.16, preprocess=0.19), phases(transfer=0.14, preprocess=0.21)),
        ("training", phases(preprocess=0.41, train=0.49), phases(preprocess=0.39, train=0.51)),
    ],
)
def test_phase_past_its_limit_is_the_bottleneck(bottleneck, measured, inside):
    assert list(verdicts(measured)) == [bottleneck]
    assert not verdicts(inside)


def test_variation_past_its_limit_is_oscillation():
    assert list(verdicts(phases(), variation=0.31)) == ["variation"] and not verdicts(phases(), variation=0.29)


def test_recommendations_name_the_flag_and_the_value(monkeypatch):
    slow_load = phases(load=0.5)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert "--num-workers 4 (now 2)" in verdicts(slow_load)["data loading"].recommendation
    assert "cache_mb" in verdicts(slow_load, data={"num_workers": Default(8)})["data loading"].recommendation
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert "data.cache_mb: 2048" in verdicts(slow_load)["data loading"].recommendation

    starved = phases(preprocess=0.9, train=0.3)
    assert "--data-gpu 1 --model-gpu 0" in verdicts(starved)["training"].recommendation
    for gpus, flags in ((1, "--prepared"), (2, "--data-gpu 0 --model-gpu 1")):
        monkeypatch.setattr("utilities.dual_gpu_bottleneck_profiler.visible_gpus", lambda: [None] * gpus)
        assert flags in verdicts(starved, plan=plan_devices(num_gpus=1))["training"].recommendation
    several = plan_devices(data_gpu=0, model_gpus=[1, 2], num_gpus=3)
    assert "fewer --model-gpus" in verdicts(starved, plan=several)["training"].recommendation

    assert "--data-gpu" in verdicts(phases(transfer=0.5))["transfer"].recommendation

    assert "--enable-static-shapes" in verdicts(phases(), 0.5)["variation"].recommendation
    fixed = verdicts(phases(), 0.5, data={"static_shapes": True, "pipeline_buffer_size": 50})["variation"]
    assert "--buffer-size 100 (now 50)" in fixed.recommendation and "pipeline_depth: 5" in fixed.recommendation


@on_logical_devices
def profiled(folder, corpus):
    config = tiny_run_config(corpus, folder / "run", data={"num_buckets": 1})
    settings = folder / "tiny.yaml"  # JSON is YAML
    settings.write_text(json.dumps(config.to_dict()))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), untraced():
        argv = ["--config", settings, "--train-data", corpus, "--virtual-devices", 2, "--num-steps", 6]
        argv += ["--json", folder / "profile.json", "--plot", folder / "timeline.png"]
        code = main([str(word) for word in argv])
    return code, out.getvalue(), (folder / "run").exists()


def test_profile_of_the_real_pipeline_on_two_logical_devices(tmp_path, tiny_corpus):
    code, text, wrote_a_run = profiled(tmp_path, tiny_corpus)
    assert code == 0 and not wrote_a_run
    for section in ("TIMING BREAKDOWN:", "GPU UTILIZATION:", "BOTTLENECK ANALYSIS:", "RECOMMENDATIONS:"):
        assert section in text
    assert "GPU utilization: not available" in text and "model nano; dual: data on /CPU:0" in text
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["virtual"] and found["steps"] == 6 and not found["gpu"]["available"]
    measured = found["phases_ms"]
    assert min(measured.values()) > 0 and found["sum_of_phases_ms"] == pytest.approx(sum(measured.values()))
    data = measured["load"] + measured["preprocess"] + measured["transfer"]
    assert found["overlap_efficiency"] == pytest.approx(max(data, measured["train"]) / found["step_ms"])
    assert 0 < found["model_device_busy"] <= 1 and 0 < found["data_device_busy"] <= 1
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
