"""Whole runs on a tiny corpus: both stages, resuming, checkpoints, validation, overfitting."""

import shutil
from collections import Counter
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from tiny import tiny_run_config, untraced, with_training

from myxtts.data.dataset import SpeechDataset
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.training.loop.device_pipeline import StepClock
from myxtts.training.trainer import XTTSTrainer
from myxtts.training.watching.callbacks import Callback
from myxtts.training.watching.watch import Evaluator


class Recorder(Callback):
    """Records the events of a trainer, and stops it after `stop_after` steps."""

    def __init__(self, trainer=None, stop_after=None):
        self.losses, self.validation, self.calls, self.ledgers = {}, {}, [], []
        self.trainer, self.stop_after = trainer, stop_after

    def on_start(self, start):
        self.calls.append(("start", start.step, start.total_steps))

    def on_ledger(self, ledger):
        self.ledgers.append(ledger)

    def on_step(self, step):
        if step == self.stop_after:
            self.trainer.stop_requested.set()

    def on_log(self, step, losses, timing):
        self.losses[step] = losses

    def on_validation(self, step, losses, is_best):
        self.validation[step] = (losses, is_best)

    def on_sample(self, step):
        self.calls.append(("sample", step))

    def on_end(self, end):
        self.calls.append(("end", end.step))


def open_run(corpus, folder, **sections):
    training = {
        "log_every_steps": 1,
        "validate_every_steps": 3,
        "checkpoint_every_steps": 2,
        **sections.pop("training", {}),
    }
    data = {"num_buckets": 1, **sections.pop("data", {})}  # one shape, because tracing takes most of the time
    return SpeechDataset.open(tiny_run_config(corpus, folder, training=training, data=data, **sections))


def dvae_trainer(dataset):
    return XTTSTrainer(dataset.config, stage="dvae")


def trained_dvae(corpus, folder, stop_after=None, **sections):
    """Trains a DVAE to the end or to a stop; returns its dataset, trainer and recorder."""
    dataset = open_run(corpus, folder, **sections)
    trainer = dvae_trainer(dataset)
    recorder = Recorder(trainer, stop_after)
    trainer.train(dataset, [recorder])
    return dataset, trainer, recorder


def frozen_dvae(config):
    """A DVAE whose codebook has its encoder's outputs, so that codes differ."""
    keras.utils.set_random_seed(2)
    model = XTTS(config.model, parts=("dvae",))
    random = np.random.default_rng(0)
    model.mel_stats.assign(np.full(80, 3.0, "float32"))
    mel = random.standard_normal((1, 4 * config.model.num_codes, 80)).astype("float32") - 2
    model.dvae.quantizer.codebook.assign(model.dvae.mel_to_vectors(mel)[0])
    return model


@pytest.fixture(scope="module")
@untraced()
def dvae_run(tiny_corpus, tmp_path_factory):
    """An uninterrupted DVAE run of six steps: its dataset, trainer and recorder."""
    return trained_dvae(tiny_corpus, tmp_path_factory.mktemp("dvae_run"), dvae={"max_steps": 6, "crop_seconds": 0.4})


@pytest.fixture(scope="module")
@untraced()
def gpt_run(tiny_corpus, tmp_path_factory, dvae_run):
    """An uninterrupted GPT run of six steps on the codes of `dvae_run`."""
    dataset = open_run(
        tiny_corpus, tmp_path_factory.mktemp("gpt_run"), gpt={"max_steps": 6}, training={"sample_every_steps": 4}
    )
    trainer, recorder = XTTSTrainer(dataset.config, foundations={"dvae": dvae_run[1].model}), Recorder()
    trainer.train(dataset, [recorder])
    return dataset, trainer, recorder


def test_dvae_stage_learns_and_reports_its_codebook(dvae_run):
    _, trainer, recorder = dvae_run
    assert trainer.step == 6 and sorted(recorder.losses) == [1, 2, 3, 4, 5, 6]
    last = recorder.losses[6]
    assert {"reconstruction", "commitment", "codebook_use", "codebook_perplexity", "learning_rate"} <= last.keys()
    assert last["reconstruction"] < recorder.losses[1]["reconstruction"]
    assert 1 < last["codebook_perplexity"] <= 16


def test_gpt_stage_learns_on_the_codes_of_the_dvae(gpt_run):
    _, _, recorder = gpt_run
    assert recorder.losses[6]["codes"] < recorder.losses[1]["codes"]
    assert recorder.losses[1]["codes"] == pytest.approx(np.log(18), rel=0.25)  # all equally likely


