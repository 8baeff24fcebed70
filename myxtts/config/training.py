"""The training loop and its stages."""

from dataclasses import dataclass, fields

from myxtts.config.checks import ConfigError, brief, require
from myxtts.config.optimizations import ATTENTIONS, PRECISIONS, PRESETS
from myxtts.config.settings import Settings, setting
from myxtts.config.stages import STAGES, StageConfig, default_stage_config
from myxtts.config.workers import check_workers

LORA_TARGETS = ("qkv", "output_projection", "mlp_in", "mlp_out")
"""Kernels of a block of the GPT that can have adapters, attention's first."""

TUNABLE = ("dvae", "gpt", "decoder")
"""Stages that can train on from the weights of another model."""


@dataclass(init=False)
class TrainingConfig(Settings):
    """The loop: how long, how often to look, where to write."""

    section = "training"

    stage: str = setting("all", of_run=True)
    """A stage of `config.stages.STAGES`, or `all`: what is missing, in order, but for `leave_out`."""
    leave_out: tuple[str, ...] = setting((), of_run=True)
    """Stages that `all` does not begin; one that has begun goes on."""
    epochs: int = setting(500, at_least=1)
    """Passes over the training set of a stage that has no `max_steps`."""
    stages: dict[str, StageConfig] = setting(factory=dict)
    """How each stage is trained. In YAML and in Python each goes by its own name: `gpt: {max_steps: 9}`."""
    gradient_accumulation: int = setting(1, at_least=1)
    """Batches per optimizer step."""
    alignment_loss_weight: float = setting(0.0, at_least=0)
    """GPT stage: weight of attention off the diagonal of text and speech, in one head (guided attention; XTTS: 0)."""
    code_masking: float = setting(0.0, at_least=0, below=1)
    """GPT stage: share of the codes before the next one that are replaced by random ones in training, so that the model
    must read the text and cannot recite (word dropout; Bowman et al. 2016, section 3.2)."""
    text_loss_weight: float = setting(0.01, at_least=0)
    """Weight of the text cross-entropy (XTTS: 0.01)."""
    code_loss_weight: float = setting(1.0, at_least=0)
    """Weight of the audio-code cross-entropy (XTTS: 1.0)."""
    lora_rank: int = setting(0, at_least=0, at_most=65536)
    """GPT stage with `init_from`: train adapters of this rank on attention and MLP only; 0 trains all weights."""
    lora_alpha: float | None = setting(None, above=0, flag="--lora-alpha")
    """What adapters add counts this over their rank (Hu et al. 2022); None takes the rank, that is, a factor of 1."""
    lora_targets: tuple[str, ...] = setting(LORA_TARGETS, one_of=LORA_TARGETS, flag="--lora-targets")
    """Kernels of each block of the GPT that get adapters; the others stay as they are."""
    lora_dropout: float = setting(0.0, at_least=0, below=1, flag="--lora-dropout")
    """Dropout on what enters the adapters (Hu et al. 2022)."""
    label_smoothing: float = setting(0.0, at_least=0, below=1)
    """Label smoothing of the audio-code cross-entropy (XTTS: 0)."""
    decoder_frames: int = setting(32, at_least=4, at_most=4096)
    """Decoder stage: frames of 256 samples at 24 kHz in the slice of a clip that is trained on (HiFi-GAN: 32)."""
    decoder_mel_weight: float = setting(45.0, at_least=0)
    """Decoder stage: weight of the log-mel difference (HiFi-GAN: 45)."""
    decoder_stft_weight: float = setting(45.0, at_least=0)
    """Decoder stage: weight of the multi-resolution spectral distance (Parallel WaveGAN)."""
    decoder_adversarial_weight: float = setting(1.0, at_least=0)
    """Decoder stage: weight of the discriminators' verdict, summed over them."""
    decoder_feature_weight: float = setting(2.0, at_least=0)
    """Decoder stage: weight of the difference of the discriminators' feature maps, summed over them (HiFi-GAN: 2)."""
    decoder_speaker_weight: float = setting(0.0, at_least=0)
    """Decoder stage: weight of 1 - cosine of the speaker vectors of recording and copy (YourTTS: 9); for slices of a
    second or more."""
    decoder_warmup: float = setting(0.5, at_least=0, at_most=1)
    """Decoder stage from random weights: share of the steps, at the beginning, that do without discriminators."""
    discriminator_warmup: float = setting(0.2, at_least=0, at_most=1)
    """Decoder stage with `init_from`: share of the steps, at the beginning, that train the discriminators alone."""
    optimizations: str = setting("none", one_of=PRESETS, flag="--optimizations")
    """Preset of the switches below that are left None; see `config/optimizations.py`."""
    precision: str | None = setting(None, one_of=(*PRECISIONS, "auto"))
    """Keras dtype policy of the model being trained, or `auto` for what suits the hardware; None takes the preset's."""
    tf32: bool | None = None
    """Round the factors of float32 matrix products to 10 bits, which GPUs from Ampere on multiply several times
    quicker; None takes the preset's, `auto`: where the hardware has it."""
    gradient_checkpointing: bool | None = None
    """GPT stage: keep less of each block for the backward pass and make it again there; None takes the preset's."""
    attention: str | None = setting(None, one_of=(*ATTENTIONS, "auto"), flag="--attention")
    """GPT stage: `standard`, `memory-efficient` (linear in the sequence), or `auto` by measurement; None takes the
    preset's."""
    xla: bool | None = None
    """Compile gradients and update with XLA, once per shape of batch; None takes the preset's."""
    ema: float | None = setting(None, at_least=0, below=1, flag="--ema", hint="It is a decay; try 0.999.")
    """Decay of the weight averages that are validated and spoken with; 0 turns them off, None takes the preset's."""
    strict: bool = setting(False, of_run=True)
    """A switch whose effect differs from what was asked for ends the run after its first step."""
    deterministic: bool = False
    """Take every sum in one order, so that equal runs on equal hardware give equal bits, on a GPU too; some operations
    are slower for it."""
    automatic_batch_size: bool = setting(False, of_run=True)
    """Find by trial how many clips fit at once; `batch_size` times `gradient_accumulation` stays what it is."""
    memory_budget_mb: int | None = setting(None, at_least=1, of_run=True)
    """Memory that the trials of a CPU may take; None takes half of what is free."""
    overtraining_patience: int = setting(0, at_least=0, of_run=True)
    """Validations in a row that may turn up while the training loss falls before a stage ends; 0 only warns."""
    seed: int = setting(0, at_least=0, at_most=2**63 - 1)
    """Fixes initial weights, data order, augmentation, dropout and sample sentences."""
    checkpoint_dir: str = setting("./checkpoints", of_run=True)
    """Where checkpoints, logs and samples go."""
    tensorboard_log_dir: str | None = setting(None, of_run=True)
    """TensorBoard folder; None puts it under the checkpoint folder."""
    reset_training: bool = setting(False, of_run=True)
    """Start anew; existing checkpoints are set aside."""
    init_from: str | None = setting(None, of_run=True)
    """Weights that a fresh run starts from: folder of a run or conversion, `hf://owner/name[@revision]`, or `base`."""
    tune: tuple[str, ...] = setting((), one_of=TUNABLE, flag="--tune")
    """With `init_from`: stages that train on from its weights. () takes the one asked for, else the GPT, and of `base`
    all that can."""
    accept_licence: bool = setting(False, of_run=True)
    """Take the licence of a model that is fetched for `init_from` as accepted, without asking."""
    log_every_steps: int = setting(50, at_least=1, of_run=True)
    """Steps between log lines."""
    validate_every_steps: int = setting(500, at_least=1)
    """Steps between validation losses; also at the end."""
    checkpoint_every_steps: int = setting(1000, at_least=1, of_run=True)
    """Steps between checkpoints; also at the end."""
    keep_checkpoints: int = setting(2, at_least=1, of_run=True)
    """Newest checkpoints kept besides the best."""
    sample_every_steps: int = setting(1000, at_least=0, of_run=True)
    """GPT stage: steps between spoken sample sentences; 0 turns them off."""
    evaluate_every_steps: int = setting(0, at_least=0, of_run=True)
    """GPT stage: steps between evaluations of what validation sentences sound like; 0 turns them off."""
    evaluation_sentences: int = setting(30, at_least=2, at_most=1000, of_run=True)
    """Sentences that are spoken for an evaluation."""
    evaluation_recognizer: str | None = setting(None, of_run=True)
    """Folder of a Whisper model, or a command with `{wav}` in it, by whose errors speech is judged."""
    best_by: str = setting("loss", one_of=("loss", "evaluation"), of_run=True)
    """GPT stage: what makes a checkpoint the best one, the validation loss or the evaluation's score."""
    evaluation_patience: int = setting(0, at_least=0, of_run=True)
    """GPT stage: evaluations in a row without a better score after which it ends at its best; 0 never ends it."""
    num_samples: int = setting(3, at_least=1, at_most=1000, of_run=True)
    """Sample sentences spoken each time."""
    closing_texts: tuple[str, ...] = setting((), of_run=True)
    """Sentences that the model says when the run ends; none takes those of validation clips."""
    max_validation_batches: int = setting(32, at_least=1)
    """Validation stops after this many batches."""
    pipeline_depth: int = setting(3, at_least=3, at_most=1000)
    """Buffers between the data device and the model device: one being prepared, one trained on, the rest ready."""
    max_bad_steps: int = setting(20, at_least=1)
    """Steps in a row with a loss or gradient that is not finite after which a run counts as diverged."""
    divergence_returns: int = setting(3, at_least=0)
    """Times that a diverged run returns to its last good checkpoint with a lower learning rate; then it stops."""
    divergence_rate: float = setting(0.5, above=0, at_most=1)
    """Factor on the learning rate each time a run goes back."""

    workers: tuple[str, ...] = setting((), of_run=True)
    """`host:port` of each process that trains this model together with the others, or `slurm` for the tasks of a Slurm
    job step; none for one process alone."""
    worker_index: int = setting(0, at_least=0, of_run=True)
    """Place of this process in `workers`; 0 is the chief, which alone writes."""
    worker_timeout_seconds: float = setting(300.0, at_least=10, of_run=True)
    """Most time that workers wait for one another: to meet, and in a step that is not a stage's first."""

    def __init__(self, **values):
        stages = dict(values.pop("stages", {}))
        stages |= {name: values.pop(name) for name in STAGES if name in values}
        self.fill(values, {"stages": {}})
        self.stages = {name: _stage_config(name, stages.get(name)) for name in (*STAGES, *(stages.keys() - STAGES))}
        self.__post_init__()

    def __post_init__(self):
        super().__post_init__()
        name, way_out = "training.checkpoint_dir (--checkpoint-dir)", "Leave it out for ./checkpoints."
        require(self.checkpoint_dir.strip(), name, "the name of a folder", brief(self.checkpoint_dir), way_out)
        name, is_named = "training.init_from (--init-from)", self.init_from is None or self.init_from.strip()
        require(is_named, name, "a name", brief(self.init_from), "Leave --init-from out to start from random weights.")
        require(
            self.stage in (*STAGES, "all"), "training.stage (--stage)", f"one of {', '.join(STAGES)}, all", self.stage
        )
        rule = "loss unless training.evaluate_every_steps (--evaluate-every) is above 0"
        require(self.best_by == "loss" or self.evaluate_every_steps, "training.best_by (--best-by)", rule, self.best_by)
        check_workers(self.workers, self.worker_index)
        if self.workers and self.automatic_batch_size:
            raise ConfigError(
                "training.automatic_batch_size (--batch-size auto) tries steps alone, which workers cannot. Find the "
                "size on one machine, and give --batch-size as many clips times the number of workers."
            )
        self._check_adapters()
        for name in self.leave_out:
            require(name in STAGES, "training.leave_out", f"a list of stages, of {', '.join(STAGES)}", brief(name))
        for name, stage in self.stages.items():
            may = stage.crop_seconds is None or name not in STAGES or STAGES[name].can_crop
            way_out = "A slice of a clip no longer fits its text."
            require(may, f"training.{name}.crop_seconds", "left out", stage.crop_seconds, way_out)

    def _check_adapters(self):
        require(self.lora_targets, "training.lora_targets (--lora-targets)", "one kernel or more", self.lora_targets)
        for name, alone in (("alpha", None), ("targets", LORA_TARGETS), ("dropout", 0.0)):
            setting, value = f"training.lora_{name} (--lora-{name})", getattr(self, f"lora_{name}")
            rule = "left out without adapters"
            way_out = "Add training.lora_rank (--lora-rank)."
            require(self.lora_rank or value == alone, setting, rule, value, way_out)

    def __getattr__(self, name):
        stages = self.__dict__.get("stages", {})
        if name in stages:
            return stages[name]
        raise AttributeError(f"training has no setting {name}.")

    def __setattr__(self, name, value):
        if name in STAGES:
            self.stages[name] = _stage_config(name, value)
        elif name in _OF_STAGES:
            known = " or ".join(f"training.{stage}.{name}" for stage in STAGES)
            raise ConfigError(f"training has no setting {name}: each stage has its own. Set {known}.")
        else:
            super().__setattr__(name, value)


_OF_STAGES = {one.name for one in fields(StageConfig)} - {one.name for one in fields(TrainingConfig)}
"""Settings that people look for here and that each stage has for itself."""


def _stage_config(name, given):
    if given is None or isinstance(given, dict):
        return default_stage_config(name, **(given or {}))
    require(isinstance(given, StageConfig), f"training.{name}", "a StageConfig or a mapping of settings", repr(given))
    return given
