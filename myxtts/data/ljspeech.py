"""Import path for the LJSpeech data set and its tf.data pipeline; `SpeechDataset` reads it like any other format."""

from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import prefetch_to, wave_dataset

__all__ = ["LJSpeechDataset", "prefetch_to", "wave_dataset"]

LJSpeechDataset = SpeechDataset
