"""A whole training run, stage by stage: the wiring between data, trainer and what speaks."""

import json
import logging
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import tensorflow as tf

from myxtts.config.checks import ConfigError, UserError
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.gpu_monitor import GPUMonitor
from myxtts.models.xtts import XTTS
from myxtts.runs.samples import SampleSpeaker
from myxtts.runs.starting_weights import adopt, adopted, starting_weights
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, assign_by_name, read_json, write_json
from myxtts.storage.run_folder import own_run_folder
from myxtts.training.callbacks import ConsoleProgress, TensorBoardWriter
from myxtts.training.divergence import TrainingDiverged
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
from myxtts.training.overtraining import has_stopped
from myxtts.training.preparation import measure_mel_stats
from myxtts.training.trainer import XTTSTrainer
from myxtts.utils.commons import setup_logging
from myxtts.utils.progress import clip_progress

logger = logging.getLogger(__name__)

MEL_STATS_BATCHES = 16
"""Batches that the scale of the mel bands is measured on."""


def train_stages(config, plan):
    """Trains the stages that `training.stage` asks for and says where everything is.

    Args:
        config: `XTTSConfig` with `data.train_data` set.
        plan: `DevicePlan`, applied.

    Returns:
        Whether a signal broke a stage off before its first step, in the midst of TensorFlow's work: see `leave_at_once`.
    """
    with own_run_folder(config.training.checkpoint_dir) as home:
        return _train_stages(config, plan, home)


