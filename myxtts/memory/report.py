"""Report of `myxtts plan`: estimated memory and largest batch size of a stage, with and without optimizations."""

import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from myxtts.config.checks import read_toml, require
from myxtts.config.config import ModelConfig, TrainingConfig, XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.config.training import SWITCHES, requested_switches
from myxtts.devices.machine import BYTES_PER_GB
from myxtts.memory import estimates, parts
from myxtts.memory.estimates import FLOAT, RESERVED_GB, Optimizations, Shapes, largest_batch
from myxtts.storage.files import CheckpointError

if TYPE_CHECKING:
    from myxtts.storage.checkpoint import CheckpointStore

ESTIMATES: dict[str, Callable] = {
    "dvae": estimates.estimate_dvae,
    "gpt": estimates.estimate_gpt,
    "speaker": parts.estimate_speaker,
    "decoder": parts.estimate_decoder,
}
"""Functions that estimate a stage's memory, by stage. All accept the arguments of `estimates.estimate_gpt`."""
SHOWN: dict[str, dict[str, Any]] = read_toml(__file__, "report.toml")
"""Rows of the report: `{name: {field of Optimizations: value}}`. Rows without effect on a stage are left out."""
TERMS = "parameters slots averages accumulators gradients activations working peak".split()
"""Columns of the report: fields of `MemoryEstimate`."""


def requested_optimizations(training: TrainingConfig, stage: str) -> tuple[Optimizations, dict[str, str]]:
    """Returns a stage's `Optimizations`, and the values assumed for settings that are `auto`, as `{name: value}`."""
    # The default replaces `auto`, because it needs the most memory.
    known = Optimizations.__dataclass_fields__
    switches = {name: value for name, (value, _) in requested_switches(training, stage).items() if name in known}
    settled = {name: SWITCHES[name] for name, value in switches.items() if value == "auto"}
    switches = switches | settled | {"ema": bool(switches["ema"])}
    adapters = {"lora_rank": training.gpt.lora_rank, "lora_targets": training.gpt.lora_targets}
    return Optimizations(**switches, **adapters, accumulation=training.gradient_accumulation), settled


