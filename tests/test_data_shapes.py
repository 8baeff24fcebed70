"""Anything given as a data set is read, or refused with a message that says what it is and which command takes it."""

import json
import shutil

import numpy as np
import pytest
import soundfile

from myxtts import api
from myxtts.cli.doctor import main
from myxtts.cli.train import main as train
from myxtts.cli.train import plan
from myxtts.config.checks import UserError
from myxtts.data.corpora import TextsMissing, _other_kind, load_corpus
from myxtts.data.dataset import SpeechDataset
from myxtts.data.doctor import inspect_corpus, write_report
from myxtts.runs import samples
from myxtts.runs.setup import check_request
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.training.stages.dvae import DVAEStage

pytestmark = pytest.mark.usefixtures("eagerly", "devices_as_before")

NAMES = ["clip one", "گفتار ۲", "дом 3", "四", "Übung-5", "a.b"]
TEXTS = "Good morning to all.|Where were you?|It rains, as ever.|Nobody knows.|She wrote.|See you soon.".split("|")
ROWS = [{"file": f"{n}.wav", "text": t} for n, t in zip(NAMES, TEXTS)]
BY_CLIP = {row["file"]: {"id": number, "text": row["text"]} for number, row in enumerate(ROWS)}


def audio(folder, names=NAMES, kind="wav"):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        tone = np.sin(np.arange(22050) / (20 + number)) * np.hanning(22050)
        soundfile.write(folder / f"{name}.{kind}", 0.3 * tone, 22050)


def text(path, content, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding=encoding, newline="")
    return path


def rows(line, head="", names=NAMES, end="\n"):
    """Returns the lines of a list; `{n}`, `{t}` and `{k}` stand for clip, text and number."""
    pairs = enumerate(zip(names, TEXTS))
    return end.join([*filter(None, [head]), *(line.format(n=n, t=t, k=k) for k, (n, t) in pairs), ""])


def listed(line, head="", name="list.csv", where=".", encoding="utf-8", end="\n"):
    """Returns a layout: a list in a folder, and audio in the folder `where`; `{d}` is the data set's folder."""

    def make(root):
        audio(root / where)
        text(root / name, rows(line.replace("{d}", str(root)), head, end=end), encoding)
        return root

    return make


def two_lists(line, head, names, where="."):
    def make(root):
        audio(root / where)
        for name, part in zip(names, (slice(0, 4), slice(4, 6))):
            text(root / name, "".join([head, *rows(line).splitlines(keepends=True)[part]]))
        return root

    return make


def list_alone(line):
    def make(root):
        audio(root / "audio")
        return text(root / "lists" / "my list.csv", rows(line.replace("{d}", str(root)), "path|text"))

    return make


def kaldi(root, there="{d}", where="audio"):
    audio(root / where)
    for name, line in (("wav.scp", f"{there}/audio/{{n}}.wav"), ("text", "{t}"), ("utt2spk", "anna")):
        text(root / "data" / "train" / name, rows(f"utt{{k}} {line}".replace("{d}", str(root))))
    return root / "data"


def pairs(audio_in="emma", texts_in="emma", suffix=".txt", texts=TEXTS):
    def make(root):
        audio(root / audio_in)
        for name, content in zip(NAMES, texts):
            text(root / texts_in / f"{name}{suffix}", content)
        return root

    return make


