"""Corpus formats: each on a tiny generated example, and their documentation in `docs/data.md`."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_data_shapes import text

from myxtts.config.checks import UserError
from myxtts.data.corpora import CorpusError, find_formats, load_corpus
from myxtts.data.corpora.folder import ClipRefused, CorpusFolder
from myxtts.data.corpora.tables import find_dialect
from myxtts.data.doctor import check_data, inspect_corpus, write_report

ROOT = Path(__file__).resolve().parents[1]


def audio(*paths):
    """Writes a second of audio at each path, different for each name."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        phase = np.arange(22050) / (9 + sum(path.name.encode()) % 50)
        soundfile.write(path, 0.3 * np.sin(phase) * np.hanning(22050), 22050)


def finetune_webui(root):
    audio(*(root / "wavs" / f"{name}.wav" for name in "abc"))
    header = "audio_file|text|speaker_name\n"
    lines = header + 'wavs/a.wav|"She said ""no|yes""."|coqui\nwavs/b.wav|two|coqui\nwavs/c.wav|three|coqui\n'
    text(root / "metadata_train.csv", lines)
    text(root / "metadata_eval.csv", header + "wavs/c.wav|three|coqui\n")
    text(root / "lang.txt", "de\n")
    texts = {"c": "three", "a": 'She said "no|yes".', "b": "two"}
    return [(name, said, "coqui", "de", name == "c") for name, said in texts.items()]


def common_voice(root):
    audio(*(root / "clips" / f"cv_{number}.mp3" for number in (1, 2, 3, 4)))
    header = "client_id\tpath\tsentence_id\tsentence\tup_votes\tlocale\n"
    rows = [f"ann\tcv_{number}.mp3\tx{number}\tجملۀ {number}\t2\tfa\n" for number in (1, 2, 3, 4)]
    text(root / "validated.tsv", header + "".join(rows))
    text(root / "dev.tsv", header + rows[1])
    text(root / "test.tsv", header + rows[2])
    return [(f"cv_{number}", f"جملۀ {number}", "ann", "fa", number == 2) for number in (2, 1, 4)]


def libritts(root):
    for subset, speaker, name in (("train-clean-100", "19", "a"), ("dev-clean", "84", "b"), ("test-clean", "61", "c")):
        folder = root / subset / speaker / "198"
        audio(folder / f"{name}.wav")
        text(folder / f"{name}.normalized.txt", f"normal {name}\n")
        text(folder / f"{name}.original.txt", f"Written {name}\n")
    found = [("dev-clean/84/198/b", "normal b", "84", "en", True)]
    return found + [("train-clean-100/19/198/a", "normal a", "19", "en", False)]


def librispeech(root):
    for subset, speaker in (("train-clean-100", "19"), ("dev-clean", "84"), ("test-clean", "61")):
        folder = root / subset / f"{speaker}\u200f" / "1"  # a direction mark is no part of a name
        audio(folder / f"{speaker}-1-0.flac")
        text(folder / f"{speaker}-1.trans.txt", f"{speaker}-1-0 SAID BY {speaker}\n")
    return [("84-1-0", "SAID BY 84", "84", "en", True), ("19-1-0", "SAID BY 19", "19", "en", False)]


def mls(root):
    audio(root / "audio" / "87" / "83" / "87_83_0.flac")
    text(root / "transcripts.txt", "87_83_0\tgood day\n")
    return [("87/83/87_83_0", "good day", "87", "en", False)]


def vctk(root):
    names = ("p225/p225_001_mic1.flac", "p225/p225_001_mic2.flac", "p280/p280_001_mic2.flac")
    audio(*(root / "wav48_silence_trimmed" / name for name in names))
    text(root / "txt" / "p225" / "p225_001.txt", "Please call Stella.\n")
    text(root / "txt" / "p280" / "p280_001.txt", "Ask her.\n")
    first = ("p225/p225_001", "Please call Stella.", "p225", "en", False)
    return [first, ("p280/p280_001", "Ask her.", "p280", "en", False)]


def ljspeech(root):
    audio(root / "wavs" / "a.wav")
    text(root / "metadata.csv", "a|In 1984|in nineteen eighty-four\n")
    return [("a", "in nineteen eighty-four", root.name, "en", False)]


