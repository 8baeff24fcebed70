"""The pages on architecture and extensions match the code.

The diffs of docs/extending.md apply to the current code, change as many files as the page says, and work. Each is
applied to a copy of the tree; the checks below then run there in their own process: `python tests/test_extending.py
NAME …` calls `check_NAME`.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {
    "loss term": 2,
    "schedule": 2,
    "optimizer": 2,
    "language": 2,
    "corpus format": 2,
    "stage": 4,
    "training switch": 3,
    "setting on the command line and the web page": 1,
    "export format": 1,
    "metric": 1,
    "server endpoint": 1,
}
"""Maximum number of files that each change in docs/extending.md touches, in the order of the page."""
COPIED = ("myxtts", "tests", "docs", "configs", "pyproject.toml", "README.md", "train_main.py")
WITHOUT_TENSORFLOW = ("language", "corpus format", "setting on the command line and the web page")
OPTIONAL = {"export format": "onnx", "server endpoint": "uvicorn"}
"""Packages without which a change is not checked."""
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; `git apply` reads the diffs")


@functools.cache
def changes():
    """Returns `{name of the change: (number of files on the page, diff)}`."""
    sections = re.split(r"^## ", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        heading = re.match(r"An? (.+) \((\d+) files?\)\n", section)
        diffs = re.findall(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert len(diffs) == bool(heading), section.partition("\n")[0]
        if heading:
            found[heading[1]] = int(heading[2]), diffs[0]
    return found


def copy_tree(folder, names=COPIED):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        options = dict(ignore=shutil.ignore_patterns("__pycache__")) if copy is shutil.copytree else {}
        copy(ROOT / name, folder / name, **options)


def apply(name, folder):
    """Applies the diff of a change in a folder that is not a git checkout."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    run = dict(cwd=folder, env=environment, input=changes()[name][1], capture_output=True, text=True)
    done = subprocess.run(["git", "apply", "-"], **run)
    if done.returncode:
        pytest.fail(
            f"The diff of '{name}' in docs/extending.md no longer applies. Write it anew on the code as it is.\n"
            f"{done.stderr}"
        )


def touched(diff):
    return re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)


def test_page_shows_every_change_within_its_limit():
    assert list(changes()) == list(LIMITS)
    for name, (stated, diff) in changes().items():
        assert len(touched(diff)) == stated <= LIMITS[name], name


def test_rows_of_the_architecture_page_are_those_that_are_enforced():
    from test_architecture import ENTRY_ROW, ROWS

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = {
        int(row): set(re.findall("`([a-z_]+)`", names))
        for row, names in re.findall(r"^\| (\d+) \| (.*?) \|", page, re.M)
    }
    assert rows.pop(ENTRY_ROW) is not None
    assert {name: row for row, names in rows.items() for name in names} == ROWS


@pytest.mark.parametrize("name", ["architecture.md", "extending.md"])
def test_pages_name_files_that_exist(name):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    page = re.sub("^```diff.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    paths = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page)) - {"polish/"}
    places = (ROOT, ROOT / "myxtts")
    assert paths and [path for path in paths if not any((place / path).exists() for place in places)] == []


def test_readme_has_the_command_that_runs_the_tests():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^pip install .* && python -m pytest$", readme, re.MULTILINE)  # `.ci/run` runs it


@needs_git
@pytest.mark.parametrize("name", LIMITS)
def test_diff_applies_alone(name, tmp_path):
    copy_tree(tmp_path, [path for path in touched(changes()[name][1]) if (ROOT / path).exists()])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    apply(name, tmp_path)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    changed = {path.relative_to(tmp_path).as_posix() for path in after if before.get(path) != after[path]}
    assert changed == set(touched(changes()[name][1]))


@needs_git
@pytest.mark.parametrize("tensorflow", [False, True], ids=["text and data", "training"])
def test_changes_work_together_and_follow_the_rules(tensorflow, tmp_path):
    copy_tree(tmp_path)
    for name in LIMITS:
        apply(name, tmp_path)
    checks = [name for name in LIMITS if (name not in WITHOUT_TENSORFLOW) == tensorflow]
    checks = [name for name in checks if find_spec(OPTIONAL.get(name, "pytest"))] + ["rules"] * (not tensorflow)
    # The other process must not inherit the pytest plugins of this test worker.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (tmp_path, tmp_path / "tests/apps/server")))
    command = [sys.executable, "tests/test_extending.py", *checks]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("works: ")] == [
        f"works: {name}" for name in checks
    ]


