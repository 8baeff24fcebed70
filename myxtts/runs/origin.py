"""Starting a run from another model: checks --init-from, --tune and --lora-rank, and copies weights into the run.

These options cannot change once the run's folder exists. A stage's copied weights become its checkpoint of step 0.
"""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from myxtts.config.checks import ConfigError, UserError, printable, require
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.settings import Default
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE
from myxtts.interchange.hub import is_hub_name, local_folder
from myxtts.memory.report import check_claims
from myxtts.runs.setup import TUNE, check_tuning, run_in, with_shape
from myxtts.storage import run_folder
from myxtts.storage.base_model import is_base, model_name
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import write_whole
from myxtts.storage.speakers import SPEAKER_CLIPS, SPEAKERS_FILE, read_clips, write_speaker_clips
from myxtts.text.g2p import ESPEAK
from myxtts.text.speech_rates import SPEECH_RATES
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)

_DVAE = " A Coqui model needs dvae.pth, its own or that of XTTS v2, beside model.pth."
TEXT_WEIGHTS = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
_absolute = lambda path: os.path.abspath(path) if path and "://" not in path else path


def settle_origin(config: XTTSConfig) -> tuple[XTTSConfig, XTTSConfig | None]:
    """Completes the settings: for a new run, from the model in --init-from; for a resumed run, from the run's folder.
    Returns the complete settings, with absolute paths, and the stored settings (None for a new run). Raises `UserError`
    if --init-from lacks a needed part, or if --init-from, --tune or a LoRA option contradicts the stored settings."""
    training, source = config.training, config.training.init_from
    if source and not (is_hub_name(source) or is_base(source)):
        source = str(Path(source).resolve())
    places = {"init_from": source, "tensorboard_log_dir": _absolute(training.tensorboard_log_dir)}
    if training.evaluation_recognizer and Path(training.evaluation_recognizer, "model.bin").is_file():  # a folder
        places["evaluation_recognizer"] = os.path.abspath(training.evaluation_recognizer)
    config = with_absolute_paths(replace(config, training=replace(training, **places)))
    config = _with_tune(config, training.tune)
    began = None
    with suppress(CheckpointError if training.reset_training else ()):  # a reset moves damaged settings aside
        began = None if "dvae" in training.resets else run_in(Path(training.checkpoint_dir))
    if began is not None and not training.reset_training:
        return _continued(config, began), began
    if not training.reset_training:
        _refuse_other_origin(config)
    elif began is not None and began.training.init_from and config.training.tune in ((), began.training.tune):
        resets, keeps_gpt = {*training.resets}, "gpt" not in training.resets
        there = _startable(began) if keeps_gpt or source in (None, began.training.init_from) else {}
        if keeps_gpt or "gpt" in there:
            tuned = {*(began.training.tune or ("gpt",)), training.stage} - (resets - there.keys())
            config = _with_tune(_continued(config, began), tuned or ("gpt",))
            if keeps_gpt:
                return (adopt(config) if resets.intersection(config.training.tune) else config), began
    check_tuning(config.training)
    if not (source := config.training.init_from):
        return config, began
    if not config.training.tune:
        tunes_all = is_base(source) and training.stage == "all" and not training.gpt.lora_rank
        config = _with_tune(config, TUNABLE if tunes_all else tuned_stages(config))
    return adopt(config), began


def _with_tune(config, names):
    """Returns `config` with `training.tune` set to the stages in `names` that can be fine-tuned."""
    return replace(config, training=replace(config.training, tune=tuple(one for one in TUNABLE if one in names)))


def _startable(began):
    """Returns `{stage: checkpoints}` of the --init-from model in the stored settings `began`; {} if it is gone."""
    try:
        return run_folder.stores_in(_source(began))
    except (UserError, OSError) as error:
        logger.warning("Stages that start over have random weights, because the run's model is gone: %s", error)
        return {}


def with_absolute_paths(config: XTTSConfig, names: Sequence[str] = PATHS) -> XTTSConfig:
    """Returns `config` with absolute paths in `data.audio_roots` and in the fields of `data` that `names` lists."""
    places = {name: _absolute(getattr(config.data, name)) for name in names}
    places["audio_roots"] = tuple(map(_absolute, config.data.audio_roots))
    return replace(config, data=replace(config.data, **places))


def _refuse_other_origin(config):
    """Raises `ConfigError` if an earlier, interrupted start copied weights of another model into the run's folder."""
    home, given = Path(config.training.checkpoint_dir), config.training.init_from
    for store in run_folder.stores_in(home).values():
        origin = (store.newest_state() or {}).get(run_folder.TAKEN_FROM)
        rule = f"{model_name(origin or '')}, whose weights an interrupted start copied into {home}"
        is_same = origin is None or (given and str(_source(config)) == origin)
        hint = "Give another --checkpoint-dir, or --reset-training to start over."
        require(is_same, "training.init_from (--init-from)", rule, given or "none", hint)


