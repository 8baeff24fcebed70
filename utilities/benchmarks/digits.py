"""Learning, on real recordings: trains on spoken digits, speaks every digit in every voice, and judges what is heard.

    python utilities/benchmarks/digits.py --data ../shared/data/fsdd
    python utilities/benchmarks/digits.py --data ../shared/data/fsdd --hold-out

Neither the model nor the judge is trained on five recordings of each digit and voice. From these a table is made: the
recordings, and what is left of them after each stage, then free speech. The second command leaves two digits of each
voice out of training besides (other digits for each voice) and judges those pairs alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from digit_judge import HELD_OUT_INDICES, TRAIN_INDICES, DigitJudge
from digit_stages import TABLE_HEAD, WORDS, Stages, listen, table_line

from myxtts.audio.files import write_wav
from myxtts.hearing.dnsmos import DNSMOS
from myxtts.inference.synthesizer import Synthesizer

ROOT = Path(__file__).resolve().parents[2]
MORE_SIGNAL = 0.3
"""What the decoder's signal score should be above that of Griffin-Lim."""


def held_out_pairs(speakers):
    """Two digits per voice, other ones for each voice: `{(speaker, digit)}`."""
    return {
        (speaker, (2 * place + place // 5 + step) % 10) for place, speaker in enumerate(speakers) for step in (0, 5)
    }


def training_folder(data, output, pairs):
    """A copy of the data set without the recordings that are judged, and without `pairs`."""
    folder = output / "recordings"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wavs").mkdir(parents=True)
    for name in ("metadata.csv", "speakers.csv"):
        kept = []
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            clip = line.replace("|", ",").split(",")[0]
            digit, _, rest = clip.partition("_")
            if digit.isdecimal():
                speaker, index = rest.rsplit("_", 1)
                if (speaker, int(digit)) in pairs or int(index) in HELD_OUT_INDICES:
                    continue
                if name == "metadata.csv":
                    shutil.copy(data / "wavs" / f"{clip}.wav", folder / "wavs")
            kept.append(line)
        (folder / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    return folder


def train(folder, output, config):
    """Runs the training command; returns (wall seconds, CPU seconds)."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "train_main.py"),
            "--train-data",
            str(folder),
            "--config",
            str(config),
            "--checkpoint-dir",
            str(output / "checkpoints"),
            "--reset-training",
        ],
        check=True,
    )
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu


def save(result, sample_rate, folder):
    """Writes a row's clips, each named for what it should be and for what was heard."""
    folder = folder / result.stage.replace(", ", "_").replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    for place, (clip, heard) in enumerate(zip(result.clips, result.verdicts)):
        name = f"{clip.digit}_{clip.speaker}_{place:03d}_heard_{heard.digit}_{heard.speaker}.wav"
        write_wav(folder / name, clip.samples, sample_rate)


def figures(results, left_out):
    """`(name, value, goal)` of what a run is measured by, from the results by stage."""
    spoken = results["free speech"]
    both = (spoken.digits & spoken.voices).mean()
    if left_out:
        return [("left-out pairs recognized, in the right voice, %", 100 * both, 75)]
    found = [
        ("digits recognized, %", 100 * spoken.digits.mean(), 95),
        ("voices told apart, %", 100 * spoken.voices.mean(), 93),
    ]
    before = results.get("free speech, Griffin-Lim")
    if before and spoken.signal is not None:
        found.append(("signal above Griffin-Lim's", spoken.signal - before.signal, MORE_SIGNAL))
    return found


def shares(right, names):
    """Share of `right` for each name, as text."""
    by_name = {name: right[[other == name for other in names]].mean() for name in dict.fromkeys(names)}
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in by_name.items())


def main():
    """Trains, speaks, judges, prints one line per figure; exit code 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Free Spoken Digit Dataset")
    parser.add_argument("--output", type=Path, default=Path(".bench/digits"), help="working folder")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "digits.yaml")
    parser.add_argument("--hold-out", action="store_true", help="leave two digits of each voice out of training")
    parser.add_argument("--checkpoint", type=Path, help="judge this run instead of training one")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to speak with")
    parser.add_argument("--save", type=Path, help="folder for the wav files of all stages")
    arguments = parser.parse_args()
    names = (arguments.data / "speakers.csv").read_text(encoding="utf-8").splitlines()[1:]
    speakers = sorted({line.split(",")[1] for line in names})
    left_out = held_out_pairs(speakers) if arguments.hold_out else set()
    checkpoint = arguments.checkpoint
    if checkpoint is None:
        output = arguments.output / ("held_out" if left_out else "all")
        output.mkdir(parents=True, exist_ok=True)
        wall, cpu = train(training_folder(arguments.data, output, left_out), output, arguments.config)
        print(f"training, all stages: {wall / 60:.1f} min wall, {cpu / 60:.1f} min of CPU (goal: 25 min of two cores)")
        checkpoint = output / "checkpoints"
    pairs = sorted(left_out) or [(speaker, digit) for speaker in speakers for digit in range(10)]
    judge = DigitJudge.load_or_train(arguments.data, arguments.output / "judge", indices=TRAIN_INDICES)
    score = DNSMOS.load()
    stages = Stages(Synthesizer.load(checkpoint, arguments.which), arguments.data, pairs, left_out)
    results = {}
    print(TABLE_HEAD)
    for row in stages.rows():
        results[row.stage] = result = listen(row, judge, score)
        print(table_line(result), flush=True)
        if arguments.save:
            save(result, row.sample_rate, arguments.save)
    if not stages.has_decoder:
        print(f"DVAE codes, decoder: not available, {checkpoint} has no trained waveform decoder")
    if score is None:
        print('DNSMOS: not available; install it with: pip install -e ".[bench]"')
    spoken = results["free speech"]
    print("free speech, recognized by digit: " + shares(spoken.digits, [WORDS[clip.digit] for clip in spoken.clips]))
    print("free speech, told apart by voice: " + shares(spoken.voices, [clip.speaker for clip in spoken.clips]))
    found = figures(results, left_out)
    for name, value, goal in found:
        print(f"{name}: {value:.1f} (goal: {goal})")
    return 0 if all(value >= goal for _, value, goal in found) else 1


if __name__ == "__main__":
    sys.exit(main())
