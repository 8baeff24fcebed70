"""A new stage is registered by one call: it gets settings, and the command line offers and plans it."""

import pytest

from myxtts.cli import train as commands
from myxtts.cli.train import build_parser
from myxtts.config.model import MODEL_SIZES
from myxtts.config.rates import NUM_MELS
from myxtts.config.stages import STAGES, StageEntry, register_stage
from myxtts.memory.estimates import FLOAT, MemoryEstimate
from myxtts.memory.report import ESTIMATES


def estimate_timbre(model, shapes, *arguments):
    weights = FLOAT * model.num_codes * NUM_MELS
    return MemoryEstimate(weights, 2 * weights, 0, 0, 2 * weights, activations=FLOAT * shapes.batch, working=0)


@pytest.fixture(scope="module", autouse=True)
def timbre():
    rates = dict.fromkeys(MODEL_SIZES, 1e-2)
    register_stage(StageEntry("timbre", ("dvae",), rates, defaults={"warmup_steps": 3}))
    ESTIMATES["timbre"] = estimate_timbre
    yield
    for registry in (STAGES, ESTIMATES):
        del registry["timbre"]


def test_registered_stage_is_offered_and_planned_by_the_command_line(capsys):
    assert "{dvae,gpt,speaker,decoder,timbre,all}" in " ".join(build_parser().format_help().split())
    assert build_parser().parse_args(["--stage", "timbre"]).stage == "timbre"
    assert commands.plan(["--stage", "timbre", "--model-size", "nano", "--gpu-memory", "8"]) == 0
    printed = capsys.readouterr().out
    assert "TIMBRE stage, size nano" in printed and "as asked" in printed
