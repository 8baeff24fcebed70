"""A recording in another voice of the same set, from what that voice has said, without training.

Both ways keep the timing of the recording. One moves every mel band to the other voice's mean and spread, which keeps the
word and about half of the voice; the other puts in place of each frame the nearest frames of the other voice (kNN-VC, Baas et
al. 2023, on cepstra instead of learnt features), which keeps the voice and most words. Which of the results is fit for use
is for a recogniser to say.
"""

import numpy as np
import scipy.fft

WAYS = ("shifted", "nearest", "between")
"""Names of what `VoiceConverter.convert` gives; `between` is the mean of the other two."""
_FLOOR = 11.5
"""Natural logarithm of power, 50 dB: what is further below a recording's loudest value is not listened to."""
_CEPSTRA = 16
_LEVEL_WEIGHT = 0.6
_CONTEXT_FRAMES = 3
_CONTEXT_DECAY = 0.2
_NEIGHBOURS = 4
_LEAST_SPREAD = 1e-3


class VoiceConverter:
    """Converts between the voices of a set.

    Args:
        mels: `{voice: log-mels (F, M)}`, natural logarithms of power, all that each voice has said.
    """

    def __init__(self, mels):
        loudest = max(mel.max() for clips in mels.values() for mel in clips)
        audible = np.max([mel.max(axis=0) for clips in mels.values() for mel in clips], axis=0) > loudest - _FLOOR
        self._num_bands = 1 + int(np.flatnonzero(audible)[-1])
        """Bands above are empty, as in recordings from telephones."""
        self._voices = {voice: self._statistics(clips) for voice, clips in mels.items()}
        self._pools = {}
        for voice, clips in mels.items():
            self._pools[voice] = np.concatenate([self._places(mel, voice) for mel in clips]), np.concatenate(clips)

    def convert(self, mel, source, target):
        """A log-mel `(F, M)` of voice `source` in voice `target`: `{way: (F, M)}`."""
        shifted, nearest = self._shifted(mel, source, target), self._nearest(mel, source, target)
        return dict(zip(WAYS, (shifted, nearest, (shifted + nearest) / 2)))

    def _statistics(self, clips):
        """Mean and spread of the bands, and of the cepstra of what is not silence."""
        cepstra = [self._cepstra(mel) for mel in clips]
        loud = np.concatenate([c[c[:, 0] >= np.quantile(c[:, 0], 0.25)] for c in cepstra])
        return [(x.mean(axis=0), np.maximum(x.std(axis=0), _LEAST_SPREAD)) for x in (np.concatenate(clips), loud)]

    def _cepstra(self, mel):
        bands = np.maximum(mel[:, :self._num_bands], mel.max() - _FLOOR)
        return scipy.fft.dct(bands, norm="ortho", axis=1)[:, :_CEPSTRA]

    def _places(self, mel, voice):
        """Where each frame lies among what the voice says: cepstra in units of its own spread, with their neighbours."""
        mean, spread = self._voices[voice][1]
        cepstra = (self._cepstra(mel) - mean) / spread
        cepstra[:, 0] *= _LEVEL_WEIGHT
        padded = np.pad(cepstra, ((_CONTEXT_FRAMES, _CONTEXT_FRAMES), (0, 0)), mode="edge")
        offsets = np.arange(-_CONTEXT_FRAMES, _CONTEXT_FRAMES + 1)
        weights = 1 / (1 + _CONTEXT_DECAY * np.abs(offsets))
        return np.concatenate([weight * padded[start:start + len(mel)] for start, weight in enumerate(weights)],
                              axis=1).astype(np.float32)

    def _shifted(self, mel, source, target):
        (from_mean, from_spread), (to_mean, to_spread) = self._voices[source][0], self._voices[target][0]
        return (mel - from_mean) / from_spread * to_spread + to_mean

    def _nearest(self, mel, source, target):
        places, frames = self._pools[target]
        asked = self._places(mel, source)
        distances = np.square(places).sum(axis=1) - 2 * asked @ places.T  # of each row, but for a constant
        neighbours = min(_NEIGHBOURS, len(frames))
        nearest = np.argpartition(distances, neighbours - 1, axis=1)[:, :neighbours]
        return frames[nearest].mean(axis=1)
