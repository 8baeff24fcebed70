"""`TrainingConfig`, the settings of training: loop, stages, workers, and optimization switches with presets."""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from myxtts.config.checks import ConfigError, brief, read_toml, require
from myxtts.config.settings import Settings, setting
from myxtts.config.stages import STAGES, StageConfig

PRESETS = read_toml(__file__, "presets.toml")
SWITCHES = PRESETS.pop("default")
"""Switches of `TrainingConfig` that a preset can set, with their defaults."""
PRESETS["auto"] = PRESETS["balanced"]
"""Switches of each preset. `conservative` changes results at most by rounding. `balanced`, also called `auto`, lowers
the precision of matrix products where that is faster, and on a GPU uses XLA for stages with many steps per batch shape.
`aggressive` also saves memory and uses XLA for every stage on a GPU."""
FIRST_SLURM_PORT, SLURM_PORTS = 23000, 8000
"""Lowest port and number of ports for Slurm workers. The job id selects a job's ports, so that jobs do not conflict."""
SLURM = ("slurm",)
"""Value of `training.workers` that means all tasks of a Slurm job step."""
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
TUNABLE = ("dvae", "gpt", "decoder")
"""Stages that can be fine-tuned."""
_switch = functools.partial(setting, None, page="more", group="optimizations")


def workers_in(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int] | None:
    """Returns the addresses of all workers (chief first) and the index of this worker, read from `TF_CONFIG`.
    Kubeflow's TFJob sets this environment variable. Returns None if the variable names no cluster. Raises `ConfigError`
    if the variable is invalid, or if this process is neither chief nor worker."""
    try:
        found = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = found.get("cluster", {}), found.get("task", {})
        chiefs, workers = ([str(one) for one in cluster.get(job, [])] for job in ("chief", "worker"))
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"TF_CONFIG must be JSON with cluster and task: {error}.") from error
    if not cluster:
        return None
    if kind not in ("chief", "worker") or not 0 <= index < len(chiefs if kind == "chief" else workers):
        raise ConfigError(f"TF_CONFIG must name this process. Received: task {brief(kind)} {index}. Fix or unset it.")
    return (*chiefs, *workers), index + len(chiefs) * (kind == "worker")


