"""The stages of training: which there are, in which order, and how each is trained unless settings say otherwise."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from myxtts.config.settings import Settings, setting
from myxtts.config.sizes import MODEL_SIZES


@dataclass
class StageConfig(Settings):
    """How one stage is trained."""

    section = "stage"

    max_steps: int | None = setting(None, at_least=1)
    """Optimizer steps; None trains for `training.epochs` epochs."""
    batch_size: int | None = setting(None, at_least=1, at_most=65536)
    """Clips per batch in this stage; None takes `data.batch_size`."""
    learning_rate: float | None = setting(None, above=0, hint="Leave it out to take the preset's.")
    """Peak learning rate; None takes the value that suits the model size."""
    warmup_steps: int = setting(200, at_least=0)
    """Steps of linear rise to the peak; at most a tenth of the run."""
    final_learning_rate: float = setting(0.05, at_least=0, at_most=1)
    """Learning rate at the end of the cosine, as a share of the peak."""
    weight_decay: float = setting(0.01, at_least=0)
    """AdamW weight decay of kernels; biases, norms and embedding tables have none."""
    betas: tuple[float, float] = setting((0.9, 0.96), at_least=0, below=1)
    """AdamW moment decays (XTTS: 0.9, 0.96)."""
    gradient_clip: float = setting(1.0, at_least=0)
    """Largest global norm of the gradient; 0 turns clipping off."""
    crop_seconds: float | None = setting(None, above=0, hint="Leave it out to train on whole clips.")
    """Longest slice of a clip that is trained on, in seconds, in stages that can; None takes whole clips."""

    def __post_init__(self):
        self.betas = tuple(float(b) for b in self.betas)
        super().__post_init__()


@dataclass(frozen=True)
class StageEntry:
    """A stage as settings, command line and planning know it; what it does is in `implementation`."""

    name: str
    """Of the section in YAML, of `--stage` and of the folder of its checkpoints."""
    implementation: str | type
    """`module:Class` of a `training.stages.base.Stage`, imported when the stage is trained, or the class itself."""
    builds_on: tuple[str, ...] = ()
    """Stages whose finished weights it needs."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Peak learning rate from random weights, by model size."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """`StageConfig` fields that differ from that class's own defaults."""
    can_crop: bool = False
    """Whether a slice of a clip can be trained on."""
    conditioned: bool = False
    """Whether its batches bring a conditioning clip, that the voice is taken from."""
    targets: bool = False
    """Whether its batches bring the same sound at 24 000 Hz, read from the recordings, and their sample rates."""
    speakers: bool = False
    """Whether its batches say whose clips they are."""
    codes: bool = False
    """Whether its batches bring the codes of clips that `myxtts prepare` has encoded, where nothing changes them."""
    memory: str | Callable | None = None
    """`module:function` of its `planning.memory` estimate, or the function itself; None where there is none."""
    follows: tuple[str, ...] = ()
    """Stages of `builds_on` that may be trained on: this one then goes on as it is, on their newer weights."""

    def load(self) -> type:
        """The class that does the work."""
        return _resolve(self.implementation)

    def load_memory(self) -> Callable | None:
        """The function that predicts its memory, with the arguments of `planning.memory.estimate_gpt`."""
        return _resolve(self.memory)


def _resolve(target):
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


STAGES: dict[str, StageEntry] = {}
"""All stages by name, in the order in which they are trained: one builds on those before it."""


def register_stage(entry: StageEntry) -> StageEntry:
    """Adds a stage after those that there are; settings, `--stage`, plans and runs know it from then on.

    Raises:
        ValueError: It builds on a stage that is not there, or lacks the learning rate of a model size.
    """
    faults = [f"builds on {name}, which is not a stage" for name in entry.builds_on if name not in STAGES]
    faults += [f"lacks a learning rate for {size}" for size in MODEL_SIZES if size not in entry.learning_rates]
    if faults:
        raise ValueError(f"The stage {entry.name} {faults[0]}.")
    STAGES[entry.name] = entry
    return entry


def default_stage_config(name: str, **overrides) -> StageConfig:
    """The `StageConfig` of a stage with that stage's own defaults."""
    return StageConfig(**{**STAGES[name].defaults, **overrides})


def settle_stage_config(name: str, stage: StageConfig, batch_size: int, size: str) -> StageConfig:
    """A copy with the batch size of the data and the learning rate of the model size where it has none of its own."""
    rate = stage.learning_rate or STAGES[name].learning_rates[size]
    return dataclasses.replace(stage, batch_size=stage.batch_size or batch_size, learning_rate=rate)


register_stage(
    StageEntry(
        "dvae",
        "myxtts.training.stages.dvae:DVAEStage",
        learning_rates=dict(nano=2e-3, tiny=1e-3, small=5e-4, normal=3e-4, big=3e-4),
        defaults=dict(betas=(0.9, 0.99), weight_decay=0.0),
        can_crop=True,
        memory="myxtts.memory.estimates:estimate_dvae",
    )
)
register_stage(
    StageEntry(
        "gpt",
        "myxtts.training.stages.gpt:GPTStage",
        builds_on=("dvae",),
        learning_rates=dict(nano=1.5e-3, tiny=8e-4, small=4e-4, normal=3e-4, big=2e-4),
        conditioned=True,
        codes=True,
        memory="myxtts.memory.estimates:estimate_gpt",
    )
)
register_stage(
    StageEntry(
        "speaker",
        "myxtts.training.stages.speaker:SpeakerStage",
        learning_rates=dict(nano=2e-3, tiny=2e-3, small=1e-3, normal=1e-3, big=1e-3),
        defaults=dict(max_steps=2000, crop_seconds=2.0, betas=(0.9, 0.99)),
        can_crop=True,
        speakers=True,
        memory="myxtts.memory.speaker:estimate_speaker",
    )
)
register_stage(
    StageEntry(
        "decoder",
        "myxtts.training.stages.decoder:DecoderStage",
        builds_on=("dvae", "gpt", "speaker"),
        follows=("gpt",),
        learning_rates=dict(nano=2e-3, tiny=1e-3, small=5e-4, normal=2e-4, big=2e-4),
        defaults=dict(max_steps=20000, batch_size=16, betas=(0.8, 0.99), gradient_clip=10.0),
        conditioned=True,
        targets=True,
        memory="myxtts.memory.decoder:estimate_decoder",
    )
)
