"""Speech that is no longer a word, or no longer anybody's voice: what the judge of spoken digits learns to reject.

A judge that knows ten words and nothing else hears one of them in anything. So a part of what it learns from is spoilt
recordings, in the spectrum: each kind of damage says what is lost by it. Damage so slight that a listener might still
understand is left out: there the judge finds a limit by itself.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter1d

sys.path.insert(0, str(Path(__file__).resolve().parent))

from digit_features import NUM_BINS, SAMPLE_RATE, WINDOW_FRAMES, add_noise  # noqa: E402  a neighbor of this file

UNSCORED = -1
"""Label of what cannot be said of a clip, and is not learned from it."""
NO_WORD = 10
SIBILANT_DIGITS = (6, 7)
SHORTEST_FRAMES = 8
BIN_HZ = SAMPLE_RATE / 2 / (NUM_BINS - 1)


class Clip(NamedTuple):
    """Power spectrum `(T, NUM_BINS)`, digit or `NO_WORD`, index of the voice or, for no known one, their number."""

    power: np.ndarray
    word: int
    voice: int


class Damage:
    """Spoils clips at random, each with others of the same set at hand."""

    def __init__(self, clips: Sequence[Clip], num_voices: int, rng: np.random.Generator):
        self.clips, self.no_voice, self.rng = clips, num_voices, rng
        self._by_voice = {v: [c for c in clips if c.voice == v] for v in range(num_voices)}
        self._by_word = {w: [c for c in clips if c.word == w] for w in range(NO_WORD)}
        self.kinds: list[tuple[float, Callable[[Clip], Clip]]] = [
            (2.0, self.truncated),
            (1.5, self.halves),
            (1.0, self.scrambled),
            (1.0, self.smeared),
            (1.0, self.without_formants),
            (1.0, self.muffled),
            (1.0, self.without_sibilants),
            (1.0, self.in_noise),
            (0.5, self.babble),
            (0.5, self.noise),
            (2.0, self.other_pitch),
            (2.0, self.between_voices),
        ]
        self._shares = np.array([share for share, _ in self.kinds])
        self._shares /= self._shares.sum()

    def __call__(self, clip: Clip) -> Clip:
        """One kind of damage, drawn at random."""
        return self.kinds[self.rng.choice(len(self.kinds), p=self._shares)][1](clip)

    def _another(self, clips, differs):
        """A random one of `clips` for which `differs`, or None after a few tries."""
        for _ in range(20):
            other = clips[self.rng.integers(len(clips))]
            if differs(other):
                return other
        return None

    def truncated(self, clip: Clip) -> Clip:
        """The first or the last quarter to three fifths of a word."""
        kept = max(SHORTEST_FRAMES, int(len(clip.power) * self.rng.uniform(0.25, 0.6)))
        return Clip(clip.power[:kept] if self.rng.random() < 0.5 else clip.power[-kept:], NO_WORD, UNSCORED)

    def halves(self, clip: Clip) -> Clip:
        """How one word begins and another of the same voice ends."""
        other = self._another(self._by_voice[clip.voice], lambda other: other.word != clip.word)
        if other is None:
            return self.scrambled(clip)
        share = self.rng.uniform(0.4, 0.6)
        first, last = clip.power[: int(share * len(clip.power))], other.power[int(share * len(other.power)) :]
        return Clip(np.concatenate([first, last])[:WINDOW_FRAMES], NO_WORD, clip.voice)

    def scrambled(self, clip: Clip) -> Clip:
        """Backwards, or three pieces of it in another order."""
        if self.rng.random() < 0.5:
            return Clip(clip.power[::-1], NO_WORD, clip.voice)
        pieces = np.array_split(clip.power, 3)
        order = ((1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0))[self.rng.integers(4)]
        return Clip(np.concatenate([pieces[place] for place in order]), NO_WORD, clip.voice)

    def smeared(self, clip: Clip) -> Clip:
        """Blurred over 60 to 150 ms: consonants drown in the vowels beside them."""
        return Clip(gaussian_filter1d(clip.power, self.rng.uniform(6, 15), axis=0), NO_WORD, UNSCORED)

    def without_formants(self, clip: Clip) -> Clip:
        """Its envelope blurred over 400 to 1000 Hz."""
        level = np.log(clip.power + 1e-9)
        blurred = gaussian_filter1d(level, self.rng.uniform(400, 1000) / BIN_HZ, axis=1)
        return Clip(np.exp(blurred), NO_WORD, self.no_voice)

    def muffled(self, clip: Clip) -> Clip:
        """Nothing above 300 to 900 Hz; of words with an s, nothing above 2 kHz is enough."""
        sibilant = clip.word in SIBILANT_DIGITS
        edge_hz = self.rng.uniform(300, 2000 if sibilant else 900)
        loss_db = np.clip((np.arange(NUM_BINS) * BIN_HZ / edge_hz - 1) * 60, 0, 50)
        voice = self.no_voice if edge_hz < 900 else UNSCORED
        return Clip((clip.power * 10 ** (-loss_db / 10)).astype(np.float32), NO_WORD, voice)

    def without_sibilants(self, clip: Clip) -> Clip:
        """ "Six" and "seven" with their s gone; where none can be heard, as in recordings cut short, truncated."""
        others = [other for digit in SIBILANT_DIGITS for other in self._by_word[digit]]
        if clip.word not in SIBILANT_DIGITS and others:
            clip = others[self.rng.integers(len(others))]
        edge = int(2000 / BIN_HZ)
        high = clip.power[:, edge:].sum(axis=1) / (clip.power.sum(axis=1) + 1e-9)
        sibilant = (high > 0.4) & (clip.power.sum(axis=1) > 1e-3 * clip.power.sum(axis=1).max())
        if sibilant.sum() < 5:
            return self.truncated(clip)
        quieter = 10 ** (-self.rng.uniform(20, 50) / 10)
        return Clip((clip.power * np.where(sibilant, quieter, 1)[:, None]).astype(np.float32), NO_WORD, clip.voice)

    def in_noise(self, clip: Clip) -> Clip:
        """Noise 5 to 15 dB above the voice."""
        length, snr_db = np.array([len(clip.power)]), -self.rng.uniform(5, 15, 1)
        return Clip(add_noise(clip.power[None], length, snr_db, self.rng)[0], NO_WORD, self.no_voice)

    def babble(self, clip: Clip) -> Clip:
        """Three words at once."""
        total = np.zeros((WINDOW_FRAMES, NUM_BINS), np.float32)
        longest = 0
        for _ in range(3):
            other = self.clips[self.rng.integers(len(self.clips))].power
            longest = max(longest, len(other))
            total[: len(other)] += other / (other.sum() + 1e-9)
        return Clip(total[:longest] * 1e3, NO_WORD, self.no_voice)

    def noise(self, clip: Clip) -> Clip:
        """No voice at all: noise of random color and envelope, as long as the clip."""
        frames = np.linspace(0, 5, len(clip.power))
        envelope_db = np.interp(frames, np.arange(6), self.rng.normal(0, 8, 6))[:, None]
        color_db = np.interp(np.linspace(0, 5, NUM_BINS), np.arange(6), self.rng.normal(0, 10, 6))
        power = 10 ** ((envelope_db + color_db) / 10) * self.rng.standard_exponential(clip.power.shape)
        return Clip(power.astype(np.float32), NO_WORD, self.no_voice)

    def other_pitch(self, clip: Clip) -> Clip:
        """Played 2.5 to 7 semitones too high or too low, at its own speed: somebody else."""
        ratio = 2 ** (self.rng.choice([-1, 1]) * self.rng.uniform(2.5, 7) / 12)
        places = np.arange(NUM_BINS) / ratio
        low = np.minimum(places.astype(int), NUM_BINS - 2)
        part = np.minimum(places - low, 1).astype(np.float32)
        power = clip.power[:, low] * (1 - part) + clip.power[:, low + 1] * part
        if ratio < 1:
            power[:, places > NUM_BINS - 1] = 1e-6 * clip.power.max()
        return Clip(power, UNSCORED, self.no_voice)

    def between_voices(self, clip: Clip) -> Clip:
        """The geometric mean of two voices that say the same word, stretched to one length: nobody's."""
        other = self._another(self._by_word[clip.word], lambda other: other.voice != clip.voice)
        if other is None:
            return self.other_pitch(clip)
        places = np.linspace(0, len(other.power) - 1, len(clip.power)).round().astype(int)
        share = self.rng.uniform(0.4, 0.6)
        level = (1 - share) * np.log(clip.power + 1e-9) + share * np.log(other.power[places] + 1e-9)
        return Clip(np.exp(level).astype(np.float32), UNSCORED, self.no_voice)
