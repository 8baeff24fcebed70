"""`python train_main.py`: parse, set devices up, read the recordings, train the stages, say where everything is."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from myxtts.cli.errors import exits_with_sentence
from myxtts.config.checks import UserError
from myxtts.config.optimizations import DEFAULT_EMA_DECAY, PRESETS
from myxtts.config.sizes import MODEL_SIZES
from myxtts.config.stages import STAGES

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SAMPLE_CONFIG = CONFIGS / "sample.yaml"
"""What a run without data and without a configuration takes."""
SAMPLE_CORPUS = Path("sample_corpus")


def build_parser():
    """The training command line; its flags are a public contract."""
    parser = argparse.ArgumentParser(
        prog="train_main.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train XTTS on a folder of recordings; without one, on a small sample corpus that it makes.",
        epilog="Without a flag its value comes from --config, else from the defaults named here.",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--train-data", metavar="DIR", help="root of the training set (default: a sample corpus)")
    data.add_argument(
        "--val-data", metavar="DIR", help="root of the validation set (default: a split of the training set)"
    )
    data.add_argument("--language", help="language of recordings whose set names none (default: en)")
    data.add_argument("--vocabulary", metavar="FILE", help="tokenizer file (default: one trained on the corpus)")
    data.add_argument(
        "--download-ljspeech", action="store_true", help="fetch LJSpeech into --train-data when it is missing"
    )
    data.add_argument("--num-workers", type=int, help="parallel readers (default: 8)")
    data.add_argument("--buffer-size", type=int, help="prefetch buffer in batches (default: 50)")
    data.add_argument("--max-text-length", type=int, help="most text tokens of a clip (default: 200)")
    data.add_argument("--max-mel-frames", type=int, help="fixed length in mel frames (default: from the model size)")
    shapes = data.add_mutually_exclusive_group()
    shapes.add_argument(
        "--enable-static-shapes",
        "--pad-to-fixed-length",
        dest="static_shapes",
        action="store_true",
        default=None,
        help="one fixed shape for every batch: the train step is traced once",
    )
    shapes.add_argument(
        "--disable-static-shapes",
        dest="static_shapes",
        action="store_false",
        default=None,
        help="shapes from length buckets (default)",
    )
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "--data-gpu", type=int, help="physical GPU that prepares data; with --model-gpu: Multi-GPU Mode"
    )
    devices.add_argument("--model-gpu", type=int, help="physical GPU that trains; with --data-gpu: Multi-GPU Mode")
    devices.add_argument("--model-gpus", type=_indices, metavar="I,J,…", help="several training GPUs, mirrored")
    devices.add_argument(
        "--model-start-delay",
        type=float,
        help="Multi-GPU Mode: head start of the data pipeline in seconds (default: 2.0)",
    )
    devices.add_argument("--enable-memory-isolation", action="store_true", help="a hard memory limit for each GPU")
    devices.add_argument(
        "--data-gpu-memory", type=int, default=8192, help="limit of the data GPU in MB (default: 8192)"
    )
    devices.add_argument(
        "--model-gpu-memory", type=int, default=16384, help="limit of the model GPU in MB (default: 16384)"
    )
    devices.add_argument("--virtual-devices", type=int, help="try the two-device pipeline on this many virtual devices")
    devices.add_argument(
        "--device-plan", choices=("auto",), help="measure the ways to use the devices present and take the quickest"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--config", metavar="FILE", help="YAML file, see configs/; flags given here win over it")
    training.add_argument("--model-size", choices=MODEL_SIZES, help="capacity preset (default: tiny)")
    training.add_argument("--stage", choices=(*STAGES, "all"), help="what to train (default: all that is missing)")
    training.add_argument(
        "--batch-size",
        type=_batch_size,
        metavar="N|auto",
        help="clips per batch; auto finds by trial how many fit at once, and accumulates them to the batch "
        "of the configuration (default: 16)",
    )
    training.add_argument(
        "--memory-budget",
        type=int,
        metavar="MB",
        help="memory that the trials of --batch-size auto may take on a CPU (default: half of what is free)",
    )
    training.add_argument("--epochs", type=int, help="passes over the data (default: 500)")
    training.add_argument("--max-steps", type=int, help="stop each stage after this many optimizer steps")
    training.add_argument("--grad-accum", type=int, help="batches per optimizer step (default: 1)")
    training.add_argument("--lr", type=float, help="peak learning rate (default: from the preset)")
    training.add_argument(
        "--lora-rank", type=int, help="with --init-from: train low-rank adapters only (default: 0, off)"
    )
    training.add_argument("--seed", type=int, help="fixes everything that is drawn (default: 0)")
    training.add_argument("--checkpoint-dir", metavar="DIR", help="where everything goes (default: ./checkpoints)")
    start = training.add_mutually_exclusive_group()
    start.add_argument("--reset-training", action="store_true", help="start anew; existing checkpoints are set aside")
    start.add_argument(
        "--resume",
        action="store_true",
        help="only go on: an error where --checkpoint-dir holds no run (default: go on or start)",
    )
    training.add_argument("--init-from", metavar="DIR", help="start from the weights of a run, or of `myxtts convert`")
    training.add_argument("--tensorboard-log-dir", metavar="DIR", help="default: under the checkpoint folder")
    add_optimization_flags(parser)
    return parser


def add_optimization_flags(parser):
    """The switches of training, each accounted for after the first step."""
    switches = parser.add_argument_group("optimisations", "what each did is printed after the first step")
    switches.add_argument(
        "--optimizations",
        choices=PRESETS,
        help="preset of the switches below; each of them wins over it (default: none)",
    )
    switches.add_argument(
        "--strict",
        action="store_true",
        default=None,
        help="end the run with exit code 2 when a switch does something else than asked for",
    )
    switches.add_argument(
        "--precision",
        help="mixed_bfloat16, mixed_float16, float32, or auto for what suits the hardware (default: float32)",
    )
    switches.add_argument(
        "--tf32",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="round factors of float32 products to 10 bits, for speed (default: where the GPU has it)",
    )
    switches.add_argument(
        "--gradient-checkpointing",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="GPT stage: less memory for some time, the same gradients (default: off)",
    )
    switches.add_argument(
        "--attention",
        help="GPT stage: standard, memory-efficient, or auto for what costs no time here (default: standard)",
    )
    switches.add_argument(
        "--xla",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compile the train step, once per shape of batch (default: off)",
    )
    switches.add_argument(
        "--ema",
        type=float,
        nargs="?",
        const=DEFAULT_EMA_DECAY,
        metavar="DECAY",
        help=f"validate and speak with moving averages of the weights (default: off; {DEFAULT_EMA_DECAY} "
        "without a number, 0 for off)",
    )
    switches.add_argument(
        "--overtraining-patience",
        type=int,
        metavar="N",
        help="end a stage at its best after N validations that turn up while the training loss falls "
        "(default: 0, only warn)",
    )


def _batch_size(text):
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of clips, or auto. Received: {text}") from None


def _indices(text):
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be GPU numbers such as 1,2,3. Received: {text}") from None


FLAG_TO_SETTING = {
    "train_data": "data.train_data",
    "val_data": "data.val_data",
    "language": "data.language",
    "vocabulary": "data.vocabulary",
    "num_workers": "data.num_workers",
    "buffer_size": "data.pipeline_buffer_size",
    "max_text_length": "data.max_text_length",
    "max_mel_frames": "data.max_mel_frames",
    "static_shapes": "data.static_shapes",
    "data_gpu": "data.data_gpu",
    "model_gpu": "data.model_gpu",
    "model_start_delay": "data.model_start_delay",
    "model_size": "model.size",
    "stage": "training.stage",
    "batch_size": "data.batch_size",
    "epochs": "training.epochs",
    "grad_accum": "training.gradient_accumulation",
    "precision": "training.precision",
    "seed": "training.seed",
    "checkpoint_dir": "training.checkpoint_dir",
    "tensorboard_log_dir": "training.tensorboard_log_dir",
    "init_from": "training.init_from",
    "lora_rank": "training.lora_rank",
    "optimizations": "training.optimizations",
    "strict": "training.strict",
    "xla": "training.xla",
    "tf32": "training.tf32",
    "ema": "training.ema",
    "gradient_checkpointing": "training.gradient_checkpointing",
    "attention": "training.attention",
    "memory_budget": "training.memory_budget_mb",
    "overtraining_patience": "training.overtraining_patience",
}
"""Where each flag goes; flags of a stage go to both stages."""
STAGE_FLAGS = {"max_steps": "max_steps", "lr": "learning_rate", "batch_size": "batch_size"}


def config_from_arguments(arguments):
    """`XTTSConfig` from `--config`, with the flags that were given on top."""
    from myxtts.config.loading import config_from_dict, merge, read_yaml

    path = arguments.config or (None if arguments.train_data else SAMPLE_CONFIG)
    values = read_yaml(path) if path else {}
    if arguments.batch_size == "auto":
        arguments.batch_size = None
        values = merge(values, {"training": {"automatic_batch_size": True}})
    for flag, setting in FLAG_TO_SETTING.items():
        section, name = setting.split(".")
        if getattr(arguments, flag) is not None:
            values = merge(values, {section: {name: getattr(arguments, flag)}})
    for flag, name in STAGE_FLAGS.items():
        if getattr(arguments, flag) is not None:
            for stage in STAGES:
                values = merge(values, {"training": {stage: {name: getattr(arguments, flag)}}})
    if arguments.reset_training:
        values = merge(values, {"training": {"reset_training": True}})
    return config_from_dict(values)


@exits_with_sentence
def main(argv=None):
    """Trains what is missing; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(argv)
    config = config_from_arguments(arguments)
    if arguments.resume:
        _require_run(arguments, config)
    if arguments.device_plan == "auto":
        from myxtts.runs.device_choice import quickest_flags

        arguments = build_parser().parse_args([*argv, *quickest_flags(arguments, config, argv)])
        config = config_from_arguments(arguments)
    config, plan = set_up(config, arguments)
    from myxtts.runs.run import leave_at_once, train_stages

    if train_stages(config, plan):
        leave_at_once()
    return 0


