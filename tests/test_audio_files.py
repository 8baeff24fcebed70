"""Reading and writing audio files, also as streams: results and errors."""

import io
import os
import signal
import struct
import wave

import numpy as np
import pytest
import soundfile
from tiny import voiced

from myxtts.audio import files
from myxtts.audio.encoding import OPEN_FORMATS, AudioFile, SoundEncoder, write_audio
from myxtts.audio.files import AudioError, load_samples, read_audio
from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE, SPEAKER_SAMPLE_RATE


def voice(seconds=0.5, sample_rate=MODEL_SAMPLE_RATE, peak=0.5):
    """Returns a tone of 220 Hz with vibrato, so that no two samples at its peaks are equal."""
    time_axis = np.arange(int(seconds * sample_rate)) / sample_rate
    return (peak * np.sin(2 * np.pi * 220 * time_axis + 3 * np.sin(2 * np.pi * 5 * time_axis))).astype(np.float32)


def wav_bytes(data, *, channels=1, sample_rate=MODEL_SAMPLE_RATE, bits=16, tag=1, claimed=None, chunks=b""):
    """Writes a WAV file whose header may contain wrong values."""
    block = max(1, channels * bits // 8)
    rates = sample_rate, sample_rate * block % 2**32
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, channels, *rates, block % 2**16, bits)
    body = b"WAVE" + form + chunks + struct.pack("<4sI", b"data", len(data) if claimed is None else claimed) + data
    return struct.pack("<4sI", b"RIFF", len(body) % 2**32) + body


def refusal(path, **limits):
    with pytest.raises(AudioError) as caught:
        read_audio(path, **limits)
    assert str(path) in str(caught.value)
    return caught.value.reason


WRITTEN = "wav PCM_16 4e-5, wav PCM_24 1e-6, wav PCM_32 1e-6, wav FLOAT 0, wav DOUBLE 1e-7, wav PCM_U8 8e-3, "
WRITTEN += "wav ULAW 2e-2, wav ALAW 2e-2, flac PCM_16 4e-5, ogg VORBIS 0.1, mp3 MPEG_LAYER_III 0.1"
"""File formats, sample formats, and the largest difference."""


@pytest.mark.parametrize("written", WRITTEN.split(", "))
def test_formats_are_read_as_what_was_written(tmp_path, written):
    (form, subtype, tolerance), samples = written.split(), voice()
    name = f"a.{form}"
    soundfile.write(tmp_path / name, samples, MODEL_SAMPLE_RATE, subtype=subtype)
    recording = read_audio(tmp_path / name)
    assert recording.samples.dtype == np.float32 and recording.warnings == ()
    np.testing.assert_allclose(recording.samples[1000:10000], samples[1000:10000], atol=float(tolerance))
    np.testing.assert_array_equal(load_samples(tmp_path / name), recording.samples)


def test_16_bit_samples_are_the_integers_in_the_file_over_32768(tmp_path):
    integers = np.random.default_rng(0).integers(-32768, 32768, 4000).astype("<i2")
    (tmp_path / "a.wav").write_bytes(wav_bytes(integers.tobytes()))
    np.testing.assert_array_equal(load_samples(tmp_path / "a.wav") * 32768, integers)


