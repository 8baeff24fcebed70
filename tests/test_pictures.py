"""Pictures of audio and losses: scales, axes and steps, and the figures behind them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.audio.mel import DVAE_MEL
from myxtts.config.config import XTTSConfig
from myxtts.runs import samples
from myxtts.storage.files import append_line
from myxtts.training.watching.callbacks import MetricsWriter

TIMING = {"avg_ms": 12.0}


@pytest.fixture
def drawn(monkeypatch):
    """Returns the figures that were written."""
    found = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, format: found.append(figure))
    return found


def test_place_of_a_frequency_among_the_bands_is_that_of_the_filter_that_passes_it_most():
    filters, hertz = DVAE_MEL.filterbank(), np.linspace(0, DVAE_MEL.sample_rate / 2, 1 + DVAE_MEL.n_fft // 2)
    for band in (20, 50, 79):
        assert DVAE_MEL.band_at(hertz[filters[:, band].argmax()]) == pytest.approx(band + 0.5, abs=0.5)


def test_sounds_are_shown_on_one_color_scale_and_time_axis_with_hertz_and_the_text(tmp_path, drawn):
    mels = {"recording": np.linspace(-9, 2, 800).reshape(10, 80), "spoken": np.full((20, 80), -3.0)}
    samples.draw_sounds(tmp_path / "a.png", "from $_ to $^", mels, np.eye(5, 7))
    (figure,) = drawn
    top, below, attention = figure.axes[:3]
    assert top.images[0].get_clim() == below.images[0].get_clim() == (-9.0, 2.0)
    assert top.get_xlim() == below.get_xlim() == (0, pytest.approx(20 * 256 / 22050))
    assert [label.get_text() for label in top.get_yticklabels()] == ["250", "500", "1000", "2000", "4000"]
    assert figure.get_suptitle() == "from $_ to $^" and top.get_title(loc="left") == "recording"
    # Five codes of four frames each end where the twenty frames do.
    assert attention.images[0].get_extent() == [0, pytest.approx(20 * 256 / 22050), 0, 7]


def test_picture_of_a_text_with_dollar_signs_and_letters_of_many_scripts(tmp_path):
    samples.draw_sounds(tmp_path / "a.png", "from $_ to $^ سلام 你好 ሰላም", {"recording": np.zeros((8, 80), np.float32)})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_metrics_hold_every_figure_and_curves_those_of_the_last_way_to_the_end(tmp_path, drawn):
    metrics = MetricsWriter(tmp_path, tmp_path, XTTSConfig())
    metrics.on_start(SimpleNamespace(stage="gpt", step=0, total_steps=30))
    for step, loss in ((10, 5.0), (20, 4.0), (30, float("nan")), (20, 3.0)):  # it went back to step 10
        metrics.on_log(step, {"codes": loss, "text": 1.0}, TIMING)
    metrics.on_validation(20, {"codes": np.float32(3.5)}, True)
    metrics.on_evaluation(20, {"score": 7.0}, False)
    begun, *lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert begun == {"stage": "gpt", "total_steps": 30, "step": 0, "kind": "start"}
    figures_of_first = {"codes": 5.0, "text": 1.0, "avg_ms": 12.0}
    assert lines[0] == {"stage": "gpt", "total_steps": 30, "step": 10, "kind": "training", **figures_of_first}
    assert lines[2]["codes"] is None and lines[4]["kind"] == "validation" and lines[4]["is_best"] is True
    assert lines[5]["kind"] == "evaluation" and lines[5]["score"] == 7.0
    samples.write_curves(tmp_path, {"gpt": [{"step": 20, "codes": 3.5, "text": 1.0}]})
    shown = {line.get_label(): line.get_xydata().tolist() for line in drawn[0].axes[0].lines}
    assert shown == {"training codes": [[10, 5.0], [20, 3.0]], "validation codes": [[20, 3.5]]}


def test_line_truncated_by_a_kill_loses_only_that_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"stage": "gpt", "st')
    append_line(tmp_path / "metrics.jsonl", '{"stage": "gpt", "step": 1, "kind": "training"}')
    first, again = (samples.read_metrics(tmp_path) for _ in range(2))
    assert [line["step"] for line in first] == [1] and again[0] is first[0], "an unchanged file is not read again"


def test_disk_that_rejects_figures_is_reported_once(tmp_path, caplog):
    metrics = MetricsWriter(tmp_path / "gone", tmp_path, XTTSConfig())
    metrics.on_start(SimpleNamespace(stage="gpt", step=0, total_steps=30))
    for step in (1, 2):
        metrics.on_log(step, {"loss": 1.0}, {})
    assert caplog.text.count("Training continues.") == 1
    samples.write_curves(tmp_path / "gone", {"gpt": [{"step": 20, "codes": 3.5}]})
    assert "loss curves could not be " in caplog.text
