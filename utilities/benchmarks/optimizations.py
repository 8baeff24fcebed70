"""Measures time, memory and loss of each training switch on this machine, alone and all together.

    python utilities/benchmarks/optimizations.py --append

Each case runs the real train step on the same batch, in its own process. Its steps alternate with steps of a process
without any switch, so that other load on the machine affects both, and the table shows the median ratio. The loss after
50 steps is measured with a smaller model on one batch. `--append` adds the table to docs/benchmarks.md.
"""

import argparse
import json
import os
import sys
import time
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench_extra import Worker, answer_requests, append_table  # noqa: E402

from myxtts.devices.machine import peak_resident_bytes, reset_peak, resident_bytes  # noqa: E402

CASES = {
    "none": {},
    "bfloat16": {"precision": "mixed_bfloat16"},
    "float16": {"precision": "mixed_float16"},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "memory-efficient attention": {"attention": "memory-efficient"},
    "XLA": {"xla": True},
    "accumulation": {"gradient_accumulation": 2},
    "weight averages": {"ema": 0.999},
}
CASES["all"] = {name: value for case, own in CASES.items() if case != "float16" for name, value in own.items()}
"""Settings of `TrainingConfig` for each case. The batch is the same in all cases; accumulation splits it in two."""
MEDIUM = dict(layers=8, width=512, heads=8, conditioning_blocks=6, conditioning_heads=8, perceiver_heads=8)
SMALL = dict(layers=4, width=128, heads=4, conditioning_blocks=2, conditioning_heads=4, perceiver_heads=4)
NUM_TEXT, CONDITIONING_FRAMES = 60, 258
LOSS_STEPS, LOSS_TOKENS = 50, 200
HEADER = ["tokens", "switch", "step", "time ratio", "peak memory", "memory ratio", "loss after 50 steps"]


def main():
    """Runs the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--tokens", type=int, default=900, help="sequence length, conditioning and text included")
    parser.add_argument("--batch", type=int, default=2, help="sequences per step, an even number (default: 2)")
    parser.add_argument("--repeats", type=int, default=4, help="pairs of steps per case (default: 4)")
    parser.add_argument("--no-losses", action="store_true", help="leave out the losses after 50 steps")
    parser.add_argument("--append", action="store_true", help="write the table to docs/benchmarks.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        answer_requests(lambda: responder(**json.loads(arguments.worker)))
        return
    title = f"Training switches, GPT of 8 layers, width 512, batch {arguments.batch}"
    append_table(title, "optimizations.py", HEADER, measure(arguments), arguments.append)


def measure(arguments):
    """Returns the rows of the table. The first is the case `none`; the others contain ratios to this case."""

    def start(case):
        request = {"case": case, "tokens": arguments.tokens, "batch": arguments.batch}
        return Worker(sys.executable, __file__, "--worker", json.dumps(request))

    with start("none") as plain:
        plain_peak = plain.ask("memory")
        plain_loss = 0.0 if arguments.no_losses else plain.ask("losses")
        none = ["none", f"{plain.ask('step'):.2f} s", "1", f"{plain_peak:.0f} MB", "1", plain_loss]
        rows = [[arguments.tokens, *none]]
        for case in (case for case in arguments.cases if case != "none"):
            with start(case) as worker:
                peak = worker.ask("memory")
                pairs = [(plain.ask("step"), worker.ask("step")) for _ in range(arguments.repeats)]
                loss = "" if arguments.no_losses else f"{worker.ask('losses') - plain_loss:+.5f}"
            step, ratio = (median(column) for column in zip(*((own, own / base) for base, own in pairs)))
            times, memory = [f"{step:.2f} s", f"{ratio:.2f}"], [f"{peak:.0f} MB", f"{peak / plain_peak:.2f}"]
            rows.append([arguments.tokens, case, *times, *memory, loss])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return rows


def responder(case, tokens, batch):
    """Creates the train step of a case; returns a function that answers the requests `memory`, `step` and `losses`."""
    step = Step(case, MEDIUM, tokens, batch)
    losses = lambda: Step(case, SMALL, LOSS_TOKENS, 4).loss_after(LOSS_STEPS)
    known = {"memory": step.peak_memory, "step": step.timed, "losses": losses}
    return lambda request: known[request]()


class Step:
    """The train step of a case with its batch, set up as in a training run."""

    def __init__(self, case, shape, tokens, batch):
        import keras
        import tensorflow as tf
        from memory_estimate import full_batch, training_step

        from myxtts.config.config import DataConfig, ModelConfig, TrainingConfig, XTTSConfig
        from myxtts.memory.estimates import Shapes
        from myxtts.training.loop.switches import settle_switches

        self.tf, self.rss_before = tf, resident_bytes()
        device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name
        self.device, self.taken = device.removeprefix("/device:"), 0
        training = TrainingConfig(**CASES[case])
        accumulation = training.gradient_accumulation
        model_config = ModelConfig(**shape, num_text_tokens=512, max_audio_tokens=max(tokens, 260))
        config = XTTSConfig(model=model_config, data=DataConfig(batch_size=batch // accumulation), training=training)
        switches = settle_switches(training, model_config, device)
        keras.utils.set_random_seed(0)
        self.step = training_step("gpt", config, switches, accumulation, device, xla=switches.xla, ema=switches.ema)
        num_codes = tokens - model_config.num_latents - NUM_TEXT - 7
        with tf.device(device):
            whole = full_batch("gpt", model_config, Shapes(batch, NUM_TEXT, num_codes, CONDITIONING_FRAMES))
            parts = (tf.split(field, accumulation) for field in whole)
            self.batches = [type(whole)(*fields) for fields in zip(*parts)]

    def take(self, learning_rate=1e-5):
        """Takes one step and returns its loss."""
        self.taken += 1
        return float(self.step(self.batches, learning_rate, (0, self.taken))["loss"])

    def timed(self):
        """Takes one step and returns its duration in seconds."""
        began = time.perf_counter()
        self.take()
        return time.perf_counter() - began

    def peak_memory(self):
        """Returns the peak memory of the second step in MB. On a CPU, this is the RSS growth since `__init__`."""
        self.take()
        memory = self.tf.config.experimental
        reset_peak()
        try:
            memory.reset_memory_stats(self.device)
        except ValueError:
            self.take()
            return (peak_resident_bytes() - self.rss_before) / 1e6
        self.take()
        return memory.get_memory_info(self.device)["peak"] / 1e6

    def loss_after(self, steps):
        """Returns the loss after `steps` steps on the same batch."""
        for _ in range(steps):
            self.take(1e-3)
        return self.take(1e-3)


if __name__ == "__main__":
    main()
