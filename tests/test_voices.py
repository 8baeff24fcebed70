"""Voices: files, blends, and the cache by the content of recordings."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from tiny import random_model, tiny_run_config, voiced

from myxtts.audio.files import AudioError
from myxtts.config.checks import UserError
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference.voices import Voice, VoiceEncoder
from myxtts.storage.files import CheckpointError


def drawn(seed, speaker=True):
    random = np.random.default_rng(seed)
    latents = random.standard_normal((1, 4, 16)).astype("float32")
    return Voice(latents, random.standard_normal((1, 16)).astype("float32") if speaker else None)


@pytest.mark.parametrize("speaker", [True, False])
def test_saved_voice_is_the_same(tmp_path, speaker):
    voice = drawn(0, speaker)
    voice.save(tmp_path / "a.voice")
    loaded = Voice.load(tmp_path / "a.voice")
    np.testing.assert_array_equal(loaded.latents, voice.latents)
    assert (loaded.speaker is None) == (not speaker)
    np.testing.assert_array_equal(loaded.speaker, voice.speaker)


def test_file_without_a_voice_is_named(tmp_path):
    (tmp_path / "a.voice").write_bytes(b"RIFF")
    for name in ("a.voice", "nobody.voice"):
        with pytest.raises(CheckpointError, match=name):
            Voice.load(tmp_path / name)
    (tmp_path / "folder.voice").mkdir()
    for name in ("folder.voice", "missing/a.voice"):
        with pytest.raises(UserError, match=f"{name} cannot be written"):
            drawn(0).save(tmp_path / name)


def test_blend_is_the_weighted_mean():
    one, other = drawn(0), drawn(1)
    half, quarter = Voice.blend([one, other]), Voice.blend([one, other], [3, 1])
    np.testing.assert_allclose(half.latents, (one.latents + other.latents) / 2, atol=1e-6)
    np.testing.assert_allclose(quarter.speaker, 0.75 * one.speaker + 0.25 * other.speaker, atol=1e-6)
    np.testing.assert_array_equal(Voice.blend([one, other], [1e308, 1e308]).latents, half.latents)
    assert quarter.latents.dtype == quarter.speaker.dtype == np.float32
    for voices, weights in (([], None), ([one], [0]), ([one, other], [1]), ([one, other], [2, -1])):
        with pytest.raises(UserError, match="weight"):
            Voice.blend(voices, weights)
    for stranger in (drawn(1, speaker=False), Voice(one.latents, one.speaker[:, :4])):
        with pytest.raises(UserError, match="one model"):
            Voice.blend([one, stranger])


def test_voice_is_cached_by_the_content_of_its_recordings(tmp_path, tokenizer, monkeypatch):
    model, config = random_model(tokenizer, parts=("gpt",))
    listen, made = VoiceEncoder(model, config, remember=2), []
    encode = listen._encode
    monkeypatch.setattr(listen, "_encode", lambda clips: made.append(sum(map(len, clips))) or encode(clips))
    sounds = [voiced(0.6, pitch_hz, 1) for pitch_hz in (100, 150, 200)]
    soundfile.write(tmp_path / "a.wav", sounds[0], 22050, subtype="FLOAT")
    soundfile.write(tmp_path / "b.wav", sounds[0], 22050, subtype="FLOAT")
    first = listen(tmp_path / "a.wav")
    assert listen(tmp_path / "b.wav") is listen(sounds[0]) is first and len(made) == 1
    # Other content under the same name is another voice; the least recently used of three leaves the cache.
    soundfile.write(tmp_path / "a.wav", sounds[1], 22050, subtype="FLOAT")
    assert not np.allclose(listen(tmp_path / "a.wav").latents, first.latents)
    assert listen(sounds[0]) is first and len(made) == 2
    listen(sounds[2])
    assert listen(sounds[0]) is first and len(made) == 3
    listen(sounds[1])
    assert len(made) == 4 and len(listen._known) == 2
    listen(list(sounds[:2]))
    config.sampling.reference_seconds = 0.4
    listen(sounds[0])
    config.sampling.recording_seconds = 0.2
    listen(list(sounds[:2]))
    assert len(made) == 7 and made[-1] == 2 * 0.2 * 22050
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(listen, [sounds[2]] * 2)
    assert one is other and len(made) == 8


@pytest.fixture(scope="module")
def encoder(eagerly):
    """A `VoiceEncoder` with a model that returns constants."""
    head = SimpleNamespace(bias=SimpleNamespace(value=tf.zeros(())))
    gpt = SimpleNamespace(mel_to_latents=lambda mel: tf.zeros((len(mel), 2, 4)), audio_head=head)
    model = SimpleNamespace(gpt=gpt, normalize_mel=lambda mel: mel, parts=())
    return VoiceEncoder(model, tiny_run_config(data={"conditioning_seconds": (0.6, 1.0)}))


@pytest.mark.parametrize("seconds, fate", [(0.1, "refused"), (0.25, "refused"), (0.4, "warned"), (0.7, "heard")])
def test_unusable_reference_is_refused_and_a_short_one_is_reported(encoder, tmp_path, caplog, seconds, fate):
    sound = voiced(seconds, 150, 1)
    soundfile.write(tmp_path / "a.wav", sound, MODEL_SAMPLE_RATE)
    if fate == "refused":
        with pytest.raises(AudioError, match=f"0.33 s or more. Received: {seconds} s"):
            encoder(tmp_path / "a.wav")
        encoder([tmp_path / "a.wav"] * 8)  # short pieces of one voice add up
    else:
        encoder(tmp_path / "a.wav")
    assert ("The reference lasts" in caplog.text) == (fate == "warned")
    encoder(sound)  # a clip of the training set is heard as it is
    for scale, reason in ((0, "silent"), (32_768, "full scale"), (1e300, "full scale")):
        with pytest.raises(AudioError, match=reason):
            encoder(sound.astype(np.float64) * scale)
    with pytest.raises(AudioError, match="silent"):
        encoder(np.append(np.zeros(31 * MODEL_SAMPLE_RATE), sound))  # only the first 30 s would be used
