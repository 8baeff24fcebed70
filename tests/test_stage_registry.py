"""A stage that nobody knew of joins by one call: it is trained, resumed, planned and offered by the command line."""

import shutil
from typing import NamedTuple

import keras
import pytest
import tensorflow as tf
from test_run import PLAN
from tiny import tiny_run_config, untraced

from myxtts.cli import plan as plan_command
from myxtts.cli.train import build_parser
from myxtts.config.config import StageConfig
from myxtts.config.loading import config_from_dict
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MEL_FRAMES_PER_CODE, NUM_MELS
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import STAGES, StageEntry, register_stage
from myxtts.memory import ESTIMATES
from myxtts.memory.estimates import FLOAT, MemoryEstimate
from myxtts.models.xtts import named_weights
from myxtts.runs.run import Run
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.training.stages.base import Objective, Stage, Update
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.stages.losses import masked_squared_error
from myxtts.training.stages.preparation import Preparation

STEPS = 6


class TimbreBatch(NamedTuple):
    index: object
    codes: object
    mel: object
    """`(B, C, num_mels)` float32: of each code its first frame."""
    lengths: object


class TimbreTable(keras.Model):
    """The mel frame that goes with each code."""

    def __init__(self, config):
        super().__init__()
        self.table = self.add_weight(shape=(config.num_codes, NUM_MELS), name="table", initializer="glorot_uniform")
        self.built = True

    def part_weights(self, part):
        return named_weights(self)


class TimbreObjective(Objective):
    loss_weights = {"frames": 1.0}

    def __init__(self, model):
        self.model = model

    def trainable(self):
        return named_weights(self.model)

    def counts(self, batch):
        return {"frames": tf.cast(tf.reduce_sum(batch.lengths) * NUM_MELS, tf.float32)}

    def loss_sums(self, batch, seed=None):
        frames = tf.gather(tf.convert_to_tensor(self.model.table), batch.codes)
        return {"frames": masked_squared_error(frames, batch.mel, self._mask(batch))}, {}

    def _mask(self, batch):
        return tf.sequence_mask(batch.lengths, tf.shape(batch.codes)[1])


class TimbrePreparation(Preparation):
    def make_batch(self, batch, position):
        wav, wav_lengths, change = self.change_voice(batch, position)
        mel = self.log_mel(self.mel, wav, change)
        codes = self.model.dvae.encode(mel)
        lengths = tf.minimum(-(-wav_lengths // CODE_STRIDE_SAMPLES), tf.shape(codes)[1])
        return TimbreBatch(batch.index, codes, mel[:, ::MEL_FRAMES_PER_CODE], lengths)


class TimbreStage(Stage):
    name = part = "timbre"
    main_loss = "frames"

    def build(self, model, switches, measured, starting):
        self.model = model or TimbreTable(self.config.model)

    def updates(self, settings):
        return [Update("", TimbreObjective(self.model), settings)]

    def make_preparation(self, device, shares_device):
        dvae_model, training = self.foundations["dvae"], self.config.training
        return TimbrePreparation(dvae_model, device, self.config.data.augment, training.seed)


def estimate_timbre(model, shapes, *arguments):
    weights = FLOAT * model.num_codes * NUM_MELS
    return MemoryEstimate(weights, 2 * weights, 0, 0, 2 * weights, activations=FLOAT * shapes.batch, working=0)


class Recorder:
    """Keeps losses and stage names, and stops a run after `stop_after` steps."""

    def __init__(self, stop_after=None):
        self.losses, self.stages, self.run, self.stop_after = {}, [], None, stop_after

    def on_stage(self, stage, order):
        self.stages.append(stage)

    def on_log(self, step, losses, timing):
        self.losses[step] = losses

    def on_step(self, step):
        if step == self.stop_after:
            self.run.stop()


@pytest.fixture(scope="module", autouse=True)
def timbre():
    rates = dict.fromkeys(MODEL_SIZES, 1e-2)
    register_stage(StageEntry("timbre", ("dvae",), rates, defaults={"warmup_steps": 3}))
    STAGE_CLASSES["timbre"], ESTIMATES["timbre"] = TimbreStage, estimate_timbre
    yield
    for registry in (STAGES, STAGE_CLASSES, ESTIMATES):
        del registry["timbre"]


def train(corpus, folder, stage, steps, stop_after=None):
    """Trains one stage in a folder; returns what was told meanwhile and whether the stage is done."""
    training = dict(stage=stage, log_every_steps=1, validate_every_steps=3, timbre=StageConfig(max_steps=steps))
    config = tiny_run_config(corpus, folder, data={"num_buckets": 1}, dvae={"max_steps": 1}, training=training)
    recorder = Recorder(stop_after)
    recorder.run = Run(config, PLAN, [recorder])
    with untraced():
        return recorder, recorder.run.train()


@pytest.fixture(scope="module")
def dvae_run(tiny_corpus, tmp_path_factory):
    """The folder of a run whose DVAE is trained."""
    folder = tmp_path_factory.mktemp("dvae_run")
    assert train(tiny_corpus, folder, "dvae", STEPS)[1]
    return folder


def test_registered_stage_trains_and_is_resumed_bit_for_bit(tiny_corpus, dvae_run, tmp_path):
    digests, losses = {}, {}
    for name, stops in (("whole", (None,)), ("stopped", (2, None))):
        shutil.copytree(dvae_run, tmp_path / name)
        losses[name] = {}
        for stop in stops:
            recorder, done = train(tiny_corpus, tmp_path / name, "timbre", STEPS, stop)
            losses[name] |= recorder.losses
            assert done == (stop is None) and recorder.stages == ["timbre"]
        store = CheckpointStore(tmp_path / name / "timbre")
        assert store.steps()[-1] == STEPS and store.read_state(STEPS)["finished"]
        lineage = {"dvae": CheckpointStore(dvae_run / "dvae").digest(1)}
        assert store.read_state(STEPS)["lineage"] == lineage
        digests[name] = [store.digest(STEPS, file) for file in ("model", "optimizer")]
    assert losses["stopped"] == losses["whole"] and digests["stopped"] == digests["whole"]
    assert sorted(losses["whole"]) == list(range(1, STEPS + 1))
    validated = recorder.run.history["timbre"]
    assert [entry["step"] for entry in validated] == [3, STEPS]
    assert validated[1]["frames"] < validated[0]["frames"]


def test_registered_stage_is_offered_and_planned_by_the_command_line(capsys):
    assert "{dvae,gpt,speaker,decoder,timbre,all}" in " ".join(build_parser().format_help().split())
    assert build_parser().parse_args(["--stage", "timbre"]).stage == "timbre"
    assert plan_command.main(["--stage", "timbre", "--model-size", "nano", "--gpu-memory", "8"]) == 0
    printed = capsys.readouterr().out
    assert "TIMBRE stage, size nano" in printed and "as asked" in printed


def test_registered_stage_has_its_settings_and_defaults():
    config = config_from_dict({"model": {"size": "nano"}, "training": {"timbre": {"max_steps": 9}}})
    settings = config.stage("timbre")
    assert (settings.max_steps, settings.warmup_steps, settings.learning_rate) == (9, 3, 1e-2)
    assert config.training.timbre.max_steps == 9 and config.to_dict()["training"]["timbre"]["max_steps"] == 9
