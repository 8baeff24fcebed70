"""`myxtts convert --to-coqui`: exporting a converted model restores the original files."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from released_model import MINIMAL, SETTINGS, assert_same_weights, convert, weights, write_release
from tiny import voiced, write_run

from myxtts.config.config import XTTSConfig
from myxtts.inference.voices import VoiceEncoder
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.files import read_json, write_json
from myxtts.storage.speakers import read_speaker, write_speaker_clips
from myxtts.text.tokenizer import XTTSTokenizer

_SHAPE = dict(width=64, conditioning_blocks=6, num_latents=32, perceiver_depth=2, perceiver_heads=8, speaker_width=512)
RELEASED_SHAPE = replace(MINIMAL, **_SHAPE, decoder_channels=512, speaker_channels=(32, 64, 128, 256))


@pytest.fixture(scope="module")
def released_shape(tmp_path_factory):
    """A converted model whose decoder has the released shape."""
    release = write_release(tmp_path_factory.mktemp("shaped") / "in", RELEASED_SHAPE)
    assert convert("--from-coqui", release / "model.pth", "--output", release / "out") == 0
    return release


def test_export_restores_every_tensor(released_shape, tmp_path, capsys):
    output = tmp_path / "back" / "model.pth"
    assert convert("--to-coqui", released_shape / "out", "--output", output) == 0
    for name in ("dvae.pth", "mel_stats.pth", "speakers_xtts.pth", "vocab.json"):
        assert (output.parent / name).exists()
    before, after = (read_torch_checkpoint(path)["model"] for path in (released_shape / "model.pth", output))
    kinds = [{name: (value.shape, value.dtype) for name, value in stored.items()} for stored in (before, after)]
    assert kinds[0] == kinds[1]
    for name, value in before.items():
        if "original" not in name:
            np.testing.assert_array_equal(after[name], value, err_msg=name)
    for name in ("dvae.pth", "mel_stats.pth"):
        restored, original = (read_torch_checkpoint(folder / name) for folder in (output.parent, released_shape))
        np.testing.assert_equal(restored, original)
    arguments = (settings := read_json(output.parent / "config.json"))["model_args"]
    assert settings | SETTINGS | {"model_args": arguments} == settings
    assert (arguments["gpt_n_heads"], arguments["gpt_layers"], arguments["gpt_stop_audio_token"]) == (2, 2, 9)

    assert convert("--from-coqui", output, "--output", tmp_path / "again") == 0
    assert_same_weights(tmp_path / "again", released_shape / "out")
    assert read_speaker(tmp_path / "again", "Ana Ruiz")[0].shape == (1, 32, 64)
    capsys.readouterr()
    assert convert("--to-coqui", released_shape / "out", "--output", output) == 2
    assert "already exists" in capsys.readouterr().err
    assert convert("--to-coqui", released_shape / "out", "--output", tmp_path / "new" / "dvae.pth") == 2


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """Folder of a run that trained all stages from scratch, and its model."""
    tokenizer = XTTSTokenizer.train([("one two three", "en"), ("yi er", "zh")], 50)
    lengths = dict(max_text_tokens=402, max_audio_tokens=605)
    model = XTTS(replace(RELEASED_SHAPE, num_text_tokens=tokenizer.num_tokens, **lengths), PARTS)
    return write_run(tmp_path_factory.mktemp("own") / "run", model, tokenizer, XTTSConfig(model=model.config)), model


def test_a_run_trained_from_scratch_is_exported_and_imported_unchanged(own_run, tmp_path, capsys):
    folder, model = own_run
    soundfile.write(tmp_path / "emma.flac", voiced(3.0, 150, 1), 22050)
    clips = {"Emma": (tmp_path / "emma.flac").read_bytes(), "Noah": b"fLaC"}
    write_speaker_clips(folder, {name: (content, "en", ("a",)) for name, content in clips.items()})
    assert convert("--to-coqui", folder, "--output", tmp_path / "there") == 0
    assert "Noah is not in speakers_xtts.pth" in (said := capsys.readouterr().err) and "Emma" not in said
    assert read_json(tmp_path / "there" / "config.json")["languages"] == ["en", "zh-cn"]
    assert convert("--from-coqui", tmp_path / "there" / "model.pth", "--output", tmp_path / "back") == 0
    voice = VoiceEncoder(model, XTTSConfig(model=model.config), traced=False)(tmp_path / "emma.flac")
    for found, expected in zip(read_speaker(tmp_path / "back", "Emma"), (voice.latents, voice.speaker)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    found = weights(tmp_path / "back")
    assert found.keys() == set(PARTS)
    for part in PARTS:
        expected = model.part_weights(part)
        assert found[part].keys() == expected.keys()
        for name, value in found[part].items():
            np.testing.assert_allclose(value, expected[name].numpy(), rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_run_without_a_part_or_with_the_other_decoder_is_refused(own_run, tmp_path, capsys):
    folder, _ = own_run
    incomplete = shutil.copytree(folder, tmp_path / "incomplete", ignore=shutil.ignore_patterns("speaker"))
    assert convert("--to-coqui", incomplete, "--output", tmp_path / "no" / "model.pth") == 2
    assert "needs the speaker" in (error := capsys.readouterr().err) and "--stage speaker" in error
    settings = read_json(folder / "config.json")
    settings["model"]["decoder_type"] = "istft"
    shutil.copytree(folder, tmp_path / "other")
    write_json(tmp_path / "other" / "config.json", settings)
    assert convert("--to-coqui", tmp_path / "other", "--output", tmp_path / "no" / "model.pth") == 2
    assert "model.decoder_type is istft and not hifigan" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
