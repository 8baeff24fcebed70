"""A judge of spoken digits and of their speakers, trained on real recordings only.

It listens to what a voice model speaks after training on the Free Spoken Digit Dataset and says which digit it hears
and in whose voice. It never learns from a synthesized clip, only from the recordings, changed as another microphone or
room would change them (equalization, noise, blur), so that it forgives artifacts of synthesis but not a wrong digit.

    python utilities/benchmarks/digit_judge.py --data shared/data/fsdd             # held-out accuracies
    python utilities/benchmarks/digit_judge.py --data shared/data/fsdd out.wav     # names what it hears
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import soundfile
import soxr

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_extra import import_extra  # noqa: E402  neighbors of this file
from digit_features import (  # noqa: E402
    NUM_MELS,
    SAMPLE_RATE,
    WINDOW_FRAMES,
    augmented_features,
    mel_filters,
    mel_to_features,
    place,
    power_spectrum,
)

# Where the clip stands in the window, as a share of the room left; the answers are averaged.
TEST_PLACEMENTS = (0.2, 0.5, 0.8)
CHANNELS = (16, 32, 64, 96)
BATCH_SIZE = 64
DEFAULT_EPOCHS = 16
TRAIN_INDICES = range(15, 50)
HELD_OUT_INDICES = range(10, 15)
# Raise it when features or network change: saved judges of another version are trained anew.
FORMAT_VERSION = 1
SETTINGS_FILE = "judge.json"
WEIGHTS_FILE = "judge.weights.h5"


class Verdict(NamedTuple):
    """What the judge heard in one clip. `digit` and `speaker` are None, with probability 0, when the clip is silent."""

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


def build_network(num_speakers: int, seed: int) -> keras.Model:
    """Four convolutions over time and mel, pooled over time, then one linear head for the digits, one for speakers."""
    seeds = iter(range(100 * seed, 100 * seed + 100))

    def seeded() -> dict:
        return {"kernel_initializer": keras.initializers.HeNormal(seed=next(seeds))}

    x = inputs = keras.layers.Input((WINDOW_FRAMES, NUM_MELS, 1))
    for depth, channels in enumerate(CHANNELS):
        kernel_size, strides = (3, 1) if depth else (5, 2)
        x = keras.layers.Conv2D(channels, kernel_size, strides, padding="same", use_bias=False, **seeded())(x)
        x = keras.layers.BatchNormalization(momentum=0.95)(x)
        x = keras.layers.ReLU()(x)
        if depth:
            x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.Reshape((x.shape[1], -1))(x)
    x = keras.layers.Concatenate()([keras.layers.GlobalMaxPooling1D()(x), keras.layers.GlobalAveragePooling1D()(x)])
    x = keras.layers.Dropout(0.3, seed=next(seeds))(x)
    heads = [keras.layers.Dense(size, **seeded())(x) for size in (10, num_speakers)]
    return keras.Model(inputs, heads)


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
        spectra = [power_spectrum(recording.samples) for recording in recordings]
        digits = np.array([recording.digit for recording in recordings])
        voices = np.array([names.index(recording.speaker) for recording in recordings])

        network = build_network(len(names), seed)
        batch_size = min(BATCH_SIZE, len(recordings))
        steps_per_epoch = len(recordings) // batch_size
        decay_steps = max(1, (epochs - 2) * steps_per_epoch)
        learning_rate = keras.optimizers.schedules.CosineDecay(
            1e-4, decay_steps, warmup_target=3e-3, warmup_steps=2 * steps_per_epoch
        )
        network.compile(
            keras.optimizers.AdamW(learning_rate, weight_decay=1e-4),
            loss=[keras.losses.SparseCategoricalCrossentropy(from_logits=True) for _ in range(2)],
            jit_compile=False,
        )
        rng = np.random.default_rng(seed)
        for _ in range(epochs):
            order = rng.permutation(len(recordings))
            for step in range(steps_per_epoch):
                rows = order[step * batch_size : (step + 1) * batch_size]
                features = augmented_features([spectra[row] for row in rows], rng)
                network.train_on_batch(features, [digits[rows], voices[rows]])
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
            digit_probabilities, speaker_probabilities = self._probabilities([spectra[row] for row in rows])
            for row, digits, speakers in zip(rows, digit_probabilities, speaker_probabilities, strict=True):
                digit, speaker = int(digits.argmax()), int(speakers.argmax())
                verdicts[row] = Verdict(digit, self.speakers[speaker], float(digits[digit]), float(speakers[speaker]))
        return verdicts

    def _probabilities(self, spectra: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Probabilities of the digits `(B, 10)` and of the speakers `(B, num_speakers)`."""
        sums = [0.0, 0.0]
        for placement in TEST_PLACEMENTS:
            starts = [int(placement * (WINDOW_FRAMES - len(spectrum))) for spectrum in spectra]
            logits = self.network(mel_to_features(place(spectra, starts) @ mel_filters()), training=False)
            sums = [total + keras.ops.softmax(head) for total, head in zip(sums, logits, strict=True)]
        return [keras.ops.convert_to_numpy(total) / len(TEST_PLACEMENTS) for total in sums]


