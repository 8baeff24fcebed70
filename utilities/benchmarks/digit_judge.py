"""A judge of spoken digits and of their speakers that also says when it hears no word, or nobody's voice.

It listens to what a voice model speaks after training on the Free Spoken Digit Dataset and says which digit it hears
and in whose voice. It never learns from what a model spoke, only from the recordings: as they are and by way of mel and
Griffin-Lim, changed as another microphone or room would change them, so that it forgives artifacts of synthesis; and
spoilt (`digit_damage`), so that it does not take for a word what is none. Two networks hear different features of a
clip, and the mean of their probabilities must exceed one half: where they disagree, the answer is none.

    python utilities/benchmarks/digit_judge.py --data ../shared/data/fsdd out.wav     # names what it hears

`digit_checks.py` says how far it can be trusted.
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import soundfile
import soxr
from scipy.ndimage import gaussian_filter1d

sys.path.insert(0, str(Path(__file__).resolve().parent))

from digit_damage import NO_WORD, UNSCORED, Clip, Damage  # noqa: E402  neighbors of this file
from digit_features import (  # noqa: E402
    NUM_CEPSTRA,
    NUM_LAGS,
    NUM_MELS,
    SAMPLE_RATE,
    WINDOW_FRAMES,
    augmented_views,
    place,
    power_spectrum,
    views,
)

from myxtts.audio.griffin_lim import log_mel_to_wav  # noqa: E402
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram  # noqa: E402
from myxtts.config.rates import MEL_FLOOR, MODEL_SAMPLE_RATE  # noqa: E402

# Where the clip stands in the window, as a share of the room left; the answers are averaged.
TEST_PLACEMENTS = (0.2, 0.5, 0.8)
CHANNELS = (16, 32, 64, 96)
TIME_CONVOLUTIONS = ((96, 5, 1), (96, 5, 2), (96, 5, 1), (192, 1, 1))
"""Channels, frames and stride of each."""
SPOILT_SHARE = 0.35
LIKELIER_THAN_NOT = 0.5
BATCH_SIZE = 64
DEFAULT_EPOCHS = 16
TRAIN_INDICES = range(15, 50)
HELD_OUT_INDICES = range(10, 15)
# Raise it when features or network change: saved judges of another version are trained anew.
FORMAT_VERSION = 2
SETTINGS_FILE = "judge.json"
WEIGHTS_FILE = "judge.weights.h5"


class Verdict(NamedTuple):
    """What the judge heard in one clip: `digit` or `speaker` is None for no word or nobody's voice, as in silence."""

    digit: int | None
    speaker: str | None
    digit_probability: float
    speaker_probability: float


class Recording(NamedTuple):
    """One real recording: `samples` `(S,)` float32 at `SAMPLE_RATE`, and who says what in it."""

    samples: np.ndarray
    digit: int
    speaker: str


def load_recordings(
    fsdd_dir: Path, *, speakers: Collection[str] | None = None, indices: Collection[int] | None = None
) -> list[Recording]:
    """Reads `wavs/DIGIT_SPEAKER_INDEX.wav` of the given speakers and indices (None: of all), sorted by name.

    Raises:
        FileNotFoundError: There is no such recording.
    """
    recordings = []
    for path in sorted(Path(fsdd_dir, "wavs").glob("[0-9]_*_*.wav")):
        digit, speaker, index = path.stem.split("_")
        digit, index = int(digit), int(index)
        if (speakers is None or speaker in speakers) and (indices is None or index in indices):
            recordings.append(Recording(to_judge_rate(*soundfile.read(path, dtype="float32")), digit, speaker))
    if not recordings:
        raise FileNotFoundError(
            f"{fsdd_dir} must hold wavs/DIGIT_SPEAKER_INDEX.wav for the speakers and indices asked for. "
            "None was found. Give the folder of the Free Spoken Digit Dataset."
        )
    return recordings


