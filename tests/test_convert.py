"""`myxtts convert`: every layout of a released checkpoint becomes the same model, every flaw is named, and back."""

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import soundfile
from tiny import voiced

from myxtts.cli.main import main
from myxtts.config.config import ModelConfig
from myxtts.config.loading import config_from_dict
from myxtts.interchange import coqui
from myxtts.interchange.coqui_config import model_config, read_settings, run_config
from myxtts.interchange.coqui_export import speaker_front_end
from myxtts.interchange.torch_checkpoint import read_torch_checkpoint, write_torch_checkpoint
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name, read_json
from myxtts.storage.speakers import read_speaker, speaker_names
from myxtts.text.tokenizer import XTTSTokenizer
from utilities.parity.seeded_weights import seeded_tensor, seeded_values

MINIMAL = ModelConfig(
    num_text_tokens=60,
    max_text_tokens=12,
    max_audio_tokens=30,
    layers=2,
    width=16,
    heads=2,
    conditioning_blocks=1,
    conditioning_heads=2,
    num_latents=4,
    perceiver_depth=1,
    perceiver_heads=1,
    num_codes=8,
    dvae_hidden=4,
    dvae_residual_blocks=1,
    codebook_width=4,
    decoder_channels=32,
    speaker_channels=(8, 8, 16, 16),
    speaker_width=6,
)
SETTINGS = {
    "model_args": {"gpt_n_heads": 2},
    "temperature": 0.6,
    "top_k": 40,
    "top_p": 0.9,
    "repetition_penalty": 3.0,
    "gpt_cond_len": 20,
    "gpt_cond_chunk_len": 5,
}


def state_dicts(config):
    """`model.pth` and `dvae.pth` of the released layout, with every weight drawn by name."""

    def drawn(tensors):
        return {
            name: seeded_tensor(name, shape) for tensor in tensors for name, shape in zip(tensor.names, tensor.shapes)
        }

    counters, dvae_constants = coqui.constant_tensors(config)
    return (
        drawn(coqui.model_tensors(config)) | counters | speaker_front_end(),
        drawn(coqui.dvae_tensors(config)) | dvae_constants,
    )


def write_release(folder, config=MINIMAL, model=None, dvae=True, settings=SETTINGS):
    """The files of a released model; `model` replaces what is stored in `model.pth`."""
    folder.mkdir(exist_ok=True)
    model_tensors, dvae_tensors = state_dicts(config)
    write_torch_checkpoint(folder / "model.pth", {"model": model_tensors} if model is None else model)
    if dvae:
        write_torch_checkpoint(folder / "dvae.pth", dvae_tensors)
    write_torch_checkpoint(folder / "mel_stats.pth", model_tensors["mel_stats"])
    voice = {
        "gpt_cond_latent": seeded_values("voice", (1, config.num_latents, config.width)),
        "speaker_embedding": seeded_values("voice", (1, config.speaker_width, 1)),
    }
    write_torch_checkpoint(folder / "speakers_xtts.pth", {"Ana Ruiz": voice, "Bo/Li": voice})
    XTTSTokenizer.train([("the quick brown fox", "en")], 50, ["en", "fa"]).save(folder / "vocab.json")
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def convert(*arguments):
    return main(["convert", *map(str, arguments)])


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="module")
def converted(released):
    folder = released / "converted"
    assert convert("--from-coqui", released / "model.pth", "--output", folder) == 0
    return folder


def weights(folder):
    """All weights of a converted folder, `{part: {name: array}}`."""
    return {
        part: CheckpointStore(folder / part).read(0, ("model",))[0]["model"]
        for part in PARTS
        if (folder / part).is_dir()
    }


def assert_same_weights(folder, other):
    found, expected = weights(folder), weights(other)
    assert found.keys() == expected.keys()
    for part in expected:
        assert found[part].keys() == expected[part].keys()
        for name, value in expected[part].items():
            np.testing.assert_array_equal(found[part][name], value, err_msg=name)


