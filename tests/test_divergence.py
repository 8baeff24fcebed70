"""Runs whose loss is not finite: detection, report file, return to the last good checkpoint, and end."""

import json
import re

import numpy as np
import pytest
from test_trainer import Recorder, dvae_trainer, open_run
from tiny import full_disk

from myxtts.training.watching.watch import DivergenceGuard, TrainingDiverged

pytestmark = pytest.mark.usefixtures("eagerly")


def record(guard, step, finite):
    losses = {"loss": 1.0 if finite else np.nan, "text": 2.0, "finite": float(finite)}
    guard.record(step, [np.array([step, step + 100])], losses)
    return guard.bad_steps()


def test_one_finite_step_resets_the_count():
    guard = DivergenceGuard(4)
    assert not any(record(guard, step, step % 4 == 0) for step in range(1, 60))


def test_the_count_of_bad_steps_continues_after_a_resume():
    guard, other = DivergenceGuard(8), DivergenceGuard(8)
    for step in range(5):
        record(guard, step, False)
    other.restore(json.loads(json.dumps(guard.state())))
    assert [bool(record(other, step, False)) for step in range(5, 9)] == [False, False, True, True]


def trainer_that_breaks(corpus, folder, bad_positions, once=False, **training):
    """A DVAE trainer whose mels at some positions are NaN, and its data set."""
    training = {"max_bad_steps": 3, "checkpoint_every_steps": 2, "validate_every_steps": 50, **training}
    steps = {"max_steps": 9, "warmup_steps": 0, "final_learning_rate": 1.0, "crop_seconds": 0.4}
    dataset = open_run(corpus, folder, dvae=steps, training=training)
    trainer = dvae_trainer(dataset)
    prepare = trainer.preparation

    def preparation(batch, position=None):
        prepared = prepare(batch, position)
        if position not in bad_positions:
            return prepared
        if once:
            bad_positions.remove(position)
        return prepared._replace(mel=prepared.mel * np.nan)

    trainer.preparation = preparation
    return trainer, dataset


def test_diverged_run_goes_back_with_a_lower_rate_and_then_stops(tiny_corpus, tmp_path, caplog):
    # Positions 4 to 6 are bad, so steps 5 to 7 are; the checkpoint of step 6 lies in the row.
    trainer, dataset = trainer_that_breaks(tiny_corpus, tmp_path, {4, 5, 6}, divergence_returns=2, divergence_rate=0.1)
    recorder, steps = Recorder(), []
    recorder.on_step = steps.append
    with pytest.raises(TrainingDiverged, match="3 consecutive steps"):
        trainer.train(dataset, [recorder])
    assert steps == [1, 2, 3, 4, 5, 6, 5, 6, 5, 6] and trainer.workers._deadline[0] == np.inf
    assert re.search("step 4 .*0.01 .*2 of 2", caplog.text)
    assert recorder.losses[6]["learning_rate"] == pytest.approx(3e-5) and recorder.losses[6]["skipped_steps"] == 2
    assert trainer.store.steps() == [2, 4, 6] or trainer.store.steps() == [4, 6]
    assert (trainer.store.folder / "diverged_step_00000006").is_dir()
    found = json.loads((tmp_path / "diverged_dvae_step_7.json").read_text())
    assert [bad["step"] for bad in found["bad_steps"]] == [5, 6, 7] and found["weights_not_finite"] == []
    assert found["learning_rate"] == pytest.approx(3e-5)
    for number, bad in enumerate(found["bad_steps"], 4):
        assert bad["clips"] == [dataset.train[index].id for index in dataset.order("dvae").batch(number).indices]
        assert "reconstruction" in bad["not_finite"] and "gradient_norm" in bad["not_finite"]
    resumed = dvae_trainer(dataset).watch.divergence
    assert (resumed.rate_scale, resumed.returns) == (pytest.approx(0.01), 2)


def test_run_that_diverged_once_trains_on_to_its_end_with_the_lower_rate(tiny_corpus, tmp_path):
    trainer, dataset = trainer_that_breaks(tiny_corpus, tmp_path, {4, 5, 6}, once=True)
    recorder = Recorder()
    trainer.train(dataset, [recorder])
    assert trainer.step == 9 and np.isfinite(recorder.losses[9]["loss"])
    assert recorder.losses[9]["learning_rate"] == pytest.approx(0.5 * 3e-3)
    resumed = dvae_trainer(dataset).watch.divergence
    assert (resumed.rate_scale, resumed.returns) == (0.5, 1)


def test_run_without_a_good_checkpoint_stops_and_a_report_that_cannot_be_written_goes_to_the_log(
    tiny_corpus, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("myxtts.training.watching.watch.write_json", full_disk)
    trainer, dataset = trainer_that_breaks(tiny_corpus, tmp_path, set(range(9)))
    trainer.model.dvae.decoder_conv_1.bias.assign(np.full(8, np.nan, "float32"))
    with pytest.raises(TrainingDiverged, match="3 consecutive steps.*The log"):
        trainer.train(dataset)
    broken = "'weights_not_finite': ['decoder_conv_1/bias']"
    for words in ("No space left on device", "'clips': ['", "'learning_rate': ", broken):
        assert words in caplog.text