@pytest.mark.parametrize("rate", [8000, SPEAKER_SAMPLE_RATE, DECODER_SAMPLE_RATE, 44100, 48000])
def test_resampling_keeps_the_wave(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", voice(1, rate), rate, subtype="FLOAT")
    recording = read_audio(tmp_path / "a.wav")
    assert recording.original_sample_rate == rate
    assert len(recording.samples) / MODEL_SAMPLE_RATE == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(recording.samples[500:-500], voice(1)[500:-500], atol=2e-3)


def test_stereo_is_averaged_unless_a_channel_is_silent_or_both_cancel(tmp_path):
    left, right = voice(), voice(peak=0.25)[::-1]
    soundfile.write(tmp_path / "both.wav", np.stack([left, right], 1), MODEL_SAMPLE_RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "one.wav", np.stack([np.zeros_like(left), left], 1), MODEL_SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "both.wav").samples, (left + right) / 2, atol=1e-6)
    one = read_audio(tmp_path / "one.wav")
    np.testing.assert_allclose(one.samples, left, atol=1e-6)
    assert one.warnings[0].startswith("silent channel: ")
    soundfile.write(tmp_path / "against.wav", np.stack([left, -left], 1), MODEL_SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_allclose(np.abs(read_audio(tmp_path / "against.wav").samples), np.abs(left), atol=1e-6)


def test_samples_beyond_full_scale_are_scaled_with_a_warning(tmp_path):
    soundfile.write(tmp_path / "a.wav", voice(peak=4), MODEL_SAMPLE_RATE, subtype="FLOAT")
    recording = read_audio(tmp_path / "a.wav")
    np.testing.assert_allclose(recording.samples, voice(peak=1), atol=1e-4)
    assert [warning.split(":")[0] for warning in recording.warnings] == ["too loud"]
    np.testing.assert_array_equal(load_samples(tmp_path / "a.wav"), recording.samples)


def test_clipping_is_reported_from_a_clean_recording_at_full_scale(tmp_path):
    soundfile.write(tmp_path / "clipped.wav", np.clip(voice(peak=1.5), -1, 1), MODEL_SAMPLE_RATE)
    soundfile.write(tmp_path / "loud.wav", voice(peak=1), MODEL_SAMPLE_RATE)
    soundfile.write(tmp_path / "square.wav", np.sign(voice(peak=1)), MODEL_SAMPLE_RATE)
    assert read_audio(tmp_path / "clipped.wav").warnings[0].startswith("clipped: ")
    assert "clipped: 100 % of" in read_audio(tmp_path / "square.wav").warnings[0]
    assert read_audio(tmp_path / "loud.wav").warnings == ()


def test_limits_of_length_and_level(tmp_path):
    soundfile.write(tmp_path / "a.wav", voice(0.5), MODEL_SAMPLE_RATE)
    assert refusal(tmp_path / "a.wav", min_seconds=0.6) == "too short"
    assert refusal(tmp_path / "a.wav", max_seconds=0.4) == "too long"
    for name, samples in (("zeros", 0 * voice()), ("offset", 0 * voice() + 0.5), ("faint", voice(peak=5e-4))):
        soundfile.write(tmp_path / f"{name}.wav", samples, MODEL_SAMPLE_RATE)
        assert refusal(tmp_path / f"{name}.wav") == "silent", name
    ultrasound = np.hanning(48000) * np.sin(2 * np.pi * 20000 * np.arange(48000) / 48000)
    soundfile.write(tmp_path / "ultrasound.wav", ultrasound, 48000)
    assert refusal(tmp_path / "ultrasound.wav") == "silent"


@pytest.mark.parametrize(
    "value, reason, words",
    [(value, "not finite", "NaN or infinite") for value in (np.nan, np.inf, -np.inf)]
    + [(value, "absurd level", "times full scale") for value in (3e38, -3e38, 8.1, 32767.0)],
)
def test_a_non_finite_or_huge_sample_is_refused_by_both_readers(tmp_path, value, reason, words):
    samples = voice(peak=0.3)
    samples[77] = value
    assert reason != "not finite" or pytest.raises(ValueError, files.to_int16, samples)
    soundfile.write(tmp_path / "a.wav", np.stack([samples, voice()], 1), MODEL_SAMPLE_RATE, subtype="FLOAT")
    assert refusal(tmp_path / "a.wav") == reason
    with pytest.raises(AudioError, match=words):
        load_samples(tmp_path / "a.wav")


ENCODED_RATE = 24_000
ENCODED = voiced(2.0, 150, 1, sample_rate=ENCODED_RATE)
PCM = (voice() * 32767).astype("<i2").tobytes()
UNWRITABLE = ([], "a.wav", "no audio"), ([0, np.nan], "a.wav", "not finite"), (voice(), "no/a.wav", "no folder")


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "empty file"),
        (b"RIFF", "broken header"),
        (b"Just words, no sound.", "text, not audio"),
        (b"\0" * 4096, "not audio"),
        (b"\x0bw\xe9kL@/\x84+\xe1Lv" + bytes(range(256)), "not audio"),  # AC-3
        (b"\xff\xfeh\0i\0" * 40, "not audio"),
        (b"RIFF\x24\0\0\0AVI LIST", "unsupported"),
        (b"FORM\0\0\0\x2eAIFFCOMM", "unsupported"),
        (b"\0\0\0\x20ftypM4A ", "unsupported"),
        (wav_bytes(PCM)[:22], "broken header"),
        (wav_bytes(PCM, claimed=0), "broken header"),
        (wav_bytes(PCM)[:44], "truncated"),
        (wav_bytes(b""), "no audio"),
        (wav_bytes(PCM)[: 44 + len(PCM) // 2], "truncated"),
        (wav_bytes(PCM, claimed=2**30), "truncated"),
        (wav_bytes(PCM, sample_rate=0), "sample rate"),
        (wav_bytes(PCM, sample_rate=100), "sample rate"),
        (wav_bytes(PCM, sample_rate=2**32 - 1), "sample rate"),
        (wav_bytes(PCM, channels=0), "broken header"),
        (wav_bytes(PCM, channels=64), "unsupported"),
        (wav_bytes(PCM, bits=0), "broken header"),
        (wav_bytes(PCM, chunks=struct.pack("<4sI", b"junk", 2**32 - 1)), "broken header"),
        (wav_bytes(PCM, chunks=struct.pack("<4sI", b"junk", 0) * 2000), "broken header"),
    ],
)
def test_files_that_are_not_audio_are_refused_with_their_name(tmp_path, content, reason):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    assert refusal(path) == reason


