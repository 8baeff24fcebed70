"""Requests for more training: which stages are trained, kept or refused, and that this is reported in advance."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_run import PLAN
from tiny import tiny_run_config, untraced, with_training

from myxtts.config.checks import UserError
from myxtts.config.model import MODEL_SIZES
from myxtts.config.stages import STAGES, StageConfig, StageEntry
from myxtts.data.dataset import SpeechDataset
from myxtts.runs.agenda import describe_works, make_agenda
from myxtts.runs.console import RunConsole
from myxtts.runs.run import Run
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.training.stages.classes import STAGE_CLASSES

pytestmark = pytest.mark.usefixtures("two_stages")  # what holds for two holds for any number, as further tests show


def settings_of(corpus, folder, steps=1, **training):
    training = {"max_validation_batches": 1, "validate_every_steps": 1000, **training}
    stages = dict(dvae={"max_steps": steps, "crop_seconds": 0.4}, gpt={"max_steps": steps})
    return tiny_run_config(corpus, folder, data={"num_buckets": 1}, training=training, **stages)


def train(config):
    """Trains; returns each stage's number of steps afterwards, and when the plan was reported."""
    reported = []

    def on_agenda(agenda):
        reported.append(steps_of(config))

    run = Run(config, PLAN, [SimpleNamespace(on_agenda=on_agenda)])
    run.callbacks.append(RunConsole(run))
    with untraced():
        assert run.train()
    return steps_of(config), reported[0]


def steps_of(config):
    home = Path(config.training.checkpoint_dir)
    return {name: max(CheckpointStore(home / name).steps(), default=0) for name in STAGES}


@pytest.fixture(scope="module")
def tried_out(two_stages, tiny_corpus, tmp_path_factory):
    """Folder of a run with one step per stage."""
    folder = tmp_path_factory.mktemp("tried_out")
    assert train(settings_of(tiny_corpus, folder))[0] == {"dvae": 1, "gpt": 1}
    return folder


@pytest.fixture
def home(tried_out, tmp_path):
    return shutil.copytree(tried_out, tmp_path / "run")


def test_finished_run_trains_nothing(tiny_corpus, home, capsys):
    before = {path: path.stat().st_mtime_ns for stage in STAGES for path in (home / stage).rglob("*")}
    assert train(settings_of(tiny_corpus, home))[0] == {"dvae": 1, "gpt": 1}
    assert {path: path.stat().st_mtime_ns for stage in STAGES for path in (home / stage).rglob("*")} == before
    reported = ["Stage dvae: already trained, 1 step", "Stage gpt: already trained, 1 step", "Already trained. Raise"]
    said = capsys.readouterr().out
    assert "\n".join(reported) in said and "--max-steps to continue with gpt," in said


def test_more_steps_train_the_last_stage_but_not_its_dependencies(tiny_corpus, home, capsys):
    digest = CheckpointStore(home / "dvae").digest(1)
    after, told_at = train(settings_of(tiny_corpus, home, steps=2))
    assert (after, told_at) == ({"dvae": 1, "gpt": 2}, {"dvae": 1, "gpt": 1})
    assert CheckpointStore(home / "dvae").digest(1) == digest
    assert CheckpointStore(home / "gpt").read_state(2)["lineage"] == {"dvae": digest}
    said = capsys.readouterr().out
    assert re.search("Stage dvae: .*1 step.* 2, because gpt ", said)
    assert "--reset-training --stage dvae" in said
    assert re.search("Stage gpt: .*1 step .* to step 2", said)
    logged = (home / "train.log").read_text()
    missing = [line for line in said.splitlines() if line.strip() not in logged]  # a step's line is folded there alone
    assert not missing, "the log has every line that the terminal gets"
    assert "Not extended" in logged and logged.count("Stage gpt: was trained for 1 step") == 1
    result = r"Stage gpt: step 2, \S+ in this run; validation codes \S+ at the end, \S+ at the best step"
    assert re.search(result, said) and "Stage dvae: step 1; validation reconstruction" in said


