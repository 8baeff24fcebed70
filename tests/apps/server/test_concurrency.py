"""Two at once: runs that begin in one folder at the same moment, and commands that speak with one model."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import soundfile
import tensorflow as tf
from tiny import WORDS, tiny_run_config, voiced, write_run

from myxtts.cli import say
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.inference import waveforms
from myxtts.models.xtts import XTTS
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.run_folder import own_run_folder
from myxtts.text.tokenizer import XTTSTokenizer


def test_one_of_those_that_begin_in_a_folder_at_the_same_moment_gets_it(tmp_path):
    at_once, all_tried = threading.Barrier(3), threading.Barrier(3)

    def begin(folder):
        at_once.wait(60)
        try:
            with own_run_folder(folder):
                all_tried.wait(60)
                return "began"
        except CheckpointError as error:
            all_tried.wait(60)
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        for number in range(100):
            folder = tmp_path / str(number)
            outcomes = sorted(pool.map(begin, [folder] * 3))
            assert outcomes[2] == "began"
            assert all(outcome.startswith("Another run is writing to") for outcome in outcomes[:2]), outcomes
            assert not list(folder.iterdir())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a run, in which `voice.wav` lies as well."""
    keras.utils.set_random_seed(0)
    tokenizer = XTTSTokenizer.train([(f"{word}.", "en") for word in WORDS])
    config = tiny_run_config(
        model={"num_text_tokens": tokenizer.num_tokens, "layers": 1, "max_audio_tokens": 12}, data={"max_seconds": 0.4}
    )
    folder = write_run(tmp_path_factory.mktemp("run"), XTTS(config.model, parts=("dvae", "gpt")), tokenizer, config)
    soundfile.write(folder / "voice.wav", voiced(1.0, 150, 1), MODEL_SAMPLE_RATE)
    return folder


def test_two_that_speak_with_one_model_at_once_write_what_one_alone_writes(model, tmp_path, monkeypatch, request):
    # Threads share what processes have each for themselves: the log.
    monkeypatch.setattr("myxtts.utils.commons.setup_logging", lambda: None)
    # Most of the time that speaking a word takes.
    monkeypatch.setattr(waveforms, "log_mel_to_wav", lambda mel: np.resize(np.float32(mel[:, 0] / 100), 256 * len(mel)))
    tf.config.run_functions_eagerly(True)
    request.addfinalizer(lambda: tf.config.run_functions_eagerly(False))
    logging.getLogger("myxtts").setLevel(logging.ERROR)

    def speak(output):
        reference = ["--reference-audio", str(model / "voice.wav")]
        return say.main(["--checkpoint", str(model), "--text", "one two", *reference, "--output", str(output)])

    before = {path: path.stat().st_mtime_ns for path in model.rglob("*")}
    assert speak(tmp_path / "alone.wav") == 0
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(speak, [tmp_path / "both.wav"] * 2)) == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"alone.wav", "both.wav"}
    assert (tmp_path / "both.wav").read_bytes() == (tmp_path / "alone.wav").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in model.rglob("*")} == before
