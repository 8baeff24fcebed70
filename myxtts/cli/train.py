"""`python train_main.py`: flags become settings, devices and recordings are set up, a run is shown on the console."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.arguments import PlainParser
from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import ConfigError, printable
from myxtts.config.config import XTTSConfig
from myxtts.config.optimizations import DEFAULT_EMA_DECAY, PRESETS
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import LORA_TARGETS, STAGES
from myxtts.config.training import TUNABLE
from myxtts.devices.device_plan import DATA_GPU_MEMORY_MB, MODEL_GPU_MEMORY_MB

if TYPE_CHECKING:
    from myxtts.runs.run import Run

FLAGS = f"""
[data]
--train-data DIR data.train_data root of the training set, or a list of its clips (default: a sample corpus)
--sample-languages LANGS data.sample_languages
 without --train-data: languages of the sample corpus, such as en,fa; all without a value (default: en)
--val-data DIR data.val_data root of the validation set, or a list (default: a split of the training set)
--prepared DIR data.prepared what `myxtts prepare` made of --train-data: samples and codes are read from there
--val-prepared DIR data.val_prepared the same of --val-data
--format NAME data.format format of the data, see docs/data.md (default: told by its content)
--audio-root DIR... data.audio_roots a further folder in which lists may name audio; can be repeated
--language TEXT data.language language of recordings whose set names none (default: en)
--g2p,--phonemizer LANG... data.g2p write text as it sounds: am for Amharic, espeak for languages without rules of their
 own; can be repeated (default: as in the run, else off)
--vocabulary FILE data.vocabulary tokenizer file (default: one trained on the corpus)
--download-ljspeech yes - fetch LJSpeech into --train-data when it is missing
--num-workers int data.num_workers parallel readers (default: 8)
--buffer-size int data.pipeline_buffer_size prefetch buffer in batches (default: 50)
--min-seconds float data.min_seconds shorter clips are left out (default: 0.1)
--max-seconds float data.max_seconds longer clips are left out (default: 11.6)
--max-text-length int data.max_text_length most text tokens of a clip (default: 200)
--max-mel-frames int data.max_mel_frames fixed length in mel frames (default: that of the longest clip that
 the model takes)
^ --enable-static-shapes,--pad-to-fixed-length fixed data.static_shapes
 one fixed shape for every batch: the train step is traced once
^ --disable-static-shapes varying data.static_shapes shapes from length buckets (default)
[devices]
--data-gpu int data.data_gpu physical GPU that prepares data; with --model-gpu: Multi-GPU Mode
--model-gpu int data.model_gpu physical GPU that trains; with --data-gpu: Multi-GPU Mode
--model-gpus gpus - several training GPUs, mirrored
--model-start-delay float data.model_start_delay
 Multi-GPU Mode: head start of the data pipeline in seconds (default: 2.0)
--enable-memory-isolation yes - a hard memory limit for each GPU
--data-gpu-memory int - limit of the data GPU in MB
--model-gpu-memory int - limit of the model GPU in MB
--virtual-devices int - try the two-device pipeline on this many virtual devices
--workers ADDR,… training.workers several processes that train one model: host:port of each, or slurm (docs/scaling.md)
--worker-index N training.worker_index which of them this is; worker 0 alone writes (default: 0)
--device-plan auto - measure the ways to use the devices present and take the quickest
[training]
--config FILE - YAML file, yours or one of configs/, which come with the package; flags given here win over it
--model-size size model.size capacity preset (default: tiny)
--stage stage training.stage what to train (default: all that is missing)
--batch-size batch data.batch_size,stage.batch_size clips per batch; auto finds by trial how many fit at once, and
 accumulates them to the batch of the configuration (default: 16)
--memory-budget MB training.memory_budget_mb
 memory that the trials of --batch-size auto may take on a CPU (default: half of what is free)
