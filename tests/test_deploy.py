"""The examples in deploy/ name commands and flags that there are, and pass the linters that are installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from myxtts.cli import prepare, train

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
SCRIPTS = sorted(DEPLOY.glob("slurm/*.sbatch"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
PARSERS = {"prepare": prepare.build_parser, "train": train.build_parser}


def commands():
    """`(file name, subcommand, flags)` of each call of `myxtts`."""
    for path in SCRIPTS:
        for words in re.findall(r"^(?:srun .*)?myxtts (.*)", path.read_text().replace("\\\n", ""), re.MULTILINE):
            yield path.name, words.split()[0], re.findall(r"(--[a-z-]+)", words)
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
                yield path.name, container["args"][0], [word.partition("=")[0] for word in container["args"][1:]]


@pytest.mark.parametrize("name, command, flags", [pytest.param(*each, id=each[0]) for each in commands()])
def test_commands_have_the_flags_that_they_are_given(name, command, flags):
    known = {option for action in PARSERS[command]()._actions for option in action.option_strings}
    assert flags and set(flags) <= known


def test_every_script_and_every_job_calls_the_command():
    assert [name for name, _, _ in commands()] == [path.name for path in (*SCRIPTS, *MANIFESTS)]


@pytest.mark.parametrize(
    "tool, paths",
    [
        pytest.param(["shellcheck", "--shell=bash"], SCRIPTS, id="shellcheck"),
        pytest.param(["hadolint"], [DEPLOY / "docker/Dockerfile"], id="hadolint"),
        pytest.param(["kubernetes-validate", "--strict"], MANIFESTS, id="kubernetes-validate"),
    ],
)
def test_linters_find_nothing(tool, paths):
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed; the extra `test` brings it")
    done = subprocess.run([*tool, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
