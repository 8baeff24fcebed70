"""Sound files that are written while their samples come, read back by libsndfile."""

import io

import numpy as np
import pytest
import soundfile
from tiny import voiced

from myxtts.audio.encoding import OPEN_FORMATS, SOUND_FORMATS, SoundEncoder

RATE = 24_000
SOUND = voiced(2.0, 150, 1, sample_rate=RATE)


def encode(sound_format, is_open, step=1_700):
    """The bytes of `SOUND`, and how many came before the end."""
    encoder = SoundEncoder(sound_format, RATE, is_open)
    early = b"".join(encoder.add(SOUND[start : start + step]) for start in range(0, len(SOUND), step))
    return early + encoder.end(), len(early)


def decode(content, sound_format):
    raw = dict(samplerate=RATE, channels=1, subtype="PCM_16", format="RAW") if sound_format == "pcm" else {}
    return soundfile.read(io.BytesIO(content), dtype="float32", **raw)


def loudness_by_tenth(samples):
    return np.array([np.sqrt(np.mean(part**2)) for part in np.array_split(samples[: len(SOUND)], 10)])


@pytest.mark.parametrize("is_open", [False, True], ids=["whole", "open"])
@pytest.mark.parametrize("sound_format", SOUND_FORMATS)
def test_file_holds_the_sound(sound_format, is_open):
    if is_open and sound_format not in OPEN_FORMATS:
        with pytest.raises(ValueError, match="mp3, opus, wav, pcm. Received: flac"):
            SoundEncoder(sound_format, RATE, True)
        return
    content, early = encode(sound_format, is_open)
    samples, rate = decode(content, sound_format)
    assert (early > len(content) / 2) == is_open and (early == 0) == (not is_open)
    if sound_format in ("mp3", "opus"):
        # An open MP3 does not say how much of its first and last frames is silence.
        late = len(samples) - len(SOUND) * rate // RATE
        assert 0 <= late < 0.1 * RATE
        samples = samples[1105:] if late and is_open else samples  # delay of LAME's encoder and of a decoder
        np.testing.assert_allclose(loudness_by_tenth(samples), loudness_by_tenth(SOUND), rtol=0.1)
    else:
        assert rate == RATE
        np.testing.assert_array_equal(samples, decode(encode("pcm", True)[0], "pcm")[0])


def test_open_and_whole_wav_differ_in_their_lengths_alone():
    whole, is_open = encode("wav", False)[0], encode("wav", True)[0]
    assert whole[44:] == is_open[44:] == encode("pcm", True)[0] and len(whole) == len(is_open)
    assert whole[40:44] == (len(whole) - 44).to_bytes(4, "little") and is_open[40:44] == b"\xff" * 4


def test_resampling_in_parts_gives_the_sound_at_the_other_rate():
    encoder, source = SoundEncoder("pcm", RATE, True, 22_050), voiced(1.0, 150, 1)
    parts = [encoder.add(source[start : start + 999]) for start in range(0, len(source), 999)]
    together = np.frombuffer(b"".join([*parts, encoder.end()]), "<i2").astype(int)
    other = SoundEncoder("pcm", RATE, False, 22_050)
    other.add(source)
    np.testing.assert_allclose(together, np.frombuffer(other.end(), "<i2").astype(int), atol=1)
    assert abs(len(together) - RATE) <= 1
