"""Training stages: names, order, settings and defaults.

`training/stages/classes.py` contains the classes that train the stages. `memory/` estimates each stage's memory needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from myxtts.config.checks import read_toml
from myxtts.config.settings import Default, Settings, setting

LORA_TARGETS = ("qkv", "output_projection", "mlp_in", "mlp_out")
"""Linear layers of a GPT block that can have adapters."""


@dataclass
class StageConfig(Settings):
    """Training settings that all stages have. Subclasses add the settings of one stage, see `StageEntry.settings`."""

    section = "training.STAGE"

    max_steps: int | None = setting(None, at_least=1, flag="--max-steps", page="main")
    """Maximum number of optimizer steps in each stage (default: set by the stage, else by --epochs)."""
    batch_size: int | None = setting(None, at_least=1, at_most=65536, flag="--batch-size", metavar="N|auto")
    """Clips per batch in this stage; None uses `data.batch_size`."""
    learning_rate: float | None = setting(None, above=0, hint="Leave it out for the default.", flag="--lr", page="more")
    """Peak learning rate (default: depends on the model size)."""
    warmup_steps: int = setting(200, at_least=0)
    """Number of steps of linear learning-rate warm-up, capped at a tenth of the stage's steps."""
    final_learning_rate: float = setting(0.05, at_least=0, at_most=1)
    """Learning rate at the end of the cosine decay, as a fraction of the peak."""
    weight_decay: float = setting(0.01, at_least=0)
    """AdamW weight decay of kernels; biases, norms and embeddings have none."""
    betas: tuple[float, float] = setting((0.9, 0.96), at_least=0, below=1)
    """AdamW betas (XTTS: 0.9, 0.96)."""
    gradient_clip: float = setting(1.0, at_least=0)
    """Maximum global norm of the gradient; 0 turns clipping off."""
    crop_seconds: float | None = setting(None, above=0, hint="Leave it out to train on whole clips.")
    """Maximum length in seconds of random slices to train on, if `StageEntry.can_crop`; None trains on whole clips."""


@dataclass
class GPTConfig(StageConfig):
    """Training settings of the GPT."""

    section = "training.gpt"

    text_loss_weight: float = setting(0.01, at_least=0)
    """Weight of the text cross-entropy (XTTS: 0.01)."""
    code_loss_weight: float = setting(1.0, at_least=0)
    """Weight of the audio-code cross-entropy (XTTS: 1.0)."""
    label_smoothing: float = setting(0.0, at_least=0, below=1)
    """Label smoothing of the audio-code cross-entropy (XTTS: 0)."""
    alignment_loss_weight: float = setting(0.0, at_least=0)
    """Weight of the guided attention loss, which applies to the first head of the middle block (XTTS: 0)."""
    code_masking: float = setting(0.0, at_least=0, below=1)
    """Fraction of the input codes that are replaced by random codes in training, so that the model relies on the text
    (word dropout; Bowman et al. 2016, section 3.2)."""
    lora_rank: int = setting(Default(0), at_least=0, at_most=65536, flag="--lora-rank", page="more", metavar="N")
    """Rank of the LoRA adapters to train, with --init-from; 0 trains all weights instead of adapters."""
    lora_alpha: float | None = setting(None, above=0, flag="--lora-alpha")
    """LoRA alpha: adapters are scaled by alpha / rank (default: the rank)."""
    lora_targets: tuple[str, ...] = setting(LORA_TARGETS, one_of=LORA_TARGETS, flag="--lora-targets", metavar="NAME,…")
    """Linear layers of the GPT blocks that get adapters."""
    lora_dropout: float = setting(0.0, at_least=0, below=1, flag="--lora-dropout")
    """Dropout rate of the adapters' input."""

    @property
    def adapters(self) -> str:
        """Description of the LoRA adapters: rank, layers and alpha, or `none`."""
        named = f"{self.lora_rank} on {','.join(sorted(self.lora_targets))}"
        return f"{named}, alpha {self.lora_alpha or self.lora_rank:g}" if self.lora_rank else "none"

    def __post_init__(self):
        super().__post_init__()
        self.check("lora_targets", bool(self.lora_targets), "one layer or more")
        for name, default in (("lora_alpha", None), ("lora_targets", LORA_TARGETS), ("lora_dropout", 0.0)):
            holds, hint = self.lora_rank or getattr(self, name) == default, f"Add {self.name_of('lora_rank')}."
            self.check(name, holds, "left out without adapters", hint)


