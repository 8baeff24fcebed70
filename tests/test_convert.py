"""`myxtts convert --from-coqui`: all layouts of a release give the same model, which speaks; errors name the fault."""

import functools
import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import soundfile
from released_model import MINIMAL, SETTINGS, assert_same_weights, convert, state_dicts, weights, write_release
from tiny import untraced, voiced

from myxtts.__main__ import main
from myxtts.config.config import ModelConfig, config_from_dict
from myxtts.inference.synthesizer import Synthesizer
from myxtts.interchange.coqui import weights as coqui
from myxtts.interchange.coqui.settings import coqui_settings, model_config, read_settings, run_config
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint, write_torch_checkpoint
from myxtts.models.xtts import PARTS, XTTS
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name
from myxtts.storage.files import read_json
from myxtts.storage.speakers import read_speaker, read_speakers
from myxtts.text.tokenizer import XTTSTokenizer
from utilities.parity.seeded_weights import seeded_values


@pytest.mark.parametrize("size", ["minimal", "nano"])
def test_the_tables_list_the_weights_of_the_model(size):
    config = MINIMAL if size == "minimal" else ModelConfig(size, num_text_tokens=40, decoder_type="hifigan")
    model = XTTS(config, PARTS)
    mapped = {part: {} for part in PARTS}
    for tensor in (*coqui.model_tensors(config), *coqui.dvae_tensors(config)):
        mapped[tensor.part][tensor.weight] = coqui.our_shape(tensor)
    assert mapped == {
        part: {name: tuple(variable.shape) for name, variable in model.part_weights(part).items()} for part in PARTS
    }


def test_converted_weights_fit_the_model_in_shape_and_layout(released, converted):
    found = weights(converted)
    model = XTTS(config_from_dict(read_json(converted / "config.json")).model, PARTS)
    for part in PARTS:
        assign_by_name(model.part_weights(part), found[part], part)
    source = read_torch_checkpoint(released / "model.pth")["model"]
    dvae = read_torch_checkpoint(released / "dvae.pth")
    gpt, speaker, decoder = found["gpt"], found["speaker"], found["decoder"]
    np.testing.assert_array_equal(gpt["gpt/block_1/mlp_in/kernel"], source["gpt.gpt.h.1.mlp.c_fc.weight"])
    np.testing.assert_array_equal(gpt["gpt/text_head/kernel"], source["gpt.text_head.weight"].T)
    np.testing.assert_array_equal(found["dvae"]["dvae/quantizer/codebook"], dvae["codebook.embed"].T)
    kernel, weight = found["dvae"]["dvae/decoder_conv_1/kernel"], dvae["decoder.3.0.conv.weight"]
    assert kernel[2, 5, 1] == weight[1, 5, 2]
    # The speaker encoder's images are (mel, time) in PyTorch and (time, mel) here.
    kernel = speaker["speaker_encoder/group_1_block_0/conv1/kernel"]
    assert kernel[0, 2, 3, 4] == source["hifigan_decoder.speaker_encoder.layer2.0.conv1.weight"][4, 3, 2, 0]
    up = "hifigan_decoder.waveform_decoder.ups.1.parametrizations.weight.original"
    direction = source[f"{up}1"][3].astype(np.float64)
    np.testing.assert_allclose(
        decoder["decoder/upsample_1/kernel"][:, :, 3].T,
        direction / np.linalg.norm(direction) * source[f"{up}0"][3, 0, 0],
        rtol=1e-6,
    )


def test_a_converted_model_has_the_settings_and_shapes_of_its_files(released, converted):
    config = config_from_dict(read_json(converted / "config.json"))
    # No file has the shape of the other decoder.
    others = {name: getattr(MINIMAL, name) for name in ("size", "decoder_blocks", "decoder_width")}
    assert replace(config.model, **others) == replace(MINIMAL, start_text_token=3)
    assert (config.sampling.temperature, config.sampling.top_k, config.sampling.top_p) == (0.6, 40, 0.9)
    assert (config.sampling.repetition_penalty, config.sampling.reference_seconds) == (3.0, 24.0)
    assert (config.sampling.recording_seconds, config.sampling.reference_chunk_seconds) == (20.0, 5.0)
    assert (config.data.conditioning_source, config.data.conditioning_padding) == ("clip", "zeros")
    copies = converted / "vocab.json", CheckpointStore(converted / "gpt").file(0, "vocab.json")
    assert [copy.read_bytes() for copy in copies] == 2 * [(released / "vocab.json").read_bytes()]


def test_released_shape_is_the_size_big():
    """Derives the settings without config.json, from the released tensor shapes alone."""
    big = ModelConfig("big", num_text_tokens=6681)
    shapes = {name: shape for tensor in coqui.model_tensors(big) for name, shape in zip(tensor.names, tensor.shapes)}
    settings = read_settings(None, None)
    model = model_config(shapes, settings, XTTSTokenizer.train([("a fox", "en")], 50))
    assert model == big
    config = run_config(model, settings)
    assert (config.sampling.temperature, config.sampling.repetition_penalty) == (0.75, 5.0)
    assert (config.sampling.reference_seconds, config.sampling.reference_chunk_seconds) == (30.0, 4.0)
    assert (config.data.max_seconds, config.data.max_text_length) == (11.6, 200)
    config.sampling.reference_chunk_seconds, config.data.conditioning_seconds = None, (0.3, 0.4)
    assert coqui_settings(config, ["en"])["gpt_cond_chunk_len"] == 1


