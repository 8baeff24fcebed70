"""What each training switch brings and costs on this machine, alone and all together.

    python utilities/benchmarks/optimizations.py --append

Every case is a process of its own with the real train step on the same batch, set up from the same settings as a run.
Steps alternate with those of a process without any switch, so that whatever else the machine does strikes both, and the
table has the median of the ratios. The loss after 50 steps is that of a smaller model on one batch. Prints a table;
`--append` also writes it to docs/benchmarks.md with the hardware.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.devices.memory_use import peak_resident_bytes, resident_bytes  # noqa: E402

CASES = {
    "none": {},
    "bfloat16": {"precision": "mixed_bfloat16"},
    "float16": {"precision": "mixed_float16"},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "memory-efficient attention": {"attention": "memory-efficient"},
    "XLA": {"xla": True},
    "accumulation": {"gradient_accumulation": 2},
    "weight averages": {"ema": 0.999},
    "all": {
        "precision": "mixed_bfloat16",
        "gradient_checkpointing": True,
        "attention": "memory-efficient",
        "xla": True,
        "gradient_accumulation": 2,
        "ema": 0.999,
    },
}
"""Settings of `TrainingConfig`; accumulation cuts the same batch in two."""
LONG_CASES = ("memory-efficient attention",)
"""Cases that are measured at the long sequence, too."""
MEDIUM = dict(layers=8, width=512, heads=8, conditioning_blocks=6, conditioning_heads=8, perceiver_heads=8)
SMALL = dict(layers=4, width=128, heads=4, conditioning_blocks=2, conditioning_heads=4, perceiver_heads=4)
NUM_TEXT, CONDITIONING_FRAMES = 60, 258
LOSS_STEPS, LOSS_TOKENS = 50, 200
HEADER = [
    "tokens",
    "switch",
    "step",
    "time ratio",
    "peak memory",
    "memory ratio",
    "process peak",
    "loss after 50 steps",
    "seen in the step",
]


def main():
    """Runs the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        metavar="CASE",
        help=f"of {', '.join(CASES)} (default: all of them)",
    )
    parser.add_argument("--tokens", type=int, default=900, help="sequence length, conditioning and text included")
    parser.add_argument(
        "--long-tokens", type=int, default=2000, help="length for attention's second row; 0 leaves it out"
    )
    parser.add_argument("--batch", type=int, default=2, help="sequences per step, an even number (default: 2)")
    parser.add_argument("--long-batch", type=int, default=1, help="the same at the long length (default: 1)")
    parser.add_argument("--repeats", type=int, default=4, help="pairs of steps per case (default: 4)")
    parser.add_argument("--append", action="store_true", help="write the table to docs/benchmarks.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(**json.loads(arguments.worker))
        return
    rows = measure(arguments.cases, arguments.tokens, arguments.batch, arguments.repeats, losses=True)
    long_cases = [case for case in LONG_CASES if case in arguments.cases]
    if arguments.long_tokens and long_cases:
        rows += measure(long_cases, arguments.long_tokens, arguments.long_batch, arguments.repeats, losses=False)
    from hardware import append_table

    command = "python " + " ".join(["utilities/benchmarks/optimizations.py", *sys.argv[1:]])
    title = f"Training switches, GPT of 8 layers, width 512, batch {arguments.batch} (long: {arguments.long_batch})"
    append_table(title, command, HEADER, rows, arguments.append)


def measure(cases, tokens, batch, repeats, losses):
    """Rows of the table for `cases` at one length; the first is `none`, which the others are held against."""
    with Worker("none", tokens, batch) as plain:
        plain_peak, plain_loss = plain.ask("memory"), plain.ask("losses", seed=0) if losses else None
        own_times, rows = [plain.ask("step") for _ in range(repeats)], []
        for case in (case for case in cases if case != "none"):
            with Worker(case, tokens, batch) as worker:
                peak = worker.ask("memory")
                pairs = [(plain.ask("step"), worker.ask("step")) for _ in range(repeats)]
                own_times += [pair[0] for pair in pairs]
                loss = worker.ask("losses", seed=0) if losses else None
                rows.append(
                    [
                        tokens,
                        case,
                        f"{median(own for _, own in pairs):.2f} s",
                        f"{median(own / base for base, own in pairs):.2f}",
                        *_memory(peak, plain_peak),
                        f"{loss - plain_loss:+.5f}" if losses else "",
                        worker.ask("seen"),
                    ]
                )
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        other = f"{plain_loss:.5f}; other dropout {plain.ask('losses', seed=1) - plain_loss:+.5f}" if losses else ""
        rows.insert(
            0,
            [
                tokens,
                "none",
                f"{median(own_times):.2f} s",
                "1",
                *_memory(plain_peak, plain_peak),
                other,
                plain.ask("seen"),
            ],
        )
    return rows


def _memory(peak, plain_peak):
    in_use = peak["allocator"] or peak["process"]
    ratio = in_use / (plain_peak["allocator"] or plain_peak["process"])
    return f"{in_use / 1e6:.0f} MB", f"{ratio:.2f}", f"{peak['process'] / 1e6:.0f} MB"


class Worker:
    """A process with one case's train step, to be used in a `with` block."""

    def __init__(self, case, tokens, batch):
        arguments = json.dumps({"case": case, "tokens": tokens, "batch": batch})
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what, **values):
        """Has the process do `what` of `work` and returns its answer."""
        self._process.stdin.write(json.dumps([what, values]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"The process of a case ended with {self._process.wait()}; see its message above.")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()


def work(case, tokens, batch):
    """Answers a parent's requests, one JSON line each: `memory`, `step`, `losses`, `seen`."""
    answers, sys.stdout = sys.stdout, sys.stderr
    step = Step(case, MEDIUM, tokens, batch)
    requests = {
        "memory": step.peak_memory,
        "step": step.timed,
        "seen": step.seen,
        "losses": lambda seed: Step(case, SMALL, LOSS_TOKENS, 4).loss_after(LOSS_STEPS, seed),
    }
    for line in sys.stdin:
        what, values = json.loads(line)
        print(json.dumps(requests[what](**values)), file=answers, flush=True)


class Step:
    """A case's train step and its batch, as a run would set them up."""

    def __init__(self, case, shape, tokens, batch):
        import keras
        import tensorflow as tf
        from memory_estimate import gpt_batch

        from myxtts.config.config import DataConfig, ModelConfig, TrainingConfig, XTTSConfig
        from myxtts.models.xtts import XTTS
        from myxtts.training.loop.gradient_order import recompute
        from myxtts.training.loop.optimizations import settle_switches
        from myxtts.training.loop.step import TrainStep
        from myxtts.training.stages.base import Update
        from myxtts.training.stages.gpt import GPTObjective

        self.tf, self.rss_before = tf, resident_bytes()
        device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name
        self.device = device.removeprefix("/device:")
        training = TrainingConfig(**CASES[case])
        accumulation = training.gradient_accumulation
        model_config = ModelConfig(**shape, num_text_tokens=512, max_audio_tokens=max(tokens, 260))
        config = XTTSConfig(model=model_config, data=DataConfig(batch_size=batch // accumulation), training=training)
        switches = settle_switches(training, model_config, device)
        strategy = tf.distribute.OneDeviceStrategy(device)
        keras.utils.set_random_seed(0)
        with strategy.scope(), tf.device(device):
            model = XTTS(model_config, parts=("gpt",), precision=switches.precision)
            model.gpt.set_memory_use(switches.attention, recompute if switches.gradient_checkpointing else None)
            settings = config.stage("gpt")
            updates = [Update("", GPTObjective(model, config), settings)]
            options = dict(precision=switches.precision, xla=switches.xla, ema=switches.ema)
            self.step = TrainStep(updates, strategy, settings, accumulation, **options)
            whole = gpt_batch(
                model_config, batch, NUM_TEXT, tokens - model_config.num_latents - NUM_TEXT - 7, CONDITIONING_FRAMES
            )
            parts = (tf.split(field, accumulation) for field in whole)
            self.batches = [type(whole)(*fields) for fields in zip(*parts)]
        self.taken = 0

    def take(self, learning_rate=1e-5, seed=0):
        """One step; returns its loss."""
        self.taken += 1
        return float(self.step(self.batches, learning_rate, (seed, self.taken))["loss"])

    def timed(self):
        """Seconds of a step."""
        began = time.perf_counter()
        self.take()
        return time.perf_counter() - began

    def peak_memory(self):
        """Bytes at the peak of a step, after one that traces.

        In use by the allocator, weights and optimizer included, where it counts (GPUs, and CPUs under oneDNN); and the
        growth of the process since before the model was made. What tracing and compiling held for a while counts for
        neither.
        """
        self.take()
        Path("/proc/self/clear_refs").write_text("5")  # resets the process's peak
        memory = self.tf.config.experimental
        try:
            memory.reset_memory_stats(self.device)
        except ValueError:
            self.take()
            return {"allocator": None, "process": peak_resident_bytes() - self.rss_before}
        self.take()
        return {
            "allocator": memory.get_memory_info(self.device)["peak"],
            "process": peak_resident_bytes() - self.rss_before,
        }

    def loss_after(self, steps, seed):
        """Loss of the step after `steps` steps on the one batch."""
        for _ in range(steps):
            self.take(1e-3, seed)
        return self.take(1e-3, seed)

    def seen(self):
        """What the traced step shows of the switches."""
        from myxtts.training.watching.graph_facts import attention_forms, recomputed_blocks
        from myxtts.training.watching.ledger import count_clusters, count_products

        graph = self.step.graph
        products = count_products(graph)
        found = [f"{max(products, key=products.get)} products"]
        found += [f"{number} {form}" for form, number in attention_forms(graph).items()]
        blocks, clusters = len(recomputed_blocks(graph)), count_clusters(graph)
        found += [f"{blocks} blocks recomputed"] * bool(blocks) + [f"{clusters} XLA clusters"] * bool(clusters)
        found += [f"{self.step.micro_batches} micro-batches"] * (self.step.micro_batches > 1)
        return ", ".join(found + ["averages"] * bool(self.step.averages()))


if __name__ == "__main__":
    main()