def _require_run(arguments, config):
    from myxtts.storage.checkpoint import CheckpointStore

    if arguments.init_from:
        raise UserError("--resume goes on with a run and --init-from starts one: give one of the two.")
    home = Path(config.training.checkpoint_dir)
    if not any(CheckpointStore(home / stage).steps() for stage in STAGES):
        raise UserError(
            f"--resume needs a run to go on with, and {home} holds no checkpoint. Name its --checkpoint-dir, or "
            "leave --resume out to start one."
        )


def set_up(config, arguments):
    """Devices, before anything that could initialise TensorFlow, and then data.

    Returns:
        The `XTTSConfig` with its training set, and the `DevicePlan`.
    """
    plan = configure_devices(config, arguments)
    return with_data(config, arguments.download_ljspeech), plan


def configure_devices(config, arguments):
    """Plans and configures the devices that configuration and command line ask for; returns the `DevicePlan`."""
    from myxtts.devices.configuration import early_gpu_configuration

    return early_gpu_configuration(
        config.data.data_gpu,
        config.data.model_gpu,
        model_gpus=arguments.model_gpus,
        memory_isolation=arguments.enable_memory_isolation,
        data_gpu_memory=arguments.data_gpu_memory,
        model_gpu_memory=arguments.model_gpu_memory,
        virtual_devices=arguments.virtual_devices,
    )


def with_data(config, download):
    """The configuration with a training set: the one named, a downloaded one, or the sample corpus."""
    if download:
        from myxtts.data.download import download_ljspeech

        if config.data.train_data is None:
            raise UserError("--download-ljspeech needs --train-data, the folder to put LJSpeech into.")
        folder = download_ljspeech(config.data.train_data)
        return replace(config, data=replace(config.data, train_data=str(folder)))
    if config.data.train_data is None:
        from myxtts.data.sample_corpus import make_sample_corpus

        print(f"No --train-data given: making the sample corpus in {SAMPLE_CORPUS}/ (kept for the next run)")
        folder = make_sample_corpus(SAMPLE_CORPUS)
        return replace(config, data=replace(config.data, train_data=str(folder)))
    return config
