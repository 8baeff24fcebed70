"""Pulls the plug, damages files, feeds rubbish: is anything lost, and does anything bad get in?

    python utilities/benchmarks/faults.py                       all parts, the numbers of the goals
    python utilities/benchmarks/faults.py --only kills --kills 10

- `kills`: training runs are ended by `kill -9` at random moments (at start-up, between and in steps, in validation,
  while a sample is spoken or a checkpoint written) and resumed by the same command until they are done. Every loss of
  every step must be, bit for bit, that of a run left alone, and so must the weights and optimizer state at the end.
  After each kill every checkpoint must be whole, and at the end no other file may be there. Conversions and runs that
  are set aside are killed as well: all of it must be there, or nothing. One thread computes, unless
  TF_NUM_INTRAOP_THREADS says more; then differing losses are counted and are no fault.
- `conversions`: both directions of `myxtts convert` are stopped at every operation on the file system, in every way
  that tests/crash_points.py knows; of these the suite takes a part.
- `folders`: the folder of a run of the real command is made read-only (permissions, and as root a mount), for a while
  and for good, moved away and back, and copied, while it trains. What happens must be told in a sentence, and the run,
  resumed, and each of its copies must come to the weights of a run left alone.
- `together`: two processes begin in one folder within a millisecond, a hundred times; the training command is started
  twice in one folder, and `myxtts say` twice with one model. One begins, the other is refused; speech is as of one.
- `threads`: a model of size nano is trained with several threads, unbroken and resumed: losses, weights and optimizer
  must be equal, bit for bit.
- `damage`: the newest of two checkpoints is cut short, has a bit flipped or loses a file; it must be noticed and set
  aside, and the one before used.
- `inputs`: generated lists and WAV headers; accepted and rejected clips together must be those given.
- `corpus`: losses on a corpus with two per cent bad clips must be those on the corpus without them.
- `pause`: the share of the time that training waits for checkpoints at size `small` at the default frequency.

Each run is a fork of this process, which has imported TensorFlow and not started it; that spares each of them the
import and nothing else. Ends with exit code 1 when a goal is missed. `--append` adds the tables to docs/benchmarks.md.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import soundfile  # noqa: E402
import yaml  # noqa: E402
from fault_crashes import sweep_conversions  # noqa: E402
from fault_folders import trouble_folders  # noqa: E402
from fault_inputs import damage_checkpoints, judge_inputs  # noqa: E402
from fault_kills import kill_runs  # noqa: E402
from fault_runs import SAMPLE_RATE, SETTINGS, STAGES, TrainingRun, write_corpus  # noqa: E402
from fault_threads import compare_threads  # noqa: E402
from fault_together import do_together  # noqa: E402
from hardware import append_table  # noqa: E402

DEFAULT_CHECKPOINT_STEPS = 1000
LARGEST_PAUSE_SHARE = 0.02


def train_on_bad_corpus(work):
    """The part `corpus`: 150 clips and three more that are bad. Returns rows and whether the goal is met."""
    good, bad = write_corpus(work / "good", 150), write_corpus(work / "bad", 150)
    lines = (bad / "metadata.csv").read_text().splitlines()
    samples = soundfile.read(bad / "wavs" / "0000.wav")[0]
    soundfile.write(
        bad / "wavs" / "nan.wav", np.where(np.arange(len(samples)) == 99, np.nan, samples), SAMPLE_RATE, "FLOAT"
    )
    (bad / "wavs" / "cut.wav").write_bytes((bad / "wavs" / "0001.wav").read_bytes()[:5000])
    soundfile.write(bad / "wavs" / "silent.wav", 0 * samples, SAMPLE_RATE)
    for place, name in ((150, "silent"), (70, "cut"), (0, "nan")):
        lines.insert(place, f"{name}|one two|")
    (bad / "metadata.csv").write_text("\n".join(lines) + "\n")
    stages = {stage: {**SETTINGS["training"][stage], "max_steps": 20} for stage in STAGES}
    settings = {**SETTINGS, "training": {**SETTINGS["training"], **stages}}
    found = []
    for name, corpus in (("on_good", good), ("on_bad", bad)):
        training = TrainingRun(work, name, corpus, settings)
        training.finish(training.start())
        found.append((training.losses(), training.ends()))
    report = (work / "on_bad" / "clips_train.csv").read_text().splitlines()
    named = sum(",rejected," in line for line in report)
    same = sum(found[0][0].get(key) == values for key, values in found[1][0].items())
    ok = found[0] == found[1] and named == 3
    return [
        [
            "corpus with 2 % bad clips",
            f"153 clips, {named} rejected by name",
            f"{same} of {len(found[0][0])} losses equal, end {'equal' if found[0][1] == found[1][1] else 'different'}",
            "all",
        ]
    ], ok


def measure_pause(work):
    """The part `pause`, in a process of its own. Returns rows and whether the goal is met."""
    reader, writer = os.pipe()
    if not (process := os.fork()):
        code = 70
        try:
            from checkpoint_pause import measure

            share, row = measure(write_corpus(work / "pause_corpus", 20), work / "pause", DEFAULT_CHECKPOINT_STEPS)
            os.write(writer, yaml.safe_dump([share, row]).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    _, status = os.waitpid(process, 0)
    if status:
        raise RuntimeError("The pause could not be measured; see above.")
    share, row = yaml.safe_load(answer)
    return [[*row, "2 %"]], share <= LARGEST_PAUSE_SHARE


def main(argv=None):
    """Runs the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("kills", "conversions", "folders", "together", "threads", "damage", "inputs", "corpus", "pause")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100, help="within a millisecond, of the part together")
    parser.add_argument("--threads", type=int, default=4, help="of the part threads")
    parser.add_argument("--repeats", type=int, default=3, help="of the part threads")
    parser.add_argument("--damages", type=int, default=300)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", action="store_true", help="add the table to docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    rows, missed = [], []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        calls = {
            "kills": lambda: kill_runs(work, arguments.kills, arguments.seed),
            "conversions": lambda: sweep_conversions(work / "conversions_swept"),
            "folders": lambda: trouble_folders(work / "folders", arguments.seed),
            "together": lambda: do_together(work / "together", arguments.rounds),
            "threads": lambda: compare_threads(work / "threads", arguments.threads, arguments.repeats),
            "damage": lambda: damage_checkpoints(work / "damage", arguments.damages, arguments.seed),
            "inputs": lambda: judge_inputs(work / "inputs", arguments.lines, arguments.seed),
            "corpus": lambda: train_on_bad_corpus(work),
            "pause": lambda: measure_pause(work),
        }
        for part in arguments.only:
            began = time.monotonic()
            found, ok = calls[part]()
            rows += [[*row, f"{time.monotonic() - began:.0f} s"] for row in found]
            missed += [] if ok else [part]
            print(f"{part}: {'as it should be' if ok else 'NOT AS IT SHOULD BE'}: {found}", flush=True)
    command = "python " + " ".join(["utilities/benchmarks/faults.py", *(sys.argv[1:] if argv is None else argv)])
    append_table("Faults", command, ["fault", "given", "found", "goal", "took"], rows, arguments.append)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
