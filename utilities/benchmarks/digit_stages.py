"""Spoken digits after every stage that a voice goes through, from the recordings to free speech.

What is lost between one row and the next is lost by that stage: the mel and its inversion, the codes, the decoder, the
language model that draws codes.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from digit_judge import HELD_OUT_INDICES, TRAIN_INDICES, DigitJudge, Verdict  # noqa: E402  neighbors of this file

from myxtts.audio.files import load_samples  # noqa: E402
from myxtts.audio.griffin_lim import log_mel_to_wav  # noqa: E402
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram  # noqa: E402
from myxtts.config.rates import MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.hearing.dnsmos import DNSMOS  # noqa: E402
from myxtts.hearing.sources import copy_speech  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.inference.voices import Voice  # noqa: E402

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SEEDS = 5
SCORED_CLIPS = 60
"""Clips of a row that DNSMOS hears, spread over it: at a few tenths of a second each, all would take long."""


class Spoken(NamedTuple):
    """One clip that should be `digit` in the voice of `speaker`; `samples` `(S,)` float32."""

    speaker: str
    digit: int
    samples: np.ndarray


class Row(NamedTuple):
    """All clips after one stage."""

    stage: str
    clips: list[Spoken]
    sample_rate: int


class Result(NamedTuple):
    """What the judge and DNSMOS say of a row; `signal` is None where DNSMOS is not installed."""

    stage: str
    digits: np.ndarray
    """`(clips,)` bool, whether the digit was recognized."""
    voices: np.ndarray
    verdicts: list[Verdict]
    clips: list[Spoken]
    signal: float | None


class Stages:
    """Makes the rows with one run's model.

    Args:
        fsdd_dir: Folder of the Free Spoken Digit Dataset.
        pairs: `(speaker, digit)` of the recordings that are copied.
        left_out: Pairs that the model has not been trained on, which are not taken for references.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        fsdd_dir: Path,
        pairs: Sequence[tuple[str, int]],
        left_out: Collection[tuple[str, int]] = (),
    ):
        self.synthesizer, self.fsdd_dir, self.pairs, self.left_out = synthesizer, Path(fsdd_dir), pairs, left_out
        self._voice: Callable[[Path], Voice] = cache(lambda path: synthesizer.voice(load_samples(path)))
        self._to_mel = MelSpectrogram(DVAE_MEL)

    @property
    def has_decoder(self) -> bool:
        """Whether the run has a trained waveform decoder."""
        return "decoder" in self.synthesizer.model.parts

    def rows(self) -> Iterator[Row]:
        """The stages in order; those of the decoder only where the run has one."""
        model = self.synthesizer.model
        sources = [(speaker, digit, index) for speaker, digit in self.pairs for index in HELD_OUT_INDICES]
        names = [(speaker, digit) for speaker, digit, _ in sources]

        def row(stage, waves, sample_rate=MODEL_SAMPLE_RATE):
            return Row(stage, [Spoken(*name, wave) for name, wave in zip(names, waves, strict=True)], sample_rate)

        recordings = [load_samples(self._wav(*source)) for source in sources]
        yield row("recordings", recordings)
        mels = [np.asarray(self._to_mel(wave[None])) for wave in recordings]
        yield row("mel, Griffin-Lim", [log_mel_to_wav(mel[0]) for mel in mels])
        codes = [np.asarray(model.dvae.encode(model.normalize_mel(mel))) for mel in mels]
        decoded = [np.asarray(model.denormalize_mel(model.dvae.decode(some)))[0] for some in codes]
        yield row("DVAE codes, Griffin-Lim", [log_mel_to_wav(mel) for mel in decoded])
        if self.has_decoder:
            copies = [self._copy(*name, wave) for name, wave in zip(names, recordings, strict=True)]
            yield row("DVAE codes, decoder", copies, self.synthesizer.to_waveform.sample_rate)
        yield from self.free_speech()

    def free_speech(self) -> Iterator[Row]:
        """Each pair once per seed, each time from another reference clip, at the default sampling settings."""
        spoken = []
        for seed in range(SEEDS):
            rng = np.random.default_rng([seed, 7])
            voices = [self._reference_voice(speaker, rng) for speaker, _ in self.pairs]
            texts = [WORDS[digit] for _, digit in self.pairs]
            spoken += self.synthesizer.batch(texts, voices, ["en"] * len(texts), seed=seed)
        names = list(self.pairs) * SEEDS
        if self.has_decoder:
            waves = [log_mel_to_wav(speech.mel) for speech in spoken]
            clips = [Spoken(*name, wave) for name, wave in zip(names, waves, strict=True)]
            yield Row("free speech, Griffin-Lim", clips, MODEL_SAMPLE_RATE)
        clips = [Spoken(*name, speech.samples) for name, speech in zip(names, spoken, strict=True)]
        yield Row("free speech", clips, spoken[0].sample_rate)

    def _wav(self, speaker, digit, index):
        return self.fsdd_dir / "wavs" / f"{digit}_{speaker}_{index}.wav"

    def _reference_voice(self, speaker, rng):
        digits = [digit for digit in range(10) if (speaker, digit) not in self.left_out]
        return self._voice(self._wav(speaker, rng.choice(digits), rng.choice(TRAIN_INDICES)))

    def _copy(self, speaker, digit, samples):
        """A recording's codes through the waveform decoder, with the voice from another recording of the speaker."""
        voice = self._reference_voice(speaker, np.random.default_rng([digit, 11]))
        return copy_speech(self.synthesizer, samples, voice, self.synthesizer.text_front.ids(WORDS[digit], "en"))[0]


def listen(row: Row, judge: DigitJudge, score: DNSMOS | None) -> Result:
    """Has a row judged."""
    waves = [clip.samples for clip in row.clips]
    verdicts = judge.judge_batch(waves, row.sample_rate)
    digits = np.array([verdict.digit == clip.digit for verdict, clip in zip(verdicts, row.clips, strict=True)])
    voices = np.array([verdict.speaker == clip.speaker for verdict, clip in zip(verdicts, row.clips, strict=True)])
    some = waves[:: max(1, len(waves) // SCORED_CLIPS)]
    signal = None if score is None else score.mean_signal(some, row.sample_rate)
    return Result(row.stage, digits, voices, verdicts, row.clips, signal)


def worst(right: np.ndarray, names: Sequence) -> str:
    """The name that comes off worst, with its share."""
    shares = {name: right[[other == name for other in names]].mean() for name in sorted(set(names))}
    name = min(shares, key=shares.get)
    return f"{name} {100 * shares[name]:.0f} %"


def table_line(result: Result) -> str:
    """One row of the printed table."""
    signal = "not available" if result.signal is None else f"{result.signal:.2f}"
    by_digit = worst(result.digits, [WORDS[clip.digit] for clip in result.clips])
    by_voice = worst(result.voices, [clip.speaker for clip in result.clips])
    digits, voices = (
        f"{100 * result.digits.mean():.1f} % ({by_digit})",
        f"{100 * result.voices.mean():.1f} % ({by_voice})",
    )
    return f"{result.stage:25s} | {len(result.clips):3d} | {digits:21s} | {voices:22s} | {signal}"


TABLE_HEAD = f"{'stage':25s} | of  | {'digits (worst)':21s} | {'voices (worst)':22s} | DNSMOS signal"
