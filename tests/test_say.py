"""`myxtts say`: sources of text, outputs of audio, and errors that are reported before the first audio."""

import errno
import functools
import io
import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from command_helpers import sentence_of
from tiny import random_model, voiced, write_run

from myxtts.audio.encoding import write_audio
from myxtts.audio.files import read_audio
from myxtts.cli import say
from myxtts.cli.say import play, read_lines
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.text_front import open_text_front
from myxtts.inference.voices import Voice
from myxtts.storage.base_model import base_folder
from myxtts.storage.checkpoint import CheckpointStore

pytestmark = pytest.mark.usefixtures("without_griffin_lim")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A model that speaks by Griffin-Lim, and a recording."""
    model, config = random_model(tokenizer, max_audio_tokens=36)  # short sentences
    folder = write_run(tmp_path_factory.mktemp("say") / "run", model, tokenizer, config)
    write_audio(folder.parent / "me.wav", voiced(1.0, 150, 1), 22050)
    return folder


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """Loads the model once for all commands, because tracing its graphs takes seconds."""
    load = functools.cache(Synthesizer.load)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Synthesizer, "load", load)
        yield


@pytest.fixture
def argv(folder, tmp_path, monkeypatch):
    """Returns arguments of `myxtts say`: a model and a voice, but no text."""
    monkeypatch.chdir(tmp_path)
    return ["--checkpoint", str(folder), "--reference-audio", str(folder.parent / "me.wav")]


def run(*argv):
    return say.main([str(argument) for argument in argv])


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_suffix_is_the_format(argv, suffix, capsys):
    assert run(*argv, "--text", "one two", "--output", f"out.{suffix}") == 0
    with soundfile.SoundFile(f"out.{suffix}") as file:
        assert file.format.lower() == suffix and file.samplerate == 22050 and len(file)
    assert f"Wrote out.{suffix}" in capsys.readouterr().out


def test_text_comes_from_argument_file_or_standard_input(argv, monkeypatch):
    text = "one two. three four."
    Path("text.txt").write_text(text)
    assert run(*argv, "--text", text, "--output", "a.wav") == 0
    assert run(*argv, "--text-file", "text.txt", "--output", "b.wav") == 0
    for flags, name in (([], "c.wav"), (["--text-file", "-"], "d.wav")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(*argv, *flags, "--output", name) == 0
    assert len({Path(name).read_bytes() for name in ("a.wav", "b.wav", "c.wav", "d.wav")}) == 1


@pytest.mark.parametrize("error, code", [(KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, "No space left"), 2)])
def test_long_text_shows_its_progress_and_is_kept_up_to_an_interruption(argv, monkeypatch, capsys, error, code):
    def progress(done, total):
        shown.append((done, total))
        written.append(soundfile.info("out.partial.wav").frames)
        if failing and done == 3:
            raise error

    shown, written, failing, paragraphs = [], [], False, ["--text", "one.\n\ntwo.\n\nthree.", "--subtitles", "a.srt"]
    monkeypatch.setattr(say, "progress_bar", lambda title, unit: nullcontext(progress))
    assert run(*argv, *paragraphs) == 0 and shown == [(1, 3), (2, 3), (3, 3)]
    assert 0 == written[0] < written[1] < written[2] < len(whole := soundfile.read("out.wav")[0])
    failing = True
    assert run(*argv, *paragraphs, "--seed", "5") == code and "Kept" in (said := capsys.readouterr().err)
    kept, _ = soundfile.read("out.partial.wav")
    assert f"{len(kept) / 22050 - 0.5:.2f} s" in said, "without the pause that follows"
    assert len(Path("a.partial.srt").read_text().split("\n\n")) == 2
    assert (soundfile.read("out.wav")[0] == whole).all() and len([*Path().iterdir()]) == 4


def test_saved_voice_speaks_like_its_recordings(argv, folder, capsys):
    both = [*argv, folder.parent / "me.wav"]  # several recordings
    assert run(*both, "--text", "one", "--output", "a.wav", "--save-voice", "me.voice") == 0
    checkpoint = argv[:2]
    assert run(*checkpoint, "--reference-audio", "me.voice", "--text", "one", "--output", "b.wav") == 0
    assert Path("a.wav").read_bytes() == Path("b.wav").read_bytes()
    Voice(np.zeros((1, 3, 5), np.float32), None).save("other.voice")
    assert "other.voice is " in sentence_of(capsys, say.main, *checkpoint, "--voice", "other.voice", "--text", "one")


def test_rate_speed_and_subtitles(argv):
    text = "one two three four five six. one two three four five six. six five four three two one \udce9."  # not UTF-8
    assert run(*argv, "--text", text, "--output", "a.wav", "--subtitles", "a.srt") == 0
    more = ["--subtitles", "b.VTT", "--sample-rate", "8000", "--speed", "2"]
    assert run(*argv, "--text", text, "--output", "b.wav", *more) == 0
    assert Path("b.VTT").read_text().startswith("WEBVTT\n\n1\n00:00:00.000 --> 00:00:0")
    one, other = soundfile.info("a.wav"), soundfile.info("b.wav")
    assert other.samplerate == 8000
    blocks = Path("a.srt").read_text().strip().split("\n\n")
    assert len(blocks) > 1 and [block.splitlines()[0] for block in blocks] == [str(n + 1) for n in range(len(blocks))]
    assert " ".join(block.splitlines()[2] for block in blocks) == text.replace("\udce9", "\ufffd")
    times = [time for block in blocks for time in block.splitlines()[1].split(" --> ")]
    assert times == sorted(times) and times[0] == "00:00:00,000"
    minutes, seconds = times[-1].split(":")[1:]
    assert 60 * int(minutes) + float(seconds.replace(",", ".")) == pytest.approx(one.duration, abs=0.01)
    assert 0.4 * one.duration < other.duration < 0.8 * one.duration  # pauses stay; what is spoken takes half the time


def test_stream_writes_the_same_audio_to_standard_output_unless_it_is_a_terminal(argv, capfdbinary, monkeypatch):
    text = "one two three. four five six."
    assert run(*argv, "--text", text, "--output", "a.wav") == 0
    capfdbinary.readouterr()
    assert run(*argv, "--text", text, "--stream", "--stream-format", "pcm") == 0
    captured = capfdbinary.readouterr()
    samples, _ = soundfile.read("a.wav", dtype="int16")
    streamed = np.frombuffer(captured.out, "<i2")
    assert streamed.shape == samples.shape and np.abs(streamed - samples.astype(int)).max() <= 1
    assert b"first audio after" in captured.err and b"Possible fault" in captured.err
    assert run(*argv, "--text", text, "--stream") == 0
    Path("streamed.wav").write_bytes(capfdbinary.readouterr().out)
    assert len(read_audio("streamed.wav").samples) == len(samples)
    assert not list(Path().glob("out*"))
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True, flush=print))
    assert run(*argv, "--text", text, "--stream") == 2 and b"aplay" in capfdbinary.readouterr().err


def test_stream_ends_when_the_reader_closes_the_pipe():
    stream = (np.zeros(100_000, np.float32) for _ in range(1000))
    listener = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.PIPE, bufsize=0)
    listener.wait(timeout=30)
    play(stream, listener.stdin, 24000, 24000, "wav")
    assert stream.gi_frame is None  # closed, so that its rows are free


BATCH = """# a list
a|one two
b|three|me.wav