--epochs int training.epochs passes over the data (default: 500)
--max-steps int stage.max_steps stop each stage after this many optimizer steps
--grad-accum int training.gradient_accumulation batches per optimizer step (default: 1)
--lr float stage.learning_rate peak learning rate (default: from the preset)
--lora-rank int training.gpt.lora_rank with --init-from: train low-rank adapters only (default: 0, off)
--lora-alpha float training.gpt.lora_alpha what adapters add counts this over their rank (default: the rank)
--lora-targets names training.gpt.lora_targets kernels that get adapters, of {",".join(LORA_TARGETS)} (default: all)
--lora-dropout float training.gpt.lora_dropout dropout on what enters the adapters (default: 0)
--seed int training.seed fixes everything that is drawn (default: 0)
--checkpoint-dir DIR training.checkpoint_dir where everything goes (default: ./checkpoints)
^ --reset-training yes training.reset_training start anew; existing checkpoints are set aside
^ --resume yes - only resume: an error where --checkpoint-dir holds no run (default: resume or start)
--init-from DIR training.init_from
 start from the weights of base, the model in the box, of a run, of `myxtts convert`, or of a model of the hub, hf://owner/name[@revision]
--tune names training.tune
 with --init-from: stages that train on from its weights, of {",".join(TUNABLE)} (default: gpt, and of base all three)
--accept-licence yes training.accept_licence accept the licence of a model of the hub without being asked
--tensorboard-log-dir DIR training.tensorboard_log_dir default: under the checkpoint folder
--save-every N training.checkpoint_every_steps steps between checkpoints (default: 1000)
--keep N training.keep_checkpoints newest checkpoints kept besides the best (default: 2)
--validate-every N training.validate_every_steps steps between validation losses (default: 500)
--sample-every N training.sample_every_steps steps between spoken sample sentences; 0 for none (default: 1000)
--evaluate-every N training.evaluate_every_steps
 steps between evaluations of what validation sentences sound like; 0 for none (default: 0)
--recognizer WHAT training.evaluation_recognizer
 with --evaluate-every: folder of a Whisper model, or a command with {{wav}} in it, whose errors are counted
--best-by TEXT training.best_by loss or evaluation: what makes a checkpoint the best one (default: loss)
--evaluation-patience N training.evaluation_patience
 end the GPT at its best after N evaluations without a better score (default: 0, never)
[optimizations] what each did is printed after the first step
--optimizations preset training.optimizations
 preset of the switches below; each of them wins over it (default: none)
--strict yes training.strict end the run with exit code 2 when a switch does something else than asked for
--precision TEXT training.precision
 mixed_bfloat16, mixed_float16, float32, or auto for what suits the hardware (default: float32)
--tf32 on/off training.tf32 round factors of float32 products to 10 bits, for speed (default: where the GPU has it)
--gradient-checkpointing on/off training.gradient_checkpointing
 GPT stage: less memory for some time, the same gradients (default: off)
--attention TEXT training.attention
 GPT stage: standard, memory-efficient, or auto for what costs no time here (default: standard)
--xla on/off training.xla compile the train step, once per shape of batch (default: off)
--deterministic yes training.deterministic
 the same bits each time, on a GPU too, where some operations are slower for it (default: off)
--ema decay training.ema validate and speak with moving averages of the weights (default: off; {DEFAULT_EMA_DECAY}
 without a number, 0 for off)
--overtraining-patience N training.overtraining_patience end a stage at its best after N validations that turn up
 while the training loss falls (default: 0, only warn)
