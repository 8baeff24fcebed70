"""Parts of a model read from checkpoints of any age, under the names that weights have today."""

import shutil

import numpy as np
import pytest
from tiny import tiny_run_config, write_run

from myxtts.inference.loading import load_model
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.parts import PREFIXES, RENAMED_WEIGHTS, copy_part, current_names, part_store, read_part
from myxtts.text.tokenizer import XTTSTokenizer


@pytest.fixture
def whole_run(tmp_path):
    """The folder of a model with all parts, and the model."""
    tokenizer = XTTSTokenizer.train([("one two three", "en")], vocab_size=24)
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens})
    model = XTTS(config.model, PARTS)
    return write_run(tmp_path / "run", model, tokenizer, config), model


def test_old_names_become_todays_and_others_stay():
    arrays = {"vocoder/conv/kernel": np.zeros(1), "decoder/bias": np.ones(1), "gpt/vocoder/x": np.full(1, 2.0)}
    named = current_names(arrays)
    assert list(named) == ["decoder/conv/kernel", "decoder/bias", "gpt/vocoder/x"]
    assert all(new is old for new, old in zip(named.values(), arrays.values()))
    assert not any(name.startswith(tuple(RENAMED_WEIGHTS)) for name in named)


def test_a_part_written_under_old_names_is_read_under_todays(tmp_path):
    store = CheckpointStore(tmp_path / "decoder")
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.write(4, {"model": {"vocoder/kernel": kernel}, "more": {"a": kernel}}, {"finished": True})
    tensors, state = read_part(store, 4)
    assert list(tensors) == ["model"] and list(tensors["model"]) == ["decoder/kernel"]
    np.testing.assert_array_equal(tensors["model"]["decoder/kernel"], kernel)
    assert (state["step"], state["finished"]) == (4, True)
    assert list(read_part(store, 4, ("model", "more"))[0]) == ["model", "more"]


def test_parts_that_an_older_folder_keeps_together_are_told_apart_and_copied_apart(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    kernels = {"vocoder/kernel": np.ones(2, np.float32), "speaker_encoder/kernel": np.zeros(3, np.float32)}
    CheckpointStore(old / "decoder").write(7, {"model": kernels}, {"finished": True})
    assert part_store(old, "speaker").folder == old / "decoder"
    for part in ("speaker", "decoder", "gpt"):
        copy_part(old, new, part)
    found = {part: sorted(CheckpointStore(new / part).read(7, ("model",))[0]["model"]) for part in PREFIXES}
    assert found == {"speaker": ["speaker_encoder/kernel"], "decoder": ["decoder/kernel"]}
    assert not (new / "gpt").exists()
    assert part_store(new, "speaker").folder == new / "speaker"
    assert part_store(tmp_path / "none", "speaker").folder == tmp_path / "none" / "speaker"


def test_a_decoder_of_an_older_folder_with_old_names_and_the_speaker_encoder_inside_is_read(whole_run):
    folder, model = whole_run
    weights = model.part_weights("speaker") | model.part_weights("decoder")
    weights = {name: variable.numpy() for name, variable in weights.items()}
    names = {name: f"vocoder/{name.removeprefix('decoder/')}" for name in weights if name.startswith("decoder/")}
    old = {names.get(name, name): value for name, value in weights.items()}
    assert sum(name.startswith("vocoder/") for name in old) > 10
    CheckpointStore(folder / "decoder").write(9, {"model": old}, {"finished": True})
    shutil.rmtree(folder / "speaker")
    model = load_model(folder)[0]
    loaded = model.part_weights("speaker") | model.part_weights("decoder")
    assert all(np.array_equal(loaded[name], value) for name, value in weights.items())


def test_a_decoder_asks_for_its_speaker_encoder_and_griffin_lim_does_without(whole_run, tmp_path):
    folder, _ = whole_run
    assert load_model(folder)[0].parts == PARTS
    shutil.move(folder / "speaker", tmp_path / "speaker")
    with pytest.raises(CheckpointError, match="no speaker encoder.*--stage speaker"):
        load_model(folder)
    shutil.rmtree(folder / "decoder")
    shutil.move(tmp_path / "speaker", folder / "speaker")
    assert load_model(folder)[0].parts == ("dvae", "gpt")
