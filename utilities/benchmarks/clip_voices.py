"""Whether `myxtts make-dataset --one-voice` tells clips of two voices and of another voice from those of one.

    python utilities/benchmarks/clip_voices.py --data DATA/vctk_mini [--singles DATA/kerstin_de_mini ...]

For each speaker of `--data` a recording is made of its sentences, of joins (2.5 s of it, a gap of 0.15 s, 2.5 s of
another speaker at the same level) and of sentences by another speaker, with subtitles. `--singles` are corpora of one
voice, in which everything that is left out for its voice is a false alarm.
"""

import argparse
import csv
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from myxtts.__main__ import main as myxtts
from myxtts.data.corpora import load_corpus

PART_SECONDS, GAP_SECONDS, PAUSE_SECONDS = 2.5, 0.15, 0.8
FLAGS = ("several voices", "another voice")


def sounding(samples: np.ndarray, rate: int) -> np.ndarray:
    """The samples without their silent ends."""
    size = rate // 100
    levels = np.sqrt(np.mean(samples[: len(samples) // size * size].reshape(-1, size) ** 2, axis=1))
    loud = np.flatnonzero(levels > levels.max() * 10 ** (-30 / 20))
    return samples[loud[0] * size : (loud[-1] + 1) * size]


def write(
    folder: Path, name: str, parts: Sequence[tuple[str, np.ndarray]], rate: int
) -> list[tuple[float, float, str]]:
    """A recording with subtitles; returns `(start, end, kind)` of each part."""
    random, sound, spans, cues, position = np.random.default_rng(0), [], [], [], 0
    for number, (kind, samples) in enumerate(parts, 1):
        hush = 3e-4 * random.standard_normal(int(PAUSE_SECONDS * rate))
        start = (position + len(hush)) / rate
        end = start + len(samples) / rate
        sound += [hush, samples]
        position += len(hush) + len(samples)
        spans.append((start, end, kind))
        stamps = (f"00:{int(t // 60):02d}:{t % 60:06.3f}".replace(".", ",") for t in (start, end))
        cues.append(f"{number}\n{' --> '.join(stamps)}\n{'x' * max(1, round(14 * len(samples) / rate))} {number}.\n")
    soundfile.write(folder / f"{name}.wav", np.concatenate([*sound, np.zeros(rate)]), rate)
    (folder / f"{name}.srt").write_text("\n".join(cues))
    return spans


def count(folder: Path, name: str, spans: Sequence[tuple[float, float, str]]) -> Counter:
    """How many clips of each kind there are, `(kind, flag)`; a clip counts as the oddest kind in it."""
    output = folder / f"{name}_set"
    myxtts(["make-dataset", str(folder / f"{name}.wav"), "--output", str(output), "--one-voice", "--vad", "energy"])
    found: Counter = Counter()
    with open(output / "segments.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["clip"] or row["reason"] in FLAGS:
                start, end = float(row["start_seconds"]), float(row["end_seconds"])
                kinds = [kind for a, b, kind in spans if a < end - 0.1 and b > start + 0.1]
                kind = next((one for one in ("join", "other") if one in kinds), "single")
                found[kind, row["reason"] or "kept"] += 1
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each recording."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--singles", type=Path, nargs="*", default=[])
    arguments = parser.parse_args(argv)
    voices, rate = defaultdict(list), 0
    for one in load_corpus(arguments.data).utterances:
        samples, rate = soundfile.read(one.wav_path, dtype="float32")
        voices[one.speaker].append(sounding(samples, rate))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for speaker, clips in sorted(voices.items()):
            others = [clip for other, said in sorted(voices.items()) if other != speaker for clip in said]
            size = int(PART_SECONDS * rate)
            long, parts = [clip for clip in clips if len(clip) > size], [("single", clip) for clip in clips]
            picked = [clip for clip in others if len(clip) > size][:: max(1, len(others) // 6)][:6]
            for index, other in enumerate(picked):
                own = long[index % len(long)][-size:]
                other = other[:size] * np.sqrt(np.mean(own**2) / np.mean(other[:size] ** 2))
                join = np.concatenate([own, np.zeros(int(GAP_SECONDS * rate), np.float32), other])
                parts.insert(1 + 2 * index, ("join", join))
            parts.insert(5, ("other", others[3]))
            print(speaker, dict(count(folder, speaker, write(folder, speaker, parts, rate))), flush=True)
        for corpus in arguments.singles:
            rows = [soundfile.read(one.wav_path, dtype="float32") for one in load_corpus(corpus).utterances]
            parts = [("single", sounding(samples, rate)) for samples, rate in rows]
            spans = write(folder, corpus.name, parts, rows[0][1])
            print(corpus.name, dict(count(folder, corpus.name, spans)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
