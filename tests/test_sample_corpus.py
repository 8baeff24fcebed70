"""The sample corpus: its plan and its audio."""

import shutil
from collections import Counter

import numpy as np
import pytest
import soundfile
from crash_points import contents

from myxtts.config.checks import UserError
from myxtts.data.corpora import load_corpus
from myxtts.data.sample_corpus import (
    MANIFEST_FILE,
    SENTENCES,
    VOICES,
    make_sample_corpus,
    plan_clips,
    unheard_sentences,
)
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.storage.speakers import read_speakers


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_sample_corpus(tmp_path_factory.mktemp("made") / "corpus", num_clips=8)


def test_plan_distributes_clips_evenly_and_repeats_no_sentence_in_a_voice():
    clips = plan_clips(num_clips=322, languages=tuple(SENTENCES))
    counts = Counter(clip.voice.speaker for clip in clips)
    assert set(counts) == {voice.speaker for voice in VOICES}
    assert set(counts.values()) == {40, 41}
    assert len({clip.id for clip in clips}) == 322
    assert len({(clip.voice.speaker, clip.text) for clip in clips}) == 322
    assert set(plan_clips(16)) <= set(plan_clips(320)), "a small one begins each voice of a large one"


def test_corpus_is_in_the_requested_languages_or_english():
    assert {clip.voice.language for clip in plan_clips(16)} == {"en"}
    assert {clip.voice.language for clip in plan_clips(16, ("fa", "am"))} == {"fa", "am"}
    with pytest.raises(UserError, match="must be in one of en, .* Received: xx"):
        plan_clips(16, ("en", "xx"))


def test_bundled_model_was_trained_on_every_voice():
    assert {f"{voice.language}_{voice.variant}" for voice in VOICES} <= set(read_speakers(BASE_FOLDER))


@pytest.mark.parametrize("language", sorted(SENTENCES))
def test_unheard_sentences_are_in_no_corpus_and_all_their_words_are(language):
    sentences, unheard = SENTENCES[language], unheard_sentences(language)
    assert len(set(sentences)) == len(sentences) and not any(set(sentence) & set("|\n\r\t") for sentence in sentences)
    known = {word for text in set(sentences) - set(unheard) for word in text.split()}
    assert len(unheard) >= 32 and {word for text in unheard for word in text.split()} <= known
    planned = plan_clips(None, (language,))  # the usual number is not too large for a language of one voice
    assert len(planned) in (440, 880) and not {clip.text for clip in planned} & set(unheard)


@pytest.mark.parametrize("num_clips", [0, 10**6])
def test_plan_refuses_a_number_of_clips_the_grammars_cannot_give(num_clips):
    with pytest.raises(ValueError, match="num_clips"):
        plan_clips(num_clips)


def test_corpus_reads_as_ljspeech_with_speakers_and_languages(corpus):
    loaded = load_corpus(corpus)
    assert loaded.format == "ljspeech"
    assert not loaded.rejections
    found = {(utterance.id, utterance.speaker, utterance.language) for utterance in loaded.utterances}
    assert found == {(f"en_{speaker}_{k:03d}", speaker, "en") for speaker in ("emma", "noah") for k in range(4)}


def test_clips_are_short_audible_16_bit_mono_at_22050_hz(corpus):
    for path in (corpus / "wavs").iterdir():
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
        assert 0.8 < info.duration < 4
        samples, _ = soundfile.read(path)
        assert 0.1 < np.abs(samples).max() <= 1
        assert np.abs(samples[: 22050 // 5]).max() > 0.002, "more than 200 ms of silence at the start"


def test_two_corpora_are_equal_byte_for_byte(corpus, tmp_path):
    assert contents(make_sample_corpus(tmp_path / "corpus", num_clips=8)) == contents(corpus)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"], "a scratch folder was left behind"


def test_complete_corpus_is_reused_and_a_damaged_one_recreated(corpus, monkeypatch):
    before = contents(corpus)
    with monkeypatch.context() as without_voices:
        without_voices.setattr("myxtts.data.sample_corpus.speak_to_files", None)
        assert make_sample_corpus(corpus, num_clips=8) == corpus
    victim = next((corpus / "wavs").iterdir())
    victim.write_bytes(victim.read_bytes()[:-100])
    make_sample_corpus(corpus, num_clips=8)
    assert contents(corpus) == before


@pytest.mark.parametrize("content", ['{"plan": ', '{"plan": "x"}', '["mine"]', "null", b"\xff"])
def test_manifest_of_another_format_counts_as_no_corpus(tmp_path, content):
    (tmp_path / MANIFEST_FILE).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=MANIFEST_FILE):
        make_sample_corpus(tmp_path, num_clips=8)


def test_folder_with_other_files_is_refused_and_untouched(tmp_path):
    (tmp_path / "metadata.csv").write_text("a|mine|mine\n")
    with pytest.raises(UserError, match="metadata.csv"):
        make_sample_corpus(tmp_path, num_clips=8)
    assert contents(tmp_path) == {"metadata.csv": b"a|mine|mine\n"}


def test_file_added_to_a_damaged_corpus_is_not_deleted(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path, dirs_exist_ok=True)
    (tmp_path / "README.md").unlink()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="notes.txt"):
        make_sample_corpus(tmp_path, num_clips=8)
    assert (tmp_path / "notes.txt").exists()
