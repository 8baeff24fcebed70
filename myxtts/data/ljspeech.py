"""The LJSpeech-format dataset and its device-aware tf.data pipeline, under their public names.

`SpeechDataset` reads this and every other format of `myxtts.data.corpora`.
"""

from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import prefetch_to, wave_dataset

__all__ = ["LJSpeechDataset", "prefetch_to", "wave_dataset"]

LJSpeechDataset = SpeechDataset
