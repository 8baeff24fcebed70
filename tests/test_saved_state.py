"""A `state.json` with a missing key or a wrong type is refused with a one-line error."""

import json
from types import SimpleNamespace

import pytest
from tiny import tiny_run_config

from myxtts.config.checks import UserError
from myxtts.runs.agenda import make_agenda
from myxtts.runs.origin import settle_origin
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.saved_state import checked_state
from myxtts.training.loop.batching import Batching
from myxtts.training.resuming import TrainingState, differences, last_good_step, load_foundations, versions
from myxtts.training.watching.watch import DivergenceGuard, OvertrainingDetector

WRONG = ["missing", None, True, -1, 10**30, 1.5, "x", [], [["x"]], {}, {"a": "b"}]


def make_state(config):
    parts = {"divergence": DivergenceGuard(4), "overtraining": OvertrainingDetector(1)}
    parts["micro_batches"] = Batching(None, SimpleNamespace(count=1), 4, 1, automatic=True)
    return TrainingState(parts=parts), {"bad_steps_in_row": 0, "versions": versions(), "config": config.to_dict()}


def places(values, above=()):
    """Yields the path of each value in nested mappings, except single settings, which have their own tests."""
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict) and name != "config":
            yield from places(value, (*above, name))


def edited(values, place, change):
    name, *rest = place
    if rest:
        return {**values, name: edited(values[name], rest, change)}
    others = {key: value for key, value in values.items() if key != name}
    return others if change == "missing" else {**others, name: change}


@pytest.fixture
def stored(tmp_path):
    """Settings of a run, its state as JSON values, and a function that loads a state like a resumed run."""
    config = tiny_run_config(training={"overtraining_patience": 1, "checkpoint_dir": str(tmp_path)})
    whole, more = make_state(config)
    whole.history.append({"step": 2, "loss": 1.0})
    state = json.loads(json.dumps({"step": 2, "best_step": 2, **whole.as_dict(), **more}))

    def take_up(values):
        fresh, _ = make_state(config)
        saved = checked_state(values, tmp_path / "state.json")
        fresh.restore(2, saved, "here")
        list(differences(saved, config, "here"))
        assert saved["bad_steps_in_row"] >= 0 and json.dumps(fresh.as_dict())

    return config, state, take_up


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_any_missing_or_mistyped_key_is_an_error_message_or_harmless(stored, change):
    _, state, take_up = stored
    take_up(state)
    refused = 0
    for place in places(state):
        try:
            take_up(edited(state, place, change))
        except UserError as error:
            refused += 1
            assert 20 < len(str(error)) < 600 and "\n" not in str(error)
    assert refused > 5


def test_run_with_missing_state_keys_opens_or_is_one_error_message(stored, tmp_path):
    config, state, _ = stored
    for stage in ("gpt", "dvae"):
        CheckpointStore(tmp_path / stage).write(2, {"model": {}}, {"position": 0})
    assert settle_origin(config)[0].training.init_from is None
    config.training.stage = "gpt"
    with pytest.raises(CheckpointError, match="lacks 'finished'"):
        make_agenda(config, None)
    with pytest.raises(CheckpointError, match="lacks 'finished'"):
        load_foundations(config, "gpt", "/CPU:0")
    CheckpointStore(tmp_path / "gpt").write(
        3, {}, {"finished": True, "position": 3, "parts": {"overtraining": {"stopped": True}}}
    )
    with pytest.raises(CheckpointError, match="lacks 'diverging'"):
        make_agenda(config, None)
    assert last_good_step(CheckpointStore(tmp_path / "dvae")) is None
    with pytest.raises(CheckpointError, match="model.safetensors is not part"):
        CheckpointStore(tmp_path / "gpt").digest(3)
