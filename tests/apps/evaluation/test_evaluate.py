"""`myxtts evaluate`: all models get the same sentences, reports are complete, and wrong input is one error message."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import soundfile
from tiny import make_tiny_corpus, tiny_run_config, write_run

import myxtts
from myxtts.__main__ import main
from myxtts.apps.evaluation import comparison as comparing
from myxtts.apps.evaluation.command import subjects
from myxtts.apps.evaluation.comparison import Comparison
from myxtts.apps.evaluation.report import as_text
from myxtts.apps.evaluation.sentences import Row, choose_sentences, sentences_of_data
from myxtts.data.corpora import load_corpus
from myxtts.data.doctor import id_hash, split_by_hash
from myxtts.hearing import networks
from myxtts.hearing.measuring import Measured, Measurer, Sentence, Spoken
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.speakers import write_speaker_clips

HEARS_ONE = f"{sys.executable} -S -c \"print('One.')\" {{wav}}"


@pytest.fixture(autouse=True)
def quick_intervals(monkeypatch):
    monkeypatch.setattr(comparing, "RESAMPLES", 300)


@pytest.fixture(scope="module")
def run(tiny_corpus, tokenizer, tmp_path_factory):
    """Folder of an untrained run on `tiny_corpus`, whose list of clips has ten of the twelve."""
    from myxtts.models.xtts import XTTS

    folder = tmp_path_factory.mktemp("runs") / "mine"
    model = {"num_text_tokens": tokenizer.num_tokens, "max_audio_tokens": 28}
    config = tiny_run_config(tiny_corpus, folder, model=model, data={"max_seconds": 1.15})
    keras.utils.set_random_seed(0)
    write_run(folder, XTTS(config.model, parts=("dvae", "gpt")), tokenizer, config)
    utterances, store = load_corpus(tiny_corpus).utterances, CheckpointStore(folder / "dvae")
    rows = [*(f"{one.id},accepted" for one in utterances), "too_long,rejected"]
    (folder / "clips_train.csv").write_text("\n".join(["id,verdict", *rows]) + "\n")
    clips = {"identity": np.array([id_hash(one.id) for one in split_by_hash(utterances, 0.2)[0]], np.uint64)}
    store.write(4, {**store.read(4, ["model"])[0], "clips": clips}, {"finished": True})
    return folder


@pytest.fixture
def by_color(monkeypatch):
    """A stand-in for the speaker encoder, which is not installed here: the mean spectrum."""

    def encode(samples, sample_rate):
        spectrum = np.abs(np.fft.rfft(np.resize(samples, 4096)))[:64]
        return spectrum / np.linalg.norm(spectrum)

    monkeypatch.setattr(networks, "find_encoder", lambda path: encode)
    monkeypatch.setattr(networks.DNSMOS, "load", lambda: None)


def test_evaluates_clips_that_the_run_was_not_trained_on(run, tiny_corpus, tmp_path):
    held = {one.id for one in split_by_hash(load_corpus(tiny_corpus).utterances, 0.2)[1]}
    found = sentences_of_data(tiny_corpus, [run], "en", 100)
    assert {one.id for one in found} == held and all(one.seen for one in found)
    assert all(Path(one.voice).stem not in held for one in found)
    # A clip that cannot be read is no voice. Clips that were added later were not trained on, whatever their speaker.
    more = make_tiny_corpus(tmp_path / "more")
    (more / "metadata.csv").open("a").write("new_one|one|one\ntoo_long|one|one\nsilent|one|one\n")
    (more / "speakers.csv").open("a").write("new_one,new\ntoo_long,new\nsilent,new\n")
    soundfile.write(more / "wavs" / "silent.wav", np.zeros(22050), 22050)
    for name in ("new_one", "too_long"):
        shutil.copy(more / "wavs" / "low_six.wav", more / "wavs" / f"{name}.wav")
    later = {one.id: one for one in sentences_of_data(more, [run], "en", 100)}
    assert set(later) == held | {"new_one"} and later["new_one"].seen is False
    assert later["new_one"].voice == str(more / "wavs" / "new_one.wav")
    listed = shutil.copy(tiny_corpus / "metadata.csv", tmp_path / "list.csv")
    config = tiny_run_config(listed, data={"audio_roots": (str(tiny_corpus / "wavs"),)})
    (other := shutil.copytree(run, tmp_path / "other") / "config.json").write_text(json.dumps(config.to_dict()))
    assert {one.id for one in sentences_of_data(listed, [other.parent], "en", 100)} == held
    rows = (run / "clips_train.csv").read_text().replace("verdict", "verdict,seconds")
    other.with_name("clips_train.csv").write_text(rows.replace("accepted", 'accepted,"9,0"'))
    assert len(sentences_of_data(tiny_corpus, [other.parent], "en", 100)) == 12
    # All clips of another data set count as held out.
    (more / "metadata.csv").write_text("new_one|one|one\n")
    assert [one.seen for one in sentences_of_data(more, [run], "en", 100)] == [None]


def test_run_and_audio_files_are_compared(run, tiny_corpus, tmp_path, capsys, by_color, eagerly, without_griffin_lim):
    others = shutil.copytree(tiny_corpus, tmp_path / "others")
    output, broken = tmp_path / "judged", shutil.copytree(run, tmp_path / "broken")
    shutil.rmtree(broken / "gpt")
    flags = ["--data", str(tiny_corpus), "--sentences", "2", "--seeds", "2", "--output", str(output)]
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "metadata.csv").write_text("a|Hello there.\n")
    assert main(["evaluate", str(tmp_path / "gone"), *flags]) == 2 and "no audio file a " in capsys.readouterr().err
    assert main(["evaluate", str(run), str(others), str(broken), *flags, "--recognizer", HEARS_ONE]) == 3
    reported = capsys.readouterr().out
    assert "broken is left out: " in reported and "no trained gpt" in reported
    written = json.loads((output / "evaluation.json").read_text())
    rows = {row["name"]: row for row in written["rows"]}
    assert list(rows) == ["recordings", "mine, resynthesis", "mine", "others"]
    count = min(2, len(sentences_of_data(tiny_corpus, [run], "en", 100)))
    assert [rows[name]["figures"]["all"]["mcd"]["sentences"] for name in rows] == [count] * 4
    mcd = {name: row["figures"]["all"]["mcd"]["value"] for name, row in rows.items()}
    assert mcd["recordings"] == mcd["others"] == 0 < mcd["mine"]
    assert len([one for one in written["spoken"] if one["row"] == "mine"]) == 2 * count
    assert written["differences"][0]["to"] == "others"
    # The recognizer always returns "one", so its figures are unreliable.
    assert "not evaluated" in reported and rows["mine"]["figures"]["all"]["cer"]["value"] > 15
    assert "Not available: DNSMOS" in reported and "pip install" in reported
    with open(output / "evaluation.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["row"] == "mine" and line["metric"] == "cer"]
    assert lines[0]["evaluated"] == "no"
    page = (output / "report.html").read_text()
    assert "http" not in page and "<script" not in page
    files = {path.name for path in (output / "sounds").iterdir()}
    assert {Path(name).name for name in re.findall('src="(sounds/[^"]+)"', page)} == files != set()


def test_texts_are_spoken_in_given_voices(run, tiny_corpus, tmp_path, capsys, by_color, eagerly, without_griffin_lim):
    texts = tmp_path / "texts.txt"
    texts.write_text("# two sentences\n#one two\n\nthree\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.DS_Store").touch()
    voice = str(tiny_corpus / "wavs" / "low_six.wav")
    flags = ["--texts", str(texts), "--voices", voice, "--seeds", "1", "--output", str(tmp_path / "out")]
    assert main(["evaluate", str(run), *flags]) == 0
    reported = capsys.readouterr().out
    assert "2 sentences" in reported and "speaker similarity" in reported
    assert "mel-cepstral distortion" in reported and "--data" in reported  # not available, and how to get it
    write_speaker_clips(german := shutil.copytree(run, tmp_path / "german"), {"a": (b"", "de", ())})
    found = choose_sentences(subjects([str(german)], "best"), None, str(texts), [voice, "low_six.wav"], None, 2)
    assert {one.language for one in found} == {"de"} and [one.speaker for one in found] == [voice, "low_six.wav"]


@pytest.fixture
def spoken(tmp_path, by_color):
    """Folder of two spoken files."""
    folder = make_tiny_corpus(tmp_path / "spoken")
    (folder / "metadata.csv").write_text("\n".join((folder / "metadata.csv").read_text().splitlines()[:2]) + "\n")
    return folder


def test_bundled_model_needs_no_data_and_is_called_base(spoken, monkeypatch, capsys):
    monkeypatch.chdir(spoken.parent)
    assert main(["evaluate", "base", "--language", "ja"]) == 2
    assert "en, de" in capsys.readouterr().err
    kept = []
    seconds_of = lambda one: soundfile.info(one.recording).duration if one.voice != one.recording else 0
    keep = lambda *given: kept.append((given, [*map(seconds_of, given[2])])) or Comparison([], [], given[3])
    monkeypatch.setattr("myxtts.apps.evaluation.report.evaluate_into", keep)
    assert main(["evaluate", "base", "base", "base@last", "--sentences", "3"]) == 0
    (_, sources, _, _, settings), seconds = kept[0]
    assert [one.name for one in sources if one.kind == "model"] == ["base", "base (2)", "base@last"]
    assert len(seconds) == 3 and min(seconds) > 0.8
    assert set(settings["folders"].values()) == {"base"}
    assert str(BASE_FOLDER) not in capsys.readouterr().out


def test_evaluation_from_python_replaces_that_of_the_command_and_is_equal(spoken):
    output = spoken.parent / "out"
    contents = []
    command = lambda *given: main(["evaluate", *given, f"--data={spoken}", f"--output={output}"])
    for evaluate in (command, lambda given: myxtts.evaluate(given, data=spoken, output=output)):
        evaluate(str(spoken))
        contents.append({path.name: path.read_bytes() for path in output.rglob("*") if path.is_file()})
    assert contents[0] == contents[1] and {"report.html", "evaluation.csv", "00000.flac"} <= contents[0].keys()


def judged(sentence, seed, **parts):
    return Measured(Spoken(sentence, seed, np.zeros(10, np.float32), 22050, doubts=()), parts)


def comparison(**rows):
    """Returns rows of 30 sentences; each value is a function from a random generator to the parts of the metrics."""
    sentences = [Sentence(f"s{number}", "text", "en", "ann", "a.wav", "b.wav") for number in range(30)]
    made = []
    for name, parts in rows.items():
        generator = np.random.default_rng(len(made))
        kind = "recordings" if name == "recordings" else "model"
        made.append(Row(name, kind, iter, [judged(one, 0, **parts(generator)) for one in sentences]))
    return Comparison(made, sentences, Measurer(recognizer=object()))


def test_best_has_the_lowest_error_among_models_that_finish_sentences():
    errors = lambda mean, limit=0: lambda random: {"cer": (random.poisson(mean), 40.0), "limit": (float(limit), 1.0)}
    found = comparison(recordings=errors(1), a=errors(6), b=errors(2), endless=errors(1, 1))
    rows, why = found.best()
    assert [row.name for row in rows] == ["b"] and "CER" in why
    assert "Best: b" in as_text(found) and "endless − a" in as_text(found)
    same = comparison(a=errors(4), b=errors(4))
    assert "Best:" not in as_text(same) and same.best()[0] == same.compared
    assert as_text(found, 60).count("CER, %") > as_text(found, 200).count("CER, %") == 2
    assert "Only" not in as_text(found)
    del found.sentences[9:]
    assert "Only 9 sentences" in as_text(found) and "Best:" not in as_text(found)
    assert [row.name for row in comparison(a=errors(2), b=errors(2), c=errors(9)).best()[0]] == ["a", "b"]
    spoken = lambda mean, seconds: lambda random: {**errors(mean)(random), "length": (seconds, 2.0)}
    rows, why = comparison(recordings=spoken(1, 2.0), short=spoken(3, 1.0), whole=spoken(6, 1.9)).best()
    assert [row.name for row in rows] == ["whole"] and "do not end properly" in why
    # A row without the hard sentences has the lower CER, but only shared sentences count.
    easy, whole = (found := comparison(a=errors(6), b=errors(2))).rows
    whole.measured[20:] = [judged(one.spoken.sentence, 0, cer=(40.0, 40.0)) for one in whole.measured[20:]]
    del easy.measured[20:]
    assert found.value(easy, "cer") < found.value(whole, "cer") and found.best()[0] == [whole]
    assert "  a (20 of 30 sentences)  b\n" in as_text(found)


def test_recognizer_with_errors_on_recordings_is_not_used():
    bad = lambda random: {"cer": (random.poisson(9), 40.0)}
    found = comparison(recordings=bad, a=bad, b=lambda random: {"cer": (0.0, 40.0)})
    assert found.not_judged() and "not evaluated" in as_text(found) and "Best: b" not in as_text(found)
