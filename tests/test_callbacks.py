"""Output of a run: the text that users and `utilities/compare_logs.py` look for, and TensorBoard."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from myxtts.config.config import XTTSConfig
from myxtts.devices.device_plan import plan_devices
from myxtts.runs.console import RunConsole, losses_text, timing_lines
from myxtts.training.loop.switches import Ledger, LedgerRow
from myxtts.training.watching.callbacks import MetricsWriter, StageEnd, StageStart

TIMING = dict(avg_ms=125.04, std_ms=10.0, steps_per_second=7.997, variation=0.08, stall=0.015, reading=0.2)
TIMING |= dict(preparing=0.5, copying=0.01, buffer=2.6, buffer_capacity=3, host_mb=812.4)
GPUS = {"data_gpu_mb": 1024.0, "model_gpu_mb": 9000.0, "model_gpu_percent": 83.0}
LOSSES = {"loss": 3.1234, "text": 1.2, "codes": 3.1, "gradient_norm": 0.5, "learning_rate": 1e-3, "skipped_steps": 0}


def console(quiet=False):
    """Returns the console of a run with two stages and no estimate of the time left."""
    run = SimpleNamespace(plan=plan_devices(num_gpus=0), time_left=SimpleNamespace(seconds_left=lambda _: None))
    run.best, run.last_steps, run.history = {}, dict.fromkeys(("dvae", "gpt"), 100), {"dvae": [], "gpt": []}
    return RunConsole(run, quiet)


def start_of(stage="gpt", total_steps=100, accumulation=1):
    placement = "Placement audit: 2 variables, all on the model device"
    return StageStart(stage, 0, total_steps, "nano", 17, 16, accumulation, "auto", placement)


def end_of(stage="gpt", timing=TIMING, loss_scale=None):
    return StageEnd(stage, 100, timing, 2, loss_scale, 3)


def test_log_line_has_the_text_of_the_contract():
    assert timing_lines(TIMING) == ["Avg: 125.0ms, Std: 10.0ms", "Throughput: 8.00 steps/sec", "Variation: 8.0%"]
    assert timing_lines({}) == []
    shown = "loss 3.1234 | text 1.2000 | codes 3.1000 | gradient_norm 0.5000 | lr 1.0e-03 | skipped 3"
    assert losses_text(LOSSES | {"skipped_steps": 3}) == shown


def test_console_without_a_terminal_prints_plain_lines(capsys):
    progress = console()
    progress.on_start(start_of(accumulation=4))
    for xla in ("off", "off", "on"):
        rows = LedgerRow("XLA", "auto", xla, "seen", True), LedgerRow("TF32", "auto", "off", "seen", True)
        progress.on_ledger(Ledger({row.optimization: row for row in rows}))
    progress.on_step(10)
    progress.on_log(10, LOSSES, TIMING)
    progress.on_validation(10, {"codes": 2.5}, True)
    progress.on_log(10, LOSSES, TIMING | {"stage_seconds_left": 7, "seconds_left": 95})
    progress.on_end(end_of(loss_scale=2.0**15))
    said = capsys.readouterr().out
    for words in (
        "Stage gpt: 100 steps",
        "17 weights",
        "Placement audit",
        "Batch size: 16 x 4 accumulated",
        "step 10/100",
        "lr 1.0e-03 | Avg: 125.0ms",
        "stall 1.5% | buffer 3/3",
        "00:11 left | Host memory: 812MB",
        "00:07 left in this stage | 01:35 left in the run | Host memory: 812MB",
        "gpt validation at step 10: codes 2.5000 (best so far)",
        "FINAL REPORT",
        "Traces of the train step: 2",
        "Loss scale: 32768, steps skipped: 3",
    ):
        assert words in said, words
    assert "High timing variation" not in said and "\r" not in said
    assert (said.count("XLA "), said.count("TF32 ")) == (2, 1), "the others are as in the stage before"


def test_bar_of_the_inspection_is_removed_before_the_next_line(capsys, monkeypatch):
    monkeypatch.setattr("myxtts.utils.commons.shows_bars", lambda: True)
    console().on_inspection(1, 1)
    assert capsys.readouterr().err.endswith("\r")


def test_long_accumulated_step_tells_its_time_once(capsys, monkeypatch):
    progress, now = console(), iter(range(0, 10_000, 4))
    progress.on_start(start_of(accumulation=9))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    for what, done in [(what, done) for what in ("read", "computed") for done in range(1, 10)] * 2:
        progress.on_micro_batch(what, done, 9)
    assert capsys.readouterr().out.count("step of 9 batches takes about 00:36") == 1


def test_high_variation_is_reported_once_with_advice_if_steps_wait_for_data(capsys):
    progress = console()
    progress.on_start(start_of())
    progress.on_log(10, LOSSES, {**TIMING, "variation": 0.31, "stall": 0.04})
    assert "High timing variation" not in capsys.readouterr().out, "a CPU's steps vary with what else runs"
    for step in (20, 30):
        progress.on_log(step, LOSSES, {**TIMING, "variation": 0.31, "stall": 0.06})
    assert capsys.readouterr().out.count("High timing variation - possible bottleneck!") == 1


def test_compare_logs_reads_what_the_console_shows(capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "utilities"))
    import compare_logs

    for stage in ("dvae", "gpt"):
        progress = console()
        progress.on_start(start_of(stage))
        progress.on_log(100, {**LOSSES, "loss": 9.0 if stage == "dvae" else 3.1234}, TIMING | GPUS)
        progress.on_end(end_of(stage, TIMING | GPUS))
    log, said = tmp_path / "train.log", capsys.readouterr().out
    steps, report = said.split("FINAL REPORT")[:2]
    assert max(map(len, steps.splitlines())) <= 80
    expected = dict(batch_size=16, steps=100, loss=3.1234, mean_step_ms=125.0, std_step_ms=10.0)
    expected |= dict(variation_percent=8.0, stall_percent=1.5, host_memory_mb=812, data_memory_mb=1024)
    expected |= dict(model_memory_mb=9000, model_utilization_percent=83, data_utilization_percent=None)
    for text in (said, said.rpartition("FINAL REPORT")[0]):
        log.write_text(text)
        run = compare_logs.read_logs([log])[0]
        assert {name: run[name] for name in expected} == expected


@pytest.mark.parametrize(
    "stall, phases, bound",
    [
        (0.04, {"reading": 0.9}, "computing"),
        (0.3, {"reading": 0.6}, "reading"),
        (0.3, {}, "preparing"),
        (0.3, {"copying": 0.7}, "copying"),
    ],
)
def test_run_reports_its_bottleneck_after_a_minute_and_at_its_end(capsys, monkeypatch, stall, phases, bound):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress, timing = console(), TIMING | phases | {"stall": stall}
    progress.on_start(start_of())
    for seconds, said in ((59.0, 0), (2.0, 1), (100.0, 0)):
        now[0] += seconds
        progress.on_step(9)
        assert ("gpt step 9/100\n" in capsys.readouterr().out) == (seconds == 100.0), "after a minute without a line"
        progress.on_log(10, LOSSES, timing)
        assert capsys.readouterr().out.count(f"Bound by {bound}: ") == said
    progress.on_end(end_of(timing=timing))
    assert f"\n  Bound by {bound}: " in capsys.readouterr().out


def test_quiet_console_prints_nothing_and_logs_every_line(capsys, caplog):
    progress = console(quiet=True)
    with caplog.at_level("INFO", "myxtts.console"):
        progress.on_start(start_of())
        progress.on_log(10, LOSSES, TIMING)
    assert capsys.readouterr().out == "" and "gpt step 10/100 | loss 3.1234" in caplog.text


def test_tensorboard_holds_losses_timing_validation_and_settings(tmp_path):
    writer = MetricsWriter(tmp_path, tmp_path, XTTSConfig())
    writer.on_start(start_of())
    writer.on_log(10, LOSSES, TIMING)
    writer.on_log(20, LOSSES, {})
    writer.on_validation(20, {"codes": 2.5}, True)
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(next((tmp_path / "gpt").glob("events.*")))):
        for value in event.summary.value:
            found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    assert found["train/codes", 10] == pytest.approx(3.1) and found["validation/codes", 20] == 2.5
    settings = next(value for (tag, _), value in found.items() if tag == "settings").decode()
    assert settings.startswith("```\n") and '"checkpoint_dir": "./checkpoints"' in settings
    assert found["timing/avg_ms", 10] == pytest.approx(125.04) and ("timing/avg_ms", 20) not in found
    assert found["timing/host_mb", 10] == pytest.approx(812.4)