def passes(*arguments):
    """Runs tests in this process; returns whether they pass."""
    return pytest.main(["-n", "0", "-q", "-p", "no:cacheprovider", *arguments]) == 0


def check_rules():
    """Checks that the additions follow the architecture and the style, and that their settings are read."""
    from test_architecture import find_breaches, read_names

    paths = sorted({path for _, diff in changes().values() for path in touched(diff) if path.endswith(".py")})
    assert [breach for breach in find_breaches(ROOT) if breach.partition(":")[0] in paths] == []
    assert {"log_partition_weight", "schedule", "optimizer", "freeze_voice"} <= read_names(ROOT)
    added = [line[1:] for _, diff in changes().values() for line in diff.splitlines() if line[:1] == "+"]
    assert max(map(len, added)) <= 120
    ruff = Path(sys.executable).with_name("ruff")
    if ruff.is_file():
        subprocess.run([ruff, "format", "-q", "--check", "--no-cache", *paths], check=True)


def check_language():
    from myxtts.text.cleaners import clean_text

    assert clean_text("Tri. Vale & 21 kissaa", "fi") == "tohtori vale ja kaksikymmentäyksi kissaa"
    assert passes("tests/test_languages.py")


def check_corpus_format():
    assert passes("tests/test_corpora.py", "-k", "aishell or format")


def check_schedule():
    from myxtts.config.stages import StageConfig
    from myxtts.training.loop.updates import learning_rate

    settings = StageConfig(schedule="inverse_sqrt", learning_rate=2.0, warmup_steps=4)
    assert [learning_rate(settings, step, 100) for step in (0, 1, 3, 15, 63)] == [0.5, 1.0, 2.0, 1.0, 0.5]
    assert learning_rate(StageConfig(learning_rate=2.0, warmup_steps=4), 100, 100) == 0.1


def check_optimizer():
    import keras
    import numpy as np

    from myxtts.config.stages import StageConfig
    from myxtts.training.loop.updates import make_optimizer

    bias = keras.Variable(np.ones(2, "float32"))
    optimizer = make_optimizer(StageConfig(optimizer="lion", learning_rate=0.25), {"layer/bias": bias})
    optimizer.apply([keras.ops.convert_to_tensor([0.3, -2.0])], [bias])
    np.testing.assert_array_equal(bias.numpy(), [0.75, 1.25])  # the sign alone counts
    assert type(trained_gpt()[0].train_step.rules[0].optimizer) is keras.optimizers.Lion


@functools.cache
def trained_gpt():
    """A GPT after two steps with the new loss term, optimizer and switch: trainer, log, weights before."""
    import tempfile

    from myxtts.devices.tensorflow_start import import_sparingly

    import_sparingly()
    import keras
    from tiny import make_tiny_corpus, tiny_run_config, untraced

    from myxtts.data.dataset import SpeechDataset
    from myxtts.models.xtts import XTTS
    from myxtts.training.trainer import XTTSTrainer
    from myxtts.training.watching.callbacks import Callback

    logged = {}
    recorder = Callback()
    recorder.on_log = lambda step, losses, timing: logged.update({step: losses})
    with tempfile.TemporaryDirectory() as folder, untraced():
        training = dict(freeze_voice=True, log_every_steps=1)
        stage = dict(max_steps=2, optimizer="lion", schedule="inverse_sqrt", log_partition_weight=0.01)
        config = tiny_run_config(make_tiny_corpus(f"{folder}/corpus"), f"{folder}/run", training=training, gpt=stage)
        dataset = SpeechDataset.open(config)
        keras.utils.set_random_seed(0)  # of the frozen DVAE, whose codes are trained on
        trainer = XTTSTrainer(dataset.config, foundations={"dvae": XTTS(dataset.config.model, parts=("dvae",))})
        before = {name: v.numpy() for name, v in trainer.model.part_weights("gpt").items()}
        trainer.train(dataset, [recorder])
    return trainer, logged, before


