"""Checks of data sets: accepted and rejected clips, warnings, cache, validation split, and leakage."""

import csv
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from command_helpers import sentence_of

from myxtts.cli import doctor as doctor_command
from myxtts.data import doctor
from myxtts.data.corpora import Corpus, Finding, Utterance, load_corpus
from myxtts.data.doctor import ClipLimits, id_hash, inspect_corpus, split_by_hash, summarize, write_report
from myxtts.text.tokenizer import XTTSTokenizer


def speech(seconds=0.5, pitch=150, sample_rate=22050, fade=True, peak=0.4):
    """Returns a tone with vibrato that fades in and out like speech."""
    time_axis = np.arange(int(seconds * sample_rate)) / sample_rate
    samples = peak * np.sin(2 * np.pi * pitch * time_axis + 3 * np.sin(2 * np.pi * 5 * time_axis))
    return samples * np.hanning(len(samples)) if fade else samples


def make_corpus(root, clips):
    """`clips`: `{id: (text, samples, sample rate)}`."""
    (root / "wavs").mkdir(parents=True)
    (root / "metadata.csv").write_text("".join(f"{name}|{text}|\n" for name, (text, _, _) in clips.items()), "utf-8")
    for name, (_, samples, rate) in clips.items():
        soundfile.write(root / "wavs" / f"{name}.wav", samples, rate)
    return load_corpus(root)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(
        tmp_path / "set",
        {
            "good": ("hello", speech(), 22050),
            "fast": ("many words " * 20, speech(pitch=160), 22050),
            "slow": ("a", np.append(speech(2.99, 170, fade=False), np.zeros(221)), 22050),  # 10 ms of silence
            "cut": ("hello", speech(pitch=180, fade=False), 22050),
            "telephone": ("hello", np.clip(3 * speech(pitch=190, sample_rate=8000), -0.5, 0.5), 8000),
            "clipped": ("hello", np.clip(3 * speech(pitch=200), -0.5, 0.5), 22050),
            "copy": ("other words", speech(), 22050),
            "silent": ("hello", 0 * speech(), 22050),
            "long": ("hello", speech(5), 22050),
            "mojibake": ("größer schön".encode().decode("cp1252"), speech(pitch=210), 22050),
            "control": ("one\x07two", speech(pitch=220), 22050),
            "lost": ("one \ufffd two", speech(pitch=230), 22050),
            "asked": ("12 ????? ???", speech(pitch=250), 22050),
            "perhaps": ("ALLÉ\xa0!", speech(pitch=240), 22050),
        },
    )


def found(findings):
    return {(finding.id, finding.reason) for finding in findings}