"""
"""A flag a line: `names kind setting help`. `stage.…` is a setting of every stage, `-` is none; those after `^` exclude
each other. `[…]` begins a group."""


def _kinds():
    """Options of `argparse` by the kind of a flag; for another kind, it is the metavar."""
    gpus = _value("GPU numbers such as 1,2,3", lambda text: tuple(map(int, text.split(","))))
    languages = _value("languages such as en,fa", lambda text: tuple(text.split(",")))
    batch_size = _value("a number of clips, or auto", lambda text: text if text == "auto" else int(text))
    return {
        "yes": dict(action="store_true", default=None),
        "fixed": dict(action="store_true", dest="static_shapes", default=None),
        "varying": dict(action="store_false", dest="static_shapes", default=None),
        "on/off": dict(action=argparse.BooleanOptionalAction, default=None),
        "int": dict(type=int),
        "float": dict(type=float),
        "MB": dict(type=int, metavar="MB"),
        "N": dict(type=int, metavar="N"),
        "gpus": dict(type=gpus, metavar="I,J,…"),
        "batch": dict(type=batch_size, metavar="N|auto"),
        "decay": dict(type=float, nargs="?", const=DEFAULT_EMA_DECAY, metavar="DECAY"),
        "DIR...": dict(action="append", metavar="DIR"),
        "LANG...": dict(action="append", metavar="LANG"),
        "ADDR,…": dict(type=lambda text: tuple(text.split(",")), metavar="HOST:PORT,…"),
        "names": dict(type=lambda text: tuple(map(str.strip, text.split(","))), metavar="NAME,…"),
        "LANGS": dict(type=languages, nargs="?", const=("all",), metavar="LANG,…"),
        "auto": dict(choices=("auto",)),
        "size": dict(choices=MODEL_SIZES),
        "stage": dict(choices=(*STAGES, "all")),
        "preset": dict(choices=PRESETS),
        "TEXT": {},
    }


def _value(rule, parse):
    def value(text):
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {rule}. Received: {text}") from None

    return value


def build_parser(prog: str = "myxtts train") -> argparse.ArgumentParser:
    """The training command line; its flags are a public contract."""
    parser = PlainParser(
        prog=prog,
        description="Train XTTS on a folder of recordings; without one, on a small sample corpus that it makes.",
        epilog="Without a flag its value comes from --config, else from the defaults named here.",
    )
    kinds, settings, group, rivals = _kinds(), {}, None, None
    for line in FLAGS.strip().replace("\n ", " ").splitlines():
        if line.startswith("["):
            title, _, description = line[1:].partition("]")
            group = parser.add_argument_group(title, description.strip() or None)
            continue
        rivals = (rivals or group.add_mutually_exclusive_group()) if line.startswith("^") else None
        names, kind, setting, text = line.removeprefix("^ ").split(None, 3)
        options = kinds.get(kind, dict(metavar=kind))
        action = (rivals or group).add_argument(*names.split(","), help=text, **options)
        settings[action.dest] = setting.split(",") if setting != "-" else []
    parser.set_defaults(settings=settings, data_gpu_memory=DATA_GPU_MEMORY_MB, model_gpu_memory=MODEL_GPU_MEMORY_MB)
    return parser


def config_from_arguments(arguments: argparse.Namespace, settings: dict | None = None) -> XTTSConfig:
    """The settings given, else those in `--config`, with the flags that were given on top."""
    from myxtts.config.loading import config_from_dict, merge, read_yaml
    from myxtts.config.recipes import SAMPLE, find_recipe

    path = arguments.config or (None if arguments.train_data else SAMPLE)
    values, given = settings or (read_yaml(find_recipe(path)) if path else {}), vars(arguments)
    for flag, settings in arguments.settings.items():
        for *sections, name in (setting.split(".") for setting in settings if given[flag] is not None):
            section, value = sections[0], {name: given[flag]}
            for one in reversed(sections):
                value = {one: value}
            if flag == "batch_size" and given[flag] == "auto":
                value = {"training": {"automatic_batch_size": True}}
            elif section == "stage":
                value = {"training": {stage: {name: given[flag]} for stage in STAGES}}
            values = merge(values, value)
    try:
        return config_from_dict(values)
    except ConfigError as error:
        raise _with_flag(error, arguments) from error


def _with_flag(error, arguments):
    """A setting's error with the flag that gave the setting, which is what the user typed."""
    told = str(error)
    for flag, settings in arguments.settings.items():
        if vars(arguments)[flag] is not None and told.startswith(tuple(settings)) and "--" not in told:
            return ConfigError(f"--{flag.replace('_', '-')}: {told}")
    return error


