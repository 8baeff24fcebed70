"""`myxtts make-dataset` on synthetic recordings with known times: cuts, texts of clips, and dropped segments."""

import csv
import json
import re
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import soundfile
from crash_points import contents
from planted_talk import RATE, HearsPlanted, plant, syllables
from tiny import voiced

import myxtts
from myxtts import __main__ as command
from myxtts.apps.datasets.checks import ClipFacts, Segment, judge, listen, measure_clip
from myxtts.apps.datasets.command import build_parser, open_options
from myxtts.apps.datasets.make import make_dataset
from myxtts.apps.datasets.set_folder import describe_doubts
from myxtts.cli.arguments import keywords
from myxtts.config.checks import UserError
from myxtts.data.corpora import files_beside, load_corpus, texts_beside

pytest.importorskip("pysubs2", reason="pysubs2 (extra recordings) is not installed")


def make(*words):
    return command.main(["make-dataset", *map(str, words), "--vad", "energy"])


def options_with(**models):
    given = keywords(build_parser(), dict(recordings=[], output="speaker", vad="energy"))
    return Namespace(**vars(open_options(given)) | models)


def read_segments(folder):
    with open(folder / "segments.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def clip_bounds(folder):
    """Returns `(start, end, text)` of each clip; times in seconds of the recording."""
    rows = [row for row in read_segments(folder) if row["verdict"] == "kept"]
    return [(float(row["start_seconds"]), float(row["end_seconds"]), row["text"]) for row in rows]


def right_share(planted, folder):
    """Returns the share of the planted speech that is in clips with exactly its text."""
    good = 0.0
    for start, end, text in clip_bounds(folder):
        inside = [k for k, (a, b) in enumerate(planted.spoken) if a >= start - 0.01 and b <= end + 0.01]
        touched = [k for k, (a, b) in enumerate(planted.spoken) if a < end and b > start]
        if inside == touched and text == " ".join(planted.texts[k] for k in inside):
            good += sum(planted.spoken[k][1] - planted.spoken[k][0] for k in inside)
    return good / sum(b - a for a, b in planted.spoken)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("planted") / "talk.wav")


@pytest.fixture(scope="module")
def made(planted, tmp_path_factory):
    """A data set made from late and drifting subtitles. Tests must not change it."""
    folder = tmp_path_factory.mktemp("made")
    planted.write_srt(folder / "talk.srt", 1.4, 0.001)
    assert make(planted.path, "--subtitles", folder / "talk.srt", "--output", folder / "set", "--speaker", "emma") == 0
    return folder


def test_text_matches_its_speech_at_the_target_loudness_and_no_cut_is_in_speech(planted, made):
    assert right_share(planted, made / "set") >= 0.98
    cuts = [cut for *times, _ in clip_bounds(made / "set") for cut in times]
    assert not any(a < cut < b for cut in cuts for a, b in planted.spoken)
    record = json.loads(next((made / "set" / "sources").glob("*.json")).read_text())
    assert float(re.search(r"are ([\d.]+) s late", record["notes"][0])[1]) == pytest.approx(1.4, abs=0.05)
    assert record["gain_db"] == pytest.approx(-23 - record["loudness"], abs=0.02)
    row = next(row for row in record["rows"] if row["clip"])
    samples, _ = soundfile.read(made / "set" / row["clip"])
    assert len(samples) == row["end"] - row["start"] and 0 < np.abs(samples).max() < 0.9


def test_every_sample_is_in_one_row_of_segments(planted, made):
    rows = read_segments(made / "set")
    assert rows[0]["start_seconds"] == "0.000000"
    assert all(before["end_seconds"] == after["start_seconds"] for before, after in zip(rows, rows[1:]))
    assert float(rows[-1]["end_seconds"]) == pytest.approx(planted.seconds, abs=1e-6)
    assert all(row["clip"] if row["verdict"] == "kept" else row["reason"] for row in rows)


def test_set_can_be_used_for_training(made):
    corpus = load_corpus(made / "set")
    held = [one for one in corpus.utterances if one.validation]
    assert corpus.format == "finetune-webui" and not corpus.rejections
    assert 0 < len(held) <= len(corpus.utterances) / 4
    assert {(one.speaker, one.language) for one in corpus.utterances} == {("emma", "en")}
    infos = [soundfile.info(one.wav_path) for one in corpus.utterances]
    assert all(1 <= info.duration <= 11.5 and info.samplerate == RATE for info in infos)