@pytest.mark.parametrize("size", ["minimal", "nano"])
def test_the_map_and_the_model_have_other_weights(size):
    config = MINIMAL if size == "minimal" else ModelConfig(size, num_text_tokens=40)
    model = XTTS(config, PARTS)
    mapped = {part: {} for part in PARTS}
    for tensor in (*coqui.model_tensors(config), *coqui.dvae_tensors(config)):
        mapped[tensor.part][tensor.weight] = coqui.our_shape(tensor)
    assert mapped == {
        part: {name: tuple(variable.shape) for name, variable in model.part_weights(part).items()} for part in PARTS
    }


def test_converted_weights_do_not_fit_the_model_or_lie_wrong(released, converted):
    found = weights(converted)
    model = XTTS(config_from_dict(read_json(converted / "config.json")).model, PARTS)
    for part in PARTS:
        assign_by_name(model.part_weights(part), found[part], part)
    source = read_torch_checkpoint(released / "model.pth")["model"]
    dvae = read_torch_checkpoint(released / "dvae.pth")
    gpt, decoder = found["gpt"], found["decoder"]
    np.testing.assert_array_equal(gpt["gpt/block_1/mlp_in/kernel"], source["gpt.gpt.h.1.mlp.c_fc.weight"])
    np.testing.assert_array_equal(gpt["gpt/text_head/kernel"], source["gpt.text_head.weight"].T)
    np.testing.assert_array_equal(found["dvae"]["dvae/quantizer/codebook"], dvae["codebook.embed"].T)
    kernel, weight = found["dvae"]["dvae/decoder_conv_1/kernel"], dvae["decoder.3.0.conv.weight"]
    assert kernel[2, 5, 1] == weight[1, 5, 2]
    # The speaker encoder's images are (mel, time) in PyTorch and (time, mel) here.
    kernel = decoder["speaker_encoder/group_1_block_0/conv1/kernel"]
    assert kernel[0, 2, 3, 4] == source["hifigan_decoder.speaker_encoder.layer2.0.conv1.weight"][4, 3, 2, 0]
    up = "hifigan_decoder.waveform_decoder.ups.1.parametrizations.weight.original"
    direction = source[f"{up}1"][3].astype(np.float64)
    np.testing.assert_allclose(
        decoder["decoder/upsample_1/kernel"][:, :, 3].T,
        direction / np.linalg.norm(direction) * source[f"{up}0"][3, 0, 0],
        rtol=1e-6,
    )


def test_settings_or_shapes_of_a_converted_model_are_wrong(released, converted):
    config = config_from_dict(read_json(converted / "config.json"))
    assert replace(config.model, size=MINIMAL.size) == replace(MINIMAL, start_text_token=3)
    assert (config.sampling.temperature, config.sampling.top_k, config.sampling.top_p) == (0.6, 40, 0.9)
    assert (config.sampling.repetition_penalty, config.sampling.reference_seconds) == (3.0, 20.0)
    assert config.sampling.reference_chunk_seconds == 5.0
    assert (config.data.conditioning_source, config.data.conditioning_padding) == ("clip", "zeros")
    assert (converted / "vocab.json").read_bytes() == (released / "vocab.json").read_bytes()


def test_released_shape_is_not_the_size_big():
    """Without a config.json, from nothing but the shapes that the released files have."""
    big = ModelConfig("big", num_text_tokens=6681)
    shapes = {name: shape for tensor in coqui.model_tensors(big) for name, shape in zip(tensor.names, tensor.shapes)}
    settings = read_settings(None, None)
    tokenizer = XTTSTokenizer.train([("a fox", "en")], 50)
    model = model_config(shapes, None, settings, tokenizer, "model.pth")
    assert model == big
    config = run_config(model, settings)
    assert (config.sampling.temperature, config.sampling.repetition_penalty) == (0.75, 5.0)
    assert (config.sampling.reference_seconds, config.sampling.reference_chunk_seconds) == (30.0, 4.0)
    assert (config.data.max_seconds, config.data.max_text_length) == (11.6, 200)


