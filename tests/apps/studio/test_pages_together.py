"""Conflicts over the files of a run or data set: two pages, two uploads, or the trash."""

import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.apps.studio import folders, processes
from myxtts.apps.studio.folders import DataSets, kept_in, named_folder, removable, runs_in, to_trash
from myxtts.apps.studio.processes import Tasks, output_path, start_training
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import EXAMPLES, TEXTS, PageError
from myxtts.config.checks import UserError
from myxtts.storage.files import lock, locked_folder
from myxtts.storage.run_folder import own_run_folder
from myxtts.storage.speakers import write_speakers


@pytest.mark.parametrize("name", ["", "base", "..", "../up", "/etc", "a/b", ".hidden", "a\x00", "a ", None])
def test_name_of_a_run_is_letters_of_any_script_but_no_path(tmp_path, name):
    for good in ("हिन्दी", "مدل\u200cمن", "cafe\u0301 2"):
        assert named_folder(tmp_path, good) == tmp_path / good
    with pytest.raises(UserError, match="name of a run"):
        named_folder(tmp_path, name)


def test_votes_are_stored_and_counted_by_pair(tmp_path):
    assert folders.count_votes(tmp_path) == []
    folders.add_vote(tmp_path, ("b@best", "a@last"), 0, True, 'She said: "no",\nthen left.', 3)
    folders.add_vote(tmp_path, ("a@last", "b@best"), 1, True, "x", 3)
    folders.add_vote(tmp_path, ("a@last", "b@best"), None, False, "x", 3)
    assert folders.count_votes(tmp_path) == [["a@last", "b@best", 0, 2, 1, 0.5]]
    lines = (path := tmp_path / "_votes.csv").read_text().splitlines()
    path.write_text("\n".join(line.replace(",", ";") for line in lines) + "\n")  # as some spreadsheets save it
    folders.add_vote(tmp_path, ("a@last", "b@best"), 0, True, "x", 3)
    assert len(lines) == 4 and folders.count_votes(tmp_path) == [["a@last", "b@best", 1, 2, 1, 1.0]]


def test_second_page_that_starts_the_same_run_is_refused(tmp_path, monkeypatch):
    folder, popen = tmp_path / "run", subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: popen(["sleep", "600"], **options))
    monkeypatch.setattr(processes, "ENDING_SECONDS", 0.5)  # this process will never lock the folder
    start_training(folder, [])
    with processes.trainings.pop(folder.resolve()) as process:
        try:
            with pytest.raises(UserError, match="run is training already"):  # in another server
                start_training(folder, [])
        finally:
            process.kill()


def test_start_waits_for_the_process_of_a_run_that_has_ended(tmp_path, monkeypatch):
    folder, started = tmp_path / "run", []
    monkeypatch.setattr(processes, "_start", lambda arguments, output: started.append(arguments))
    with open(output_path(folder), "ab") as ending:
        lock(ending.fileno())
        monkeypatch.setattr(processes, "ENDING_SECONDS", 0.0)
        with pytest.raises(UserError, match="training already"):
            start_training(folder, [])
        monkeypatch.setattr(processes, "ENDING_SECONDS", 60.0)
        monkeypatch.setattr(time, "sleep", lambda seconds: ending.close())
        start_training(folder, [])
    assert len(started) == 1


