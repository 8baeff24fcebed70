"""Measures `myxtts make-dataset` on long recordings with known cuts, texts and times.

    python utilities/benchmarks/make_dataset.py --data DATA [--hours 3] [--sets ljspeech_mini kerstin_de_mini]

`DATA` has corpora in the LJSpeech layout, and `fsdd` with recordings of single words. Clips of a corpus are joined with
pauses of 0.3 to 1.2 s and room noise. Between them are chords, noise, speech without text, and pairs of sentences
spoken at once. Subtitles are 1.4 s late and 0.1 % too slow; the detected offset and drift are printed. Scores of cuts
are the fraction within 50 ms of a pause, and the number in words. Scores of texts are the fractions of speech in clips
with the right text, with the right part of a sentence, and with a wrong text. A second run must give the same files.
Memory and CPU time are printed. As a control, runs with shuffled texts must give worse results.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile

OFFSET_SECONDS, DRIFT = 1.4, 0.001
NEAR_SECONDS = 0.05
ROOM_NOISE = 5e-4
PAUSE_SECONDS = (0.3, 1.2)
ODD_EVERY = 9
"""Number of sentences per inserted segment of chords, noise, speech without text, or two sentences spoken at once."""
CASES = ("subtitles", "again", "transcript", "shuffled subtitles", "shuffled transcript")


@dataclass
class Truth:
    """Known content of a recording. Spans are `(start, end)` in seconds; `odd` has inserted segments (`ODD_EVERY`)."""

    seconds: float = 0.0
    sentences: list = field(default_factory=list)
    texts: list = field(default_factory=list)
    words: list = field(default_factory=list)
    odd: list = field(default_factory=list)
    overlapping: list = field(default_factory=list)
    """Subtitle cues of the sentences spoken at once, `((start, end), text)`."""


def read_sentences(folder: Path, random: np.random.Generator):
    """Yields random sentences endlessly, as `(samples, sample rate, text, spans of words)`.

    Sentences of `fsdd` have three to eight digits, 40 to 120 ms apart; other sentences have no spans of words.
    """
    rows = [line.split("|") for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()]
    clips = [(folder / "wavs" / f"{row[0]}.wav", row[-1]) for row in rows]
    read = lambda path: soundfile.read(path, dtype="float32")
    while folder.name != "fsdd":
        for index in random.permutation(len(clips)):
            yield *read(clips[index][0]), clips[index][1], []
    clips = [(path, text) for path, text in clips if "jackson" in path.name]
    while True:
        parts, words, position, said = [], [], 0, []
        for index in random.integers(0, len(clips), random.integers(3, 9)):
            samples, rate = read(clips[index][0])
            words.append((position / rate, (position + len(samples)) / rate))
            parts += [samples, np.zeros(int(random.uniform(0.04, 0.12) * rate), np.float32)]
            position += len(samples) + len(parts[-1])
            said.append(clips[index][1])
        yield np.concatenate(parts[:-1]), rate, f"{' '.join(said).capitalize()}.", words


def chords(seconds: float, rate: int, random: np.random.Generator) -> np.ndarray:
    """Returns fading chords `(S,)`, which resemble music."""
    time = np.arange(int(seconds * rate)) / rate
    sound = np.zeros(len(time))
    for start in np.arange(0, seconds, 0.5):
        for hz in random.choice([220, 277, 330, 440, 554, 660], 3):
            sound += np.where(time >= start, np.exp(-2 * (time - start).clip(0)), 0) * np.sin(2 * np.pi * hz * time)
    return (0.15 * sound / np.abs(sound).max()).astype(np.float32)


def sounding(samples: np.ndarray, rate: int) -> tuple[float, float]:
    """Returns when audio starts and ends, in seconds: the first and last 10 ms frame within 30 dB of the loudest."""
    size = rate // 100
    levels = np.sqrt(np.mean(samples[: len(samples) // size * size].reshape(-1, size) ** 2, axis=1))
    loud = np.flatnonzero(levels > levels.max() * 10 ** (-30 / 20))
    return loud[0] * size / rate, (loud[-1] + 1) * size / rate


def plant(folder: Path, path: Path, seconds: float, seed: int) -> Truth:
    """Writes a long recording made from the sentences of a corpus; returns its known content."""
    random, truth = np.random.default_rng(seed), Truth()
    sentences = read_sentences(folder, random)
    rate = next(sentences)[1]
    with soundfile.SoundFile(path, "w", rate, 1, "PCM_16") as file:

        def add(samples):
            file.write(samples + ROOM_NOISE * random.standard_normal(len(samples)).astype(np.float32))
            truth.seconds += len(samples) / rate

        add(np.zeros(rate, np.float32))
        while truth.seconds < seconds:
            if len(truth.texts) % ODD_EVERY == ODD_EVERY - 1:
                kind, start = len(truth.odd) % 4, truth.seconds
                if kind == 3:
                    add(at_once(next(sentences), next(sentences), start, truth))
                else:
                    kinds = (chords(6, rate, random), 0.02 * random.standard_normal(3 * rate), next(sentences)[0])
                    add(kinds[kind].astype(np.float32))
                truth.odd.append((start, truth.seconds))
                add(np.zeros(int(0.7 * rate), np.float32))
            samples, _, text, words = next(sentences)
            start, (first, last) = truth.seconds, sounding(samples, rate)
            add(samples)
            truth.sentences.append((start + first, start + last))
            truth.texts.append(text)
            truth.words += [(start + low, start + high) for low, high in words]
            add(np.zeros(int(random.uniform(*PAUSE_SECONDS) * rate), np.float32))
    return truth


def at_once(first: tuple, second: tuple, start: float, truth: Truth) -> np.ndarray:
    """Mixes two sentences, of which the second starts 0.5 s after the first; appends their cues to `truth`."""
    (a, rate, text_a, _), (b, _, text_b, _) = first, second
    later = rate // 2
    sound = np.zeros(max(len(a), later + len(b)), np.float32)
    sound[: len(a)] += a
    sound[later : later + len(b)] += b
    truth.overlapping.append(((start, start + len(a) / rate), text_a))
    truth.overlapping.append(((start + later / rate, start + (later + len(b)) / rate), text_b))
    return 0.7 * sound


def write_subtitles(truth: Truth, path: Path, texts: Sequence[str]) -> None:
    """Writes subtitles of all sentences; their times have an offset, a drift, and random errors of 50 ms (RMS)."""
    random, blocks = np.random.default_rng(1), []
    cues = sorted([*zip(truth.sentences, texts), *truth.overlapping])
    for number, (span, text) in enumerate(cues, 1):
        times = [(time + random.normal(0, 0.05) + OFFSET_SECONDS) * (1 + DRIFT) for time in span]
        stamps = (f"{int(t // 3600):02d}:{int(t // 60 % 60):02d}:{t % 60:06.3f}".replace(".", ",") for t in times)
        blocks.append(f"{number}\n{' --> '.join(stamps)}\n{text}\n")
    path.write_text("\n".join(blocks), encoding="utf-8")


def run(recording: Path, text: Path, output: Path, language: str, more: Sequence[str]) -> tuple[str, float, float]:
    """Runs `myxtts make-dataset` in a new process; returns its output, CPU seconds and peak memory in MB."""
    flag = "--subtitles" if text.suffix == ".srt" else "--transcript"
    words = ["make-dataset", recording, flag, text, "--output", output, "--language", language, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "myxtts", *map(str, words), "--speaker", "one"]
    with tempfile.TemporaryFile("w+") as log:
        _, _, used = os.wait4(subprocess.Popen(command, stdout=log, stderr=log, env=environment).pid, 0)
        log.seek(0)
        return log.read(), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def judge(truth: Truth, folder: Path) -> dict[str, float]:
    """Scores a data set. All scores are fractions, except `words cut` (number of cuts) and `unaccounted` (seconds)."""
    with open(folder / "segments.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    clips = [(float(row["start_seconds"]), float(row["end_seconds"]), row["text"]) for row in rows if row["clip"]]
    total = sum(float(row["end_seconds"]) - float(row["start_seconds"]) for row in rows)
    sounds = np.array(sorted([*truth.sentences, *truth.odd]))
    cuts = np.array([cut for start, end, _ in clips for cut in (start, end)])

    def inside(spans, margin):
        spans = np.array(spans).reshape(-1, 2)
        return [bool(((spans[:, 0] + margin < cut) & (cut < spans[:, 1] - margin)).any()) for cut in cuts]

    good = clauses = wrong = 0.0
    for start, end, text in clips:
        whole = [k for k, (a, b) in enumerate(truth.sentences) if a >= start - NEAR_SECONDS and b <= end + NEAR_SECONDS]
        touched = [k for k, (a, b) in enumerate(truth.sentences) if a < end - NEAR_SECONDS and b > start + NEAR_SECONDS]
        seconds = sum(truth.sentences[k][1] - truth.sentences[k][0] for k in touched)
        is_right = whole == touched and text == " ".join(truth.texts[k] for k in whole)
        if is_right:
            good += seconds
        elif is_clause(start, end, text, [(*truth.sentences[k], truth.texts[k]) for k in touched]):
            clauses += end - start
        else:
            wrong += seconds
    speech = sum(b - a for a, b in truth.sentences)
    odd = sum(max(0.0, min(b, end) - max(a, start)) for a, b in truth.odd for start, end, _ in clips)
    return {
        "cuts in pauses": 1 - np.mean(inside(sounds, NEAR_SECONDS)) if len(cuts) else float("nan"),
        "words cut": float(np.sum(inside(truth.words, 0.0))) if truth.words else float("nan"),
        "right text": good / speech,
        "right clauses": clauses / speech,
        "wrong text": wrong / speech,
        "odd in clips": odd / max(1e-9, sum(b - a for a, b in truth.odd)),
        "unaccounted": abs(total - truth.seconds),
    }


def is_clause(start: float, end: float, text: str, spoken: Sequence[tuple[float, float, str]]) -> bool:
    """Returns whether `text` is right for a clip with a part of the sentences `spoken`, `(start, end, text)` each.

    It must occur in the joined text of these sentences, at about the same relative position as the clip in their audio.
    """
    whole = " ".join(one for _, _, one in spoken)
    first = whole.find(text)
    if first < 0 or not text or not spoken:
        return False
    length = spoken[-1][1] - spoken[0][0]
    shares = (first / len(whole), (first + len(text)) / len(whole))
    times = ((start - spoken[0][0]) / length, (end - spoken[0][0]) / length)
    return all(abs(share - time) < 0.12 for share, time in zip(shares, times))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures `myxtts make-dataset` on each of the corpora `--sets`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["ljspeech_mini", "kerstin_de_mini", "vctk_mini", "fsdd"])
    parser.add_argument("--hours", type=float, default=0.25)
    parser.add_argument("--vad", default="energy")
    parser.add_argument("--aligner", help="speech recognizer for transcripts, as in make-dataset")
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES, help="again: after subtitles")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if "again" in arguments.cases and "subtitles" not in arguments.cases:
        parser.error("--cases again needs subtitles, which it compares with.")
    for name in arguments.sets:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, Path(folder), arguments)


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Makes a recording of the corpus `name`; runs `make-dataset` on it once per case and prints a line for each."""
    language = "de" if "_de_" in name else "en"
    truth = plant(arguments.data / name, folder / "long.wav", 3600 * arguments.hours, arguments.seed)
    for case in (case for case in CASES if case in arguments.cases):
        texts = truth.texts
        if "shuffled" in case:
            texts = [texts[k] for k in np.random.default_rng(2).permutation(len(texts))]
        text = folder / ("long.txt" if "transcript" in case else "long.srt")
        text.write_text("\n".join(texts), encoding="utf-8")
        if text.suffix == ".srt":
            write_subtitles(truth, text, texts)
        output = folder / case.replace(" ", "_")
        aligner = ["--aligner", arguments.aligner] if arguments.aligner and text.suffix == ".txt" else []
        said, seconds, memory = run(folder / "long.wav", text, output, language, ["--vad", arguments.vad, *aligner])
        if not (output / "segments.csv").is_file():
            print(f"{name}, {case}: {said.strip()}", flush=True)
            continue
        if case == "again":
            differs = subprocess.run(["diff", "--recursive", "--brief", folder / "subtitles", output]).returncode
            print(f"{name}, again: {'NOT EQUAL' if differs else 'equal'} byte for byte", flush=True)
            continue
        found = re.search(r"the subtitles are .*corrected", said)
        figures = {key: round(float(value), 4) for key, value in judge(truth, output).items()}
        speed = f"{truth.seconds / seconds:.0f} times real time, {memory:.0f} MB"
        print(f"{name}, {case}: {json.dumps(figures)}; {speed}; {found[0] if found else ''}", flush=True)


if __name__ == "__main__":
    main()