def test_settings_in_the_checkpoint_are_not_used(tmp_path):
    inside = {"model": state_dicts(MINIMAL)[0], "config": SETTINGS, "step": 7}
    release = write_release(tmp_path / "in", model=inside, settings=None)
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 0
    assert read_json(tmp_path / "out" / "config.json")["sampling"]["top_k"] == 40


def trainer_layout(model, dvae):
    named = {f"xtts.{name}": value for name, value in model.items()} | {f"dvae.{name}": v for name, v in dvae.items()}
    for front_end in ("style_encoder", "dvae"):
        named[f"torch_mel_spectrogram_{front_end}.mel_stft.spectrogram.window"] = np.ones(8, np.float32)
    return {"model": named, "optimizer": {"state": [1, 2.5]}, "config": SETTINGS, "step": 3}


def after_inference_layout(model, _dvae):
    extra = {
        "gpt.gpt.wte.weight": model["gpt.mel_embedding.weight"],
        "gpt.gpt_inference.transformer.ln_f.weight": model["gpt.gpt.ln_f.weight"],
        "gpt.gpt.h.0.attn.bias": np.ones((1, 1, 4, 4), bool),
    }
    return {"model": model | extra}


def first_weight_norm_layout(model, _dvae):
    def old(name):
        name = name.replace("parametrizations.weight.original0", "weight_g")
        return name.replace("parametrizations.weight.original1", "weight_v")

    return {"model": {old(name): value for name, value in model.items()}}


def bare_layout(model, _dvae):
    return model


@pytest.mark.parametrize("layout", [trainer_layout, after_inference_layout, first_weight_norm_layout, bare_layout])
def test_another_layout_gives_another_model(layout, converted, tmp_path):
    in_one_file = layout is trainer_layout
    release = write_release(tmp_path / "in", model=layout(*state_dicts(MINIMAL)), dvae=not in_one_file)
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 0
    assert_same_weights(tmp_path / "out", converted)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_not_widened_to_float32(dtype, converted, tmp_path):
    half = {
        name: value.astype(dtype) if value.dtype == np.float32 else value
        for name, value in state_dicts(MINIMAL)[0].items()
    }
    release = write_release(tmp_path / "in", model={"model": half})
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 0
    for name, value in weights(converted)["gpt"].items():
        found = weights(tmp_path / "out")["gpt"][name]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, value.astype(dtype).astype(np.float32), err_msg=name)