def main(argv: list[str] | None = None) -> int:
    """Trains what is missing; returns the exit code."""
    from myxtts.runs.signals import leave_in_order

    code = train(argv)
    leave_in_order(code)
    return code


@exits_with_sentence
def train(argv: list[str] | None = None) -> int:
    """As `main`, for `train_main.py` where `argv` is None. Workers that it has joined are still there."""
    from myxtts.devices.tensorflow_start import filter_native_errors
    from myxtts.runs.signals import leave_at_once, leave_in_order, stops_on_signals

    arguments = (build_parser("train_main.py") if argv is None else build_parser()).parse_args(argv)
    config = config_from_arguments(arguments)
    filter_native_errors()
    run = open_run(arguments, config)
    if not run.train(guard=stops_on_signals) and not (run.trainer and run.trainer.under_way):
        leave_in_order(0)
        leave_at_once()
    return 0


def open_run(arguments: argparse.Namespace, config: XTTSConfig, quiet: bool = False) -> "Run":
    """The run that a command line asks for, on its devices and recordings; it tells the console unless `quiet`."""
    from myxtts.runs import setup

    _require_use(arguments, config.data.train_data)
    if arguments.resume:
        if not arguments.init_from:  # a recipe's says how the run began
            config = replace(config, training=replace(config.training, init_from=None))
        setup.require_run(config)
    _require_size_of_source(arguments, config.training.init_from)
    options = set_up_options(arguments)
    if arguments.device_plan == "auto":
        from myxtts.runs.device_choice import quickest_devices

        config, options = quickest_devices(config, options)
    config, plan = setup.set_up(config, **options)
    from myxtts.runs.console import RunConsole
    from myxtts.runs.run import Run
    from myxtts.utils.commons import setup_logging

    run = Run(config, plan)
    if not quiet and config.training.worker_index == 0:
        setup_logging()
        run.callbacks.append(RunConsole(run))
    return run


def _require_use(arguments, recordings):
    """Raises `ConfigError` for a flag on languages that would be passed over: each goes with one kind of recordings."""
    if arguments.language is not None and not recordings:
        rule = "--language is that of recordings in --train-data, and there is none: the sample corpus names its own"
        way_out = "--sample-languages chooses those of the sample corpus"
        raise ConfigError(f"{rule}. Add --train-data DIR, or leave --language out; {way_out}.")
    if arguments.sample_languages is not None and recordings:
        rule = "--sample-languages is for the sample corpus, which is made where no --train-data is given"
        given = f"the recordings are in {printable(str(recordings))}"
        raise ConfigError(f"{rule}; {given}. Leave one of the two out; --language is that of recordings.")


def _require_size_of_source(arguments, source):
    """Raises `ConfigError` where --model-size is not that of --init-from, which would be passed over."""
    from myxtts.storage.base_model import BASE_FOLDER, is_base
    from myxtts.storage.provenance import read_config

    folder = BASE_FOLDER if is_base(source) else Path(source or "")
    if not arguments.model_size or not source or not (folder / "config.json").is_file():
        return
    if (size := read_config(folder).model.size) != arguments.model_size:
        brought = f"--init-from {printable(source)} brings its model with it, which is {size}"
        raise ConfigError(f"--model-size {arguments.model_size}: {brought}. Leave one of the two out.")


def set_up_options(arguments: argparse.Namespace) -> dict:
    """The arguments of `runs.setup.set_up` that the command line gives, but for the configuration."""
    names = "model_gpus", "data_gpu_memory", "model_gpu_memory", "virtual_devices"
    switches = dict(memory_isolation=arguments.enable_memory_isolation, download=arguments.download_ljspeech)
    return {name: getattr(arguments, name) for name in names} | {name: bool(on) for name, on in switches.items()}
