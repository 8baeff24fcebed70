"""The speaker stage: training, validation on held-out voices, and exact resumption."""

import logging
import shutil
from collections import Counter
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from logical_devices import on_logical_devices, plan_of
from test_run import PLAN
from test_trainer import Recorder
from tiny import make_tiny_corpus, small_encoders, stage_of, tiny_run_config, train_step_of, untraced

from myxtts.audio.augment import GAIN_NEPERS, disturb
from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.data.batch import SpeakerBatch, noise_batch
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import SpeechDataset
from myxtts.data.doctor import id_hash
from myxtts.models.speaker_encoder import AngularMarginClassifier
from myxtts.runs.agenda import make_agenda
from myxtts.runs.run import Run
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.run_folder import TAKEN_FROM
from myxtts.training.stages.speaker import SpeakerPreparation, equal_error_rate, repeated, verification_scores

CHANNELS = {"speaker_channels": (8, 16, 16, 16)}
VOICES, FRAMES, BANDS = 12, 40, 64
pytestmark = pytest.mark.usefixtures("small_speaker_encoders")


def test_equal_error_rate_of_worked_examples():
    assert equal_error_rate(np.array([0.8, 0.9]), np.array([0.1, 0.2, 0.3])) == 0.0
    assert equal_error_rate(np.array([0.1, 0.2]), np.array([0.8, 0.9])) == 1.0
    assert equal_error_rate(np.ones(3), np.ones(5)) == 0.5
    # One of four is on the wrong side of the threshold, in both classes.
    assert equal_error_rate(np.array([0.3, 0.7, 0.8, 0.9]), np.array([0.6, 0.1, 0.2, 0.0])) == pytest.approx(0.25)
    random = np.random.default_rng(0)
    same, different = random.normal(1, 1, 4000), random.normal(-1, 1, 9000)
    assert equal_error_rate(same, different) == pytest.approx(0.1587, abs=0.01)  # the normal tail beyond one sigma
    assert equal_error_rate(same, random.normal(1, 1, 4000)) == pytest.approx(0.5, abs=0.02)


def test_scored_pairs_have_a_clip_of_a_held_out_voice():
    vectors = np.eye(5, dtype=np.float32)[[0, 0, 1, 2, 3]]
    same, different = verification_scores(vectors, np.array([7, 7, 7, 2, -1]), np.array([1, 1, 1, 0, 1], bool))
    assert sorted(same) == [0.0, 0.0, 1.0] and list(different) == [0.0] * 3
    same, different = verification_scores(vectors, np.array([7, 7, 7, 2, 2]), np.array([0, 0, 0, 1, 1], bool))
    assert (len(same), len(different)) == (1, 6)