def test_every_reason_is_found_and_every_clip_accounted_for_in_the_report_and_the_summary(corpus, tmp_path):
    calls = []
    limits, progress = ClipLimits(max_seconds=4), lambda done, total: calls.append((done, total))
    inspection = inspect_corpus(corpus, limits, workers=2, progress=progress)
    assert calls == [(number, 14) for number in range(1, 15)]
    assert found(inspection.rejections) == {
        ("fast", "text too long for the audio"),
        ("silent", "silent"),
        ("long", "too long"),
        ("mojibake", "text wrongly encoded"),
        ("control", "text wrongly encoded"),
        ("lost", "text wrongly encoded"),
        ("asked", "text wrongly encoded"),
    }
    assert found(inspection.warnings) == {
        ("slow", "text short for the audio"),
        ("cut", "cut ending"),
        ("telephone", "low sample rate"),
        ("telephone", "clipped"),
        ("clipped", "clipped"),
        ("copy", "duplicate audio"),
        ("perhaps", "text perhaps wrongly encoded"),
    }
    accepted = [utterance.id for utterance in inspection.utterances]
    assert accepted == ["good", "slow", "cut", "telephone", "clipped", "copy", "perhaps"]
    assert inspection.given == 14
    by_id = {utterance.id: utterance for utterance in inspection.utterances}
    assert by_id["good"].num_samples == 11025 and by_id["telephone"].num_samples == 11025
    assert by_id["slow"].seconds == pytest.approx(3)
    write_report(inspection, tmp_path / "report.csv")
    with open(tmp_path / "report.csv", encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert Counter(row["verdict"] for row in rows.values()) == {"rejected": 7, "warning": 6, "accepted": 1}
    assert rows["telephone"]["reason"] == "clipped; low sample rate"
    silent, good = rows["silent"], rows["good"]
    assert (silent["reason"], silent["path"], silent["line"]) == ("silent", "wavs/silent.wav", "8")
    assert (good["reason"], good["path"], good["seconds"]) == ("", "wavs/good.wav", "0.500")
    lines = summarize(inspection).splitlines()
    assert [one.split()[-1] for one in lines[0].split(",")] == ["14", "min)", "7", "7"] and "7 (0.1" in lines[0]
    assert "wrongly encoded: 4 (first: mojibake)" in lines[1]
    assert "warning: cut ending: 1 (first: cut)" in lines


def test_text_with_half_a_surrogate_pair_or_in_an_unsupported_language_is_rejected(tmp_path):
    corpus = make_corpus(tmp_path / "set", {"good": ("hello", speech(), 22050)})
    half = replace(corpus.utterances[0], text="one \ud83d two")
    both = replace(corpus, utterances=(half, replace(corpus.utterances[0], language="sv")))
    assert {one.reason for one in inspect_corpus(both).rejections} == {"text wrongly encoded", "unsupported language"}


def test_texts_of_accepted_clips_only_are_encoded_and_may_reject_them(corpus):
    asked = []
    encode = lambda text, language: asked.append(text) or ([len(text)], "too many tokens" if text == "a" else None)
    inspection = inspect_corpus(corpus).encoded(encode)
    assert len(asked) == 8 and inspection.given == 14
    assert [clip.tokens for clip in inspection.utterances] == [(len(clip.text),) for clip in inspection.utterances]
    rejection = inspection.rejections[-1]
    assert (rejection.id, rejection.reason, rejection.detail) == ("slow", "text not usable", "too many tokens")


def test_the_cache_is_used_for_unchanged_files_only(corpus, tmp_path, monkeypatch):
    paths, read = [], doctor.read_audio
    keep = lambda path, *given, **named: paths.append(Path(path).stem) or read(path, *given, **named)
    monkeypatch.setattr(doctor, "read_audio", keep)
    taken, cache = lambda: [paths.pop() for _ in [*paths]], tmp_path / "cache.json"
    with pytest.raises(ZeroDivisionError):  # an interruption
        inspect_corpus(corpus, cache_path=cache, progress=lambda done, total: 1 // (13 - done))
    assert len(taken()) >= 13
    first = inspect_corpus(corpus, cache_path=cache)
    assert len(taken()) == 1
    assert inspect_corpus(corpus, cache_path=cache) == first and taken() == []
    soundfile.write(corpus.root / "wavs" / "good.wav", speech(pitch=300), 22050)
    os.utime(corpus.root / "wavs" / "good.wav", ns=(1, 1))
    second = inspect_corpus(corpus, cache_path=cache)
    assert taken() == ["good"] and ("copy", "duplicate audio") not in found(second.warnings)
    inspect_corpus(corpus, ClipLimits(max_seconds=4), cache_path=cache)
    assert len(taken()) == 14


@pytest.mark.parametrize("damage", [None, b'{"limits": [6, 22050, 0.1, 11.6], "clips": {"a": 1}}', b"", b"\xff\0"])
def test_a_damaged_cache_is_ignored_and_replaced(corpus, tmp_path, damage):
    cache = tmp_path / "cache.json"
    first = inspect_corpus(corpus, cache_path=cache)
    whole = cache.read_bytes()
    cache.write_bytes(whole[:200] if damage is None else damage)
    assert inspect_corpus(corpus, cache_path=cache) == first and cache.read_bytes() == whole


def test_a_vanished_file_is_rejected_and_not_cached(corpus, tmp_path):
    os.rename(corpus.root / "wavs" / "good.wav", tmp_path / "good.wav")
    assert ("good", "missing file") in found(inspect_corpus(corpus, cache_path=tmp_path / "cache.json").rejections)
    os.rename(tmp_path / "good.wav", corpus.root / "wavs" / "good.wav")
    assert "good" in {clip.id for clip in inspect_corpus(corpus, cache_path=tmp_path / "cache.json").utterances}


def test_command_reports_clips_and_leakage_and_is_strict_on_request(corpus, tmp_path, capsys):
    clean = make_corpus(tmp_path / "clean", {"a": ("hello there", speech(), 22050), "b": ("you", speech(), 22050)})
    other = make_corpus(tmp_path / "other", {"a": ("other words", speech(pitch=300), 22050)})
    report = str(tmp_path / "report.csv")

    def run(*arguments):
        code = doctor_command.main(["data", *map(str, arguments), "--report", report])
        return code, capsys.readouterr().out.splitlines()

    code, lines = run(corpus.root, "--max-seconds", 4, "--strict", "--language", "en")
    assert code == 1 and lines[1:-2] == summarize(inspect_corpus(corpus, ClipLimits(max_seconds=4))).splitlines()
    train = f"Next:  myxtts train {corpus.root} --language=en --max-seconds=4.0"
    assert (lines[0], *lines[-2:]) == ("format: ljspeech (metadata.csv)", f"report on every clip: {report}", train)
    with open(report, encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 14
    code, more = run(corpus.root, "--max-seconds", 4)
    (note,) = (line for line in more[:-1] if line not in lines)
    assert code == 0 and note.startswith("note: ") and "English (en)" in note and "--language" in note
    code, lines = run(clean.root, "--strict", "--validation", other.root)
    assert code == 1 and lines[-3].startswith("leakage: 1 of 1 ") and lines[-3].endswith(": a (same id)")
    assert run(clean.root, "--strict")[0] == run(clean.root, "--validation", other.root)[0] == 0


def test_command_keeps_a_file_in_the_place_of_its_report_that_it_did_not_write(tmp_path, monkeypatch, capsys):
    root = make_corpus(tmp_path / "set", {"a": ("hello there", speech(), 22050)}).root
    monkeypatch.chdir(tmp_path)
    Path("doctor.csv").write_text("name,phone\nDr. No,007\n")
    for argv in ([], ["--report", "./doctor.csv"], ["--report", "set/metadata.csv"]):
        assert "--report must be a new file " in sentence_of(capsys, doctor_command.main, "data", root, *argv)
    assert Path("doctor.csv").read_text() == "name,phone\nDr. No,007\n"
    assert (root / "metadata.csv").read_text() == "a|hello there|\n"
    Path("doctor.csv").write_text("")
    for _ in range(2):  # an empty file holds nothing to keep, and then it is a report
        assert doctor_command.main(["data", str(root)]) == 0
        assert Path("doctor.csv").read_text("utf-8").startswith("\ufeffid,verdict,"), "Excel needs the mark"


@pytest.mark.parametrize("start", ["=", "\uff1d"])
def test_no_cell_of_the_report_is_a_formula(tmp_path, start):
    name = f"{start}cmd'!A1"
    clips = ({"id": name, "wav_path": tmp_path / f"{name}.wav", "text": "x", "speaker": "", "language": "en"},)
    accepted = tuple(Utterance(**clip, num_samples=22050) for clip in clips)
    warnings = (Finding(name, None, name, f"{start}reason", f"{start}detail"),)
    rejections = (Finding(name, 1, name, f"{start}reason", f"{start}detail"),)
    write_report(Corpus(tmp_path, "", accepted, rejections, (), warnings), tmp_path / "report.csv")
    with open(tmp_path / "report.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == 2 * [f"'{name}"] and rows[1]["path"] == f"'{name}.wav"
    assert all(row[column] == f"'{start}{column}" for row in rows for column in ("reason", "detail"))
    assert [row["line"] for row in rows] == ["1", ""] and rows[1]["seconds"] == "1.000"


def test_command_rejects_text_that_the_vocabulary_cannot_write(tmp_path, capsys):
    root = make_corpus(tmp_path / "set", {"a": ("abc cab", speech(), 22050), "b": ("xyz", speech(), 22050)}).root
    XTTSTokenizer.train([("abc cab bac", "en")], vocab_size=40).save(tmp_path / "vocab.json")
    report = str(tmp_path / "report.csv")
    doctor_command.main(["data", str(root), "--vocabulary", str(tmp_path / "vocab.json"), "--report", report])
    assert "rejected: text not usable: 1 (first: b)" in capsys.readouterr().out.splitlines()


def utterances(count, folder=Path("wavs")):
    return [Utterance(f"clip{i}", folder / f"clip{i}.wav", "text", "Ann", "en") for i in range(count)]


def ids(items):
    return {item.id for item in items}


def test_the_split_has_its_share_and_loses_no_clip():
    train, validation = split_by_hash(utterances(2000), 0.1)
    assert 150 < len(validation) < 250
    assert ids(train) | ids(validation) == ids(utterances(2000)) and len(train) + len(validation) == 2000
    assert [u.id for u in train] == [u.id for u in utterances(2000) if u.id in ids(train)]


def test_a_clip_stays_in_its_part_when_others_are_added_and_in_other_processes():
    _, validation = split_by_hash(utterances(200), 0.1)
    _, more = split_by_hash(utterances(400)[::-1], 0.1)
    assert ids(validation) == ids(more) & ids(utterances(200))
    assert sorted(ids(validation))[:5] == ["clip1", "clip105", "clip131", "clip132", "clip135"], "as ever"


@pytest.mark.parametrize("share", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 20])
def test_neither_side_is_empty_from_two_clips_on(share, count):
    train, validation = split_by_hash(utterances(count), share)
    assert train and validation and len(train) + len(validation) == count


def test_one_clip_or_none_and_trained_clips_go_to_training():
    assert ids(split_by_hash(utterances(16), 1e-9, {id_hash(f"clip{n}") for n in range(15)})[1]) == {"clip15"}
    assert [len(side) for side in split_by_hash(utterances(1), 0.5)] == [1, 0]
    assert split_by_hash([], 0.5) == ((), ())


def test_leakage_by_id_and_by_content_in_any_format(tmp_path):
    pitches = {"train": {"a": 100, "c": 200}, "held": {"a": 300, "d": 200, "e": 400}}
    corpora = []
    for side, clips in pitches.items():
        sounds = {name: ("one", speech(pitch=pitch), 22050) for name, pitch in clips.items()}
        corpora.append(make_corpus(tmp_path / side, sounds))
    path = tmp_path / "train/wavs/c.wav"
    soundfile.write(path, soundfile.read(path)[0], 22050, subtype="FLOAT")
    train, held = (inspect_corpus(corpus).utterances for corpus in corpora)
    found = doctor.find_leakage(train, held)
    assert found.startswith("2 of 3 ") and found.endswith(": a (same id), d (same audio as c)")
    assert doctor.find_leakage(train, 20 * held).count("(same") == 3 and doctor.find_leakage(held[1:], train[:1]) == ""