c|four five six|me.wav|en
"""


@pytest.fixture
def batch_argv(argv, folder):
    (folder.parent / "lines.txt").write_text(BATCH)
    return [*argv, "--batch", folder.parent / "lines.txt", "--format", "flac"]


def test_batch_writes_a_file_per_line_and_resumes(batch_argv, capsys, monkeypatch):
    written, write = [], say.write_json
    monkeypatch.setattr(say, "write_json", lambda path, digests: written.append(len(digests)) or write(path, digests))
    monkeypatch.setattr(say, "BATCH_CHARACTERS", 9)
    assert run(*batch_argv) == 0 and written == [1, 2, 3]
    files = sorted(path.name for path in Path("spoken").iterdir())
    assert files == ["a.flac", "b.flac", "c.flac", "spoken.json"]
    assert "[3/3] c.flac" in capsys.readouterr().out
    before = {name: Path("spoken", name).stat().st_mtime_ns for name in files}
    Path("spoken/b.flac").unlink()
    assert run(*batch_argv) == 0
    said = capsys.readouterr().out
    assert "2 of 3 texts were already spoken" in said and "b.flac" in said and "a.flac" not in said
    assert Path("spoken/a.flac").stat().st_mtime_ns == before["a.flac"]
    assert run(*batch_argv, "--seed", "5") == 0
    assert "Wrote 3 files" in (said := capsys.readouterr().out)
    assert run(*batch_argv[:4], "--text", "one two", "--seed", "5", "--output", "alone.flac") == 0
    assert Path("alone.flac").read_bytes() == Path("spoken/a.flac").read_bytes()
    assert capsys.readouterr().out.partition("codes, ")[2] in said, "the result of the self-check"
    assert set(json.loads(Path("spoken/spoken.json").read_text())) == {*files} - {"spoken.json"}


def test_batch_is_spoken_again_by_a_model_that_was_trained_on(argv, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Synthesizer, "load", Synthesizer.load.__wrapped__)
    trained, store = shutil.copytree(folder, "trained"), CheckpointStore(tmp_path / "trained/gpt")
    assert run(*argv, "--text", "one", "--save-voice", "me.voice", "--output", "one.wav") == 0
    Path("lines.txt").write_text("a|one two\n")
    batch = ["--voice", "me.voice", "--batch", "lines.txt"]
    assert run("--checkpoint", trained, *batch) == 0
    files, state = store.read(4, ["model"])
    store.write(5, {"model": {name: 1.01 * array for name, array in files["model"].items()}}, state, best=True)
    capsys.readouterr()
    assert run("--checkpoint", trained, *batch) == 0
    assert "Wrote 1 file" in capsys.readouterr().out
    assert run("--checkpoint", shutil.move(trained, "moved"), *batch) == 0 and "Wrote 0" in capsys.readouterr().out


def test_list_as_windows_writes_it_and_with_any_characters_in_its_texts_is_read(tmp_path):
    (tmp_path / "lines.txt").write_bytes("\ufeffa|one\u2028two\r\n\r\nb|three\r\n".encode())
    assert [line[:3] for line in read_lines(tmp_path / "lines.txt")] == [(1, "a", "one\u2028two"), (3, "b", "three")]
    tables = "شناسه;متن;صدا;زبان\na;one, two;anna;en", 'متن,نام فایل,زبان\n"one, two",a,en'
    for table in (*tables, '"file","text","note","lang","speaker","more"\na,"one, two",,en,anna,5'):
        (tmp_path / "lines.txt").write_text(table, "utf-16")
        spoken = ("a", "one, two", "anna" * ("anna" in table), "en")
        assert [line[1:] for line in read_lines(tmp_path / "lines.txt")] == [spoken]


def test_line_of_a_batch_is_read_in_the_language_of_its_letters_in_the_default_voice(capsys):
    front, _ = open_text_front(base_folder())
    model = SimpleNamespace(text_front=front, languages=front.tokenizer.languages, as_voice=lambda *given: given)
    given, shown = SimpleNamespace(checkpoint=base_folder(), own=None, requested=None, batch="a.txt"), []
    lines, progress = [say.Line(1, "a", "ሰላም", "", "")], lambda *counts: shown.append(counts)
    assert say._requests(lines, model, None, given, progress)[0][1:] == ((None, "am"), "am") and shown == [(1, 1)]
    assert "line 1: The text is in Ethiopic letters" in capsys.readouterr().err


def test_more_text_on_standard_input_than_is_read_is_refused_and_not_cut(argv, capsys, monkeypatch):
    monkeypatch.setattr(say, "MAX_TEXT_BYTES", 7)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one two three")))
    assert "Standard input is too large; at most 7 bytes" in sentence_of(capsys, say.main, *argv)


@pytest.mark.parametrize(
    "row, words",
    [
        ("d", ["Line 7", "id|text"]),
        ("d|one|me.wav|en|x", ["Line 7", "id|text"]),
        ("../d|one", ["Line 7", "file name"]),
        (f"{70 * chr(0x4E00)}|one", ["Line 7", "200 bytes"]),
        ("A|one", ["Line 7", "id of line 2"]),
        ("d|?!", ["Line 7", "no text"]),
        ("d|one||xx", ["Line 7", "xx"]),
        ("d|one|nobody", ["Line 7", "nobody"]),
    ],
)
def test_bad_line_is_reported_before_any_is_spoken(batch_argv, folder, capsys, row, words):
    (folder.parent / "lines.txt").write_text(f"{BATCH}\n{row}\n")
    line = sentence_of(capsys, say.main, *batch_argv)
    assert all(word in line for word in words), line
    assert not Path("spoken").exists()


def test_batch_without_a_voice_saves_none(batch_argv, capsys):
    flags = [*batch_argv[:2], *batch_argv[4:], "--save-voice", "me.voice"]
    assert "--save-voice" in sentence_of(capsys, say.main, *flags)


@pytest.mark.parametrize("content", ["[]", "5", '"a"', "{", "null"])
def test_damaged_record_of_spoken_files_is_one_error_message(batch_argv, capsys, content):
    Path("spoken").mkdir()
    Path("spoken/spoken.json").write_text(content)
    assert "spoken.json is damaged" in sentence_of(capsys, say.main, *batch_argv)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--decoder", "model"], "--decoder model needs a trained decoder"),
        (["--save-voice", "me"], "*.voice. Received: me"),
    ],
)
def test_mistake_is_one_error_message(argv, capsys, flags, words):
    assert words in sentence_of(capsys, say.main, *argv, "--text", "one", *flags) and not list(Path().iterdir())