def test_weights_that_encode_the_voice_move_slowly(gpt_run):
    before, after = (gpt_run[1].store.read(step, ("model",))[0]["model"] for step in (4, 6))
    moved = {name: np.abs(after[name] - before[name]).max() for name in after}
    slow = [value for name, value in moved.items() if "perceiver" in name or "conditioning_encoder" in name]
    assert max(slow) < 4 * 1.5e-4 < moved["gpt/audio_head/kernel"]  # two steps at a learning rate of 3e-3


def test_gpt_that_ignores_the_voice_is_reported(gpt_run):
    stage, random = gpt_run[1].stage, np.random.default_rng(0)
    batch = SimpleNamespace(conditioning_mel=random.normal(size=(3, 20, 80)).astype("float32"))
    (latents,) = stage.outputs_to_score(batch)
    assert not stage.score([(latents[:1],)]), "a single clip tells nothing"
    assert not list(stage.advise(gpt_run[2].validation[6][0]))
    kernel = stage.model.gpt.perceiver.layers[0].key_value.kernel
    kept = kernel.numpy()
    kernel.assign(0.0 * kept)
    assert list(stage.advise(stage.score([stage.outputs_to_score(batch)])))
    kernel.assign(kept)


def test_trainer_calls_its_callbacks_when_they_are_due(gpt_run, dvae_run):
    assert gpt_run[2].calls == [("start", 0, 6), ("sample", 4), ("sample", 6), ("end", 6)]
    assert sorted(gpt_run[2].validation) == [3, 6]
    assert dvae_run[2].calls == [("start", 0, 6), ("end", 6)]


def test_checkpoints_hold_state_and_the_best_is_marked(gpt_run):
    _, trainer, recorder = gpt_run
    assert trainer.store.steps()[-2:] == [4, 6]
    _, state = trainer.store.read(6, ("model", "optimizer"))
    assert state["finished"] and state["position"] == 6
    assert [entry["step"] for entry in state["history"]] == [3, 6]
    best = min(recorder.validation, key=lambda step: recorder.validation[step][0]["codes"])
    assert trainer.store.best_step() == best == trainer.state.best[1]
    assert not trainer.store.read(4, ())[1]["finished"]


def test_limited_validation_sees_short_and_long_clips(tiny_corpus, tmp_path, gpt_run, monkeypatch):
    loader = open_run(tiny_corpus, tmp_path, data={"batch_size": 1, "validation_share": 0.5}).validation_loader("gpt")
    seen = []

    def recording(position):
        seen.append(int(position))
        return loader(position)

    recording.order = loader.order
    monkeypatch.setattr(gpt_run[1].config.training, "max_validation_batches", 3)
    gpt_run[1].watch.evaluate(recording)
    last = loader.order.batches_per_epoch - 1
    assert last > 3 and seen[0] == 0 and seen[-1] == last and len(seen) == 3


def test_best_is_the_lowest_finite_validation_loss(gpt_run, monkeypatch):
    trainer = gpt_run[1]
    kept = trainer.state.best, list(trainer.state.history)
    trainer.state.best, found = None, []
    monkeypatch.setattr(gpt_run[2], "validation", {})  # it hears of these, too
    for loss in (np.nan, 3.0, np.inf, 2.0, np.nan, 2.5):
        monkeypatch.setattr(Evaluator, "__call__", lambda evaluator, loader: {"codes": loss})
        found.append(trainer.watch.validate([])[1])
    assert found == [False, True, False, True, False, False]
    trainer.state.best, trainer.state.history = kept


def test_damaged_newest_checkpoint_is_set_aside_and_the_previous_one_resumed(gpt_run, dvae_run, tmp_path):
    dataset, trainer, _ = gpt_run
    shutil.copytree(trainer.store.folder, tmp_path / "gpt")
    model_file = tmp_path / "gpt/step_00000006/model.safetensors"
    model_file.write_bytes(model_file.read_bytes()[:-7])
    config = with_training(dataset.config, checkpoint_dir=str(tmp_path))
    assert XTTSTrainer(config, foundations={"dvae": dvae_run[1].model}).step == 4
    assert (tmp_path / "gpt/damaged_step_00000006").is_dir()


