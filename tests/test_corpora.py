"""From a folder to utterances: layouts, encodings, and names that point outside the folder."""

import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.data import corpora
from myxtts.data.corpora import CorpusError, load_corpus
from myxtts.data.corpora import folder as corpus_folder


def make_corpus(root, metadata, audio=("a", "b"), folder="wavs"):
    """Writes a list, and audio files (a name without extension is a WAV file) that hold a short tone."""
    for name in audio:
        path = root / folder / (name if Path(name).suffix in AUDIO_EXTENSIONS else f"{name}.wav")
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.3 * np.sin(np.arange(4410) / 9), 22050)
    if metadata is not None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "metadata.csv").write_bytes(metadata if isinstance(metadata, bytes) else metadata.encode())
    return root


def reasons(corpus):
    return [(rejection.line, rejection.reason) for rejection in corpus.rejections]


def test_ljspeech_takes_the_normalized_text_and_else_the_text(tmp_path):
    lines = "a|In 1984|in nineteen eighty-four\nb|only this|\nc|two columns\n"
    root = make_corpus(tmp_path / "\u200fSpeaker One", lines, "abc")
    corpus = load_corpus(root, language="de")
    assert corpus.format == "ljspeech" and corpus.notes == ()
    assert [(u.id, u.text, u.line) for u in corpus.utterances] == [
        ("a", "in nineteen eighty-four", 1),
        ("b", "only this", 2),
        ("c", "two columns", 3),
    ]
    assert {(u.speaker, u.language) for u in corpus.utterances} == {("Speaker One", "de")}
    assert corpus.utterances[0].wav_path == str(root.resolve() / "wavs" / "a.wav")


def test_audio_is_found_by_id_in_other_formats_other_places_and_other_spellings(tmp_path):
    decomposed = unicodedata.normalize("NFD", "é")
    make_corpus(
        tmp_path,
        f"a|one\nb.mp3|two\nsub/c|three\nwavs/d.wav|four\n{tmp_path}/e|five\né|six\ng\\h|seven\né/é|eight\n",
        ["a.flac", "b.mp3", "sub/c.ogg", "d", decomposed, "g/h", f"{decomposed}/{decomposed}"],
    )
    make_corpus(tmp_path, None, ["e"], folder=".")
    os.rename(tmp_path / "wavs" / "d.wav", tmp_path / "wavs" / "d.WAV")
    corpus = load_corpus(tmp_path)
    assert not corpus.rejections
    assert [os.path.relpath(u.wav_path, tmp_path.resolve()) for u in corpus.utterances] == [
        "wavs/a.flac",
        "wavs/b.mp3",
        "wavs/sub/c.ogg",
        "wavs/d.WAV",
        "e.wav",
        f"wavs/{decomposed}.wav",
        "wavs/g/h.wav",
        f"wavs/{decomposed}/{decomposed}.wav",
    ]
    assert [u.id for u in corpus.utterances] == ["a", "b", "sub/c", "d", "e", "é", "g/h", "é/é"]


@pytest.mark.parametrize(
    "header, line, expected",
    [
        ("audio_file|text|speaker_name", "wavs/a.wav|hello|Ann", ("hello", "Ann", "en")),
        ("id|text|normalized|speaker|language", "a|1|one|Ann|pt_BR", ("one", "Ann", "pt")),
        ("speaker|text|id", "Ann|hello|a", ("hello", "Ann", "en")),
        ("file_name|duration|sentence", "a.wav|0.2|hello", ("hello", None, "en")),
        ("sep=;\nfile;text", "a.wav;hello, you", ("hello, you", None, "en")),
        ("# by me, 2024\n\nid|text", "a|hello", ("hello", None, "en")),
    ],
)
def test_a_header_names_the_columns(tmp_path, header, line, expected):
    corpus = load_corpus(make_corpus(tmp_path, f"{header}\n{line}\n"))
    (utterance,) = corpus.utterances
    text, speaker, language = expected
    assert (utterance.text, utterance.speaker, utterance.language) == (text, speaker or tmp_path.name, language)
    assert (corpus.format, corpus.rejections) == ("header", ()) and corpus.notes[0][5] == str(header.count("\n") + 1)


def test_names_cannot_control_a_terminal_and_a_line_that_lacks_a_named_column_is_rejected(tmp_path):
    assert load_corpus(make_corpus(tmp_path, "\x1b[2J\x07|x\nb|y\n")).rejections[0].id == r"\x1b[2J\x07"
    corpus = load_corpus(make_corpus(tmp_path, "id|text|speaker\na|hello|Ann\nb|hello\nb|hello| \n"))
    assert [u.id for u in corpus.utterances] == ["a"]
    assert reasons(corpus) == [(3, "wrong number of columns"), (4, "no speaker")]


