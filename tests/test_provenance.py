"""The settings and vocabulary in a checkpoint take precedence over different `config.json` and `vocab.json` files."""

import dataclasses
import json

import pytest
from tiny import random_model, tiny_run_config, with_training, write_run

from myxtts.config.checks import ConfigError
from myxtts.data.dataset import SpeechDataset
from myxtts.inference.loading import load_model
from myxtts.runs.opening import check_same_model
from myxtts.runs.origin import adopt, run_in, settle_origin
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import read_json, write_json
from myxtts.storage.run_folder import read_config, vocabulary_path
from myxtts.text.tokenizer import XTTSTokenizer


@pytest.fixture(scope="module")
def made(tokenizer):
    model, config = random_model(tokenizer)
    return model, tokenizer, config


@pytest.fixture
def run(made, tmp_path):
    """A run whose GPT checkpoint has its settings and vocabulary."""
    model, tokenizer, config = made
    folder = write_run(tmp_path / "run", *made)
    weights = {name: variable.numpy() for name, variable in model.part_weights("gpt").items()}
    state = {"finished": True, "position": 8, "config": config.to_dict()}
    copies = {"vocab.json": tokenizer.to_json().encode()}
    CheckpointStore(folder / "gpt").write(8, {"model": weights}, state, best=True, copies=copies)
    return folder


def change_config(folder, **model):
    values = read_json(folder / "config.json")
    write_json(folder / "config.json", {**values, "model": {**values["model"], **model}})


def replace_vocabulary(folder):
    """Reorders the tokens of a vocabulary file."""
    document = read_json(folder / "vocab.json")
    vocab = document["model"]["vocab"]
    letters = [token for token in vocab if len(token) == 1]
    vocab |= dict(zip(letters, [vocab[token] for token in reversed(letters)]))
    write_json(folder / "vocab.json", document)


def test_model_of_the_checkpoint_is_used_and_differences_are_reported(run, caplog, capsys, monkeypatch):
    change_config(run, heads=4)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert load_model(run).config.heads == 2 and "loading" in capsys.readouterr().err
    assert "describes another model (heads 4 for 2)" in caplog.text


def test_vocabulary_of_the_checkpoint_is_used_and_differences_are_reported(run, made, caplog):
    ids = made[1].encode("one two", "en")
    assert load_model(run).preset[0].encode("one two", "en") == ids and not caplog.text
    replace_vocabulary(run)
    assert XTTSTokenizer.from_file(run / "vocab.json").encode("one two", "en") != ids
    assert load_model(run).preset[0].encode("one two", "en") == ids
    assert "vocab.json " in caplog.text


def test_run_without_its_two_files_uses_the_checkpoint(run, made):
    (run / "config.json").unlink()
    (run / "vocab.json").unlink()
    tokenizer, config = load_model(run).preset
    assert tokenizer.to_json() == made[1].to_json() and config.model == made[2].model


def test_altered_vocabulary_of_the_newest_checkpoint_is_noticed(run):
    file = CheckpointStore(run / "gpt").path(8) / "vocab.json"
    file.write_bytes(file.read_bytes().replace(b"Whitespace", b"Blackspace"))
    with pytest.raises(CheckpointError, match="vocab.json has been altered"):
        load_model(run)


def test_checkpoint_without_settings_uses_the_files_of_the_run(made, tmp_path):
    folder = write_run(tmp_path / "old", *made)
    change_config(folder, dropout=0.3)
    assert read_config(folder).model.dropout == 0.3 and vocabulary_path(folder) == folder / "vocab.json"
    assert load_model(folder).config.heads == 2


def test_changed_config_file_does_not_change_the_resumed_model(run, made):
    change_config(run, heads=4)
    config = with_training(made[2], checkpoint_dir=str(run))
    check_same_model(run_in(run).model, config)
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, heads=4))
    for reset in (), ("speaker", "decoder"):
        with pytest.raises(ConfigError, match="a run of another model: heads 2 there, 4 here"):
            check_same_model(run_in(run).model, other, reset)
    check_same_model(run_in(run).model, other, ("gpt", "speaker", "decoder"))  # only the DVAE is kept
    (run / "config.json").unlink()
    with pytest.raises(ConfigError, match="a run of another model: heads 2 there, 4 here"):
        check_same_model(run_in(run).model, other)
    state = {"finished": True, "config": other.to_dict(), "taken_from": "another run"}
    CheckpointStore(run / "gpt").write(9, {}, state)
    assert run_in(run) is None, "a start from another run, killed before config.json"


def test_run_that_keeps_its_gpt_keeps_its_vocabulary(run, made, tiny_corpus, tmp_path):
    XTTSTokenizer.train([("jazz", "en")]).save(tmp_path / "other.json")
    config, _ = settle_origin(tiny_run_config(tiny_corpus, run, data={"vocabulary": str(tmp_path / "other.json")}))
    with pytest.raises(ConfigError, match="--vocabulary must be .* the run in .* began with"):
        SpeechDataset.open(config)
    with pytest.raises(ConfigError, match="--vocabulary .*file. Received: none.json"):
        settle_origin(tiny_run_config(tiny_corpus, run, data={"vocabulary": "none.json"}))
    for own in (str(run / "vocab.json"), None):
        config, _ = settle_origin(tiny_run_config(tiny_corpus, run, data={"vocabulary": own}))
        assert config.data.vocabulary == (own or run_in(run).data.vocabulary)
        SpeechDataset.open(tiny_run_config(tiny_corpus, run, data={"vocabulary": own}))
    for stage, is_kept in ("decoder", True), ("gpt", False):
        config = tiny_run_config(tiny_corpus, run, training={"stage": stage, "reset_training": True})
        assert (SpeechDataset.open(config).tokenizer.to_json() == made[1].to_json()) == is_kept


def test_fine_tuning_takes_model_and_vocabulary_of_the_checkpoint(run, made, tmp_path):
    change_config(run, heads=4)
    replace_vocabulary(run)
    config = adopt(tiny_run_config(None, tmp_path / "new", training={"init_from": str(run)}))
    assert config.model.heads == 2
    assert XTTSTokenizer.from_file(config.data.vocabulary).to_json() == made[1].to_json()


def test_invalid_settings_of_a_checkpoint_are_an_error_message(run):
    CheckpointStore(run / "gpt").write(9, {}, {"finished": True, "config": json.loads('{"model": {"heads": "two"}}')})
    with pytest.raises(CheckpointError, match="settings that cannot be used: model.heads"):
        read_config(run)