def m_ailabs(root):
    for speaker, book in (("female/ann", "book_a"), ("male/bob", "book_b"), ("mix", "book_c")):
        folder = root / "de_DE" / "by_book" / speaker / book
        audio(folder / "wavs" / f"{book}_1.wav")
        text(folder / "metadata.csv", f"{book}_1|Guten Tag|guten tag\n")
    ids = {"ann": "female/ann/book_a/book_a_1", "bob": "male/bob/book_b/book_b_1"}
    return [(f"de_DE/by_book/{name}", "guten tag", speaker, "de", False) for speaker, name in ids.items()]


def audiofolder(root):
    for split, names in (("train", "ab"), ("validation", "c"), ("test", "d")):
        audio(*(root / split / "clips" / f"{name}.wav" for name in names))
        rows = [{"file_name": f"clips/{name}.wav", "transcription": f"say {name}\n", "speaker_id": 7} for name in names]
        text(root / split / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = [("validation/clips/c", "say c", "7", "en", True)]
    return found + [(f"train/clips/{name}", f"say {name}", "7", "en", False) for name in "ab"]


def kaldi(root):
    audio(root / "audio" / "a.wav")
    text(root / "wav.scp", f"utt-a {root}/audio/a.wav\nutt-b touch {root}/ran; cat b.wav |\n")
    text(root / "text", "utt-a HELLO THERE\nutt-b GONE\n")
    text(root / "utt2spk", "utt-a ann\nutt-b ann\n")
    return [("utt-a", "HELLO THERE", "ann", "en", False)]


def header(root):
    audio(root / "wavs" / "a.wav")
    text(root / "metadata.csv", 'path,text,speaker\nwavs/a.wav,"Hello, ""world"".",Ann\n')
    return [("a", 'Hello, "world".', "Ann", "en", False)]


def lists(root):
    clips = [*"abcdefg"]
    audio(*(root / "wavs" / f"{name}.wav" for name in clips))
    text(root / "train.txt", "".join(f"wavs/{name}.wav|It is {name}|it is {name}\n" for name in clips[3:]))
    said = ["Yes|Yes, I said it", "No|Oh well, not today", "Yes|So they told us all"]  # the first looks like a speaker
    text(root / "val.txt", "".join(f"wavs/{name}.wav|{line}\n" for name, line in zip(clips, said)))
    found = [(name, line.partition("|")[2], root.name, "en", True) for name, line in zip(clips, said)]
    return found + [(name, f"it is {name}", root.name, "en", False) for name in clips[3:]]


def text_files(root):
    audio(root / "a.ogg")
    text(root / "a.txt", "hello\n")
    return [("a", "hello", root.name, "en", False)]


def speaker_folders(root):
    return [("Ann/a", *ljspeech(root / "Ann")[0][1:]), ("Bob/a", *text_files(root / "Bob")[0][1:])]


MAKERS = finetune_webui, common_voice, audiofolder, header, kaldi, vctk, ljspeech, text_files, libritts, librispeech
MAKERS += mls, m_ailabs, lists, speaker_folders
EXAMPLES = {make.__name__.replace("_", "-"): make for make in MAKERS}


def found_in(corpus):
    return [(u.id, u.text, u.speaker, u.language, u.validation) for u in corpus.utterances]


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_format_is_recognized_by_its_content_and_its_audio_can_be_read(name, tmp_path):
    root = tmp_path / "voice"
    expected = EXAMPLES[name](root)
    before = sorted(root.rglob("*"))
    corpus = load_corpus(root)
    assert corpus.format == name and found_in(corpus) == expected
    assert found_in(load_corpus(root, format_name=name)) == expected
    inspection = inspect_corpus(corpus)
    assert len(inspection.utterances) == len(expected) and sorted(root.rglob("*")) == before
    write_report(inspection, root / "doctor.csv", "\ufeff")
    assert found_in(load_corpus(root)) == expected, "a report on the clips is no list of clips"


def test_every_format_has_its_example_and_its_row_in_the_table():
    assert {*EXAMPLES, "datasets"} <= {form.name for form in find_formats()}
    for name in ("data.md", "data.fa.md"):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert {*EXAMPLES, "datasets"} == set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))


