"""The stages of training: which there are, in which order, their settings and how each is trained by default.

The classes that do the work are in `training/stages/__init__.py`, the memory estimates in `memory/__init__.py`, both by
the names that are given here."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from myxtts.config.checks import require
from myxtts.config.settings import Settings, setting
from myxtts.config.sizes import MODEL_SIZES

LORA_TARGETS = ("qkv", "output_projection", "mlp_in", "mlp_out")
"""Kernels of a block of the GPT that can have adapters, attention's first."""


@dataclass
class StageConfig(Settings):
    """How one stage is trained. A stage with settings of its own has a subclass, which its `StageEntry` names."""

    section = "stage"

    max_steps: int | None = setting(None, at_least=1, flag="--max-steps", page="main")
    """Optimizer steps of the stage; by default it trains for `training.epochs` epochs."""
    batch_size: int | None = setting(None, at_least=1, at_most=65536, flag="--batch-size", metavar="N|auto")
    """Clips per batch in this stage; None takes `data.batch_size`."""
    learning_rate: float | None = setting(
        None, above=0, hint="Leave it out to take the preset's.", flag="--lr", page="more"
    )
    """Peak learning rate; by default the one that suits the model size."""
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


@dataclass
class GPTConfig(StageConfig):
    """How the GPT is trained."""

    section = "training.gpt"

    text_loss_weight: float = setting(0.01, at_least=0)
    """Weight of the text cross-entropy (XTTS: 0.01)."""
    code_loss_weight: float = setting(1.0, at_least=0)
    """Weight of the audio-code cross-entropy (XTTS: 1.0)."""
    label_smoothing: float = setting(0.0, at_least=0, below=1)
    """Label smoothing of the audio-code cross-entropy (XTTS: 0)."""
    alignment_loss_weight: float = setting(0.0, at_least=0)
    """Weight of attention off the diagonal of text and speech, in one head (guided attention; XTTS: 0)."""
    code_masking: float = setting(0.0, at_least=0, below=1)
    """Share of the codes before the next one that are replaced by random ones in training, so that the model must read
    the text and cannot recite (word dropout; Bowman et al. 2016, section 3.2)."""
    lora_rank: int = setting(0, at_least=0, at_most=65536, flag="--lora-rank", page="more")
    """With `init_from`: train low-rank adapters of this rank on attention and MLP only; 0 trains all weights."""
    lora_alpha: float | None = setting(None, above=0, flag="--lora-alpha")
    """What adapters add is multiplied by this over their rank (Hu et al. 2022); by default the rank, a factor of 1."""
    lora_targets: tuple[str, ...] = setting(LORA_TARGETS, one_of=LORA_TARGETS, flag="--lora-targets", metavar="NAME,…")
    """Kernels of each block of the GPT that get adapters."""
    lora_dropout: float = setting(0.0, at_least=0, below=1, flag="--lora-dropout")
    """Dropout on the input of the adapters (Hu et al. 2022)."""

    def __post_init__(self):
        super().__post_init__()
        require(self.lora_targets, f"{self.section}.lora_targets (--lora-targets)", "one kernel or more", "none")
        for name, alone in (("alpha", None), ("targets", LORA_TARGETS), ("dropout", 0.0)):
            setting, value = f"{self.section}.lora_{name} (--lora-{name})", getattr(self, f"lora_{name}")
            way_out = f"Add {self.section}.lora_rank (--lora-rank)."
            require(self.lora_rank or value == alone, setting, "left out without adapters", value, way_out)


@dataclass
class DecoderConfig(StageConfig):
    """How the waveform decoder is trained."""

    section = "training.decoder"

    frames: int = setting(32, at_least=4, at_most=4096)
    """Frames of 256 samples at 24 kHz in the slice of a clip that is trained on (HiFi-GAN: 32)."""
    mel_weight: float = setting(45.0, at_least=0)
    """Weight of the log-mel difference (HiFi-GAN: 45)."""
    stft_weight: float = setting(45.0, at_least=0)
    """Weight of the multi-resolution spectral distance (Parallel WaveGAN)."""
    adversarial_weight: float = setting(1.0, at_least=0)
    """Weight of the adversarial loss, summed over the discriminators."""
    feature_weight: float = setting(2.0, at_least=0)
    """Weight of the difference of the discriminators' feature maps, summed over them (HiFi-GAN: 2)."""
    speaker_weight: float = setting(0.0, at_least=0)
    """Weight of 1 - cosine of the speaker vectors of recording and output (YourTTS: 9); for slices of a second or
    more."""
    spectral_share: float = setting(0.5, at_least=0, at_most=1)
    """From random weights: share of the steps, at the beginning, on the spectral losses alone."""
    discriminator_warmup: float = setting(0.2, at_least=0, at_most=1)
    """With `init_from`: share of the steps, at the beginning, that train the discriminators alone."""


@dataclass(frozen=True)
class StageEntry:
    """A stage as settings, command line and planning know it."""

    name: str
    """Of the section in YAML, of `--stage` and of the folder of its checkpoints."""
    builds_on: tuple[str, ...] = ()
    """Stages whose finished weights it needs."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Peak learning rate from random weights, by model size."""
    settings: type[StageConfig] = StageConfig
    """Class of its settings."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Settings that differ from that class's own defaults."""
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
    cost: float = 1.0
    """Time of a step on a clip, relative to the GPT's (nano on two cores): a forecast goes by it until it has timed."""
    follows: tuple[str, ...] = ()
    """Stages of `builds_on` that may be trained further: this one then continues as it is, on their newer weights."""

    def make_settings(self, **values) -> StageConfig:
        """Its settings, with its defaults where no value is given."""
        return self.settings(**{**self.defaults, **values})


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


def settle_stage_config(name: str, stage: StageConfig, batch_size: int, size: str) -> StageConfig:
    """A copy with the batch size of the data and the learning rate of the model size where it has none of its own."""
    rate = stage.learning_rate or STAGES[name].learning_rates[size]
    return dataclasses.replace(stage, batch_size=stage.batch_size or batch_size, learning_rate=rate)


register_stage(
    StageEntry(
        "dvae",
        cost=0.2,
        learning_rates=dict(nano=2e-3, tiny=1e-3, small=5e-4, normal=3e-4, big=3e-4),
        defaults=dict(betas=(0.9, 0.99), weight_decay=0.0),
        can_crop=True,
    )
)
register_stage(
    StageEntry(
        "gpt",
        builds_on=("dvae",),
        learning_rates=dict(nano=1.5e-3, tiny=8e-4, small=4e-4, normal=3e-4, big=2e-4),
        settings=GPTConfig,
        conditioned=True,
        codes=True,
    )
)
register_stage(
    StageEntry(
        "speaker",
        cost=1.2,
        learning_rates=dict(nano=2e-3, tiny=2e-3, small=1e-3, normal=1e-3, big=1e-3),
        defaults=dict(max_steps=2000, crop_seconds=2.0, betas=(0.9, 0.99)),
        can_crop=True,
        speakers=True,
    )
)
register_stage(
    StageEntry(
        "decoder",
        cost=1.7,
        builds_on=("dvae", "gpt", "speaker"),
        follows=("gpt",),
        learning_rates=dict(nano=2e-3, tiny=1e-3, small=5e-4, normal=2e-4, big=2e-4),
        settings=DecoderConfig,
        defaults=dict(max_steps=20000, batch_size=16, betas=(0.8, 0.99), gradient_clip=10.0),
        conditioned=True,
        targets=True,
    )
)
