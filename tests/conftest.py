"""Fixtures of all tests: TensorFlow without messages, restored logging, and a tiny corpus of recordings."""

import gc
import json
import logging
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
from tiny import WORDS, make_tiny_corpus, small_encoders, tiny_run_config, untraced

import myxtts  # noqa: F401  before TensorFlow, so that tests compute with oneDNN as users do
from myxtts.devices.tensorflow_start import import_sparingly

if "PYTEST_XDIST_WORKER" in os.environ:  # most files need TensorFlow, none the packages that it loads if they are there
    import_sparingly()
    os.environ |= dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")  # each core has a worker

# Imported modules and traced graphs are many small objects that stay in memory: without this, garbage collection takes
# a twelfth of the time.
gc.freeze()
gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """LJSpeech folder with `speakers.csv`: twelve speech-like clips of two speakers. Tests must not change it."""
    return make_tiny_corpus(tmp_path_factory.mktemp("tiny_corpus"))


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer for the words of the tiny corpus. Tests must not change it."""
    from myxtts.text.tokenizer import XTTSTokenizer

    return XTTSTokenizer.train([(f"{word}.", "en") for word in WORDS])


@pytest.fixture(scope="session")
def tiny_yaml(tmp_path_factory):
    """A configuration file for a run of two steps per stage. Tests must not change it."""
    every = dict(log_every_steps=1, validate_every_steps=2, checkpoint_every_steps=2, sample_every_steps=2)
    stages = {stage: {"max_steps": 2} for stage in ("dvae", "gpt", "speaker", "decoder")}
    model, data = dict(num_latents=2), dict(batch_size=3, num_workers=1)
    config = tiny_run_config(model=model, data=data, training={**every, "num_samples": 1}, **stages)
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(json.dumps(config.to_dict()))  # JSON is YAML
    return path


@pytest.fixture(autouse=True)
def log_as_before():
    """Restores the package's logging after commands, which redirect it to standard output, unseen by `caplog`."""
    log = logging.getLogger("myxtts")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    for handler in set(log.handlers) - set(handlers):
        handler.close()
    log.handlers, log.level, log.propagate = handlers, level, propagate


@pytest.fixture(scope="module")
def two_stages(tiny_yaml):
    """Limits runs to the DVAE and GPT stages. Fixtures for all tests, such as `tiny_yaml`, still have all stages."""
    from myxtts.config.stages import STAGES

    before = dict(STAGES)
    for name in ("speaker", "decoder"):
        del STAGES[name]
    yield
    STAGES.clear()
    STAGES.update(before)  # in their order, which matters


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """Folder with the files of a minimal released model. Tests must not change it."""
    from released_model import write_release

    return write_release(tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="session")
def converted(released):
    """Folder with the output of `myxtts convert` for `released`. Tests must not change it."""
    from released_model import convert

    assert convert("--from-coqui", released / "model.pth", "--output", released / "converted") == 0
    return released / "converted"


@pytest.fixture
def ram_path():
    """Returns a folder like `tmp_path`, in memory if possible, for tests that create and delete thousands of files."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def folders(ram_path):
    """Creates empty folders."""
    return lambda: Path(tempfile.mkdtemp(dir=ram_path))


@pytest.fixture(scope="module")
def eagerly():
    """Runs traced functions as plain Python in the tests of a module; see `untraced`."""
    with untraced():
        yield


@pytest.fixture(scope="module")
def small_speaker_encoders():
    """Gives speaker encoders fewer blocks in the tests of a module; see `small_encoders`."""
    with small_encoders():
        yield


@pytest.fixture
def few_discriminators(monkeypatch):
    """Gives decoders one discriminator of each kind, which has all operations, because eight take most of the time."""
    from myxtts.training.stages.decoder import DecoderStage

    monkeypatch.setattr(DecoderStage, "periods", (3,))
    monkeypatch.setattr(DecoderStage, "resolutions", (512,))


@pytest.fixture
def devices_as_before(monkeypatch):
    """Resets the device configuration, so that a test can configure devices like a new process."""
    from myxtts.devices import configuration

    monkeypatch.setattr(configuration, "_applied", None)


@pytest.fixture
def without_griffin_lim(monkeypatch):
    """Replaces Griffin-Lim, which takes most of the time, by constant audio, for tests of only codes or lengths."""
    from myxtts.inference import decoding

    monkeypatch.setattr(decoding, "log_mel_to_wav", lambda mel: np.full(256 * len(mel), 0.1, np.float32))