def test_an_unclosed_quote_does_not_join_lines(tmp_path):
    audio(tmp_path / "a.wav", tmp_path / "b.wav")
    text(tmp_path / "metadata.csv", 'file,text\na.wav,"not ended\nb.wav,"ended"\n')
    corpus = load_corpus(tmp_path)
    assert [(r.line, r.reason) for r in corpus.rejections] == [(2, "unclosed quote")]
    assert [u.text for u in corpus.utterances] == ["ended"]
    assert find_dialect(['a|"fine"', 'b|"no" he said'], "|").quoted is False
    assert find_dialect(['a|"fine"', 'b|no "quotes" in front'], "|").quoted is True


def test_a_named_list_is_read_alone_and_two_lists_can_share_a_folder(tmp_path):
    finetune_webui(tmp_path)
    train, validation = (load_corpus(tmp_path / f"metadata_{name}.csv") for name in ("train", "eval"))
    assert [u.id for u in train.utterances] == ["a", "b", "c"] and not any(u.validation for u in train.utterances)
    assert {u.language for u in train.utterances} == {"de"} and [u.id for u in validation.utterances] == ["c"]
    assert "(same id)" in check_data(tmp_path / "metadata_train.csv", tmp_path / "metadata_eval.csv")[1]
    assert check_data(tmp_path)[1] == ""  # apart by themselves


def test_a_validation_list_of_all_clips_or_without_header_is_ignored(tmp_path):
    finetune_webui(tmp_path)
    text(tmp_path / "metadata_eval.csv", (tmp_path / "metadata_train.csv").read_text())
    corpus = load_corpus(tmp_path)
    assert not any(u.validation for u in corpus.utterances) and len(corpus.utterances) == 3
    assert "metadata_eval.csv" in corpus.notes[0]
    common_voice(cv := tmp_path / "cv")
    text(cv / "dev.tsv", "ann\tcv_2.mp3\tx2\tجملۀ 2\t2\tfa\n")
    assert {u.id: u.validation for u in load_corpus(cv).utterances} == {"cv_1": False, "cv_2": False, "cv_4": False}


def test_quoted_texts_before_the_clip_do_not_confuse_training_and_validation(tmp_path):
    audio(*(tmp_path / f"{name}.wav" for name in "abcd"))
    text(tmp_path / "train.csv", 'text,file\n"Hello, world",a.wav\n"So, long",b.wav\n')
    text(tmp_path / "val.csv", 'text,file\n"Good day, world",c.wav\n')
    (tmp_path / "._val.csv").write_bytes(b"\0\5\x16\7\xb0")  # metadata of macOS
    assert [u.id for u in load_corpus(tmp_path).utterances] == ["c", "a", "b"]
    text(tmp_path / "test.csv", "id,text\nb,So\n")  # the same clip without its suffix
    text(tmp_path / "metadata.csv", "file,text\na,Hello\nb,So\nc,Good day\nd,More\n")
    text(tmp_path / "valid.csv", "id,text\nd,More\n")
    for _ in range(2):
        assert [u.id for u in load_corpus(tmp_path).utterances] == ["c", "a"]
        (tmp_path / "train.csv").unlink(missing_ok=True)  # then metadata.csv has the clips to train on
    assert len(load_corpus(tmp_path, format_name="header").utterances) == 4
    (tmp_path / "lang.txt").write_text("a set of clips in English")  # names no language
    text(tmp_path / "metadata.csv", "file,text,speaker\na,Hello,Ann\nb,So,Ann\nc,Good day,Ann\nd,More,Ann\n")
    text(tmp_path / "train.txt", "id|text\na|Hello\n")  # without speakers
    assert {u.id: u.speaker for u in load_corpus(tmp_path).utterances if not u.validation} == {"a": "Ann"}
    for name in ("val.csv", "valid.csv", "test.csv"):
        text(tmp_path / name, "file,duration\nc.wav,1.2\n")  # no list of texts
    assert len(load_corpus(tmp_path).utterances) == 4


