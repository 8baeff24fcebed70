"""The installed package: a wheel outside of any checkout finds its recipes and trains."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import myxtts
from myxtts.config.config import RECIPES, XTTSConfig, find_recipe, recipe_names

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
FIRST_STEPS = """
import json
import sys

import myxtts
from myxtts.cli import train
from myxtts import __main__ as main
from myxtts.config.config import recipe_names

def settings_of(*argv):
    return train.config_from_arguments(train.build_parser().parse_args(list(argv))).to_dict()

found = {"home": myxtts.__file__, "version": myxtts.__version__, "recipes": recipe_names()}
found |= {"sample": settings_of(), "digits": settings_of("--config", "configs/digits.yaml")}
for command in main.COMMANDS:
    try:
        main.main([command, "--help"])
    except SystemExit as end:
        assert not end.code, command
assert main.main(["train", "--config", "configs/none.yaml"]) == 2
assert not {"tensorflow", "keras"} & set(sys.modules)
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the unpacked wheel that was built from the source distribution, outside of the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("myxtts", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    unpacked = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(built("build_sdist", source, unpacked), unpacked)
    wheel = built("build_wheel", next(folder for folder in unpacked.iterdir() if folder.is_dir()), target)
    zipfile.ZipFile(wheel).extractall(target)
    wheel.unlink()
    return target


def built(kind, source, target):
    command = [sys.executable, "-c", BUILD, kind, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return target / done.stdout.splitlines()[-1]


def run_elsewhere(installed, folder, code):
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "100"}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


def test_installed_package_finds_its_recipes_from_any_folder(installed, tmp_path):
    done = run_elsewhere(installed, tmp_path, FIRST_STEPS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.rpartition("FOUND")[2])
    assert Path(found["home"]).is_relative_to(installed) and found["version"] == myxtts.__version__
    assert found["recipes"] == recipe_names()
    for name in ("sample", "digits"):
        assert found[name] == json.loads(json.dumps(XTTSConfig.from_yaml(ROOT / f"configs/{name}.yaml").to_dict()))
    assert "configs/none.yaml does not exist" in done.stderr and "sample.yaml" in done.stderr
    assert not list(tmp_path.iterdir())


def test_installed_package_trains_a_step_and_writes_only_in_its_folder(installed, tiny_corpus, tiny_yaml, tmp_path):
    argv = ["train", "--train-data", str(tiny_corpus), "--config", str(tiny_yaml), "--stage", "dvae"]
    argv += ["--max-steps", "1", "--checkpoint-dir", "run"]
    code = "from myxtts.devices.tensorflow_start import import_sparingly as start; from myxtts.__main__ import main; "
    code += "start().config.run_functions_eagerly(True); "
    done = run_elsewhere(installed, tmp_path, f"{code}raise SystemExit(main({argv!r}))")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/dvae/step_00000001/model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_wheel_has_the_metadata_of_an_index(installed):
    metadata = next(installed.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert {"Name: myxtts", f"Version: {myxtts.__version__}", "License-Expression: MIT"} <= set(metadata.splitlines())
    assert "Provides-Extra: languages" in metadata and "# MyXTTS" in metadata
    assert not list(installed.glob("tests")) and not list(installed.glob("utilities"))


def test_recipe_is_found_by_name_and_a_file_of_ones_own_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("sample.yaml") == find_recipe("configs/sample.yaml") == RECIPES / "sample.yaml"
    assert find_recipe("elsewhere/sample.yaml") == Path("elsewhere/sample.yaml")
    (tmp_path / "sample.yaml").write_text("{}")
    assert find_recipe("sample.yaml") == Path("sample.yaml")
