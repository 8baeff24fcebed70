"""Trains on recorded digits, speaks each digit in each voice, and measures how many digits and voices are recognized.

    python utilities/benchmarks/digits.py --data FSDD_FOLDER
    python utilities/benchmarks/digits.py --data FSDD_FOLDER --check       # how far the digit recognizer can be trusted
    python utilities/benchmarks/digits.py --data FSDD_FOLDER --steps 3     # smallest case: a minute

Recordings 10 to 14 of each digit and voice are held out from the model and the recognizer. The table has rows for these
recordings, for their resynthesis after each stage, and for synthesized speech. `digit_recognizer.py` recognizes digits
and can answer "no word". Resemblyzer, which was not trained on this data, finds the speaker who sounds most similar.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from myxtts.apps.evaluation.sentences import resynthesize  # noqa: E402
from myxtts.audio.files import load_samples  # noqa: E402  the checkout must be on the path first
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram, log_mel_to_wav  # noqa: E402
from myxtts.config.rates import MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.hearing.networks import DNSMOS, find_encoder  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.storage.files import digest_file  # noqa: E402
from utilities.benchmarks.digit_recognizer import DigitRecognizer, damaged  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT_INDICES, TRAIN_INDICES = range(10, 15), range(15, 50)
SEEDS = 5
SCORED_CLIPS = 60  # of each row, by DNSMOS
GOALS = {"digits, %": 95.0, "voices, %": 88.0, "DNSMOS signal above Griffin-Lim's": 0.2}


class Row(NamedTuple):
    """Clips for a row of the table: `waves` has the samples of each, `(S,)` float32, `names` its `(speaker, digit)`."""

    stage: str
    names: Sequence[tuple[str, int]]
    waves: list[np.ndarray]
    sample_rate: int = MODEL_SAMPLE_RATE


class Scores(NamedTuple):
    """Scores of a row: which digits and voices are recognized, `(clips,)` bool, and mean DNSMOS. None: not measured."""

    digits: np.ndarray
    voices: np.ndarray | None
    signal: float | None


def recording(data: Path, speaker: str, digit: int, index: int) -> np.ndarray:
    """Loads a recording of the Free Spoken Digit Dataset at `MODEL_SAMPLE_RATE`, `(S,)`."""
    return load_samples(data / "wavs" / f"{digit}_{speaker}_{index}.wav")


def training_folder(data: Path, output: Path) -> Path:
    """Copies the data set without the held-out recordings; returns the new folder."""
    folder = output / "recordings"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wavs").mkdir(parents=True)
    for name in ("metadata.csv", "speakers.csv"):
        kept = []
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            clip = line.replace("|", ",").split(",")[0]
            if clip[0].isdecimal():
                if int(clip.rsplit("_", 1)[1]) in HELD_OUT_INDICES:
                    continue
                if name == "metadata.csv":
                    shutil.copy(data / "wavs" / f"{clip}.wav", folder / "wavs")
            kept.append(line)
        (folder / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    return folder


def train(folder: Path, output: Path, options: argparse.Namespace) -> Path:
    """Runs the training command and prints its time; returns the run's folder."""
    cpu_seconds = lambda: sum(os.times()[2:4])  # of child processes, user and system
    run, before, began = output / "checkpoints", cpu_seconds(), time.perf_counter()
    command = [sys.executable, ROOT / "train_main.py", "--train-data", folder, "--config", options.config]
    command += ["--checkpoint-dir", run, "--reset-training", "--seed", options.seed]
    command += ["--max-steps", options.steps] if options.steps else []
    subprocess.run(list(map(str, command)), check=True)
    cpu = cpu_seconds() - before
    minutes = (time.perf_counter() - began) / 60
    print(f"training, all stages: {minutes:.1f} min wall, {cpu / 60:.1f} min of CPU (goal: 25 min of two cores)")
    return run