def test_second_recording_adds_and_keeps_edited_lines(made, tmp_path):
    folder = shutil.copytree(made / "set", tmp_path / "set")
    training = folder / "metadata_train.csv"
    training.write_text(training.read_text().replace("Bd", "Edited by hand "))
    before, wavs = training.read_text(), contents(folder / "wavs")
    plant(tmp_path / "other.wav", 8, seed=1).write_srt(tmp_path / "other.en.srt")
    (tmp_path / "other.de.srt").write_text("no cue: an error if it is read")
    assert make(tmp_path / "other.wav", "--output", folder) == 0
    assert training.read_text().startswith(before) and wavs.items() <= contents(folder / "wavs").items()
    assert len(load_corpus(folder).utterances) > len(load_corpus(made / "set").utterances)


def test_killed_run_is_resumed(planted, made, tmp_path):
    folder = shutil.copytree(made / "set", tmp_path / "set")
    whole = contents(folder)
    for written_last in ((folder / "report.html"), *(folder / "sources").iterdir()):
        written_last.unlink()  # a kill just before leaves this
    assert make(planted.path, "--subtitles", made / "talk.srt", "--speaker", "emma", "--output", folder) == 0
    assert contents(folder) == whole


def test_report_shows_the_clips_and_needs_no_network(made):
    page = (made / "set" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=\"(?!wavs/)|https?://|@import|url\(", page)
    assert all((made / "set" / name).is_file() for name in re.findall(r'src="(wavs/[^"]+)"', page))
    assert page.count("<audio") == min(10, len(clip_bounds(made / "set"))) and page.count('class="wave"') >= 1


def test_transcript_is_aligned_by_a_recognizer_and_needs_one(planted, tmp_path, capsys):
    (tmp_path / "talk.txt").write_text("\n".join(planted.texts))
    assert make(planted.path, "--transcript", tmp_path / "talk.txt", "--output", tmp_path / "set") == 2
    assert "--recognizer" in capsys.readouterr().err
    options = options_with(text=tmp_path / "talk.txt", aligner=HearsPlanted(planted))
    make_dataset([planted.path], tmp_path / "set", options, list)
    assert right_share(planted, tmp_path / "set") >= 0.98


@pytest.mark.parametrize("count, other, shift", [(24, 30, 0), (8, 8, 0), (8, 7, 0), (5, 6, 9), (4, 5, 0)])
def test_subtitles_of_another_recording_are_refused(count, other, shift, tmp_path, capsys):
    talk = plant(tmp_path / "talk.wav", count)
    plant(tmp_path / "other.wav", other, seed=9).write_srt(tmp_path / "other.srt", shift)
    assert make(talk.path, "--subtitles", tmp_path / "other.srt", "--output", tmp_path / "set") == 2
    assert "does not belong to " in capsys.readouterr().err


def test_speech_without_subtitle_is_dropped_and_unspoken_subtitles_are_reported(tmp_path, capsys):
    remark = voiced(2.0, 200, 3, 3, RATE)
    remark *= syllables(remark)
    planted = plant(tmp_path / "talk.wav", 12, seed=4, extra=(5, remark))
    planted.write_srt(tmp_path / "talk.en-GB.srt")
    (tmp_path / "talk.de.srt").touch()
    assert make(planted.path, "--output", tmp_path / "set") == 0
    assert "talk.wav: text from talk.en-GB.srt" in capsys.readouterr().out
    for name in ("talk.2.wav", "talk.2.srt", "talk.sv.srt"):
        (tmp_path / name).touch()
    (tmp_path / "e\u0301.de.srt").touch()  # as macOS decomposes é
    recordings = [planted.path, tmp_path / "\xe9.wav"]
    with mock.patch("os.listdir", return_value=[path.name for path in tmp_path.iterdir()]) as listing:
        texts = [[text and text.name for text in texts_beside(recordings, code).values()] for code in ("de", "fa")]
    assert texts == [["talk.de.srt", "e\u0301.de.srt"], [None, None]] and listing.call_count == 2
    assert {one.suffixes[0] for one in files_beside(recordings, [".srt"])[planted.path]} == {".en-GB", ".de", ".sv"}
    assert right_share(planted, tmp_path / "set") >= 0.98
    left = [row for row in read_segments(tmp_path / "set") if row["reason"] == "speech without text"]
    assert sum(float(row["end_seconds"]) - float(row["start_seconds"]) for row in left) == pytest.approx(2.0, abs=0.2)