def test_a_fourth_column_is_the_speaker_when_most_lines_have_one(tmp_path):
    corpus = load_corpus(make_corpus(tmp_path, "a|x|x|Ann\nb|x|x|Bob\nc|x|x\n", "abc"))
    assert [(u.id, u.speaker) for u in corpus.utterances] == [("a", "Ann"), ("b", "Bob")]
    assert reasons(corpus) == [(3, "wrong number of columns")]
    corpus = load_corpus(make_corpus(tmp_path, "a|x|x\nb|x|x\nc|x|x|y\n", "abc"))
    assert [u.id for u in corpus.utterances] == ["a", "b"] and reasons(corpus) == [(3, "wrong number of columns")]


@pytest.mark.parametrize(
    "line, read_as, speakers",
    [
        ("{c}|{t}|{who}", "file|text|speaker", {"Ann Lee", "Bob"}),
        ("{c}|{k}|{t}", "file|speaker|text", {"0", "1", "2"}),  # VITS
        ("{c}|p{c}|{t}", "file|speaker|text", {f"pc{number}" for number in range(12)}),
        ("{c}|Ann|EN|{t}", "file|speaker|language|text", {"Ann"}),  # GPT-SoVITS
        ("{c}|{t}|{t}|1.0", "file|text|normalized|other", {"{d}"}),
        ("{c}|{k}|{word}", "file|text|normalized", {"{d}"}),
        ("{c}|{t}|{t}|{n}", "", {*map(str, range(12))}),
        ("{c};{t}", "", {"{d}"}),
        ("{t};{c}.wav", "text;file", {"{d}"}),
        ("{t}|Ann|{c}.wav", "text|speaker|file", {"Ann"}),
        ("{c}.wav|Ann|EN|{t}|{k}", "file|speaker|language|text|other", {"Ann"}),
    ],
)
def test_columns_without_a_header_are_found_by_content(tmp_path, line, read_as, speakers):
    words = "nil", "one", "two"
    rows = [dict(n=n, c=f"c{n}", t=f"a sentence, number c{n}", k=n % 3, word=words[n % 3]) for n in range(12)]
    lines = "".join(line.format(**row, who="Ann Lee" if row["k"] else "Bob") + "\n" for row in rows)
    for last in ("\n", "c0.wav|Ann\n", "x|Ann|c0.wav|EN|1|1\n") if ".wav" in line else ("",):
        corpus = load_corpus(make_corpus(tmp_path, lines + last, [row["c"] for row in rows]))
        assert len(corpus.utterances) == len(rows) and len(corpus.rejections) == bool(last.strip())
    assert {one.speaker.replace(tmp_path.name, "{d}") for one in corpus.utterances if one.language == "en"} == speakers
    assert [clip.text for clip in corpus.utterances] == [row["word" if "word" in line else "t"] for row in rows]
    assert not (read_as or corpus.notes) or f"read as '{read_as}'" in corpus.notes[0]
    (tmp_path / "metadata.csv").rename(tmp_path / "train.csv")
    (tmp_path / "val.jsonl").write_text('{"audio": "c0.wav", "text": "said"}\n')
    assert [clip.text for clip in load_corpus(tmp_path).utterances if clip.validation] == ["said"]
    (tmp_path / "train.csv").rename(tmp_path / "metadata.csv").write_text("text|words\nc1|one two\nc2|three four\n")
    assert [clip.text for clip in load_corpus(tmp_path).utterances if clip.validation] == ["said"]


def test_speakers_csv_sets_speakers_and_languages(tmp_path):
    make_corpus(tmp_path, "a|x\nb|بله\nc|z\n", "abc")
    (tmp_path / "speakers.csv").write_text('id,"speaker",language\n./a.wav,"L, A",\nb,Bo\u0308b,FA\nbroken\nb,Eve,fa\n')
    corpus = load_corpus(tmp_path)
    assert [(u.id, u.speaker, u.language) for u in corpus.utterances] == [("a", "L, A", "en"), ("b", "Böb", "fa")]
    assert reasons(corpus) == [(3, "no speaker")]
    assert "2 lines of speakers.csv" in corpus.notes[0] and "line 4" in corpus.notes[0]
    (tmp_path / "metadata.csv").rename(tmp_path / "clips.csv")
    assert load_corpus(tmp_path).utterances == corpus.utterances
    (tmp_path / "speakers.csv").write_text("a,Ann\n")
    with pytest.raises(CorpusError, match="line 'id,speaker"):
        load_corpus(tmp_path)


