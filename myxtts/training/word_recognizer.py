"""Which of a few words is said, and in which of a few voices: a small network trained on the recordings at hand."""

import keras
import numpy as np

_FLOOR = 11.5
"""Natural logarithm of power, 50 dB: quieter than this below the loudest frames counts as silence."""
_LOUD_FRAMES = 10
_EDGE = 8.0
"""35 dB: quieter frames at either end are cut off."""
_WINDOW_QUANTILE = 0.99
"""Of the lengths of recordings, once cut: of longer ones the beginning is listened to."""
_CHANNELS = (16, 32, 64, 96)
_BATCH_SIZE = 64
_EPOCHS = 16
_LEAST_STEPS = 300
"""Of small sets, which go through more epochs."""
_PLACEMENTS = (0.2, 0.5, 0.8)
"""Where a clip is laid in the window to be recognised, as shares of the room; the answers are averaged."""


class WordRecognizer:
    """Recognises words and voices of log-mel spectrograms.

    Args:
        mels: Log-mels `(F, M)`, natural logarithms of power.
        words: What each says; any values.
        voices: Who says it.
        seed: Of weights, order and changes to the recordings; it fixes the result.
    """

    def __init__(self, mels, words, voices, seed=0):
        self.words, self.voices = sorted(set(words)), sorted(set(voices))
        levelled = [_levelled(mel) for mel in mels]
        share_audible = np.mean([clip.max(axis=0) > -_FLOOR for clip in levelled], axis=0)
        self._num_bands = 1 + int(np.flatnonzero(share_audible > 0.5)[-1])
        """Bands above are empty, as in recordings from telephones."""
        self._num_frames = int(np.quantile([len(clip) for clip in levelled], _WINDOW_QUANTILE))
        self._network = _network(self._num_frames, self._num_bands, (len(self.words), len(self.voices)), seed)
        self._train([self._fitted(clip) for clip in levelled], np.array([self.words.index(word) for word in words]),
                    np.array([self.voices.index(voice) for voice in voices]), np.random.default_rng(seed))

    def __call__(self, mels):
        """Probabilities of the words `(B, words)` and of the voices `(B, voices)`, in the order of `words` and `voices`."""
        clips = [self._fitted(_levelled(mel)) for mel in mels]
        windows = np.concatenate([self._laid_out(clips, [share] * len(clips)) for share in _PLACEMENTS])
        found = self._network.predict_on_batch(_features(windows))
        return [np.asarray(keras.ops.softmax(part)).reshape(len(_PLACEMENTS), len(clips), -1).mean(axis=0)
                for part in found]

    def share_right(self, mels, words, voices):
        """Share of recordings whose word and voice are both recognised."""
        of_words, of_voices = self(mels)
        right = [self.words[w] == word and self.voices[v] == voice for w, v, word, voice in zip(
            of_words.argmax(axis=1), of_voices.argmax(axis=1), words, voices)]
        return float(np.mean(right))

    def _train(self, clips, words, voices, rng):
        batch = min(_BATCH_SIZE, len(clips))
        steps = len(clips) // batch
        epochs = max(_EPOCHS, -(-_LEAST_STEPS // steps))
        warmup = epochs * steps // 8
        rate = keras.optimizers.schedules.CosineDecay(1e-4, epochs * steps - warmup, warmup_target=3e-3,
                                                      warmup_steps=warmup)
        losses = [keras.losses.SparseCategoricalCrossentropy(from_logits=True) for _ in range(2)]
        self._network.compile(keras.optimizers.AdamW(rate, weight_decay=1e-4), losses, jit_compile=False)
        for _ in range(epochs):
            order = rng.permutation(len(clips))
            for start in range(0, steps * batch, batch):
                rows = order[start:start + batch]
                windows = _changed(self._laid_out([clips[row] for row in rows], rng.random(batch)), rng)
                self._network.train_on_batch(_features(windows), [words[rows], voices[rows]])

    def _fitted(self, clip):
        return clip[:self._num_frames, :self._num_bands]

    def _laid_out(self, clips, shares):
        windows = np.full((len(clips), self._num_frames, clips[0].shape[1]), -_FLOOR, np.float32)
        for window, clip, share in zip(windows, clips, shares):
            start = round(share * (self._num_frames - len(clip)))
            window[start:start + len(clip)] = clip
        return windows


def _network(num_frames, num_bands, sizes, seed):
    x = inputs = keras.Input((num_frames, num_bands, 1))
    for depth, channels in enumerate(_CHANNELS):
        x = keras.layers.Conv2D(channels, 3 if depth else 5, 1 if depth else 2, padding="same", use_bias=False,
                                kernel_initializer=keras.initializers.HeNormal(seed + depth))(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.95)(x))
        if depth:
            x = keras.layers.MaxPooling2D(2, padding="same")(x)
    x = keras.layers.Reshape((x.shape[1], -1))(x)
    x = keras.layers.Concatenate()([keras.layers.GlobalMaxPooling1D()(x), keras.layers.GlobalAveragePooling1D()(x)])
    x = keras.layers.Dropout(0.3, seed=seed)(x)
    heads = [keras.layers.Dense(size, kernel_initializer=keras.initializers.HeNormal(seed + size))(x) for size in sizes]
    return keras.Model(inputs, heads)


def _levelled(mel):
    """A log-mel relative to its loudest frames, without the silence at its ends."""
    loudness = np.logaddexp.reduce(mel, axis=1)
    loud = np.flatnonzero(loudness > loudness.max() - _EDGE)
    return (mel[loud[0]:loud[-1] + 1] - np.sort(loudness)[-_LOUD_FRAMES:].mean()).astype(np.float32)


def _features(windows):
    return (np.clip(windows, -_FLOOR, 0) / _FLOOR * 2 + 1)[..., None]


def _changed(windows, rng):
    """The recordings as another microphone and room would have given them, since conversions sound like neither: equalised,
    with noise 8 to 50 dB below, blurred, and with masked stripes (SpecAugment, Park et al. 2019, section 2)."""
    count, frames, bands = windows.shape
    knots = rng.normal(0, 0.7, (count, 6))
    curves = np.stack([np.interp(np.linspace(0, 5, bands), np.arange(6), k) for k in knots])[:, None]
    windows = windows + curves.astype(np.float32)
    windows += rng.uniform(0, 0.7, (count, 1, 1)).astype(np.float32) * rng.standard_normal(windows.shape, np.float32)
    slope = rng.uniform(-3.5, 1.2, (count, 1, 1)) * np.linspace(0, 1, bands)
    noise = slope - np.log(bands) - rng.uniform(8, 50, (count, 1, 1)) * np.log(10) / 10
    noise = noise.astype(np.float32) + 0.3 * rng.standard_normal(windows.shape, np.float32)
    windows = np.logaddexp(windows, noise)
    for axis in (1, 2):
        weight = rng.uniform(0, 0.3, (count, 1, 1)) * (rng.random((count, 1, 1)) < 0.6)
        weight = weight.astype(np.float32)
        windows = windows * (1 - 2 * weight) + weight * (np.roll(windows, 1, axis) + np.roll(windows, -1, axis))
    for window in windows:
        for stripes, widest in ((window, frames // 10), (window.T, bands // 10)):
            width = rng.integers(0, widest + 1)
            start = rng.integers(0, len(stripes) - width + 1)
            stripes[start:start + width] = -_FLOOR
    return windows
