"""The settings: one dataclass per concern, each number with one home."""

from dataclasses import dataclass, field, fields

from myxtts.config.checks import ConfigError
from myxtts.config.checks import require as _require
from myxtts.config.checks import require_at_least as _require_at_least
from myxtts.config.model import ModelConfig
from myxtts.config.optimizations import ATTENTIONS, PRECISIONS, PRESETS
from myxtts.config.sizes import LEARNING_RATES

CODE_STRIDE_SAMPLES = 1024
"""Samples at 22 050 Hz that one audio code stands for: four mel frames of hop 256."""

MODEL_SAMPLE_RATE = 22050
"""Rate in Hz of everything the DVAE and the GPT see."""

STAGES = ("dvae", "gpt")
"""Training stages in the order in which one builds on the other."""


@dataclass
class DataConfig:
    """Where the recordings are, how they become batches, and which device prepares them."""

    train_data: str | None = None
    """Root folder of the training set."""
    val_data: str | None = None
    """Root folder of the validation set; None splits it off the training set."""
    language: str = "en"
    """Language of recordings whose set names none."""
    vocabulary: str | None = None
    """Tokenizer file (Hugging Face JSON); None trains one on the corpus's own text."""
    extend_vocabulary: bool = True
    """Grow a given vocabulary by the characters and languages of the corpus that it lacks."""
    vocabulary_size: int = 512
    """Size of a trained vocabulary, at most."""
    validation_share: float = 0.05
    """Share of clips held out by a stable hash of their id when there is no `val_data`."""
    min_seconds: float = 0.1
    """Shorter clips are left out."""
    max_seconds: float = 11.6
    """Longer clips are left out (XTTS: 255 995 samples at 22 050 Hz)."""
    max_text_length: int = 200
    """Clips with more text tokens are left out; the fixed text length under static shapes."""
    max_mel_frames: int | None = None
    """Clips with more mel frames are left out; the fixed length under static shapes. None takes `max_seconds` alone."""
    static_shapes: bool = False
    """Pad every batch to one shape, so that the train step is traced once."""
    num_buckets: int = 8
    """Length buckets when shapes are not static."""
    num_workers: int = 8
    """Parallel readers."""
    cache_mb: int = 512
    """Memory for decoded recordings kept between epochs."""
    batch_size: int = 16
    """Clips per batch."""
    conditioning_seconds: tuple[float, float] = (3.0, 6.0)
    """Shortest and longest conditioning clip; shortened for corpora of shorter clips."""
    conditioning_source: str = "speaker"
    """`speaker`: another clip of the same speaker, as at synthesis. `clip`: a slice of the clip itself, whose codes are
    then left out of the loss (the reference recipe)."""
    conditioning_padding: str = "repeat"
    """How a short conditioning clip fills its length: `repeat` the sound, or `zeros` (the reference recipe)."""
    augment: bool = True
    """Random gain, time shift and spectral tilt of training clips, on the data device."""
    data_gpu: int | None = None
    """Physical GPU that loads and prepares data; with `model_gpu` it turns on Multi-GPU Mode."""
    model_gpu: int | None = None
    """Physical GPU that trains the model."""
    pipeline_buffer_size: int = 50
    """Prefetch buffer in batches."""
    model_start_delay: float = 2.0
    """Multi-GPU Mode: least head start of the data pipeline, in seconds."""

    def __post_init__(self):
        self.conditioning_seconds = tuple(float(s) for s in self.conditioning_seconds)
        _require_at_least(1, self, "data", "batch_size", "num_workers", "num_buckets", "pipeline_buffer_size",
                          "max_text_length", "vocabulary_size")
        _require_at_least(0, self, "data", "model_start_delay", "cache_mb", "data_gpu", "model_gpu")
        _require(0 < self.validation_share < 1, "data.validation_share", "between 0 and 1",
                 self.validation_share, "The default is 0.05.")
        _require(0 < self.min_seconds < self.max_seconds, "data.min_seconds", "above 0 and below data.max_seconds",
                 f"{self.min_seconds} and {self.max_seconds}", "The defaults are 0.1 and 11.6.")
        _require(self.conditioning_source in ("speaker", "clip"), "data.conditioning_source", "`speaker` or `clip`",
                 self.conditioning_source, "`speaker` suits training from scratch.")
        _require(self.conditioning_padding in ("repeat", "zeros"), "data.conditioning_padding", "`repeat` or `zeros`",
                 self.conditioning_padding, "`zeros` is what the released XTTS was trained with.")
        low, high = self.conditioning_seconds
        _require(0 < low <= high, "data.conditioning_seconds", "two lengths above 0, the shorter first",
                 self.conditioning_seconds, "XTTS uses [3, 6].")
        if self.max_mel_frames is not None:
            below = self.max_mel_frames // 4 * 4
            _require(self.max_mel_frames > 0 and self.max_mel_frames % 4 == 0, "data.max_mel_frames",
                     "a multiple of 4, the DVAE stride", self.max_mel_frames, f"Try {below or 4} or {below + 4}.")

    @property
    def is_multi_gpu(self):
        """True when both device roles are given."""
        return self.data_gpu is not None and self.model_gpu is not None

    @property
    def has_half_a_gpu_pair(self):
        """True when one device role is given without the other; starting a run with that is an error."""
        return (self.data_gpu is None) != (self.model_gpu is None)