def test_streamed_wav_headers_are_accepted_and_sloppy_ones_with_a_warning(tmp_path):
    (tmp_path / "streamed.wav").write_bytes(wav_bytes(PCM, claimed=2**32 - 1))
    (tmp_path / "sloppy.wav").write_bytes(wav_bytes(PCM, claimed=len(PCM) + 44))
    for name, count in (("streamed.wav", 0), ("sloppy.wav", 1)):
        recording = read_audio(tmp_path / name)
        assert len(recording.samples) == len(PCM) // 2 and len(recording.warnings) == count


@pytest.mark.parametrize("name", ["a.flac", "a.ogg", "a.mp3"])
def test_a_compressed_file_cut_in_the_middle_is_refused(tmp_path, name):
    soundfile.write(tmp_path / name, np.random.default_rng(0).normal(0, 0.1, 66150), MODEL_SAMPLE_RATE)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    assert refusal(tmp_path / name) in ("truncated", "damaged")


@pytest.mark.parametrize("claim, reason", [(b"\x0f" + b"\xff" * 4, "too long"), (b"\0" * 5, "broken header")])
def test_a_flac_header_that_claims_any_length_allocates_nothing(tmp_path, claim, reason):
    path = tmp_path / "a.flac"
    soundfile.write(path, voice(), MODEL_SAMPLE_RATE)
    content = bytearray(path.read_bytes())
    # STREAMINFO: 36 bits of total samples end 26 bytes into the file.
    content[21] = content[21] & 0xF0 | claim[0]
    content[22:26] = claim[1:]
    path.write_bytes(content)
    assert refusal(path) == reason
    with pytest.raises(AudioError):
        load_samples(path)


def test_a_small_file_that_expands_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_DECODED_VALUES", 2**19)
    path = tmp_path / "bomb.flac"
    soundfile.write(path, np.zeros((2**18, 4), np.int16), 44100)
    assert path.stat().st_size < 20_000
    assert refusal(path) == "too long" and str(2**19) in str(pytest.raises(AudioError, load_samples, path).value)


def test_pipes_folders_raw_and_missing_files_are_refused_and_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "a.raw").write_bytes(wav_bytes(PCM))
    reasons = {"pipe.wav": "not audio", "folder.wav": "not audio", "a.raw": "unsupported", "none.wav": "missing file"}
    for name, reason in reasons.items():
        assert refusal(tmp_path / name) == reason
        with pytest.raises(AudioError):
            load_samples(tmp_path / name)


def test_write_audio_is_read_back_and_clipped(tmp_path):
    samples = voice(peak=0.9)
    samples[:2] = 3.0, -3.0
    write_audio(tmp_path / "out.wav", samples, DECODER_SAMPLE_RATE)
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (DECODER_SAMPLE_RATE, 1, 2)
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert pcm[0] == 32767 and pcm[1] == -32767
    np.testing.assert_allclose(pcm / 32767, np.clip(samples, -1, 1), atol=2e-5)
    write_audio(tmp_path / "out.flac", samples, DECODER_SAMPLE_RATE)
    np.testing.assert_array_equal(soundfile.read(tmp_path / "out.flac", dtype="int16")[0], pcm)
    write_audio(tmp_path / "long.ogg", np.zeros(2_500_000), DECODER_SAMPLE_RATE)
    assert soundfile.info(tmp_path / "long.ogg").frames == 2_500_000


@pytest.mark.parametrize("samples, name, reason", UNWRITABLE)
def test_write_audio_refuses_invalid_samples_and_paths(tmp_path, samples, name, reason):
    with pytest.raises(AudioError) as caught:
        write_audio(tmp_path / name, samples, DECODER_SAMPLE_RATE)
    assert caught.value.reason == reason and os.listdir(tmp_path) == []
    with pytest.raises(AudioError, match="at most 4 GiB"), AudioFile(tmp_path / "a.wav", "a.wav", 24000) as file:
        file.num_samples = 2**31 - 100
        file.write(np.zeros(99))


def encode(sound_format, is_open, step=1_700):
    """Returns the bytes of `ENCODED`, and how many were available before the end."""
    encoder = SoundEncoder(sound_format, ENCODED_RATE, is_open)
    early = b"".join(encoder.add(ENCODED[start : start + step]) for start in range(0, len(ENCODED), step))
    return early + encoder.end(), len(early)


def decode(content, sound_format):
    raw = dict(samplerate=ENCODED_RATE, channels=1, subtype="PCM_16", format="RAW") if sound_format == "pcm" else {}
    return soundfile.read(io.BytesIO(content), dtype="float32", **raw)