def test_commands_in_kaldi_folders_are_never_run_and_segments_are_refused(tmp_path):
    kaldi(tmp_path)
    corpus = load_corpus(tmp_path)
    assert [(r.id, r.reason) for r in corpus.rejections] == [("utt-b", "command")]
    inspect_corpus(corpus)
    assert not (tmp_path / "ran").exists()
    text(tmp_path / "segments", "utt-a rec 0 1\n")
    with pytest.raises(CorpusError, match="segments"):
        load_corpus(tmp_path)


def test_lines_of_json_that_are_no_clip_are_rejected(tmp_path):
    audio(tmp_path / "a.wav")
    lines = ['{"file_name": "a.wav", "text": "good"}', "[1]", "{", '{"file_name": "a.wav"}', "[" * 60_000]
    lines += ['{"file_name": "../a.wav", "text": "out"}', '{"file_name": "\\u001b[2J", "text": "out"}']
    lines.append('{"file_name": 3}')
    text(tmp_path / "metadata.jsonl", "\n".join(lines))
    corpus = load_corpus(tmp_path)
    assert [u.text for u in corpus.utterances] == ["good"]
    reasons = ["not a clip"] * 4 + ["outside the data set", "bad id", "not a clip"]
    assert [(r.line, r.reason) for r in corpus.rejections] == [*enumerate(reasons, 2)]


def test_audio_in_other_folders_must_be_the_users_or_be_named(tmp_path, monkeypatch):
    audio(tmp_path / "audio" / "a.wav", tmp_path / "audio" / "sub" / "b.wav", tmp_path / "private" / "c.wav")
    (tmp_path / "alias").symlink_to(tmp_path / "audio")
    named = f"{tmp_path}/audio/a.wav|one\nsub/b.wav|two\n{tmp_path}/private/c.wav|three\n{tmp_path}/alias/a.wav|again\n"
    text(tmp_path / "set" / "list.csv", named + f"{tmp_path}/audio/../private/c.wav|four\n")
    own = load_corpus(tmp_path / "set" / "list.csv")
    assert [u.text for u in own.utterances] == ["one", "three", "again"] and str(tmp_path) in own.notes[0]
    monkeypatch.setattr(os, "geteuid", lambda: -1)  # all of it belongs to another user
    refused = [r.reason for r in load_corpus(tmp_path / "set" / "list.csv").rejections]
    assert refused == ["outside the data set", "missing file", *["outside the data set"] * 3]
    text(tmp_path / "lists" / "up.csv", "../audio/a.wav|one\n../private/c.wav|two\n")
    beside = load_corpus(tmp_path / "lists" / "up.csv", audio_roots=[tmp_path / "audio"])
    assert [u.id for u in beside.utterances] == ["a"]
    assert [r.reason for r in beside.rejections] == ["outside the data set"]
    corpus = load_corpus(tmp_path / "set" / "list.csv", audio_roots=[tmp_path / "alias"])
    assert [(u.id, u.text) for u in corpus.utterances] == [("a", "one"), ("sub/b", "two")]
    assert [r.reason for r in corpus.rejections] == ["outside the data set", "duplicate id", "outside the data set"]
    text(tmp_path / "names" / "list.csv", "b|two\n")
    assert load_corpus(tmp_path / "names", audio_roots=[tmp_path / "audio"]).utterances  # one folder below
    (tmp_path / "audio" / "link").symlink_to(tmp_path / "audio" / "sub")
    assert load_corpus(tmp_path / "names", audio_roots=[tmp_path / "audio"]).utterances, "one file by two names"
    audio(tmp_path / "audio" / "other" / "b.wav")
    (twice,) = load_corpus(tmp_path / "names", audio_roots=[tmp_path / "audio"]).rejections
    assert (twice.id, twice.reason) == ("b", "several files"), "it may be the speech of either"
    write_report(inspect_corpus(corpus), tmp_path / "report.csv")
    with pytest.raises(UserError, match="--audio-root must be .*Received: .*nowhere"):
        load_corpus(tmp_path / "set" / "list.csv", audio_roots=[tmp_path / "nowhere"])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners of files")
