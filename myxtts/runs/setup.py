"""Prepares a run before TensorFlow is imported: checks the options, configures devices, and finds the recordings."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

from myxtts.config.checks import ConfigError, UserError, counted, printable, read_bounded, require, say
from myxtts.config.config import SamplingConfig, XTTSConfig, config_from_dict, without_adapted
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.config.settings import Default
from myxtts.config.stages import STAGES
from myxtts.config.training import SLURM, TUNABLE, TrainingConfig, workers_in, workers_of_slurm
from myxtts.data.corpora import SUBTITLES, TextsMissing, files_beside, load_corpus, texts_beside
from myxtts.data.sample_corpus import MANIFEST_FILE, SENTENCES, make_sample_corpus, unheard_sentences
from myxtts.devices.configuration import check_devices, device_request, early_gpu_configuration, visible_gpus
from myxtts.devices.device_plan import DevicePlan
from myxtts.distributed.workers import join_workers, leaving_together, require_free_port
from myxtts.hearing.recognizers import settle_recognizer
from myxtts.interchange.hub import check_model, local_folder
from myxtts.storage.base_model import HOMES, is_base, require_kind
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_bytes, digest_file
from myxtts.storage.run_folder import GATHERED, RUN_FILES, TAKEN_FROM, read_config, require_trained, stores_in
from myxtts.text.language_guess import identify_language
from myxtts.text.languages import DEFAULT_LANGUAGE, get_language

SAMPLE_CORPUS = Path("sample_corpus")
TUNE = "training.tune (--tune)"
NUM_CLOSING_TEXTS = 4
"""Number of held-out sentences that a model trained on the sample corpus speaks at the end of its run."""
MEASURED_STEPS = 12
"""Number of training steps that `--device-plan auto` times for each device plan."""


def check_request(config: XTTSConfig, download: bool = False, **devices) -> None:
    """Raises `UserError` for errors that can be found before TensorFlow is imported. `set_up` explains the arguments.
    If the only error is that the recordings have no texts, raises `TextsMissing`."""
    data, training = config.data, config.training
    require_free_port(training)
    check_devices(data.data_gpu, data.model_gpu, **devices)
    if training.evaluation_recognizer:
        settle_recognizer(training.evaluation_recognizer)
    if training.workers:  # workers' disks may differ, so the rest is checked after the workers are connected
        return
    home = require_kind(Path(training.checkpoint_dir), "--checkpoint-dir", HOMES, "a folder to write to")
    for name in STAGES[training.stage].builds_on if training.stage != "all" else ():
        if not (home / GATHERED).is_dir() and not (training.init_from and name not in training.tune):
            require_trained(home / name, f"The {training.stage} stage")
    if training.init_from and ("gpt" in training.resets or not holds_run(home)):
        check_model(training.init_from, "--init-from")
    if data.vocabulary and not (os.path.isfile(data.vocabulary) or holds_run(home)):
        raise ConfigError(f"--vocabulary must be a tokenizer file: {printable(data.vocabulary)} is not one.")
    for flag, named in (("--prepared", data.prepared), ("--val-prepared", data.val_prepared)):
        is_there = not named or "://" in named or os.path.isdir(named)
        require(is_there, flag, "a folder that `myxtts prepare` made", printable(named or ""))
    how = data.language, data.format, data.audio_roots
    if data.val_data and not download:
        try:
            load_corpus(data.val_data, *how)
        except TextsMissing as missing:
            raise ConfigError(f"--val-data must have texts: {missing}") from None
    if data.train_data and not download:
        load_corpus(data.train_data, *how)


def check_settings(config: XTTSConfig) -> None:
    """Raises `UserError` for conflicting settings or an unknown language. Checks --tune and --lora-rank only for a
    new run with a single worker; for other runs, `settle_origin` checks them later."""
    data, training, home = config.data, config.training, Path(config.training.checkpoint_dir)
    try:
        get_language(data.language or "en")
    except ValueError as error:
        raise ConfigError(f"--language: {error}") from None
    own = [os.path.realpath(home / name) for name in ("", *RUN_FILES, *STAGES)]
    is_data = any(os.path.realpath(one) in own for one in (data.train_data, data.val_data) if one)
    require(not is_data, "--checkpoint-dir", "another folder, because the run would write into its data", str(home))
    if "decoder" in training.stages:
        training.decoder.check_frames()
    if not training.workers and ("dvae" in training.resets or not holds_run(home)):
        check_tuning(training)


def check_tuning(training: TrainingConfig) -> None:
    """Raises `ConfigError` if --tune or --lora-rank of a new run is invalid, or is given without --init-from."""
    tune, rank, stage = [name for name in TUNABLE if name in training.tune], training.gpt.lora_rank, training.stage
    given, hint = ",".join(tune), f"gpt and decoder depend on the dvae. Give --tune {','.join(TUNABLE)}."
    require("dvae" not in tune or {*tune, *training.leave_out} >= {*TUNABLE}, TUNE, "without dvae, or all", given, hint)
    require(not tune or stage in ("all", *tune), TUNE, f"stages that include --stage {stage}", given)
    rule = "stages that include gpt, because --lora-rank trains adapters of the gpt"
    require("gpt" in tune or not (tune and rank), TUNE, rule, given)
    has_source, rule = bool(training.init_from), "0 without --init-from (training.init_from)"
    require(has_source or not rank, "training.gpt.lora_rank (--lora-rank)", rule, rank, "Add --init-from FOLDER.")
    require(has_source or not tune, TUNE, "left out without --init-from", given, "Add --init-from FOLDER.")


def with_shape(config: XTTSConfig, stored: XTTSConfig) -> XTTSConfig:
    """Returns `config` with the model settings and sampling settings of `stored`. Keeps the dropout and those
    sampling settings of `config` that differ from the defaults; keeps all sampling settings if --init-from is `base`.
    If a maximum length of texts or clips exceeds the limit of the model, lowers it to this limit if it is the default
    value, else raises `ConfigError`."""
    model, data = replace(stored.model, dropout=config.model.dropout), config.data
    given = {name: value for name, value in vars(config.sampling).items() if value != getattr(SamplingConfig, name)}
    # The low temperature of the bundled model would make models that are fine-tuned on minutes of speech loop.
    sampling = config.sampling if is_base(config.training.init_from) else stored.sampling.changed(given)
    tenths = (model.max_codes * CODE_STRIDE_SAMPLES - 1) // (MODEL_SAMPLE_RATE // 10)
    most = {"max_text_length": model.max_text_tokens, "max_seconds": tenths / 10}
    if data.max_mel_frames is not None:
        del most["max_seconds"]  # it limits the duration instead
    defaults = {one.name: one.default for one in fields(data)}
    lower = {name: value for name, value in most.items() if getattr(data, name) == defaults[name] > value}
    for name, value in lower.items():
        message = "data.%s is %s instead of %s, its default, the limit of the model. Longer clips are left out."
        logging.getLogger(__name__).warning(message, name, value, defaults[name])
    return replace(config, model=model, data=replace(data, **lower), sampling=sampling)


def with_own_data(config: XTTSConfig) -> XTTSConfig:
    """Returns `config` with the data sets of the run in --checkpoint-dir, if there is a run and no --train-data."""
    home, is_reset = Path(config.training.checkpoint_dir), config.training.reset_training
    if config.data.train_data or not (home / "config.json").is_file():
        return config
    try:
        own = read_config(home).data
    except UserError:  # damaged settings are reported later, unless a reset sets them aside
        return config
    place = Path(own.train_data or "")
    is_sample = place.name == SAMPLE_CORPUS.name and ((place / MANIFEST_FILE).is_file() or not place.exists())
    if not own.train_data or is_sample:
        return config
    shown = printable(str(place.absolute()))
    if not place.exists():
        hint = printable(f"Give --config {home}/config.json --train-data DIR.")
        raise ConfigError(f"--train-data must be given: the run's own data set, {shown}, does not exist. {hint}")
    say(f"No --train-data given: continuing with the run's own data set, {shown}")
    names = ["train_data", "val_data", "format", "audio_roots", "language"]
    for name in () if is_reset else ("prepared",) if config.data.val_data else ("prepared", "val_prepared"):
        if (shards := getattr(own, name)) and ("://" in shards or Path(shards).is_dir()):
            names.append(name)
        elif shards and not getattr(config.data, name):
            say(f"Codes are computed: {printable(shards)}, the run's {name}, does not exist.")
    places = {name: getattr(config.data, name) or getattr(own, name) for name in names}
    return replace(config, data=replace(config.data, **places))


def set_up(config: XTTSConfig, download=False, **devices) -> tuple[XTTSConfig, DevicePlan]:
    """Configures devices, connects workers and fills in `data.train_data`; returns the settings and the device plan.

    If `download`, LJSpeech is downloaded into `data.train_data`, unless it is already there. `devices` are arguments of
    `early_gpu_configuration`. Raises `UserError` if devices are not available or there is no training set.
    """
    config = with_workers(config)
    training = config.training
    plan = early_gpu_configuration(config.data.data_gpu, config.data.model_gpu, **devices)
    names = ("stage", "leave_out", "init_from", "reset_training")
    settings = config.recipe() | {f"training.{name}": getattr(training, name) for name in names}
    workers = join_workers(training, plan, settings)
    with leaving_together(workers):
        if workers.is_chief:
            config = _with_data(config, download)
        workers.gather()  # waits for the chief, whose disk the others may share
        return config if workers.is_chief else _with_data(config, download), plan


def with_workers(config: XTTSConfig) -> XTTSConfig:
    """Returns `config` with the workers' addresses: from Slurm (`--workers slurm`) or, by default, `TF_CONFIG`."""
    given = config.training.workers
    found = workers_of_slurm(os.environ) if given == SLURM else None if given else workers_in(os.environ)
    if found is None:
        return config
    return replace(config, training=replace(config.training, workers=found[0], worker_index=found[1]))