def loudness_by_tenth(samples):
    return np.array([np.sqrt(np.mean(part**2)) for part in np.array_split(samples[: len(ENCODED)], 10)])


@pytest.mark.parametrize("sound_format, is_open", [(a, b) for a in OPEN_FORMATS for b in (0, 1)] + [("flac", 0)])
def test_file_has_the_audio(sound_format, is_open):
    assert is_open or pytest.raises(ValueError, SoundEncoder, "flac", ENCODED_RATE, True)
    content, early = encode(sound_format, is_open)
    samples, rate = decode(content, sound_format)
    assert (early > len(content) / 2) == is_open and (early == 0) == (not is_open)
    if sound_format in ("mp3", "opus"):
        # An open MP3 does not say how much of its first and last frames is silence.
        late = len(samples) - len(ENCODED) * rate // ENCODED_RATE
        assert 0 <= late < 0.1 * ENCODED_RATE
        samples = samples[1105:] if late and is_open else samples  # delay of LAME's encoder and of a decoder
        np.testing.assert_allclose(loudness_by_tenth(samples), loudness_by_tenth(ENCODED), rtol=0.1)
    else:
        assert rate == ENCODED_RATE
        np.testing.assert_array_equal(samples, decode(encode("pcm", True)[0], "pcm")[0])


@pytest.mark.parametrize("sound_format", OPEN_FORMATS)
def test_each_tenth_of_a_second_of_a_stream_is_sent_at_once(sound_format):
    encoder = SoundEncoder(sound_format, ENCODED_RATE, True)
    for part in np.array_split(ENCODED[:ENCODED_RATE], 10):
        assert len(encoder.add(part)) > 100 and not os.fstat(encoder._place).st_blocks, "and frees its memory"


def test_open_and_whole_wav_differ_in_their_lengths_alone():
    whole, is_open = encode("wav", False)[0], encode("wav", True)[0]
    assert whole[44:] == is_open[44:] == encode("pcm", True)[0] and len(whole) == len(is_open)
    assert whole[40:44] == (len(whole) - 44).to_bytes(4, "little") and is_open[40:44] == b"\xff" * 4


def test_resampling_in_parts_equals_resampling_the_whole():
    encoder, source = SoundEncoder("pcm", ENCODED_RATE, True, 22_050), voiced(1.0, 150, 1)
    parts = [encoder.add(source[start : start + 999]) for start in range(0, len(source), 999)]
    together = np.frombuffer(b"".join([*parts, encoder.end()]), "<i2").astype(int)
    other = SoundEncoder("pcm", ENCODED_RATE, False, 22_050)
    other.add(source)
    np.testing.assert_allclose(together, np.frombuffer(other.end(), "<i2").astype(int), atol=1)
    assert abs(len(together) - ENCODED_RATE) <= 1


def test_mp3_is_decoded_in_order_without_seeks_between_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK_FRAMES", 5000)
    soundfile.write(path := tmp_path / "a.mp3", np.tile(voice(), 8), 22050)
    np.testing.assert_allclose(load_samples(path), soundfile.read(path, dtype="float32")[0], atol=1e-6)
    (joined := tmp_path / os.fsdecode(b"\xe9.mp3")).write_bytes(2 * path.read_bytes())
    assert refusal(joined) == "broken header"
    soundfile.write(other := tmp_path / "b.mp3", np.tile(voice(), 8), 44100)
    joined.write_bytes(path.read_bytes() + other.read_bytes())
    assert refusal(joined) == "broken header", "frames of another rate also count"
    joined.write_bytes(path.read_bytes() + np.random.default_rng(0).bytes(2**21))
    assert len(read_audio(joined).samples) == 8 * len(voice()), "bytes of a cover are no frames"


def test_joined_ogg_files_are_refused_even_if_the_first_is_cut(tmp_path):
    soundfile.write(path := tmp_path / "a.ogg", np.tile(voice(), 4), 22050)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"OggS")] + whole)
    assert refusal(path) == "unsupported"


@pytest.mark.parametrize("name, end", [("a.wav", None), ("a.flac", None), ("a.mp3", -4000), ("a.ogg", -4000)])
def test_ctrl_c_while_a_file_is_written_is_raised_and_leaves_no_gap(tmp_path, name, end):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), AudioFile(tmp_path / name, name, 24000, 22050) as file:
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        for _ in range(500):
            file.write(np.tile(voice(), 6))  # several blocks
    signal.signal(signal.SIGALRM, before)
    kept = soundfile.read(tmp_path / name)[0][:end]
    write_audio(tmp_path / f"whole-{name}", np.tile(voice(), len(kept) // 11025 + 9), 24000, 22050)
    np.testing.assert_allclose(kept, soundfile.read(tmp_path / f"whole-{name}", len(kept))[0], atol=1e-3)
