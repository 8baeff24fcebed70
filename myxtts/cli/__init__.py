"""Subcommands of `myxtts`. TensorFlow's start-up messages are silenced: a user cannot act on them."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