def test_a_folder_per_speaker_in_either_layout(tmp_path):
    make_corpus(tmp_path / "Ann", "a|hello\nb|\n")
    make_corpus(tmp_path / "Bob", None, "abc", folder=".")
    (tmp_path / "Bob" / "a.txt").write_text("two\nlines\n", encoding="utf-8-sig")
    (tmp_path / "Bob" / "b.txt").write_bytes(b"gr\xf6\xdfe")
    (tmp_path / "Bob" / "d.txt").write_text("no audio")
    (tmp_path / "notes").mkdir()
    corpus = load_corpus(tmp_path)
    assert corpus.format == "speaker-folders"
    assert [(u.id, u.speaker, u.text) for u in corpus.utterances] == [
        ("Ann/a", "Ann", "hello"),
        ("Bob/a", "Bob", "two lines"),
    ]
    assert [(r.id, r.reason, r.path) for r in corpus.rejections] == [
        ("b", "no text", "Ann/metadata.csv"),
        ("Bob/b", "unreadable text", "Bob/b.txt"),
        ("Bob/c", "no text", "Bob/c.txt"),
        ("Bob/d", "missing file", "Bob/d.wav"),
    ]
    assert "The folder notes was left out" in corpus.notes[0]
    make_corpus(tmp_path / "set" / "val", "a|two\n")
    make_corpus(tmp_path / "set" / "train", "b|one\n")
    assert {u.id: u.validation for u in load_corpus(tmp_path / "set").utterances} == {"val/a": True, "train/b": False}


def test_list_and_transcript_are_found_whatever_the_case_of_their_suffix(tmp_path):
    for folder, name, content in (("list", "metadata.CSV", "a|one"), ("texts", "a.TXT", "one")):
        make_corpus(tmp_path / folder, None, "a", folder=".")
        (tmp_path / folder / name).write_text(content)
        assert [u.text for u in load_corpus(tmp_path / folder).utterances] == ["one"]
    (tmp_path / "texts" / "NOTES.CSV").write_text("of no clip")
    assert len(load_corpus(tmp_path).utterances) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_encodings_with_a_mark_and_all_line_ends(tmp_path, encoding, line_end):
    text = "می\u200cخواهم \u2028 ሰላም"
    corpus = load_corpus(make_corpus(tmp_path, line_end.join([f"a|{text}", "b|two", ""]).encode(encoding)))
    assert [(u.id, u.text, u.line) for u in corpus.utterances] == [("a", text, 1), ("b", "two", 2)]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty: no clips"),
        (b"\n \n", "is empty: no clips"),
        (b"id|text\n", "is empty: no clips"),
        ("a|x\nb|größe\n".encode("cp1252"), "is not UTF-8: line 2 holds the byte 0xF6.*Windows-1252.*größe"),
        (b"\xef\xbb\xbfa|x\nb|gr\xf6\xdfe\n", "is not UTF-8: line 2 holds the byte 0xF6.*größe"),
        ("a.wav|x\nb.wav|سلام دنیا\n".replace("ی", "ي").encode("cp1256"), "is not UTF-8.*Windows-1256.*سلام"),
        ("a|x\nb|y\n".encode("utf-16-le"), "not UTF-8"),
        ("a|x\nb|y\n".encode("utf-16")[:-1], "is not UTF-16"),
    ],
)
def test_lists_that_cannot_be_used_give_one_clear_error(tmp_path, content, message):
    with pytest.raises(CorpusError, match=message) as caught:
        load_corpus(make_corpus(tmp_path, content))
    assert "metadata.csv" in str(caught.value)


def test_a_first_line_with_a_known_name_is_a_header_and_a_clip_without_audio_is_none(tmp_path):
    corpus = load_corpus(make_corpus(tmp_path, "c1|x\na.wav|x\nb.wav|y\n"))
    assert reasons(corpus) == [(1, "missing file")] and len(corpus.utterances) == 2
    named = "# by me|2024\nDateiname|Gesagtes|Nr\na.wav|x|1\nb.wav|y|2\nc.wav|z|3\nd.wav|x|4\n"
    corpus = load_corpus(make_corpus(tmp_path, named))  # one known name is enough, though two files are missing
    assert [one.text for one in corpus.utterances] == ["x", "y"] and {line for line, _ in reasons(corpus)} == {5, 6}
    few = "a;x, y\nb;y, z\nc1;x, y\nc2;y, z\nc3;z, x\nc4;x, z\n"  # most of the files are missing
    assert [one.text for one in load_corpus(make_corpus(tmp_path, few)).utterances] == ["x, y", "y, z"]
    with pytest.raises(CorpusError):  # no column of texts: the speakers are not read as texts
        load_corpus(make_corpus(tmp_path, "Dateiname|Sprecherin\na.wav|Ann\nb.wav|Bob\n"))


