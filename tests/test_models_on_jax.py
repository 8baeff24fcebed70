"""The models on another backend of Keras, without TensorFlow: the outputs that TensorFlow gives for the same weights."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tiny import tiny_model_config

from myxtts.models.layers.convolution import set_fewer_products
from myxtts.models.xtts import PARTS, XTTS

ROOT = Path(__file__).parents[1]
RUN_ON_JAX = """
import sys

class NoTensorFlow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ImportError("models do without TensorFlow")

sys.meta_path.insert(0, NoTensorFlow())
import keras
import numpy
import test_models_on_jax

assert keras.backend.backend() == "jax"
numpy.savez(sys.argv[1], **test_models_on_jax.outputs_of(test_models_on_jax.drawn_model()))
assert not any(name.partition(".")[0] == "tensorflow" for name in sys.modules)
"""


def drawn_model():
    """A tiny model with all parts, every weight drawn by its place, and all convolutions filtered that may be."""
    model = XTTS(tiny_model_config(), parts=PARTS)
    for part in PARTS:
        for name, variable in model.part_weights(part).items():
            random = np.random.default_rng([len(name), *name.encode()])
            positive = any(word in name for word in ("variance", "gamma", "cluster_size", "mel_stats"))
            fan_in = np.prod(variable.shape[:-1]) if len(variable.shape) > 1 else 25
            values = random.standard_normal(variable.shape) / np.sqrt(fan_in)
            variable.assign(1.0 + np.abs(values) if positive else values)
    for layer in (*model.dvae.encoder_blocks, model.decoder, model.speaker_encoder):
        set_fewer_products(layer, True)
    return model


def outputs_of(model):
    """What each part of a model gives for drawn inputs, by name."""
    config, random = model.config, np.random.default_rng(0)
    mel, speaker_mel = (random.standard_normal((2, 24, bands)).astype("float32") for bands in (80, 64))
    text = np.array([[3, 5, 6, 7, 0], [3, 8, 0, 0, 0]], "int32")
    text_mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    codes = random.integers(0, config.num_codes, (2, 6)).astype("int32")
    mel = model.normalize_mel(mel)
    found = {"codes": model.dvae.encode(mel), "decoded": model.dvae.decode(codes), **model.dvae(mel)}
    gpt = model.gpt
    latents = found["latents"] = gpt.mel_to_latents(mel)
    key_mask = np.concatenate([text_mask, np.ones((2, 6), bool)], axis=1)
    found["text_logits"], found["audio_logits"] = gpt(latents, text, codes, key_mask=key_mask)
    found["prefill"], state = gpt.prefill(latents, text, text_mask, config.start_audio_token, 6)
    for index in range(6):
        found[f"advance_{index}"], state = gpt.advance(codes[:, index], index, config.num_latents + 6, state)
    found["states"] = gpt.codes_to_latents(latents, text, codes, config.start_audio_token, text_mask)
    found["speaker"] = model.speaker_encoder(speaker_mel)
    found["waveform"] = model.decoder(found["states"], found["speaker"])
    return {name: keras.ops.convert_to_numpy(value) for name, value in found.items()}


def test_models_give_the_same_outputs_on_jax_without_tensorflow(tmp_path):
    pytest.importorskip("jax")
    paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-c", RUN_ON_JAX, tmp_path / "outputs.npz"], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    expected = outputs_of(drawn_model())
    with np.load(tmp_path / "outputs.npz") as found:
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert np.abs(value).max() > 1e-2, name
            np.testing.assert_allclose(found[name], value, atol=1e-5 * max(1, np.abs(value).max()), err_msg=name)