@dataclass
class StageConfig:
    """How one stage is trained."""

    max_steps: int | None = None
    """Optimizer steps; None trains for `training.epochs` epochs."""
    batch_size: int | None = None
    """Clips per batch in this stage; None takes `data.batch_size`."""
    learning_rate: float | None = None
    """Peak learning rate; None takes the value that suits the model size."""
    warmup_steps: int = 200
    """Steps of linear rise to the peak; at most a tenth of the run."""
    final_learning_rate: float = 0.05
    """Learning rate at the end of the cosine, as a share of the peak."""
    weight_decay: float = 0.01
    """AdamW weight decay of kernels; biases, norms and embedding tables have none."""
    betas: tuple[float, float] = (0.9, 0.96)
    """AdamW moment decays (XTTS: 0.9, 0.96)."""
    gradient_clip: float = 1.0
    """Largest global norm of the gradient; 0 turns clipping off."""
    crop_seconds: float | None = None
    """DVAE only: longest slice of a clip that is trained on, in seconds; None takes whole clips."""

    def __post_init__(self):
        self.betas = tuple(float(b) for b in self.betas)
        _require_at_least(1, self, "stage", "max_steps", "batch_size")
        _require_at_least(0, self, "stage", "warmup_steps", "weight_decay", "gradient_clip")
        _require(all(0 <= beta < 1 for beta in self.betas), "stage.betas", "two numbers from 0 to below 1", self.betas)
        _require(0 <= self.final_learning_rate <= 1, "stage.final_learning_rate", "a share of the peak, 0 to 1",
                 self.final_learning_rate)
        _require(self.learning_rate is None or self.learning_rate > 0, "stage.learning_rate", "above 0",
                 self.learning_rate, "Leave it out to take the preset's.")
        _require(self.crop_seconds is None or self.crop_seconds > 0, "stage.crop_seconds", "above 0",
                 self.crop_seconds, "Leave it out to train on whole clips.")