def leave_at_once():
    """Ends the process, with code 0, without Python's clean-up: what was broken off may hold locks that it waits for."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _train_stages(config, plan, home):
    setup_logging(log_file=home / "train.log")
    say_pipeline_mode(config, plan)
    config = _with_origin(config, home)
    if config.training.init_from:
        config = adopted(config, home) if _has_begun(config, home) else adopt(config)
    with clip_progress("checking recordings") as progress:
        dataset = SpeechDataset.open(config, progress)
    config = dataset.config
    _check_same_model(config, home)
    dataset.tokenizer.save(home / "vocab.json")
    write_json(home / "config.json", config.to_dict())
    print(
        f"Training clips: {len(dataset.train)}, validation clips: {len(dataset.validation)}, "
        f"speakers: {len({clip.speaker for clip in dataset.train})}, text tokens: {dataset.tokenizer.num_tokens}"
    )
    stages = STAGES if config.training.stage == "all" else (config.training.stage,)
    with GPUMonitor(plan.visible_ids or None) as monitor:
        for stage in stages:
            if config.training.stage == "all" and not config.training.reset_training and _finished(home, stage, config):
                print(f"Stage {stage}: trained already; --stage {stage} with a larger --max-steps trains it further")
                continue
            trainer = _train_stage(stage, config, plan, dataset, monitor)
            if trainer.stop_requested.is_set():
                print(f"Stopped. The same command goes on from {home}/{stage}")
                return not trainer.under_way
    _say_where(config, dataset)
    return False


def _has_begun(config, home):
    """Whether the folder holds a run of the GPT that is to go on."""
    return not config.training.reset_training and bool(CheckpointStore(home / "gpt").steps())


def _with_origin(config, home):
    """Tells a fresh start from another run's weights (`--init-from`) from going on with what it became.

    Returns:
        The configuration, with the full path of the run it began from, if any.

    Raises:
        ConfigError: The folder holds a run that began otherwise, so that --init-from would be passed over.
    """
    asked = config.training.init_from and str(Path(config.training.init_from).resolve())
    store = CheckpointStore(home / "gpt")
    step = store.newest_sound(logger.warning) if _has_begun(config, home) else None
    if step is None:
        return replace(config, training=replace(config.training, init_from=asked))
    state = store.read_state(step)
    if "position" not in state:
        raise ConfigError(
            f"--checkpoint-dir must be a folder of its own. {home} holds weights without a run, as `myxtts "
            f"convert` writes them. Start from them with --init-from {home} and another --checkpoint-dir."
        )
    before = state["config"]["training"]["init_from"]
    if asked not in (None, before):
        raise ConfigError(
            f"--init-from starts a fresh run, and {home} holds one that began from {before or 'scratch'} and "
            f"is at step {step}. Leave --init-from out to go on with it, give another --checkpoint-dir, or "
            "--reset-training to start anew."
        )
    return replace(config, training=replace(config.training, init_from=before))


def _check_same_model(config, home):
    """A run goes on with the model it began with; its `config.json` is not overwritten by another."""
    if (
        config.training.reset_training
        or not (home / "config.json").is_file()
        or not any(CheckpointStore(home / stage).steps() for stage in STAGES)
    ):
        return
    before, now = read_json(home / "config.json")["model"], json.loads(json.dumps(asdict(config.model)))
    differing = [
        f"{name} {before.get(name)} there, {now[name]} here"
        for name in now
        if before.get(name) != now[name] and name != "dropout"
    ]
    if differing:
        raise ConfigError(
            f"{home} holds a run of another model: {'; '.join(differing[:3])}. Give the same --model-size "
            "and data, another --checkpoint-dir, or --reset-training to start anew."
        )


def say_pipeline_mode(config, plan):
    """Prints which pipeline runs, in the words that users look for."""
    buffer_size = config.data.pipeline_buffer_size
    if plan.is_dual:
        print("Intelligent GPU Pipeline: Multi-GPU Mode")
        print(f"Data Processing GPU: {plan.data_gpu}")
    else:
        print("Intelligent GPU Pipeline: Single-GPU Buffered Mode")
        print(f"Buffer Size: {buffer_size}")
        print("Smart Prefetching: Enabled")
    print(f"Prefetching to {plan.data_device} with buffer_size={buffer_size}")
    models = ", ".join(plan.model_devices)
    if plan.is_dual:
        print(f"Multi-GPU Mode: Model will be placed on {models}")
        for gpu, device in zip(plan.model_gpus, plan.model_devices):
            print(f"(Original GPU {gpu} is now mapped to {device.lstrip('/')})")
    print(f"Creating model on device: {models}")


def _finished(home, stage, config):
    store = CheckpointStore(home / stage)
    step = store.newest_sound(logger.warning)
    if step is None:
        return False
    asked = config.stage(stage).max_steps
    state = store.read_state(step)
    return state["finished"] and (asked is None or step >= asked or _overtrained(state, config.training))


def _overtrained(state, training):
    detector = state.get("parts", {}).get("overtraining")
    return detector is not None and has_stopped(detector, training.overtraining_patience)


def _train_stage(stage, config, plan, dataset, monitor):
    order = dataset.order(stage)
    print(f"Padding: {100 * order.padding_share():.1f}% of the batches' samples, {len(order.shapes)} shapes")
    if config.training.reset_training:
        aside = CheckpointStore(f"{config.training.checkpoint_dir}/{stage}").set_aside()
        if aside:
            print(f"Earlier {stage} checkpoints were set aside in {aside}")
    tokenizer_model, mel_stats, lineage, weights = None, None, {}, None
    if stage == "dvae":
        mel_stats = measure_mel_stats(dataset.train_loader(stage), MEL_STATS_BATCHES)
    else:
        if config.training.init_from and not _has_begun(config, Path(config.training.checkpoint_dir)):
            weights = starting_weights(config.training.init_from, config.model.num_text_tokens, config.training.seed)
        tokenizer_model, lineage = load_tokenizer_model(config, plan.data_device)
    options = dict(
        stage=stage,
        tokenizer_model=tokenizer_model,
        plan=plan,
        mel_stats=mel_stats,
        starting_weights=weights,
        lineage=lineage,
    )
    if plan.mode == "isolated":
        trainer = MemoryIsolatedDualGPUTrainer(config, plan.data_gpu, plan.model_gpus[0], **options)
    else:
        trainer = XTTSTrainer(config, **options)
    logs = config.training.tensorboard_log_dir or f"{config.training.checkpoint_dir}/tensorboard"
    callbacks = [ConsoleProgress(monitor, plan.gpu_roles), TensorBoardWriter(logs)]
    if stage == "gpt":
        callbacks.append(
            SampleSpeaker(dataset, tokenizer_model, f"{config.training.checkpoint_dir}/samples", f"{logs}/samples")
        )
    try:
        with stops_on_signals(trainer):
            trainer.train(dataset, callbacks)
    except TrainingDiverged as error:
        raise UserError(str(error)) from error
    return trainer


@contextmanager
def stops_on_signals(trainer):
    """Ctrl-C and SIGTERM let the trainer finish its step and write a checkpoint; a second one stops at once.

    Before there is a step, such as while the first is traced, the first signal ends the block.
    """

    class NoStepYet(KeyboardInterrupt):
        pass

    def request(number, frame):
        if trainer.stop_requested.is_set():
            raise KeyboardInterrupt
        trainer.stop_requested.set()
        follows = (
            "finishing the step and writing a checkpoint; once more stops at once"
            if trainer.under_way
            else "stopping before the first step"
        )
        # Not `print`: the signal may have struck in the middle of one, which cannot be entered twice.
        os.write(sys.__stdout__.fileno(), f"\n{signal.Signals(number).name}: {follows}\n".encode())
        if not trainer.under_way:
            raise NoStepYet

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (NoStepYet, Exception):
        # An error of TensorFlow's own may come out of its code instead of what interrupted it.
        if trainer.under_way or not trainer.stop_requested.is_set():
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def load_tokenizer_model(config, device):
    """`XTTS` with the run's trained DVAE, on `device`, and what identifies that DVAE.

    Raises:
        CheckpointError: The run has none yet, or one that is not trained to the end.
    """
    store = CheckpointStore(f"{config.training.checkpoint_dir}/dvae")
    step = store.newest_sound(logger.warning)
    if step is None:
        raise CheckpointError(
            f"The GPT stage needs a trained DVAE, and {store.folder} has none. "
            "Leave --stage out, or train it first with --stage dvae."
        )
    tensors, state = store.read(step, ("model",))
    if not state["finished"]:
        raise CheckpointError(
            f"The GPT stage needs a DVAE that is trained to the end: its codes are the GPT's language. The "
            f"one in {store.folder} stopped at step {step}. Go on with --stage dvae, or leave --stage out; "
            f"to take it as it is, give --stage dvae --max-steps {step} once."
        )
    with tf.device(device):
        model = XTTS(config.model, parts=("dvae",))
        assign_by_name(model.part_weights("dvae"), tensors["model"], str(store.path(step)))
    return model, {"dvae": store.digest(step)}


def _say_where(config, dataset):
    home = Path(config.training.checkpoint_dir)
    samples = sorted((home / "samples").glob("*.wav")) if (home / "samples").is_dir() else []
    print(f"\nCheckpoints:  {home}/dvae, {home}/gpt")
    print(f"TensorBoard:  tensorboard --logdir {config.training.tensorboard_log_dir or home / 'tensorboard'}")
    if samples:
        print(f"Spoken:       {samples[-1].parent}/ ({len(samples)} wav files, the newest {samples[-1].name})")
        print(f"Mel pictures: {samples[-1].parent}/*.png")
    if CheckpointStore(home / "gpt").steps() and dataset.validation:
        clip = dataset.validation[0]
        print(
            "Speak with it:\n"
            f"  myxtts say --checkpoint {home} --reference-audio {clip.wav_path} --language {clip.language} \\\n"
            f'    --text "{dataset.texts[clip.id]}" --output out.wav'
        )
