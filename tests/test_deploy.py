"""The examples in deploy/ use existing commands and flags, and pass the installed linters."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from test_pages import PARSERS

from myxtts.apps.server import ray_app
from myxtts.config.checks import UserError

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
SCRIPTS = sorted(DEPLOY.glob("slurm/*.sbatch"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "compose/docker-compose.yaml").read_text())
NGINX = (DEPLOY / "compose/nginx.conf").read_text()


def commands():
    """Yields `(file name, subcommand, flags)` of each call of `myxtts`."""
    for path in SCRIPTS:
        for words in re.findall(r"^(?:srun .*)?myxtts (.*)", path.read_text().replace("\\\n", ""), re.MULTILINE):
            yield path.name, words.split()[0], re.findall(r"(--[a-z-]+)", words)
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
                yield path.name, container["args"][0], [word.partition("=")[0] for word in container["args"][1:]]
    for name, service in COMPOSE["services"].items():
        if words := service.get("command"):
            yield f"compose {name}", words[0], [word for word in words[1:] if word.startswith("--")]


@pytest.mark.parametrize("name, command, flags", [pytest.param(*each, id=each[0]) for each in commands()])
def test_commands_have_the_flags_in_the_examples(name, command, flags):
    assert flags and set(flags) <= {option for action in PARSERS[command]._actions for option in action.option_strings}


def test_every_script_and_every_job_calls_the_command():
    called = [path.name for path in (*SCRIPTS, *MANIFESTS)] + ["compose speech-1", "compose speech-2"]
    assert [name for name, _, _ in commands()] == called
    assert "--array=0-15\n" in (prepare := (DEPLOY / "slurm/prepare.sbatch").read_text()) and "--shards 16 " in prepare


def test_proxy_asks_the_replicas_that_compose_starts_and_waits_for():
    replicas = [name for name, service in COMPOSE["services"].items() if "command" in service]
    assert re.findall(r"server ([\w-]+):8000", NGINX) == replicas == list(COMPOSE["services"]["proxy"]["depends_on"])
    assert COMPOSE["services"]["proxy"]["ports"] == ["127.0.0.1:8080:8080"] and "listen 8080;" in NGINX
    for service in COMPOSE["services"].values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["restart"]
    for name in replicas:
        service = COMPOSE["services"][name]
        assert "/ready" in service["healthcheck"]["test"][-1] and service["secrets"] == list(COMPOSE["secrets"])
        stage = rf"^FROM base AS {service['build']['target']}\n(?:RUN .*\n)*USER {service['user']}$"
        assert re.search(stage, (DEPLOY / "docker/Dockerfile").read_text(), re.MULTILINE)


def test_proxy_accepts_its_settings(tmp_path):
    if (nginx := shutil.which("nginx")) is None:
        pytest.skip("nginx is not installed")
    settings = tmp_path / "nginx.conf"
    settings.write_text(re.sub(r"speech-\d", "127.0.0.1", NGINX).replace(" /tmp/", f" {tmp_path}/"))
    done = subprocess.run([nginx, "-t", "-e", "stderr", "-c", settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_ray_application_has_existing_flags():
    [one] = yaml.safe_load((DEPLOY / "ray/serve.yaml").read_text())["applications"]
    module, _, function = one["import_path"].partition(":")
    assert module == ray_app.__name__ and callable(getattr(ray_app, function))
    arguments = PARSERS["serve"].parse_args(ray_app.command_line(one["args"]))
    assert (arguments.checkpoint, arguments.voices) == ("runs/mine", "voices")


def test_replica_takes_flags_of_a_server_except_its_address():
    flags = {"checkpoint": "a", "allow-uploads": True, "allow_uploads": False, "cors": ["b", "c"], "which": None}
    assert ray_app.command_line(flags) == "--checkpoint a --allow-uploads --cors b c".split()
    with pytest.raises(UserError, match="port is not available for replicas"):
        ray_app.command_line({"port": 8000})


def test_ray_application_reports_errors_and_has_limits(tmp_path):
    if find_spec("ray") is None:
        pytest.skip("needs the extra ray")
    with pytest.raises(UserError, match="--queue must be 0 to 10000"):
        ray_app.application({"checkpoint": str(tmp_path), "queue": -1})
    deployment = ray_app.application({"checkpoint": str(tmp_path)})._bound_deployment
    settings = yaml.safe_load((DEPLOY / "ray/serve.yaml").read_text())["applications"][0]["deployments"][0]
    assert deployment.name == settings["name"] and deployment.max_ongoing_requests == settings["max_ongoing_requests"]


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