def trainer_layout(model, dvae):
    named = {f"xtts.{name}": value for name, value in model.items()} | {f"dvae.{name}": v for name, v in dvae.items()}
    for front_end in ("style_encoder", "dvae"):
        named[f"torch_mel_spectrogram_{front_end}.mel_stft.spectrogram.window"] = np.ones(8, np.float32)
    schedulers = [{"milestones": Counter([900, 2700])}]
    return {"model": named, "optimizer": [{"state": {}}], "scheduler": schedulers, "config": SETTINGS, "step": 3}


def after_inference_layout(model, _dvae):
    extra = {
        "gpt.gpt.wte.weight": model["gpt.mel_embedding.weight"],
        "gpt.gpt_inference.transformer.ln_f.weight": model["gpt.gpt.ln_f.weight"],
        "gpt.gpt.h.0.attn.bias": np.ones((1, 1, 4, 4), bool),
    }
    return {"model": model | extra}


def first_weight_norm_layout(model, _dvae):
    modern = "parametrizations.weight.original"
    old = lambda name: name.replace(f"{modern}0", "weight_g").replace(f"{modern}1", "weight_v")
    return {"model": {old(name): value for name, value in model.items()}}


@pytest.mark.parametrize("layout", [trainer_layout, after_inference_layout, first_weight_norm_layout, lambda m, _: m])
def test_every_layout_gives_the_same_model(layout, converted, tmp_path):
    options = dict(dvae=False, settings=None) if layout is trainer_layout else {}  # it has its own
    release = write_release(tmp_path / "in", model=layout(*state_dicts(MINIMAL)), **options)
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 0
    assert_same_weights(tmp_path / "out", converted)
    assert read_json(tmp_path / "out/config.json") == read_json(converted / "config.json")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_widened_to_float32(dtype, converted, tmp_path):
    stored, _ = state_dicts(MINIMAL)
    half = {name: value.astype(dtype) if value.dtype == np.float32 else value for name, value in stored.items()}
    release = write_release(tmp_path / "in", model={"model": half})
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 0
    for name, value in weights(converted)["gpt"].items():
        found = weights(tmp_path / "out")["gpt"][name]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, value.astype(dtype).astype(np.float32), err_msg=name)


