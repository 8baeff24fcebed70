"""Learning, on real recordings: trains on spoken digits, speaks every digit in every voice, and judges what is heard.

    python utilities/benchmarks/digits.py --data ../shared/data/fsdd
    python utilities/benchmarks/digits.py --data ../shared/data/fsdd --hold-out

The second leaves two digits of each voice out of training (other digits for each voice) and judges those pairs alone.
Each figure is one line. The judge has heard nothing but real recordings.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from digit_judge import DigitJudge

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SEEDS = 5


def held_out_pairs(speakers):
    """Two digits per voice, other ones for each voice: `{(speaker, digit)}`."""
    return {
        (speaker, (2 * place + place // 5 + step) % 10) for place, speaker in enumerate(speakers) for step in (0, 5)
    }


def training_folder(data, output, pairs):
    """The data set as it is, or a copy of its lists (recordings linked) without `pairs`."""
    if not pairs:
        return data
    folder = output / "recordings"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wavs").mkdir(parents=True)
    kept = {"metadata.csv": [], "speakers.csv": []}
    for name, lines in kept.items():
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            clip = line.replace("|", ",").split(",")[0]
            digit, _, rest = clip.partition("_")
            if digit.isdecimal() and (rest.rsplit("_", 1)[0], int(digit)) in pairs:
                continue
            lines.append(line)
            if name == "metadata.csv":
                shutil.copy(data / "wavs" / f"{clip}.wav", folder / "wavs")
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
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


def speak_all(checkpoint, data, pairs, which):
    """Speaks each pair once per seed, each time from another reference clip, at the default sampling settings.

    Returns:
        List of `(speaker, digit, samples, sample_rate)`.
    """
    from myxtts.inference.synthesizer import Synthesizer

    synthesizer = Synthesizer.load(checkpoint, which)
    spoken = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, 7])
        voices = []
        for speaker, _ in pairs:
            other = int(rng.choice([d for d in range(10) if (speaker, d) not in pairs or len(pairs) == 60]))
            reference = data / "wavs" / f"{other}_{speaker}_{rng.integers(10, 50)}.wav"
            voices.append(synthesizer.voice(reference))
        speeches = synthesizer.batch([WORDS[digit] for _, digit in pairs], voices, ["en"] * len(pairs), seed=seed)
        spoken += [(speaker, digit, s.samples, s.sample_rate) for (speaker, digit), s in zip(pairs, speeches)]
    return spoken


def main():
    """Trains, speaks, judges, prints one line per figure; exit code 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Free Spoken Digit Dataset")
    parser.add_argument("--output", type=Path, default=Path(".bench/digits"), help="working folder")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "digits.yaml")
    parser.add_argument("--hold-out", action="store_true", help="leave two digits of each voice out of training")
    parser.add_argument("--skip-training", action="store_true", help="judge the checkpoints of an earlier run")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to speak with")
    parser.add_argument("--save", type=Path, help="folder for the spoken wav files")
    arguments = parser.parse_args()
    names = (arguments.data / "speakers.csv").read_text(encoding="utf-8").splitlines()[1:]
    speakers = sorted({line.split(",")[1] for line in names})
    left_out = held_out_pairs(speakers) if arguments.hold_out else set()
    output = arguments.output / ("held_out" if left_out else "all")
    output.mkdir(parents=True, exist_ok=True)
    if not arguments.skip_training:
        wall, cpu = train(training_folder(arguments.data, output, left_out), output, arguments.config)
        print(f"training, all stages: {wall / 60:.1f} min wall, {cpu / 60:.1f} min of CPU (goal: 15 min of two cores)")
    pairs = sorted(left_out) or [(speaker, digit) for speaker in speakers for digit in range(10)]
    spoken = speak_all(output / "checkpoints", arguments.data, pairs, arguments.which)
    judge = DigitJudge.load_or_train(arguments.data, arguments.output / "judge")
    verdicts = judge.judge_batch([samples for _, _, samples, _ in spoken], spoken[0][3])
    digits = np.array([verdict.digit == digit for verdict, (_, digit, _, _) in zip(verdicts, spoken)])
    voices = np.array([verdict.speaker == speaker for verdict, (speaker, _, _, _) in zip(verdicts, spoken)])
    if arguments.save:
        from myxtts.audio.files import write_wav

        arguments.save.mkdir(parents=True, exist_ok=True)
        for place, ((speaker, digit, samples, rate), verdict) in enumerate(zip(spoken, verdicts)):
            write_wav(
                arguments.save / f"{digit}_{speaker}_{place // len(pairs)}_heard_{verdict.digit}_{verdict.speaker}.wav",
                samples,
                rate,
            )
    if left_out:
        figures = [
            ("left-out pairs recognized, in the right voice", digits & voices, 0.75),
            ("left-out pairs recognized", digits, 0.75),
            ("left-out pairs in the right voice", voices, 0.75),
        ]
    else:
        figures = [("digits recognized", digits, 0.92), ("voices told apart", voices, 0.85)]
    for name, right, goal in figures:
        print(f"{name}: {100 * right.mean():.1f} % of {len(right)} (goal: {100 * goal:.0f} %)")
    by_digit = {digit: digits[[d == digit for _, d, _, _ in spoken]].mean() for digit in sorted({d for _, d in pairs})}
    print("recognized by digit: " + ", ".join(f"{digit} {100 * share:.0f} %" for digit, share in by_digit.items()))
    by_voice = {name: voices[[s == name for s, _, _, _ in spoken]].mean() for name in speakers}
    print("told apart by voice: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in by_voice.items()))
    return 0 if all(right.mean() >= goal for _, right, goal in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