def to_judge_rate(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Mixes `(S,)` or `(S, channels)` down to mono and resamples it to `SAMPLE_RATE`."""
    samples = np.asarray(samples, dtype=np.float32)
    if not np.isfinite(samples).all():
        raise ValueError("samples must be finite numbers. Received NaN or infinity. Check the synthesis.")
    if samples.ndim == 2:
        samples = samples.mean(axis=1)
    return samples if sample_rate == SAMPLE_RATE else soxr.resample(samples, sample_rate, SAMPLE_RATE)


def build_network(num_voices: int, seed: int) -> keras.Model:
    """Two networks side by side, one for each of `views`; of each, one linear head for words, one for voices.

    The first convolves over time and mel; the second over time only, pooled to mean, deviation and maximum (after
    Snyder et al., "X-vectors", 2018). The last unit of a head stands for no word, or no known voice.
    """
    seeds = iter(range(100 * seed, 100 * seed + 100))

    def seeded() -> dict:
        return {"kernel_initializer": keras.initializers.HeNormal(seed=next(seeds))}

    def normalized(x):
        return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.95)(x))

    def heads(x) -> list:
        x = keras.layers.Dropout(0.3, seed=next(seeds))(x)
        return [keras.layers.Dense(size + 1, **seeded())(x) for size in (NO_WORD, num_voices)]

    mel = keras.layers.Input((WINDOW_FRAMES, NUM_MELS))
    x = keras.layers.Reshape((WINDOW_FRAMES, NUM_MELS, 1))(mel)
    for depth, channels in enumerate(CHANNELS):
        kernel_size, strides = (3, 1) if depth else (5, 2)
        x = normalized(
            keras.layers.Conv2D(channels, kernel_size, strides, padding="same", use_bias=False, **seeded())(x)
        )
        if depth:
            x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.Reshape((x.shape[1], -1))(x)
    of_mel = keras.layers.Concatenate()(
        [keras.layers.GlobalMaxPooling1D()(x), keras.layers.GlobalAveragePooling1D()(x)]
    )

    cepstra = keras.layers.Input((WINDOW_FRAMES, NUM_CEPSTRA + NUM_LAGS))
    x = cepstra
    for channels, kernel_size, strides in TIME_CONVOLUTIONS:
        x = normalized(
            keras.layers.Conv1D(channels, kernel_size, strides, padding="same", use_bias=False, **seeded())(x)
        )
    mean = keras.layers.GlobalAveragePooling1D()(x)
    mean_square = keras.layers.GlobalAveragePooling1D()(keras.ops.square(x))
    deviation = keras.ops.sqrt(keras.ops.maximum(mean_square - keras.ops.square(mean), 0) + 1e-4)
    of_cepstra = keras.layers.Concatenate()([mean, deviation, keras.layers.GlobalMaxPooling1D()(x)])
    return keras.Model([mel, cepstra], heads(of_mel) + heads(of_cepstra))


def training_settings(seed: int, epochs: int, **subsets: Collection | None) -> dict:
    """What, with the recordings, determines a trained judge, in JSON's types."""
    chosen = {name: None if subset is None else sorted(subset) for name, subset in subsets.items()}
    return {"format": FORMAT_VERSION, "seed": seed, "epochs": epochs, **chosen}


class DigitJudge:
    """Names the digit and the speaker of a clip. Made by `train`, `load` or `load_or_train`."""

    def __init__(self, network: keras.Model, speakers: Sequence[str], settings: dict):
        self.network = network
        self.speakers = tuple(speakers)
        self.settings = settings

    @classmethod
    def train(
        cls,
        fsdd_dir: Path,
        *,
        seed: int = 0,
        speakers: Collection[str] | None = None,
        indices: Collection[int] | None = None,
        epochs: int = DEFAULT_EPOCHS,
    ) -> "DigitJudge":
        """Trains on real recordings; see `load_recordings` for `speakers` and `indices`. The seed fixes the result."""
        recordings = load_recordings(fsdd_dir, speakers=speakers, indices=indices)
        names = sorted({recording.speaker for recording in recordings})
        settings = training_settings(seed, epochs, speakers=speakers, indices=indices)
        rng = np.random.default_rng(seed)
        whole, broken = training_clips(recordings, names, rng)
        clips, damage = whole + broken, Damage(whole, len(names), rng)

        network = build_network(len(names), seed)
        batch_size = min(BATCH_SIZE, max(1, len(clips) // 6))
        steps_per_epoch = len(clips) // batch_size
        decay_steps = max(1, (epochs - 2) * steps_per_epoch)
        learning_rate = keras.optimizers.schedules.CosineDecay(
            1e-4, decay_steps, warmup_target=3e-3, warmup_steps=2 * steps_per_epoch
        )
        network.compile(
            keras.optimizers.AdamW(learning_rate, weight_decay=1e-4),
            loss=[
                keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=UNSCORED) for _ in range(4)
            ],
            jit_compile=False,
        )
        for _ in range(epochs):
            order = rng.permutation(len(clips))
            for step in range(steps_per_epoch):
                batch = [clips[row] for row in order[step * batch_size : (step + 1) * batch_size]]
                batch = [damage(c) if c.word < NO_WORD and rng.random() < SPOILT_SHARE else c for c in batch]
                words, voices = np.array([clip.word for clip in batch]), np.array([clip.voice for clip in batch])
                features = augmented_views([clip.power for clip in batch], rng)
                network.train_on_batch(features, [words, voices, words, voices])
        return cls(network, names, settings)

    @classmethod
    def load_or_train(
        cls,
        fsdd_dir: Path,
        folder: Path,
        *,
        seed: int = 0,
        indices: Collection[int] | None = None,
        epochs: int = DEFAULT_EPOCHS,
    ) -> "DigitJudge":
        """Loads the judge saved in `folder` if trained with these settings; else trains it and saves it there."""
        if Path(folder, SETTINGS_FILE).exists():
            saved = json.loads(Path(folder, SETTINGS_FILE).read_text(encoding="utf-8"))
            if saved["settings"] == training_settings(seed, epochs, speakers=None, indices=indices):
                return cls.load(folder)
        judge = cls.train(fsdd_dir, seed=seed, indices=indices, epochs=epochs)
        judge.save(folder)
        return judge

    def save(self, folder: Path) -> None:
        """Writes weights and settings into `folder`, which is made when it is not there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # The settings are what marks a saved judge as whole: gone before the weights change, back after.
        Path(folder, SETTINGS_FILE).unlink(missing_ok=True)
        self.network.save_weights(folder / WEIGHTS_FILE)
        saved = {"names": self.speakers, "settings": self.settings}
        Path(folder, SETTINGS_FILE).write_text(json.dumps(saved, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "DigitJudge":
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: No judge was saved in `folder`.
        """
        saved = json.loads(Path(folder, SETTINGS_FILE).read_text(encoding="utf-8"))
        network = build_network(len(saved["names"]), saved["settings"]["seed"])
        network.load_weights(Path(folder, WEIGHTS_FILE))
        return cls(network, saved["names"], saved["settings"])

    def judge(self, samples: np.ndarray, sample_rate: int) -> Verdict:
        """Hears one clip: `samples` `(S,)` or `(S, channels)` float in [-1, 1], `sample_rate` in Hz."""
        return self.judge_batch([samples], sample_rate)[0]

    def judge_batch(self, clips: Sequence[np.ndarray], sample_rate: int) -> list[Verdict]:
        """Hears clips of one sample rate; a clip's verdict does not depend on the others.

        Raises:
            ValueError: A clip holds NaN or infinity.
        """
        spectra = [power_spectrum(to_judge_rate(clip, sample_rate)) for clip in clips]
        verdicts = [Verdict(None, None, 0.0, 0.0)] * len(clips)
        audible = [row for row, spectrum in enumerate(spectra) if len(spectrum)]
        for start in range(0, len(audible), BATCH_SIZE):
            rows = audible[start : start + BATCH_SIZE]
            word_probabilities, voice_probabilities = self._probabilities([spectra[row] for row in rows])
            for row, words, voices in zip(rows, word_probabilities, voice_probabilities, strict=True):
                digit, digit_probability = likely(words, range(NO_WORD))
                speaker, speaker_probability = likely(voices, self.speakers)
                verdicts[row] = Verdict(digit, speaker, digit_probability, speaker_probability)
        return verdicts

    def _probabilities(self, spectra: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Of each word `(B, 11)` and of each voice `(B, num_voices + 1)`: the mean of both networks and all places."""
        sums = [0.0] * 4
        for placement in TEST_PLACEMENTS:
            starts = [int(placement * (WINDOW_FRAMES - len(spectrum))) for spectrum in spectra]
            logits = self.network(views(place(spectra, starts)), training=False)
            sums = [total + keras.ops.softmax(head) for total, head in zip(sums, logits, strict=True)]
        words, voices, other_words, other_voices = (keras.ops.convert_to_numpy(total) for total in sums)
        count = 2 * len(TEST_PLACEMENTS)
        return [(words + other_words) / count, (voices + other_voices) / count]


def likely(probabilities: np.ndarray, names: Sequence) -> tuple[Any, float]:
    """The likeliest of `names`, or None where it is not likelier than not, and its probability."""
    best = int(probabilities[: len(names)].argmax())
    probability = float(probabilities[best])
    return (names[best], probability) if probability > LIKELIER_THAN_NOT else (None, probability)


def log_mel(samples: np.ndarray) -> np.ndarray:
    """The log-mel `(F, 80)` that XTTS's discrete VAE works on, of a clip at `SAMPLE_RATE`."""
    padded = np.pad(samples, SAMPLE_RATE // 20)
    resampled = soxr.resample(padded.astype(np.float32), SAMPLE_RATE, MODEL_SAMPLE_RATE)
    return keras.ops.convert_to_numpy(dvae_mel()(resampled[None]))[0]


@cache
def dvae_mel() -> MelSpectrogram:
    return MelSpectrogram(DVAE_MEL)


def mel_to_spectrum(mel: np.ndarray) -> np.ndarray:
    """`power_spectrum` of what Griffin-Lim makes of a log-mel; few iterations leave more of its artifacts."""
    return power_spectrum(to_judge_rate(log_mel_to_wav(mel, num_iterations=20), MODEL_SAMPLE_RATE))


def training_clips(
    recordings: Sequence[Recording], names: Sequence[str], rng: np.random.Generator
) -> tuple[list[Clip], list[Clip]]:
    """The recordings and, of every third, a copy through mel and Griffin-Lim; of every eighth, with the mel blurred."""
    whole, broken = [], []
    for number, recording in enumerate(recordings):
        voice = names.index(recording.speaker)
        whole.append(Clip(power_spectrum(recording.samples), recording.digit, voice))
        copied, spoilt = number % 3 == 0, number % 8 == 0
        mel = log_mel(recording.samples) if copied or spoilt else None
        if copied:
            whole.append(Clip(mel_to_spectrum(mel), recording.digit, voice))
        if spoilt and rng.random() < 0.5:
            in_time = gaussian_filter1d(np.exp(mel), rng.uniform(5, 12), axis=0)
            broken.append(Clip(mel_to_spectrum(np.log(in_time + MEL_FLOOR)), NO_WORD, UNSCORED))
        elif spoilt:
            in_frequency = gaussian_filter1d(mel, rng.uniform(6, 15), axis=1)
            broken.append(Clip(mel_to_spectrum(in_frequency), NO_WORD, len(names)))
    return whole, broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is heard in each file; exit code 2 for what cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Free Spoken Digit Dataset")
    parser.add_argument("--cache", type=Path, default=Path(".bench/digits/judge"), help="folder of the trained judge")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("wavs", nargs="+", type=Path, help="audio files to hear")
    options = parser.parse_args(arguments)
    try:
        judge = DigitJudge.load_or_train(options.data, options.cache, seed=options.seed, indices=TRAIN_INDICES)
        for wav in options.wavs:
            verdict = judge.judge(*soundfile.read(wav, dtype="float32"))
            digit = "no word" if verdict.digit is None else f"{verdict.digit} ({verdict.digit_probability:.0%})"
            voice = f"{verdict.speaker or 'no known voice'} ({verdict.speaker_probability:.0%})"
            print(f"{wav}: {digit}, {voice}")
    except (FileNotFoundError, soundfile.LibsndfileError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
