"""The rules of docs/architecture.md on the syntax tree: who may import whom, and who may name a device."""

import ast
import os
import resource
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from myxtts.config.config import XTTSConfig

ROOT = Path(__file__).resolve().parents[1]
ROWS = {
    "config": 1,
    "storage": 2,
    "text": 3,
    "devices": 3,
    "utils": 4,
    "audio": 4,
    "planning": 4,
    "data": 5,
    "models": 5,
    "interchange": 6,
    "training": 7,
    "inference": 7,
    "export": 7,
    "evaluation": 8,
    "corpora_tools": 8,
    "runs": 9,
    "cli": 10,
    "webui": 10,
    "server": 10,
}
"""Row of each package; one may import from a lower row only."""
ENTRY_ROW = 11
"""`train_main.py`, `utilities/` and `__main__.py` files: doors to what is below, imported by nobody."""
WITHOUT_TENSORFLOW = ("config", "text")
FRAMEWORKS = ("tensorflow", "keras", "torch", "jax")
MODELS_MAY_IMPORT = ("keras", "numpy", "myxtts.config", "myxtts.models")
"""Beside Python's own library."""
TRACING_PACKAGES = ("training", "inference")


def find_breaches(root):
    """Every breach below `root`, as `file:line what`, for `myxtts/`, `utilities/` and `train_main.py` there."""
    breaches = []
    for path in sorted([*root.glob("myxtts/**/*.py"), *root.glob("utilities/**/*.py"), *root.glob("train_main.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts = path.relative_to(root).parts
        package = parts[1] if parts[0] == "myxtts" and len(parts) > 2 else None
        found = [*import_breaches(tree, parts, package)]
        if package:
            found += [*device_breaches(tree, package), *tracing_breaches(tree, package)]
        breaches += [f"{'/'.join(parts)}:{line} {what}" for line, what in found]
    return breaches


def import_breaches(tree, parts, package):
    row = ENTRY_ROW if package is None or parts[-1] == "__main__.py" else ROWS.get(package)
    if row is None:
        yield 1, f"myxtts/{package} has no row in the architecture"
        return
    for line, module in imported_modules(tree, parts):
        top, _, rest = module.partition(".")
        other = rest.partition(".")[0]
        if top == "myxtts" and rest and other not in ROWS:
            yield line, f"imports {module}, which has no row in the architecture"
        elif top == "myxtts" and rest and other != package and ROWS[other] >= row:
            yield line, f"imports {module}, which is not in a lower row"
        elif package in WITHOUT_TENSORFLOW and top in FRAMEWORKS:
            yield line, f"imports {module}; {package} does without"
        elif package == "models" and top not in sys.stdlib_module_names and not may_import(module, MODELS_MAY_IMPORT):
            yield line, f"imports {module}; models import {', '.join(MODELS_MAY_IMPORT)} only"


def may_import(module, allowed):
    return any(f"{module}.".startswith(f"{name}.") for name in allowed)


def imported_modules(tree, parts):
    """`(line, dotted module)` of every import, those inside functions too; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield from ((node.lineno, f"{module}.{name.name}") for name in node.names)


def device_breaches(tree, package):
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and package != "devices":
            if node.value.startswith(("/GPU:", "/CPU:")):
                yield node.lineno, f"names the device {node.value!r}; only devices does"


def tracing_breaches(tree, package):
    for node in ast.walk(tree):
        named = (
            isinstance(node, ast.Attribute)
            and node.attr == "function"
            and isinstance(node.value, ast.Name)
            and node.value.id in ("tf", "tensorflow")
        )
        imported = (
            isinstance(node, ast.ImportFrom)
            and node.module == "tensorflow"
            and any(name.name == "function" for name in node.names)
        )
        if (named or imported) and package not in TRACING_PACKAGES:
            yield node.lineno, f"uses tf.function; only {' and '.join(TRACING_PACKAGES)} do"


def test_the_project_keeps_the_architecture():
    assert find_breaches(ROOT) == []


@pytest.mark.parametrize(
    "path, source, breach",
    [
        ("myxtts/config/bad.py", "import keras", "config does without"),
        ("myxtts/text/bad.py", "def f():\n    import tensorflow as tf", "text does without"),
        ("myxtts/text/bad.py", "from myxtts.audio.mel import MelSpec", "not in a lower row"),
        ("myxtts/utils/bad.py", "from myxtts.text import cleaners", "not in a lower row"),
        ("myxtts/audio/bad.py", "from ..utils import commons", "not in a lower row"),
        ("myxtts/models/bad.py", "import tensorflow as tf", "models import keras, numpy"),
        ("myxtts/models/layers/bad.py", "from myxtts.data.batch import WaveBatch", "not in a lower row"),
        ("myxtts/models/bad.py", "from tensorflow.python.ops import math_ops", "models import keras, numpy"),
        ("myxtts/models/bad.py", "from myxtts.audio.mel import MelSpectrogram", "models import keras, numpy"),
        ("myxtts/models/bad.py", "def f():\n    from myxtts.devices import kinds", "models import keras, numpy"),
        ("myxtts/data/bad.py", "from myxtts.models import xtts", "not in a lower row"),
        ("myxtts/data/bad.py", "import myxtts.training.step", "not in a lower row"),
        ("myxtts/training/bad.py", "from myxtts.inference.synthesizer import Synthesizer", "not in a lower row"),
        ("myxtts/inference/bad.py", "from myxtts.training import losses", "not in a lower row"),
        ("myxtts/inference/bad.py", "from myxtts.cli import say", "not in a lower row"),
        ("myxtts/cli/bad.py", "import myxtts.webui.app", "not in a lower row"),
        ("myxtts/helpers/bad.py", "", "has no row"),
        ("myxtts/data/bad.py", "from myxtts.helpers import bad", "has no row"),
        ("myxtts/training/bad.py", "DEVICE = '/GPU:0'", "names the device"),
        ("myxtts/models/bad.py", "def f(i):\n    return f'/CPU:{i}'", "names the device"),
        ("myxtts/models/bad.py", "import tensorflow as tf\n@tf.function\ndef f():\n    pass", "uses tf.function"),
        ("myxtts/data/bad.py", "from tensorflow import function", "uses tf.function"),
    ],
)
def test_architecture_breach_is_found(tmp_path, path, source, breach):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    found = find_breaches(tmp_path)
    assert found and breach in " ".join(found)


@pytest.mark.parametrize(
    "path, source",
    [
        ("train_main.py", "from myxtts.cli.train import main"),
        ("utilities/benchmarks/good.py", "import tensorflow as tf\nfrom myxtts.cli import train\nf = tf.function(abs)"),
        ("myxtts/inference/__main__.py", "from myxtts.cli.say import main"),
        (
            "myxtts/training/good.py",
            "import tensorflow as tf\nfrom myxtts.models.xtts import XTTS\nf = tf.function(abs)",
        ),
        ("myxtts/models/good.py", "import math\nimport numpy as np\nfrom keras import ops\nfrom .layers import linear"),
        ("myxtts/models/good.py", "from myxtts.config.rates import NUM_MELS\nfrom myxtts.models.dvae import DVAE"),
        ("myxtts/devices/good.py", "DEVICE = '/GPU:0'"),
    ],
)
def test_architecture_allows_what_it_should(tmp_path, path, source):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    assert find_breaches(tmp_path) == []


def setting_names(cls=XTTSConfig):
    """Names of the fields of a settings dataclass and of those in it."""
    for field in fields(cls):
        nested = field.default_factory() if callable(field.default_factory) else None
        if is_dataclass(nested):
            yield from setting_names(type(nested))
        else:
            yield field.name


def read_names(root):
    """Attributes that are read from anything but `self`, outside `config`."""
    names = set()
    for path in [*root.glob("myxtts/**/*.py"), *root.glob("utilities/**/*.py")]:
        if "config" in path.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                    names.add(node.attr)
    return names


def test_every_setting_is_read_outside_config():
    assert set(setting_names()) - read_names(ROOT) == set()


def test_a_setting_that_nobody_reads_is_found(tmp_path):
    (tmp_path / "myxtts/training").mkdir(parents=True)
    (tmp_path / "myxtts/config").mkdir()
    (tmp_path / "myxtts/training/a.py").write_text("x = config.seen\nself.own = 1\nprint(self.own)\nconfig.written = 2")
    (tmp_path / "myxtts/config/config.py").write_text("x = config.only_here")
    assert read_names(tmp_path) == {"seen"}


HELP = """
import runpy, sys
sys.argv = ["train_main.py", "--help"]
try:
    runpy.run_path("train_main.py", run_name="__main__")
except SystemExit as exit:
    assert not exit.code
loaded = [name for name in ("tensorflow", "keras", "librosa", "numpy") if name in sys.modules]
print("LOADED", *loaded)
"""


def test_train_main_help_is_quick_and_does_without_tensorflow():
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(
            [sys.executable, "-c", HELP],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "--model-size" in result.stdout
    assert result.stdout.splitlines()[-1] == "LOADED"
    assert min(seconds) < 0.3, f"train_main.py --help takes {min(seconds):.2f} s of processor time"


@pytest.mark.parametrize("given, settled", [(None, "1"), ("0", "0")])
def test_products_of_onednn_are_on_unless_somebody_says_otherwise(given, settled):
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    if given is not None:
        environment["TF_ENABLE_ONEDNN_OPTS"] = given
    found = subprocess.run(
        [sys.executable, "-c", "import myxtts, os; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == settled
