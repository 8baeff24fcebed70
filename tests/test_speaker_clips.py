"""Voices of training speakers: a run stores a short recording of each, and finds it by name."""

import json
import unicodedata
from functools import partial

import numpy as np
import pytest
import soundfile
from tiny import voiced

from myxtts.data import dataset
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import keep_speakers
from myxtts.inference.voices import stored_voice
from myxtts.runs.origin import copy_speaker_clips
from myxtts.storage.files import CheckpointError
from myxtts.storage.speakers import SPEAKER_CLIPS, find_speaker, read_speaker, read_speakers, write_speakers

NFD = partial(unicodedata.normalize, "NFD")


def make_clips(folder, speaker, lengths, language="en"):
    clips = []
    for index, seconds in enumerate(lengths):
        path = folder / f"{speaker}_{index}.wav"
        soundfile.write(path, samples := voiced(seconds, 120, index), 22050, subtype="PCM_16")
        clips.append(Utterance(path.stem, str(path), "", speaker, language, num_samples=len(samples)))
    return clips


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_clips_near_the_usual_length_are_kept_in_sequence_and_cut_to_twelve_seconds(run, tmp_path):
    clips = make_clips(tmp_path, "emma", [1.0, 5.5, 11.0, 6.0, 4.0]) + make_clips(tmp_path, "noah", [0.5, 0.6], "de")
    keep_speakers(run, clips)
    speakers = read_speakers(run)
    assert [*speakers] == ["emma", "noah"] and [s.language for s in speakers.values()] == ["en", "de"]
    assert [one.split()[0] for one in speakers["emma"].sources] == ["emma_3", "emma_1", "emma_4"]
    samples, rate = soundfile.read(speakers["emma"].clip)
    assert rate == 22050 and len(samples) == 12 * 22050
    expected = np.concatenate([soundfile.read(clips[index].wav_path)[0] for index in (3, 1, 4)])[: len(samples)]
    np.testing.assert_allclose(samples, expected, atol=1e-4)
    assert len(soundfile.read(speakers["noah"].clip)[0]) == sum(clip.num_samples for clip in clips[-2:])


def test_stored_clips_are_not_rewritten_and_earlier_speakers_are_kept(run, tmp_path):
    clips = make_clips(tmp_path, "emma", [0.5])
    keep_speakers(run, clips)
    before = {path: path.stat().st_mtime_ns for path in (run / SPEAKER_CLIPS).iterdir()}
    keep_speakers(run, clips)
    assert before == {path: path.stat().st_mtime_ns for path in (run / SPEAKER_CLIPS).iterdir()}
    keep_speakers(run, make_clips(tmp_path, "noah", [0.6]))
    assert [*read_speakers(run)] == ["emma", "noah"]
    keep_speakers(run, make_clips(tmp_path, "emma", [0.7, 0.8]))
    assert [one.split()[0] for one in read_speakers(run)["emma"].sources] == ["emma_1", "emma_0"]
    assert len(list((run / SPEAKER_CLIPS).glob("*.flac"))) == 2


def test_a_voice_whose_audio_changed_is_recorded_again(run, tmp_path):
    keep_speakers(run, clips := make_clips(tmp_path, "emma", [0.5]))
    soundfile.write(clips[0].wav_path, denoised := 0.5 * soundfile.read(clips[0].wav_path)[0], 22050, subtype="PCM_16")
    keep_speakers(run, clips)
    np.testing.assert_allclose(soundfile.read(read_speakers(run)["emma"].clip)[0], denoised, atol=1e-4)
    keep_speakers(run, [Utterance("emma_0", clips[0].wav_path, "", "zoe", "en", num_samples=clips[0].num_samples)])
    assert [*read_speakers(run)] == ["zoe"]


def test_a_run_that_starts_from_another_takes_its_speakers_but_no_links(run, tmp_path):
    keep_speakers(run, make_clips(tmp_path, "emma", [0.5]) + make_clips(tmp_path, "noah", [0.4]))
    clip = read_speakers(run)["noah"].clip
    clip.unlink()
    clip.symlink_to("/dev/zero")
    (tmp_path / "next").mkdir()
    copy_speaker_clips(run, tmp_path / "next")
    assert [*read_speakers(tmp_path / "next")] == ["emma"]
    before, after = (read_speakers(folder)["emma"].clip.read_bytes() for folder in (run, tmp_path / "next"))
    assert before == after


def test_speakers_with_the_most_speech_are_kept(run, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "MOST_SPEAKERS", 1)
    keep_speakers(run, make_clips(tmp_path, "emma", [0.5]) + make_clips(tmp_path, "noah", [0.4, 0.4]))
    assert [*read_speakers(run)] == ["noah"]


def test_recorded_and_converted_voices_are_found_by_name(run, tmp_path):
    latents, vector = np.ones((1, 4, 16), np.float32), np.ones((1, 16), np.float32)
    write_speakers(run, {"José": (latents, vector), NFD("Zoé"): (latents, vector)})
    keep_speakers(run, make_clips(tmp_path, "emma", [0.5]))
    assert [*read_speakers(run)] == ["José", "Zoé", "emma"]
    heard = []
    for name in ("José", NFD("José"), "Zoé", NFD("Zoé")):
        assert stored_voice(run, name, heard.append).latents.shape == (1, 4, 16) and not heard
    stored_voice(run, "emma", heard.append)
    assert heard == [read_speakers(run)["emma"].clip]
    with pytest.raises(CheckpointError, match="one of the model's 3 voices. Received: ema. Similar: emma"):
        find_speaker(run, "ema")
    with pytest.raises(CheckpointError, match="emma .* is a recording"):
        read_speaker(run, "emma")
    with pytest.raises(CheckpointError, match="a model that comes with voices"):
        find_speaker(tmp_path, "emma")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        ["x"],
        {"clip": "../../secret.flac", "language": "en", "sources": []},
        {"clip": "a.flac", "language": "en", "sources": []},
        {"clip": 32 * "0" + ".flac", "language": "\x1b[2J", "sources": []},
        {"clip": 32 * "0" + ".flac", "language": "en", "sources": None},
    ],
)
def test_an_untrusted_list_of_speakers_is_validated(run, entry):
    (run / SPEAKER_CLIPS).mkdir()
    (run / SPEAKER_CLIPS / "index.json").write_text(json.dumps({"emma": entry}))
    with pytest.raises(CheckpointError, match="index.json is damaged"):
        read_speakers(run)