def test_coverage_table_leaves_out_a_tensor(released, tmp_path, capsys):
    assert convert("--from-coqui", released / "model.pth", "--output", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    fates = {line.split()[0]: line for line in lines}
    model, dvae = state_dicts(MINIMAL)
    assert set(model) | set(dvae) <= set(fates)
    assert "used     gpt: gpt/text_embedding" in fates["gpt.text_embedding.weight"]
    assert "skipped  a step counter" in fates["hifigan_decoder.speaker_encoder.bn1.num_batches_tracked"]
    used = sum(len(tensor.names) for tensor in coqui.model_tensors(MINIMAL))
    assert any(line.startswith(f"model.pth: {len(model)} tensors, {used} used; ") for line in lines)


def flawed(change):
    model, _ = state_dicts(MINIMAL)
    change(model)
    return {"model": model}


FLAWS = {
    "lacks tensors: gpt.gpt.h.1.ln_2.bias": lambda m: m.pop("gpt.gpt.h.1.ln_2.bias"),
    "gpt.mel_head.weight is (10, 15) and not (10, 16)": lambda m: m.update(
        {"gpt.mel_head.weight": m["gpt.mel_head.weight"][:, :15]}
    ),
    "does not have: gpt.adapter.weight": lambda m: m.update({"gpt.adapter.weight": np.ones(3, np.float32)}),
    "gpt.final_norm.bias holds values that are not finite": lambda m: m.update(
        {"gpt.final_norm.bias": np.full(16, np.nan, np.float32)}
    ),
    "gpt.text_head.bias holds int64 and not floating-point": lambda m: m.update(
        {"gpt.text_head.bias": np.ones(60, np.int64)}
    ),
    "no tensor gpt.conditioning_perceiver.latents": lambda m: m.pop("gpt.conditioning_perceiver.latents"),
    "mel_scale.fb is not that of XTTS v2": lambda m: m.update(
        {"hifigan_decoder.speaker_encoder.torch_spec.1.mel_scale.fb": np.eye(257, 64, dtype=np.float32)}
    ),
    "mel_stats differ": lambda m: m.update({"mel_stats": 2 * m["mel_stats"]}),
    "ids below 20": lambda m: m.update(
        {name: m[name][:20] for name in ("gpt.text_embedding.weight", "gpt.text_head.weight", "gpt.text_head.bias")}
    ),
    "holds gpt.mel_head.bias twice": lambda m: m.update({"xtts.gpt.mel_head.bias": m["gpt.mel_head.bias"]}),
    "gpt.extra is something else": lambda m: m.update({"gpt.extra": "text"}),
}


@pytest.mark.parametrize("message", FLAWS)
def test_a_flaw_is_not_named(message, tmp_path, capsys):
    release = write_release(tmp_path / "in", model=flawed(FLAWS[message]))
    if message == "mel_stats differ":
        write_torch_checkpoint(release / "mel_stats.pth", state_dicts(MINIMAL)[0]["mel_stats"])
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_wrong_file_or_option_is_not_named(released, converted, tmp_path, capsys):
    model = released / "model.pth"
    (tmp_path / "other.json").write_text(json.dumps({"model_args": {"gpt_code_stride_len": 512}}))
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "model.pth").write_bytes(model.read_bytes())
    for arguments, message in (
        (("--from-coqui", tmp_path / "none.pth", "--output", tmp_path / "o"), "--from-coqui must be a file"),
        (("--from-coqui", model, "--dvae", tmp_path / "d.pth", "--output", tmp_path / "o"), "--dvae must be a file"),
        (("--from-coqui", tmp_path / "alone" / "model.pth", "--output", tmp_path / "o"), "--vocab must be"),
        (
            (
                "--from-coqui",
                tmp_path / "alone" / "model.pth",
                "--vocab",
                released / "vocab.json",
                "--output",
                tmp_path / "o",
            ),
            "Give its config.json with --config",
        ),
        (
            ("--from-coqui", model, "--config", tmp_path / "other.json", "--output", tmp_path / "o"),
            "model_args.gpt_code_stride_len must be 1024",
        ),
        (("--from-coqui", model, "--config", released / "model.pth", "--output", tmp_path / "o"), "--config must be"),
        (("--from-coqui", model, "--output", converted), "--output must be a folder that is new or empty"),
        (("--from-coqui", model, "--speakers", released / "dvae.pth", "--output", tmp_path / "o"), "a voice must be"),
        (("--to-coqui", tmp_path / "none", "--output", tmp_path / "m.pth"), "--to-coqui must be the folder"),
        (("--to-coqui", converted, "--dvae", model, "--output", tmp_path / "m.pth"), "--dvae goes with --from-coqui"),
        (("--to-coqui", converted, "--output", tmp_path / "m.pth"), "model.num_latents is 4 and not 32"),
    ):
        assert convert(*arguments) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "o").exists() and not (tmp_path / "m.pth").exists()


def test_a_hostile_checkpoint_is_run(released, tmp_path, capsys):
    marker = tmp_path / "ran"
    # Protocol 0: call os.system on the string.
    hostile = b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode()
    with zipfile.ZipFile(tmp_path / "model.pth", "w") as archive:
        archive.writestr("archive/data.pkl", hostile)
    assert (
        convert(
            "--from-coqui", tmp_path / "model.pth", "--vocab", released / "vocab.json", "--output", tmp_path / "out"
        )
        == 2
    )
    assert "os.system" in capsys.readouterr().err
    assert not marker.exists() and not (tmp_path / "out").exists()