DATA = {
    "audio without a text": lambda root: audio(root / "more", "xy") or DATA["csv, header, audio beside"](root),
    "list and text files": lambda root: listed("{n}|{t}", name="metadata.csv")(pairs(".", ".", texts=NAMES)(root)),
    "csv, header, audio beside": listed('{n}.wav,"{t}"', "file,text"),
    "tsv, audio one folder down": listed("{n}.wav\t{t}", "filename\tsentence", "my list.tsv", "recordings"),
    "Excel in German, full paths": listed("{d}/ton/{n}.wav;{t}", "Datei;Satz", "Liste.csv", "ton", "utf-8-sig", "\r\n"),
    "Excel as Unicode text": listed("{n}.wav\t{t}", "file\ttext", "list.txt", encoding="utf-16"),
    "Persian header": listed('{n}.wav,"{t}"', "فایل,متن", "فهرست.csv"),
    "Persian names of columns": listed("{n};{t};آنا", "نام فايل;متن;نام\u200cگوینده", "list.csv", "wavs"),
    "Amharic names of columns": listed("{n};{t};አበበ", "የድምፅ ፋይል;ጽሑፍ;ተናጋሪ", "list.csv", "wavs"),
    "some known names of columns": listed("{n}.wav;en;{t};Anna", "Ton;Sprache;Inhalt;Sprecherin"),
    "unknown header, no suffixes": listed("{n}|{t}", "запись|что сказано", "metadata.csv", "wavs"),
    "many columns": listed("{k};A;{n}.wav;gut;{t}", "Nr;Wer;Ton;Note;Wortlaut", "export.csv", "Ton", end="\r\n"),
    "no header": listed('{n}.wav,"{t}"'),
    "no header, no suffixes": listed("{n};{t}", where="audio"),
    "text before the clip": listed('"{t}",{n}.wav'),
    "number before the clip": listed("{k}|{n}|{t}", name="metadata.csv", where="wavs"),
    "JSON array": lambda root: audio(root) or text(root / "data.json", json.dumps(ROWS, indent=1)).parent,
    "jsonl": listed('{{"audio_filepath": "{n}.wav", "text": "{t}"}}', name="manifest.jsonl"),
    "json lines with full paths": listed('{{"audio_filepath": "{d}/{n}.wav", "text": "{t}"}}', name="manifest.json"),
    "list from before a conversion": listed("{n}.m4a|{t}", "file|text"),
    "list from before a conversion to WAV": listed("{n}.mp3|{t}", "file|text"),
    "GPT-SoVITS": listed("output/slicer_opt/{n}.wav|anna|EN|{t}", name="a.list"),
    "JSON by clip": lambda root: audio(root) or text(root / "a.json", json.dumps(BY_CLIP)).parent,
    "list alone, full paths": list_alone("{d}/audio/{n}.wav|{t}"),
    "full paths of another machine": listed(r"C:\me\my set\ton\{n}.wav;{t}", "Datei;Satz", "Liste.csv", "ton"),
    "Kaldi, full paths of another machine": lambda root: kaldi(root, "/usr/" + 300 * "x", "data/train/audio"),
    "list alone, audio next door": list_alone(r"..\audio/../audio\{n}.wav|{t}"),
    "train.csv and val.csv": two_lists('{n}.wav,"{t}"', "file,text\n", ("train.csv", "val.csv")),
    "the same without header": two_lists("{n}|{t}", "", ("train.csv", "val.csv"), "wavs"),
    "filelists": two_lists("wavs/{n}.wav|{t}", "", ("filelists/train.txt", "filelists/val.txt"), "wavs"),
    "Kaldi, full paths": kaldi,
    "Kaldi, the folder above": lambda root: kaldi(root).parent,
    "Kaldi, the folder above, paths from there": lambda root: kaldi(root, ".").parent,
    "text files": pairs(),
    "wav and txt": pairs("wav", "txt"),
    "audio and texts in Persian folders": pairs("صداها", "متن ها"),
    "texts one folder down": pairs(".", "transcripts"),
    "audio one folder down, texts above": pairs("my wavs", "."),
    "Montreal Forced Aligner": pairs(suffix=".lab"),
    "wav and lab": pairs("wav", "lab", ".lab"),
}


UNUSED = {
    "many columns": "audio from Ton, text from Wortlaut. Not used: columns Nr, Wer, Note.",
    "list and text files": "Read as ljspeech. Not used: 6 .txt files with the names of recordings; --format text-files",
    "audio without a text": "Not used: 2 audio files, not among the clips. The first is more/x.wav.",
}
SPLIT = ("train.csv and val.csv", "the same without header", "filelists")
TRAINED = {"many columns": "command", "filelists": "Python", "Kaldi, full paths": "command"}


@pytest.mark.parametrize("shape", DATA)
def test_data_of_every_layout_is_read_completely_and_trained_on(shape, tiny_yaml, tmp_path, capsys, monkeypatch):
    (tmp_path / "my set").mkdir()
    monkeypatch.chdir(tmp_path)
    path = DATA[shape](tmp_path / "my set")
    corpus = load_corpus(path)
    assert sorted(clip.text for clip in corpus.utterances) == sorted(TEXTS) and not corpus.rejections
    assert sum(clip.validation for clip in corpus.utterances) == 2 * (shape in SPLIT)
    assert main(["data", str(path), "--strict"]) == 0
    assert "accepted: 6" in (said := capsys.readouterr().out)
    assert ("Not used" in said) == (shape in UNUSED) and UNUSED.get(shape, "") in said
    assert said.count("audio from") + said.count("columns are read as") <= 1 + (shape in SPLIT)
    for place, name in ((DVAEStage, "prepare_step"), (DVAEStage, "measure"), (samples, "write_curves")):
        monkeypatch.setattr(place, name, lambda *_: None)  # they cost as much as the two steps
    options = dict(config=tiny_yaml, checkpoint_dir=tmp_path / "run", stage="dvae", sample_every=0, max_text_length=24)
    if (by := TRAINED.get(shape)) == "Python":
        assert api.train(**options, train_data=path, quiet=True).finished
    elif by == "command":
        assert train([str(path), *(f"--{name.replace('_', '-')}={value}" for name, value in options.items())]) == 0
    else:
        SpeechDataset.open(api.configure(**options, train_data=path))
    report = (tmp_path / "run/clips_train.csv").read_text("utf-8")
    assert report.count("\n") == 7 and "rejected" not in report
    assert (tmp_path / "run/dvae/step_00000002").is_dir() == (shape in TRAINED)
    assert plan([str(path), "--model-size", "nano"]) == 0


