"""How long a reference must be for a voice to be heard in it."""

from types import SimpleNamespace

import pytest
import soundfile
import tensorflow as tf
from tiny import tiny_run_config, voiced

from myxtts.audio.files import AudioError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.voices import VoiceEncoder


@pytest.fixture(scope="module")
def encoder(eagerly):
    """A `VoiceEncoder` whose model hears nothing."""
    gpt = SimpleNamespace(mel_to_latents=lambda mel: tf.zeros((len(mel), 2, 4)))
    model = SimpleNamespace(gpt=gpt, normalize_mel=lambda mel: mel, parts=())
    return VoiceEncoder(model, tiny_run_config(data={"conditioning_seconds": (0.6, 1.0)}))


@pytest.mark.parametrize("seconds, fate", [(0.1, "refused"), (0.25, "refused"), (0.4, "warned"), (0.7, "heard")])
def test_reference_in_which_no_voice_can_be_heard_is_refused_and_a_short_one_is_said(
    encoder, tmp_path, caplog, seconds, fate
):
    sound = voiced(seconds, 150, 1)
    soundfile.write(tmp_path / "a.wav", sound, MODEL_SAMPLE_RATE)
    if fate == "refused":
        with pytest.raises(AudioError, match=f"cannot be heard in {seconds} s; give 0.33 s or more"):
            encoder(tmp_path / "a.wav")
        encoder([tmp_path / "a.wav"] * 8)  # short pieces of one voice add up
    else:
        encoder(tmp_path / "a.wav")
    assert ("The reference lasts" in caplog.text) == (fate == "warned")
    encoder(sound)  # a clip of the training set is heard as it is
