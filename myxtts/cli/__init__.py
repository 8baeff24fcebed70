"""The commands. TensorFlow's start-up messages say nothing that a user could act on, so they are kept quiet."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
