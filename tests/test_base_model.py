"""The bundled model: synthesis without a checkpoint, fine-tuning, and the files in the package."""

import argparse
import dataclasses
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from command_helpers import sentence_of
from tiny import tiny_run_config

from myxtts.cli import say, train
from myxtts.cli.say import Line
from myxtts.config.checks import UserError
from myxtts.config.config import SamplingConfig
from myxtts.config.stages import STAGES
from myxtts.inference.loading import load_model
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import stored_voice
from myxtts.models.xtts import XTTS
from myxtts.runs import origin
from myxtts.storage import base_model
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.run_folder import MEL_STATS, chosen_step, is_start, read_config, vocabulary_path
from myxtts.storage.speakers import default_speaker, language_of, read_speakers, write_speaker_clips
from myxtts.text.speech_rates import read_rates
from myxtts.training.stages.gpt import GPTObjective

LANGUAGES = ("am", "de", "en", "es", "fa", "fr")


@pytest.fixture(scope="module")
def base():
    return Synthesizer.load(BASE_FOLDER, traced=False)


@pytest.fixture
def read_in(base, monkeypatch, capsys):
    """Returns the language that `myxtts say` would use with these arguments, and its messages."""
    monkeypatch.setattr(Synthesizer, "load", lambda *_, **__: base)

    def find(*argv):
        asked = []

        def speak(self, texts, voices, languages, **_):
            asked.extend(languages)
            raise UserError("Enough.")

        monkeypatch.setattr(Synthesizer, "sentences", speak)
        assert say.main(["--text", *argv]) == 2
        return asked[0], capsys.readouterr().err

    return find


def test_text_is_read_in_the_language_of_the_speaker_unless_another_is_requested(read_in, capsys):
    read, reported = read_in("Bonjour, ça va ?", "--speaker", "fr_f2")
    assert read == "fr" and "as fr (French), which fr_f2 " in reported and "--language" in reported
    assert read_in("Hello.", "--speaker", "fr_f2", "--language", "en") == ("en", "Error: Enough.\n")
    read, reported = read_in("سلام", "--speaker", "fr_f2")
    assert read == "fa" and "as fa (Persian), not as fr" in reported and "fr_f2 speaks" not in reported
    read, reported = read_in("Hello.")
    assert read == "en" and "The bundled model speaks English" in reported
    assert "about 1.2 min" in read_in("Good morning. " * 80)[1]
    assert say.main(["--language", "ja", "Hello."]) == 2
    assert "Error: --language: The model speaks am" in (said := capsys.readouterr().err) and "Give" not in said


def test_lines_of_a_list_are_read_in_the_languages_of_their_speakers(base, monkeypatch):
    lines = [Line(1, "a", "x", "fr_f2", ""), Line(2, "b", "x", "fr_f2", "en"), Line(3, "c", "x", "", "")]
    asked = argparse.Namespace(checkpoint=BASE_FOLDER, requested=None, own="de", batch="list.txt")
    languages = lambda: [one[2] for one in say._requests(lines, base, base.as_voice(None, "de"), asked, print)]
    assert languages() == ["fr", "en", "de"]
    monkeypatch.setattr(say, "language_of", lambda folder, name: "es")  # as for `--speaker fr_f2`, if it were unknown
    assert languages() == ["es", "en", "de"]
    asked.requested = "de"
    assert languages() == ["de", "en", "de"]


def test_languages_of_its_speakers_are_reported_and_no_other_is_offered(capsys):
    assert say.main(["--list-speakers"]) == 0
    assert "fr_f2\tfr\n" in capsys.readouterr().out
    sentence = sentence_of(capsys, say.main, "--text", "Hello.", "--language", "xx")
    assert sentence.endswith(f"Supported languages: {', '.join(LANGUAGES)}.")


def test_python_uses_the_same_default_voice_as_say(base):
    name = default_speaker(BASE_FOLDER, "de")
    assert name.startswith("de_") and default_speaker("runs/mine", "de") is None
    own, named = base.as_voice(None, "de"), stored_voice(BASE_FOLDER, name, base.voice)
    np.testing.assert_array_equal(own.latents, named.latents)
    spoken = base.batch(["Guten Tag."], [None], ["de"], SamplingConfig(temperature=0.0), max_codes=8)[0]
    assert len(spoken.codes) and base.speak("Hi.").seconds > 0.2
    names = [*read_speakers(BASE_FOLDER)]
    assert [default_speaker(BASE_FOLDER, language)[:2] for language in LANGUAGES] == list(LANGUAGES)
    assert default_speaker(BASE_FOLDER, "ja") == names[0]


def test_amharic_letters_are_spoken_and_not_named(base):
    """In the corpus of an earlier version, eSpeak NG named letters that Amharic lacks, and so did the model later."""
    texts = ["ቀይ ቀሚስ ለብሳለች።", "ፍቅር ትልቅ ኃይል ነው።", "አዲስ አበባ ትልቅ ከተማ ናት።"]
    for text, speech in zip(texts, base.batch(texts, [None] * 3, ["am"] * 3, seed=0)):
        least, most = read_rates(BASE_FOLDER)["am"].band(text)
        assert least < speech.seconds < most < 3 * least


def test_run_with_one_speaker_speaks_in_that_voice_by_default(tmp_path):
    write_speaker_clips(tmp_path, {"tom": (b"", "de", ())})
    assert default_speaker(tmp_path, "en") == "tom"
    write_speaker_clips(tmp_path, {"eve": (b"", "de", ())})
    assert default_speaker(tmp_path, "en") is None and language_of(tmp_path) == "de" == language_of(tmp_path, "eve")
    write_speaker_clips(tmp_path, {"ann": (b"", "en", ())})
    assert language_of(tmp_path) is None


