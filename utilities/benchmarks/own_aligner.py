"""How well an aligner that a data set trained finds the sentences of a transcript in speech that it has not heard.

    python utilities/benchmarks/own_aligner.py --data CORPUS --language de [--held 20] [--seed 0] [--aligner FILE.onnx]

`CORPUS` has the LJSpeech layout. Of its clips `--held` are kept apart; from the others `myxtts train-aligner` learns.
Those that were kept apart are joined with pauses of 0.3 to 1.2 s, and every fifth sentence is followed by one that is
in no text. Where each clip sounds is the truth. Printed are the errors of starts and ends, in milliseconds, of the
sentences that were found; then the same with the sentences of the transcript in another order, and with the texts of
the clips that were learned from. Figures that stayed as they are there would say nothing.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from myxtts.apps.datasets.aligners import CtcAligner, Recording
from myxtts.apps.datasets.ctc_network import CtcNetwork
from myxtts.apps.datasets.decoding import LongAudio
from myxtts.apps.datasets.letter_training import NETWORK_FILE, train_aligner
from myxtts.apps.datasets.pieces import Piece
from myxtts.apps.datasets.voice_activity import Stretch

PAUSE_SECONDS = (0.3, 1.2)
ROOM_NOISE = 5e-4
ODD_EVERY = 5
NEAR_SECONDS = 0.25
FRAMES_PER_SECOND = 100


def sounding(samples: np.ndarray, rate: int) -> tuple[float, float]:
    """From the first to the last 10 ms within 30 dB of the loudest, in seconds."""
    size = rate // FRAMES_PER_SECOND
    levels = np.sqrt(np.mean(samples[: len(samples) // size * size].reshape(-1, size) ** 2, axis=1))
    loud = np.flatnonzero(levels > levels.max() * 10 ** (-30 / 20))
    return loud[0] * size / rate, (loud[-1] + 1) * size / rate


def split_corpus(data: Path, held: int, seed: int, folder: Path) -> list[tuple[Path, str]]:
    """Copies all but `held` clips into `folder`; returns files and texts of those."""
    rows = [line.split("|") for line in (data / "metadata.csv").read_text(encoding="utf-8").splitlines()]
    order = np.random.default_rng(seed).permutation(len(rows))
    (folder / "wavs").mkdir(parents=True)
    for index in order[held:]:
        shutil.copy(data / "wavs" / f"{rows[index][0]}.wav", folder / "wavs")
    kept = "\n".join("|".join(rows[index]) for index in order[held:])
    (folder / "metadata.csv").write_text(f"{kept}\n", encoding="utf-8")
    return [(data / "wavs" / f"{rows[index][0]}.wav", rows[index][-1]) for index in order[:held]]


def plant(clips: Sequence[tuple[Path, str]], seed: int, path: Path):
    """Writes the recording; returns texts and times of the sentences that are in the transcript, and all times."""
    random, parts, texts, times, every, position = np.random.default_rng(seed), [], [], [], [], 0
    for number, (file, text) in enumerate(clips, 1):
        samples, rate = soundfile.read(file, dtype="float32")
        hush = np.zeros(int(random.uniform(*PAUSE_SECONDS) * rate), np.float32)
        start = (position + len(hush)) / rate
        every.append(tuple(start + one for one in sounding(samples, rate)))
        if number % ODD_EVERY:
            texts.append(text)
            times.append(every[-1])
        parts += [hush, samples]
        position += len(hush) + len(samples)
    sound = np.concatenate([*parts, hush])
    soundfile.write(path, sound + ROOM_NOISE * random.standard_normal(len(sound)), rate)
    return texts, np.array(times), every


def report(name: str, found: Sequence[tuple[float, float] | None], truth: np.ndarray) -> None:
    """A line: how many were found, how far off, and how many of them are somewhere else."""
    kept = [k for k, one in enumerate(found) if one is not None]
    line = f"{name}: {len(kept)} of {len(found)} found"
    if kept:
        away = 1000 * np.abs(np.array([found[k] for k in kept]) - truth[kept])
        near = np.mean(away.max(axis=1) <= 1000 * NEAR_SECONDS)
        ends = "; ".join(
            f"{which} median {np.median(part):.0f} ms, 95 % within {np.quantile(part, 0.95):.0f} ms"
            for which, part in zip(("starts", "ends"), away.T)
        )
        line += f", {near:.0%} of them within {1000 * NEAR_SECONDS:.0f} ms at both ends; {ends}"
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Learns, plants, aligns and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--language", default="en")
    parser.add_argument("--held", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aligner", type=Path, help="another network, which learned from something else")
    parser.add_argument("--keep", type=Path, help="folder for the aligner that was trained")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clips = split_corpus(arguments.data, arguments.held, arguments.seed, folder / "own")
        network = arguments.aligner
        if network is None:
            place, begun = arguments.keep or folder / "aligner", time.process_time()
            say = lambda line: print(line, flush=True)
            outcome = train_aligner(folder / "own", place, arguments.language, arguments.seed, tell=say)
            print(f"{outcome}, {time.process_time() - begun:.0f} CPU s", flush=True)
            network = place / NETWORK_FILE
        texts, truth, every = plant(clips, arguments.seed, folder / "long.wav")
        stretches = [Stretch(round(a * FRAMES_PER_SECOND), round(b * FRAMES_PER_SECOND)) for a, b in every]
        audio = LongAudio(folder / "long.wav")
        frame_samples = audio.sample_rate // FRAMES_PER_SECOND
        recording = Recording(audio, None, stretches, frame_samples, arguments.language)
        aligner = CtcAligner(CtcNetwork(network))
        times = lambda texts: aligner.times(recording, [Piece(text) for text in texts])
        report("transcript", times(texts), truth)
        order = np.random.default_rng(1).permutation(len(texts))
        report("in another order", times([texts[k] for k in order]), truth)
        lines = (folder / "own" / "metadata.csv").read_text(encoding="utf-8").splitlines()
        strange = [line.split("|")[-1] for line in lines[: len(texts)]]
        report("other texts", times(strange), truth[: len(strange)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