def tuned_stages(config: XTTSConfig) -> list[str]:
    """Returns the stages to fine-tune: those in `training.tune`, if any (`settle_origin` sets `tune` for a new run).
    If `tune` is empty and --stage names a stage with `takes_init_from`, returns this stage. In all other cases, returns
    the stages that have both `takes_init_from` and `tuned_with_all`."""
    training = config.training
    if training.tune:
        return [name for name in STAGES if name in training.tune]
    if training.stage != "all" and STAGES[training.stage].takes_init_from:
        return [training.stage]
    return [name for name, entry in STAGES.items() if entry.takes_init_from and entry.tuned_with_all]


def taken_parts(config: XTTSConfig, is_new: bool = True) -> list[str]:
    """Returns the stages that a run copies from `training.init_from` and does not fine-tune. If `is_new` is False,
    returns only stages with a damaged copy, which is renamed. Excludes --stage if it is reset and the GPT is not."""
    home, resets = Path(config.training.checkpoint_dir), config.training.resets
    others = {*tuned_stages(config), *(resets if not is_new else () if "gpt" in resets else resets[:1])}
    is_copied = lambda name: is_new or {path.name[-8:] for path in (home / name).glob("*step_*")} == {"00000000"}
    newest = lambda name: CheckpointStore(home / name).newest_sound(logger.warning)
    lacks = lambda name: name in resets or (is_copied(name) and newest(name) is None)
    return [one for one in STAGES if one not in others and lacks(one) and one in run_folder.stores_in(_source(config))]


def source_parts(config: XTTSConfig, taken: Sequence[str]) -> dict[str, CheckpointStore]:
    """Returns `{stage: checkpoints}` of the model in --init-from, for each stage to copy (`taken`) or to fine-tune,
    except stages that the run already has and keeps. Raises `CheckpointError` if a checkpoint is missing or damaged."""
    own = run_folder.stores_in(Path(config.training.checkpoint_dir)).keys() - config.training.resets
    tuned = [name for name in tuned_stages(config) if name not in config.training.leave_out]
    found = {name: _trained_part(_source(config), name) for name in (*taken, *tuned) if name not in own}
    for name, store in found.items():
        store.open(run_folder.chosen_step(store, name))
    return found


def bring_in(config: XTTSConfig, parts: Mapping[str, CheckpointStore], is_new: bool) -> None:
    """Copies checkpoints `parts` (see `source_parts`) to a run as step 0 and, if `is_new`, the voices of --init-from.
    Marks stages that are not fine-tuned as finished, and copies their files unchanged, to keep the digests."""
    home, tuned = Path(config.training.checkpoint_dir), tuned_stages(config)
    copied = "model.safetensors", f"{run_folder.MEL_STATS}.safetensors", SPEECH_RATES
    for name, store in parts.items():
        step, tensors, state, copies = run_folder.chosen_step(store, name), {}, {}, {}
        if name in tuned:
            tensors["model"] = with_rows(dict(store.open(step)), config.model.num_text_tokens, config.training.seed)
        else:
            state, files = store.read_state(step), {file: store.file(step, file) for file in copied}
            copies = {file: path.read_bytes() for file, path in files.items() if path}
        state = {**state, "finished": name not in tuned, run_folder.TAKEN_FROM: str(store.folder.parent)}
        CheckpointStore(home / name).write(0, tensors, state, best=name not in tuned, copies=copies)
    if is_new:
        copy_voices(source := _source(config), home)
        copy_speaker_clips(source, home)


def copy_voices(source: Path, home: Path) -> None:
    """Copies the stored voices, if any, from the run folder `source` to the run folder `home`."""
    if (source / SPEAKERS_FILE).is_file():
        with write_whole(home / SPEAKERS_FILE) as temporary:
            shutil.copyfile(source / SPEAKERS_FILE, temporary)


def copy_speaker_clips(source: Path, home: Path) -> None:
    """Copies the speakers' recordings from the run folder `source` to the run folder `home`."""
    clips = {}
    for name, one in read_clips(source / SPEAKER_CLIPS).items():
        if one.clip.is_file() and not one.clip.is_symlink() and one.clip.stat().st_size <= 8 * 2**20:
            clips[name] = one.clip.read_bytes(), one.language, one.sources
    if clips:
        write_speaker_clips(home, clips)


def with_rows(arrays: dict[str, np.ndarray], num_text_tokens: int, seed: int) -> dict[str, np.ndarray]:
    """Extends the text embedding and the text output layer, if `arrays` contains them, to `num_text_tokens` tokens.

    The embeddings of new tokens are sampled with the standard deviation of the old ones. In the output layer, the new
    weights are zero and the new biases equal the lowest old bias, so that new tokens start out improbable.
    """
    if TEXT_WEIGHTS[0] not in arrays:
        return arrays
    table, kernel, bias = (arrays[name] for name in TEXT_WEIGHTS)
    new = max(0, num_text_tokens - len(table))
    drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
    kernel, bias = np.pad(kernel, ((0, 0), (0, new))), np.pad(bias, (0, new), constant_values=bias.min())
    return arrays | dict(zip(TEXT_WEIGHTS, (np.concatenate([table, drawn]), kernel, bias)))


