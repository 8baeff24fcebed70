"""`myxtts convert` names every flaw of its files, and writes nothing then."""

import json

import numpy as np
import pytest
from released_model import MINIMAL, convert, state_dicts, write_release

from myxtts.interchange.coqui.torch_checkpoint import write_torch_checkpoint


def flawed(change):
    model, _ = state_dicts(MINIMAL)
    change(model)
    return {"model": model}


FLAWS = {
    "lacks tensors: gpt.gpt.h.1.ln_2.bias": lambda m: m.pop("gpt.gpt.h.1.ln_2.bias"),
    "gpt.mel_head.weight is (10, 15) float32": lambda m: m.update(
        {"gpt.mel_head.weight": m["gpt.mel_head.weight"][:, :15]}
    ),
    "does not have: gpt.adapter.weight": lambda m: m.update({"gpt.adapter.weight": np.ones(3, np.float32)}),
    "gpt.final_norm.bias holds values that are not finite": lambda m: m.update(
        {"gpt.final_norm.bias": np.full(16, np.nan, np.float32)}
    ),
    "gpt.text_head.bias is (60,) int64": lambda m: m.update({"gpt.text_head.bias": np.ones(60, np.int64)}),
    "no tensor gpt.conditioning_perceiver.latents": lambda m: m.pop("gpt.conditioning_perceiver.latents"),
    "mel_scale.fb is not that of XTTS v2": lambda m: m.update(
        {"hifigan_decoder.speaker_encoder.torch_spec.1.mel_scale.fb": np.eye(257, 64, dtype=np.float32)}
    ),
    "mel_stats differ": lambda m: m.update({"mel_stats": 2 * m["mel_stats"]}),
    "ids below 20": lambda m: m.update(
        {name: m[name][:20] for name in ("gpt.text_embedding.weight", "gpt.text_head.weight", "gpt.text_head.bias")}
    ),
    "holds gpt.mel_head.bias twice": lambda m: m.update({"xtts.gpt.mel_head.bias": m["gpt.mel_head.bias"]}),
    "'gpt.extra' is something else": lambda m: m.update({"gpt.extra": "text"}),
}


@pytest.mark.parametrize("message", FLAWS)
def test_a_flaw_is_named(message, tmp_path, capsys):
    release = write_release(tmp_path / "in", model=flawed(FLAWS[message]))
    if message == "mel_stats differ":
        write_torch_checkpoint(release / "mel_stats.pth", state_dicts(MINIMAL)[0]["mel_stats"])
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
        (("--from-coqui", tmp_path / "none.pth", *to), "--from-coqui must be a file"),
        (("--from-coqui", model, "--dvae", tmp_path / "d.pth", *to), "--dvae must be a file"),
        (("--from-coqui", alone, *to), "vocab.json"),
        (("--from-coqui", alone, "--vocab", released / "vocab.json", *to), "Give its config.json with --config"),
        (
            ("--from-coqui", model, "--config", tmp_path / "other.json", *to),
            "model_args.gpt_code_stride_len must be 1024",
        ),
        (("--from-coqui", model, "--config", released / "model.pth", *to), "--config must be"),
        (("--from-coqui", model, "--output", converted), "--output must be a folder that is new or empty"),
        (("--from-coqui", model, "--speakers", released / "dvae.pth", *to), "a voice must be"),
        (("--to-coqui", tmp_path / "none", "--output", tmp_path / "m.pth"), "--to-coqui must be the folder"),
        (("--to-coqui", converted, "--dvae", model, "--output", tmp_path / "m.pth"), "--dvae goes with --from-coqui"),
        (("--to-coqui", converted, "--output", tmp_path / "m.pth"), "model.num_latents is 4 and not 32"),
    ):
        assert convert(*arguments) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "o").exists() and not (tmp_path / "m.pth").exists()