def test_links_of_the_user_to_the_users_own_audio_are_followed(tmp_path, monkeypatch):
    audio(tmp_path / "audio" / "a.wav", tmp_path / "elsewhere" / "b.wav")
    text(tmp_path / "elsewhere" / "secret.txt", "x")
    root = tmp_path / "set"
    root.mkdir()
    (root / "wavs").symlink_to(tmp_path / "audio")
    (root / "b.wav").symlink_to(tmp_path / "elsewhere" / "b.wav")
    (root / "c.wav").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    text(root / "metadata.csv", "a|one\nb|two\nc|three\nd|four\n")
    corpus = load_corpus(root)
    assert [u.id for u in corpus.utterances] == ["a", "b"]
    assert [(r.id, r.reason) for r in corpus.rejections] == [("c", "outside the data set"), ("d", "missing file")]
    assert f"{tmp_path}/audio, {tmp_path}/elsewhere" in corpus.notes[0]
    text(root / "metadata.csv", "a|one\nb|two\nc|three\n/etc/a.wav|x\n" + "/usr/b.wav|x\n" * 3)
    assert load_corpus(root).notes[0] == corpus.notes[0], "/ is no folder of audio, even if the user is root"
    text(root / "metadata.csv", "a|one\nb|two\nc|three\n")
    text(tmp_path / "named" / "metadata.csv", f"{tmp_path}/audio/a.wav|one\n{tmp_path}/elsewhere/b.wav|two\n")
    (tmp_path / "named" / "speakers.csv").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    with pytest.raises(CorpusError, match="leads outside"):  # although `tmp_path` is where the named audio is
        load_corpus(tmp_path / "named")
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    assert not load_corpus(root).utterances
    folder = CorpusFolder(root)
    folder.allow(tmp_path)  # as for a list that names much audio in it
    with pytest.raises(ClipRefused, match="outside the data set"):
        folder.find_audio([root], ["b.wav"])
    allowed = load_corpus(root, audio_roots=[tmp_path / "audio"])
    assert [u.id for u in allowed.utterances] == ["a"] and not allowed.notes


def test_folders_that_link_to_themselves_are_read_once(tmp_path):
    libritts(tmp_path)
    (tmp_path / "train-clean-100" / "19" / "again").symlink_to(tmp_path)
    assert len(load_corpus(tmp_path).utterances) == 2


def save_with_datasets(folder, names="aba"):
    datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
    audio(folder / "a.wav", folder / "b.wav")
    rows = [{"bytes": (folder / f"{name}.wav").read_bytes(), "path": "a.wav"} for name in names]
    columns = {"audio": rows, "sentence": ["good day", "hello", "bye"], "speaker": [0, 1, 0]}
    saved = datasets.Dataset.from_dict(columns).cast_column("audio", datasets.Audio(decode=False))
    saved = saved.cast_column("speaker", datasets.ClassLabel(names=["ann", "bob"]))
    parts = {"train": saved.select([0, 2]), "test": saved.select([1])}
    datasets.DatasetDict(parts).save_to_disk(str(folder / "saved"))
    return folder / "saved"


def test_saved_data_sets_are_read_with_their_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    saved = save_with_datasets(tmp_path)
    corpus = load_corpus(saved)
    assert corpus.format == "datasets"
    assert [(u.text, u.speaker, u.validation) for u in corpus.utterances] == [
        ("hello", "bob", True),
        ("good day", "ann", False),
        ("bye", "ann", False),
    ]
    first = inspect_corpus(corpus).utterances
    assert [u.seconds for u in first] == [1.0, 1.0, 1.0]
    assert load_corpus(saved).utterances == corpus.utterances
    shutil.rmtree(saved)
    save_with_datasets(tmp_path, "bab")  # other audio of the same size
    assert [u.audio for u in inspect_corpus(load_corpus(saved)).utterances] == [first[k].audio for k in (1, 0, 0)]


def test_saved_data_sets_without_their_library_get_an_error_message(tmp_path, monkeypatch):
    text(tmp_path / "state.json", "{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="saved by the library datasets.*myxtts.datasets"):
        load_corpus(tmp_path)
