"""The parts that a model needs to speak."""

import shutil

import pytest
from tiny import tiny_run_config, write_run

from myxtts.inference.loading import load_model
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.checkpoint import CheckpointError
from myxtts.text.tokenizer import XTTSTokenizer


@pytest.fixture
def whole_run(tmp_path):
    """The folder of a model with all parts, and the model."""
    tokenizer = XTTSTokenizer.train([("one two three", "en")], vocab_size=24)
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens})
    model = XTTS(config.model, PARTS)
    return write_run(tmp_path / "run", model, tokenizer, config), model


def test_a_decoder_asks_for_its_speaker_encoder_and_griffin_lim_does_without(whole_run, tmp_path):
    folder, _ = whole_run
    assert load_model(folder)[0].parts == PARTS
    shutil.move(folder / "speaker", tmp_path / "speaker")
    with pytest.raises(CheckpointError, match="no speaker encoder.*--stage speaker"):
        load_model(folder)
    shutil.rmtree(folder / "decoder")
    shutil.move(tmp_path / "speaker", folder / "speaker")
    assert load_model(folder)[0].parts == ("dvae", "gpt")
