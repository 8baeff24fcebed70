"""What training a stage would take, under each switch, and the largest batch per GPU: as data and as lines."""

import shutil
from dataclasses import replace
from typing import Any

from myxtts.config.checks import UserError
from myxtts.config.config import TrainingConfig, XTTSConfig
from myxtts.config.optimizations import requested_switches
from myxtts.config.stages import STAGES
from myxtts.devices.machine import BYTES_PER_GB
from myxtts.memory import ESTIMATES
from myxtts.memory.estimates import RESERVED_GB, Optimizations, Shapes, largest_batch

SHOWN_LORA_RANK = 16
SHOWN_PARTS = 4
"""Accumulation is shown as the same batch in so many parts."""
SETTLED = {"precision": "float32", "attention": "standard", "gradient_checkpointing": False, "ema": 0.0}
"""The switches that change memory, and what `auto` is planned as: the choice that needs more."""
SHOWN = {
    "none": Optimizations(),
    "mixed precision": Optimizations(precision="mixed_bfloat16"),
    "gradient checkpointing": Optimizations(gradient_checkpointing=True),
    "memory-efficient attention": Optimizations(attention="memory-efficient"),
    "all three": Optimizations("mixed_bfloat16", True, "memory-efficient"),
    f"accumulation of {SHOWN_PARTS} parts": Optimizations(accumulation=SHOWN_PARTS),
    f"LoRA of rank {SHOWN_LORA_RANK}": Optimizations(lora_rank=SHOWN_LORA_RANK),
    "weight averaging (EMA)": Optimizations(ema=True),
}
"""Those that change nothing in a stage are left out."""
TERMS = "parameters slots averages accumulators gradients activations working peak".split()


def asked_for(training: TrainingConfig) -> tuple[Optimizations, dict[str, str]]:
    """What a configuration asks for, and what each switch is planned as that the hardware settles (`auto`)."""
    switches = {name: value for name, (value, _) in requested_switches(training).items() if name in SETTLED}
    settled = {name: SETTLED[name] for name, value in switches.items() if value == "auto"}
    switches = switches | settled | {"ema": bool(switches["ema"])}
    adapters = {"lora_rank": training.gpt.lora_rank, "lora_targets": training.gpt.lora_targets}
    return Optimizations(**switches, **adapters, accumulation=training.gradient_accumulation), settled


class MemoryReport(dict[str, Any]):
    """What `memory_report` finds, as JSON types; as text, tables for people."""

    def __str__(self) -> str:
        return describe(self)


def memory_report(config: XTTSConfig, stage: str, clip_seconds: float | None, gpus_gb: list[float]) -> MemoryReport:
    """Memory and largest batches of a stage under every switch that matters to it, as JSON types.

    Args:
        config: With `model.num_text_tokens` set.
        stage: Its name.
        clip_seconds: Longest clip of the data; None takes `data.max_seconds`.
        gpus_gb: Memories of GPUs to fit batches into, in GB.

    Raises:
        UserError: There is no estimate for the stage.
    """
    entry, settings, model = STAGES[stage], config.stage(stage), config.model
    estimate = ESTIMATES.get(stage)
    if estimate is None:
        known = ", ".join(ESTIMATES)
        raise UserError(f"--stage must be one whose memory can be estimated: {known}. Received: {stage}.")
    seconds = min(clip_seconds or config.data.max_seconds, settings.crop_seconds or float("inf"))
    shapes = Shapes.of_data(config.data, settings.batch_size, seconds)
    shapes = replace(shapes, slice_frames=getattr(settings, "frames", shapes.slice_frames))
    asked, settled = asked_for(config.training)
    found, seen = {}, []
    for name, optimizations in {"as asked": asked, **SHOWN}.items():
        parts = 1 if name == "as asked" else optimizations.accumulation
        part = replace(shapes, batch=-(-shapes.batch // parts))
        memory = estimate(model, part, optimizations, True)
        if memory in seen and name not in ("as asked", "none"):
            continue
        seen += [memory] if name != "as asked" else []
        rooms = {gb: int((gb - RESERVED_GB) * BYTES_PER_GB) for gb in gpus_gb}
        fits = {gb: largest_batch(model, shapes, optimizations, room, True, estimate) for gb, room in rooms.items()}
        found[name] = {"batch": part.batch, **memory.as_dict(), "largest_batch": fits}
    frozen = {name: ESTIMATES[name](model, shapes).parameters for name in entry.builds_on}
    shown = {"text_tokens": shapes.text, "conditioning_frames": shapes.frames} if entry.conditioned else {}
    facts = {"stage": stage, "model_size": model.size, "longest_clip": {"codes": shapes.codes, **shown}}
    return MemoryReport(**facts, frozen_bytes=frozen, settled=settled, variants=found)


def describe(report: dict[str, Any]) -> str:
    """The report in lines for people."""
    variants = report["variants"]
    width = max(map(len, variants))
    longest = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report["longest_clip"].items())
    gpus = "".join(f"{gb:>7g} GB" for gb in variants["none"]["largest_batch"])
    lines = [f"{report['stage'].upper()} stage, size {report['model_size']}; longest clip {longest}", "", "MEMORY, MB:"]
    # On a narrow terminal the last columns, the peak among them.
    terms = TERMS[-max(1, (shutil.get_terminal_size((200, 24)).columns - width - 9) // 13) :]
    lines += [f"  {'':{width}}  batch" + "".join(f"{term:>13}" for term in terms)]
    for name, found in variants.items():
        lines += [f"  {name:{width}}{found['batch']:7}" + "".join(f"{found[term] / 2**20:13,.0f}" for term in terms)]
    lines += ["", f"LARGEST BATCH by memory of the GPU ({RESERVED_GB:g} GB of it left to CUDA and its libraries):"]
    lines += [f"  {'':{width}}{gpus}"]
    for name, found in variants.items():
        lines += [f"  {name:{width}}" + "".join(f"{batch or 'none':>10}" for batch in found["largest_batch"].values())]
    lines += [""]
    for name, value in report["settled"].items():
        lines += [f"Note: {name} auto is planned as {value}, which takes more memory than what it may choose."]
    on_top = [f"the frozen {name.upper()} ({size / 2**20:,.0f} MB)" for name, size in report["frozen_bytes"].items()]
    lines += [f"On one device, add {' and '.join([*on_top, 'the data work'])}."]
    lines += ["Without XLA, which shares memory better; docs/benchmarks.md compares estimates with measured peaks."]
    return "\n".join(lines)
