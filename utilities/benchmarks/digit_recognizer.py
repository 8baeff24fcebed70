"""A small recognizer of spoken digits that can also answer "no word", for `digits.py`.

It is trained with augmentation, on recordings only, never on synthesized speech. A third of the recordings is also used
after resynthesis from mel spectrograms. Some examples are damaged (cut, mixed, blurred, muffled, noisy) and have the
label "no word", so that the recognizer does not find words in noise.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import keras
import librosa
import numpy as np
from scipy import signal
from scipy.ndimage import gaussian_filter1d

from myxtts.audio.files import load_samples
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram, log_mel_to_wav
from myxtts.config.rates import MODEL_SAMPLE_RATE

SAMPLE_RATE, N_FFT, HOP_LENGTH, NUM_MELS = 8000, 256, 80, 40
NUM_BINS = N_FFT // 2 + 1
WINDOW_FRAMES = 80
"""Length of the network's input, 0.8 s; 99 % of the trimmed recordings are shorter."""
SILENCE_DB, FLOOR_DB, SILENT_PEAK = 35, -50.0, 1e-4
NO_WORD = 10
SPOILT_SHARE, EPOCHS, BATCH_SIZE = 0.35, 16, 64
CHANNELS = (16, 32, 64, 96)
TEST_PLACEMENTS = (0.2, 0.5, 0.8)
"""Positions of a clip in the network's window (0: start, 1: end), over which predictions are averaged."""