def test_margin_is_added_to_the_angle_of_the_right_class():
    keras.utils.set_random_seed(0)
    layer = AngularMarginClassifier(3, 4)
    vectors = np.random.default_rng(1).standard_normal((6, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    classes, directions = np.array([0, 1, 2, 0, 1, 2]), layer.directions.numpy().astype(np.float64)
    vectors[0] = -directions[0] / np.linalg.norm(directions[0])  # beyond the angle where the cosine rises again
    cosine = vectors @ (directions / np.linalg.norm(directions, axis=1, keepdims=True)).T
    angle = np.arccos(np.clip(cosine, -1, 1))
    right = np.eye(3)[classes].astype(bool)
    moved = np.where(angle + 0.2 <= np.pi, np.cos(angle + 0.2), cosine - 0.2 * np.sin(0.2))
    expected = 30.0 * np.where(right, moved, cosine)
    logits = layer(tf.constant(vectors, tf.float32), tf.constant(classes), tf.ones(3)).numpy()
    np.testing.assert_allclose(logits, expected, atol=2e-2)
    np.testing.assert_allclose(logits[1:], expected[1:], atol=1e-3)
    without_one = layer(tf.constant(vectors, tf.float32), tf.constant(classes), tf.constant([1.0, 0, 1])).numpy()
    assert (without_one[:, 1] < -1e8).all()


def test_disturbance_is_a_function_of_seed_and_position_and_keeps_the_sound():
    wav = tf.constant(np.sin(np.arange(16000) * 0.2)[None].repeat(8, 0), tf.float32)
    first, again, other = (disturb(wav, 3, position).numpy() for position in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01 and np.abs(first[0] - first[1]).max() > 0.01
    for row in first:
        assert 10 ** (-5 / 20) < row @ wav[0].numpy() / np.linalg.norm(row) / np.linalg.norm(wav[0]) <= 1.0
        assert abs(np.log(np.linalg.norm(row) / np.linalg.norm(wav[0]))) < GAIN_NEPERS + 4 * 0.4 + 0.2


def test_short_clips_are_repeated_and_end_in_no_silence():
    wav = tf.constant([[1.0, 2, 3, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7]])
    assert repeated(wav, tf.constant([3, 7]), 7).numpy().tolist() == [[1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 4, 5, 6, 7]]


@untraced()
def test_preparation_disturbs_training_alone():
    waves = tf.nest.map_structure(tf.constant, noise_batch(2, 9 * CODE_STRIDE_SAMPLES, 3, 0, 9))
    waves = waves._replace(speaker=tf.constant([2, -1]))
    prepare = SpeakerPreparation("/CPU:0", augment=True, seed=1, num_speakers=5)
    trained, again, judged = prepare(waves, 4), prepare(waves, 4), prepare(waves)
    np.testing.assert_array_equal(trained.mel, again.mel)
    assert np.abs(trained.mel - judged.mel).max() > 0.1
    plain = SpeakerPreparation("/CPU:0", augment=False, seed=1, num_speakers=5)(waves, 4)
    np.testing.assert_array_equal(plain.mel, judged.mel)
    assert judged.speaker.numpy().tolist() == plain.speaker.numpy().tolist() == [2, -1]
    voices = {tuple(prepare(waves, position).speaker.numpy().tolist()) for position in range(12)}
    assert voices == {(2, -1), (7, -1), (12, -1)}, "played at another speed it is another voice"
    assert judged.mel.shape == (2, 1 + -(-9 * 1024 * 320 // 441) // 160, BANDS)


def clips_of(**counts):
    return [Utterance(f"{n}_{i}", "", "", n, "en", num_samples=20000) for n in counts for i in range(counts[n])]


def chosen(train, validation=(), known=()):
    """Returns the data set with the chosen clips, the stage, and its reason to train nothing."""
    speakers = tuple(sorted({clip.speaker for clip in train}))
    config = tiny_run_config(data={"num_speakers": len(speakers)}, model=CHANNELS)
    stage = stage_of("speaker", config)
    dataset = SpeechDataset(config, train, list(validation), None, speakers, None)
    return stage.choose_clips(dataset, known), stage, stage.nothing_to_learn(dataset)


def test_voices_are_held_out_for_validation_and_keep_their_numbers():
    train = clips_of(a=9, b=9, c=100, d=9, e=2)
    dataset, stage, reason = chosen(train, clips_of(a=1))
    assert reason is None and dataset.speakers == tuple("abcde")
    trained, judged = ({clip.speaker for clip in side} for side in (dataset.train, dataset.validation))
    (left_out,) = judged - {"a"} or {"a"}
    assert left_out not in trained and trained | {left_out} == set("abcd")
    assert stage.active.numpy().tolist() == [float(name in trained) for name in "abcde"] * 3
    assert all(count <= 60 for count in Counter(clip.speaker for clip in dataset.validation).values())
    assert replace(dataset, config=dataset.config).train is dataset.train
    assert {clip.speaker for clip in chosen(train[::-1])[0].train} == trained, "whatever the order of the clips"
    heard = {id_hash(clip.id) for clip in dataset.train}
    assert {clip.speaker for clip in chosen(train, known=heard)[0].train} == trained
    heard = {id_hash(clip.id) for clip in train if clip.speaker == left_out}
    assert left_out in {clip.speaker for clip in chosen(train, known=heard)[0].train}


def test_two_voices_are_both_trained_and_one_teaches_nothing():
    dataset, stage, reason = chosen(clips_of(a=5, b=5))
    assert reason is None and len(dataset.train) == 10 and stage.active.numpy().tolist() == [1] * 6
    assert "Found: 1 of 1." in chosen(clips_of(a=50))[2]
    assert "Found: 1 of 2." in chosen(clips_of(a=50, b=3))[2]


def mels(voices, seed):
    """Noisy clips of voices that differ only in which bands vary together."""
    patterns = np.random.default_rng(5).standard_normal((VOICES, 2, BANDS))
    random = np.random.default_rng(seed)
    courses = random.standard_normal((len(voices), FRAMES, 2))
    noise = 1.5 * random.standard_normal((len(voices), FRAMES, BANDS))
    mel = np.einsum("bfk,bkm->bfm", courses, patterns[voices]) + noise
    return SpeakerBatch(tf.zeros(len(voices), tf.int32), tf.constant(mel, tf.float32), tf.constant(voices, tf.int32))


def small_stage():
    settings = {"learning_rate": 5e-3, "weight_decay": 0.0}
    config = tiny_run_config(data={"num_speakers": VOICES}, model=CHANNELS, speaker=settings)
    keras.utils.set_random_seed(4)
    return stage_of("speaker", config), config.stage("speaker")


def test_error_falls_on_unseen_voices_and_is_chance_for_random_labels():
    stage, settings = small_stage()
    stage.active.assign(([1.0] * 8 + [0.0] * 4) * 3)
    objective = stage.updates()[0]
    step = train_step_of(objective, tf.distribute.OneDeviceStrategy("/CPU:0"), settings)
    judged = mels(np.repeat(np.arange(VOICES), 8), seed=99)
    before = stage.score([stage.outputs_to_score(judged)])["eer"]
    random, losses = np.random.default_rng(0), []
    for number in range(80):
        losses.append(float(step([mels(random.integers(0, 8, 24), number)], 5e-3, (0, number))["speaker"]))
    after = stage.score([stage.outputs_to_score(judged)])["eer"]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    assert before > 0.3 and after < 0.6 * before
    vectors, voices = stage.outputs_to_score(judged)
    assert stage.score([(vectors, random.permutation(voices))])["eer"] == pytest.approx(0.5, abs=0.06)
    assert float(objective.counts(judged)["speaker"]) == 8 * 8, "voices left out have no part in the loss"
    assert stage.score([(vectors[:8], voices[:8])]) == {}, "one voice alone has nothing to be distinguished from"


def moving(stage):
    return {name: v.numpy() for name, v in stage.model.part_weights("speaker").items() if "moving" in name}


@untraced()
def test_statistics_are_updated_once_per_finite_step():
    stage, settings = small_stage()
    objective, strategy = stage.updates()[0], tf.distribute.OneDeviceStrategy("/CPU:0")
    batch, start = mels(np.arange(6), seed=0), moving(stage)
    assert len(start) > 10
    step = train_step_of(objective, strategy, settings)
    assert not step([batch._replace(mel=batch.mel * np.inf)], 1e-3, (0, 0))["finite"]
    assert all((value == start[name]).all() for name, value in moving(stage).items())
    objective.loss_sums(batch)
    objective.loss_sums(batch, seed=tf.constant([0, 0]))
    assert all((value == start[name]).all() for name, value in moving(stage).items())
    assert step([batch], 0.0, (0, 1))["finite"]
    once = moving(stage)
    assert all((value != start[name]).any() for name, value in once.items())
    for name, variable in stage.model.part_weights("speaker").items():
        if name in start:
            variable.assign(start[name])
    train_step_of(objective, strategy, settings)([batch, batch], 0.0, (0, 1))
    for name, value in moving(stage).items():
        np.testing.assert_allclose(value, once[name], atol=1e-6, err_msg=name)


@on_logical_devices
@small_encoders()
def on_devices(mode):
    """Returns figures and weights after a step on one or two model devices."""
    from myxtts.training.trainer import XTTSTrainer

    config = tiny_run_config(data={"num_speakers": 4}, model=CHANNELS, training={"reset_training": True})
    trainer = XTTSTrainer(config, stage="speaker", plan=plan_of(mode))
    batch = trainer.replicas.transfer(mels(np.arange(8) % 4, seed=0))
    with untraced():
        taken = {name: float(value) for name, value in trainer.train_step([batch], 1e-3, (0, 0)).items()}
    weights = trainer.model.part_weights("speaker").items()
    local = trainer.replicas.strategy.experimental_local_results
    return taken, {name: [part.numpy() for part in local(v.value)] for name, v in weights}


def test_two_replicas_equal_one_with_the_statistics_of_the_whole_batch():
    (one_step, one), (two_step, two) = on_devices("dual"), on_devices("mirrored")
    assert two_step == pytest.approx(one_step, rel=1e-4)
    for name, (value,) in one.items():
        first, second = two[name]
        np.testing.assert_array_equal(first, second, err_msg=name)
        if "moving" in name:
            np.testing.assert_allclose(first, value, atol=1e-5, rtol=1e-4, err_msg=name)


def run_speaker(corpus, folder, stop_after=None, steps=4, **training):
    settings = dict(stage="speaker", log_every_steps=1, validate_every_steps=2, **training)
    options = dict(data={"num_buckets": 1}, model=CHANNELS, speaker={"max_steps": steps}, training=settings)
    config = tiny_run_config(corpus, folder, **options)
    watcher = Recorder()
    watcher.run = Run(config, PLAN, [watcher])
    watcher.on_step = lambda step: watcher.run.stop() if step == stop_after else None
    with untraced():
        return watcher, watcher.run.train()


def test_run_is_resumed_bit_for_bit_with_its_statistics_and_classifier(tiny_corpus, tmp_path):
    losses, digests = {}, {}
    for name, stops in (("whole", (None,)), ("stopped", (2, None))):
        losses[name] = {}
        for stop in stops:
            watcher, done = run_speaker(tiny_corpus, tmp_path / name, stop, steps=3)
            losses[name] |= watcher.losses
            assert done == (stop is None)
        store = CheckpointStore(tmp_path / name / "speaker")
        digests[name] = [store.digest(3, file) for file in ("model", "classifier", "optimizer")]
    assert losses["whole"] == losses["stopped"] and sorted(losses["whole"]) == [1, 2, 3]
    assert digests["whole"] == digests["stopped"]
    tensors, state = store.read(3, ("model", "classifier"))
    assert state["finished"] and tensors["classifier"]["directions"].shape == (6, 16)
    assert all(name.startswith("speaker_encoder/") for name in tensors["model"])
    with pytest.raises(CheckpointError, match="2 speakers.* 3.*--reset-training"):
        speakers = (tiny_corpus / "speakers.csv").read_text().replace("high_four,high", "high_four,third")
        shutil.copytree(tiny_corpus, tmp_path / "other")
        (tmp_path / "other/speakers.csv").write_text(speakers)
        run_speaker(tmp_path / "other", tmp_path / "whole", steps=6)


def trains_speaker(config):
    return next(work for work in make_agenda(config, SpeechDataset.open(config)) if work.stage == "speaker").trains


def test_one_voice_ends_the_stage_at_once_and_the_run_continues(tmp_path, caplog):
    corpus = make_tiny_corpus(tmp_path / "corpus")
    (corpus / "speakers.csv").unlink()
    with caplog.at_level(logging.WARNING, "myxtts"):
        watcher, done = run_speaker(corpus, tmp_path / "run")
    assert done and not watcher.losses
    assert "Stage speaker: nothing to train" in caplog.text and "two speakers" in caplog.text
    store = CheckpointStore(tmp_path / "run/speaker")
    assert store.steps() == [0] and store.read_state(0)["finished"]
    assert not trains_speaker(watcher.run.config)


def test_an_encoder_from_another_run_is_not_changed(tiny_corpus, tmp_path):
    watcher, _ = run_speaker(tiny_corpus, tmp_path / "source", steps=1)
    tensors, state = CheckpointStore(tmp_path / "source/speaker").read(1, ["model"])
    CheckpointStore(tmp_path / "run/speaker").write(0, tensors, {**state, TAKEN_FROM: str(tmp_path / "source")})
    assert not trains_speaker(tiny_run_config(tiny_corpus, tmp_path / "run", speaker={"max_steps": 9}))
    assert trains_speaker(tiny_run_config(tiny_corpus, tmp_path / "source", speaker={"max_steps": 9}))