class Stages:
    """Creates the rows of the table: recordings, their resynthesis after each stage of a model, and the model's speech.

    Args:
        data: Folder of the Free Spoken Digit Dataset.
        pairs: `(speaker, digit)` to resynthesize and to speak.
    """

    def __init__(self, synthesizer: Synthesizer, data: Path, pairs: Sequence[tuple[str, int]]):
        self.synthesizer, self.data, self.pairs = synthesizer, data, pairs
        self.has_decoder = "decoder" in synthesizer.model.parts
        self._voice: Callable = cache(lambda *clip: synthesizer.voice(recording(data, *clip)))

    def rows(self) -> Iterator[Row]:
        """Yields the rows in the order of the table. Rows of a waveform decoder are left out if the model has none."""
        model, to_mel = self.synthesizer.model, MelSpectrogram(DVAE_MEL)
        names = [pair for pair in self.pairs for _ in HELD_OUT_INDICES]
        waves = [recording(self.data, *pair, index) for pair in self.pairs for index in HELD_OUT_INDICES]
        yield Row("recordings", names, waves)
        mels = [np.asarray(to_mel(wave[None])) for wave in waves]
        yield Row("mel, Griffin-Lim", names, [log_mel_to_wav(mel[0]) for mel in mels])
        codes = [np.asarray(model.dvae.encode(model.normalize_mel(mel))) for mel in mels]
        decoded = [np.asarray(model.denormalize_mel(model.dvae.decode(some)))[0] for some in codes]
        yield Row("codes, Griffin-Lim", names, [log_mel_to_wav(mel) for mel in decoded])
        if self.has_decoder:
            rate = self.synthesizer.to_waveform.sample_rate
            yield Row("codes, decoder", names, [self._resynthesis(*clip) for clip in zip(names, waves)], rate)
        yield from self.free_speech()

    def free_speech(self) -> Iterator[Row]:
        """Yields the rows of synthesized speech. Each pair is spoken once per seed, with a random reference clip."""
        spoken = []
        for seed in range(SEEDS):
            rng = np.random.default_rng([seed, 7])
            voices = [self._reference(speaker, rng) for speaker, _ in self.pairs]
            texts = [WORDS[digit] for _, digit in self.pairs]
            spoken += self.synthesizer.batch(texts, voices, ["en"] * len(texts), seed=seed)
        names = list(self.pairs) * SEEDS
        if self.has_decoder:
            yield Row("free speech, Griffin-Lim", names, [log_mel_to_wav(speech.mel) for speech in spoken])
        yield Row("free speech", names, [speech.samples for speech in spoken], spoken[0].sample_rate)

    def _reference(self, speaker, rng):
        return self._voice(speaker, int(rng.choice(range(10))), int(rng.choice(TRAIN_INDICES)))

    def _resynthesis(self, name, wave):
        """Resynthesizes a recording by the waveform decoder, with the voice of another recording of the speaker."""
        voice = self._reference(name[0], np.random.default_rng([name[1], 11]))
        ids = self.synthesizer.text_front.ids(WORDS[name[1]], "en")
        return resynthesize(self.synthesizer, wave, voice, ids)[0]


def nearest_voice(encoder: Callable, data: Path, speakers: Sequence[str]) -> Callable[[np.ndarray, int], str]:
    """Returns a function that finds the speaker whose mean Resemblyzer vector is nearest to the vector of a clip."""
    clips = [[recording(data, name, digit, 20) for digit in range(10)] for name in speakers]
    means = np.stack([np.mean([encoder(one, MODEL_SAMPLE_RATE) for one in some], axis=0) for some in clips])
    return lambda samples, sample_rate: speakers[int((means @ encoder(samples, sample_rate)).argmax())]