def _with_data(config, download):
    """Downloads LJSpeech if `download`; makes a sample corpus if no data is given. Returns `config` with this data."""
    folder = config.data.train_data
    if download:
        from myxtts.data.download import download_ljspeech

        folder = download_ljspeech(folder)
    elif folder is None:
        languages = tuple(SENTENCES) if config.data.sample_languages == ("all",) else config.data.sample_languages
        corpus = f"the sample corpus ({', '.join(languages)}) in {SAMPLE_CORPUS}/ (kept for the next run)"
        say(f"No --train-data given: making {corpus}")
        is_new = not config.training.init_from and not holds_run(Path(config.training.checkpoint_dir))
        if is_new and config.model.size == "nano":
            say("Training from random weights; --config first_words.yaml starts from the bundled model.")
        folder = make_sample_corpus(SAMPLE_CORPUS, languages=languages)
        if len(languages) == 1 and not config.training.closing_texts:
            unheard = unheard_sentences(*languages)
            texts = tuple(unheard[:: len(unheard) // NUM_CLOSING_TEXTS][:NUM_CLOSING_TEXTS])
            config = replace(config, training=replace(config.training, closing_texts=texts))
    return replace(config, data=replace(config.data, train_data=str(folder)))


def holds_run(folder: Path) -> bool:
    """Returns whether a folder contains a run's checkpoints, even if an interrupted reset left them in a subfolder."""
    return any(stores_in(place) for place in (folder, folder / GATHERED))


def run_in(folder: Path) -> XTTSConfig | None:
    """Returns the settings of the run in a folder; None if there is no run, or if the run has no settings."""
    state = CheckpointStore(folder / "gpt").newest_state() or {}
    is_own = "config" in state and TAKEN_FROM not in state  # a copied GPT has another run's settings
    return read_config(folder) if (is_own or (folder / "config.json").is_file()) and holds_run(folder) else None


def require_run(config: XTTSConfig) -> None:
    """Checks that `--checkpoint-dir` contains a run to resume; raises `UserError` if it does not."""
    home = Path(config.training.checkpoint_dir)
    if not (stores := [store for place in (home, home / GATHERED) for store in stores_in(place).values()]):
        raise UserError(f"--resume needs a run, but {home} has none. Give its --checkpoint-dir, or leave out --resume.")
    if damaged := [store.folder for store in stores if not store.has_sound()]:
        raise UserError(f"--resume needs an intact checkpoint, but {damaged[0]} has none. Copy the run again.")


def quickest_devices(config: XTTSConfig, options: Mapping[str, object]) -> tuple[XTTSConfig, dict]:
    """Measures and prints the duration of a training step on one, two and all GPUs. Returns the arguments of `set_up`,
    `(config, options)`, for the fastest choice. With fewer than two GPUs, selects one device and measures nothing."""
    virtual = device_request(None, None, options.get("virtual_devices")).virtual_devices
    count = virtual or len(visible_gpus())
    ways = {
        "single": ({}, {"virtual_devices": 0}),
        "dual": ({"data_gpu": 0, "model_gpu": 1}, {}),
        "mirrored": ({"data_gpu": 0}, {"model_gpus": tuple(range(1, count))}),
    }
    requests = {
        name: (replace(config, data=replace(config.data, **gpus)), {**options, **devices})
        for name, (gpus, devices) in list(ways.items())[: max(1, count)]
    }
    if count < 2:
        say("Device plan auto: there is only one device to train on.")
        return requests["single"]
    if config.training.init_from:  # the measuring processes cannot show a download and its licence
        local_folder(config.training.init_from, config.training.accept_licence, "--init-from")
    note = " on virtual devices, which do not show the speed of GPUs" if virtual else ""
    say(f"Device plan auto: measuring {MEASURED_STEPS} steps of {', '.join(requests)}{note}...")
    best, lines = choose({name: measure(*request) for name, request in requests.items()})
    say("\n".join(lines))
    return requests[best]


def measure(config: XTTSConfig, options: Mapping[str, object]) -> float | str:
    """Times `MEASURED_STEPS` training steps in a new process with the device options `options`. Returns the median step
    time in seconds or, if the process fails, an error message."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
    options = {name: value for name, value in options.items() if not isinstance(value, Default)}  # not in JSON
    command = [sys.executable, "-m", "myxtts.runs.setup", json.dumps({"config": config.to_dict(), "options": options})]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1])["step_seconds"]


def choose(measured: Mapping[str, float | str]) -> tuple[str, list[str]]:
    """Returns the name of the fastest device plan in `measured`, and lines with all times for the user. `measured` is
    `{name: step time in seconds or error message}`. Raises `UserError` if no plan works."""
    if not (times := {name: result for name, result in measured.items() if not isinstance(result, str)}):
        raise UserError("No device plan works. {}: {}".format(*next(iter(measured.items()))))
    speeds = {name: f"{1e3 * seconds:.1f} ms per step" for name, seconds in times.items()}
    lines = [f"  {name}: {speeds.get(name, f'does not run ({result})')}" for name, result in measured.items()]
    best = min(times, key=times.get)
    return best, [*lines, f"Device plan auto: {best} is the fastest"]


def measure_here(request: str):
    """Prints the median duration of training steps, in a process started by `measure`. Request and output are JSON."""
    values = json.loads(request)
    config, plan = set_up(config_from_dict(without_adapted(values["config"])), **values["options"])
    from myxtts.runs.origin import settle_origin
    from myxtts.training.watching.measurement import measure_pipeline, open_trainer

    config, _ = settle_origin(config)
    with tempfile.TemporaryDirectory() as folder:
        clock = measure_pipeline(*open_trainer(config, plan, folder), MEASURED_STEPS)
    print(json.dumps({"devices": plan.describe(), "step_seconds": median(clock.step_times)}))


def transcribe(config: XTTSConfig, missing: TextsMissing, quiet: bool = False, plan: bool = False) -> XTTSConfig | str:
    """Cuts recordings without texts into clips with texts, as `myxtts make-dataset` does. Reuses an earlier result.

    Returns the configuration with the new data set as its training data. If `plan` is True and there is no earlier
    result, cuts nothing and returns a description of the planned work instead.

    The text of a recording comes from the subtitle file of the same name. If there is none, the speech recognizer
    `evaluation_recognizer` (default: Whisper base) transcribes the recording. Each folder counts as a speaker. If only
    one file is given, the speaker is named after it. Unusable recordings are reported and skipped. Raises `UserError`
    if the recognizer cannot be used, no clip could be made, or the run's folder is in the folder of the recordings.
    """
    data, home, root = config.data, Path(config.training.checkpoint_dir), missing.root
    outside = not home.resolve().is_relative_to(root.resolve())
    require(outside, "--checkpoint-dir", "a folder outside of the recordings", printable(str(home)))
    language = data.language or _language_of(missing.recordings)
    has_texts = all(str(one).lower().endswith(SUBTITLES) for one in texts_beside(missing.recordings, language).values())
    recognizer = config.training.evaluation_recognizer or ("" if has_texts else "base")
    files = [one for path, found in files_beside(missing.recordings, SUBTITLES).items() for one in (path, *found)]
    top = root if root.is_dir() else root.parent  # subfolders are speakers
    contents = [[os.path.relpath(file, top), digest_file(file) if file.is_file() else ""] for file in files]
    folder = home / "dataset" / digest_bytes(json.dumps([contents, language, recognizer]).encode(), 4)
    finished, with_set = folder.with_suffix(".done"), replace(config, data=replace(data, train_data=str(folder)))
    if finished.is_file() and folder.is_dir():
        return with_set
    if recognizer:
        settle_recognizer(recognizer)
    how = f"with the recognizer {printable(recognizer)}" if recognizer else "by the subtitles"
    what = f"{counted(len(missing.recordings), 'recording')} in {language} into clips {how}, in {folder}"
    if plan:
        return what
    if not quiet:
        say(f"{printable(str(root))}: cutting {what}")
    longest = min(11.5, data.max_seconds)
    options = dict(recognizer=recognizer, language=language, max_seconds=longest, min_seconds=min(1.0, longest / 2))
    with redirect_stdout(io.StringIO()) if quiet else nullcontext():
        if _make(missing, folder, options):
            finished.touch()
    return with_set


def _language_of(recordings):
    """Identifies the language of recordings by their subtitles; returns the default language if there are none. Of
    several subtitles, prefers those with no language in their name (`talk.srt`), then those in the default language."""
    texts, rank = [], lambda one: (one.stem.count("."), f".{DEFAULT_LANGUAGE}" not in one.stem)
    for path in (min(found, key=rank) for found in files_beside(recordings, SUBTITLES).values() if found):
        with suppress(Exception):  # pysubs2 raises errors of any type; `make_dataset` reports the file
            import pysubs2

            texts += [cue.plaintext for cue in pysubs2.SSAFile.from_string(read_bounded(path, 64 * 2**20))]
    return identify_language(texts) or DEFAULT_LANGUAGE


def _make(missing, folder, options):
    """Adds the recordings of each speaker to the data set in `folder`; returns whether all recordings were usable."""
    import myxtts  # late, because `make_dataset` is in `apps`

    speakers: dict[str, list[Path]] = {}
    for path in missing.recordings:  # the speaker is the subfolder, or the name of a single file
        inner = path.stem if path == missing.root else "_".join(path.parent.relative_to(missing.root).parts)
        name = " ".join(re.split(r"[|\s]+", inner or missing.root.resolve().name)).strip() or "speaker"
        speakers.setdefault(name, []).append(path)
    pending, fault = list(speakers.items()), None
    while pending:
        speaker, paths = pending.pop(0)
        try:
            myxtts.make_dataset(paths, folder, speaker=speaker, **options)
        except UserError as error:
            fault = error
            if len(paths) > 1:
                half = len(paths) // 2  # usually, only few recordings are unusable
                pending = [(speaker, paths[:half]), (speaker, paths[half:]), *pending]
            else:
                say(f"Skipped {printable(str(paths[0]))}: {str(error).removeprefix(f'{paths[0]}: ')}")
    if fault and not any(folder.glob("wavs/*/*.wav")):
        raise fault
    return fault is None


if __name__ == "__main__":
    measure_here(sys.argv[1])
