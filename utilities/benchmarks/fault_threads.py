"""Several threads, without --deterministic: are a run and one that was resumed equal bit for bit? For `faults.py`."""

import os
import shutil
from collections import Counter

from fault_runs import SETTINGS, STAGES, TrainingRun, write_corpus

STEPS, STOP = 12, 6
CLIP_SECONDS = (2.0, 5.0)


class ThreadedRun(TrainingRun):
    """A run that computes with so many threads."""

    threads: int = 1

    def start(self, *more):
        before = os.environ["TF_NUM_INTRAOP_THREADS"]
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(self.threads)  # which its process inherits
        try:
            return super().start(*more)
        finally:
            os.environ["TF_NUM_INTRAOP_THREADS"] = before


def compare_threads(work, threads, repeats):
    """The part `threads`: a model of size nano, unbroken and resumed. Returns rows, and whether all were equal."""
    work.mkdir(parents=True)
    corpus = write_corpus(work / "corpus", 40, CLIP_SECONDS)
    stages = {stage: {"max_steps": STEPS} for stage in STAGES}
    often = {"checkpoint_every_steps": STOP, "validate_every_steps": STEPS, "log_every_steps": 1}
    training = {**often, **stages, "leave_out": SETTINGS["training"]["leave_out"], "sample_every_steps": 0}
    settings = {"model": {"size": "nano"}, "data": {"batch_size": 8, "num_buckets": 1}, "training": training}

    def run(name, taken_from=None):
        """One run to its end; of its last stage only the second half, where it takes up another."""
        made = ThreadedRun(work, name, corpus, settings)
        made.threads = threads
        if taken_from is not None:
            shutil.copytree(taken_from.home, made.home)
            shutil.rmtree(made.home / STAGES[-1] / f"step_{STEPS:08d}")
        made.finish(made.start())
        return made

    first, same = run("first"), Counter()
    for number in range(repeats):
        for kind, other in (("unbroken", run(f"again_{number}")), ("resumed", run(f"resumed_{number}", first))):
            expected, found = first.losses(), other.losses()
            same[f"{kind}, losses"] += all(expected[key] == values for key, values in found.items())
            same[f"{kind}, weights and optimizer"] += first.ends() == other.ends()
            print(f"{kind} {number}: equal so far {dict(same)}", flush=True)
    found = "; ".join(f"{what}: {count} of {repeats} equal" for what, count in same.items())
    given = f"nano, {STEPS} steps a stage, {threads} threads on {os.cpu_count()} cores, {repeats} of each"
    return [["several threads, without --deterministic", given, found, "all"]], set(same.values()) == {repeats}