def test_more_epochs_are_more_steps(tiny_corpus, home):
    config = settings_of(tiny_corpus, home, epochs=3)
    config.training.gpt.max_steps = config.training.dvae.max_steps = None
    dataset = SpeechDataset.open(config)
    assert [work.trains for work in make_agenda(config, dataset)] == [False, True]
    batches = dataset.order("gpt").batches_per_epoch
    assert make_agenda(config, dataset)[1].total == 3 * batches > 1
    assert make_agenda(with_training(config, gradient_accumulation=2), dataset)[1].total == 3 * batches // 2


def test_named_stage_with_dependents_is_refused_before_anything_is_changed(tiny_corpus, home):
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and "step_" in str(path)}
    settings = (home / "config.json").read_text()
    with pytest.raises(UserError) as refusal:
        train(settings_of(tiny_corpus, home, steps=2, stage="dvae"))
    named = ("training.stage", "1 of 2 steps", "gpt was trained on it", "--reset-training --stage dvae")
    assert all(words in str(refusal.value) for words in named)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (home / "config.json").read_text() == settings


def add_stage(monkeypatch, name, below, **settings):
    monkeypatch.setitem(STAGES, name, StageEntry(name, below, dict.fromkeys(MODEL_SIZES, 1e-3), **settings))
    monkeypatch.setitem(STAGE_CLASSES, name, SimpleNamespace(nothing_to_learn=lambda dataset: None))


@pytest.fixture
def four_stages(monkeypatch):
    """Adds two stages: `voice` depends on no other, `sound` on the other three."""
    for name, below in {"voice": (), "sound": ("dvae", "gpt", "voice")}.items():
        add_stage(monkeypatch, name, below)


def write_stages(folder, steps, finished=True):
    """Writes checkpoints of stages with these numbers of steps; each stage depends on the ones before."""
    for name, step in steps.items():
        stores = {below: CheckpointStore(folder / below) for below in STAGES[name].builds_on}
        lineage = {below: store.digest(store.steps()[-1]) for below, store in stores.items()}
        state = {"finished": finished, "position": step, "lineage": lineage, "data": None, "config": {}}
        CheckpointStore(folder / name).write(step, {"model": {}}, state)


def agenda_config(folder, steps, stage="all", **training):
    stages = {name: StageConfig(max_steps=steps) for name in STAGES}
    return with_training(tiny_run_config(None, folder), stages=stages, stage=stage, **training)


def agenda(folder, steps, **options):
    return make_agenda(agenda_config(folder, steps, **options), None)


def trained(folder, steps, **options):
    return [work.stage for work in agenda(folder, steps, **options) if work.trains]


@pytest.mark.parametrize(
    "there, expected",
    [
        ({}, ["dvae", "gpt", "voice", "sound"]),
        ({"dvae": 5}, ["dvae", "gpt", "voice", "sound"]),
        ({"dvae": 5, "gpt": 5}, ["gpt", "voice", "sound"]),
        ({"dvae": 5, "gpt": 5, "voice": 5}, ["gpt", "voice", "sound"]),
        ({"dvae": 5, "gpt": 5, "voice": 5, "sound": 5}, ["sound"]),
        ({"dvae": 9, "gpt": 9, "voice": 9, "sound": 9}, []),
    ],
)
def test_only_stages_without_dependents_continue(four_stages, tmp_path, there, expected):
    write_stages(tmp_path, there)
    assert trained(tmp_path, 9) == expected


