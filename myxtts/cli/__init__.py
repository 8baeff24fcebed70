"""Subcommands of `myxtts`. Importing this package turns off TensorFlow's start-up messages."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
