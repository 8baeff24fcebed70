"""The whole way: a long recording with subtitles becomes a set, the set a model, the model a table and a page."""

import csv
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from page_browser import CHROMIUM, DRIVER, chromium
from planted_talk import plant
from tiny import tiny_run_config

from myxtts.__main__ import main
from myxtts.apps.evaluation import statistics
from myxtts.hearing import measuring

MISSING = [name for name in ("selenium", "pysubs2") if find_spec(name) is None]
MISSING += [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]
HEARS = f"{sys.executable} -S -c \"print('Abc.')\" {{wav}}"
LENGTHS_OF_SOUNDS = """
const done = arguments[0], players = [...document.querySelectorAll('audio')], found = [];
players.forEach(one => {
  const add = value => { found.push(value); if (found.length === players.length) done(found); };
  one.addEventListener('loadedmetadata', () => add(one.duration));
  one.addEventListener('error', () => add(-1));
  one.preload = 'metadata'; one.load();
});
if (!players.length) done([]);
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.usefixtures("eagerly", "two_stages", "without_griffin_lim"),
]


@pytest.fixture
def window():
    driver = chromium(size=(1200, 1000))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def look(window, page, name):
    """Opens a page from the disk; returns the lengths of its sounds in seconds and what it asked the network for."""
    window.get(page.as_uri())
    if folder := os.environ.get("MYXTTS_PICTURES"):
        window.save_screenshot(str(Path(folder) / f"{name}.png"))
    asked = window.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    wide = window.execute_script("return document.documentElement.scrollWidth > window.innerWidth")
    assert not wide, "the page is wider than its window"
    return window.execute_async_script(LENGTHS_OF_SOUNDS), [one for one in asked if not one.startswith("file:")]


def test_recording_with_subtitles_becomes_a_judged_voice(window, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(statistics, "RESAMPLES", 100)
    monkeypatch.setattr(measuring, "find_encoder", lambda path: None)
    monkeypatch.setattr(measuring.DNSMOS, "load", lambda: None)
    planted = plant(tmp_path / "talk.wav", count=14)
    planted.write_srt(tmp_path / "talk.srt", offset=1.4)
    made, run, judged = tmp_path / "set", tmp_path / "run", tmp_path / "judged"
    limits = ["--max-seconds", "3.4", "--validation-share", "0.3"]
    assert main(["make-dataset", str(planted.path), "--vad", "energy", "--output", str(made), *limits]) == 0
    assert "late" in capsys.readouterr().out

    stages = dict(dvae={"max_steps": 1}, gpt={"max_steps": 1})
    data = dict(max_seconds=3.5, max_text_length=80, val_data=str(made / "metadata_eval.csv"))
    model = dict(layers=1, max_audio_tokens=80, max_text_tokens=90)
    config = tiny_run_config(made / "metadata_train.csv", run, model=model, data=data, **stages)
    (tmp_path / "tiny.yaml").write_text(json.dumps(config.to_dict()))  # JSON is YAML
    assert main(["train", "--config", str(tmp_path / "tiny.yaml")]) == 0

    say = ["--sentences", "2", "--seeds", "1", "--recognizer", HEARS]
    assert main(["evaluate", str(run), *say, "--output", str(judged)]) == 0
    with open(judged / "evaluation.csv", newline="") as file:
        rows = {line["row"] for line in csv.DictReader(file)}
    assert rows == {"recordings", "run, copy", "run"}

    kept = sum(len((made / name).read_text().splitlines()) - 1 for name in ("metadata_train.csv", "metadata_eval.csv"))
    lengths, foreign = look(window, made / "report.html", "set")
    assert len(lengths) == min(10, kept) and min(lengths) > 0.9 and not foreign
    lengths, foreign = look(window, judged / "report.html", "judged")
    assert len(lengths) >= 6 and min(lengths) > 0 and not foreign
    assert "mel-cepstral distortion" in window.find_element("tag name", "body").text
