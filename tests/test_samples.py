"""Sample sentences spoken during training: files, names, pictures, TensorBoard, and use of the current weights."""

import dataclasses
from collections import Counter
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import soundfile
import tensorflow as tf
from tiny import full_disk, stage_of, tiny_run_config, untraced

from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import SpeechDataset
from myxtts.inference.self_check import SecondReading
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.xtts import XTTS
from myxtts.runs.samples import Copier, SampleSpeaker


@pytest.fixture
def speaking(tiny_corpus, tokenizer, tmp_path):
    """A `SampleSpeaker` of two clips whose ids differ only after a period, its GPT, and the folder."""
    config = tiny_run_config(model={"num_text_tokens": tokenizer.num_tokens}, training={"num_samples": 2})
    keras.utils.set_random_seed(0)
    models = [XTTS(config.model, parts=(part,)) for part in ("dvae", "gpt")]
    clips = [
        Utterance(f"a/b.{i}", str(tiny_corpus / f"wavs/low_{word}.wav"), word, "low", "en", num_samples=11025)
        for i, word in enumerate(("one", "two"))
    ]
    dataset = SimpleNamespace(config=config, train=clips[:1], validation=clips, tokenizer=tokenizer)
    synthesizer = Synthesizer(XTTS.assemble(config.model, *models), tokenizer, config)
    speaker = SampleSpeaker(dataset, lambda: synthesizer, "/CPU:0", tmp_path / "samples", tmp_path / "logs")
    return speaker, models[1], tmp_path


def tags_of(folder):
    """Counts how often each tag was written."""
    return Counter(
        value.tag
        for path in folder.glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    )


def test_samples_are_spoken_with_the_weights_of_the_moment(speaking):
    speaker, model, folder = speaking
    speaker.on_sample(1)
    bias = model.gpt.audio_head.bias
    bias.assign(np.where(np.arange(18) == 5, 50.0, bias))
    speaker.on_sample(2)
    names = sorted(path.name for path in (folder / "samples").iterdir())
    spoken = [f"step_00000{step}_a_b.{i}.{kind}" for step in (1, 2) for i in (0, 1) for kind in ("png", "wav")]
    assert names == [*(f"recording_a_b.{i}.wav" for i in (0, 1)), *spoken]
    longest = CODE_STRIDE_SAMPLES * model.config.max_codes
    lengths = [len(soundfile.read(folder / f"samples/step_00000{step}_a_b.0.wav")[0]) for step in (1, 2)]
    assert lengths[0] < longest - 2 * CODE_STRIDE_SAMPLES <= lengths[1] <= longest
    kinds = {"sample sentences": 2, "sample sentences, mel": 2, "recording": 1}
    assert tags_of(folder / "logs") == {f"{kind}/a/b.{i}": times for kind, times in kinds.items() for i in (0, 1)}


def test_stage_that_resynthesizes_recordings_shows_both(tiny_corpus, tmp_path):
    config = tiny_run_config(tiny_corpus, tmp_path, training={"num_samples": 1, "sample_every_steps": 1})
    dataset = SpeechDataset.open(config)
    stage = stage_of("dvae", dataset.config)
    trainer = SimpleNamespace(stage=stage, config=dataset.config, model_device="/CPU:0")
    trainer.preparation = stage.make_preparation("/CPU:0")
    copier, clip = Copier(dataset, trainer, tmp_path / "samples", tmp_path / "logs"), dataset.validation[0]
    (tmp_path / "samples").mkdir()
    soundfile.write(tmp_path / f"samples/recording_{clip.id}.wav", np.zeros(9, np.float32), 24000)  # of before
    with untraced():
        copier.on_validation(4, {}, True)
        copier.on_validation(8, {}, True)
    names = sorted(path.name for path in (tmp_path / "samples").iterdir())
    copies = [f"dvae_00000{step}_{clip.id}.{kind}" for step in (4, 8) for kind in ("png", "wav")]
    assert names == [*copies, f"recording_{clip.id}.wav"]
    seconds = [soundfile.info(tmp_path / "samples" / name).duration for name in names if name.endswith(".wav")]
    assert max(seconds) - min(seconds) < 1024 / 22050
    kinds = {"dvae resyntheses": 2, "dvae resyntheses, mel": 2, "recording": 1}
    assert tags_of(tmp_path / "logs") == {f"{kind}/{clip.id}": times for kind, times in kinds.items()}


def test_attention_is_from_the_block_that_follows_the_text_most_evenly():
    config = tiny_run_config(model={"layers": 3}).model
    keras.utils.set_random_seed(0)
    gpt = XTTS(config, parts=("gpt",)).gpt
    through = np.eye(5)[np.arange(10) * 5 // 9 % 5]
    shape = lambda number: through if number == 1 else np.ones((10, 5)) / 5
    gpt.text_attention = lambda number, x, mask: tf.constant(shape(number)[None])
    latents = np.zeros((1, config.num_latents, config.width), np.float32)
    found = SecondReading(gpt, traced=False)(latents, [5, 6, 7], np.arange(9)).attention
    np.testing.assert_array_equal(found, through[:9])


def test_samples_that_cannot_be_written_stop_nothing(speaking, monkeypatch, caplog):
    speaker, _, folder = speaking
    monkeypatch.setattr("myxtts.runs.samples.write_audio", full_disk)
    with untraced():
        speaker.on_sample(1)
        monkeypatch.undo()
        speaker.clips = [dataclasses.replace(clip, id=letter * 84) for clip, letter in zip(speaker.clips, "\u1208a")]
        speaker.on_sample(3)
        monkeypatch.setattr("myxtts.runs.samples.reference_of", lambda *_: "gone.wav")
        speaker.on_sample(2)
    assert len([*folder.glob("samples/step_000003_*.wav")]) == 2, "one id is too long for a file name"
    assert "sentences of step 1 could not" in caplog.text and "No space left" in caplog.text
    assert "sentences of step 2 could not" in caplog.text and "gone.wav" in caplog.text