class MemoryReport(dict[str, Any]):
    """Result of `memory_report`: a dictionary of JSON types. `str()` formats the dictionary as tables."""

    def __str__(self) -> str:
        variants = self["variants"]
        width = max(map(len, variants))
        longest = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self["longest_clip"].items())
        # A narrow terminal shows the last columns only, which include the peak.
        columns = shutil.get_terminal_size((80, 24)).columns
        terms = TERMS[-max(1, (columns - width - 9) // 13) :]
        title = f"{self['stage'].upper()} stage, size {self['model_size']}; longest clip {longest}"
        lines = [textwrap.fill(title, columns), "", "MEMORY, MB:"]
        lines += [f"  {'':{width}}  batch" + "".join(f"{term:>13}" for term in terms)]
        sizes = ["", f"LARGEST BATCH by GPU memory, {RESERVED_GB:g} GB of it left to CUDA and its libraries:"]
        sizes += [f"  {'':{width}}" + "".join(f"{gb:>5g} GB" for gb in variants["none"]["largest_batch"])]
        for name, found in variants.items():
            figures = "".join(f"{found[term] / 2**20:13,.0f}" for term in terms)
            lines += [f"  {name:{width}}{found['batch']:7}{figures}"]
            batches = found["largest_batch"].values()
            sizes += [f"  {name:{width}}" + "".join(f"{batch or 'none':>8}" for batch in batches)]
        settle = "Note: {} auto is planned as {}, the choice that needs the most memory.".format
        notes = [settle(name, value or "off") for name, value in self["settled"].items()]
        frozen = [f"the frozen {name.upper()} ({size / 2**20:,.0f} MB)" for name, size in self["frozen_bytes"].items()]
        notes += [f"Each of {self['shares']} devices has this memory and batch."] * (self["shares"] > 1)
        notes += [f"On one device, add {' and '.join([*frozen, 'the data work'])}."]
        times = [self.describe_time()] if "seconds" in self else []
        return "\n".join([*lines, *sizes, "", *(textwrap.fill(note, columns) for note in notes), *times])

    def describe_time(self) -> str:
        """Formats the estimated time of each stage. Only reports of `myxtts.plan(time=True)` contain these times."""
        text = f"TIME: not estimated, because {self.get('not_timed')}. Training prints the time left after some steps."
        if self["seconds"]:
            each = (f"{stage} {tqdm.format_interval(seconds)}" for stage, seconds in self["seconds"].items())
            total = tqdm.format_interval(sum(self["seconds"].values()))
            text = f"TIME on this machine, by trial steps: {total} ({', '.join(each)})."
        return textwrap.fill(text, shutil.get_terminal_size((80, 24)).columns)


def memory_report(
    config: XTTSConfig, stage: str, clip_seconds: float | None, gpus_gb: list[float], shares: int = 1
) -> MemoryReport:
    """Estimates a stage's memory and largest batch per training device, with different optimizations (see `SHOWN`).

    Args:
        config: Configuration with `model.num_text_tokens` set.
        stage: Name of the stage; raises `ConfigError` if it is unknown.
        clip_seconds: Duration of the longest clip (default: `data.max_seconds`).
        gpus_gb: GPU memory sizes in GB. The largest batch is found for each size.
        shares: Number of training devices, each of which gets an equal part of a batch.
    """
    estimate, settings, model = ESTIMATES.get(stage), config.stage(stage), config.model
    require(estimate is not None, "--stage", f"one of {', '.join(ESTIMATES)} to estimate its memory", stage)
    shapes = Shapes.of_data(config.data, -(-settings.batch_size // shares), clip_seconds, settings)
    requested, settled = requested_optimizations(config.training, stage)
    found, seen = {}, []
    rows = {name: replace(requested, **added) for name, added in SHOWN.items()}
    for name, optimizations in {"as asked": requested, "none": Optimizations(), **rows}.items():
        part = replace(shapes, batch=-(-shapes.batch // SHOWN.get(name, {}).get("accumulation", 1)))
        memory = estimate(model, part, optimizations)
        if memory in seen and name not in ("as asked", "none"):
            continue
        seen += [memory]
        rooms = {gb: int((gb - RESERVED_GB) * BYTES_PER_GB) for gb in gpus_gb}
        fits = {gb: largest_batch(model, shapes, optimizations, room, estimate) for gb, room in rooms.items()}
        sums = {"resident": memory.resident, "step": memory.step, "peak": memory.peak}
        found[name] = {"batch": part.batch, **asdict(memory), **sums, "largest_batch": fits}
    frozen = {name: ESTIMATES[name](model, shapes).parameters for name in STAGES[stage].builds_on}
    shown = {"text_tokens": shapes.text, "conditioning_frames": shapes.frames} if STAGES[stage].conditioned else {}
    facts = dict(stage=stage, model_size=model.size, shares=shares, longest_clip={"codes": shapes.codes, **shown})
    return MemoryReport(**facts, frozen_bytes=frozen, settled=settled, variants=found)


def check_claims(model: ModelConfig, stores: "Mapping[str, CheckpointStore]") -> None:
    """Raises `CheckpointError` if `model`, as described by `config.json`, is much larger than the stored weights.

    Without this check, building such a model could use up all memory. `stores` contains the checkpoints by stage.
    """
    for part in ESTIMATES.keys() & stores.keys():
        store, step = stores[part], stores[part].steps()[-1]
        store.verify(step)  # so that a damaged file is reported as such
        file = store.path(step) / "model.safetensors"
        claimed = ESTIMATES[part](model, Shapes(1, 1, 1, 1)).parameters
        if part == "decoder":  # stored without the discriminators
            claimed = FLOAT * parts.count_decoder(model)
        most, held = claimed / 2**20, file.stat().st_size / 2**20
        if most > 4 * held + 1:  # weights may be kept in half precision
            sizes = f"{most:,.0f} MB, but {file} has {held:,.0f} MB"
            raise CheckpointError(f"config.json describes a {part} of {sizes}. Use the one written with these weights.")
