"""MyXTTS: train, fine-tune and speak with XTTS in TensorFlow and Keras."""

__version__ = "0.1.0"
