"""Overtraining: its detection, the warning, the stop at the best checkpoint, and exact resumption."""

import json
import logging

import pytest
from test_trainer import Recorder, dvae_trainer, open_run

from myxtts.training.trainer import XTTSTrainer
from myxtts.training.watching.watch import WARN_AFTER, Evaluator, OvertrainingDetector

pytestmark = pytest.mark.usefixtures("eagerly")


def feed(detector, pairs, first_step=1):
    """Returns the detector's result for each `(training loss, validation loss)`."""
    said = []
    for step, (training, validation) in enumerate(pairs, first_step):
        detector.record(training)
        said.append(detector.update(step, validation))
    return said


LEARNS = [(3.0, 3.0), (2.0, 2.5), (1.5, 2.2)]
OVERTRAINS = [(1.4 - 0.1 * n, 2.3 + 0.1 * n) for n in range(6)]


def test_divergence_warns_at_half_the_patience_and_stops_at_its_end_and_without_patience_warns_once():
    detector = OvertrainingDetector(4)
    said = feed(detector, LEARNS + OVERTRAINS[:4])
    assert [bool(line) for line in said] == [False, False, False, False, True, False, True]
    assert "Overtraining: 2 validations" in said[4] and "2.2000 of step 3" in said[4] and "2.4000" in said[4]
    assert "of step 3" in said[6] and detector.stopped
    detector = OvertrainingDetector(0)
    said = feed(detector, LEARNS + OVERTRAINS * 2)
    assert [index for index, line in enumerate(said) if line] == [len(LEARNS) + WARN_AFTER - 1]
    assert not detector.stopped


@pytest.mark.parametrize(
    "pairs",
    [
        [(3.0 - 0.1 * n, 3.0 - 0.1 * n) for n in range(20)],  # both fall
        LEARNS + [(1.6, 2.3)] * 20,  # a plateau: the training loss is not below what it was at the best
        LEARNS + [(1.4, 2.2)] * 20,  # no worse than the best
        LEARNS + [(1.4, float("nan"))] * 20,
        LEARNS + OVERTRAINS[:1] + [(1.0, 2.1), (0.9, 2.2), (0.8, 2.0), (0.7, 2.1)],  # new bests in between
    ],
)
def test_other_courses_are_not_overtraining(pairs):
    detector = OvertrainingDetector(2)
    feed(detector, pairs)
    assert not detector.stopped


@pytest.mark.parametrize("cut", range(1, 9))
def test_detector_restored_from_json_equals_an_uninterrupted_one(cut):
    pairs = LEARNS + OVERTRAINS
    before, after = OvertrainingDetector(5), OvertrainingDetector(5)
    feed(before, pairs[:cut])
    before.record(9.0)  # steps of an interval that is cut in two
    whole_again = OvertrainingDetector(5)
    feed(whole_again, pairs[:cut])
    whole_again.record(9.0)
    after.restore(json.loads(json.dumps(before.state())))
    assert after.state() == whole_again.state()
    if cut < 8:
        assert feed(after, pairs[cut:], cut + 1) == feed(whole_again, pairs[cut:], cut + 1)


def test_overtrained_stage_ends_at_its_best_and_stays_ended(tiny_corpus, tmp_path, monkeypatch, caplog):
    course = {1: 3.0, 2: 2.0, 3: 2.5, 4: 2.6, 5: 2.7}
    losses = lambda evaluator, loader: {"reconstruction": course[evaluator.trainer.step], "commitment": 0.0}
    monkeypatch.setattr(Evaluator, "__call__", losses)
    settings = dict(
        dvae={"max_steps": 9, "crop_seconds": 0.4, "learning_rate": 1e-5},
        training={"validate_every_steps": 1, "checkpoint_every_steps": 4, "overtraining_patience": 3},
    )
    dataset = open_run(tiny_corpus, tmp_path, **settings)
    trainer, recorder = dvae_trainer(dataset), Recorder()
    # Training losses of such a short run are random; only their order matters here.
    record = trainer.watch.overtraining.record
    monkeypatch.setattr(trainer.watch.overtraining, "record", lambda loss: record(9.0 - trainer.step))
    with caplog.at_level(logging.WARNING, "myxtts"):
        trainer.train(dataset, [recorder])
    assert sorted(recorder.losses) == [1, 2, 3, 4, 5] and recorder.calls[-1][0] == "end"
    assert [line for line in caplog.messages if "Overtraining: 1 validation" in line and "ends after 3" in line]
    assert [line for line in caplog.messages if "best checkpoint, of step 2" in line]
    assert trainer.store.steps() == [2] and trainer.store.best_step() == 2
    assert (tmp_path / "dvae/overtrained_step_00000004").is_dir()
    state = trainer.store.read_state(2)
    assert state["finished"] and state["parts"]["overtraining"]["stopped"]
    assert [entry["step"] for entry in state["history"]] == [1, 2, 3, 4, 5]

    again, recorder = XTTSTrainer(dataset.config, stage="dvae"), Recorder()
    again.train(dataset, [recorder])
    assert again.step == 2 and not recorder.losses
    more_patience = open_run(
        tiny_corpus, tmp_path, **{**settings, "training": {**settings["training"], "overtraining_patience": 30}}
    )
    assert not XTTSTrainer(more_patience.config, stage="dvae").watch.overtraining.stopped
