"""Analysis of a recording before it is cut: loudness, levels, speech, pauses, and their quietest points."""

import os
import sys
import wave

import numpy as np
import pytest
import soundfile
from tiny import voiced

from myxtts.apps.datasets import recording
from myxtts.apps.datasets.checks import ClipFacts, Segment
from myxtts.apps.datasets.make import _with_pauses
from myxtts.apps.datasets.recording import LongAudio, survey
from myxtts.apps.datasets.speech import SILENCE_DB, Atom, choose_clips, find_edges, force_cuts, to_stretches
from myxtts.audio.files import AudioError
from myxtts.hearing.networks import SileroModel, find_silero

RATE = 16_000
FRAME = 0.01


def write(path, samples, rate=RATE):
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return LongAudio(path)


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_loudness_of_a_sine_equals_the_standard_and_silence_does_not_lower_it(rate, tmp_path):
    time = np.arange(5 * rate) / rate
    # EBU Tech 3341, and BS.1770-4, annex 1: 997 Hz at 0 dB of full scale in one channel reads -3.01 LKFS.
    found = survey(write(tmp_path / "sine.wav", np.sin(2 * np.pi * 997 * time), rate)).loudness
    assert found == pytest.approx(-3.01, abs=0.06)
    tone = 0.1 * np.sin(2 * np.pi * 997 * time)
    with_silence = survey(write(tmp_path / "silence.wav", np.pad(tone, (0, 8 * rate)), rate)).loudness
    assert with_silence == pytest.approx(found - 20, abs=0.5)


def test_result_does_not_depend_on_blocks(tmp_path, monkeypatch):
    audio = write(tmp_path / "a.wav", voiced(5.3, 120, 1, 1, RATE))
    whole = survey(audio)
    monkeypatch.setattr(recording, "BLOCK_SECONDS", 1)
    parts = survey(audio)
    np.testing.assert_allclose(parts.levels_db, whole.levels_db, atol=1e-6)
    assert parts.num_samples == whole.num_samples and len(parts.peaks) == len(whole.peaks)


def test_channels_that_cancel_each_other_are_not_mixed(tmp_path):
    sound = voiced(1.0, 120, 1, 1, RATE)
    found = survey(write(tmp_path / "a.wav", np.stack([sound, -0.9 * sound], axis=1)))
    assert found.channel == 0 and found.levels_db.max() > -30


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.01])
def test_speech_is_found_where_it_was_planted(noise, tmp_path):
    samples = noise * np.random.default_rng(0).standard_normal(int(10 * RATE))
    spans = [(1.0, 2.2), (2.5, 4.0), (5.5, 8.0)]
    for start, end in spans:
        sound = voiced(end - start, 120, 1, 1, RATE)
        samples[int(start * RATE) : int(start * RATE) + len(sound)] += sound
    found = survey(write(tmp_path / "a.wav", samples))
    np.testing.assert_allclose(to_stretches(found.speech, found.frame_seconds) * found.frame_seconds, spans, atol=0.03)


def test_short_silences_are_no_pauses_and_clicks_are_no_speech():
    speech = np.zeros(300, bool)
    speech[50:100] = speech[115:150] = speech[200:205] = speech[230:260] = True
    assert to_stretches(speech, FRAME).tolist() == [[50, 150], [230, 260]]
    assert to_stretches(~speech[:0], FRAME).shape == to_stretches(speech[:50], FRAME).shape == (0, 2)


def test_cuts_lie_at_the_quietest_point_of_a_pause():
    levels = np.full(400, -20.0)
    levels[100:140] = -50.0
    levels[112:118] = -70.0
    edges = find_edges(np.array([[20, 100], [140, 380]]), levels, FRAME)
    assert edges.begins[1] == edges.finishes[0] and 110 <= edges.begins[1] <= 120
    assert edges.begins[0] < 20 and edges.finishes[1] > 380


def test_clips_are_packed_near_six_seconds_and_never_beyond_the_limits():
    random = np.random.default_rng(0)
    stretches, position = [], 50
    for _ in range(60):
        length = int(random.uniform(40, 600))
        stretches.append((position, position + length))
        position += length + int(random.uniform(20, 120))
    levels = np.full(position + 50, SILENCE_DB)
    atoms = [Atom(k, k + 1) for k in range(60)]
    clips = choose_clips(atoms, find_edges(np.array(stretches), levels, FRAME), FRAME, 1.0, 11.5)
    lengths = np.array([(end - start) * FRAME for _, _, start, end in clips])
    assert (lengths >= 1).all() and (lengths <= 11.5).all() and 5 < lengths.mean() < 8
    assert [k for first, last, _, _ in clips for k in range(first, last)] == list(range(60))
    assert all(before[3] <= after[2] for before, after in zip(clips, clips[1:]))


def test_forced_cuts_lie_in_dips():
    levels = -20 + 5 * np.sin(np.arange(3000) / 40)
    parts = force_cuts(np.array([[0, 3000]]), levels, FRAME, 11.5)
    assert parts[0, 0] == 0 and parts[-1, 1] == 3000 and len(parts) > 1
    assert (levels[parts[:-1, 1]] < -24.5).all()
    assert force_cuts(np.array([[0, 1000]]), levels, FRAME, 11.5).tolist() == [[0, 1000]]


def test_video_is_decoded_by_ffmpeg(tmp_path, monkeypatch):
    """Uses a stand-in for ffmpeg that returns the audio of the requested file."""
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(np.arange(1600, dtype="<i2").tobytes())
    script = tmp_path / "ffmpeg"
    code = "import sys, soundfile\nassert any(one.startswith('file:') for one in sys.argv)\n"
    code += f"samples, rate = soundfile.read({str(tmp_path / 'sound.wav')!r})\n"
    code += "import io\nout = io.BytesIO()\nsoundfile.write(out, samples, rate, 'FLOAT', format='AU')\n"
    script.write_text(f"#!{sys.executable}\n{code}sys.stdout.buffer.write(out.getvalue())\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(100))
    os.link(tmp_path / "sound.wav", tmp_path / "sound.raw")
    audio = LongAudio(tmp_path / "film.mp4")
    assert audio.sample_rate == LongAudio(tmp_path / "sound.raw").sample_rate == RATE
    np.testing.assert_allclose(next(audio.spans([(0, 1600)])), np.arange(1600) / 32768, atol=1e-6)
    script.write_text("#!/bin/sh\necho 'moov atom not found' >&2\nexit 1\n")
    with pytest.raises(AudioError, match="ffmpeg cannot decode it: moov atom not found"):
        LongAudio(tmp_path / "film.mp4")


def test_silero_finds_no_speech_in_noise(tmp_path):
    if find_silero() is None:
        pytest.skip("no Silero model in an installed package (extra recordings)")
    samples = 0.05 * np.random.default_rng(0).standard_normal(3 * RATE)
    found = survey(write(tmp_path / "a.wav", samples), SileroModel(find_silero()))
    assert len(found.speech) == len(found.levels_db) and not found.speech.any()


def test_clips_dropped_speech_and_pauses_cover_the_recording_without_overlap():
    clip = Segment(40, 80, "A text.", facts=ClipFacts(4, -20, 40, -40, 5, 30, 14))
    left = [Segment(start, end, reason="noise") for start, end in ((10, 50), (20, 30), (70, 90))]  # one inside another
    found = _with_pauses([clip], left, 100)
    assert [one.start for one in found] == [0, 10, 40, 80, 90] and [one.end for one in found] == [10, 40, 80, 90, 100]