def test_stage_of_other_weights_does_not_block_another(four_stages, tmp_path):
    write_stages(tmp_path, {"dvae": 5, "gpt": 5, "voice": 5, "sound": 5})
    state = CheckpointStore(tmp_path / "sound").read_state(5)
    state["lineage"]["gpt"] = "of another run"
    state["lineage"]["voice"] = "of another run"
    CheckpointStore(tmp_path / "sound").write(5, {"model": {}}, state)
    assert trained(tmp_path, 9) == ["gpt", "voice"], "training it on, on what it does not know, would be refused"
    reported = agenda(tmp_path, 9)[-1].describe()
    assert "on another gpt and voice" in reported and "--stage sound" in reported
    CheckpointStore(tmp_path / "sound").write(5, {"model": {}}, {"finished": True})
    assert trained(tmp_path, 9) == ["gpt", "voice"], "imported weights are taken as they are"


def test_stopped_stage_is_resumed_or_ends_if_beyond_the_requested_steps(four_stages, tmp_path):
    write_stages(tmp_path, {"dvae": 5})
    write_stages(tmp_path, {"gpt": 5}, finished=False)
    assert re.fullmatch("Stage gpt: stopped .*5 steps .* to step 9", describe_works(agenda(tmp_path, 9, stage="gpt")))
    ends = agenda(tmp_path, 4, stage="gpt")
    assert re.fullmatch("Stage gpt: .*step 5, because 4 .*", describe_works(ends)) and ends[0].trains


def test_named_stage_is_refused_with_the_names_of_all_dependents(four_stages, tmp_path):
    write_stages(tmp_path, {"dvae": 5, "gpt": 5, "voice": 5, "sound": 5})
    with pytest.raises(UserError, match="gpt and sound "):
        agenda(tmp_path, 9, stage="dvae")
    assert agenda(tmp_path, 5, stage="dvae")[0].describe() == "Stage dvae: already trained, 5 steps"


def test_following_stage_does_not_block_and_continues_afterwards(tmp_path, monkeypatch):
    add_stage(monkeypatch, "sound", ("dvae", "gpt"), follows=("gpt",))
    write_stages(tmp_path, {"dvae": 5, "gpt": 5, "sound": 5})
    assert trained(tmp_path, 9) == ["gpt", "sound"]
    assert "continue with gpt and sound" in describe_works(agenda(tmp_path, 5))
    assert "--max-steps" not in describe_works(agenda(tmp_path, 5, stage="dvae"))
    write_stages(tmp_path, {"gpt": 9})
    assert trained(tmp_path, 9) == ["sound"], "it goes on although the GPT is another one now"


def test_plan_covers_the_named_stage_a_reset_and_given_weights(tmp_path, monkeypatch):
    started = dict(init_from="/models/emma")
    taken = make_agenda(agenda_config(tmp_path, 9, **started), None, taken=["dvae"])
    assert [(work.stage, work.trains) for work in taken] == [("dvae", False), ("gpt", True)]
    assert taken[0].describe() == "Stage dvae: already trained, and used unchanged"
    with pytest.raises(UserError, match="--tune dvae,gpt,decoder"):
        make_agenda(agenda_config(tmp_path, 9, stage="dvae", **started), None, taken=["dvae"])
    write_stages(tmp_path, {"dvae": 5})
    rested_on, begun = agenda(tmp_path, 9, **started)
    assert not rested_on.trains and re.fullmatch("Stage gpt: .*1 to 9.* /models/emma", begun.describe())
    write_stages(tmp_path, {"gpt": 5})
    assert trained(tmp_path, 9, stage="gpt") == ["gpt"] and trained(tmp_path, 5, stage="gpt") == []
    works = make_agenda(agenda_config(tmp_path, 9, stage="dvae"), None, reset=["dvae", "gpt"])
    assert [work.describe() for work in works] == ["Stage dvae: steps 1 to 9"]
    monkeypatch.setattr(STAGE_CLASSES["dvae"], "nothing_to_learn", lambda dataset: "It has one speaker.")
    works = make_agenda(agenda_config(tmp_path, 9, stage="dvae"), None, reset=["dvae", "gpt"])
    assert [work.describe() for work in works] == ["Stage dvae: nothing to train"] and works[0].trains
