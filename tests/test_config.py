"""Settings: shipped files, presets, includes, and error messages for wrong values."""

import ast
import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from test_architecture import setting_names

from myxtts.cli import train
from myxtts.config import config as config_module
from myxtts.config.checks import ConfigError
from myxtts.config.config import DataConfig, ModelConfig, SamplingConfig, TrainingConfig, XTTSConfig, config_from_dict
from myxtts.config.flags import DeviceOptions
from myxtts.config.model import MODEL_SIZES
from myxtts.config.settings import REMOVED
from myxtts.config.stages import STAGES, StageConfig, StageEntry
from myxtts.config.training import PRESETS, SWITCHES, requested_switches
from myxtts.memory.estimates import MemoryEstimate
from myxtts.memory.report import ESTIMATES

CONFIGS = sorted((Path(__file__).resolve().parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_file_builds(path):
    values = config_module.read_yaml(path)
    config = config_from_dict(values)
    # Nothing in the file is lost on the way.
    for section, content in values.items():
        for name, value in content.items():
            held = getattr(getattr(config, section), name)
            held = {key: getattr(held, key) for key in value} if isinstance(value, dict) else held
            assert json.loads(json.dumps(held)) == value, f"{section}.{name}"
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_file_holds_only_what_differs_from_its_base(path):
    own = yaml.safe_load(path.read_text(encoding="utf-8"))
    included = own.pop("include", None)
    base = config_from_dict(config_module.read_yaml(path.parent / included)) if included else XTTSConfig()
    if size := own.get("model", {}).pop("size", None):  # which other settings of the model follow
        assert base.model.size != size
        base = config_from_dict({"model": {"size": size}})
    for section, content in own.items():
        for name, value in content.items():
            held = getattr(getattr(base, section), name)
            if isinstance(value, dict):
                assert all(getattr(held, key) != item for key, item in value.items()), f"{section}.{name}"
            else:
                assert held != value, f"{section}.{name} repeats its base"


def test_big_is_the_released_v2_shape():
    model = ModelConfig("big")
    assert (model.layers, model.width, model.heads) == (30, 1024, 16)
    assert (model.max_audio_tokens, model.max_text_tokens, model.num_audio_tokens) == (605, 402, 1026)
    assert (model.start_audio_token, model.stop_audio_token, model.max_codes) == (1024, 1025, 602)
    assert (model.conditioning_blocks, model.conditioning_heads, model.num_latents) == (6, 16, 32)
    assert (model.perceiver_depth, model.perceiver_heads, model.perceiver_head_width) == (2, 8, 64)
    assert (model.dvae_hidden, model.codebook_width, model.dvae_residual_blocks, model.num_codes) == (512, 512, 3, 1024)
    assert (model.decoder_channels, model.speaker_channels, model.speaker_width) == (512, (32, 64, 128, 256), 512)


def test_size_given_in_python_has_that_shape():
    nano, tiny = ModelConfig(size="nano"), ModelConfig()
    assert nano == config_from_dict({"model": {"size": "nano"}}).model == XTTSConfig(model={"size": "nano"}).model
    assert (nano.layers, nano.width, nano.heads, nano.num_latents, nano.num_codes) == (4, 128, 4, 8, 512)
    assert (tiny.size, tiny.layers, tiny.width) == ("tiny", 6, 256)
    changed = ModelConfig(size="nano", layers=5)
    assert changed.layers == 5 and changed.width == 128


@pytest.mark.parametrize(
    "settings, name, words",
    [
        (DataConfig(), "batchsize", "data has no setting batchsize. Did you mean batch_size?"),
        (TrainingConfig().gpt, "max_step", "training.gpt has no setting max_step. Did you mean max_steps?"),
        (XTTSConfig(), "trainig", "The configuration has no setting trainig. Did you mean training?"),
        (SamplingConfig(), "zzz", "sampling has no setting zzz. Known: temperature, top_k"),
    ],
)
def test_unknown_attribute_names_the_nearest_setting(settings, name, words):
    with pytest.raises(ConfigError) as error:
        setattr(settings, name, 3)
    assert words in str(error.value)


def test_unknown_keyword_names_the_nearest_setting():
    for kind, name, words in ((ModelConfig, "widht", "mean width?"), (TrainingConfig, "max_steps", "gpt.max_steps")):
        with pytest.raises(TypeError) as error:
            kind(**{name: 3})
        assert words in str(error.value)


def test_shape_that_cannot_be_built_is_an_error_that_names_the_setting():
    channels = ("decoder_channels", 40), ("speaker_channels", (8,) * 3), ("speaker_channels", (4,) * 4)
    for name, value in (("width", 100), *channels):
        with pytest.raises(ConfigError, match=f"model.{name} must be .* Received: "):
            ModelConfig("nano", **{name: value})


def test_removed_setting_is_ignored_at_its_old_default_and_refused_otherwise(monkeypatch):
    monkeypatch.setitem(REMOVED, "training.gpt.warmth", ([1, 2], "Wear a coat."))
    stored = XTTSConfig().to_dict()
    stored["training"]["gpt"]["warmth"] = [1, 2]
    assert config_from_dict(stored) == XTTSConfig()
    stored["training"]["gpt"]["warmth"] = [1, 3]
    with pytest.raises(ConfigError, match="training.gpt.warmth was removed. Wear a coat."):
        config_from_dict(stored)


def test_run_settings_are_exactly_those_that_leave_the_losses_as_they_are():
    data = "train_data sample_languages prepared val_data val_prepared format audio_roots vocabulary num_workers"
    data += " cache_mb data_gpu model_gpu pipeline_buffer_size model_start_delay"
    training = "stage leave_out strict automatic_batch_size memory_budget_mb overtraining_patience checkpoint_dir"
    training += " tensorboard_log_dir reset_training init_from log_every_steps checkpoint_every_steps keep_checkpoints"
    training += " accept_licence sample_every_steps num_samples closing_texts evaluate_every_steps best_by"
    training += " evaluation_sentences evaluation_recognizer evaluation_patience"
    training += " workers worker_index worker_timeout_seconds"
    expected = {f"data.{name}" for name in data.split()} | {f"training.{name}" for name in training.split()}
    known, recipe = XTTSConfig().to_dict().items(), XTTSConfig().recipe()
    every = {f"{section}.{name}" for section, own in known for name in own if name not in STAGES}
    assert every - recipe.keys() == expected


def test_a_given_switch_wins_over_the_preset_and_the_preset_over_the_default_and_auto_is_balanced():
    auto, balanced = (requested_switches(TrainingConfig(optimizations=name)) for name in ("auto", "balanced"))
    assert {name: value for name, (value, _) in auto.items()} == {name: value for name, (value, _) in balanced.items()}
    assert auto["precision"] == ("auto", "preset auto") and auto["ema"] == (0.0, "default")
    given = requested_switches(TrainingConfig(optimizations="auto", precision="float32", xla=False))
    assert given["precision"] == ("float32", "given") and given["attention"] == ("auto", "preset auto")
    assert given["xla"] == (False, "given") and set(given) == set(SWITCHES)
    assert all(preset.keys() <= SWITCHES.keys() for preset in PRESETS.values())


@pytest.fixture
def duration_stage():
    """Adds a user-defined stage for one test."""
    rates = dict.fromkeys(MODEL_SIZES, 1e-3) | {"nano": 3e-3}
    defaults = {"weight_decay": 0.5, "max_steps": 7}
    STAGES["duration"] = StageEntry("duration", ("dvae",), rates, defaults=defaults, can_crop=True)
    yield
    del STAGES["duration"]


def test_registered_stage_is_a_section_of_its_own(duration_stage):
    assert list(STAGES) == ["dvae", "gpt", "speaker", "decoder", "duration"]
    assert XTTSConfig().training.duration == StageConfig(weight_decay=0.5, max_steps=7)
    from_yaml = config_from_dict({"training": {"stage": "duration", "duration": {"max_steps": 9, "crop_seconds": 2}}})
    from_keywords = TrainingConfig(stage="duration", duration={"max_steps": 9, "crop_seconds": 2.0})
    by_attribute = TrainingConfig(stage="duration")
    by_attribute.duration = {"max_steps": 9, "crop_seconds": 2.0}
    assert from_yaml.training == from_keywords == by_attribute
    assert from_yaml.training.duration == StageConfig(weight_decay=0.5, max_steps=9, crop_seconds=2.0)
    assert config_from_dict(json.loads(json.dumps(from_yaml.to_dict()))) == from_yaml
    assert XTTSConfig(ModelConfig("nano")).stage("duration").learning_rate == 3e-3
    with pytest.raises(ConfigError, match="training.duration.max_step .* max_steps?"):
        config_from_dict({"training": {"duration": {"max_step": 9}}})


def test_registered_stage_is_offered_and_planned_by_the_command_line(duration_stage, monkeypatch, capsys):
    monkeypatch.setitem(ESTIMATES, "duration", lambda *_: MemoryEstimate(8, 16, 0, 0, 16, activations=4, working=0))
    assert "{dvae,gpt,speaker,decoder,duration,all}" in " ".join(train.build_parser().format_help().split())
    assert train.build_parser().parse_args(["--stage", "duration"]).stage == "duration"
    assert train.plan(["--stage", "duration", "--model-size", "nano", "--gpu-memory", "8"]) == 0
    printed = capsys.readouterr().out
    assert "DURATION stage, size nano" in printed and "as asked" in printed


def test_every_stage_builds_on_stages_before_it_and_has_a_learning_rate_for_every_model_size():
    for place, (name, entry) in enumerate(STAGES.items()):
        assert {*entry.builds_on} <= {*[*STAGES][:place]} and entry.name == name
        assert {*entry.follows} <= {*entry.builds_on} and entry.learning_rates.keys() == MODEL_SIZES.keys()


def test_contract_defaults():
    data, training = DataConfig(), TrainingConfig()
    assert (data.data_gpu, data.model_gpu, data.pipeline_buffer_size, data.model_start_delay) == (None, None, 50, 2.0)
    assert (data.batch_size, data.num_workers, data.max_text_length) == (16, 8, 200)
    assert (training.epochs, training.gradient_accumulation, training.checkpoint_dir) == (500, 1, "./checkpoints")
    assert XTTSConfig().model.size == "tiny" and DataConfig(data_gpu=0).model_gpu is None
    assert not data.static_shapes and (DeviceOptions.data_gpu_memory, DeviceOptions.model_gpu_memory) == (8192, 16384)


def test_every_setting_has_a_docstring():
    sources, documented = (Path(config_module.__file__).parent.glob("*.py"), set())
    for node in (node for path in sources for node in ast.parse(path.read_text("utf-8")).body):
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Config", "Options")):
            for statement, after in zip(node.body, [*node.body[1:], None]):
                if isinstance(statement, ast.AnnAssign):
                    assert isinstance(after, ast.Expr) and isinstance(after.value.value, str), statement.target.id
                    documented.add(statement.target.id)
    assert {*setting_names(), *(option.name for option in fields(DeviceOptions))} <= documented


@pytest.mark.parametrize("row", (Path(__file__).parent / "data/bad_values.txt").read_text("utf-8").splitlines())
def test_bad_value_is_named_with_its_rule(row):
    values, *words = row.split(" | ")
    with pytest.raises(ConfigError) as error:
        config_from_dict(json.loads(values))
    assert all(word in str(error.value) for word in words), str(error.value)
    assert str(error.value).isprintable()


def test_number_without_a_point_is_a_number():
    # PyYAML reads 1e-3 as text, and a whole number is a fine float.
    config = config_from_dict({"training": {"gpt": {"learning_rate": "1e-3"}}, "data": {"max_seconds": 11}})
    assert config.stage("gpt").learning_rate == 1e-3 and config.data.max_seconds == 11.0


def test_empty_sections_are_the_defaults(tmp_path):
    (tmp_path / "empty.yaml").write_text("model:\ntraining:\n  gpt:\n")
    assert config_from_dict(config_module.read_yaml(tmp_path / "empty.yaml")) == XTTSConfig()


@pytest.mark.parametrize(
    "text, words",
    [("data:\n", ""), ("data: {}\ndata: {}", "line 3"), ("training: {learning_rate: 1}", "gpt.learning_rate")],
)
def test_a_section_cannot_be_lost(tmp_path, text, words):
    (tmp_path / "own.yaml").write_text(f"include: finetune_xtts_v2_lora.yaml\n{text}\n")
    if words:
        with pytest.raises(ConfigError, match=words):
            XTTSConfig.from_yaml(tmp_path / "own.yaml")
    else:
        assert XTTSConfig.from_yaml(tmp_path / "own.yaml") == XTTSConfig.from_yaml("finetune_xtts_v2_lora.yaml")


def test_included_files_are_overridden(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/base.yaml").write_text("data: {batch_size: 2, num_workers: 3}\nmodel: {size: nano}\n")
    (tmp_path / "sub/more.yaml").write_text("include: base.yaml\ndata: {num_workers: 4}\n")
    (tmp_path / "run.yaml").write_text("include: [sub/more.yaml]\ndata: {batch_size: 8}\n")
    assert config_module.read_yaml(tmp_path / "run.yaml") == {
        "model": {"size": "nano"},
        "data": {"batch_size": 8, "num_workers": 4},
    }
    (tmp_path / "sub/other.yaml").write_text("include: base.yaml\nmodel: {size: tiny}\n")
    (tmp_path / "twice.yaml").write_text("include: [sub/more.yaml, sub/other.yaml]\n")
    twice = {"model": {"size": "tiny"}, "data": {"batch_size": 2, "num_workers": 3}}
    assert config_module.read_yaml(tmp_path / "twice.yaml") == twice


@pytest.mark.parametrize("chain", [("a.yaml",), ("b.yaml", "a.yaml"), ("sub/../b.yaml", "a.yaml")])
def test_include_loop_is_named(tmp_path, monkeypatch, chain):
    (tmp_path / "sub").mkdir()
    names = ("a.yaml", *chain)
    for name, included in zip(names, names[1:]):
        (tmp_path / name).write_text(f"include: {included}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a.yaml includes itself, through"):
        config_module.read_yaml("a.yaml")


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_stage_fills_in_every_field(size):
    stage, open_ones = XTTSConfig(ModelConfig(size)).stage("gpt"), ("max_steps", "crop_seconds", "lora_alpha")
    assert all(getattr(stage, one.name) is not None for one in fields(stage) if one.name not in open_ones)


def test_types_are_checked_from_python_as_in_yaml(tmp_path):
    with pytest.raises(ConfigError, match="data.data_gpu"):
        DataConfig(data_gpu="0")
    config = DataConfig(train_data=tmp_path, model_start_delay=2)
    assert (config.train_data, config.model_start_delay) == (str(tmp_path), 2.0)


def test_a_copied_recipe_includes_what_its_original_does(tmp_path):
    original = config_module.RECIPES / "finetune_xtts_v2_lora.yaml"
    copy = tmp_path / "mine.yaml"
    copy.write_text(original.read_text())
    assert config_module.read_yaml(copy) == config_module.read_yaml(original)
