"""Compares the model with outputs of coqui-tts for the same weights: the tiny checkpoint of the shared folder.

Tolerances are maximum absolute differences in float32, unless a comment says otherwise.
"""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from parity_helpers import ReferenceObjective, channels_last, difference

from myxtts.config.config import SamplingConfig
from myxtts.data.batch import GPTBatch
from myxtts.inference.synthesizer import Synthesizer
from myxtts.interchange.coqui.conversion import CoquiFiles, import_coqui

PARITY = Path(__file__).resolve().parents[2] / "shared" / "reference" / "parity"
pytestmark = pytest.mark.skipif(not PARITY.is_dir(), reason="the shared folder with reference values is not there")


@pytest.fixture(scope="module")
def reference():
    return np.load(PARITY / "reference.npz")


@pytest.fixture(scope="module")
def synthesizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity") / "model"
    import_coqui(CoquiFiles.of(PARITY / "model.pth"), folder)
    return Synthesizer.load(folder)


def batch_of(reference):
    """Returns the batch for which the reference computed losses."""
    code_lengths = -(-reference["gpt/wav_lengths"] // 1024)
    return GPTBatch(
        tf.range(3),
        tf.constant(reference["gpt/text_inputs"], tf.int32),
        tf.constant(reference["gpt/text_lengths"], tf.int32),
        channels_last(reference["gpt/cond_mels"][:, 0]),
        tf.constant(reference["gpt/audio_codes"][:, : code_lengths.max()], tf.int32),
        tf.constant(code_lengths, tf.int32),
        tf.zeros((3, 2), tf.int32),
    )


@pytest.mark.parametrize("seconds, chunk, name", [(30.0, 4.0, "len30_chunk4"), (6.0, 6.0, "len6_chunk6")])
def test_voice_of_a_recording_equals_the_reference(synthesizer, reference, monkeypatch, seconds, chunk, name):
    sampling = SamplingConfig(reference_seconds=seconds, reference_chunk_seconds=chunk)
    monkeypatch.setattr(synthesizer.config, "sampling", sampling)
    voice = synthesizer.voice(reference["audio/ref1_22k"])
    assert difference(voice.latents, reference[f"cond/latents_{name}"]) < 1e-4
    if seconds == 30.0:
        assert difference(voice.speaker, reference["spk/get_speaker_embedding"][..., 0]) < 1e-4


def test_losses_equal_the_reference(synthesizer, reference):
    objective, batch = ReferenceObjective(synthesizer.model, synthesizer.config), batch_of(reference)
    plain, _ = objective.losses(batch)
    assert plain["text"] == pytest.approx(float(reference["gpt/noidx/loss_text"]), abs=1e-5)
    assert plain["codes"] == pytest.approx(float(reference["gpt/noidx/loss_mel"]), abs=1e-5)
    # The reference hides targets in the last row only, and counts their positions in units of 256 samples.
    span = np.zeros((3, 2), np.int32)
    span[-1] = reference["gpt/cond_idxs_samples"][-1] // 256
    masked, _ = objective.losses(batch._replace(conditioning_codes=tf.constant(span)))
    assert masked["codes"] == pytest.approx(float(reference["gpt/idx/loss_mel"]), abs=1e-5)


def test_greedy_codes_equal_the_reference(synthesizer, reference):
    sampling = SamplingConfig(temperature=0.0, repetition_penalty=1.0)
    latents = reference["cond/latents_len30_chunk4"]
    streams = [synthesizer.engine.open(ids.tolist(), latents, sampling, max_codes=117) for ids in reference["lat/text"]]
    synthesizer.engine.finish(streams)
    codes = [(stream.codes + 117 * [synthesizer.config.model.stop_audio_token])[:117] for stream in streams]
    np.testing.assert_array_equal(codes, reference["gen/greedy"])
