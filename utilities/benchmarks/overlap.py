"""How much of the data work hides behind the training: two logical CPU devices, one core each, the real model.

    python utilities/benchmarks/overlap.py [--steps 40] [--json FILE] [training flags of train_main.py]

Two cases. `alike`: the DVAE is sized so that data work D and training T take equally long; the asynchronous pipeline is
compared with the synchronous one (prepare, copy, train in turn). `third`: D is a third of T; the pipeline is compared
with training alone. Every device computes on one core: TensorFlow's single-threaded executor runs its operations. Wants
two idle cores, and says how busy others kept the machine meanwhile.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

CASES = {"alike": 1.0, "third": 1.0 / 3.0}
"""Data work as a share of the training work."""
NARROWEST_DVAE = 8
GOALS = ("speedup >= 1.6, efficiency >= 0.90, variation < 20 % (alike); step within 5 % of training alone (third)")


def parse(argv):
    from myxtts.cli.train import build_parser

    parser = build_parser()
    parser.prog, parser.description = "overlap.py", __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=40, help="steps of each measurement (default: 40)")
    parser.add_argument("--case", choices=CASES, action="append", help="measure this case alone")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    parser.set_defaults(virtual_devices=2, batch_size=32, model_size="nano")
    return parser.parse_args(argv)


class OnOneCore:
    """A call whose operations run one after the other in the thread that makes it, in whatever thread that is."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *arguments):
        import tensorflow as tf

        with tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            return self.call(*arguments)


def make_trainer(config, plan, dvae_hidden):
    """A GPT trainer whose devices compute on one core each, with an untrained DVAE of this width."""
    import tensorflow as tf

    from myxtts.models.xtts import XTTS
    from myxtts.training.trainer import XTTSTrainer

    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dvae_hidden=dvae_hidden))
    with tf.device(plan.data_device):
        tokenizer_model = XTTS(config.model, parts=("dvae",))
    trainer = XTTSTrainer(config, stage="gpt", tokenizer_model=tokenizer_model, plan=plan)
    trainer.preparation = OnOneCore(trainer.preparation)
    trainer.train_step = OnOneCore(trainer.train_step)
    return trainer


def fitting_width(config, plan, dataset, share):
    """The DVAE width whose data work is nearest to `share` of the training work: D grows with its square."""
    from myxtts.training.measurement import measure_phases

    narrow, wide = config.model.dvae_hidden // 2, config.model.dvae_hidden
    phases = [measure_phases(make_trainer(config, plan, width), dataset, 8) for width in (narrow, wide)]
    slope = (phases[1].data - phases[0].data) / (wide ** 2 - narrow ** 2)
    wanted = share * min(found.train for found in phases) - phases[0].data
    width = max(0.0, narrow ** 2 + wanted / slope) ** 0.5
    return max(NARROWEST_DVAE, round(width / 8) * 8)


def measure(case, config, plan, dataset, num_steps):
    """Figures of one case as a dictionary; times in milliseconds."""
    from myxtts.training.measurement import measure_phases, measure_pipeline

    trainer = make_trainer(config, plan, fitting_width(config, plan, dataset, CASES[case]))
    phases = measure_phases(trainer, dataset, num_steps)
    busy_before, began = others_seconds(), time.perf_counter()
    overlapped = measure_pipeline(trainer, dataset, num_steps)
    others = (others_seconds() - busy_before) / (time.perf_counter() - began)
    trainer.enable_async_pipeline = False
    synchronous = measure_pipeline(trainer, dataset, num_steps)
    return {
        "case": case, "dvae_hidden": trainer.tokenizer_model.config.dvae_hidden,
        "data_ms": 1e3 * phases.data, "train_ms": 1e3 * phases.train, "load_ms": 1e3 * phases.load,
        "synchronous_ms": 1e3 * synchronous.mean, "asynchronous_ms": 1e3 * overlapped.mean,
        "speedup": synchronous.mean / overlapped.mean, "ceiling": phases.ceiling,
        "efficiency": max(phases.data, phases.train) / overlapped.mean,
        "over_training_alone": overlapped.mean / phases.train, "variation": overlapped.variation,
        "stall": overlapped.stall, "cores_used_by_others": others}


def others_seconds():
    """Processor seconds that other processes have used since the machine started."""
    import psutil

    total = psutil.cpu_times()
    return total.user + total.nice + total.system - sum(os.times()[:2])


def main(argv=None):
    arguments = parse(argv)
    os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3")
    from myxtts.cli.train import config_from_arguments, configure_devices, with_data

    config = config_from_arguments(arguments)
    plan = configure_devices(config, arguments)
    config = with_data(config, arguments.download_ljspeech)
    from myxtts.data.ljspeech import LJSpeechDataset

    with tempfile.TemporaryDirectory() as folder:
        training = dataclasses.replace(config.training, checkpoint_dir=folder, reset_training=True)
        # One bucket: every batch has one shape, that of the longest clip, so steps differ by chance alone.
        data = dataclasses.replace(config.data, num_buckets=1)
        dataset = LJSpeechDataset.open(dataclasses.replace(config, training=training, data=data))
        found = []
        for case in arguments.case or CASES:
            figures = measure(case, dataset.config, plan, dataset, arguments.steps)
            found.append(figures)
            print(f"{case}: D {figures['data_ms']:.0f} ms, T {figures['train_ms']:.0f} ms, synchronous "
                  f"{figures['synchronous_ms']:.0f} ms, asynchronous {figures['asynchronous_ms']:.0f} ms")
            print(f"  speed-up {figures['speedup']:.2f} (ceiling {figures['ceiling']:.2f}), overlap efficiency "
                  f"{figures['efficiency']:.2f}, step {figures['over_training_alone']:.2f} x training alone, variation "
                  f"{100 * figures['variation']:.1f}%, stall {100 * figures['stall']:.1f}%, other processes used "
                  f"{figures['cores_used_by_others']:.2f} cores")
    print(f"Goals on an idle machine: {GOALS}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
