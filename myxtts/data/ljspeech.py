"""Public names of the dataset class, which reads LJSpeech and all other formats, and of its tf.data pipeline."""

from myxtts.data.dataset import SpeechDataset
from myxtts.data.pipeline import prefetch_to, wave_dataset

__all__ = ["LJSpeechDataset", "prefetch_to", "wave_dataset"]

LJSpeechDataset = SpeechDataset
