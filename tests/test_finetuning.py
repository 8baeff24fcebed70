"""Starting from another run's weights: vocabulary growth, LoRA, and what a new run copies."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from crash_points import contents
from tiny import random_model, tiny_model_config, tiny_run_config, untraced, with_training, write_run

from myxtts.api import open_run
from myxtts.config.checks import ConfigError
from myxtts.config.config import DataConfig, SamplingConfig, TrainingConfig, XTTSConfig
from myxtts.config.stages import LORA_TARGETS, GPTConfig
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_devices
from myxtts.models.xtts import XTTS
from myxtts.runs.origin import adopt, bring_in, settle_origin, source_parts, with_rows
from myxtts.runs.run import Run
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name, write_manifest, write_tensors
from myxtts.text.tokenizer import XTTSTokenizer
from myxtts.training.resuming import load_foundations
from myxtts.training.stages.base import arrays_of
from myxtts.training.stages.gpt import add_lora


@pytest.fixture
def source(tokenizer, tmp_path):
    """A run of a random tiny model, and the model."""
    model, config = random_model(tokenizer)
    return write_run(tmp_path / "source", model, tokenizer, config), model, config


def logits(model, text, codes):
    latents = tf.random.stateless_normal((1, model.config.num_latents, model.config.width), [1, 2])
    return [value.numpy() for value in model.gpt(latents, tf.constant([text]), tf.constant([codes]))]


def test_grown_vocabulary_keeps_every_old_logit(source):
    folder, model, config = source
    old = config.model.num_text_tokens
    grown = XTTS(dataclasses.replace(config.model, num_text_tokens=old + 5), parts=("gpt",))
    arrays = CheckpointStore(folder / "gpt").read(4, ["model"])[0]["model"]
    assign_by_name(grown.part_weights("gpt"), with_rows(arrays, old + 5, seed=0), "grown")
    before, after = logits(model, [3, 5, 6, 0], [16, 1, 2]), logits(grown, [3, 5, 6, 0], [16, 1, 2])
    np.testing.assert_array_equal(after[0][..., :old], before[0])
    np.testing.assert_array_equal(after[1], before[1])
    assert np.abs(logits(grown, [3, old + 1, 6, 0], [16, 1])[1] - logits(grown, [3, 5, 6, 0], [16, 1])[1]).max() > 0


def test_vocabulary_grows_only_where_the_gpt_is_tuned(source, tiny_corpus, tmp_path):
    (folder, _, config), sizes = source, {}
    XTTSTokenizer.train([("one two three", "en")]).save(few := tmp_path / "few.json")
    data = dataclasses.replace(config.data, train_data=str(tiny_corpus), vocabulary=str(few))
    for stage in ("gpt", "decoder"):
        training = TrainingConfig(stage=stage, init_from=str(folder), checkpoint_dir=str(tmp_path / stage))
        dataset = SpeechDataset.open(dataclasses.replace(config, data=data, training=training))
        sizes[stage] = dataset.tokenizer.num_tokens
    assert sizes["gpt"] > sizes["decoder"] == XTTSTokenizer.from_file(few).num_tokens


def test_spare_rows_are_kept_and_parts_that_are_not_tuned_count_as_trained(source, tiny_corpus, tmp_path):
    folder, _, config = source
    CheckpointStore(folder / "speaker").write(5, {"model": {}}, {"finished": False})
    training = TrainingConfig(stage="gpt", init_from=str(folder), checkpoint_dir=str(tmp_path / "new"))
    data = dataclasses.replace(config.data, train_data=str(tiny_corpus), vocabulary=str(folder / "vocab.json"))
    spare = dataclasses.replace(config.model, num_text_tokens=config.model.num_text_tokens + 7)
    config = SpeechDataset.open(dataclasses.replace(config, model=spare, data=data, training=training)).config
    bring_in(config, source_parts(config, ["dvae", "speaker"]), True)
    stores = {name: CheckpointStore(tmp_path / "new" / name) for name in ("dvae", "gpt", "speaker")}
    assert [store.newest_state()["finished"] for store in stores.values()] == [True, False, True]
    assert len(stores["gpt"].open(0)["gpt/text_embedding"]) == spare.num_text_tokens
    gpt, path = CheckpointStore(folder / "gpt"), folder / "gpt/step_00000004"
    write_tensors(path / "model.safetensors", dict([*gpt.open(4).items()][::-1]))  # as in an earlier conversion
    (path / "speech_rates.json").write_text("{}")
    write_manifest(path)
    bring_in(with_training(config, tune=("decoder",)), {"gpt": CheckpointStore(gpt.folder)}, False)
    assert stores["gpt"].digest(0) == gpt.digest(4) and stores["gpt"].file(0, "speech_rates.json")


def test_lora_starts_as_the_plain_model_and_merges_exactly():
    keras.utils.set_random_seed(0)
    model = XTTS(tiny_model_config(), parts=("gpt",))
    before = logits(model, [3, 5, 6, 0], [16, 1, 2])
    layers = add_lora(model.gpt, GPTConfig(lora_rank=2))
    for plain, adapted in zip(before, logits(model, [3, 5, 6, 0], [16, 1, 2])):
        np.testing.assert_allclose(adapted, plain, atol=1e-6)
    for layer in layers.values():
        layer.lora_kernel_b.assign(np.random.default_rng(0).normal(0, 0.1, layer.lora_kernel_b.shape))
    trained = logits(model, [3, 5, 6, 0], [16, 1, 2])
    assert np.abs(trained[1] - before[1]).max() > 1e-3
    plain = {name: v for name, v in model.part_weights("gpt").items() if "lora_kernel" not in name}
    merged = XTTS(tiny_model_config(), parts=("gpt",))
    kernels = {f"{name}/kernel": layer.kernel.numpy() for name, layer in layers.items()}
    assign_by_name(merged.part_weights("gpt"), arrays_of(plain) | kernels, "merged")
    np.testing.assert_allclose(logits(merged, [3, 5, 6, 0], [16, 1, 2])[1], trained[1], atol=1e-5)
    assert len(layers) == 4 * model.config.layers


def test_dropout_of_adapters_only_changes_their_output():
    keras.utils.set_random_seed(0)
    model = XTTS(tiny_model_config(layers=2, dropout=0.0), parts=("gpt",))
    settings = GPTConfig(lora_rank=2, lora_targets=("output_projection", "mlp_in"), lora_dropout=0.5)
    layers = add_lora(model.gpt, settings)
    assert {name.rsplit("/", 1)[1] for name in layers} == {"output_projection", "mlp_in"} and len(layers) == 4
    sites = [layer.adapter_dropout.site for layer in layers.values()]
    assert len(set(sites)) == 4 and min(sites) > model.gpt.embedding_dropout.site
    layer = layers["gpt/block_1/mlp_in"]
    x, seed = tf.random.stateless_normal((2, 3, layer.kernel.shape[0]), [1, 2]), tf.constant([5, 6])
    np.testing.assert_array_equal(layer(x, seed=seed), layer(x))  # they begin at zero
    layer.lora_kernel_b.assign(np.random.default_rng(0).normal(0, 0.1, layer.lora_kernel_b.shape))
    frozen, adapters = layer._kernel.numpy(), layer.lora_kernel_a.numpy() @ layer.lora_kernel_b.numpy()
    dropped = layer.adapter_dropout(x, seed=seed).numpy()
    assert 0.2 < (dropped == 0).mean() < 0.8
    expected = x.numpy() @ frozen + dropped @ adapters + layer.bias.numpy()
    np.testing.assert_allclose(layer(x, seed=seed), expected, atol=1e-5)
    np.testing.assert_array_equal(layer(x, seed=seed), layer(x, seed=seed))
    np.testing.assert_allclose(layer(x), x.numpy() @ layer.kernel.numpy() + layer.bias.numpy(), atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_fine_tuning_takes_over_model_and_tokenizer_and_leaves_the_source_alone(source, tiny_corpus, tmp_path, rank):
    folder, model, _ = source
    before = contents(folder)
    config = tiny_run_config(
        tiny_corpus,
        tmp_path / "run",
        data={"num_buckets": 1},
        gpt={"max_steps": 2, **({"lora_rank": rank, "lora_alpha": 4.0, "lora_dropout": 0.1} if rank else {})},
        training={"init_from": str(folder), "stage": "gpt", "max_validation_batches": 1},
    )
    config.training.precision = "mixed_bfloat16" if rank else None
    with untraced():
        assert Run(config, plan_devices(num_gpus=0)).train()
    assert contents(folder) == before
    store = CheckpointStore(tmp_path / "run" / "gpt")
    tensors, state = store.read(store.steps()[-1], ["model"])
    assert {value.dtype.name for value in tensors["model"].values()} == {"float32"}
    rows = {row["optimization"]: row for row in state["ledger"]}
    assert ("LoRA" in rows) == bool(rank)
    if rank:
        assert rows["LoRA"]["effective"] == "rank 2" and rows["LoRA"]["as_requested"]
        trained = f"are trained; rank 2 on {','.join(sorted(LORA_TARGETS))}, alpha 4, dropout 0.1"
        assert rows["LoRA"]["reason"].endswith(trained)
    starting = {name: value.numpy() for name, value in model.part_weights("gpt").items()}
    changed = {name for name, value in tensors["model"].items() if not np.array_equal(value, starting[name])}
    kernels = {
        name for name in starting if name.endswith("/kernel") and "/block_" in name and "conditioning" not in name
    }
    assert kernels <= changed
    of_text = {f"gpt/{name}" for name in ("text_embedding", "text_head/kernel", "text_head/bias")}
    assert (changed - kernels <= of_text) == bool(rank)
    longer = dataclasses.replace(config.training, gpt=dataclasses.replace(config.training.gpt, max_steps=3))
    (tmp_path / "run/dvae/step_00000000/model.safetensors").write_bytes(b"damaged")  # is copied again
    with untraced():
        assert Run(dataclasses.replace(config, training=longer), plan_devices(num_gpus=0)).train()
    assert store.steps()[-1] == 3
    if rank:  # resumed with the frozen kernels, not with the merged ones
        adapters = store.read(3, ["lora"])[0]["lora"]
        assert kernels < adapters.keys() and all(np.array_equal(adapters[name], starting[name]) for name in kernels)
        longer = dataclasses.replace(longer, gpt=dataclasses.replace(longer.gpt, lora_targets=("qkv",)))
        with pytest.raises(ConfigError, match="--lora-targets.*must be 2 on .*mlp_in.*, alpha .* Received: 2 on qkv"):
            settle_origin(dataclasses.replace(config, training=longer))
        longer = dataclasses.replace(longer, gpt=GPTConfig(lora_rank=0))
        with pytest.raises(ConfigError, match="--lora-rank.*must be 2 on .*Received: none"):
            settle_origin(dataclasses.replace(config, training=longer))


def test_default_limits_are_lowered_to_the_source_and_larger_requests_are_refused(source, tmp_path, caplog):
    training = TrainingConfig(stage="gpt", init_from=str(source[0]), checkpoint_dir=str(tmp_path / "new"))
    with caplog.at_level("WARNING", logger="myxtts"):
        data = adopt(XTTSConfig(training=training)).data
    assert (data.max_text_length, data.max_seconds) == (24, 2.0)
    assert "data.max_seconds is 2.0 instead of 11.6" in caplog.text
    assert adopt(XTTSConfig(training=training, sampling=SamplingConfig(temperature=0.3))).sampling.temperature == 0.3
    XTTSTokenizer.train([("seven eight", "en")]).save(tmp_path / "other.json")
    with pytest.raises(ConfigError, match="--vocabulary must be the vocabulary of --init-from"):
        adopt(XTTSConfig(data=DataConfig(vocabulary=str(tmp_path / "other.json")), training=training))
    for name, value in (("max_seconds", 11.5), ("max_text_length", 199)):
        with pytest.raises(ConfigError, match=f"data.{name}.* must be at most "):
            adopt(XTTSConfig(data=DataConfig(**{name: value}), training=training))


def test_source_is_not_a_folder_to_train_in(source, tiny_corpus):
    folder = source[0]
    with pytest.raises(ConfigError, match="another folder .* --init-from"):
        adopt(tiny_run_config(tiny_corpus, folder, training={"init_from": str(folder)}))
    with pytest.raises(ConfigError, match="weights without a run.*--init-from"):
        settle_origin(tiny_run_config(None, folder))


def test_gpt_stage_refuses_a_dvae_that_is_not_trained_to_the_end(source, tmp_path):
    _, model, config = source
    weights = {name: variable.numpy() for name, variable in model.part_weights("dvae").items()}
    CheckpointStore(tmp_path / "run/dvae").write(3, {"model": weights}, {"finished": False})
    with pytest.raises(CheckpointError, match="--stage dvae .*--max-steps 3"):
        load_foundations(with_training(config, checkpoint_dir=str(tmp_path / "run")), "gpt", "CPU:0")
    with pytest.raises(CheckpointError, match="trained to the end"):  # before the recordings are looked for
        open_run(train_data="none", checkpoint_dir=tmp_path / "run", stage="gpt")


def test_source_with_an_unfinished_dvae_is_refused(source, tmp_path):
    folder = source[0]
    CheckpointStore(folder / "dvae").write(5, {"model": {}}, {"finished": False})
    with pytest.raises(CheckpointError, match="--init-from needs a dvae .*--stage dvae"):
        adopt(tiny_run_config(None, tmp_path / "run", training={"init_from": str(folder)}))


def test_run_with_a_dvae_of_its_own_does_not_take_the_gpt_of_another(source, tmp_path):
    folder = source[0]
    config = tiny_run_config(None, tmp_path / "run", training={"init_from": str(folder)})
    shutil.copytree(folder / "dvae", tmp_path / "run/dvae")
    adopt(config)
    tensors, state = CheckpointStore(folder / "dvae").read(4, ["model"])
    tensors["model"]["mel_stats"] = tensors["model"]["mel_stats"] + 1
    CheckpointStore(tmp_path / "run/dvae").write(9, tensors, state)
    with pytest.raises(CheckpointError, match="has its own dvae"):
        adopt(config)


def test_init_from_is_refused_for_a_run_with_another_start(tmp_path):
    began = {}
    for name, origin in (("scratch", None), ("tuned", str(tmp_path / "source"))):
        state = {"position": 8, "config": {"training": {"init_from": origin}, "data": {"vocabulary": "changed"}}}
        CheckpointStore(tmp_path / name / "gpt").write(8, {}, state)
        began[name] = lambda asked, name=name: (
            settle_origin(tiny_run_config(None, tmp_path / name, training={"init_from": asked}))[0].training.init_from
        )
    (tmp_path / "tuned/vocab.json").write_text("{}")
    own = settle_origin(tiny_run_config(None, tmp_path / "tuned"))[0].data.vocabulary
    assert own == str(tmp_path / "tuned/vocab.json") and began["scratch"](None) is None
    assert began["tuned"](None) == began["tuned"](str(tmp_path / "source")) == str(tmp_path / "source")
    with pytest.raises(ConfigError, match="init_from.*must be none.*Received: .*source"):
        began["scratch"](str(tmp_path / "source"))
    with pytest.raises(ConfigError, match="init_from.*must be .*source.*Received: .*elsewhere"):
        began["tuned"](str(tmp_path / "elsewhere"))
    # Stopped before its settings were written.
    CheckpointStore(tmp_path / "stopped/gpt").write(0, {}, {"finished": False, "taken_from": str(tmp_path / "source")})
    with pytest.raises(ConfigError, match="init_from.*must be .*source, whose weights .*Received: none"):
        settle_origin(tiny_run_config(None, tmp_path / "stopped"))


def test_reset_of_a_later_stage_keeps_the_origin_of_the_run(source, tokenizer, tmp_path):
    (folder, model, _), run = source, tmp_path / "run"
    for part in ("speaker", "decoder"):
        CheckpointStore(folder / part).write(4, {"model": {}}, {"finished": True})
    began = tiny_run_config(gpt={"lora_rank": 2}, training={"init_from": str(folder)})
    store, state = CheckpointStore(write_run(run, model, tokenizer, began) / "gpt"), {"finished": True, "position": 9}
    store.write(9, {"model": {}}, {**state, "config": began.to_dict()})
    settled = lambda home, **asked: settle_origin(tiny_run_config(None, home, training=asked))[0].training
    reset = lambda stage, **more: settled(run, stage=stage, reset_training=True, **more)
    for given in (None, str(folder)):
        assert reset("decoder", init_from=given).gpt.lora_rank == 2
    (run / "config.json").write_text(json.dumps(with_training(began, tune=("gpt",)).to_dict()))
    assert reset("decoder").tune == reset("decoder", tune=("gpt",), init_from=str(folder)).tune == ("gpt", "decoder")
    assert settled(tmp_path / "new", stage="gpt", init_from=str(folder)).tune == ("gpt",)
    shutil.rmtree(folder / "decoder")
    kept = [(one.init_from, one.tune, one.gpt.lora_rank) for one in map(reset, ("speaker", "decoder"))]
    assert kept == [(str(folder), ("gpt",), 2)] * 2
    folder.rename(tmp_path / "elsewhere")
    assert (reset("decoder").tune, reset("gpt").init_from) == (("gpt",), None)


def test_tuned_stages_start_from_the_source_and_resume_without_the_flag(source, tiny_corpus, tmp_path):
    (folder, model, _), run, slow = source, tmp_path / "run", {"learning_rate": 1e-6}
    stages = {"dvae": {"max_steps": 1, **slow}, "data": {"num_buckets": 1}}
    whole = {"stage": "all", "leave_out": ("speaker", "decoder"), "max_validation_batches": 1}
    begun = {**whole, "init_from": str(folder), "tune": ("dvae", "gpt", "decoder")}
    config = tiny_run_config(tiny_corpus, run, gpt={"max_steps": 1, **slow}, training=begun, **stages)
    with untraced():
        assert Run(config, plan_devices(num_gpus=0)).train()
        config = tiny_run_config(tiny_corpus, run, gpt={"max_steps": 2, **slow}, training=whole, **stages)
        assert Run(config, plan_devices(num_gpus=0)).train()
    with pytest.raises(ConfigError, match="--model-size big contradicts .*run, of size nano"):
        open_run(train_data=tiny_corpus, checkpoint_dir=run, model_size="big")
    for stage, last in (("dvae", 1), ("gpt", 2)):
        store = CheckpointStore(run / stage)
        tensors = store.read(store.steps()[-1], ["model"])[0]["model"]
        assert store.steps()[-1] == last
        for name, weight in model.part_weights(stage).items():
            measured = ("mel_stats", "dvae/decoder_output/bias", "dvae/quantizer")  # its random weights never were
            if not name.startswith(measured):
                np.testing.assert_allclose(tensors[name], weight.numpy(), atol=1e-4, err_msg=name)
    adapters = dataclasses.replace(config.training.gpt, lora_rank=2)
    wrong = {"tune.*must be dvae,gpt,decoder": {"tune": ("gpt",)}, "lora_rank.*must be none": {"gpt": adapters}}
    for message, change in wrong.items():
        other = with_training(config, **change)
        with pytest.raises(ConfigError, match=message):
            settle_origin(other)