def write(*names):
    """Returns a layout: a folder with these files, which are nearly empty."""

    def make(root):
        for name in names:
            text(root / name, "{}")
        return root

    return make


def recording(name, *more):
    def make(root):
        audio(root / "sub", [name.partition(".")[0]], name.partition(".")[2])
        for other in more:
            text(root / "sub" / other, "1\n00:00:01,000 --> 00:00:02,000\nHello.\n")
        return root

    return make


def file_of(make, name):
    return lambda root: make(root) / name


def latin(root):
    audio(root, ["a", "b"])
    _ = [(root / name).symlink_to(root) for name in ("c.txt", "d.txt")]  # folders within folders
    return text(root / "Liste.csv", "Datei;Text\na.wav;Schöne Grüße\nb.wav;Große Häuser\n", "cp1252").parent


def names_twice(root):
    audio(root / "bert")
    return listed("{n}.wav;{t}", "file;text", where="anna")(root)


def test_full_path_of_another_machine_is_never_a_clip_of_another_folder(tmp_path):
    audio(tmp_path / "anna", ["1"])
    text(tmp_path / "list.csv", "/gone/bert/1.wav|Where were you?\n/gone/anna/1.wav|Good morning to all.\n")
    assert [(clip.id, clip.text) for clip in load_corpus(tmp_path).utterances] == [("anna/1", "Good morning to all.")]


def test_list_mixes_names_here_in_a_subfolder_and_of_another_machine(tmp_path):
    audio(tmp_path, ["1", "3"]), audio(tmp_path / "b", ["2", "5"]), audio(tmp_path / "wavs", ["4"])
    (tmp_path / "circle").symlink_to("circle")
    names = ["1.wav", "2.wav", "C:\\Anna\\3.wav", "/gone/4.wav", "wavs/../b/5.wav", "../3.wav"]
    text(tmp_path / "list.csv", rows("{n}|{t}", names=names))
    assert [clip.id for clip in load_corpus(tmp_path).utterances] == ["1", "2", "3", "4", "b/5"]


@pytest.mark.parametrize("lines", ["1 2 3\n4 5 6", "۱ ۲ ۳\n۲ ۳ ۴", "1 2 shoe\n3 4 knock", "20 30 a\n1 2 b"])
def test_a_transcript_may_begin_its_lines_with_two_numbers(tmp_path, lines):
    corpus = load_corpus(pairs(texts=6 * [lines])(tmp_path))
    assert [clip.text for clip in corpus.utterances] == 6 * [" ".join(lines.split())]
    assert sum("Two numbers a line " in note for note in corpus.notes) == 1
    assert "(and 5 others)" in " ".join(corpus.notes)


def test_folder_of_a_run_in_a_data_set_is_no_data(tmp_path):
    for speaker in "ab":
        pairs(speaker, speaker)(tmp_path)
    corpus = load_corpus(tmp_path)
    report = text(tmp_path / "checkpoints" / "inspected_0a1b2c3d.json", "{}").with_name("clips_train.csv")
    write_report(inspect_corpus(corpus), report)
    assert load_corpus(tmp_path).utterances == corpus.utterances


