"""`myxtts convert --to-coqui`: a converted model gives back the files that it came from."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from released_model import MINIMAL, assert_same_weights, convert, write_release

from myxtts.interchange.torch_checkpoint import read_torch_checkpoint
from myxtts.storage.checkpoint import CheckpointStore, read_json
from myxtts.storage.parts import read_part
from myxtts.storage.speakers import read_speaker


@pytest.fixture(scope="module")
def released_shape(tmp_path_factory):
    """A model whose decoder has the released shape, converted."""
    config = replace(
        MINIMAL,
        width=64,
        conditioning_blocks=6,
        num_latents=32,
        perceiver_depth=2,
        perceiver_heads=8,
        decoder_channels=512,
        speaker_channels=(32, 64, 128, 256),
        speaker_width=512,
    )
    release = write_release(tmp_path_factory.mktemp("shaped") / "in", config)
    assert convert("--from-coqui", release / "model.pth", "--output", release / "out") == 0
    return release


def test_export_gives_back_every_tensor(released_shape, tmp_path, capsys):
    output = tmp_path / "back" / "model.pth"
    assert convert("--to-coqui", released_shape / "out", "--output", output) == 0
    for name in ("dvae.pth", "mel_stats.pth", "speakers_xtts.pth", "vocab.json"):
        assert (output.parent / name).exists()
    before, after = (read_torch_checkpoint(path)["model"] for path in (released_shape / "model.pth", output))
    assert {name: (value.shape, value.dtype) for name, value in after.items()} == {
        name: (value.shape, value.dtype) for name, value in before.items()
    }
    for name, value in before.items():
        if "original" not in name:
            np.testing.assert_array_equal(after[name], value, err_msg=name)
    for name in ("dvae.pth", "mel_stats.pth"):
        np.testing.assert_equal(
            read_torch_checkpoint(output.parent / name), read_torch_checkpoint(released_shape / name)
        )
    arguments = read_json(output.parent / "config.json")["model_args"]
    assert (arguments["gpt_n_heads"], arguments["gpt_layers"], arguments["gpt_stop_audio_token"]) == (2, 2, 9)

    assert convert("--from-coqui", output, "--output", tmp_path / "again") == 0
    assert_same_weights(tmp_path / "again", released_shape / "out")
    assert read_speaker(tmp_path / "again", "Ana Ruiz")[0].shape == (1, 32, 64)
    capsys.readouterr()
    assert convert("--to-coqui", released_shape / "out", "--output", output) == 2
    assert "is already there" in capsys.readouterr().err


def test_an_older_folder_with_other_names_and_fewer_parts_exports_the_same(released_shape, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(released_shape / "out", old)
    stores = {part: CheckpointStore(old / part) for part in ("speaker", "decoder")}
    (speaker, _), (decoder, state) = (store.read(0, ("model",)) for store in stores.values())
    named = {name.replace("decoder/", "vocoder/"): value for name, value in decoder["model"].items()}
    assert named.keys() != decoder["model"].keys()
    stores["decoder"].write(0, {"model": named | speaker["model"]}, state)
    shutil.rmtree(stores["speaker"].folder)
    assert read_part(stores["decoder"], 0)[0]["model"].keys() == decoder["model"].keys()
    for folder, name in ((old, "a"), (released_shape / "out", "b")):
        assert convert("--to-coqui", folder, "--output", tmp_path / name / "model.pth") == 0
    assert (tmp_path / "a" / "model.pth").read_bytes() == (tmp_path / "b" / "model.pth").read_bytes()
