"""Every case in the shared folder of damaged inputs has the result in its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from myxtts.audio.files import AudioError, load_samples, read_audio
from myxtts.data.corpora import CorpusError, load_corpus
from myxtts.data.doctor import inspect_corpus, summarize

BROKEN = Path(__file__).resolve().parents[2] / "shared" / "data" / "broken"
pytestmark = pytest.mark.skipif(not BROKEN.is_dir(), reason="the shared folder of damaged inputs is not here")

ACCEPTED, REFUSED, SETS, REFUSED_SETS = json.loads((Path(__file__).parent / "data/broken.json").read_text()).values()
"""By file, the largest difference from good.wav (or None) and the reasons of its warnings; by file, the reason; and by
folder, the ids used, and the line and reason of each line that is not; and by folder, the error."""


@pytest.mark.parametrize("name", ACCEPTED)
def test_usable_audio_is_accepted_and_sounds_like_the_original(name):
    difference, warnings = ACCEPTED[name]
    recording = read_audio(BROKEN / "audio" / name)
    good = read_audio(BROKEN / "audio" / "good.wav").samples
    assert [warning.split(":")[0] for warning in recording.warnings] == warnings
    assert len(recording.samples) == len(good) and np.abs(recording.samples).max() <= 1
    np.testing.assert_array_equal(load_samples(BROKEN / "audio" / name), recording.samples)
    if difference is not None:
        np.testing.assert_allclose(recording.samples, good, atol=difference)
    assert np.corrcoef(recording.samples, good)[0, 1] > (0.5 if name == "clipped.wav" else 0.99)
    assert np.sqrt(np.mean(recording.samples**2)) > 0.7 * np.sqrt(np.mean(good**2))


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_audio_is_refused_with_the_file_and_the_reason(name):
    with pytest.raises(AudioError) as caught:
        read_audio(BROKEN / "audio" / name)
    assert caught.value.reason == REFUSED[name] and name in str(caught.value)


def test_the_tables_here_cover_the_whole_folder():
    assert {path.name for path in (BROKEN / "audio").iterdir()} == {*ACCEPTED, *REFUSED}
    assert {path.name for path in BROKEN.glob("set_*")} == {name.split("/")[0] for name in SETS} | {*REFUSED_SETS}


@pytest.mark.parametrize("name", SETS)
def test_sets_use_and_skip_the_clips_they_should(name):
    used, skipped = SETS[name]
    corpus = load_corpus(BROKEN / name)
    inspection = inspect_corpus(corpus, workers=2)
    assert [utterance.id for utterance in inspection.utterances] == used
    assert sorted([rejection.line, rejection.reason] for rejection in inspection.rejections) == skipped
    assert inspection.given == len(used) + len(skipped)
    lines = (BROKEN / name / "metadata.csv").read_bytes()
    lines = lines.decode("utf-16" if name == "set_utf16" else "utf-8-sig").splitlines()
    assert inspection.given == len(lines) - (corpus.format == "header")
    assert not skipped or all(reason in summarize(inspection) for _, reason in skipped)


@pytest.mark.parametrize("name", REFUSED_SETS)
def test_sets_without_a_usable_list_give_one_clear_error(name):
    with pytest.raises(CorpusError, match=REFUSED_SETS[name]):
        load_corpus(BROKEN / name)
