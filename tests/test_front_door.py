"""The public API, `import myxtts`: lazy names, training by keywords, speaking, and its documentation page."""

import json
import re
from pathlib import Path
from unittest import mock

import pytest
from tiny import tiny_run_config, untraced

import myxtts
from myxtts import __main__ as command
from myxtts.api import configure
from myxtts.cli.train import build_parser, config_from_arguments
from myxtts.config.checks import ConfigError, UserError
from myxtts.config.config import DataConfig, XTTSConfig

pytestmark = pytest.mark.usefixtures("devices_as_before")

ROOT = Path(__file__).resolve().parents[1]
NAMES = "XTTS XTTSConfig DataConfig ModelConfig TrainingConfig XTTSTrainer Synthesizer train load Run UserError"


def test_every_public_name_exists_and_equals_its_module_attribute():
    from myxtts.training.trainer import XTTSTrainer

    assert set(NAMES.split()) <= set(dir(myxtts)) and set(NAMES.split()) <= set(myxtts.__all__)
    assert all(getattr(myxtts, name) for name in myxtts.__all__)
    assert myxtts.XTTSTrainer is XTTSTrainer and myxtts.DataConfig is DataConfig
    with pytest.raises(AttributeError, match="no attribute 'XTTSTrainr'. Did you mean XTTSTrainer"):
        _ = myxtts.XTTSTrainr


def test_version_is_reported(capsys):
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"myxtts {myxtts.__version__}\n"


def test_keywords_mean_what_the_flags_mean():
    flags = "--train-data x --model-size nano --max-steps 9 --lr 0.1 --batch-size 5 --enable-static-shapes --data-gpu 0"
    by_flags = config_from_arguments(build_parser().parse_args(flags.split()))
    keywords = dict(train_data=Path("x"), model_size="nano", max_steps=9, lr=0.1, batch_size=5, data_gpu=0)
    assert configure(**keywords, enable_static_shapes=True) == by_flags
    assert configure(**keywords, disable_static_shapes=False) == by_flags
    assert configure(train_data="x") == config_from_arguments(build_parser().parse_args(["--train-data", "x"]))
    assert configure(train_data="x", batch_size="auto").training.automatic_batch_size


def test_paths_and_single_values_are_taken_where_a_flag_can_be_repeated():
    roots = configure(train_data="x", audio_root=Path("a")).data.audio_roots
    assert list(roots) == ["a"] and roots == configure(train_data="x", audio_root=["a"]).data.audio_roots
    assert configure(init_from=Path("base")).training.init_from == "./base", "a path is never the bundled model"
    with pytest.raises(UserError, match=r"\./base"):
        myxtts.evaluate(Path("base"))


def test_setting_of_a_stage_is_not_confused_with_training():
    config = XTTSConfig()
    with pytest.raises(ConfigError, match="training has no setting learning_rate.*training.gpt.learning_rate"):
        config.training.learning_rate = 1e-3


def test_keywords_win_over_a_configuration():
    config = tiny_run_config("here", "there", training={"automatic_batch_size": True})
    changed = configure(config, max_steps=9, checkpoint_dir="elsewhere", batch_size=config.data.batch_size)
    training = changed.training
    assert (training.gpt.max_steps, training.checkpoint_dir, training.automatic_batch_size) == (9, "elsewhere", False)
    assert (changed.model, changed.data) == (config.model, config.data)


@pytest.mark.parametrize(
    "keywords, words, note", json.loads((ROOT / "tests/data/wrong_keywords.json").read_text("utf-8"))
)
def test_wrong_keywords_are_errors_that_name_settings(tmp_path, monkeypatch, keywords, words, note):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refusal:
        myxtts.train(**keywords)
    assert words in str(refusal.value)
    assert note is None or note in refusal.value.__notes__[0]


def test_flags_in_errors_of_plan_and_load_are_named_as_arguments(tmp_path):
    with pytest.raises(UserError) as refusal:
        myxtts.plan(lora_rank=-1)
    assert "--lora-rank is lora_rank=" in refusal.value.__notes__[0]
    with pytest.raises(UserError, match="^folder must be"):
        myxtts.load(tmp_path / "none")
    with pytest.raises(UserError, match="--voices .* existing file. Received: me.wav"):
        myxtts.evaluate("base", voices="me.wav")
    for fails in (lambda: myxtts.make_dataset("a.wav", tmp_path, min_seconds=0), lambda: myxtts.evaluate("x", seed=-1)):
        with pytest.raises(UserError) as refusal:
            fails()
        shown = refusal.value._render_traceback_()  # by IPython
        assert str(refusal.value) in shown[0] and "From Python: --" in shown[1] and len(shown) == 2


