"""Checks the syntax tree for the rules of docs/architecture.md: imports, what only one package may do, and sizes."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from myxtts.config.config import XTTSConfig

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "config bundled, storage, text devices, audio distributed memory utils, data models, training inference, "
PACKAGES += "interchange, hearing, runs, api, cli, apps, __main__"
ROWS = {name: row for row, names in enumerate(PACKAGES.split(", "), 1) for name in names.split()}
"""Row of each package; a package may import only from lower rows."""
DOORS = ("api.py", "training/trainer.py", "training/memory_isolated_trainer.py")
"""Files of `myxtts/` that are in the row of `api`, because users import them and no package does."""
ENTRY_ROW = 14
"""Row of `train_main.py`, `utilities/` and `__main__.py` files: entry points, which no other file imports."""
WITHOUT_TENSORFLOW = ("config", "text")
MODELS_MAY_IMPORT = ("keras", "numpy")
MODELS_MAY_IMPORT_OF_OURS = ("config", "models")
APPS_MAY_IMPORT = "api cli.arguments cli.errors config storage text devices audio utils data inference hearing".split()
APPS_MAY_IMPORT += ["interchange"]
"""The public packages; an app may import these and itself."""
TRACING_PACKAGES = ("training", "inference", "interchange")
MODULE_NAME = re.compile(rf"myxtts\.({'|'.join(ROWS)})(\.[\w.]+)?(:\w+)?")
"""A string that is used to import a module."""
HAND_WRITING = {"os": ("replace", "rename"), "tempfile": ("NamedTemporaryFile", "mkstemp")}
"""Functions for atomic writes, which only `storage/files.py` may use."""
MAX_FILE_LINES = 400


def find_breaches(root):
    """Returns every violation below `root`, as `file:line what`: `myxtts/`, `utilities/`, `tests/`, `train_main.py`."""
    breaches = []
    patterns = ("myxtts/**/*.py", "utilities/**/*.py", "tests/**/*.py", "train_main.py")
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        source = path.read_text(encoding="utf-8")
        nodes = [*ast.walk(ast.parse(source))]
        parts = path.relative_to(root).parts
        package = parts[1] if parts[0] == "myxtts" and len(parts) > 2 else None
        found = [*size_breaches(nodes, source)]
        if parts[0] != "tests":
            found += import_breaches(nodes, parts, package)
        if package:
            found += [*device_breaches(nodes, package), *tracing_breaches(nodes, package)]
            found += [*printing_breaches(nodes, package), *writing_breaches(nodes, package)]
        breaches += [f"{'/'.join(parts)}:{line} {what}" for line, what in found]
    return breaches


def size_breaches(nodes, source):
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield 1, f"has {num_lines} lines; a file has at most {MAX_FILE_LINES}"
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = node.end_lineno - node.lineno + 1
            limit = 40 if node.name == "__init__" else 60
            if num_lines > limit:
                yield node.lineno, f"{node.name} has {num_lines} lines; it may have at most {limit}"


def import_breaches(nodes, parts, package):
    is_door = package is None or parts[-1] == "__main__.py"
    row = ROWS["api"] if "/".join(parts[1:]) in DOORS else ENTRY_ROW if is_door else ROWS.get(package)
    if row is None:
        yield 1, f"myxtts/{package} has no row in the architecture"
        return
    for line, module in imported_modules(nodes, parts):
        top, _, rest = module.partition(".")
        other = rest.partition(".")[0]
        ours = top == "myxtts" and bool(rest)
        if (
            ours
            and row < ROWS["api"]
            and f"{rest}.".startswith(tuple(f"{door[:-3].replace('/', '.')}." for door in DOORS))
        ):
            yield line, f"imports {module}, a door for users"
        if ours and other not in ROWS:
            yield line, f"imports {module}, which has no row in the architecture"
        elif ours and package == other == "apps" and row != ENTRY_ROW:
            if rest.split(".")[1:2] != [parts[2]]:
                yield line, f"imports {module}; apps do not know each other"
        elif ours and package == "apps" and row != ENTRY_ROW:
            if not f"{rest}.".startswith(tuple(f"{room}." for room in APPS_MAY_IMPORT)):
                yield line, f"imports {module}, which is not public"
        elif ours and other != package and ROWS[other] >= row:
            yield line, f"imports {module}, which is not in a lower row"
        elif ours and package == "models" and other not in MODELS_MAY_IMPORT_OF_OURS:
            yield line, f"imports {module}; of this package models import config and models only"
        elif package in WITHOUT_TENSORFLOW and top in ("tensorflow", "keras", "torch", "jax"):
            yield line, f"imports {module}; {package} does without"
        elif package == "models" and top not in ("myxtts", *MODELS_MAY_IMPORT) and top not in sys.stdlib_module_names:
            yield line, f"imports {module}; models import keras only"


def imported_modules(nodes, parts):
    """Yields `(line, dotted module)` of every import, also inside functions; `from a import b` gives `a.b`."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            yield node.lineno, node.value.replace(":", ".")
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield from ((node.lineno, f"{module}.{name.name}") for name in node.names)