def _continued(config, began):
    """Returns `config`, completed with `began`, the run's stored settings. Raises `ConfigError` if the two conflict."""
    training, before, home = config.training, began.training, Path(config.training.checkpoint_dir)
    for name in tuned_stages(replace(config, training=replace(training, tune=before.tune))):
        state = CheckpointStore(home / name).newest_state()
        if state is not None and "position" not in state and run_folder.TAKEN_FROM not in state:
            raise ConfigError(f"{home} contains weights without a run. Give it as --init-from, not --checkpoint-dir.")
    has_rank = not isinstance(training.gpt.lora_rank, Default)
    adapters = training.gpt.adapters if has_rank and "gpt" not in training.resets else None, before.gpt.adapters
    origin = {
        "training.init_from (--init-from)": (training.init_from, before.init_from),
        TUNE: (",".join(training.tune), ",".join(before.tune)),
        "training.gpt.lora_rank (--lora-rank, --lora-targets, --lora-alpha)": adapters,
    }
    for name, (requested, own) in origin.items():
        hint = "Leave it out to resume, give another --checkpoint-dir, or --reset-training without --stage."
        rule = f"{own or 'none'}, as when the run in {home} was created"
        require(not requested or requested == own, name, rule, requested, hint)
    given, own = config.data.vocabulary, began.data.vocabulary
    is_there = given in (None, own) or os.path.abspath(given) == own or os.path.isfile(given)
    require(is_there, "--vocabulary", "a tokenizer file", printable(given or ""), "Leave it out to resume.")
    kept = os.path.abspath(home / run_folder.VOCABULARY)
    if given is None and "gpt" in training.resets:
        own = own if own != kept and os.path.isfile(own or "") else None  # by default, that of the source
    elif given is None and own and os.path.isfile(kept):
        own = kept  # the file that `own` names may have changed since
    data = replace(config.data, vocabulary=given or own)
    config = replace(config, data=data, training=replace(training, init_from=before.init_from, tune=before.tune))
    if not has_rank:
        names = ("lora_rank", "lora_alpha", "lora_targets", "lora_dropout")
        config.training.gpt = replace(training.gpt, **{name: getattr(before.gpt, name) for name in names})
    return with_shape(config, began) if before.init_from else config


def adopt(config: XTTSConfig) -> XTTSConfig:
    """Returns `config` with the shape and sampling settings of the model in --init-from. A vocabulary or g2p setting
    that `config` lacks is also taken from the model. Raises `CheckpointError` if the model lacks a needed part, and
    `ConfigError` if the settings do not fit the model."""
    source, home, data = _source(config), Path(config.training.checkpoint_dir), config.data
    require(source.resolve() != home.resolve(), "--checkpoint-dir", "another folder than that of --init-from", home)
    stored = run_folder.read_config(source)
    tuned = [name for name in tuned_stages(config) if name not in config.training.leave_out]
    foundations = dict.fromkeys(name for stage in tuned for name in STAGES[stage].builds_on if name not in tuned)
    for name in (*foundations, *tuned):
        store = _trained_part(source, name)
        if name in foundations:
            run_folder.require_trained(store.folder, "--init-from")
    theirs, own = run_folder.stores_in(source), run_folder.stores_in(home)
    check_claims(stored.model, theirs)
    newest_digest = lambda store: store.digest(store.steps()[-1])
    follows = {name for stage in tuned for name in STAGES[stage].follows}
    for name in own.keys() & foundations.keys() - follows - {*config.training.resets}:
        if newest_digest(own[name]) != newest_digest(theirs[name]):  # such as a DVAE with other codes
            raise CheckpointError(f"{home} has its own {name}, not that of --init-from. Give another --checkpoint-dir.")
    reads, requested = stored.data.g2p, data.g2p
    is_read = requested is None or ESPEAK in requested or ESPEAK not in (reads or ())
    require(is_read, "--g2p", f"{' '.join(reads or ())}, as in --init-from", " ".join(requested or ()), "Leave it out.")
    vocabulary = run_folder.vocabulary_path(source)
    if data.vocabulary and "gpt" in theirs and vocabulary.is_file():
        extends = XTTSTokenizer.from_file(data.vocabulary).extends(XTTSTokenizer.from_file(vocabulary))
        rule, hint = "the vocabulary of --init-from, or extend it", "Tokens would get the weights of other tokens."
        require(extends, "--vocabulary", rule, printable(data.vocabulary), f"{hint} Leave it out.")
    data = replace(data, vocabulary=data.vocabulary or str(vocabulary), g2p=reads if requested is None else requested)
    return with_shape(replace(config, data=data), stored)


def _source(config):
    """Returns the folder of `training.init_from`; a model on the Hugging Face hub is downloaded first."""
    return local_folder(config.training.init_from, config.training.accept_licence, "--init-from")


def _trained_part(source, name):
    """Returns the checkpoints of stage `name` in the folder `source`. Raises `CheckpointError` if there are none."""
    if not (store := CheckpointStore(source / name)).steps():
        raise CheckpointError(f"--init-from needs a trained {name}, and {source} has none.{_DVAE * (name == 'dvae')}")
    return store