def workers_of_slurm(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """Returns all task addresses and this task's index in a Slurm job step. Raises `ConfigError` outside a job step."""
    names = "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
    if missing := [name for name in names if not environment.get(name)]:
        raise ConfigError(f"--workers slurm: {missing[0]} is not set. Start it with srun, or give addresses.")
    index, job, nodes, tasks = (environment[name] for name in names)
    try:
        first = FIRST_SLURM_PORT + int(job) * 16 % SLURM_PORTS
        hosts, counts = [], []
        for start, spans, end in re.findall(r"([\w.-]+)(?:\[([\d,-]+)\])?([\w.-]*)(?:,|$)", nodes):
            for span in spans.split(","):  # `node[01-03,7],login`
                low, _, high = span.partition("-")
                numbers = range(int(low), int(high or low) + 1) if span else [""]
                hosts += [f"{start}{str(number).zfill(len(low))}{end}" for number in numbers]
        for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", tasks):  # `2(x3),1`
            counts += [int(count)] * int(repeats or 1)
        pairs = zip(hosts, counts, strict=True)
        return tuple(f"{host}:{first + place}" for host, count in pairs for place in range(count)), int(index)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--workers slurm cannot read the variables of this job step: {error}.") from error


def requested_switches(training: Settings, stage: str | None = None) -> dict[str, tuple[object, str]]:
    """Returns `{setting: (requested value, source)}` for the optimization settings in `SWITCHES`. The source is
    `given`, `preset NAME`, `default of the stage` (only if `stage` is given) or `default`."""
    found = {name: (value, "default") for name, value in SWITCHES.items()}
    if stage and STAGES[stage].ema:
        found["ema"] = STAGES[stage].ema, "default of the stage"
    preset = PRESETS[training.optimizations]
    found |= {name: (value, f"preset {training.optimizations}") for name, value in preset.items()}
    given = {name: getattr(training, name) for name in SWITCHES}
    return found | {name: (value, "given") for name, value in given.items() if value is not None}


@dataclass(init=False)
class TrainingConfig(Settings):
    """Settings of the training loop: length, optimizations, validation, checkpoints and workers."""

    section = "training"

    stage: str = setting("all", one_of=lambda: (*STAGES, "all"), of_run=True, flag="--stage", page="main")
    """Stage to train; `all` trains all missing stages in order."""
    leave_out: tuple[str, ...] = setting((), one_of=lambda: STAGES, of_run=True)
    """Stages that `stage: all` does not start. Stages that have a checkpoint are resumed nevertheless."""
    epochs: int = setting(500, at_least=1, flag="--epochs", page="main")
    """Maximum number of epochs, for stages without max steps: dvae and gpt, unless --max-steps or a recipe sets it."""
    stages: dict[str, StageConfig] = field(default_factory=dict)
    """Settings of each stage, by its name. YAML leaves out the level `stages`: `training: {gpt: {max_steps: 9}}`."""
    gradient_accumulation: int = setting(1, at_least=1, flag="--grad-accum", page="main", metavar="N")
    """Batches per optimizer step."""
    optimizations: str = setting("none", one_of=PRESETS, flag="--optimizations", page="more", group="optimizations")
    """Preset of the switches below; a switch that is given overrides the preset. See docs/optimizations.md."""
    precision: str | None = _switch(one_of=("float32", "mixed_float16", "mixed_bfloat16", "auto"), flag="--precision")
    """Keras dtype policy; `auto` selects one for the hardware (default: from the preset)."""
    tf32: bool | None = _switch(flag="--tf32")
    """Use TF32 for float32 matrix products, on Ampere GPUs and newer (default: on where supported)."""
    gradient_checkpointing: bool | None = _switch(flag="--gradient-checkpointing")
    """GPT: recompute activations in the backward pass, to save memory (default: from the preset)."""
    attention: str | None = _switch(one_of=("standard", "memory-efficient", "auto"), flag="--attention")
    """GPT: attention implementation; `auto` measures both and selects the faster one (default: from the preset)."""
    xla: bool | None = _switch(flag="--xla")
    """Compile the train step (GPT on a GPU: its blocks) with XLA, once per batch shape (default: from the preset)."""
    ema: float | None = _switch(
        at_least=0, below=1, hint="Try 0.999.", flag="--ema", metavar="DECAY", page="", alone=0.999
    )
    """Decay of the weights' moving average (EMA) for validation and speech; 0 for none (default: 0; decoder: 0.999)."""
    strict: bool = setting(False, of_run=True, flag="--strict", page="more", group="optimizations")
    """Exit with code 2 after the first step if an optimization is not in effect as requested."""
    deterministic: bool = setting(False, flag="--deterministic", group="optimizations")
    """Use deterministic ops, also on a GPU: runs on equal hardware are bitwise identical. Some ops are slower."""
    automatic_batch_size: bool = setting(False, of_run=True)
    """Find the largest batch size that fits in memory; accumulation keeps the number of clips per optimizer step."""
    memory_budget_mb: int | None = setting(None, at_least=1, of_run=True, flag="--memory-budget", metavar="MB")
    """Memory budget for the batch-size search on a CPU (default: half of the free memory)."""
    overtraining_patience: int = setting(0, at_least=0, of_run=True, flag="--overtraining-patience", metavar="N")
    """Stop early after N validations with a loss above the best while the training loss falls; 0 only warns."""
    seed: int = setting(0, at_least=0, at_most=2**32 - 1, flag="--seed", page="more")
    """Random seed of weights, data order, augmentation, dropout and samples."""
    checkpoint_dir: str = setting("./checkpoints", of_run=True, flag="--checkpoint-dir", metavar="DIR")
    """Run folder for checkpoints, logs and samples."""
    tensorboard_log_dir: str | None = setting(None, of_run=True, flag="--tensorboard-log-dir", metavar="DIR")
    """TensorBoard folder (default: in the run folder)."""
    reset_training: bool = setting(False, of_run=True, flag="--reset-training", rival="begin")
    """Start over; existing checkpoints are moved aside."""
    init_from: str | None = setting(None, of_run=True, flag="--init-from", page="main", metavar="DIR")
    """Start from pretrained weights: `base` (the bundled model), the folder of a run, of `myxtts convert` or of a
    released XTTS v2, or `hf://owner/name[@revision]`."""
    tune: tuple[str, ...] = setting((), one_of=TUNABLE, flag="--tune", page="more", metavar="NAME,…")
    """Stages to fine-tune, with --init-from (default: gpt; from base: dvae, gpt, decoder; --stage decoder: decoder)."""
    accept_licence: bool = setting(False, of_run=True, flag="--accept-licence", page="more")
    """Accept the licence of a Hugging Face model without a prompt."""
    log_every_steps: int = setting(50, at_least=1, of_run=True)
    """Steps between log lines."""
    validate_every_steps: int = setting(500, at_least=1, flag="--validate-every", page="more", metavar="N")
    """Validate every N steps and at the end."""
    checkpoint_every_steps: int = setting(1000, at_least=1, of_run=True, flag="--save-every", page="main", metavar="N")
    """Save a checkpoint every N steps and at the end."""
    keep_checkpoints: int = setting(2, at_least=1, of_run=True, flag="--keep", page="more", metavar="N")
    """Number of latest checkpoints to keep, in addition to the best."""
    sample_every_steps: int = setting(1000, at_least=0, of_run=True, flag="--sample-every", page="more", metavar="N")
    """GPT: steps between generated speech samples; 0 turns them off."""
    evaluate_every_steps: int = setting(0, at_least=0, of_run=True, flag="--evaluate-every", page="more", metavar="N")
    """GPT: steps between evaluations on synthesized validation sentences; 0 turns them off."""
    evaluation_sentences: int = setting(30, at_least=2, at_most=1000, of_run=True)
    """Number of sentences in an evaluation."""
    evaluation_recognizer: str | None = setting(None, of_run=True, flag="--recognizer", page="more", metavar="NAME")
    """Speech recognizer that transcribes recordings without texts (default: base) and scores generated speech
    (--evaluate-every): a Whisper size or folder, hf://owner/name, pocketsphinx, or a command with `{wav}`."""
    best_by: str = setting("loss", one_of=("loss", "evaluation"), of_run=True, flag="--best-by", page="more")
    """GPT: select the best checkpoint by validation loss (`loss`) or by evaluation score (`evaluation`)."""
    evaluation_patience: int = setting(0, at_least=0, of_run=True, flag="--evaluation-patience", metavar="N")
    """GPT: stop early after N evaluations in a row without a better score; 0 turns it off."""
    num_samples: int = setting(3, at_least=1, at_most=1000, of_run=True)
    """Number of sentences to synthesize whenever samples are generated."""
    closing_texts: tuple[str, ...] = setting((), of_run=True)
    """Sentences to synthesize at the end of the run (default: texts of validation clips)."""
    max_validation_batches: int = setting(32, at_least=1)
    """Maximum number of validation batches."""
    pipeline_depth: int = setting(3, at_least=3, at_most=1000)
    """Number of batches in the pipeline: one in preparation, one in training, and the rest in a buffer in between."""
    max_bad_steps: int = setting(20, at_least=1)
    """Number of consecutive steps with a non-finite loss or gradient after which a run counts as diverged."""
    divergence_returns: int = setting(3, at_least=0)
    """Number of times that a diverged run returns to its last good checkpoint with a lower learning rate."""
    divergence_rate: float = setting(0.5, above=0, at_most=1)
    """Factor that multiplies the learning rate each time that a diverged run returns to a checkpoint."""
    workers: tuple[str, ...] = setting((), of_run=True, flag="--workers", metavar="HOST:PORT,…", group="devices")
    """Addresses of all training processes, or `slurm` for the tasks of a Slurm job step, see docs/scaling.md."""
    worker_index: int = setting(0, at_least=0, of_run=True, flag="--worker-index", metavar="N", group="devices")
    """Index of this process in --workers; worker 0 is the chief, the only one that writes files."""
    worker_timeout_seconds: float = setting(300.0, at_least=10, of_run=True)
    """Maximum time that workers wait for each other, at the start and in every step except a stage's first one."""

    def __init__(self, **values):
        stages = dict(values.pop("stages", {}))
        stages |= {name: values.pop(name) for name in STAGES if name in values}
        self.fill(values, {"stages": {}})
        self.stages = {name: _stage_config(name, stages.get(name)) for name in (*STAGES, *(stages.keys() - STAGES))}
        self.__post_init__()

    def __post_init__(self):
        super().__post_init__()
        self.check_name("checkpoint_dir")
        self.check("checkpoint_dir", "://" not in self.checkpoint_dir, "a folder on this machine")
        self.check_name("init_from")
        rule = f"loss without {self.name_of('evaluate_every_steps')}"
        self.check("best_by", self.best_by == "loss" or self.evaluate_every_steps > 0, rule)
        if self.workers != SLURM:
            named, count, seen = self.name_of("workers"), len(self.workers), ",".join(self.workers)
            for address in self.workers:
                match = _ADDRESS.fullmatch(address)
                rule = "host:port,… with ports from 1 to 65535"
                require(match is not None and 0 < int(match[1]) <= 65535, named, rule, brief(address))
            require(len(set(self.workers)) == count, named, "different addresses", seen, "Give each its own port.")
            rule = f"from 0 to {count - 1}, the index of this worker in --workers" if count else "0 without --workers"
            self.check("worker_index", 0 <= self.worker_index < max(1, count), rule)
        if self.workers and self.automatic_batch_size:
            raise ConfigError("--batch-size auto cannot be used with --workers. Multiply one machine's size.")
        for name, stage in self.stages.items():
            can_crop = stage.crop_seconds is None or name not in STAGES or STAGES[name].can_crop
            hint = "The slice of a clip would not match its text."
            require(can_crop, f"training.{name}.crop_seconds", "left out", stage.crop_seconds, hint)

    @property
    def resets(self) -> tuple[str, ...]:
        """Stages to start over. With `reset_training`, these are `stage` and all stages after it; otherwise, none."""
        first = 0 if self.stage == "all" else list(STAGES).index(self.stage)
        return tuple(STAGES)[first:] if self.reset_training else ()

    def __getattr__(self, name):
        stages = self.__dict__.get("stages", {})
        if name in stages:
            return stages[name]
        raise AttributeError(f"training has no setting {name}.")

    @classmethod
    def hint_for(cls, name: str) -> str:
        """Returns a hint for an unknown setting. If a stage has a setting `name`, suggests `training.STAGE.name`."""
        owners = [stage for stage, entry in STAGES.items() if name in entry.settings.__dataclass_fields__]
        known = " or ".join(f"training.{stage}.{name}" for stage in owners)
        return f" Each stage has its own. Set {known}." if owners else super().hint_for(name)

    def __setattr__(self, name, value):
        if name in STAGES:
            self.stages[name] = _stage_config(name, value)
        else:
            super().__setattr__(name, value)


def _stage_config(name, given):
    """Converts `given` (a mapping, a `StageConfig` or None) to the settings class of the stage `name`. Returns `given`
    unchanged if there is no such stage."""
    entry = STAGES.get(name)
    if entry is None or isinstance(given, entry.settings):
        return given
    values = vars(given) if isinstance(given, StageConfig) else given or {}
    require(isinstance(values, dict), f"training.{name}", "a StageConfig or a mapping of settings", repr(given))
    return entry.settings(**{**entry.defaults, **values})