@dataclass
class DecoderConfig(StageConfig):
    """Training settings of the waveform decoder."""

    section = "training.decoder"

    frames: int = setting(32, at_least=4, at_most=4096)
    """Length of the training slices in frames of 256 samples at 24 kHz (HiFi-GAN: 32)."""
    mel_weight: float = setting(45.0, at_least=0)
    """Weight of the mel-spectrogram loss (HiFi-GAN: 45)."""
    stft_weight: float = setting(45.0, at_least=0)
    """Weight of the multi-resolution STFT loss (Parallel WaveGAN)."""
    adversarial_weight: float = setting(1.0, at_least=0)
    """Weight of the adversarial loss, which is a sum over the discriminators."""
    feature_weight: float = setting(2.0, at_least=0)
    """Weight of the feature matching loss, which is a sum over the discriminators (HiFi-GAN: 2)."""
    speaker_weight: float = setting(0.0, at_least=0)
    """Weight of the speaker consistency loss, 1 - cosine similarity (YourTTS: 9); requires `frames` of at least 1 s."""
    spectral_share: float = setting(0.5, at_least=0, at_most=1)
    """Fraction of the steps, at the start, that train without discriminators; 1 never uses them."""
    discriminator_warmup: float = setting(0.2, at_least=0, at_most=1)
    """With `init_from` and `stage: decoder`: fraction of the steps, at the start, that train only discriminators."""

    def check_frames(self) -> None:
        """Raises `ConfigError` if `frames` is odd, or if it is shorter than 1 s and there is a speaker loss."""
        self.check("frames", self.frames % 2 == 0, "even")
        fits = not self.speaker_weight or self.frames >= 94
        self.check("frames", fits, f"94 or more (1 s) with {self.name_of('speaker_weight')}")


@dataclass(frozen=True)
class StageEntry:
    """Properties of a training stage: name, dependencies, settings, default values, and what its batches contain."""

    name: str
    """Name of the stage in YAML files and `--stage`; also the name of the folder with its checkpoints."""
    builds_on: Sequence[str] = ()
    """Stages that must be trained before this stage, which uses their weights."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Default peak learning rate by model size."""
    settings: type[StageConfig] = StageConfig
    """Class of the stage's settings."""
    main_loss: str = "loss"
    """Name of the validation loss that selects the best checkpoint."""
    speaks: bool = False
    """Whether the model can synthesize speech during the stage, for samples and evaluations."""
    takes_init_from: bool = False
    """Whether `--init-from` fine-tunes this stage if `--stage` names it and `--tune` is not given."""
    tuned_with_all: bool = True
    """Whether `--init-from` fine-tunes this stage if `--stage` is `all`. If not, its weights are copied unchanged."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values by field name, for example of `max_steps`, that override the defaults of the class `settings`."""
    can_crop: bool = False
    """Whether the stage can be trained on slices of clips."""
    conditioned: bool = False
    """Whether the batches contain conditioning clips."""
    targets: bool = False
    """Whether the batches also contain the clips at 24 000 Hz, and their original sample rates."""
    speakers: bool = False
    """Whether the batches contain speaker ids."""
    codes: bool = False
    """Whether the stage can use codes from `myxtts prepare` instead of audio. Codes are not used with augmentation."""
    ema: float = 0.0
    """Decay of the weight averages if neither `training.ema` nor the preset `training.optimizations` sets a decay."""
    cost: float = 1.0
    """Step time per clip relative to the GPT stage, for time estimates (measured with `nano` on two cores)."""
    follows: Sequence[str] = ()
    """Stages in `builds_on` that may be trained further after this stage, which then resumes with their new weights."""


_SETTINGS = {"gpt": GPTConfig, "decoder": DecoderConfig}
STAGES: dict[str, StageEntry] = {
    name: StageEntry(name, settings=_SETTINGS.get(name, StageConfig), **entry)
    for name, entry in read_toml(__file__, "stages.toml").items()
}
"""All stages by name, in training order: a stage depends only on stages before it."""