@dataclass
class TrainingConfig:
    """The loop: how long, how often to look, where to write."""

    stage: str = "all"
    """`dvae`, `gpt`, or `all`: what is missing, in order."""
    epochs: int = 500
    """Passes over the training set of a stage that has no `max_steps`."""
    dvae: StageConfig = field(default_factory=lambda: StageConfig(betas=(0.9, 0.99), weight_decay=0.0))
    """The speech tokenizer's stage."""
    gpt: StageConfig = field(default_factory=StageConfig)
    """The language model's stage."""
    gradient_accumulation: int = 1
    """Batches per optimizer step."""
    text_loss_weight: float = 0.01
    """Weight of the text cross-entropy (XTTS: 0.01)."""
    mel_loss_weight: float = 1.0
    """Weight of the audio-code cross-entropy (XTTS: 1.0)."""
    lora_rank: int = 0
    """GPT stage with `init_from`: train adapters of this rank on attention and MLP only; 0 trains all weights."""
    label_smoothing: float = 0.0
    """Label smoothing of the audio-code cross-entropy (XTTS: 0)."""
    optimizations: str = "none"
    """Preset of the switches below that are left None; see `config/optimizations.py`."""
    precision: str | None = None
    """Keras dtype policy of the model being trained, or `auto` for what suits the hardware; None takes the preset's."""
    tf32: bool | None = None
    """Round the factors of float32 matrix products to 10 bits, which GPUs from Ampere on multiply several times quicker;
    None takes the preset's, `auto`: where the hardware has it."""
    gradient_checkpointing: bool | None = None
    """GPT stage: keep less of each block for the backward pass and make it again there; None takes the preset's."""
    attention: str | None = None
    """GPT stage: `standard`, `memory-efficient` (linear in the sequence), or `auto` by measurement; None takes the
    preset's."""
    xla: bool | None = None
    """Compile gradients and update with XLA, once per shape of batch; None takes the preset's."""
    ema: float | None = None
    """Decay of the weight averages that are validated and spoken with; 0 turns them off, None takes the preset's."""
    strict: bool = False
    """A switch whose effect differs from what was asked for ends the run after its first step."""
    automatic_batch_size: bool = False
    """Find by trial how many clips fit at once; `batch_size` times `gradient_accumulation` stays the effective batch."""
    memory_budget_mb: int | None = None
    """Memory that the trials of a CPU may take; None takes half of what is free."""
    overtraining_patience: int = 0
    """Validations in a row that may turn up while the training loss falls before a stage ends; 0 only warns."""
    seed: int = 0
    """Fixes initial weights, data order, augmentation, dropout and sample sentences."""
    checkpoint_dir: str = "./checkpoints"
    """Where checkpoints, logs and samples go."""
    tensorboard_log_dir: str | None = None
    """TensorBoard folder; None puts it under the checkpoint folder."""
    reset_training: bool = False
    """Start anew; existing checkpoints are set aside."""
    init_from: str | None = None
    """Folder of a run, or of `myxtts convert`, whose weights a fresh run starts from."""
    log_every_steps: int = 50
    """Steps between log lines."""
    validate_every_steps: int = 500
    """Steps between validation losses; also at the end."""
    checkpoint_every_steps: int = 1000
    """Steps between checkpoints; also at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept besides the best."""
    sample_every_steps: int = 1000
    """GPT stage: steps between spoken sample sentences; 0 turns them off."""
    num_samples: int = 3
    """Sample sentences spoken each time."""
    max_validation_batches: int = 32
    """Validation stops after this many batches."""
    pipeline_depth: int = 3
    """Buffers between the data device and the model device: one being prepared, one trained on, the rest ready."""
    max_bad_steps: int = 20
    """Steps in a row with a loss or gradient that is not finite after which a run counts as diverged."""
    divergence_returns: int = 3
    """Times that a diverged run goes back to its last good checkpoint and on with a lower learning rate; then it stops."""
    divergence_rate: float = 0.5
    """Factor on the learning rate each time a run goes back."""

    def __post_init__(self):
        self.dvae = _as_dataclass(StageConfig, self.dvae, "training.dvae")
        self.gpt = _as_dataclass(StageConfig, self.gpt, "training.gpt")
        _require(self.stage in (*STAGES, "all"), "--stage", f"one of {', '.join(STAGES)}, all", self.stage)
        _require(self.gpt.crop_seconds is None, "training.gpt.crop_seconds", "left out", self.gpt.crop_seconds,
                 "A slice of a clip no longer fits its text.")
        _require(self.optimizations in PRESETS, "--optimizations", f"one of {', '.join(PRESETS)}", self.optimizations)
        _require(self.precision is None or self.precision in (*PRECISIONS, "auto"), "training.precision",
                 f"one of {', '.join(PRECISIONS)}, auto", self.precision)
        _require(self.attention is None or self.attention in (*ATTENTIONS, "auto"), "--attention",
                 f"one of {', '.join(ATTENTIONS)}, auto", self.attention)
        _require(self.ema is None or 0 <= self.ema < 1, "--ema", "a decay from 0 to below 1", self.ema, "Try 0.999.")
        _require(0 <= self.label_smoothing < 1, "training.label_smoothing", "from 0 to below 1", self.label_smoothing)
        _require_at_least(1, self, "training", "epochs", "gradient_accumulation", "log_every_steps",
                          "validate_every_steps", "checkpoint_every_steps", "keep_checkpoints", "num_samples",
                          "max_validation_batches", "max_bad_steps", "memory_budget_mb")
        _require_at_least(3, self, "training", "pipeline_depth")
        _require_at_least(0, self, "training", "seed", "text_loss_weight", "mel_loss_weight", "sample_every_steps",
                          "overtraining_patience", "divergence_returns")
        _require(0 < self.divergence_rate <= 1, "training.divergence_rate", "above 0 and at most 1", self.divergence_rate)


