"""Exports `LJSpeechDataset`, an alias of `SpeechDataset` (which reads all formats), and two tf.data functions."""

from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import prefetch_to, wave_dataset

__all__ = ["LJSpeechDataset", "prefetch_to", "wave_dataset"]

LJSpeechDataset = SpeechDataset
