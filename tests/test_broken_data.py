"""Every case in the shared folder of damaged inputs has the result in its table."""

from pathlib import Path

import numpy as np
import pytest

from myxtts.audio.files import AudioError, load_samples, read_audio
from myxtts.data.corpora import CorpusError, load_corpus
from myxtts.data.doctor import inspect_corpus, summarize

BROKEN = Path(__file__).resolve().parents[2] / "shared" / "data" / "broken"
pytestmark = pytest.mark.skipif(not BROKEN.is_dir(), reason="the shared folder of damaged inputs is not here")

ACCEPTED = {  # file: (largest difference from good.wav or None, reasons of its warnings)
    "good.wav": (0, ()),
    "good_pcm24.wav": (1e-6, ()),
    "good_float32.wav": (1e-6, ()),
    "good_u8.wav": (0.01, ()),
    "good_mulaw.wav": (0.02, ()),
    "good_stereo_48k.wav": (None, ()),
    "good_left_only_48k.wav": (None, ("silent channel",)),
    "good.flac": (1e-6, ()),
    "good.mp3": (0.1, ()),
    "mp3_named_wav.wav": (0.1, ()),
    "clipped.wav": (None, ("clipped",)),
    "too_loud_float32.wav": (None, ("too loud",)),
}
REFUSED = {
    "zero_byte.wav": "empty file",
    "truncated_header.wav": "broken header",
    "truncated_data.wav": "truncated",
    "text_as_wav.wav": "not audio",
    "zero_sample_rate.wav": "sample rate",
    "no_frames.wav": "no audio",
    "short_50ms.wav": "too short",
    "silent_2s.wav": "silent",
    "nan_float32.wav": "not finite",
    "inf_float32.wav": "not finite",
}
SETS = {  # folder: (ids used, (line, reason) of each line that is not)
    "set_missing_file": (["a", "b"], [(2, "missing file")]),
    "set_bom_crlf_unicode": (["a", "b", "c", "d"], []),
    "set_utf16": (["a", "b"], []),
    "set_duplicate_ids": (["a", "b"], [(3, "duplicate id"), (4, "duplicate id")]),
    "set_path_traversal/set": (["a", "b"], [(line, "outside the data set") for line in (2, 3, 4, 5)]),
    "set_empty_transcript": (["a"], [(2, "no text"), (3, "no text"), (4, "no text")]),
    "set_quotes_pipes": (["a", "b", "d", "e"], [(3, "wrong number of columns")]),
    "set_short_rows": (["b", "c"], [(1, "wrong number of columns"), (3, "empty line"), (4, "comment line")]),
    "set_header_row": (["a", "b"], []),
    "set_ids_with_extension": (["a", "b"], []),
    "set_long_text": ([], [(1, "text too long for the audio")]),
    "set_mixed": (
        ["good1", "good2", "good_pcm24", "good_stereo_48k", "good_float32"],
        [
            (3, "empty file"),
            (4, "broken header"),
            (5, "not audio"),
            (6, "silent"),
            (7, "too short"),
            (8, "not finite"),
            (12, "missing file"),
            (13, "no text"),
            (14, "outside the data set"),
        ],
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_usable_audio_is_accepted_and_sounds_like_the_original(name):
    difference, warnings = ACCEPTED[name]
    recording = read_audio(BROKEN / "audio" / name)
    good = read_audio(BROKEN / "audio" / "good.wav").samples
    assert tuple(warning.split(":")[0] for warning in recording.warnings) == warnings
    assert len(recording.samples) == len(good) and np.abs(recording.samples).max() <= 1
    np.testing.assert_array_equal(load_samples(BROKEN / "audio" / name), recording.samples)
    if difference is not None:
        np.testing.assert_allclose(recording.samples, good, atol=difference)
    correlation = np.corrcoef(recording.samples, good)[0, 1]
    assert correlation > (0.5 if name == "clipped.wav" else 0.99)
    assert np.sqrt(np.mean(recording.samples**2)) > 0.7 * np.sqrt(np.mean(good**2))


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_audio_is_refused_with_the_file_and_the_reason(name):
    with pytest.raises(AudioError) as caught:
        read_audio(BROKEN / "audio" / name)
    assert caught.value.reason == REFUSED[name] and name in str(caught.value)


def test_the_tables_here_cover_the_whole_folder():
    assert {path.name for path in (BROKEN / "audio").iterdir()} == {*ACCEPTED, *REFUSED}
    refused_sets = {"set_latin1", "set_empty_metadata", "set_no_metadata"}
    assert {path.name for path in BROKEN.glob("set_*")} == {name.split("/")[0] for name in SETS} | refused_sets


@pytest.mark.parametrize("name", SETS)
def test_sets_use_and_skip_the_clips_they_should(name):
    used, skipped = SETS[name]
    corpus = load_corpus(BROKEN / name)
    inspection = inspect_corpus(corpus, workers=2)
    assert [utterance.id for utterance in inspection.accepted] == used
    assert sorted((rejection.line, rejection.reason) for rejection in inspection.rejections) == skipped
    assert inspection.given == len(used) + len(skipped)
    lines = (BROKEN / name / "metadata.csv").read_bytes()
    lines = lines.decode("utf-16" if name == "set_utf16" else "utf-8-sig").splitlines()
    assert inspection.given == len(lines) - (corpus.format == "header")
    assert not skipped or all(reason in summarize(inspection) for _, reason in skipped)


@pytest.mark.parametrize(
    "name, message",
    [
        ("set_latin1", "is not UTF-8: line 2"),
        ("set_empty_metadata", "is empty: no clips"),
        ("set_no_metadata", "no texts. .myxtts make-dataset"),
    ],
)
def test_sets_without_a_usable_list_give_one_clear_error(name, message):
    with pytest.raises(CorpusError, match=message):
        load_corpus(BROKEN / name)