def test_files_are_half_precision_small_and_without_local_paths():
    files = [path for path in BASE_FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 40 * 10**6
    for part in STAGES:
        store = CheckpointStore(BASE_FOLDER / part)
        arrays = store.read(chosen_step(store, part), ["model"])[0]["model"].values()
        assert {array.dtype for array in arrays} <= {np.dtype("float16"), np.dtype("int32"), np.dtype("int64")}
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".json", ".md", ".py")]
    assert not [found for text in texts for found in re.findall(r'"/[a-z]+/[^"]*"', text)]
    assert "CARD.md" in {path.name for path in files}
    assert np.ptp([stored_voice(BASE_FOLDER, name, None).latents for name in ("en_Gene", "en_f2")], axis=0).max() > 0.1


def test_mel_statistics_that_are_not_finite_are_refused_without_a_dvae(tmp_path):
    folder = shutil.copytree(BASE_FOLDER, tmp_path / "copy", ignore=shutil.ignore_patterns("dvae"))
    tensors, state = (store := CheckpointStore(folder / "gpt")).read(step := 0, ["model"])
    store.write(step, tensors | {MEL_STATS: {MEL_STATS: np.full(80, np.nan, np.float32)}}, state)
    with pytest.raises(CheckpointError, match="NaN or infinity in 1 weights, such as mel_stats"):
        load_model(folder)


def test_a_run_from_it_reads_phonemes_and_not_letters(capsys, tmp_path, tiny_corpus):
    flags = f"--init-from base --g2p am --checkpoint-dir {tmp_path}/run --train-data {tiny_corpus}".split()
    assert "Received: am. Leave" in sentence_of(capsys, train.main, *flags)
    assert not (tmp_path / "run").exists()


def test_voice_must_be_named_for_other_models(capsys, tmp_path):
    shutil.copytree(BASE_FOLDER, tmp_path / "copy")
    sentence = sentence_of(capsys, say.main, "--checkpoint", tmp_path / "copy", "--text", "Hello.")
    assert "--reference-audio FILE" in sentence and "--list-speakers" in sentence
    sentence = sentence_of(capsys, say.main, "--speaker", "bob", "--text", "Hello.")
    assert "12 voices. Received: bob. Speakers: am_Gene, am_" in sentence


def test_voices_stay_in_the_range_of_float16():
    whole = Synthesizer.load("base").model
    half = XTTS(whole.config, parts=("gpt",), precision="mixed_float16")
    weights = whole.part_weights("gpt")
    for name, variable in half.part_weights("gpt").items():
        variable.assign(weights[name])
    mel = tf.random.stateless_normal((1, 120, whole.config.num_mels), (0, 1))
    np.testing.assert_allclose(half.gpt.mel_to_latents(mel), whole.gpt.mel_to_latents(mel), atol=0.1)


def test_share_of_the_codes_before_the_next_is_replaced_in_training_only():
    config = tiny_run_config(gpt={"code_masking": 0.25})
    objective = GPTObjective(XTTS(config.model, parts=("gpt",)), config)
    codes = tf.constant(np.random.default_rng(0).integers(0, config.model.num_codes + 2, (64, 100)), tf.int32)
    seed = tf.constant([1, 2])
    masked = objective._masked(codes, seed).numpy()
    is_code = codes.numpy() < config.model.num_codes
    np.testing.assert_array_equal(masked[~is_code], codes.numpy()[~is_code])
    assert masked.max() <= config.model.num_codes + 1 and masked[is_code].max() < config.model.num_codes
    assert abs(np.mean((masked != codes.numpy())[is_code]) - 0.25 * (1 - 1 / config.model.num_codes)) < 0.02
    assert abs(masked[(masked != codes.numpy()) & is_code].mean() / config.model.num_codes - 0.5) < 0.05
    np.testing.assert_array_equal(masked, objective._masked(codes, seed))
    assert objective._masked(codes, None) is codes


def test_run_from_it_has_its_shape_vocabulary_and_weights(tmp_path):
    stored = read_config(BASE_FOLDER)
    config = tiny_run_config(tmp_path, training=dict(init_from="base", checkpoint_dir=str(tmp_path / "run")))
    adopted, began = origin.settle_origin(config)
    assert began is None and adopted.training.init_from == "base"
    assert adopted.training.tune == ("dvae", "gpt", "decoder")
    assert (adopted.model.width, adopted.model.num_codes) == (stored.model.width, stored.model.num_codes)
    assert adopted.sampling == config.sampling != stored.sampling, "the base's temperature is for the base's voices"
    assert adopted.data.vocabulary == str(vocabulary_path(BASE_FOLDER))
    (tmp_path / "run").mkdir()
    model = dataclasses.replace(adopted.model, num_text_tokens=stored.model.num_text_tokens)
    config = dataclasses.replace(adopted, model=model)
    origin.bring_in(config, origin.source_parts(config, origin.taken_parts(config)), is_new=True)
    begun, state = CheckpointStore(tmp_path / "run/gpt").read(0, ["model"])
    assert is_start(state) and not is_start(CheckpointStore(tmp_path / "run/speaker").read_state(0))
    store = CheckpointStore(BASE_FOLDER / "gpt")
    for name, array in store.read(chosen_step(store, "gpt"), ["model"])[0]["model"].items():
        np.testing.assert_array_equal(begun["model"][name], array, err_msg=name)


def test_package_without_it_reports_that(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(base_model, "BASE_FOLDER", tmp_path / "base")
    assert "base model is missing" in sentence_of(capsys, say.main, "--text", "Hello.")