def test_audio_unlike_speech_is_listed_with_its_place_and_why(tmp_path):
    tone = 0.3 * np.sin(2 * np.pi * 300 * np.arange(2 * RATE) / RATE).astype(np.float32)
    planted = plant(tmp_path / "talk.wav", 6, seed=4, extra=(3, tone))
    planted.write_srt(tmp_path / "talk.srt")
    assert make(planted.path, "--output", tmp_path / "set") == 0
    row = next(row for row in read_segments(tmp_path / "set") if row["reason"] == "not like speech")
    shown, page = (f"{float(row['start_seconds']):.1f}</td>", row["detail"]), (tmp_path / "set/report.html").read_text()
    assert "varies by only" in row["detail"] and all(one in page for one in (*shown, "<td>talk.wav</td>"))


def test_python_options_are_the_flags_two_runs_are_equal_and_a_repeated_one_changes_nothing(planted, made, tmp_path):
    options = dict(subtitles=made / "talk.srt", speaker="emma", vad="energy", min_snr=15.0)
    soundfile.write(tmp_path / "renamed.flac", *soundfile.read(planted.path))
    renamed = shutil.copy(planted.path, tmp_path / "renamed.wav")
    for path in (planted.path, planted.path, renamed, tmp_path / "renamed.flac"):
        assert contents(myxtts.make_dataset(path, tmp_path / "set", **options)) == contents(made / "set")


def test_recognizer_command_transcribes_clips(planted, tmp_path, capsys):
    script = tmp_path / "hear.py"
    script.write_text("import sys, soundfile\nprint('a' * round(14 * soundfile.info(sys.argv[1]).duration))\n")
    words = ("--recognizer", f"{sys.executable} {script} {{wav}}", "--output", tmp_path / "set")
    plant(tmp_path / "short\x1b[31m.wav", 4, seed=2)
    (tmp_path / "._short.wav").write_bytes(b"attributes that macOS wrote")
    soundfile.write(tmp_path / "short\x1b[31m.flac", np.zeros(RATE), RATE)  # no clips: the .wav is not skipped
    assert make(tmp_path, *words) == 0
    assert {letter for _, _, text in clip_bounds(tmp_path / "set") for letter in text} == {"a"}
    assert "short\\x1b[31m.wav: " in (shown := capsys.readouterr().out) and "\x1b" not in shown


class Counts:
    """A recognizer that always returns the same text, and can be interrupted."""

    def __init__(self, stop_after=10**9, hears="some words"):
        self.calls, self.stop_after, self.hears = 0, stop_after, hears

    def __call__(self, samples, sample_rate, language):
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        return self.hears


def test_resumed_run_reuses_recognizer_results(planted, tmp_path):
    whole, first, second = Counts(), Counts(stop_after=3), Counts()
    make = lambda name, ear: make_dataset([planted.path], tmp_path / name, options_with(recognizer=ear), list)
    make("whole", whole)
    with pytest.raises(KeyboardInterrupt):
        make("set", first)
    make("set", second)
    assert first.calls == 3 and second.calls == whole.calls - 3
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


class Scores(Counts):
    """A recognizer that hears German, and is unsure of every second clip."""

    language = lambda self, *audio: ("de", 0.97)

    def scored(self, *audio):
        return self(*audio), 0.9, "some", 0.9 if self.calls % 2 else 0.19 - self.calls / 1000