def device_breaches(nodes, package):
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and package != "devices":
            if node.value.startswith(("/GPU:", "/CPU:")):
                yield node.lineno, f"names the device {node.value!r}; only devices does"


def used_names(nodes, modules):
    """Yields `(line, module, name)` of each read or import of `module.name`; `modules` maps names in use to modules."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield node.lineno, modules[node.value.id], node.attr
        elif isinstance(node, ast.ImportFrom) and node.module in modules.values():
            yield from ((node.lineno, node.module, name.name) for name in node.names)


def tracing_breaches(nodes, package):
    for line, _, name in used_names(nodes, {"tf": "tensorflow", "tensorflow": "tensorflow"}):
        if name == "function" and package not in TRACING_PACKAGES:
            yield line, f"uses tf.function; only {', '.join(TRACING_PACKAGES)} do"


def printing_breaches(nodes, package):
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            if package == "training":
                yield node.lineno, "prints; training tells its callbacks"


def writing_breaches(nodes, package):
    if package == "storage":
        return
    for line, module, name in used_names(nodes, {module: module for module in HAND_WRITING}):
        if name in HAND_WRITING[module]:
            yield line, f"uses {module}.{name}; storage/files.py writes files whole or not at all"


def test_the_project_keeps_the_architecture():
    assert find_breaches(ROOT) == []


RULES = (Path(__file__).parent / "data/breaches.txt").read_text("utf-8").splitlines()
SIZES = [
    ("myxtts/text/bad.py", "x = 1\n" * 401, "has 401 lines"),
    ("utilities/bad.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
    ("tests/bad.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 60, "f has 61 lines"),
    ("tests/bad.py", "class A:\n    def __init__(self):\n" + "        x = 1\n" * 40, "__init__ has 41 lines"),
    ("tests/test_good.py", "DEVICE = '/GPU:0'\nprint(DEVICE)\n" + "x = 1\n" * 398, "nothing"),
    ("utilities/good.py", "def f():\n" + "    x = 1\n" * 59, "nothing"),
]


@pytest.mark.parametrize("path, source, breach", [*(row.split(" | ") for row in RULES), *SIZES])
def test_architecture_breach_is_found_and_nothing_else(tmp_path, path, source, breach):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source.replace("\\n", "\n"), encoding="utf-8")
    assert [breach in one for one in find_breaches(tmp_path)] == ([True] if breach != "nothing" else [])


def setting_names(settings=None):
    """Returns the names of all fields of a settings object, nested ones and mappings (`training.stages`) included."""
    settings = settings or XTTSConfig()
    for field in fields(settings):
        value = getattr(settings, field.name)
        nested = [one for one in (value.values() if isinstance(value, dict) else [value]) if is_dataclass(one)]
        for one in nested:
            yield from setting_names(one)
        if not nested:
            yield field.name


def read_names(root):
    """Returns the attributes that are read from anything but `self`, outside `config`."""
    names = set()
    for path in [*root.glob("myxtts/**/*.py"), *root.glob("utilities/**/*.py")]:
        if "config" in path.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                    names.add(node.attr)
    return names


def test_settings_of_every_section_and_stage_are_known_and_read_outside_config():
    assert {"width", "batch_size", "seed", "temperature", "betas", "warmup_steps"} <= set(setting_names())
    assert set(setting_names()) - read_names(ROOT) == set()


def test_an_unused_setting_is_found(tmp_path):
    (tmp_path / "myxtts/training").mkdir(parents=True)
    (tmp_path / "myxtts/config").mkdir()
    (tmp_path / "myxtts/training/a.py").write_text("x = config.seen\nself.own = 1\nprint(self.own)\nconfig.written = 2")
    (tmp_path / "myxtts/config/config.py").write_text("x = config.only_here")
    assert read_names(tmp_path) == {"seen"}


LOADED = """
import sys
before = set(sys.modules)
{code}
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print("LOADED", *sorted(tops - set(sys.stdlib_module_names) - {{"myxtts", "train_main"}}))
"""
HELP = """
import runpy
sys.argv = ["{command}", "--help"]
try:
    runpy.run_path("{command}", run_name="__main__")
