"""Measures GPT train steps on one GPU, with noise as audio: fraction of the peak FLOP/s, memory, and time by kernel.

    python utilities/benchmarks/gpu_steps.py --cases normal:16 normal:16:xla big:24 big:24:xla --peak-tflops 989
    MYXTTS_ACCELERATOR=cpu python utilities/benchmarks/gpu_steps.py --cases nano:2 nano:2:xla --seconds 2 --steps 2

A case is a model size, a batch size, and flags of train_main.py without their dashes; bfloat16 is the default. Each
case runs in its own process. The processes compile at the same time, and are then timed one after another. The fraction
of the peak assumes an estimated number of operations per step: 6 per weight and position (per weight and mel frame in
the conditioning encoder), plus those of attention. `--kernels N` prints the N kernels that take the most time, as
measured by TensorFlow's profiler.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench_extra import Worker, answer_requests  # noqa: E402

VOCABULARY = 6681
"""Number of text tokens of XTTS v2."""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["normal:16", "big:8", "big:24"], help="model size:batch size")
    parser.add_argument("--seconds", type=float, default=11.0, help="length of each clip")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after three that are not")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="dense bfloat16 peak of the chip")
    parser.add_argument("--kernels", type=int, default=0, help="number of kernels to print")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def responder(case: str, own: argparse.Namespace) -> Callable[[str], dict]:
    """Takes the first steps of a case; returns a function that answers `ready` with {} and `time` with measurements."""
    from dataclasses import replace

    from myxtts.cli.train import build_parser, config_from_arguments
    from myxtts.config.stages import STAGES
    from myxtts.devices.configuration import early_gpu_configuration

    size, batch, *flags = case.split(":")
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    flags = ["--model-size", size, "--batch-size", batch, "--precision", "mixed_bfloat16", *(f"--{f}" for f in flags)]
    config = config_from_arguments(build_parser("gpu_steps.py").parse_args(flags))
    config = replace(config, model=replace(config.model, num_text_tokens=VOCABULARY))
    plan = early_gpu_configuration()

    import tensorflow as tf

    from myxtts.training.watching.measurement import noise_trainer, synthetic_waves, take_step

    stage = config.training.stage if config.training.stage in STAGES else "gpt"
    with tempfile.TemporaryDirectory() as folder:
        trainer = noise_trainer(config, plan, folder, stage)
    prepared = trainer.replicas.transfer(trainer.preparation(synthetic_waves(config, own.seconds, int(batch)), 0))

    def step(number=0):
        began = time.perf_counter()
        take_step(trainer, prepared, number)
        return time.perf_counter() - began

    first, _, _ = (step(number) for number in range(3))
    memory, device = tf.config.experimental, plan.model_device

    def respond(request):
        if request == "ready":
            return {}
        if "GPU" in device:
            memory.reset_memory_stats(device)
        seconds = median(step(number) for number in range(own.steps))
        flops = operations(config.model, trainer.train_step.trainable, prepared) if stage == "gpt" else None
        peak = memory.get_memory_info(device)["peak"] / 1e9 if "GPU" in device else None
        kernels = own.kernels and profile(step, own.kernels)
        return dict(first_s=first, step_s=seconds, tflops=flops and flops / seconds / 1e12, gb=peak, kernels=kernels)

    return respond


def operations(model, weights: dict, batch) -> float:
    """Returns the number of floating-point operations of a step, forward and backward."""
    sizes = Counter()
    for name, weight in weights.items():
        part = name.split("/")[0]
        sizes["block" if part.startswith("block_") else part] += int(weight.shape.num_elements())
    clips, text, codes = batch.text.shape[0], batch.text.shape[1] + 2, batch.codes.shape[1] + 4
    frames, positions = batch.conditioning_mel.shape[1], model.num_latents + text + codes
    products = positions * sizes["block"] + frames * sizes["conditioning_encoder"]
    products += text * sizes["text_head"] + codes * sizes["audio_head"]
    attended = model.layers * positions**2 + model.conditioning_blocks * frames**2
    return clips * (6.0 * products + 12.0 * attended * model.width)


def profile(step, count: int) -> dict:
    """Profiles one step; returns its time, GPU busy time, kernel launches, and the `count` longest kernels and ops."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        wall = step()
        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        space.ParseFromString(next(Path(folder).rglob("*.xplane.pb")).read_bytes())
    kernels, calls, operations_of = Counter(), Counter(), Counter()
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in (line for line in plane.lines if line.name.startswith("Stream")):
            for event in line.events:
                name, ms = plane.event_metadata[event.metadata_id].name, event.duration_ps / 1e9
                kernels[name] += ms
                calls[name] += 1
                for stat in event.stats:
                    if plane.stat_metadata[stat.metadata_id].name in ("tf_op", "name"):
                        text = stat.str_value or plane.stat_metadata[stat.ref_value].name
                        operations_of[text.rsplit(":", 1)[-1]] += ms
    longest = [(round(ms, 3), calls[name], name[:110]) for name, ms in kernels.most_common(count)]
    by_operation = [(round(ms, 3), name[:80]) for name, ms in operations_of.most_common(count)]
    total = dict(wall_ms=1e3 * wall, busy_ms=sum(kernels.values()), launches=sum(calls.values()))
    return {**total, "by_kernel": longest, "by_operation": by_operation}


def main():
    own = parse()
    if own.worker:
        answer_requests(lambda: responder(own.cases[0], own))
        return
    options = ["--worker", "--seconds", own.seconds, "--steps", own.steps, "--kernels", own.kernels, "--cases"]
    with ExitStack() as running:
        workers = {case: running.enter_context(Worker(sys.executable, __file__, *options, case)) for case in own.cases}
        for worker in workers.values():
            worker.ask("ready")
        print("| case | first step | step | share of peak | peak memory |\n|---|---|---|---|---|")
        for case, worker in workers.items():
            found = worker.ask("time")
            share = found["tflops"] and f"{found['tflops'] / own.peak_tflops:.1%}"
            memory = found["gb"] and f"{found['gb']:.1f} GB"
            row = f"| {case} | {found['first_s']:.1f} s | {1e3 * found['step_s']:.1f} ms | {share} | {memory} |"
            print(row, flush=True)
            if profile_of := found["kernels"]:
                print({key: round(profile_of[key], 1) for key in ("wall_ms", "busy_ms", "launches")})
                for name in ("by_kernel", "by_operation"):
                    print(*profile_of[name], sep="\n", flush=True)


if __name__ == "__main__":
    main()
