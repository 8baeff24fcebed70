"""The data set under the name that it had first: it reads every corpus format."""

from myxtts.data.dataset import SpeechDataset as LJSpeechDataset

__all__ = ["LJSpeechDataset"]
