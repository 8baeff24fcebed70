"""The figures that sentences are judged by: what they are called, what they count, which way is better."""

from typing import NamedTuple


class Metric(NamedTuple):
    """One figure. What is measured of a spoken sentence is a part and a whole; the figure is the sum of parts over the
    sum of wholes, times `scale`."""

    name: str
    title: str
    unit: str
    better: str
    """`low`, `high`, or empty for what is compared with the recordings' figure."""
    decimals: int
    is_share: bool = False
    """Whether part and whole are 0 or 1 and 1: something holds of a sentence or does not."""
    needs: str = ""
    """What it is measured with: an attribute of `judging.Tools`; empty for nothing besides the sound."""
    scale: float = 1.0
    meaning: str = ""


def _percent(name, title, better, **options):
    return Metric(name, title, "%", better, 1, scale=100.0, **options)


METRICS = (
    _percent(
        "cer", "wrong characters", "low", needs="recognizer", meaning="of what a recognizer understood, all sentences"
    ),
    _percent("wer", "wrong words", "low", needs="recognizer", meaning="as above, in words"),
    Metric(
        "similarity",
        "likeness of voice",
        "",
        "high",
        3,
        needs="encoder",
        meaning="cosine to the recording that the voice was taken from, by an encoder that the model was not made with",
    ),
    Metric(
        "mcd",
        "mel-cepstral distortion",
        "dB",
        "low",
        2,
        needs="recordings",
        meaning="to the recording, after alignment (DTW)",
    ),
    Metric("f0_rmse", "pitch off the recording's", "st", "low", 2, needs="recordings", meaning="RMSE on that path"),
    Metric("f0_median", "pitch, median", "Hz", "", 0),
    Metric("f0_spread", "pitch, spread", "st", "", 2, meaning="standard deviation within a sentence"),
    _percent("voiced", "voiced", "", meaning="share of the time that has a pitch"),
    Metric("dnsmos_overall", "DNSMOS, overall", "", "high", 2, needs="dnsmos", meaning="1 to 5"),
    Metric("dnsmos_signal", "DNSMOS, signal", "", "high", 2, needs="dnsmos", meaning="1 to 5"),
    Metric("dnsmos_background", "DNSMOS, background", "", "high", 2, needs="dnsmos", meaning="1 to 5"),
    Metric(
        "length", "length to the recording's", "", "", 2, needs="recordings", meaning="seconds over seconds, all in all"
    ),
    _percent("limit", "ran into the limit", "low", is_share=True, meaning="did not end by itself"),
    _percent("pauses", "paused for over 1 s", "low", is_share=True),
    _percent("repeated", "repeated codes", "", meaning="groups of four codes that came before in the sentence"),
    _percent(
        "doubtful", "in doubt", "low", is_share=True, meaning="loops, babble, cut or endless, as `myxtts say` tells"
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