def power_spectrum(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Trims audio to at most its loudest 0.8 s; returns the power spectrum, `(T, NUM_BINS)`. For silence, T is 0."""
    samples = np.asarray(samples, np.float32)
    if np.abs(samples).max(initial=0) < SILENT_PEAK:
        return np.zeros((0, NUM_BINS), np.float32)
    wave = librosa.resample(samples, orig_sr=sample_rate, target_sr=SAMPLE_RATE)
    wave, _ = librosa.effects.trim(wave, top_db=SILENCE_DB, frame_length=N_FFT, hop_length=HOP_LENGTH)
    power = np.abs(librosa.stft(wave / np.abs(wave).max(), n_fft=N_FFT, hop_length=HOP_LENGTH)).T ** 2
    total = np.concatenate([[0.0], np.cumsum(power.sum(axis=1))])
    start = int(np.argmax(total[WINDOW_FRAMES:] - total[:-WINDOW_FRAMES])) if len(power) > WINDOW_FRAMES else 0
    return power[start : start + WINDOW_FRAMES]


def place(spectra: Sequence[np.ndarray], shares: np.ndarray) -> np.ndarray:
    """Places spectra in silent windows `(B, WINDOW_FRAMES, NUM_BINS)` at the positions `shares` (0: start, 1: end)."""
    windows = np.zeros((len(spectra), WINDOW_FRAMES, NUM_BINS), np.float32)
    for window, spectrum, share in zip(windows, spectra, shares, strict=True):
        start = int(share * (WINDOW_FRAMES - len(spectrum)))
        window[start : start + len(spectrum)] = spectrum
    return windows


def features(power: np.ndarray) -> np.ndarray:
    """Returns mel levels `(B, WINDOW_FRAMES, NUM_MELS)`; 1 is the level of the loudest frames, and -1 is 50 dB less."""
    filters = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=N_FFT, n_mels=NUM_MELS, fmin=60, fmax=3900)
    mel = power @ filters.T
    loudest_db = np.sort(10 * np.log10(mel.sum(axis=-1) + 1e-9), axis=1)[:, -10:].mean(axis=1)
    below = 10 * np.log10(mel + 1e-9) - loudest_db[:, None, None]
    return (2 * np.clip(below, FLOOR_DB, 20) / -FLOOR_DB + 1).astype(np.float32)


def augmented(spectra: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Returns features of randomly placed, filtered and noisy spectra, with some bands and frames masked."""
    count = len(spectra)
    power = place(spectra, rng.random(count))
    knots_db = rng.normal(0, 3, (count, 6))
    curve_db = np.stack([np.interp(np.linspace(0, 5, NUM_BINS), np.arange(6), knots) for knots in knots_db])
    power = power * 10 ** (curve_db[:, None] / 10)
    # The phases estimated by Griffin-Lim make neighboring bins beat; so does reverberation.
    power *= np.exp(rng.uniform(0, 1, (count, 1, 1)) * rng.standard_normal(power.shape))
    power = gaussian_filter1d(power, rng.uniform(0.1, 0.8), axis=1)
    lengths = np.array([max(1, len(spectrum)) for spectrum in spectra])
    mel = features(with_noise(power, lengths, rng.uniform(5, 50, count), rng))
    for window in mel:
        start = rng.integers(0, NUM_MELS - 4)
        window[:, start : start + rng.integers(0, 5)] = -1
        start = rng.integers(0, WINDOW_FRAMES - 7)
        window[start : start + rng.integers(0, 8)] = -1
    return mel


def with_noise(power: np.ndarray, lengths: np.ndarray, snr_db: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Adds noise with a random slope over frequency; the noise is `snr_db` below the mean power of each clip."""
    shape = 10 ** (rng.uniform(-15, 5, (len(power), 1)) * np.linspace(0, 1, NUM_BINS) / 10)
    level = (power.sum(axis=(1, 2)) / lengths * 10 ** (-snr_db / 10))[:, None] * shape / shape.sum(axis=1)[:, None]
    return (power + level[:, None] * rng.standard_exponential(power.shape)).astype(np.float32)


def spoilt(power: np.ndarray, others: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Damages a word's power spectrum in one of eight ways, so that it is no word. Two ways use one of `others`."""
    other = others[rng.integers(len(others))]
    half, other_half = len(power) // 2, len(other) // 2
    match int(rng.integers(8)):
        case 0:  # the first or last part of a word
            kept = max(8, int(len(power) * rng.uniform(0.25, 0.6)))
            return power[:kept] if rng.random() < 0.5 else power[-kept:]
        case 1:  # halves of two words
            return np.concatenate([power[:half], other[other_half:]])[:WINDOW_FRAMES]
        case 2:
            return power[::-1]
        case 3:
            return gaussian_filter1d(power, rng.uniform(6, 15), axis=0)
        case 4:  # without formants
            return np.exp(gaussian_filter1d(np.log(power + 1e-9), rng.uniform(12, 32), axis=1))
        case 5:  # muffled
            edge = rng.uniform(10, 29)
            return power * 10 ** (-np.clip((np.arange(NUM_BINS) / edge - 1) * 6, 0, 5))
        case 6:
            return with_noise(power[None], np.array([len(power)]), -rng.uniform(5, 15, 1), rng)[0]
        case _:  # several words at once
            length = min(len(power), len(other))
            return power[:length] / power.sum() + other[:length] / other.sum()


def build_network() -> keras.Model:
    """Builds a convolutional network with logits of ten digits and `NO_WORD`."""
    mel = keras.layers.Input((WINDOW_FRAMES, NUM_MELS))
    x = keras.layers.Reshape((WINDOW_FRAMES, NUM_MELS, 1))(mel)
    for depth, channels in enumerate(CHANNELS):
        x = keras.layers.Conv2D(channels, 3 if depth else 5, 1 if depth else 2, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.95)(x))
        x = keras.layers.MaxPooling2D(2)(x) if depth else x
    x = keras.layers.Reshape((x.shape[1], -1))(x)
    x = keras.layers.Concatenate()([keras.layers.GlobalMaxPooling1D()(x), keras.layers.GlobalAveragePooling1D()(x)])
    return keras.Model(mel, keras.layers.Dense(NO_WORD + 1)(keras.layers.Dropout(0.3)(x)))


class DigitRecognizer:
    """Recognizes the digit in each clip of a list; can also answer that a clip has no word."""

    def __init__(self, network: keras.Model):
        self.network = network

    @classmethod
    def load_or_train(cls, data: Path, path: Path, indices: Collection[int], epochs: int = EPOCHS) -> "DigitRecognizer":
        """Loads the weights in `path`. If the file does not exist, calls `train` and saves the weights to `path`."""
        if path.exists():
            network = build_network()
            network.load_weights(path)
            return cls(network)
        recognizer = cls.train(data, indices, epochs)
        path.parent.mkdir(parents=True, exist_ok=True)
        recognizer.network.save_weights(path)
        return recognizer

    @classmethod
    def train(cls, data: Path, indices: Collection[int], epochs: int = EPOCHS, seed: int = 0) -> "DigitRecognizer":
        """Trains on the recordings `DIGIT_SPEAKER_INDEX.wav` with the given indices.

        Raises:
            FileNotFoundError: No such recording exists.
        """
        keras.utils.set_random_seed(seed)
        rng = np.random.default_rng(seed)
        spectra, words = [], []
        for number, file in enumerate(sorted(Path(data, "wavs").glob("[0-9]_*_*.wav"))):
            digit, _, index = file.stem.split("_")
            if int(index) not in indices:
                continue
            wave = load_samples(file)
            waves = [wave, through_griffin_lim(wave)] if number % 3 == 0 else [wave]
            spectra += [power_spectrum(one, MODEL_SAMPLE_RATE) for one in waves]
            words += [int(digit)] * len(waves)
        if not spectra:
            raise FileNotFoundError(f"{data} must have wavs/DIGIT_SPEAKER_INDEX.wav. None was found.")
        network, size = build_network(), min(BATCH_SIZE, max(1, len(spectra) // 6))
        steps = len(spectra) // size
        schedule = keras.optimizers.schedules.CosineDecay(
            1e-4, max(1, (epochs - 2) * steps), warmup_target=3e-3, warmup_steps=2 * steps
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.AdamW(schedule, weight_decay=1e-4), loss=loss, jit_compile=False)
        for _ in range(epochs):
            order = rng.permutation(len(spectra))
            for step in range(steps):
                rows = order[step * size : (step + 1) * size]
                bad = rng.random(size) < SPOILT_SHARE
                batch = [spoilt(spectra[row], spectra, rng) if b else spectra[row] for row, b in zip(rows, bad)]
                targets = np.array([NO_WORD if b else words[row] for row, b in zip(rows, bad)])
                network.train_on_batch(augmented(batch, rng), targets)
        return cls(network)

    def __call__(self, clips: Sequence[np.ndarray], sample_rate: int) -> list[int | None]:
        """Returns the digit in each clip `(S,)`; None for silence, or if no digit has a probability above 0.5."""
        spectra = [power_spectrum(clip, sample_rate) for clip in clips]
        heard: list[int | None] = []
        for start in range(0, len(spectra), BATCH_SIZE):
            some = spectra[start : start + BATCH_SIZE]
            logits = [self.network(features(place(some, np.full(len(some), p)))) for p in TEST_PLACEMENTS]
            chances = np.mean([keras.ops.convert_to_numpy(keras.ops.softmax(one)) for one in logits], axis=0)
            best = chances[:, :NO_WORD].argmax(axis=1)
            sure = chances[np.arange(len(some)), best] > 0.5
            heard += [int(b) if s and len(spectrum) else None for b, s, spectrum in zip(best, sure, some)]
        return heard


def through_griffin_lim(wave: np.ndarray) -> np.ndarray:
    """Resynthesizes a recording at `MODEL_SAMPLE_RATE` from its mel spectrogram by Griffin-Lim."""
    return log_mel_to_wav(np.asarray(MelSpectrogram(DVAE_MEL)(wave[None]))[0], num_iterations=20)


def damaged(waves: Sequence[np.ndarray], sample_rate: int) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yields `(kind of damage, damaged clips)`, first without damage, then from weak to strong damage."""
    rng = np.random.default_rng(0)
    yield "as recorded", list(waves)
    yield "mel and Griffin-Lim", [through_griffin_lim(wave) for wave in waves]
    for snr_db in (20, 10, 5, 0):
        noise = [np.sqrt(np.mean(wave**2) / 10 ** (snr_db / 10)) for wave in waves]
        yield f"noise, SNR {snr_db} dB", [wave + rng.normal(0, level, len(wave)) for wave, level in zip(waves, noise)]
    for edge_hz in (3000, 2000, 1000, 500):
        low = signal.butter(8, edge_hz, fs=sample_rate, output="sos")
        yield f"nothing above {edge_hz} Hz", [signal.sosfiltfilt(low, np.pad(wave, 200)) for wave in waves]
    yield "first half", [wave[: len(wave) // 2] for wave in waves]
    yield "backwards", [wave[::-1].copy() for wave in waves]
    yield "noise alone", [rng.normal(0, 0.1, len(wave)) for wave in waves]
