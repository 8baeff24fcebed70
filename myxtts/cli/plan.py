"""`myxtts plan`: how much memory training would take, with and without each optimisation, and the largest batch per GPU.

Everything is arithmetic on the settings (`myxtts/planning/memory.py`); no TensorFlow is imported and nothing is measured.
"""

import argparse
from dataclasses import replace

from myxtts.cli.errors import exits_with_sentence
from myxtts.cli.train import build_parser as build_training_parser
from myxtts.cli.train import config_from_arguments
from myxtts.config.checks import UserError
from myxtts.config.optimizations import requested_switches
from myxtts.devices.machine import BYTES_PER_GB
from myxtts.planning.memory import FLOAT, RESERVED_GB, Optimizations, Shapes, count_dvae, largest_batch, plan_memory
from myxtts.storage.files import write_json

GPU_GB = (8, 12, 16, 24, 48, 80)
VOCABULARY = 512
"""Text tokens while no tokenizer is known: what `data.vocabulary_size` allows by default."""
SHOWN_LORA_RANK = 16
SHOWN_PARTS = 4
"""Accumulation is shown as the same batch in so many parts."""
SETTLED = {"precision": "float32", "attention": "standard", "gradient_checkpointing": False, "ema": 0.0}
"""The switches that change memory, and what the plan takes `auto` as: the choice that needs more."""
TERMS = ("parameters", "slots", "averages", "accumulators", "gradients", "activations", "working", "peak")


def build_parser():
    """The flags of train_main.py and those of this command."""
    parser = build_training_parser()
    parser.prog = "myxtts plan"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Predict the memory of training the GPT stage with the same flags as train_main.py: by what it is "
        "for, with and without each optimisation, and the largest batch for usual GPUs."
    )
    plan = parser.add_argument_group("plan")
    plan.add_argument(
        "--clip-seconds",
        type=float,
        help="longest clip of the data (default: data.max_seconds, what training would let in)",
    )
    plan.add_argument(
        "--text-tokens", type=int, default=VOCABULARY, help=f"size of the vocabulary (default: {VOCABULARY})"
    )
    plan.add_argument(
        "--gpu-memory",
        type=float,
        action="append",
        metavar="GB",
        help=f"GPU to find the largest batch for; may be repeated (default: {', '.join(map(str, GPU_GB))})",
    )
    plan.add_argument("--json", metavar="FILE", help="write the figures there as well")
    return parser


def asked_for(training):
    """`Optimizations` that a configuration asks for, and notes on what `auto`, which the hardware settles, is taken as."""
    switches = {name: value for name, (value, _) in requested_switches(training).items() if name in SETTLED}
    notes = [
        f"{name} auto is planned as {SETTLED[name]}, which takes more memory than what it may choose"
        for name, value in switches.items()
        if value == "auto"
    ]
    settled = {name: SETTLED[name] if value == "auto" else value for name, value in switches.items()}
    settled["ema"] = bool(settled["ema"])
    return Optimizations(**settled, accumulation=training.gradient_accumulation, lora_rank=training.lora_rank), notes


def variants(asked):
    """`{name: Optimizations}`: what was asked for, nothing, each switch alone, all that change no trained weight."""
    each = {
        "mixed precision": {"precision": "mixed_bfloat16"},
        "gradient checkpointing": {"gradient_checkpointing": True},
        "memory-efficient attention": {"attention": "memory-efficient"},
    }
    together = {name: value for switch in each.values() for name, value in switch.items()}
    return {
        "as asked": asked,
        "none": Optimizations(),
        **{name: Optimizations(**switch) for name, switch in each.items()},
        "all three": Optimizations(**together),
        f"accumulation of {SHOWN_PARTS} parts": Optimizations(accumulation=SHOWN_PARTS),
        f"LoRA of rank {SHOWN_LORA_RANK}": Optimizations(lora_rank=SHOWN_LORA_RANK),
        "weight averaging (EMA)": Optimizations(ema=True),
    }