def test_misspelt_arguments_are_answered_with_the_nearest_argument():
    with pytest.raises(ConfigError, match="mean config?"):
        myxtts.train(confg="sample.yaml")
    for wrong, right in (("lang", "language"), ("speaker", "voice")):
        with pytest.raises(ConfigError, match=f"{wrong} is not an argument. Did you mean {right}?"):
            myxtts.load("base").speak("One.", **{wrong: "fa"})


def test_size_by_keyword_does_not_go_with_the_shapes_of_a_configuration():
    with pytest.raises(ConfigError, match="ModelConfig\\(size="):
        myxtts.train(XTTSConfig(), model_size="nano")


def test_configuration_is_the_same_after_a_file(tmp_path):
    config = tiny_run_config("here", "there", data={"data_gpu": 0, "model_gpu": 1})
    config.to_yaml(tmp_path / "a.yaml")
    assert XTTSConfig.from_yaml(tmp_path / "a.yaml") == config
    assert type(XTTSConfig.from_yaml(tmp_path / "a.yaml").training.gpt.lora_rank) is not int, "still a default"
    (tmp_path / "b.yaml").write_text("include: a.yaml\ntraining: {seed: 5}\n")
    assert XTTSConfig.from_yaml(str(tmp_path / "b.yaml")).training.seed == 5
    with pytest.raises(ConfigError, match="does not exist"):
        XTTSConfig.from_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize("flags", [dict(language="de"), dict(sample_languages="de", train_data="x")])
def test_languages_for_the_wrong_recordings_are_refused_unless_a_configuration_has_them(flags, monkeypatch):
    with pytest.raises(ConfigError, match="--(language|sample-languages) "):
        myxtts.train(**flags)
    monkeypatch.setattr("myxtts.runs.setup.check_request", mock.Mock(side_effect=UserError("set up")))
    values = {name: (value,) if name == "sample_languages" else value for name, value in flags.items()}
    with pytest.raises(UserError, match="set up"):
        myxtts.train(XTTSConfig(data=DataConfig(**values)))


def blocks(page="docs/python.md"):
    text = re.sub(r'  # (?![\[{"]).*', "", (ROOT / page).read_text(encoding="utf-8"))  # comments in words
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def made_tiny(block, shape):
    """Returns a code block of the page, changed to a small model and few steps."""
    block = block.replace('model_size="nano", max_steps=2000', 'config="tiny.yaml"')
    block = block.replace('ModelConfig(size="nano"),', f"ModelConfig(**{shape!r}),")
    block = block.replace('DataConfig(train_data="recordings")', f"DataConfig(**{TINY.to_dict()['data']!r})")
    return block.replace(", speaker=steps, decoder=steps", "").replace("2000", "1")


TINY = tiny_run_config("recordings", "runs/mine", model={"num_text_tokens": 0}, data={"num_buckets": 1})


def test_page_runs_as_written(two_stages, without_griffin_lim, tiny_corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recordings").symlink_to(tiny_corpus, target_is_directory=True)
    for name in ("me.wav", "me_again.wav"):
        (tmp_path / name).write_bytes((tiny_corpus / "wavs/low_one.wav").read_bytes())
    settings = TINY.to_dict()
    del settings["training"]["speaker"], settings["training"]["decoder"]
    for stage in ("dvae", "gpt"):
        settings["training"][stage] |= {"max_steps": 1, "crop_seconds": 0.4 if stage == "dvae" else None}
    (tmp_path / "tiny.yaml").write_text(json.dumps(settings))
    names = {}
    with untraced():
        for block in blocks():
            exec(compile(made_tiny(block, settings["model"]), "docs/python.md", "exec"), names)
            if "run" in names and "voice_model" not in names:
                assert names["run"].finished and set(names["run"].best) == {"dvae", "gpt"}
                assert {"step", "text", "codes"} <= names["run"].history["gpt"][-1].keys()
    speech = names["speech"]
    assert len(speech.samples) and speech.sample_rate == 22050
    assert all((tmp_path / name).is_file() for name in ("morning.flac", "0.wav", "1.wav", "2.wav"))
    assert all(word in repr(names["voice_model"]) for word in ("runs/mine", "en", names["one"]))
    monkeypatch.chdir("runs")
    assert names["figures"]["model_size"] == "small" and re.search("in runs/.* gpt step 1", repr(names["run"]))
    assert names["trainer"].step == 1 == names["run"].best["gpt"] and (tmp_path / "models/tuned/vocab.json").is_file()
    said = capsys.readouterr().out
    assert "needs both" in said and "--model-gpu is model_gpu=" in said and "Already trained." not in said


def test_persian_page_has_the_same_code():
    assert blocks("docs/python.fa.md") == blocks()
