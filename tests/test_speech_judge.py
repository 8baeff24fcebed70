"""Evaluation during training: what is measured, which checkpoint becomes the best, and when a stage ends early."""

from dataclasses import replace

import pytest
from test_trainer import Recorder, dvae_trainer, frozen_dvae, open_run
from test_workers import together
from tiny import with_training, write_run

from myxtts.audio.files import load_samples
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.devices.configuration import plan_for
from myxtts.hearing.measuring import Spoken
from myxtts.runs.opening import open_stage
from myxtts.runs.samples import SpeechJudge
from myxtts.training.resuming import TrainingState
from myxtts.training.trainer import XTTSTrainer
from myxtts.training.watching.watch import Evaluator

pytestmark = pytest.mark.usefixtures("eagerly")


class Listener(Recorder):
    """A `Recorder` of evaluations."""

    def on_evaluation(self, step, figures, is_best):
        self.calls.append(("evaluation", step, figures["score"], is_best))


def test_best_checkpoint_by_evaluation_and_the_end_of_a_stage_that_no_longer_improves(
    tiny_corpus, tmp_path, monkeypatch, caplog
):
    # The DVAE stands in for the GPT, which takes longer to train.
    monkeypatch.setitem(STAGES, "dvae", replace(STAGES["dvae"], speaks=True))
    losses = lambda evaluator, loader: {"reconstruction": 9.0 - evaluator.trainer.step, "commitment": 0.0}
    monkeypatch.setattr(Evaluator, "__call__", losses)
    training = {"evaluate_every_steps": 1, "best_by": "evaluation", "evaluation_patience": 2}
    every, steps = {"validate_every_steps": 1, "checkpoint_every_steps": 50}, {"max_steps": 9, "crop_seconds": 0.4}
    dataset = open_run(tiny_corpus, tmp_path, dvae=steps, training={**training, **every})
    trainer, listener = dvae_trainer(dataset), Listener()
    scores = {1: 5.0, 2: 3.0, 4: 3.5, 5: 4.0}
    trainer.watch.speech_judge = lambda step: {"score": scores[step]} if step in scores else {}
    trainer.train(dataset, [listener])
    heard = [call for call in listener.calls if call[0] == "evaluation"]
    assert heard == [("evaluation", 1, 5.0, True), ("evaluation", 2, 3.0, True)] + [
        ("evaluation", 4, 3.5, False),  # that of step 3 could not be heard, which counts as nothing
        ("evaluation", 5, 4.0, False),
    ]
    # The validation loss falls all the time and has no say.
    assert not any(is_best for _, is_best in listener.validation.values())
    assert trainer.store.best_step() == 2 and trainer.step == 2 and max(listener.losses) == 5
    assert "Stage dvae ends early" in caplog.text and "step 2" in caplog.text
    state = trainer.store.read_state(2)
    assert state["finished"] and state["best"] == [3.0, 2] and state["stale_evaluations"] == 2
    again = XTTSTrainer(dataset.config, stage="dvae")
    assert again.watch.ended_early and again.state.best == (3.0, 2)
    other = XTTSTrainer(with_training(dataset.config, evaluation_recognizer="other {wav}"), stage="dvae").state
    assert (other.best, other.least_score, other.stale_evaluations) == (None, None, 0) and "is reset" in caplog.text
    again.state.finished = False  # stopped, and resumed with a patience that is already used up
    again.train(dataset)
    assert again.store.read_state(2)["finished"] and caplog.text.count("ends early") == 2
    training = {**training, "best_by": "loss", "evaluation_patience": 1}  # ends at a step whose loss is the best
    dataset = open_run(tiny_corpus, tmp_path / "other", dvae=steps, training={**training, **every})
    (trainer := dvae_trainer(dataset)).watch.speech_judge = lambda step: {"score": 5.0}
    trainer.train(dataset)
    assert trainer.step == trainer.store.best_step() == 2 and caplog.text.count("ends early") == 3


def test_score_and_loss_are_never_compared():
    state = TrainingState(step=3)
    assert state.improves("loss", 2.0) and not state.improves("loss", 2.0)
    assert not state.scored(0.5) and state.best == (2.0, 3) and state.stale_evaluations == 0
    assert not state.scored(float("nan")) and state.stale_evaluations == 1
    saved = {"position": 1, "data": None, **state.as_dict()}
    by_score = TrainingState(best_by="evaluation")
    by_score.restore(3, saved, "there")
    assert by_score.best is None and by_score.stale_evaluations == 1 and by_score.least_score == 0.5
    assert by_score.scored(0.4) and by_score.best == (0.4, 3)


def test_evaluation_of_a_run_uses_validation_sentences_and_survives_errors(
    tiny_corpus, tmp_path, monkeypatch, caplog, without_griffin_lim
):
    monkeypatch.setattr("myxtts.runs.samples.find_encoder", lambda: None)
    sizes = dict(model={"max_audio_tokens": 28}, data={"max_seconds": 1.15})
    training = {"evaluate_every_steps": 1, "evaluation_recognizer": "false {wav}", "evaluation_sentences": 2}
    dataset = open_run(tiny_corpus, tmp_path, training=training, **sizes)
    write_run(tmp_path, frozen_dvae(dataset.config), dataset.tokenizer, dataset.config)
    plan = plan_for(None, None)
    judge = open_stage("gpt", plan, dataset)[0].watch.speech_judge
    assert judge(7) == {} and "speech of step 7 could not" in caplog.text
    judge._measure.recognizer = None
    first = judge(8)
    assert {"score", "mcd", "length", "limit"} <= first.keys() and first["mcd"] > 0
    is_whole = first["limit"] <= 2 and first["length"] >= 0.75
    assert first["score"] == pytest.approx(first["mcd"] + (0 if is_whole else 100))
    judge._measure.recognizer, judge._trusts_recognizer = lambda *_: "no", None
    assert "cer" not in judge(9) and "scored without the recognizer" in caplog.text
    dataset.config.training.evaluation_recognizer = "nowhere"
    with pytest.raises(UserError, match="--recognizer"):
        SpeechJudge(dataset, lambda: None, plan.model_device)


def test_workers_divide_the_sentences_and_all_get_the_same_figures(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("myxtts.runs.samples.find_encoder", lambda: None)
    training = {"evaluate_every_steps": 1, "evaluation_sentences": 3}
    dataset = open_run(tiny_corpus, tmp_path, training=training, data={"validation_share": 0.6, "max_seconds": 0.7})
    said = []

    def reversed_recordings(synthesizer, sentences, seeds):
        for one in sentences:
            said.append(one.id)
            yield Spoken(one, seeds[0], load_samples(one.recording)[::-1], MODEL_SAMPLE_RATE, stopped=True)

    monkeypatch.setattr("myxtts.runs.samples.speak_all", reversed_recordings)
    figures = SpeechJudge(dataset, list, "/CPU:0")(1)
    assert len(said) == 3 and figures["mcd"] > 0

    def cannot_hear(spoken):
        raise UserError("No ears.")

    def work(workers):
        judge = SpeechJudge(dataset, list, "/CPU:0", workers)
        heard = [judge(1), judge(2)]
        if workers.index == 1:
            judge._measure = cannot_hear  # what one cannot hear is judged by none
        heard.append(judge(3))
        workers.close()
        return heard

    assert together(2, work) == [[figures, figures, {}]] * 2
    assert len(said) == 3 + 3 * 3
