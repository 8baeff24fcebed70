"""Texts of recordings: cleaning of cues, synchronization of subtitles, and alignment of texts with speech."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted_talk import HearsPlanted, HearsPlantedWithoutTimes, plant

from myxtts.apps.datasets import alignment
from myxtts.apps.datasets.alignment import LOW_CONFIDENCE, NOT_HEARD, align, find_sentences, fits_speech, with_times
from myxtts.apps.datasets.checks import share_alike
from myxtts.apps.datasets.recording import LongAudio, survey
from myxtts.apps.datasets.texts import Piece, clean_cue, read_subtitles, read_transcript, synchronize
from myxtts.config.checks import UserError

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.mark.parametrize("cue, text, fault", json.loads((DATA / "cues.json").read_text("utf-8")))
def test_cleaned_cue_has_only_the_spoken_text(cue, text, fault):
    assert clean_cue(cue) == (text, fault)


SRT = "1\n00:00:01,000 --> 00:00:02,500\nOne.\n\n2\n00:00:03,000 --> 00:00:04,000\n[noise]\n"
VTT = "WEBVTT\n\n00:01.000 --> 00:02.500\n<v Mary>One.</v>\n"
ASS = (
    "[Script Info]\nScriptType: v4.00+\n\n[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, "
    "Effect, Text\nComment: 0,0:00:00.00,0:00:09.00,D,,0,0,0,,no\n"
    "Dialogue: 0,0:00:01.00,0:00:02.50,D,,0,0,0,,{\\i1}One.\n"
)


FILES = [("a.srt", SRT, "00:00:01"), ("a.vtt", VTT, "00:01"), ("a.ass", ASS, "0:00:01")]


@pytest.mark.parametrize("sign, start", [("", 1.0), ("-", -1.0)])
@pytest.mark.parametrize("name, content, time", FILES)
def test_subtitle_formats_give_the_same_piece_also_before_zero(name, content, time, sign, start, tmp_path):
    pytest.importorskip("pysubs2", reason="pysubs2 (extra recordings) is not installed")
    (tmp_path / name).write_text(content.replace(time, sign + time))
    assert read_subtitles(tmp_path / name) == [Piece("One.", start, 2.5)]


@pytest.mark.parametrize("name, content, texts", json.loads((DATA / "subtitles.json").read_text("utf-8")))
def test_only_the_texts_of_cues_and_transcripts_are_read(name, content, texts, tmp_path):
    pytest.importorskip("pysubs2", reason="pysubs2 (extra recordings) is not installed")
    (tmp_path / name).write_bytes(content.encode())
    found = read_transcript(tmp_path / name, "en") if name == "a.txt" else read_subtitles(tmp_path / name)
    assert [piece.text for piece in found] == texts


def test_overlapping_cues_get_a_fault(tmp_path):
    pytest.importorskip("pysubs2", reason="pysubs2 (extra recordings) is not installed")
    spans = [(0, 2, "One."), (6, 8, "Five."), (6.5, 8.5, "Six.")]
    spans += [(20, 22, "Seven."), (20.5, 29, "Eight, at much greater length.")]  # most of the short one
    blocks = [f"{k}\n00:00:{a:06.3f} --> 00:00:{b:06.3f}\n{text}\n" for k, (a, b, text) in enumerate(spans)]
    (tmp_path / "a.srt").write_text("\n".join(blocks).replace(".000", ",000").replace(".500", ",500"))
    assert [piece.fault for piece in read_subtitles(tmp_path / "a.srt")] == ["", *["overlapping cues"] * 4]


def test_transcript_is_split_into_sentences_and_long_ones_into_clauses(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Dr. No sat down. He smiled,\nand left.\n\n—\n\n" + "A long clause that goes on for a while, " * 3)
    texts = [piece.text for piece in read_transcript(path, "en")]
    assert texts[:2] == ["Dr. No sat down.", "He smiled, and left. —"] and len(texts) == 5
    path.write_text("one line\nanother line")
    assert [piece.text for piece in read_transcript(path, "en")] == ["one line", "another line"]


def speech_of(count, seed):
    """Returns starts and ends of sentences, in seconds."""
    random = np.random.default_rng(seed)
    lengths, pauses = random.uniform(1.5, 6, count), random.uniform(0.3, 1.2, count)
    starts = np.cumsum(pauses + np.concatenate([[0], lengths[:-1]]))
    return starts, starts + lengths


@pytest.mark.parametrize("offset, drift", [(0.0, 0.0), (-1.4, -0.001), (12.0, 0.001), (2.0, 25 / 24 - 1)])
def test_offset_and_drift_are_found(offset, drift):
    starts, ends = speech_of(160, 1)
    early = np.random.default_rng(2).normal(0, 0.05, (2, 160))
    cues = [Piece("x", *pair) for pair in ((np.array([starts, ends]) + early - offset) / (1 + drift)).T]
    moved, note = synchronize(cues, starts, ends)
    late = np.array([one.start for one in moved]) - starts - early[0]
    assert np.abs(late).max() < 0.05 and np.ptp(late) < 2e-4 * starts[-1] and bool(note) == bool(offset)


def test_cues_of_another_recording_are_refused():
    with pytest.raises(UserError):
        synchronize([Piece("x", *pair) for pair in np.array(speech_of(80, 5)).T], *speech_of(80, 1))


def pieces_of(starts, ends):
    letters = [round(14 * (end - start)) for start, end in zip(starts, ends)]
    return [Piece(f"{k}{count * 'a'}", *span) for k, (count, span) in enumerate(zip(letters, zip(starts, ends)))]


def atoms_of(starts, ends, pieces):
    """Returns `(first, last, numbers of the texts)` of each atom without a `reason`."""
    atoms = [one for one in align(starts, ends, pieces) if one.reason != LOW_CONFIDENCE]
    return [(one.first, one.last, (*one.text.replace("a", "").split(),)) for one in atoms]


def test_pause_within_a_sentence_is_no_boundary():
    starts, ends = speech_of(12, 4)
    middle = (starts[6] + ends[6]) / 2
    split_starts, split_ends = np.insert(starts, 7, middle + 0.12), np.insert(ends, 6, middle - 0.12)
    found = atoms_of(split_starts, split_ends, pieces_of(starts, ends))
    assert (6, 8, ("6",)) in found and found[-1] == (12, 13, ("11",))


def test_texts_in_another_order_do_not_fit():
    starts, ends = speech_of(40, 3)
    pieces = pieces_of(starts, ends)
    assert fits_speech(align(starts, ends, pieces), starts, ends, 40, 0.0)
    songs = [Piece("La la la.", at, at + 2, fault="sung or music") for at in ends[5] + [5, 9]]
    assert fits_speech(align(starts[:6], ends[:6], pieces[:6] + songs), starts[:6], ends[:6], 8, 0.0)
    shuffled = [replace(one, text=pieces[k].text) for one, k in zip(pieces, np.random.default_rng(3).permutation(40))]
    assert not fits_speech(align(starts, ends, shuffled), starts, ends, 40, 0.0)
    starts, ends = 6.0 * np.arange(40) + np.random.default_rng(3).normal([[0], [3]], 0.2, (2, 40))
    verses = [Piece("a" * 40, *span) for span in zip(starts, ends)]  # of the same length
    assert fits_speech(align(starts, ends, verses), starts, ends, 40, 0.0)


def test_speech_without_text_and_text_that_is_not_spoken_are_found():
    starts, ends = speech_of(20, 5)
    pieces = pieces_of(starts, ends)
    assert {(8, 9, ()), (9, 10, ("9",))} < {*atoms_of(starts, ends, pieces[:8] + pieces[9:])}
    assert {(8, 8, ("8",)), (8, 9, ("9",))} < {*atoms_of(np.delete(starts, 8), np.delete(ends, 8), pieces)}


def test_recognized_text_may_differ_in_spelling_only():
    assert 0.75 < share_alike("It's nine o'clock, Mary!", "its 9 oclock mary") < 0.9
    assert share_alike("It's nine o'clock, Mary!", "The train has left.") < 0.75


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("planted") / "talk.wav", count=12)


def found_by(planted, recognizer):
    audio, pieces = LongAudio(planted.path), [Piece(text) for text in planted.texts]
    stretches = np.round(100 * np.array(planted.spoken)).astype(int)
    return find_sentences(recognizer, audio, survey(audio), stretches, pieces, "en")


def times_of(planted, recognizer):
    return [(piece.start, piece.end) for piece in found_by(planted, recognizer)]


def test_recognized_words_locate_the_sentences(planted, monkeypatch):
    np.testing.assert_allclose(times_of(planted, HearsPlanted(planted)), planted.spoken, atol=0.02)
    # Text that a good recognizer misses is not in the recording, except a word that just fits into the gap.
    monkeypatch.setattr(alignment, "_MISHEARD_LETTERS", 100)
    assert times_of(planted, HearsPlanted(planted, wrong=5))[4] == pytest.approx(planted.spoken[4], abs=1.1)
    monkeypatch.setattr(alignment, "_MISHEARD_LETTERS", 3)
    faults = [piece.fault for piece in found_by(planted, HearsPlanted(planted, wrong=5))]
    assert faults == ["", "", "", "", NOT_HEARD] * 2 + ["", ""]


def test_words_without_times_are_distributed_over_the_speech(planted):
    np.testing.assert_allclose(times_of(planted, HearsPlantedWithoutTimes(planted)), planted.spoken, atol=1.0)


def test_transcript_of_another_recording_is_reported():
    with pytest.raises(UserError, match="1 of 8 sentences"):
        with_times([Piece("One.")] * 8, [(0.0, 1.0), *[None] * 7], 20.0)
