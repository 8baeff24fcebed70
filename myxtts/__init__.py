"""MyXTTS: train, fine-tune and speak with XTTS in TensorFlow and Keras."""

import os

__version__ = "0.1.0"

# TensorFlow reads this when it is imported. By itself it uses oneDNN's products only on processors with AVX-512; on
# others they make a training step on two cores 1.3 to 2 times as fast (docs/experiments.md).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
