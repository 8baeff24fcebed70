"""The quickstart notebook: its cells run, and show sound and pictures."""

import json
from pathlib import Path

from tiny import untraced

from utilities.execute_notebook import execute

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(notebook):
    """Returns what each cell shows: `stdout`, or MIME types of values."""
    found = []
    for cell in code_cells(notebook):
        found.append({kind for one in cell["outputs"] for kind in one.get("data", {"stdout": None})})
    return found


def test_notebook_runs_as_written_and_shows_pictures_and_sound(
    two_stages, without_griffin_lim, tiny_corpus, tiny_yaml, tmp_path, monkeypatch
):
    settings = json.loads(tiny_yaml.read_text())
    for name in ("speaker", "decoder"):
        settings["training"].pop(name)
    (tmp_path / "tiny.yaml").write_text(json.dumps(settings))
    monkeypatch.setattr("myxtts.runs.samples.log_mel_to_wav", lambda mel: mel.mean(axis=1))
    tiny = f'config="tiny.yaml", train_data={str(tiny_corpus)!r}, '
    written = (
        json.dumps(NOTEBOOK)
        .replace("max_steps=100", "max_steps=2")
        .replace("myxtts.train(", f"myxtts.train({json.dumps(tiny)[1:-1]}")
    )
    for text in ("The doctor reads a long letter to the children.", "We walk to the old house in the evening."):
        written = written.replace(text, "one two")
    with untraced():
        ran = execute(json.loads(written), tmp_path)
    shown, sound = kinds(ran), {"text/plain", "text/html"}
    pictures = [{"text/plain", "image/png"}] * 3
    assert [one - {"stdout"} for one in shown] == [set(), *pictures, sound, {"text/plain"}, sound]
    training = "".join(code_cells(ran)[0]["outputs"][0]["text"])
    assert "FINAL REPORT, stage gpt" in training and str(tmp_path) not in training
    assert (tmp_path / "evening.flac").is_file()