def make_plan(config, shapes, gpu_gigabytes):
    """Every variant's memory and largest batches, as JSON types.

    Args:
        config: `XTTSConfig` with `model.num_text_tokens` set.
        shapes: `Shapes` of the largest batch.
        gpu_gigabytes: Memories of GPUs to fit batches into.
    """
    asked, notes = asked_for(config.training)
    found = {}
    for name, optimizations in variants(asked).items():
        parts = 1 if name == "as asked" else optimizations.accumulation
        part = replace(shapes, batch=-(-shapes.batch // parts))
        memory = plan_memory(config.model, part, optimizations, config.data.extend_vocabulary)
        fits = {
            gigabytes: largest_batch(
                config.model,
                shapes,
                optimizations,
                int((gigabytes - RESERVED_GB) * BYTES_PER_GB),
                config.data.extend_vocabulary,
            )
            for gigabytes in gpu_gigabytes
        }
        found[name] = {"batch": part.batch, **memory.as_dict(), "largest_batch": fits}
    return {
        "model_size": config.model.size,
        "text_tokens": shapes.text,
        "codes": shapes.codes,
        "frames": shapes.frames,
        "dvae_bytes": FLOAT * sum(count_dvae(config.model)),
        "notes": notes,
        "variants": found,
    }


def describe(plan):
    """The plan in lines for people."""
    width = max(map(len, plan["variants"]))
    lines = [
        f"GPT stage, size {plan['model_size']}; longest clip {plan['codes']} codes, {plan['text_tokens']} text tokens, "
        f"{plan['frames']} conditioning frames",
        "",
        "MEMORY, MB:",
        "  " + "".ljust(width) + "  batch" + "".join(f"{term:>13}" for term in TERMS),
    ]
    for name, found in plan["variants"].items():
        lines += [f"  {name:{width}}{found['batch']:7}" + "".join(f"{found[term] / 2**20:13,.0f}" for term in TERMS)]
    lines += [
        "",
        f"LARGEST BATCH by memory of the GPU ({RESERVED_GB:g} GB of it left to CUDA and its libraries):",
        "  "
        + "".ljust(width)
        + "".join(f"{gigabytes:>7g} GB" for gigabytes in plan["variants"]["none"]["largest_batch"]),
    ]
    for name, found in plan["variants"].items():
        lines += [f"  {name:{width}}" + "".join(f"{batch or 'none':>10}" for batch in found["largest_batch"].values())]
    return "\n".join(
        [
            *lines,
            "",
            *(f"Note: {note}." for note in plan["notes"]),
            f"With one device, the frozen DVAE ({plan['dvae_bytes'] / 2**20:,.0f} MB) and the data work come on top.",
            "Without XLA, which shares memory better; docs/benchmarks.md holds the plan against measured peaks.",
        ]
    )


@exits_with_sentence
def main(argv=None):
    """Plans and prints; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    config = config_from_arguments(arguments)
    gpus = arguments.gpu_memory or GPU_GB
    for flag, value in (
        ("--clip-seconds", arguments.clip_seconds),
        ("--text-tokens", arguments.text_tokens),
        ("--gpu-memory", min(gpus) - RESERVED_GB),
    ):
        if value is not None and value <= 0:
            raise UserError(
                f"{flag} must be above {RESERVED_GB if flag == '--gpu-memory' else 0:g}. Received: "
                f"{value + (RESERVED_GB if flag == '--gpu-memory' else 0):g}."
            )
    config = replace(config, model=replace(config.model, num_text_tokens=arguments.text_tokens))
    shapes = Shapes.of_data(config.data, config.stage("gpt").batch_size, arguments.clip_seconds)
    plan = make_plan(config, shapes, gpus)
    print(describe(plan))
    if arguments.json:
        write_json(arguments.json, plan)
    return 0
