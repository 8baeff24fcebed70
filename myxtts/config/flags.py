"""What a run can be asked for by name: flags of the command line, the same names with underscores from Python."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from myxtts.config.checks import ConfigError
from myxtts.config.optimizations import DEFAULT_EMA_DECAY
from myxtts.config.settings import nearest
from myxtts.config.stages import LORA_TARGETS, STAGES
from myxtts.config.training import TUNABLE

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
LISTS = ("LANGS", "names", "ADDR,…")
"""Kinds whose values are lists, and may be texts with commas."""
REPEATED = ("DIR...", "LANG...")
"""Kinds of flags that can be given several times."""


@dataclass(frozen=True)
class Flag:
    """A line of `FLAGS`."""

    names: tuple[str, ...]
    kind: str
    settings: tuple[str, ...]
    help: str
    group: str
    excludes: bool
    """Whether it does not go with the flags beside it that exclude others."""

    @property
    def keywords(self) -> list[str]:
        """What it is called in Python."""
        return [name.removeprefix("--").replace("-", "_") for name in self.names]


def all_flags() -> list[Flag]:
    """The flags of a run, in their order."""
    found, group = [], ""
    for line in FLAGS.strip().replace("\n ", " ").splitlines():
        if line.startswith("["):
            group = line
            continue
        names, kind, setting, text = line.removeprefix("^ ").split(None, 3)
        settings = tuple(setting.split(",")) if setting != "-" else ()
        found.append(Flag(tuple(names.split(",")), kind, settings, text, group, line.startswith("^")))
    return found


def with_named(values: dict, named: Mapping[str, Any]) -> dict:
    """Nested mappings of settings with values laid over them by the keywords of flags; None leaves a setting as it is.

    Raises:
        ConfigError: There is no such keyword.
    """
    from myxtts.config.loading import merge  # --help does without YAML

    flags = {keyword: flag for flag in all_flags() if flag.settings for keyword in flag.keywords}
    for name, value in named.items():
        if name not in flags:
            raise ConfigError(f"myxtts.train has no argument {name}.{nearest(name, flags)}")
        for place in flags[name].settings if value is not None else ():
            values = merge(values, _nested(place, _plain(flags[name].kind, value)))
    return values


def _nested(place, value):
    """A value at the dotted name of its setting; `stage.…` is that of every stage."""
    section, _, rest = place.partition(".")
    if (rest, value) == ("batch_size", "auto"):
        return {"training": {"automatic_batch_size": True}}
    if section == "stage":
        return {"training": {stage: {rest: value} for stage in STAGES}}
    return {section: _nested(rest, value) if "." in rest else {rest: value}}


def _plain(kind, value):
    """A keyword's value as YAML would have it."""
    if kind in ("fixed", "varying"):
        return bool(value) == (kind == "fixed")
    if isinstance(value, str) and kind in LISTS:
        return tuple(map(str.strip, value.split(",")))
    if isinstance(value, (str, os.PathLike)) and kind in REPEATED:
        value = [value]
    if isinstance(value, (list, tuple)):
        return [_plain("", one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
