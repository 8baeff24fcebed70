"""Exports `prefetch_to`, `wave_dataset` and `LJSpeechDataset`, which is an alias of `SpeechDataset`."""

from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import prefetch_to, wave_dataset

__all__ = ["LJSpeechDataset", "prefetch_to", "wave_dataset"]

LJSpeechDataset = SpeechDataset