except SystemExit as exit:
    assert not exit.code
"""


def run_and_list_modules(code):
    """Runs code in a new process; returns what it printed and the third-party modules that it loaded."""
    options = dict(cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"})
    done = subprocess.run([sys.executable, "-c", LOADED.format(code=code)], **options)
    printed, _, loaded = done.stdout.rpartition("LOADED")
    return printed, set(loaded.split())


def test_import_of_the_package_loads_nothing_else():
    assert run_and_list_modules("import myxtts") == ("", set())


@pytest.mark.parametrize("command, flag", [("train_main.py", "--model-size"), ("myxtts/__main__.py", "doctor")])
def test_help_loads_neither_tensorflow_nor_other_slow_modules(command, flag):
    printed, loaded = run_and_list_modules(HELP.format(command=command))
    assert flag in printed and loaded <= {"yaml", "_yaml"}


PLANS = "from myxtts.__main__ import main; assert main('plan --batch-size 2 --stage {}'.split()) == 0"
WITHOUT = {
    "from myxtts import Run, XTTSConfig, evaluate, load, make_dataset, train; XTTSConfig()": "",
    "import myxtts.apps.datasets.make": "onnxruntime pysubs2",
    "import myxtts.text.languages": "numpy num2words pypinyin cutlet hangul_romanize tokenizers",
    PLANS.format("gpt --model-size big"): "numpy",
    PLANS.format("dvae --model-size big"): "numpy",
    PLANS.format("gpt --init-from base"): "",
}
"""Packages, besides TensorFlow and Keras, that code works without."""


@pytest.mark.parametrize("code", WITHOUT)
def test_code_that_needs_no_tensorflow_loads_neither_it_nor_other_packages(code):
    assert not {"tensorflow", "keras", *WITHOUT[code].split()} & run_and_list_modules(code)[1]


def test_indirectly_loaded_module_is_found():
    assert "numpy" in run_and_list_modules("import myxtts, numpy")[1]


@pytest.mark.parametrize("given", [None, "0"])
@pytest.mark.parametrize("name", ["TF_ENABLE_ONEDNN_OPTS", "ORT_DISABLE_TELEMETRY"])
def test_onednn_is_on_and_telemetry_off_unless_the_environment_says_otherwise(name, given):
    code = f"import os\nos.environ.pop({name!r}, None)\nos.environ |= {given and {name: given} or {}}\nimport myxtts\n"
    assert run_and_list_modules(code + f"print(os.environ[{name!r}])")[0].strip() == (given or "1")
