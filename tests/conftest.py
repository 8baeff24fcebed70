"""What all tests share: a quiet TensorFlow, an untouched log, and a tiny corpus of recordings."""

import json
import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
from tiny import make_tiny_corpus, tiny_run_config

import myxtts  # noqa: F401  before TensorFlow, so that tests compute with oneDNN as users do


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """Folder of twelve spoken-like clips by two speakers, LJSpeech layout with `speakers.csv`. Not to be changed."""
    return make_tiny_corpus(tmp_path_factory.mktemp("tiny_corpus"))


@pytest.fixture(scope="session")
def tiny_yaml(tmp_path_factory):
    """A configuration file of a run of two steps a stage. Not to be changed."""
    every = dict(log_every_steps=1, validate_every_steps=2, checkpoint_every_steps=2, sample_every_steps=2)
    stages = dict(dvae={"max_steps": 2}, gpt={"max_steps": 2})
    model, data = dict(layers=1, num_latents=2), dict(batch_size=3, num_workers=1)
    config = tiny_run_config(model=model, data=data, training={**every, "num_samples": 1}, **stages)
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(json.dumps(config.to_dict()))  # JSON is YAML
    return path


@pytest.fixture(autouse=True)
def log_as_before():
    """Puts the package's log back: commands send it to standard output, where `caplog` does not see it."""
    log = logging.getLogger("myxtts")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    for handler in set(log.handlers) - set(handlers):
        handler.close()
    log.handlers, log.level, log.propagate = handlers, level, propagate


@pytest.fixture(scope="module")
def two_stages(tiny_yaml):
    """The stages that a language model takes, without those that make its sound, which take long.

    What is made for all tests, as `tiny_yaml` is, is made before, with all stages.
    """
    from myxtts.config.stages import STAGES

    before = dict(STAGES)
    for name in ("speaker", "decoder"):
        del STAGES[name]
    yield
    STAGES.clear()
    STAGES.update(before)  # in their order, which counts
