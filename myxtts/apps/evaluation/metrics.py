"""The metrics: their titles, units, which way is better, and what they are measured with."""

from typing import NamedTuple

from myxtts.hearing import dnsmos, speaker_similarity

MISSING = {
    "recognizer": "--recognizer FOLDER of a Whisper model, or a command",
    "encoder": speaker_similarity.HOW_TO_GET,
    "dnsmos": dnsmos.HOW_TO_GET,
    "recordings": "sentences of a data set with recordings: --data FOLDER",
}
"""How to get what a metric needs."""


class Metric(NamedTuple):
    """One metric. Its figure is the sum of the parts of all sentences over the sum of their wholes, times `scale`."""

    name: str
    title: str
    unit: str
    better: str
    """`low`, `high`, or empty for what is compared with the recordings' figure."""
    decimals: int
    needs: str = ""
    """A key of `MISSING`; empty for metrics of the audio alone."""
    is_share: bool = False
    """Whether part and whole are 0 or 1 and 1: something holds of a sentence or does not."""
    meaning: str = ""

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "%" else 1.0

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


_COSINE = "cosine to the recording that the voice was taken from, by an encoder that the model was not made with"
_GROUPS = "groups of four codes that came before in the sentence"
METRICS = (
    Metric("cer", "wrong characters", "%", "low", 1, "recognizer", False, "of what a recognizer understood, pooled"),
    Metric("wer", "wrong words", "%", "low", 1, "recognizer", False, "as above, in words"),
    Metric("similarity", "speaker similarity", "", "high", 3, "encoder", False, _COSINE),
    Metric("mcd", "mel-cepstral distortion", "dB", "low", 2, "recordings", False, "to the recording, after DTW"),
    Metric("f0_rmse", "pitch off the recording's", "st", "low", 2, "recordings", False, "RMSE on that path"),
    Metric("f0_median", "pitch, median", "Hz", "", 0),
    Metric("f0_spread", "pitch, spread", "st", "", 2, meaning="standard deviation within a sentence"),
    Metric("voiced", "voiced", "%", "", 1, meaning="share of the time that has a pitch"),
    Metric("dnsmos_overall", "DNSMOS, overall", "", "high", 2, "dnsmos", False, "1 to 5"),
    Metric("dnsmos_signal", "DNSMOS, signal", "", "high", 2, "dnsmos", False, "1 to 5"),
    Metric("dnsmos_background", "DNSMOS, background", "", "high", 2, "dnsmos", False, "1 to 5"),
    Metric("length", "length to the recording's", "", "", 2, "recordings", False, "seconds over seconds, pooled"),
    Metric("limit", "ran into the limit", "%", "low", 1, is_share=True, meaning="did not end by itself"),
    Metric("pauses", "paused for over 1 s", "%", "low", 1, is_share=True),
    Metric("repeated", "repeated codes", "%", "", 1, meaning=_GROUPS),
    Metric("doubtful", "in doubt", "%", "low", 1, is_share=True, meaning="what the self-check of `myxtts say` reports"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