def test_coverage_table_names_every_tensor(released, tmp_path, capsys):
    assert convert("--from-coqui", released / "model.pth", "--output", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    fates = {line.split()[0]: line for line in lines}
    model, dvae = state_dicts(MINIMAL)
    assert set(model) | set(dvae) <= set(fates)
    assert "used     gpt: gpt/text_embedding" in fates["gpt.text_embedding.weight"]
    assert "skipped  a step counter" in fates["hifigan_decoder.speaker_encoder.bn1.num_batches_tracked"]
    used = sum(len(tensor.names) for tensor in coqui.model_tensors(MINIMAL))
    assert any(line.startswith(f"model.pth: {len(model)} tensors, {used} used; ") for line in lines)


def test_a_model_without_dvae_speaks_with_its_mel_scale(tmp_path, capsys, monkeypatch):
    release = write_release(tmp_path / "in", dvae=False)
    folders = tmp_path / "plain", tmp_path / "with_dvae"
    assert convert("--from-coqui", release / "model.pth", "--output", folders[0]) == 0
    write_torch_checkpoint(tmp_path / "dvae.pth", state_dicts(MINIMAL)[1])
    assert convert("--from-coqui", release / "model.pth", "--dvae", tmp_path / "dvae.pth", "--output", folders[1]) == 0
    reference = tmp_path / "voice.wav"
    soundfile.write(reference, voiced(1.0, 150, 1), 22050)

    def say(folder, *voice):
        command = ["say", "--checkpoint", folder, "--text", "the fox", "--output", tmp_path / "out.wav", *voice]
        with untraced():
            return main([str(argument) for argument in command])

    spoken = []
    with monkeypatch.context() as patch:
        patch.setattr(Synthesizer, "load", functools.cache(Synthesizer.load))
        for folder in folders:
            assert say(folder, "--reference-audio", reference) == 0
            samples, rate = soundfile.read(tmp_path / "out.wav")
            assert rate == 24000 and len(samples)
            spoken.append(samples)
        assert say(folders[0], "--speaker", "Bo/Li") == 0
    # Both have a decoder; with another mel scale the latents, and so the codes, would differ.
    np.testing.assert_array_equal(*spoken)
    shutil.rmtree(folders[0] / "decoder")
    capsys.readouterr()
    assert say(folders[0], "--speaker", "Bo/Li") == 2
    assert "no trained dvae" in capsys.readouterr().err


def test_a_named_voice_is_read(converted):
    assert [*read_speakers(converted)] == ["Ana Ruiz", "Bo/Li"]
    latents, vector = read_speaker(converted, "Bo/Li")
    np.testing.assert_array_equal(latents, seeded_values("voice", (1, 4, 16)))
    np.testing.assert_array_equal(vector, seeded_values("voice", (1, 6, 1))[..., 0])
    with pytest.raises(CheckpointError, match="one of the model's 2 voices. Received: ana. Similar: Ana Ruiz"):
        read_speaker(converted, "ana")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_conversion_takes_little_memory_and_no_tensorflow(tmp_path):
    release = write_release(tmp_path / "in", replace(MINIMAL, layers=36, width=256))
    code = (
        "import re, sys; from myxtts.interchange.coqui import settings, weights; from myxtts.__main__ import main; "
        "code = main(sys.argv[1:]); assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules; "
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    files = ["--from-coqui", release / "model.pth", "--output", tmp_path / "out"]
    command = [sys.executable, "-c", code, "convert", *files]
    ran = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    peak_bytes = 1024 * int(ran.stdout.splitlines()[-1])
    size_bytes = (release / "model.pth").stat().st_size
    assert size_bytes > 100e6
    assert peak_bytes < 2.5 * size_bytes


FLAWS = {
    "lacks tensors: gpt.gpt.h.1.ln_2.bias": lambda m: {"gpt.gpt.h.1.ln_2.bias": None},
    "gpt.mel_head.weight is (10, 15) float32": lambda m: {"gpt.mel_head.weight": m["gpt.mel_head.weight"][:, :15]},
    "does not have: gpt.adapter.weight": lambda m: {"gpt.adapter.weight": np.ones(3, np.float32)},
    "gpt.final_norm.bias contains values that are not": lambda m: {"gpt.final_norm.bias": np.full(16, np.nan, "f4")},
    "gpt.text_head.bias is (60,) int64": lambda m: {"gpt.text_head.bias": np.ones(60, np.int64)},
    "no tensor gpt.conditioning_perceiver.latents": lambda m: {"gpt.conditioning_perceiver.latents": None},
    "mel_scale.fb differs": lambda m: {[*coqui.FRONT_END][2]: np.eye(257, 64, dtype="f4")},
    "mel_stats differ": lambda m: {"mel_stats": 2 * m["mel_stats"]},
    "ids below 20": lambda m: {name: m[name][:20] for name in m if name.startswith(("gpt.text_emb", "gpt.text_head"))},
    "contains gpt.mel_head.bias twice": lambda m: {"xtts.gpt.mel_head.bias": m["gpt.mel_head.bias"]},
    "'gpt.extra' is not a tensor": lambda m: {"gpt.extra": "text"},
}
"""Message, and the tensors that cause it, given those of a sound model; None removes a tensor."""


@pytest.mark.parametrize("message", FLAWS)
def test_a_flaw_is_named(message, tmp_path, capsys):
    sound, _ = state_dicts(MINIMAL)
    flawed = {name: value for name, value in (sound | FLAWS[message](sound)).items() if value is not None}
    release = write_release(tmp_path / "in", model={"model": flawed})
    if message == "mel_stats differ":
        write_torch_checkpoint(release / "mel_stats.pth", sound["mel_stats"])
    assert convert("--from-coqui", release / "model.pth", "--output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_wrong_file_or_option_is_named(released, converted, tmp_path, capsys):
    model = released / "model.pth"
    (tmp_path / "other.json").write_text(json.dumps({"model_args": {"gpt_code_stride_len": 512}}))
    alone, to = tmp_path / "alone" / "model.pth", ("--output", tmp_path / "o")
    alone.parent.mkdir()
    alone.write_bytes(model.read_bytes())
    for arguments, message in (
        (("--from-coqui", model, "--dvae", tmp_path / "d.pth", *to), "--dvae must be a file"),
        (("--from-coqui", alone, "--vocab", released / "vocab.json", *to), "config.json with --config"),
        (("--from-coqui", model, "--config", tmp_path / "other.json", *to), "gpt_code_stride_len must be 1024"),
        (("--from-coqui", model, "--config", released / "model.pth", *to), "--config must be"),
        (("--from-coqui", model, "--output", converted), "--output must be a new or empty folder"),
        (("--from-coqui", model, "--speakers", released / "dvae.pth", *to), "must be arrays"),
        (("--to-coqui", tmp_path / "none", "--output", tmp_path / "m.pth"), "--to-coqui must be the folder"),
        (
            ("--to-coqui", converted, "--dvae", model, "--output", tmp_path / "m.pth"),
            "--dvae must be left out with --to-coqui",
        ),
        (("--to-coqui", converted, "--output", tmp_path / "m.pth"), "model.num_latents is 4 and not 32"),
    ):
        assert convert(*arguments) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "o").exists() and not (tmp_path / "m.pth").exists()