def test_doubtful_clips_are_listed_with_the_reason_the_worst_ten_on_the_screen(planted, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("myxtts.hearing.recognizers.open_recognizer", lambda *name: Scores())
    monkeypatch.setattr("myxtts.apps.datasets.set_folder._WORST", 3)
    words = planted.path, "--recognizer", "base", "--output", tmp_path / "set", "--speaker", "emma"
    assert make(*words) == 2 and "--language de" in capsys.readouterr().err, "Whisper would translate it"
    assert make(*words, "--language", "de") == 0
    rows = [row for row in read_segments(tmp_path / "set") if row["verdict"] == "kept"]
    doubtful = [row for row in rows if row["detail"]]
    head, *lines = capsys.readouterr().out.split("Texts to check: ")[1].splitlines()
    assert head.startswith(f"{len(doubtful)} of {len(rows)} clips; segments.csv lists all") and len(doubtful) > 3
    shown = re.compile(r"  (wavs/\S+), \d+\.\d s, recognizer unsure of 'some' \(0\.1\d of 1\): some words")
    assert [shown.fullmatch(line)[1] for line in lines] == [row["clip"] for row in doubtful[:-4:-1]]
    one = dict(clip="a", detail="unsure", speaker="emma", facts={}, seconds=1.0, text="x")
    assert " 1 of 1 clip;" in describe_doubts([one, one | dict(speaker="theo")], "emma")[0]


def test_transcript_without_recognized_words_is_refused(planted, tmp_path):
    (tmp_path / "talk.txt").write_text("\n".join(planted.texts))
    ear = Counts(hears="")
    options = options_with(text=tmp_path / "talk.txt", recognizer=ear, aligner=ear)
    with pytest.raises(UserError, match="0 of 24 sentences"):
        make_dataset([planted.path], tmp_path / "set", options)
    assert ear.calls < 24  # of a few seconds each, and no clip was listened to


class ByPitch:
    """A speaker encoder: returns one vector for high and another for low pitch, for every 1.6 s."""

    def parts(self, samples, sample_rate):
        size = int(1.6 * sample_rate)
        starts = range(0, max(1, len(samples) - size + 1), size // 2)
        return np.stack([self.vector(samples[start : start + size], sample_rate) for start in starts])

    @staticmethod
    def vector(samples, sample_rate):
        spectrum = np.abs(np.fft.rfft(samples, 16 * sample_rate // 10)) ** 2
        low, high = spectrum[: 320 * 16 // 10].sum(), spectrum[320 * 16 // 10 :].sum()
        return np.array([low, high]) / np.hypot(low, high)


def test_clips_with_other_voices_are_reported(tmp_path, monkeypatch):
    reports, passed = [], iter(range(0, 10**6, 2))
    monkeypatch.setattr("time.monotonic", lambda: next(passed))

    def said(*hertz):
        time = np.arange(5 * RATE // 2) / RATE
        return np.concatenate([np.sin(2 * np.pi * hz * time) for hz in hertz]).astype(np.float32)

    files = [tmp_path / f"{number}.wav" for number in range(7)]
    for number, path in enumerate(files):
        soundfile.write(path, 0.3 * {5: said(150, 600), 6: said(600, 600)}.get(number, said(150, 160)), RATE)

    def heard_with(options):
        clips = [Segment(k, k + 1, "A text.", facts=ClipFacts(4, -20, 40, -40, 5, 30, 14)) for k in range(7)]
        listen([*zip(clips, files)], options, False, reports.append)
        return clips

    heard = heard_with(options_with(encoder=ByPitch()))
    assert [clip.reason for clip in heard] == [""] * 5 + ["several voices", "another voice"]
    assert reports[0].startswith("2 of 7 clips checked, about ")  # five seconds have passed
    scores = iter([2.0, 3.0, 3.0, 1.9, 3.0, 3.0, 3.0])
    heard = heard_with(options_with(dnsmos=lambda *_: {"overall": next(scores)}, min_dnsmos=2.5))
    assert [k for k, clip in enumerate(heard) if clip.reason == "low DNSMOS"] == [0, 3] and heard[1].facts.dnsmos == 3


def test_speech_without_a_pause_is_reported_and_cut_only_if_forced(tmp_path):
    sound = np.concatenate([np.zeros(RATE), *(voiced(0.8, 120, k, k, RATE) for k in range(20)), np.zeros(RATE)])
    soundfile.write(tmp_path / "talk.wav", sound + 1e-4 * np.random.default_rng(0).standard_normal(len(sound)), RATE)
    words = (tmp_path / "talk.wav", "--recognizer", "echo {wav} some words that are said", "--min-snr", "0")
    assert make(*words, "--output", tmp_path / "set") == 2
    assert any(row["reason"] == "no pause for 11.5 s" for row in read_segments(tmp_path / "set"))
    assert make(*words, "--output", tmp_path / "set", "--force-cut") == 0


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["empty.wav"], "empty.wav: it is an empty file"),
        (["film.mp4"], "Install ffmpeg"),
        (["hf://owner/name"], "hf download owner/name"),
        (["talk.wav", "--recognizer", "false {wav}"], "exited with code 1"),
        (["talk.wav", "--transcript", "none.txt", "--recognizer", "echo {wav}"], "none.txt: it does not exist"),
        (["none.mp3", "--recognizer", "base"], "none.mp3: it does not exist"),
        (["talk.wav", "--recognizer", "pocketsphinx", "--language", "de"], "must be en with pocketsphinx"),
        (["talk.wav", "--transcript", "talk.wav", "--recognizer", "echo {wav}"], "is not UTF-8: line 1"),
        (["talk.wav", "--transcript", "blank.txt", "--recognizer", "echo {wav}"], "contains no letters"),
    ],
)
def test_wrong_input_is_one_error_message(words, sentence, planted, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = {"echo": "/bin/echo", "false": "/bin/false"}
    monkeypatch.setattr("myxtts.apps.datasets.recording.shutil.which", there.get)
    shutil.copy(planted.path, "talk.wav")
    Path("empty.wav").touch()
    Path("film.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(100))
    for name in ("film.srt", "empty.srt"):
        planted.write_srt(Path(name))
    Path("blank.txt").write_text(" - \n")
    assert make(*words, "--output", "set") == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.splitlines()) == 1
    assert not Path("set").exists()


def opened_by_train(folder, *words):
    """Returns the settings of the run that `myxtts train` opens, without training it."""
    by_energy = mock.patch("myxtts.hearing.networks.find_silero", return_value=None)
    with by_energy, mock.patch("myxtts.runs.run.Run.open", side_effect=UserError("opened")) as opening:
        assert command.main(["train", *map(str, words), "--checkpoint-dir", str(folder / "run")]) == 2
    return opening.call_args and opening.call_args.args[0]


def test_train_cuts_a_recording_by_its_subtitles_once(planted, tmp_path):
    planted.write_srt(tmp_path / "talk.srt", 0, 0)
    shutil.copy(planted.path, tmp_path / "talk.wav")
    config = opened_by_train(tmp_path, tmp_path / "talk.wav", "--language", "en")
    made = Path(config.data.train_data)
    assert made.parent == tmp_path / "run" / "dataset" and right_share(planted, made) >= 0.98
    assert {clip.speaker for clip in load_corpus(made).utterances} == {"talk"}
    before = contents(made)
    assert opened_by_train(tmp_path, tmp_path / "talk.wav", "--language", "en") == config
    assert contents(made) == before


def test_train_tries_the_recognizer_recuts_on_new_options_and_skips_other_files(planted, tmp_path):
    (folder := tmp_path / "anna").mkdir()
    shutil.copy(planted.path, folder / "good | one.wav")
    (folder / "empty.wav").touch()
    (folder / "live.mp3").mkdir()
    soundfile.write(folder / "silent.wav", np.zeros(RATE), RATE)
    (tmp_path / "hear.py").write_text("print('lo la li')")
    hears = f"{sys.executable} {tmp_path / 'hear.py'} {{wav}}"
    assert opened_by_train(tmp_path, folder, "--recognizer", "no such {wav}") is None
    assert not (tmp_path / "run").exists()
    first = opened_by_train(tmp_path, folder, "--recognizer", hears).data
    assert {(clip.speaker, clip.text) for clip in load_corpus(first.train_data).utterances} == {("anna", "lo la li")}
    german = opened_by_train(tmp_path, folder, "--recognizer", hears, "--language", "de").data
    assert {clip.language for clip in load_corpus(german.train_data, None).utterances} == {"de"}
    (folder / "silent.wav").unlink()
    again = opened_by_train(tmp_path, folder, "--recognizer", hears).data
    assert len({first.train_data, german.train_data, again.train_data}) == 3
    (folder / "good | one.wav").unlink()
    assert opened_by_train(tmp_path, folder, "--recognizer", hears) is None


def test_run_among_its_recordings_and_recordings_as_validation_are_refused(planted, tmp_path, capsys):
    shutil.copy(planted.path, tmp_path / "talk.wav")
    assert opened_by_train(tmp_path, tmp_path, "--recognizer", "cat {wav}") is None
    assert "--checkpoint-dir" in capsys.readouterr().err
    words = ["--val-data", tmp_path / "talk.wav", "--recognizer", "cat {wav}"]
    assert opened_by_train(tmp_path, tmp_path / "talk.wav", *words) is None
    assert "--val-data" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_unusual_speech_rate_is_doubtful_and_a_very_unusual_one_is_dropped():
    facts = lambda rate: ClipFacts(3.0, -20.0, 40.0, -40.0, 0.0, 20.0, rate)
    clips = [Segment(0, 1, text="a" * 60, facts=facts(rate)) for rate in [15.0] * 10 + [21.0, 40.0]]
    judge(clips, 10.0)
    assert [bool(clip.detail) for clip in clips] == [False] * 10 + [True] * 2
    assert [clip.reason for clip in clips] == [""] * 11 + ["speech rate"]
    levels = np.array([-60.0, *[-20.0] * 200, -60.0])  # of a clip that was trimmed right at its first and last word
    trimmed = Namespace(levels_db=levels, speech=levels > -30, frame_seconds=0.01)
    assert measure_clip(trimmed, 0, 202, 9).end_db < -35 and measure_clip(trimmed, 1, 202, 9).end_db > -5
