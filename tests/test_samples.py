"""Sample sentences spoken during training: files, names, pictures, TensorBoard, and weights that move on."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import soundfile
import tensorflow as tf
from tiny import tiny_run_config, untraced

from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.data.pipeline import Clip
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import XTTS
from myxtts.runs.samples import SampleSpeaker, draw_mel
from myxtts.text.tokenizer import XTTSTokenizer


@pytest.fixture
def speaking(tiny_corpus, tmp_path):
    """A `SampleSpeaker` of two clips whose ids differ after a point only, the GPT it speaks with, and the folder."""
    tokenizer = XTTSTokenizer.train([("one two", "en")])
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens, "layers": 1}, training={"num_samples": 2})
    keras.utils.set_random_seed(0)
    models = [XTTS(config.model, parts=(part,)) for part in ("dvae", "gpt")]
    clips = [
        Clip(f"a/b.{i}", str(tiny_corpus / f"wavs/low_{word}.wav"), (3,), "low", "en", 11025)
        for i, word in enumerate(("one", "two"))
    ]
    dataset = SimpleNamespace(
        train=clips[:1], validation=clips, tokenizer=tokenizer, texts={"a/b.0": "one", "a/b.1": "two"}
    )
    made = []

    def make_synthesizer():
        made.append(Synthesizer(XTTS.assemble(config.model, *models), tokenizer, config))
        assert len(made) == 1, "its functions were traced anew"
        return made[0]

    speaker = SampleSpeaker(dataset, make_synthesizer, "/CPU:0", tmp_path / "samples", str(tmp_path / "logs"), config)
    return speaker, models[1], tmp_path


def test_samples_are_spoken_with_the_weights_of_the_moment(speaking):
    speaker, model, folder = speaking
    speaker.on_sample(1)
    bias = model.gpt.audio_head.bias
    bias.assign(np.where(np.arange(18) == 5, 50.0, bias))
    speaker.on_sample(2)
    names = sorted(path.name for path in (folder / "samples").iterdir())
    assert names == [f"step_00000{step}_a_b.{i}.{kind}" for step in (1, 2) for i in (0, 1) for kind in ("png", "wav")]
    # Code 5 for ever: as long as the model allows.
    longest = CODE_STRIDE_SAMPLES * model.config.max_codes
    lengths = [len(soundfile.read(folder / f"samples/step_00000{step}_a_b.0.wav")[0]) for step in (1, 2)]
    assert lengths[0] < longest - 2 * CODE_STRIDE_SAMPLES <= lengths[1] <= longest
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(next((folder / "logs").glob("events.*"))))
        for value in event.summary.value
    }
    assert tags == {f"{kind}/a/b.{i}" for kind in ("speech", "mel") for i in (0, 1)}


def test_picture_of_a_text_with_dollar_signs(tmp_path):
    draw_mel(np.zeros((8, 80), np.float32), "from $_ to $^", tmp_path / "mel.png")
    assert (tmp_path / "mel.png").is_file()


def test_samples_that_cannot_be_written_stop_nothing(speaking, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    speaker, _, _ = speaking
    monkeypatch.setattr("myxtts.runs.samples.write_wav", full)
    with untraced():
        speaker.on_sample(1)
    assert "sample sentences of step 1 could not be written" in caplog.text and "No space left" in caplog.text