@dataclass
class SamplingConfig:
    """How codes are drawn at synthesis. Travels with the checkpoint."""

    temperature: float = 0.75
    """Divides the scores; 0 takes the best code every time."""
    top_k: int = 50
    """Only this many best codes can be drawn; 0 keeps all."""
    top_p: float = 0.85
    """Nucleus: the smallest set of codes whose probabilities reach this sum; 1 keeps all."""
    repetition_penalty: float = 1.2
    """Divides (or, below zero, multiplies) the scores of codes already drawn (released XTTS v2: 5.0)."""
    reference_seconds: float = 30.0
    """Most of the reference recordings that is listened to."""
    reference_chunk_seconds: float | None = None
    """Length of the pieces whose latents are averaged (released XTTS v2: 4); None takes the longest conditioning clip
    of training."""

    def __post_init__(self):
        _require(self.temperature >= 0, "--temperature", "0 or more", self.temperature, "Try 0.75.")
        _require(self.top_k >= 0, "--top-k", "0 or more", self.top_k, "Try 50.")
        _require(0 < self.top_p <= 1, "--top-p", "above 0 and at most 1", self.top_p, "Try 0.85.")
        _require(self.repetition_penalty > 0, "--repetition-penalty", "above 0", self.repetition_penalty,
                 "1.0 turns it off.")
        for name in ("reference_seconds", "reference_chunk_seconds"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"sampling.{name}", "above 0", value)


@dataclass
class XTTSConfig:
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Shapes."""
    data: DataConfig = field(default_factory=DataConfig)
    """Recordings and devices."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """The loop."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Synthesis defaults."""

    def __post_init__(self):
        _require(self.data.max_text_length <= self.model.max_text_tokens, "--max-text-length",
                 f"at most model.max_text_tokens ({self.model.max_text_tokens})", self.data.max_text_length,
                 "Lower it or raise model.max_text_tokens.")
        frames = self.data.max_mel_frames
        _require(frames is None or frames <= 4 * self.model.max_codes, "--max-mel-frames",
                 f"at most {4 * self.model.max_codes} for this model", frames,
                 "Lower it or raise model.max_audio_tokens.")
        _require(self.max_samples > self.data.min_seconds * MODEL_SAMPLE_RATE, "--max-mel-frames",
                 "longer than data.min_seconds", frames, "Raise it.")
        longest = self.max_samples // CODE_STRIDE_SAMPLES + 1
        _require(frames is not None or longest <= self.model.max_codes, "data.max_seconds",
                 f"at most {self.model.max_codes * CODE_STRIDE_SAMPLES / MODEL_SAMPLE_RATE:.1f} s "
                 f"({self.model.max_codes} codes) for this model", self.data.max_seconds,
                 "Lower it or raise model.max_audio_tokens.")

    @property
    def max_samples(self):
        """Longest clip in samples at 22 050 Hz."""
        longest = int(self.data.max_seconds * MODEL_SAMPLE_RATE)
        frames = self.data.max_mel_frames
        return longest if frames is None else min(longest, frames * CODE_STRIDE_SAMPLES // 4)

    def stage(self, name):
        """The `StageConfig` of `name`, with its defaults filled in from the size and the data settings."""
        stage = getattr(self.training, name)
        values = {f.name: getattr(stage, f.name) for f in fields(stage)}
        if values["batch_size"] is None:
            values["batch_size"] = self.data.batch_size
        if values["learning_rate"] is None:
            values["learning_rate"] = LEARNING_RATES[name][self.model.size]
        return StageConfig(**values)


def _as_dataclass(cls, value, where):
    if isinstance(value, cls):
        return value
    if isinstance(value, dict):
        return cls(**value)
    raise ConfigError(f"{where} must be a mapping of settings. Received: {value!r}.")