def test_a_recording_stays_if_another_of_its_name_is_refused(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise errors.pop()
        yield

    studio, names, errors = Studio(tmp_path), ("talk.wav", "talk.srt"), [PageError("was_cancelled"), UserError("No")]
    (folder := studio.data.recordings("set")).mkdir(parents=True)
    studio.data.folder("set").mkdir()
    for name in names:
        (tmp_path / name).write_text("new")
        (folder / name).write_text("old")
    monkeypatch.setattr(studio.tasks, "follow", refuse)
    with pytest.raises(UserError, match="^No$"):
        list(studio.make_data_set("set", [str(tmp_path / name) for name in names], "en"))
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(names, "old")
    with pytest.raises(UserError, match="are kept"):
        list(studio.make_data_set("other", [str(tmp_path / name) for name in names], "en"))
    assert not studio.data.recordings("other").exists() and len(studio.data.choices()) == 1


def test_transcribed_texts_are_corrected_in_the_lists(tmp_path):
    data, columns = DataSets(tmp_path), "audio_file|text|speaker_name|language"
    (folder := data.folder("talk")).mkdir(parents=True)
    (folder / "metadata_train.csv").write_text(f'{columns}\nwavs/1.wav|won to.|a|en\nwavs/2.wav|"so ""he"""|a|en\n')
    (folder / "metadata_eval.csv").write_text(f"{columns}\nwavs/3.wav|tree|a|en\n")
    texts = [["wavs/1.wav", "one | two.\n"], ["wavs/2.wav", 'so "he"'], ["wavs/3.wav", ""]]
    loaded = [["wavs/1.wav", "won to."], ["wavs/2.wav", 'so "he"'], ["wavs/3.wav", "tree"]]
    assert data.correct(str(folder), loaded, texts) == 2
    train = f'{columns}\nwavs/1.wav|one two.|a|en\nwavs/2.wav|"so ""he"""|a|en\n'
    assert [path.read_text() for path in data.lists(str(folder))] == [train]  # a list without clips could not be read
    assert data.correct(str(folder), loaded, [*loaded[:1], ["wavs/2.wav", "so he"], loaded[2]]) == 1  # an older page
    for clip in loaded[::2]:
        with pytest.raises(UserError, match=clip[0]):
            data.correct(str(folder), loaded, [[clip[0], "mine"]])
    now = [train.replace('"so ""he"""', "so he")]
    assert [path.read_text() for path in data.lists(str(folder))] == now
    assert data.correct(str(tmp_path), loaded, loaded) == 0
    assert data.correct(str(folder), [], [], {"en": "de"}) == 0
    assert [path.read_text() for path in data.lists(str(folder))] == [one.replace("|en\n", "|de\n") for one in now]
    (folder / "segments.csv").write_text("detail,clip,text\nunsure,wavs/1.wav,won to.\n,wavs/2.wav,x\nlow,,\n")
    assert data.doubts(str(folder)) == {("wavs/1.wav", "won to."): "unsure"} and not data.doubts(str(tmp_path))
    data.lists(str(folder))[0].write_text(f"{train}\n\n")  # an editor leaves blank lines
    added = [["wavs/1.wav", "-one.\u200f"], ["wavs/2.wav", ""], ["", "a new row"]]
    assert data.correct(str(folder), rows := [["wavs/1.wav", "one two."], ["wavs/2.wav", 'so "he"']], added) == 2
    assert data.lists(str(folder))[0].read_text() == f"{columns}\nwavs/1.wav|-one.\u200f|a|en\n"
    with pytest.raises(UserError, match="wavs/2"):  # it is no longer in the lists
        data.correct(str(folder), added, rows[1:])
    data.lists(str(folder))[0].write_bytes(b"audio_file|text\nwavs/1.wav|\xfc")
    with pytest.raises(UserError, match="is not UTF-8"):
        data.correct(str(folder), added, added)


def test_voices_of_a_comparison_are_those_of_both_models(tmp_path):
    studio, shape = Studio(tmp_path), (np.zeros((1, 2, 4), "float32"), np.zeros((1, 4), "float32"))
    (tmp_path / "run").mkdir()
    shared = studio.speakers("en", "base")[1]
    write_speakers(tmp_path / "run", {"mine": shape, shared: shape})
    assert studio.speakers("en", "base", "run") == studio.speakers("en", "run", "base") == [shared]


@pytest.mark.parametrize("text, chosen, found", [
    ("Привет, как дела?", "en", "other_letters"), ("چطور هستید", "de", "other_letters"), (" ", "en", "no_text"),
    ("Привет, как дела?", "", "no_language"), ("Guten Morgen, wie geht es?", "en", ("en", "en_Gene", "de", "")),
    ("Guten Morgen, wie geht es?", "", ("de", "de_Gene", "", "")), ("Good morning.", "en", ("en", "en_Gene", "", "")),
    ("Good morning ﷼.", "en", ("en", "en_Gene", "", "'﷼' (RIAL SIGN)")),
])  # fmt: skip
def test_text_is_read_in_a_language_of_the_model_that_its_letters_fit(tmp_path, text, chosen, found):
    studio = Studio(tmp_path)
    try:
        assert studio.reading(text, chosen, "en_Gene", "base") == found
    except PageError as error:
        assert error.key == found


def test_languages_are_those_of_the_models_and_a_voice_stays_if_it_speaks_the_language(tmp_path):
    studio = Studio(tmp_path)
    assert studio.languages("fa", "base", "base") == ("fa", ["am", "de", "en", "es", "fa", "fr"])
    assert studio.languages("it", "base")[0] == ""
    first = lambda before: studio.speakers("de", "base", before=before)[0]
    assert (first("de_f2"), first("en_Gene"), first("?")) == ("de_f2", "de_Gene", "de_Gene")
    example = lambda text, *chosen: studio.example(text, *chosen, "base", "en")
    assert example(EXAMPLES["en"], "", "fr_f2") == EXAMPLES["fr"] and example("Mine.", "de", "fr_f2") == "Mine."
    assert example(EXAMPLES["fr"], "de", "fr_f2") == EXAMPLES["de"] and example(EXAMPLES["fr"], "", None)[:4] == "Good"


def test_stop_keeps_the_audio_so_far(tmp_path, monkeypatch):
    build_page = pytest.importorskip("myxtts.apps.studio.app", exc_type=ImportError).build_page
    studio, stops = Studio(tmp_path), []
    monkeypatch.setattr(studio, "stream", lambda *_: ((9, np.ones(stops.append(n) or 5)) for n in range(9)))
    speak = next(one.fn for one in build_page(studio, "en").fns.values() if one.api_name == "speak")
    *_, last = speak(stops, True, "base", "Good morning.", "en", None, "en_Gene", 0, 0, 1)
    state, _, (rate, samples) = last.values()
    assert len(samples) == 5 and TEXTS["en"]["hushed"] in state


def test_another_page_shows_the_running_tasks_and_copies_nothing(tmp_path, monkeypatch):
    build_page = pytest.importorskip("myxtts.apps.studio.app", exc_type=ImportError).build_page
    studio, popen, waits = Studio(tmp_path), subprocess.Popen, "trap 'sleep 9; exit 143' TERM; echo on; sleep 99"
    with pytest.raises(UserError, match="/no/model"):
        list(studio.make_data_set("set", ["talk.wav"], "en", "/no/model"))
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: popen(["sh", "-c", waits], **options))
    for name in (names := ("data", "export", "convert", "evaluate", "plan")):
        next(studio.tasks.follow(name, f"--output=my.{name}"))
    functions = build_page(studio, "fa").fns.values()
    make, models = (next(one.fn for one in functions if one.api_name == name) for name in ("make_data_set", "models"))
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/config.json").write_text("{")
    assert "config.json is damaged" in str(models()[0])
    looks = [one for one in functions if one.fn and one.fn.__name__ == "generated" and not one.inputs]
    (tmp_path / "talk.wav").write_text("")
    with pytest.raises(Exception, match=r"my\.data"):  # not joined, because these recordings would be lost
        list(make("my.set", [str(tmp_path / "talk.wav")], "de", "tiny"))
    assert not studio.data.recordings("my.set").exists()
    seen = lambda kind: str([[*zip("12", one.fn())] for one in looks if one.targets[0][1] == kind])
    for name in names:
        assert all(rf"my.{name}\u2069؛ " in seen(kind) for kind in ("load", "select"))
    assert {len(one.outputs) for one in looks if one.targets[0][1] == "select"} == {2}, "no results, such as a download"
    assert seen("click").count("در حال لغو") == seen("load").count("در حال لغو") == len(names)


def test_folders_are_listed_and_moved_to_the_trash(tmp_path, monkeypatch):
    places = ("run", "_data/set", "_exports/run-onnx-int8", "_evaluation")
    for place in (*places, "_data/set.recordings"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / ("config.json" if place == "run" else "x.wav")).write_text("{}" + " " * 2**20)
    for place in ("an_export/gpt.onnx", "an_export/config.json", "whisper/model.bin", "whisper/config.json"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("{}")
    found = kept_in(tmp_path)
    assert tuple(found) == places and [one.kind for one in found.values()] == ["run", "data", "export", "evaluation"]
    (tmp_path / "_exports/.run-onnx.0123456789ab.myxtts.tmp").mkdir()
    assert tuple(kept_in(tmp_path)) == places
    assert [round(one.megabytes) for one in found.values()] == [1, 2, 1, 1]
    (tmp_path / "run/config.json").write_text(f'{{"data": {{"train_data": "{tmp_path}/_data/set"}}}}')
    tasks = SimpleNamespace(states=[""], arguments=lambda _: [f"--checkpoint={tmp_path / place}@last"])
    for place in places[:2]:
        with own_run_folder(tmp_path / "run"), pytest.raises(UserError, match="trash while run is training"):
            removable(tmp_path, place, Tasks())
        with pytest.raises(UserError, match="a command is using"):
            removable(tmp_path, place, tasks)
    with locked_folder(tmp_path / "_data/set", ""), pytest.raises(UserError, match="a command is using"):
        removable(tmp_path, "_data/set", Tasks())
    for bad in ("..", "_trash", None, "_data"):
        with pytest.raises(UserError):
            to_trash(tmp_path, bad, Tasks())
    (tmp_path / "run.recordings").mkdir()
    output_path(tmp_path / "run").write_text("Error: no memory")
    monkeypatch.setitem(processes.trainings, tmp_path / "run", SimpleNamespace(poll=lambda: 2))
    assert to_trash(tmp_path, "run", Tasks()) == tmp_path / "_trash/run" and (tmp_path / "run.recordings").is_dir()
    (tmp_path / "_trash/run").replace(tmp_path / "run")
    assert processes.RunView(tmp_path / "run").failed is None
    assert to_trash(tmp_path, "_data/set", Tasks()) == tmp_path / "_trash/set"
    assert (tmp_path / "_trash/set/x.wav").is_file() and (tmp_path / "_trash/set.recordings/x.wav").is_file()
    assert list(kept_in(tmp_path)) == [place for place in places if place != "_data/set"]
    new = SimpleNamespace(pid=1, poll=lambda: None, args=["myxtts", f"--train-data={tmp_path}/_evaluation"])
    monkeypatch.setitem(processes.trainings, tmp_path / "new", new)  # it has no settings yet
    assert Studio(tmp_path).training() == ["new"]
    with pytest.raises(UserError, match="while new is training"):
        removable(tmp_path, "_evaluation", Tasks())
    monkeypatch.setattr("os.walk", lambda folder: [(folder, [], ["vanished"])])
    assert {one.megabytes for one in kept_in(tmp_path).values()} == {0.0}
    (tmp_path / "run").rename(tmp_path / "base")
    assert runs_in(tmp_path) == ["./base"] and Studio(tmp_path).folder("./base") == tmp_path / "base"
