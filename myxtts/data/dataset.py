"""Shim."""

from myxtts.data.ljspeech import LJSpeechDataset as SpeechDataset

SpeechDataset.order = SpeechDataset.plan
