"""The models on another backend of Keras, without TensorFlow: the outputs are TensorFlow's for the same weights."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from tiny import advance, tiny_model_config

from myxtts.models.discriminators import Discriminators
from myxtts.models.layers import blank_weights
from myxtts.models.speaker_encoder import SpeakerEncoder
from myxtts.models.waveform_decoders import HifiganGenerator, IstftGenerator
from myxtts.models.xtts import XTTS, named_weights

ROOT = Path(__file__).parents[1]
RUN_ON_JAX = """
import sys

class NoTensorFlow:  # nor other packages that Keras imports if they are there
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "sklearn", "matplotlib"):
            raise ImportError("models do without it")

sys.meta_path.insert(0, NoTensorFlow())
import jax
import keras
import numpy
import test_models_on_jax

assert keras.backend.backend() == "jax"
models = test_models_on_jax.drawn_models()
outputs = jax.jit(lambda *inputs: test_models_on_jax.outputs_of(models, *inputs))(*test_models_on_jax.inputs())
numpy.savez(sys.argv[1], **outputs)
from myxtts.models.layers import dense, shared_array
assert shared_array(dense(4, 3, "plain").kernel).shape == (3, 4)
assert dense(4, 3, "dense", dtype="mixed_bfloat16")(numpy.ones((2, 3), "float32")).dtype == "bfloat16"
assert not any(name.partition(".")[0] == "tensorflow" for name in sys.modules)
"""


def drawn_models():
    """Returns tiny models whose weights are seeded by their position."""
    with blank_weights():
        model = XTTS(tiny_model_config(num_text_tokens=10, layers=1))
        decoder = HifiganGenerator(16, 16, 8, ((4, 8), (2, 4)), (3, 7), (1, 3))
        decoder.code_stride = 32
        encoder = SpeakerEncoder(16, (8, 8), (1, 1), 16)
        istft = IstftGenerator(16, 16, 3, 8, 128)
        discriminators = Discriminators(256, (3,), (512,))
    for layer in (model, decoder, encoder, istft, discriminators):
        for name, variable in named_weights(layer).items():
            random = np.random.default_rng([len(name), *name.encode()])
            positive = any(word in name for word in ("variance", "gamma", "cluster_size", "mel_stats"))
            fan_in = np.prod(variable.shape[:-1]) if len(variable.shape) > 1 else 25
            values = random.standard_normal(variable.shape) / np.sqrt(fan_in)
            variable.assign((1.0 + np.abs(values) if positive else values).astype("float32"))
    return model, decoder, encoder, istft, discriminators


def inputs():
    random = np.random.default_rng(0)
    mel, speaker_mel = (random.standard_normal((2, 12, bands)).astype("float32") for bands in (80, 16))
    text = np.array([[3, 5, 6, 7, 0], [3, 8, 0, 0, 0]], "int32")
    text_mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    return mel, speaker_mel, text, text_mask, random.integers(0, 16, (2, 3)).astype("int32")


def outputs_of(models, mel, speaker_mel, text, text_mask, codes):
    """Returns the outputs of each part of the models, by name."""
    model, decoder, encoder, istft, discriminators = models
    gpt, num_codes = model.gpt, codes.shape[1]
    mel = model.normalize_mel(mel)
    found = {"encoded": model.dvae.encode(mel), "decoded": model.dvae.decode(codes), **model.dvae(mel)}
    latents = found["latents"] = gpt.mel_to_latents(mel)
    key_mask = ops.pad(text_mask, ((0, 0), (0, num_codes)), constant_values=True)
    found["text_logits"], found["audio_logits"] = gpt(latents, text, codes, key_mask=key_mask)
    state, mask = gpt.prefill(latents, text, text_mask), ops.pad(text_mask, ((0, 0), (4, 1)), constant_values=True)
    found["prefill"], found["first_state"] = state.logits, state.hidden
    for index in range(num_codes):
        mask, state = advance(gpt, codes[:, index], index, mask, state)
        found[f"advance_{index}"] = state.logits
    found["states"] = gpt.codes_to_latents(latents, text, codes, text_mask)
    found["speaker"] = encoder(speaker_mel)
    found["waveform"] = decoder(found["states"], found["speaker"])
    wav = istft(found["states"], found["speaker"])[:, :3072]
    found["istft_waveform"] = wav
    for index, maps in enumerate(discriminators(wav)):
        found |= {f"map_{index}_{place}": one for place, one in enumerate(maps)}
    return found


@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
def test_models_give_the_same_outputs_on_jax_without_tensorflow(tmp_path):
    environment = os.environ | dict(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    command = [sys.executable, "-c", RUN_ON_JAX, tmp_path / "outputs.npz"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    expected = outputs_of(drawn_models(), *inputs())
    with np.load(tmp_path / "outputs.npz") as found:
        assert set(found) == set(expected)
        for name, value in expected.items():
            value = keras.ops.convert_to_numpy(value)
            assert np.abs(value).max() > 1e-2, name
            np.testing.assert_allclose(found[name], value, atol=1e-5 * max(1, np.abs(value).max()), err_msg=name)