def score(row: Row, recognizer: DigitRecognizer, nearest: Callable | None, dnsmos: DNSMOS | None) -> Scores:
    """Scores a row's digits, voices and DNSMOS; voices are None without `nearest`, and DNSMOS without `dnsmos`."""
    waves, (speakers, digits) = row.waves, zip(*row.names)
    digits = np.array(recognizer(waves, row.sample_rate)) == np.array(digits)
    voices = nearest and np.array([nearest(wave, row.sample_rate) for wave in waves]) == np.array(speakers)
    some = waves[:: max(1, len(waves) // SCORED_CLIPS)]
    return Scores(digits, voices, dnsmos and np.mean([dnsmos(one, row.sample_rate)["signal"] for one in some]))


def worst(right: np.ndarray | None, names: Sequence[str]) -> str:
    """Formats the percentage of correct clips, overall and for the worst digit or speaker (`names`: of each clip)."""
    if right is None:
        return "not available"
    shares = {name: right[[other == name for other in names]].mean() for name in sorted(set(names))}
    name = min(shares, key=shares.get)
    return f"{100 * right.mean():.1f} % ({name} {100 * shares[name]:.0f} %)"


def print_row(row: Row, scores: Scores) -> None:
    """Prints a row of the table of scores."""
    digits = worst(scores.digits, [WORDS[digit] for _, digit in row.names])
    voices = worst(scores.voices, [speaker for speaker, _ in row.names])
    signal = "not available" if scores.signal is None else f"{scores.signal:.2f}"
    print(f"{row.stage:25s} | {len(row.names):3d} | {digits:21s} | {voices:22s} | {signal}", flush=True)


def figures(results: dict[str, Scores]) -> dict[str, tuple[float, float]]:
    """Returns `{name: (value, goal)}` for the measurements with a goal. `results` has the scores by name of the row."""
    spoken, before = results["free speech"], results.get("free speech, Griffin-Lim")
    values = {"digits, %": 100 * spoken.digits.mean()}
    if spoken.voices is not None:
        values["voices, %"] = 100 * spoken.voices.mean()
    if before and spoken.signal is not None:
        values["DNSMOS signal above Griffin-Lim's"] = spoken.signal - before.signal
    return {name: (value, GOALS[name]) for name, value in values.items()}


def check(recognizer: DigitRecognizer, data: Path, speakers: Sequence[str]) -> int:
    """Prints how often the digits in damaged held-out recordings are recognized; returns 0."""
    clips = [(digit, recording(data, name, digit, 10)) for name in speakers for digit in range(10)]
    for what, waves in damaged([wave for _, wave in clips], MODEL_SAMPLE_RATE):
        heard = recognizer(waves, MODEL_SAMPLE_RATE)
        right = np.mean([found == digit for found, (digit, _) in zip(heard, clips)])
        nothing = np.mean([found is None for found in heard])
        print(f"{what:28s} right {100 * right:5.1f} %  no word {100 * nothing:5.1f} %", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, speaks and prints the table and the measurements; returns exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Free Spoken Digit Dataset")
    parser.add_argument("--output", type=Path, default=Path(".bench/digits"), help="working folder")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "digits.yaml")
    parser.add_argument("--steps", type=int, help="max steps per stage, for a trial")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the training")
    parser.add_argument("--check", action="store_true", help="test the digit recognizer instead of a model")
    parser.add_argument("--checkpoint", type=Path, help="trained run to test")
    options = parser.parse_args(arguments)
    names = (options.data / "speakers.csv").read_text(encoding="utf-8").splitlines()[1:]
    speakers = sorted({line.split(",")[1] for line in names})
    weights = options.output / f"recognizer_{digest_file(options.data / 'metadata.csv')[:12]}.weights.h5"
    recognizer = DigitRecognizer.load_or_train(options.data, weights, TRAIN_INDICES)
    if options.check:
        return check(recognizer, options.data, speakers)
    checkpoint = options.checkpoint
    if checkpoint is None:
        output = options.output / f"all_{options.seed}"
        output.mkdir(parents=True, exist_ok=True)
        checkpoint = train(training_folder(options.data, output), output, options)
    pairs = [(speaker, digit) for speaker in speakers for digit in range(10)]
    encoder, dnsmos = find_encoder(), DNSMOS.load()
    nearest = encoder and nearest_voice(encoder, options.data, speakers)
    results = {}
    print(f"{'stage':25s} | of  | {'digits (worst)':21s} | {'voices (worst)':22s} | DNSMOS signal")
    for row in Stages(Synthesizer.load(checkpoint), options.data, pairs).rows():
        results[row.stage] = score(row, recognizer, nearest, dnsmos)
        print_row(row, results[row.stage])
    found = figures(results)
    for name, (value, goal) in found.items():
        print(f"{name}: {value:.1f} (goal: {goal})")
    return int(any(value < goal for value, goal in found.values()))


if __name__ == "__main__":
    sys.exit(main())
