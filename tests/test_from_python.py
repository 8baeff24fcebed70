"""Training from Python: trainers created from a configuration, or with a model, on the requested devices."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny import tiny_run_config

from myxtts.config.checks import ConfigError, UserError
from myxtts.config.config import DataConfig, ModelConfig, TrainingConfig, XTTSConfig
from myxtts.devices.device_plan import DeviceError
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.training.loop.device_pipeline import Replicas
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
from myxtts.training.trainer import XTTSTrainer

pytestmark = pytest.mark.usefixtures("eagerly")


def bare_config(corpus, folder, **training):
    """Returns a configuration as a user writes it, without values that depend on the recordings."""
    training = {"max_validation_batches": 1, **training}
    sections = dict(dvae={"max_steps": 2, "crop_seconds": 0.4}, gpt={"max_steps": 1}, data={"num_buckets": 1})
    return tiny_run_config(corpus, folder, model={"num_text_tokens": 0}, training=training, **sections)


@pytest.fixture(scope="module")
def trained(tiny_corpus, tmp_path_factory):
    """A trainer created from a configuration only, after training."""
    trainer = XTTSTrainer(bare_config(tiny_corpus, tmp_path_factory.mktemp("bare")))
    assert trainer.train().keys() >= {"text", "codes"}
    return trainer


def test_trainer_of_a_configuration_creates_data_set_tokenizer_scale_and_dvae(trained):
    home = trained.store.folder.parent
    assert (CheckpointStore(home / "dvae").steps(), CheckpointStore(home / "gpt").steps()) == ([2], [1])
    dvae = trained.stage.foundations["dvae"]
    held = CheckpointStore(home / "dvae").read(2, ("model",))[0]["model"]
    for name, variable in dvae.part_weights("dvae").items():
        np.testing.assert_array_equal(variable.numpy(), held[name], err_msg=name)
    assert not np.all(held["mel_stats"] == 1)
    assert trained.store.read_state(1)["lineage"] == {"dvae": CheckpointStore(home / "dvae").digest(2)}
    assert Synthesizer.load(home).tokenizer.num_tokens == trained.config.model.num_text_tokens


def test_trainer_of_a_configuration_resumes_its_run_and_trains_nothing_twice(trained, tiny_corpus):
    home = trained.store.folder.parent
    config = bare_config(tiny_corpus, home)
    config.training.gpt.max_steps = 2
    (settings := home / "config.json").write_text(settings.read_text().replace('_from": null', '_from": "there"'))
    again = XTTSTrainer(config)
    assert again.step == 1
    again.train()
    assert (again.step, CheckpointStore(home / "dvae").steps()) == (2, [2]) and "there" in settings.read_text()


def test_trainer_trains_the_model_that_it_is_given(tiny_corpus, tmp_path):
    config = bare_config(tiny_corpus, tmp_path / "run", ema=0.9)
    model = XTTS(config.model)
    before = [variable.numpy() for variable in model.gpt.weights + model.dvae.weights]
    trainer = XTTSTrainer(config, model=model)
    trainer.train()
    assert trainer.model is model
    after = [variable.numpy() for variable in model.gpt.weights + model.dvae.weights]
    assert sum(not np.array_equal(*pair) for pair in zip(before, after)) > len(before) // 2
    for part in ("dvae", "gpt"):
        store = CheckpointStore(tmp_path / "run" / part)
        held = store.read(store.steps()[-1], ("model",))[0]["model"]
        assert all(np.array_equal(held[name], v.numpy()) for name, v in model.part_weights(part).items())

    # The model has its tokenizer now: it can be saved, loaded, and trained further with its own DVAE.
    model.save_to_preset(tmp_path / "preset")
    read = XTTS.from_preset(tmp_path / "preset")
    assert read.config == model.config and read.parts == model.parts
    assert all(np.array_equal(*map(np.array, pair)) for pair in zip(read.get_weights(), model.get_weights()))
    codebook = read.dvae.quantizer.codebook.numpy()
    read.preset = read.preset[0].with_g2p(("am",)), read.preset[1]
    XTTSTrainer(bare_config(tiny_corpus, tmp_path / "tuned"), model=read).train()
    np.testing.assert_array_equal(read.dvae.quantizer.codebook.numpy(), codebook)
    assert CheckpointStore(tmp_path / "tuned/dvae").steps() == [0] and read.preset[0].g2p == ("am",)
    assert (tmp_path / "tuned/vocab.json").read_text() == (tmp_path / "preset/vocab.json").read_text()
    for place, words in ((tmp_path / "preset", "save_to_preset"), ("/proc/x", "/proc/x cannot be written")):
        with pytest.raises(UserError, match=words):
            read.save_to_preset(place)
    read.mel_stats.assign(np.full_like(read.mel_stats, np.nan))
    with pytest.raises(UserError, match="NaN or infinity"):
        read.save_to_preset(tmp_path / "bad")
    model.gpt.blocks[0].mlp_in.enable_lora(2)
    with pytest.raises(UserError, match="LoRA"):
        model.save_to_preset(tmp_path / "adapted")


def test_dvae_trained_by_hand_measures_its_mel_scale(tiny_corpus, tmp_path):
    trainer = XTTSTrainer(bare_config(tiny_corpus, tmp_path, stage="dvae"))
    trainer.train()
    scale = CheckpointStore(tmp_path / "dvae").read(2, ("model",))[0]["model"]["mel_stats"]
    assert trainer.stage.name == "dvae" and scale.max() > 1.5
    np.testing.assert_array_equal(trainer.stage.front.mel_stats.numpy(), scale)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(train_data=None), ["data.train_data must be", "myxtts.train()"]),
        (dict(init_from="there"), ["training.init_from", "myxtts.train(config)", "XTTS.from_preset"]),
        (dict(reset_training=True), ["training.reset_training", "myxtts.train(config)"]),
    ],
)
def test_limits_of_a_single_trainer_are_reported(tiny_corpus, tmp_path, change, words):
    CheckpointStore(tmp_path / "dvae").write(1, {}, {"finished": True})
    corpus = change.pop("train_data", tiny_corpus)
    with pytest.raises(ConfigError) as refusal:
        XTTSTrainer(bare_config(corpus, tmp_path, **change))
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_model_with_too_few_rows_for_the_vocabulary_is_refused(tiny_corpus, tmp_path):
    config = bare_config(tiny_corpus, tmp_path)
    model = XTTS(ModelConfig(**{**config.model.__dict__, "num_text_tokens": 5}), parts=("gpt",))
    with pytest.raises(ConfigError, match="vocabulary must be at most 5 tokens.* ModelConfig\\(num_text_tokens="):
        XTTSTrainer(config, model=model)


def test_model_of_another_precision_is_refused(tiny_corpus, tmp_path):
    config = bare_config(tiny_corpus, tmp_path, precision="mixed_bfloat16")
    with pytest.raises(ConfigError, match="training.precision.*float32.*mixed_bfloat16"):
        XTTSTrainer(config, model=XTTS(config.model))


@pytest.mark.parametrize(
    "devices, words",
    [
        (("/GPU:1",), "must be on /GPU:1. Received: /CPU:0.*tf.device"),
        (("/GPU:1", "/GPU:2"), "Received: 2 devices.*init_from"),
    ],
)
def test_model_on_other_devices_is_refused(tmp_path, devices, words):
    model = XTTS(bare_config(None, tmp_path).model, parts=("dvae",))
    with pytest.raises(ConfigError, match=words):
        Replicas.adopt(SimpleNamespace(devices=devices, count=len(devices), strategy=None), model)


@pytest.mark.parametrize("devices", [{"data_gpu": 0, "model_gpu": 1}, {"data_gpu": 0}, {"model_gpu": 1}])
def test_missing_devices_are_an_error_and_never_one_device_silently(tiny_corpus, tmp_path, devices):
    data = DataConfig(train_data=str(tiny_corpus), **devices)
    config = XTTSConfig(data=data, training=TrainingConfig(checkpoint_dir=str(tmp_path)))
    with pytest.raises(DeviceError, match="Insufficient GPUs" if len(devices) == 2 else "needs both") as refusal:
        XTTSTrainer(config)
    assert "data.data_gpu" in str(refusal.value) and "data.model_gpu" in str(refusal.value)


def test_missing_model_device_and_isolation_without_gpus_are_refused(tiny_corpus, tmp_path):
    with pytest.raises(UserError, match="^model_device must be one of cpu:0.*Received: /GPU:1.$"):
        XTTSTrainer(bare_config(tiny_corpus, tmp_path), model_device="/GPU:1")
    with pytest.raises(DeviceError, match="Insufficient GPUs"):
        MemoryIsolatedDualGPUTrainer(bare_config(tiny_corpus, tmp_path), 0, 1)


def test_model_has_its_size_and_a_text_table_before_a_tokenizer_is_known():
    model = XTTS(ModelConfig(size="nano"))
    assert (model.config.width, len(model.gpt.blocks), model.config.num_text_tokens) == (128, 4, 512)


def test_keras_methods_work_or_name_their_replacement(tmp_path):
    model = XTTS(bare_config(None, tmp_path).model)
    same = XTTS.from_config(model.get_config())
    assert same.config == model.config and same.parts == model.parts
    assert [v.shape for v in same.weights] == [v.shape for v in model.weights]
    for call, instead in [
        (lambda: model.fit(np.zeros(3)), "XTTSTrainer\\(config, model=model\\).train"),
        (lambda: model.compile("adam"), "myxtts.train"),
        (lambda: model.save(tmp_path / "model.keras"), "save_to_preset"),
    ]:
        with pytest.raises(NotImplementedError, match=instead):
            call()
    with pytest.raises(UserError, match="needs a tokenizer"):
        model.save_to_preset(tmp_path / "preset")