def griffin_lim_copy(samples: np.ndarray) -> np.ndarray:
    """A clip at `SAMPLE_RATE` after the way to an 80-band mel spectrogram and back by Griffin-Lim, at 22 050 Hz.

    What a faultless voice model would give by that way; the mel is the one XTTS's discrete VAE works on.
    """
    librosa = import_extra("librosa")
    samples = soxr.resample(samples, SAMPLE_RATE, 22050)
    filters = librosa.filters.mel(sr=22050, n_fft=1024, n_mels=80, fmin=0, fmax=8000, htk=True, norm="slaney")
    mel = np.maximum(filters @ np.abs(librosa.stft(samples, n_fft=1024, hop_length=256)) ** 2, 1e-5)
    magnitude = np.sqrt(np.maximum(np.linalg.pinv(filters) @ mel, 0))
    return librosa.griffinlim(magnitude, n_iter=60, hop_length=256, n_fft=1024, length=len(samples), random_state=0)


def quiet_copy(samples: np.ndarray) -> np.ndarray:
    """A clip at `SAMPLE_RATE` at gain 0.3, rounded to 16 bits, with 200 ms of silence on both sides."""
    return np.pad(np.round(0.3 * samples * 32767) / 32767, SAMPLE_RATE // 5).astype(np.float32)


def print_held_out_accuracies(judge: DigitJudge, recordings: Sequence[Recording]) -> None:
    clips = [recording.samples for recording in recordings]
    conditions = {
        "as recorded": (clips, SAMPLE_RATE),
        "gain 0.3, 16 bit, silence": ([quiet_copy(clip) for clip in clips], SAMPLE_RATE),
        "mel -> Griffin-Lim, 22.05 kHz": ([griffin_lim_copy(clip) for clip in clips], 22050),
    }
    print(f"{len(recordings)} held-out recordings")
    for name, (copies, sample_rate) in conditions.items():
        pairs = list(zip(judge.judge_batch(copies, sample_rate), recordings, strict=True))
        digits = np.mean([verdict.digit == recording.digit for verdict, recording in pairs])
        speakers = np.mean([verdict.speaker == recording.speaker for verdict, recording in pairs])
        print(f"{name:30s} digits {digits:7.2%}   speakers {speakers:7.2%}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hears spoken digits; without wavs, prints its held-out accuracy.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the Free Spoken Digit Dataset")
    parser.add_argument("--cache", type=Path, help="folder to keep the trained judge in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("wavs", nargs="*", type=Path, help="audio files to hear")
    options = parser.parse_args(arguments)
    # A judge of other clips learns from every recording; one that is measured, from those it is not measured on.
    indices = None if options.wavs else TRAIN_INDICES
    try:
        if options.cache is None:
            judge = DigitJudge.train(options.data, seed=options.seed, indices=indices)
        else:
            judge = DigitJudge.load_or_train(options.data, options.cache, seed=options.seed, indices=indices)
        for wav in options.wavs:
            verdict = judge.judge(*soundfile.read(wav, dtype="float32"))
            digit = f"{verdict.digit} ({verdict.digit_probability:.0%})"
            print(f"{wav}: {digit}, {verdict.speaker} ({verdict.speaker_probability:.0%})")
        if not options.wavs:
            print_held_out_accuracies(judge, load_recordings(options.data, indices=HELD_OUT_INDICES))
    except (FileNotFoundError, soundfile.LibsndfileError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