LABELS = "0 5 a\n5 9 o|0 12 a\n15 23 b|0 12 a\n9 23 b|0 1 a\n1 3 b|.5\t1.0\t\n1.5\t2.5\t1|0,0 5,0\n3,0 4,0 b".split("|")
OTHERS = {
    "audio without text": (recording("talk.mp3"), "make-dataset '{d}/sub' --output DIR --recognizer base"),
    "audio with subtitles": (recording("talk.wav", "talk.srt"), "make-dataset '{d}/sub' --output DIR`"),
    "a recording": (file_of(recording("talk.mp3"), "sub/talk.mp3"), "make-dataset '{d}/sub/talk.mp3' --output DIR"),
    "a video": (file_of(write("film.mp4"), "film.mp4"), "make-dataset '{d}/film.mp4' --output DIR"),
    "phone recordings, no ffmpeg": (write("a.m4a", "b.aac"), "my set cannot be decoded without ffmpeg. Install ffmpeg"),
    "an archive in a folder": (write("sub/ton.zip"), "sub/ton.zip.*Unpack it"),
    "documents beside audio": (recording("a.wav", "b.docx"), "make-dataset '{d}/sub'.*b.docx is not read"),
    "a book beside audio": (recording("a1.wav", "book.txt"), "one list of lines"),
    "a folder with a spreadsheet": (recording("a.wav", "ایران.xlsx", "~$ایران.xlsx"), "sub/ایران.xlsx.*CSV UTF-8"),
    "an archive": (lambda at: type(at)(shutil.make_archive(str(at / "set"), "zip", pairs()(at))), "Unpack it"),
    "labels with times": (pairs(suffix=".lab", texts=LABELS), "unreadable text: 6 .* has times and labels"),
    "the hub": (lambda at: "hf://datasets/me/mine@v2", "mine@v2 is .*me/mine --revision v2 --repo-type dataset"),
    "Parquet": (write("data/train-0.parquet"), "load_dataset(sys.argv[1]).save_to_disk('DIR')\" '{d}/data'`"),
    "a spreadsheet": (file_of(write("list.xlsx"), "list.xlsx"), "CSV UTF-8"),
    "a preset": (lambda root: BASE_FOLDER, "--init-from"),
    "a run": (write("config.json", "gpt/step_00000010/manifest.json", "clips_train.csv"), "--init-from '{d}'"),
    "a Coqui folder": (write("config.json", "vocab.json", "model.pth"), "say --checkpoint '{d}'"),
    "a checkpoint": (file_of(write("model.pth"), "model.pth"), "--init-from '{d}/model.pth'"),
    "an export": (write("speak.py", "gpt.onnx", "config.json"), "python '{d}'/speak.py"),
    "an empty folder": (write(), "Found: nothing"),
    "hidden files": (write("._a.wav", "._a.txt", ".Trashes/b.wav"), "Found: nothing"),
    "nothing": (file_of(write(), "none"), "does not exist"),
    "documents": (write("letter.docx"), "Found: letter.docx"),
    "another encoding": (latin, "Liste.csv is not UTF-8.*Save it as UTF-8"),
    "phone recordings": (listed("x{n}.m4a|{t}", "file|text"), "missing file: 6 .*ffmpeg -i"),
    "phone recordings with texts": (write("a.m4a", "a.txt"), "ffmpeg -i"),
    "names in two folders": (names_twice, "several files: 6 .*anna/clip one.wav and bert/clip one.wav .*--audio-root"),
    "audio elsewhere": (listed("x{n}|{t}", name="metadata.csv"), "missing file: 6 .*There is no audio.*--audio-root"),
}


@pytest.mark.parametrize("shape", OTHERS)
def test_other_inputs_are_refused_with_the_command_for_them(shape, tmp_path, capsys, monkeypatch):
    make, answer = OTHERS[shape]
    (tmp_path / "my set").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name, **options: None if "no ffmpeg" in shape else name)
    path = make(tmp_path / "my set")
    assert main(["data", str(path)]) == 2
    printed = capsys.readouterr()
    said = (printed.out + printed.err).strip()
    *parts, last = answer.replace("{d}", str(tmp_path / "my set")).split(".*")
    assert all(part in said for part in (*parts, last)) and "doctor data" not in said
    assert printed.err.count("\n") <= 1
    config = api.configure(train_data=str(path), checkpoint_dir=str(tmp_path / "run"))
    with pytest.raises(UserError) as refusal:  # what `myxtts train` does before its first step
        check_request(config)
        SpeechDataset.open(config)
    cut = isinstance(refusal.value, TextsMissing)  # then `train` makes a data set of it, and says nothing of this
    assert cut == ("make-dataset" in answer) and (cut or "myxtts train" not in str(refusal.value))
    assert cut or all(part in str(refusal.value) for part in parts)
    assert (plan([str(path)]) == 2) == (_other_kind(type(tmp_path)(path)) not in (None, "recording"))


def test_audio_beside_a_single_list_is_not_reported_as_unused(tmp_path):
    DATA["train.csv and val.csv"](tmp_path)
    (tmp_path / "train.csv").rename(tmp_path / "TRAIN.CSV")
    assert not any("Not used" in note for note in load_corpus(tmp_path / "TRAIN.CSV").notes)