def test_a_model_without_dvae_loses_its_mel_scale(tmp_path, capsys):
    release = write_release(tmp_path / "in", dvae=False)
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 0
    assert "There is no DVAE" in capsys.readouterr().out
    assert not (tmp_path / "out" / "dvae").exists()
    stats = CheckpointStore(tmp_path / "out" / "gpt").read(0, ("mel_stats",))[0]["mel_stats"]["mel_stats"]
    np.testing.assert_array_equal(stats, state_dicts(MINIMAL)[0]["mel_stats"])


def test_a_model_without_dvae_does_not_speak_or_speaks_with_another_scale(tmp_path, capsys):
    release = write_release(tmp_path / "in", dvae=False)
    folders = tmp_path / "plain", tmp_path / "with_dvae"
    assert convert("--from-coqui", release / "model.pth", "--output", folders[0]) == 0
    write_torch_checkpoint(tmp_path / "dvae.pth", state_dicts(MINIMAL)[1])
    assert convert("--from-coqui", release / "model.pth", "--dvae", tmp_path / "dvae.pth", "--output", folders[1]) == 0
    reference = tmp_path / "voice.wav"
    soundfile.write(reference, voiced(1.0, 150, 1), 22050)
    spoken = []
    for folder in folders:
        say = ["say", "--checkpoint", folder, "--text", "the fox", "--output", folder / "out.wav"]
        assert main([*map(str, say), "--reference-audio", str(reference)]) == 0
        samples, rate = soundfile.read(folder / "out.wav")
        assert rate == 24000 and len(samples)
        spoken.append(samples)
    # The decoder speaks in both; the latents, and so the codes, would be others with another mel scale.
    np.testing.assert_array_equal(*spoken)
    assert (
        main(
            [
                *map(str, ["say", "--checkpoint", folders[0], "--text", "the fox", "--output", tmp_path / "bo.wav"]),
                "--speaker",
                "Bo/Li",
            ]
        )
        == 0
    )
    shutil.rmtree(folders[0] / "decoder")
    capsys.readouterr()
    assert main([*map(str, say), "--speaker", "Bo/Li", "--checkpoint", str(folders[0])]) == 2
    assert "no trained dvae and no waveform decoder" in capsys.readouterr().err


def test_a_named_voice_is_not_read(converted, tmp_path):
    assert speaker_names(converted) == ["Ana Ruiz", "Bo/Li"]
    latents, vector = read_speaker(converted, "Bo/Li")
    np.testing.assert_array_equal(latents, seeded_values("voice", (1, 4, 16)))
    np.testing.assert_array_equal(vector, seeded_values("voice", (1, 6, 1))[..., 0])
    with pytest.raises(CheckpointError, match="one of the model's 2 voices. Received: ana. Near it: Ana Ruiz"):
        read_speaker(converted, "ana")
    with pytest.raises(CheckpointError, match="needs a model that comes with voices"):
        read_speaker(tmp_path, "Ana Ruiz")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_conversion_takes_memory_or_tensorflow(tmp_path):
    release = write_release(tmp_path / "in", replace(MINIMAL, layers=36, width=256))
    code = (
        "import re, sys; from myxtts.cli.main import main; "
        "code = main(sys.argv[1:]); assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules; "
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "convert",
            "--from-coqui",
            str(release / "model.pth"),
            "--output",
            str(tmp_path / "out"),
        ],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    peak_bytes = 1024 * int(ran.stdout.splitlines()[-1])
    size_bytes = (release / "model.pth").stat().st_size
    assert size_bytes > 100e6
    assert peak_bytes < 2.5 * size_bytes


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


def test_export_changes_a_tensor(released_shape, tmp_path, capsys):
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
