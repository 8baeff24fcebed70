"""What all tests share: a quiet TensorFlow, an untouched log, and a tiny corpus of recordings."""

import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
from tiny import make_tiny_corpus

import myxtts  # noqa: F401  before TensorFlow, so that tests compute with oneDNN as users do


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """Folder of twelve spoken-like clips by two speakers, LJSpeech layout with `speakers.csv`. Not to be changed."""
    return make_tiny_corpus(tmp_path_factory.mktemp("tiny_corpus"))


@pytest.fixture(autouse=True)
def log_as_before():
    """Puts the package's log back: commands send it to standard output, where `caplog` does not see it."""
    log = logging.getLogger("myxtts")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    for handler in set(log.handlers) - set(handlers):
        handler.close()
    log.handlers, log.level, log.propagate = handlers, level, propagate