def test_limits_on_lists_have_their_errors(tmp_path, monkeypatch):
    root = make_corpus(tmp_path, f"a|x\nb|{'y' * 70_000}\n")
    monkeypatch.setattr(corpus_folder, "MAX_LINES", 1)
    with pytest.raises(CorpusError, match="over 1 lines"):
        load_corpus(root)
    monkeypatch.setattr(corpus_folder, "MAX_LIST_BYTES", 100)
    with pytest.raises(CorpusError, match="too large; at most 100 bytes"):
        load_corpus(root)


@pytest.mark.parametrize("name, reason", json.loads((Path(__file__).parent / "data/names_in_lists.json").read_text()))
def test_names_cannot_leave_the_folder(tmp_path, monkeypatch, name, reason):
    monkeypatch.setattr(os, "geteuid", lambda: -1)  # link targets belong to another user
    root = make_corpus(tmp_path / "set", f"{name.format(parent=tmp_path)}|x\nb|y\n")
    make_corpus(tmp_path, None, ["outside"], folder=".")
    (root / "wavs" / "link.wav").symlink_to(tmp_path / "outside.wav")
    (root / "wavs" / "folder").symlink_to(tmp_path)
    (root / "wavs" / "file").write_text("x")
    opened = []
    real_scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: opened.append(Path(path)) or real_scandir(path))
    corpus = load_corpus(root)
    assert [u.id for u in corpus.utterances] == ["b"] and reasons(corpus) == [(1, reason)]
    assert all(path.is_relative_to(root) and "folder" not in path.parts for path in opened)


def test_lists_and_speaker_folders_linked_from_outside_are_not_read(tmp_path):
    make_corpus(tmp_path / "secret", "a|x\n")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "metadata.csv").symlink_to(tmp_path / "secret" / "metadata.csv")
    with pytest.raises(CorpusError, match="leads outside"):
        load_corpus(tmp_path / "set")
    make_corpus(tmp_path / "speakers" / "Ann", "a|x\n")
    (tmp_path / "speakers" / "Bob").symlink_to(tmp_path / "secret")
    corpus = load_corpus(tmp_path / "speakers")
    assert [u.id for u in corpus.utterances] == ["Ann/a"] and "Bob was left out" in corpus.notes[0]


def test_formats_are_asked_in_order_of_their_priority():
    formats = corpora.find_formats()
    assert [form.name for form in formats][-2:] == ["lists", "speaker-folders"]
    assert len({form.priority for form in formats}) == len(formats)


names = st.one_of(st.sampled_from(["a", "b", "a.wav", "wavs/b.wav", "../a", "/a", "c"]), st.text(max_size=8))
cells = st.one_of(st.sampled_from(["hello", "", " ", "!?", '"quoted', "tab\there"]), st.text(max_size=12))
lines = st.one_of(st.lists(cells, max_size=6).map("|".join), st.tuples(names, cells, cells).map("|".join), st.text())


@settings(max_examples=200, deadline=None)
@given(content=st.one_of(st.lists(lines, max_size=12).map("\n".join).map(str.encode), st.binary(max_size=80)))
def test_every_line_becomes_an_utterance_or_a_rejection(tmp_path_factory, content):
    root = tmp_path_factory.getbasetemp() / "fuzzed"
    if not root.exists():
        make_corpus(root, None)
    (root / "metadata.csv").write_bytes(content)
    try:
        corpus = load_corpus(root)
    except CorpusError as error:
        assert "metadata.csv" in str(error)
        return
    text = content.decode({b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}.get(content[:2], "utf-8-sig"))
    given_lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").count("\n") + 1
    numbers = [item.line for item in (*corpus.utterances, *corpus.rejections)]
    header = sum(int(note.split()[1]) for note in corpus.notes if "as a header" in note)  # its line, without comments
    assert len(set(numbers)) == len(numbers) == given_lines - header
    assert all(Path(u.wav_path).is_relative_to(root.resolve()) and u.id in ("a", "b") for u in corpus.utterances)
