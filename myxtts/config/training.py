"""The training loop and its stages."""

from dataclasses import dataclass

from myxtts.config.checks import ConfigError, brief, require
from myxtts.config.optimizations import ATTENTIONS, DEFAULT_EMA_DECAY, PRECISIONS, PRESETS
from myxtts.config.settings import Settings, setting
from myxtts.config.stages import STAGES, StageConfig
from myxtts.config.workers import check_workers

TUNABLE = ("dvae", "gpt", "decoder")
"""Stages that can train on from the weights of another model."""


@dataclass(init=False)
class TrainingConfig(Settings):
    """The loop: how long, how often to look, where to write."""

    section = "training"

    stage: str = setting("all", one_of=lambda: (*STAGES, "all"), of_run=True, flag="--stage", page="main")
    """Stage to train, or `all` that are missing, in order, but for `leave_out`."""
    leave_out: tuple[str, ...] = setting((), of_run=True)
    """Stages that `all` does not start; one that was started continues."""
    epochs: int = setting(500, at_least=1, flag="--epochs", page="main")
    """Passes over the training set of a stage that has no `max_steps`."""
    stages: dict[str, StageConfig] = setting(factory=dict)
    """How each stage is trained. In YAML and in Python each goes by its own name: `gpt: {max_steps: 9}`."""
    gradient_accumulation: int = setting(1, at_least=1, flag="--grad-accum", page="main")
    """Batches per optimizer step."""
    optimizations: str = setting("none", one_of=PRESETS, flag="--optimizations", page="more", group="optimizations")
    """Preset of the switches below; each of them wins over it (docs/optimizations.md)."""
    precision: str | None = setting(
        None, one_of=(*PRECISIONS, "auto"), flag="--precision", page="more", group="optimizations"
    )
    """Keras dtype policy of the model being trained, or `auto` for what suits the hardware; by default the preset's."""
    tf32: bool | None = setting(None, flag="--tf32", page="more", group="optimizations")
    """Round the factors of float32 matrix products to 10 bits, for speed on GPUs from Ampere on; by default the
    preset's, where the hardware has it."""
    gradient_checkpointing: bool | None = setting(
        None, flag="--gradient-checkpointing", page="more", group="optimizations"
    )
    """GPT: recompute parts of each block in the backward pass, for less memory and the same gradients; by default the
    preset's."""
    attention: str | None = setting(
        None, one_of=(*ATTENTIONS, "auto"), flag="--attention", page="more", group="optimizations"
    )
    """GPT: `standard`, `memory-efficient` (linear in the sequence), or `auto` for the faster one, measured; by default
    the preset's."""
    xla: bool | None = setting(None, flag="--xla", page="more", group="optimizations")
    """Compile gradients and update with XLA, once per shape of batch; by default the preset's."""
    ema: float | None = setting(
        None,
        at_least=0,
        below=1,
        hint="It is a decay; try 0.999.",
        flag="--ema",
        metavar="DECAY",
        group="optimizations",
        alone=DEFAULT_EMA_DECAY,
    )
    """Decay of the weight averages that are validated and spoken with; 0 turns them off, by default the preset's."""
    strict: bool = setting(False, of_run=True, flag="--strict", page="more", group="optimizations")
    """End the run with exit code 2 after its first step when a switch does something else than asked for."""
    deterministic: bool = setting(False, flag="--deterministic", group="optimizations")
    """Take every sum in one order, so that equal runs on equal hardware give equal bits, on a GPU too; some operations
    are slower for it."""
    automatic_batch_size: bool = setting(False, of_run=True)
    """Find by trial how many clips fit at once; `batch_size` times `gradient_accumulation` stays what it is."""
    memory_budget_mb: int | None = setting(None, at_least=1, of_run=True, flag="--memory-budget", metavar="MB")
    """Memory that the trials of `--batch-size auto` may take on a CPU; by default half of what is free."""
    overtraining_patience: int = setting(
        0, at_least=0, of_run=True, flag="--overtraining-patience", metavar="N", group="optimizations"
    )
    """End a stage at its best after so many validations in a row that rise while the training loss falls; 0: warn."""
    seed: int = setting(0, at_least=0, at_most=2**63 - 1, flag="--seed", page="more")
    """Fixes initial weights, data order, augmentation, dropout and sample sentences."""
    checkpoint_dir: str = setting("./checkpoints", of_run=True, flag="--checkpoint-dir", metavar="DIR")
    """Where checkpoints, logs and samples go."""
    tensorboard_log_dir: str | None = setting(None, of_run=True, flag="--tensorboard-log-dir", metavar="DIR")
    """TensorBoard folder; by default under the checkpoint folder."""
    reset_training: bool = setting(False, of_run=True, flag="--reset-training", rival="begin")
    """Start over; existing checkpoints are set aside."""
    init_from: str | None = setting(None, of_run=True, flag="--init-from", page="main", metavar="DIR")
    """Start from these weights: `base`, the bundled model; the folder of a run or of `myxtts convert`; or a model of
    the hub, `hf://owner/name[@revision]`."""
    tune: tuple[str, ...] = setting((), one_of=TUNABLE, flag="--tune", page="more", metavar="NAME,…")
    """With `init_from`: stages that train on from its weights; by default the one asked for, else the GPT, and of
    `base` all that can."""
    accept_licence: bool = setting(False, of_run=True, flag="--accept-licence", page="more")
    """Accept the licence of a model of the hub without being asked."""
    log_every_steps: int = setting(50, at_least=1, of_run=True)
    """Steps between log lines."""
    validate_every_steps: int = setting(500, at_least=1, flag="--validate-every", page="more", metavar="N")
    """Steps between validation losses; also at the end."""
    checkpoint_every_steps: int = setting(1000, at_least=1, of_run=True, flag="--save-every", page="main", metavar="N")
    """Steps between checkpoints; also at the end."""
    keep_checkpoints: int = setting(2, at_least=1, of_run=True, flag="--keep", page="more", metavar="N")
    """Newest checkpoints kept besides the best."""
    sample_every_steps: int = setting(1000, at_least=0, of_run=True, flag="--sample-every", page="more", metavar="N")
    """GPT: steps between spoken sample sentences; 0 turns them off."""
    evaluate_every_steps: int = setting(0, at_least=0, of_run=True, flag="--evaluate-every", page="more", metavar="N")
    """GPT: steps between evaluations of spoken validation sentences; 0 turns them off."""
    evaluation_sentences: int = setting(30, at_least=2, at_most=1000, of_run=True)
    """Sentences that are spoken for an evaluation."""
    evaluation_recognizer: str | None = setting(None, of_run=True, flag="--recognizer", page="more", metavar="NAME")
    """Recognizer that transcribes recordings without texts (default: base) and scores the sentences of
    `evaluate_every_steps`: a size of Whisper such as `base`, hf://owner/name, a Whisper model's folder, pocketsphinx or
    a command with `{wav}` in it."""
    best_by: str = setting("loss", one_of=("loss", "evaluation"), of_run=True, flag="--best-by", page="more")
    """GPT: what makes a checkpoint the best one, the validation loss or the evaluation's score."""
    evaluation_patience: int = setting(0, at_least=0, of_run=True, flag="--evaluation-patience", metavar="N")
    """GPT: end it at its best after so many evaluations in a row without a better score; 0 never ends it."""
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

    workers: tuple[str, ...] = setting((), of_run=True, flag="--workers", metavar="HOST:PORT,…", group="devices")
    """`host:port` of each process that trains this model, or `slurm` for the tasks of a Slurm job step
    (docs/scaling.md)."""
    worker_index: int = setting(0, at_least=0, of_run=True, flag="--worker-index", metavar="N", group="devices")
    """Index of this process in `workers`; worker 0 is the chief, which alone writes."""
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
        name, hint = "training.checkpoint_dir (--checkpoint-dir)", "Leave it out for ./checkpoints."
        require(self.checkpoint_dir.strip(), name, "the name of a folder", brief(self.checkpoint_dir), hint)
        name, hint = "training.init_from (--init-from)", "Leave --init-from out to start from random weights."
        require(self.init_from is None or self.init_from.strip(), name, "a name", brief(self.init_from), hint)
        rule = "loss unless training.evaluate_every_steps (--evaluate-every) is above 0"
        require(self.best_by == "loss" or self.evaluate_every_steps, "training.best_by (--best-by)", rule, self.best_by)
        check_workers(self.workers, self.worker_index)
        if self.workers and self.automatic_batch_size:
            raise ConfigError(
                "--batch-size auto tries steps alone, which workers cannot. Find the size on one machine, and give "
                "--batch-size as many clips times the number of workers."
            )
        for name in self.leave_out:
            require(name in STAGES, "training.leave_out", f"a list of stages, of {', '.join(STAGES)}", brief(name))
        for name, stage in self.stages.items():
            may = stage.crop_seconds is None or name not in STAGES or STAGES[name].can_crop
            hint = "A slice of a clip no longer fits its text."
            require(may, f"training.{name}.crop_seconds", "left out", stage.crop_seconds, hint)

    def __getattr__(self, name):
        stages = self.__dict__.get("stages", {})
        if name in stages:
            return stages[name]
        raise AttributeError(f"training has no setting {name}.")

    def __setattr__(self, name, value):
        owners = [stage for stage, entry in STAGES.items() if name in entry.settings.__dataclass_fields__]
        if name in STAGES:
            self.stages[name] = _stage_config(name, value)
        elif owners and name not in self.__dataclass_fields__:
            known = " or ".join(f"training.{stage}.{name}" for stage in owners)
            raise ConfigError(f"training has no setting {name}: stages have their own. Set {known}.")
        else:
            super().__setattr__(name, value)


def _stage_config(name, given):
    """The settings of a stage, from an object or a mapping; of a stage that is not registered any more as they are."""
    if name not in STAGES or isinstance(given, STAGES[name].settings):
        require(isinstance(given, StageConfig), f"training.{name}", "the settings of a stage", repr(given))
        return given
    if isinstance(given, StageConfig):
        return STAGES[name].settings(**vars(given))
    require(isinstance(given or {}, dict), f"training.{name}", "a StageConfig or a mapping of settings", repr(given))
    return STAGES[name].make_settings(**(given or {}))