def test_checkpoint_of_another_shape_is_refused_by_name(tiny_corpus, gpt_run, dvae_run):
    trained = gpt_run[0].config
    config = tiny_run_config(
        tiny_corpus,
        trained.training.checkpoint_dir,
        model={"layers": 1, "width": 8, "num_text_tokens": trained.model.num_text_tokens},
    )
    with pytest.raises(CheckpointError, match="step_00000006 .* shape "):
        XTTSTrainer(config, foundations={"dvae": dvae_run[1].model})


def test_resuming_from_a_folder_without_the_stage_is_an_error(gpt_run, dvae_run, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint of the gpt stage"):
        XTTSTrainer(gpt_run[0].config, resume_checkpoint=str(tmp_path), foundations={"dvae": dvae_run[1].model})
    shutil.copytree(gpt_run[1].store.folder, tmp_path / "gpt")
    with pytest.raises(ValueError, match="checkpoint_dir must be the run to resume.*without checkpoints of the gpt"):
        XTTSTrainer(gpt_run[0].config, resume_checkpoint=str(tmp_path), foundations={"dvae": dvae_run[1].model})


def test_accumulated_run_reads_as_many_batches_as_it_needs_and_ends_in_one_checkpoint(
    tiny_corpus, tmp_path, monkeypatch
):
    training = {"gradient_accumulation": 3, "checkpoint_every_steps": 100}
    dataset = open_run(tiny_corpus, tmp_path, dvae={"max_steps": 2}, training=training)
    trainer = dvae_trainer(dataset)
    written, write = [], CheckpointStore.write
    monkeypatch.setattr(
        CheckpointStore, "write", lambda store, step, *rest: (written.append(step), write(store, step, *rest))[1]
    )
    seen = []
    trainer.train(dataset, [SimpleNamespace(on_micro_batch=lambda *facts: seen.append(facts))])
    assert seen == [(what, done, 3) for _ in range(2) for what in ("read", "computed") for done in (1, 2, 3)]
    assert written == [2]
    assert trainer.store.read(2, ())[1]["position"] == 6
    assert trainer.store.best_step() == 2


def test_step_clock_leaves_out_the_first_steps_and_pauses(monkeypatch):
    class Pipeline:
        capacity, seconds = 4, Counter()

        def fill(self):
            return 3

    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock, pipeline = StepClock(warmup_steps=1), Pipeline()
    clock.start(pipeline)
    assert clock.report() == {}
    for seconds, waited in ((9.0, 5.0), (1.0, 0.25), (3.0, 0.75)):
        now[0] += seconds
        pipeline.seconds["stall"] += waited
        pipeline.seconds["reading"] += seconds / 2
        clock.tick()
        with clock.paused():
            now[0] += 100.0
    report = clock.report()
    assert (report["avg_ms"], report["std_ms"]) == (2000.0, 1000.0)
    assert report["steps_per_second"] == 0.5 and report["variation"] == 0.5
    assert (report["stall"], report["reading"]) == (1.0 / 4.0, 0.5)
    assert (report["buffer"], report["buffer_capacity"]) == (3.0, 4)
    now[0] += 1.0
    clock.tick()
    assert clock.report()["avg_ms"] == 1000.0
    assert clock.report(whole_run=True)["avg_ms"] == pytest.approx(5000 / 3)
    clock.start(pipeline)  # as after a return to an earlier checkpoint
    now[0] += 2.0
    pipeline.seconds["stall"] += 1.0
    clock.tick()
    assert clock.report(whole_run=True)["stall"] == 0.5


@pytest.mark.slow
def test_ten_clips_can_be_overfitted(tiny_corpus, tmp_path):
    dataset = open_run(
        tiny_corpus,
        tmp_path,
        model={"layers": 2, "width": 64, "heads": 4, "dropout": 0.0, "num_codes": 64},
        data={"augment": False, "batch_size": 10, "validation_share": 0.01},
        gpt={"max_steps": 140, "learning_rate": 5e-3, "weight_decay": 0.0},
        training={"log_every_steps": 20, "validate_every_steps": 140, "checkpoint_every_steps": 140},
    )
    dataset.train = dataset.train[:10]
    config = dataset.config
    trainer, recorder = XTTSTrainer(config, foundations={"dvae": frozen_dvae(config)}), Recorder()
    trainer.train(dataset, [recorder])
    assert recorder.losses[20]["codes"] > 1.0 and recorder.losses[140]["codes"] < 0.1