def check_loss_term():
    import numpy as np

    losses = trained_gpt()[1][1]
    # Untrained logits have a spread of about 0.6; half of its square adds to the logarithm of the number of codes.
    assert np.isclose(losses["log_partition"], (np.log(18) + 0.18) ** 2, rtol=0.3)
    weighted = 0.01 * losses["text"] + losses["codes"] + 0.01 * losses["log_partition"]
    assert np.isclose(losses["loss"], weighted, rtol=1e-5)


def check_stage():
    from tiny import untraced

    from myxtts.cli.train import build_parser

    assert build_parser().parse_args(["--stage", "polish"]).stage == "polish"
    with untraced():
        assert passes("tests/test_polish.py")


def check_training_switch():
    from myxtts.cli.train import build_parser, config_from_arguments

    arguments = build_parser().parse_args(["--train-data", "unused", "--freeze-voice"])
    assert config_from_arguments(arguments).training.freeze_voice is True
    trainer, _, before = trained_gpt()
    row = trainer.ledger["frozen voice"]
    assert (row.requested, row.effective, row.as_requested) == ("on (given)", "on", True)
    still = {name for name, v in trainer.model.part_weights("gpt").items() if (v.numpy() == before[name]).all()}
    assert still == {name for name in before if name.startswith(("gpt/conditioning_encoder/", "gpt/perceiver/"))}


def check_setting_on_the_command_line_and_the_web_page():
    from myxtts.apps.studio.training_form import training_flags, values_of
    from myxtts.cli.train import build_parser, config_from_arguments
    from myxtts.config.config import XTTSConfig

    assert re.search(r"--log-every N\s+Steps between log lines \(default: 50\)", build_parser().format_help())
    arguments = build_parser().parse_args(["--train-data=unused", "--log-every=7"])
    Path("log.yaml").write_text("training: {log_every_steps: 7}")
    configs = config_from_arguments(arguments), XTTSConfig.from_yaml("log.yaml")
    assert [config.training.log_every_steps for config in configs] == [7, 7]
    form = values_of(configs[0]) | dict(train_data="unused", log_every=9)
    assert "--log-every=9" in training_flags("", ROOT / "new", form)


def check_export_format():
    from live_server import talkative_synthesizer

    from myxtts.cli.models import export, export_parser
    from myxtts.inference.synthesizer import Synthesizer
    from myxtts.interchange.onnx import exporting

    assert "docker: onnx with a Dockerfile" in " ".join(export_parser().format_help().split())
    Path("config.json").write_text("{}")
    model = talkative_synthesizer()
    no_checks = dict.fromkeys(("_other_graphs", "_sentences", "_long_text"), lambda *_: ())
    with patch.object(Synthesizer, "load", lambda *_, **__: model), patch.multiple(exporting, **no_checks):
        assert export(["--checkpoint", ".", "--format", "docker", "--output", "exported"]) == 0
    assert {"Dockerfile", "speak.py", "gpt.onnx"} <= {path.name for path in Path("exported").iterdir()}


def check_metric():
    from tiny import make_tiny_corpus

    from myxtts import evaluate

    folder = make_tiny_corpus("spoken")
    found = evaluate(folder, data=folder, sentences=1)
    letters, seconds = (sum(one) for one in zip(*((len(one["text"]), one["seconds"]) for one in found["spoken"])))
    assert abs(found["rows"][1]["figures"]["all"]["rate"]["value"] - letters / seconds) < 1e-6
    assert "speech rate, letters/s" in Path("evaluation/report.html").read_text()


def check_server_endpoint():
    from live_server import live_server, talkative_synthesizer

    with live_server(talkative_synthesizer(), ROOT) as live:
        status, _, body = live.ask("GET", "/v1/audio/languages")
        assert (status, body) == (200, b'{"languages":["en"]}')
        assert b"/v1/audio/languages" in live.ask("GET", "/docs")[2]


if __name__ == "__main__":
    import myxtts

    assert Path(myxtts.__file__).is_relative_to(ROOT)
    for name in sys.argv[1:]:
        globals()[f"check_{name.replace(' ', '_')}"]()
        print(f"works: {name}", flush=True)
