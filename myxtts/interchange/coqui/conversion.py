"""Converts a released or fine-tuned XTTS v2 checkpoint to a model folder of this project, and back."""

import glob
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.audio.files import AudioError
from myxtts.config.checks import brief, is_new_or_empty, printable, require
from myxtts.config.config import XTTSConfig
from myxtts.inference.speech import Voice
from myxtts.interchange.coqui import weights as coqui
from myxtts.interchange.coqui.settings import RELEASED_NAMES, coqui_settings, model_config, read_settings, run_config
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint, write_torch_checkpoint
from myxtts.storage import files as storage_files
from myxtts.storage.base_model import RELEASE, TRAINER, kind_of
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore, write_manifest, write_tensors
from myxtts.storage.files import claimed, digest_bytes, lock, user_cache, write_json, write_whole, write_whole_folder
from myxtts.storage.run_folder import MEL_STATS, TRAIN, VOCABULARY, chosen_step, read_config, vocabulary_path
from myxtts.storage.speakers import read_speaker, read_speakers, write_speakers
from myxtts.text.tokenizer import XTTSTokenizer

_CONVERSION = 4
"""Version of the conversion of Coqui models. A cached model converted by another version is converted again."""
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_MAKING, _OPENING = threading.Lock(), threading.Lock()
_IN_USE: dict[Path, int] = {}
"""File descriptors of the converted models that this process uses, locked so that other processes keep the models."""


@dataclass(frozen=True)
class CoquiFiles:
    """Paths of the files of a Coqui model; only `model` and `vocab` are required."""

    model: Path
    """File with the weights: a released model, a checkpoint of Coqui's trainer, or a bare state dict."""
    vocab: Path
    dvae: Path | None = None
    """File with the weights of the DVAE. If None, the DVAE in `model` is used, if `model` contains one."""
    mel_stats: Path | None = None
    speakers: Path | None = None
    config: Path | None = None
    """`config.json`. If None, the settings in `model` are used or, if `model` has none, the settings of XTTS v2."""

    @classmethod
    def of(cls, model: Path, **given: Path | None) -> "CoquiFiles":
        """Returns the paths of a model's files. Files not in `given` are looked up in the folder of the weights file
        `model`, by their names in Coqui's releases. Raises `CheckpointError` if there is no vocabulary."""
        beside = {field: model.with_name(name) for field, name in RELEASED_NAMES.items()}
        files = {field: given.get(field) or (path if path.is_file() else None) for field, path in beside.items()}
        if files["vocab"] is None:
            raise CheckpointError(f"{model} needs its model's vocab.json. Copy it there, or use convert --vocab.")
        return cls(model, **files)


def find_release(source: str | os.PathLike) -> Path | None:
    """Returns the weights file of a Coqui model if `source` is this file or the file's folder, else None."""
    path, kind = Path(source), kind_of(source)
    if kind in (RELEASE, TRAINER):
        path /= kind
    return path if path.suffix == ".pth" and path.is_file() else None


def imported_release(model: Path) -> Path:
    """Returns the folder of the converted model of the Coqui weights file `model`. Converts it if it is not cached."""
    files, cache = CoquiFiles.of(model), user_cache()
    stats = [(str(path.resolve()), path.stat()) for path in vars(files).values() if path]
    content = repr([_CONVERSION, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)])
    stem = f"{model.resolve().parent.name[:50]}-{digest_bytes(os.fsencode(model.resolve()), 4)}"
    output = cache / f"{stem}-{digest_bytes(content.encode(), 4)}"

    def convert():
        print(printable(f"{model.parent} is a Coqui model: converting it once into {output}"), file=sys.stderr)
        import_coqui(files, output)
        for stale in {*cache.glob(f"{glob.escape(stem)}-*")} - {output}:
            with suppress(OSError, CheckpointError), storage_files.locked_folder(stale, "in use"):
                shutil.rmtree(stale, ignore_errors=True)
        storage_files.remove_leftovers(cache, f"{glob.escape(stem[:40])}*")  # of killed conversions

    make_once(output, convert)
    with _OPENING, suppress(OSError):  # a file system without locks
        if output not in _IN_USE:
            _IN_USE[output] = os.open(output, os.O_RDONLY)
            lock(_IN_USE[output], is_shared=True)
    return output


def make_once(folder: Path, make: Callable[[], None]) -> None:
    """Calls `make` to create `folder`, unless `folder` exists. Calls in other threads and processes wait."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _MAKING, claimed(folder.parent / ".lock", 0, waits=True):
            if not folder.is_dir():
                make()


@dataclass
class Stored:
    """A tensor read from a Coqui model, and the MyXTTS weight that it is converted to."""

    file: str
    name: str
    array: np.ndarray
    weight: str | None = None
    """Part and name of the MyXTTS weight, such as `gpt: gpt/text_head/kernel`; None for an unused tensor."""
    reason: str | None = None
    """Why the tensor is unused; None for a used tensor."""


def import_coqui(files: CoquiFiles, output: Path) -> tuple[XTTSConfig, list[Stored]]:
    """Converts a Coqui model to a MyXTTS model in `output`, a new or empty folder. An error leaves no partial model.

    Returns the model's settings, and a `Stored` for each tensor in the files, used or unused. Raises `CheckpointError`
    if a tensor is missing, unknown, misshapen or not finite, or if the files belong to different models. Raises
    `TorchCheckpointError` if a file is damaged, or calls functions that checkpoints do not need.
    """
    require(is_new_or_empty(output), "--output", "a new or empty folder", output, "Name another, or delete it.")
    checkpoint = read_torch_checkpoint(files.model)
    stored = _gather(files, checkpoint)
    settings = read_settings(files.config, checkpoint.get("config"))
    shapes = {key: one.array.shape for key, one in stored.items()}
    if settings.get("sound_norm_refs"):
        print("sound_norm_refs is not supported: recordings of a voice keep their levels.", file=sys.stderr)
    config = run_config(model_config(shapes, settings, XTTSTokenizer.from_file(files.vocab)), settings)
    tensors = coqui.model_tensors(config.model)
    with_dvae = any(key.startswith("dvae.") for key in stored)
    if with_dvae:
        tensors += coqui.dvae_tensors(config.model, "dvae.")
    _match(tensors, stored)
    speakers = _read_speakers(files.speakers, config.model) if files.speakers else None

    with write_whole_folder(output) as temporary:
        _write_parts(temporary, stored, tensors, config, files, with_dvae)
        write_json(temporary / "config.json", config.to_dict())
        shutil.copyfile(files.vocab, temporary / VOCABULARY)
        if speakers:
            write_speakers(temporary, speakers)
    return config, list(stored.values())


def _gather(files, checkpoint):
    """Returns all tensors, `{key: Stored}`. Keys are names in current coqui-tts; the DVAE's start with `dvae.`."""
    stored = {}
    for name, array in _items(checkpoint, files.model):
        key, reason = coqui.modern_name(name), None
        if files.dvae and key.startswith("dvae."):
            key, reason = f"replaced {key}", "another DVAE is used"
        if key in stored:
            raise CheckpointError(f"{files.model} contains {key} twice, as {name} and under another name.")
        stored[key] = Stored(files.model.name, name, array, reason=reason)
    if files.dvae:
        for name, array in _items(read_torch_checkpoint(files.dvae), files.dvae):
            stored[f"dvae.{name}"] = Stored(files.dvae.name, name, array)
    if files.mel_stats:
        if not isinstance(stats := read_torch_checkpoint(files.mel_stats), np.ndarray):
            raise CheckpointError(f"--mel-stats must be a file with one tensor. {files.mel_stats} is not.")
        inside = stored.setdefault(MEL_STATS, Stored(files.model.name, MEL_STATS, stats)).array
        if inside.shape != stats.shape or not np.allclose(inside, stats, rtol=0.01):  # bfloat16 has 8 significant bits
            raise CheckpointError(f"{files.mel_stats} and the model's own mel_stats differ. Use files of one model.")
    return stored


def _items(checkpoint, path):
    """Returns the `(name, tensor)` pairs of a state dict, which may be the entry `model` of a larger dictionary."""
    stored = checkpoint.get("model", checkpoint) if isinstance(checkpoint, dict) else checkpoint
    if not isinstance(stored, dict) or not stored:
        raise CheckpointError(f"{path} must contain tensors by name. Received: {brief(stored)}.")
    for name, value in stored.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            raise CheckpointError(f"{path} must contain tensors by name. {brief(name)} is not a tensor.")
    return stored.items()


def _match(tensors, stored):
    """Sets the field `weight` or `reason` of each `Stored` in the dictionary `stored`. Raises `CheckpointError` if
    a tensor in the list `tensors` is missing or has a wrong shape or dtype, or if `stored` has an unknown tensor."""
    missing, wrong = [], []
    for tensor in tensors:
        for key, shape in zip(tensor.names, tensor.shapes, strict=True):
            if key not in stored:
                missing.append(key)
                continue
            one = stored[key]
            one.weight = f"{tensor.part}: {tensor.weight}"
            if one.array.shape != shape or one.array.dtype.name not in _FLOATS:
                wrong.append(f"{key} is {one.array.shape} {one.array.dtype} and not {shape} of floating-point numbers")
    for problem, names in {"lacks tensors": missing, "has tensors of the wrong kind": wrong}.items():
        if names:
            raise CheckpointError(f"The checkpoint {problem}: {', '.join(names[:20])} ({len(names)} in all).")
    unused = {key: one for key, one in stored.items() if not one.weight}
    for key, one in unused.items():
        one.reason = one.reason or coqui.skip_reason(key.removeprefix("dvae."))
    if unknown := [one.name for one in unused.values() if one.reason is None]:
        raise CheckpointError(f"The checkpoint has tensors that XTTS v2 does not have: {', '.join(unknown[:20])}.")
    for name in coqui.FRONT_END.keys() & stored.keys():
        values = stored[name].array.astype(float).ravel()
        if not np.isclose(values @ np.arange(1, len(values) + 1), coqui.FRONT_END[name], rtol=5e-3):
            raise CheckpointError(f"{name} differs from XTTS v2: this speaker encoder needs a different spectrogram.")


def _write_parts(folder, stored, tensors, config, files, with_dvae):
    """Writes a checkpoint for each part. `mel_stats` is stored with the DVAE, or with the GPT if there is no DVAE."""
    parts = {}
    for tensor in tensors:
        part, file = (tensor.part, "model") if with_dvae or tensor.part != "dvae" else ("gpt", MEL_STATS)
        parts.setdefault(part, {}).setdefault(f"{file}.safetensors", []).append(tensor)
    for part, contents in parts.items():
        state = {"finished": True, "config": config.to_dict(), "converted_from": files.model.name}
        copies = {VOCABULARY: files.vocab.read_bytes()} if part == "gpt" else {}
        step_folder = CheckpointStore(folder / part).write(0, {}, state, copies=copies)
        for file, written in contents.items():
            written.sort(key=lambda one: one.weight)  # as in `CheckpointStore.write`, so that copies have equal digests
            zeros = {one.weight: np.broadcast_to(np.float32(0), coqui.our_shape(one)) for one in written}
            write_tensors(step_folder / file, zeros, _finite_weights(written, stored))
        write_manifest(step_folder)


def _finite_weights(tensors, stored):
    """Yields the MyXTTS weight for each of `tensors`. Raises `CheckpointError` for NaN or infinity."""
    for tensor in tensors:
        value = coqui.to_ours([stored[name].array for name in tensor.names], tensor.layout)
        if not np.isfinite(value).all():
            raise CheckpointError(f"{' or '.join(tensor.names)} contains values that are not finite.")
        yield value


def _read_speakers(path, model):
    """Reads voices, `{name: (latents, speaker vector)}`. Raises `CheckpointError` for swapped or misshapen arrays."""
    stored = read_torch_checkpoint(path)
    if not isinstance(stored, dict) or not stored:
        raise CheckpointError(f"--speakers must be a file with voices by name. {path} holds {type(stored).__name__}.")
    expected, speakers = ((1, model.num_latents, model.width), (1, model.speaker_width, 1)), {}
    for name, voice in stored.items():
        values = list(voice.values()) if isinstance(voice, dict) else []
        shapes = tuple(getattr(value, "shape", None) for value in values)
        if shapes != expected:
            raise CheckpointError(f"{path}: {brief(name)} must be arrays {expected}. Received: {shapes[:4]}.")
        latents, vector = (np.asarray(value, np.float32) for value in values)
        speakers[str(name)] = latents, vector[..., 0]
    return speakers


def export_coqui(folder: str | os.PathLike, output: str | os.PathLike, which: str = "best") -> list[Path]:
    """Exports a model to a folder for Coqui TTS: `model.pth`, `config.json`, `vocab.json` and `mel_stats.pth`. Adds
    `dvae.pth` if the model has a DVAE, and `speakers_xtts.pth` if the model has voices. Returns the paths.

    Args:
        folder: Folder that `import_coqui` wrote, or a run with a GPT, a speaker encoder and a waveform decoder.
        output: Path of the model file if it ends in `.pth`, else the folder for `model.pth`. No file is overwritten.
        which: Checkpoint of the GPT and the waveform decoder, `best` or `last`.

    Raises `CheckpointError` if a part is missing, or Coqui TTS does not support the model's shape; `OSError` if a file
    could not be written. After an error, there is no model file, because it is completed last.
    """
    folder, output = Path(folder), Path(output)
    if output.suffix != ".pth":
        output /= RELEASE
    others = "dvae.pth", "mel_stats.pth", "speakers_xtts.pth"
    require(output.name not in others, "--output", f"named other than {', '.join(others)}", output)
    config, vocabulary = read_config(folder), vocabulary_path(folder)
    settings = coqui_settings(config, XTTSTokenizer.from_file(vocabulary).languages)
    parts = {part: _read_part(folder, part, which) for part in ("gpt", "speaker", "decoder", "dvae")}
    if missing := [part for part in ("gpt", "speaker", "decoder") if not parts[part]]:
        raise CheckpointError(f"coqui-tts needs the {missing[0]}. Train it: {TRAIN.format(missing[0], folder)}")
    dvae, weights = parts["dvae"], parts["gpt"] | parts["speaker"] | parts["decoder"]
    if dvae:  # else the GPT's checkpoint holds `mel_stats`
        weights[MEL_STATS] = dvae.pop(MEL_STATS)
    constants, dvae_constants = coqui.constant_tensors(config.model)
    model = _released(coqui.model_tensors(config.model), weights, folder) | constants
    files = {output.name: {"model": model}, "mel_stats.pth": np.asarray(weights[MEL_STATS], np.float32)}
    if dvae:
        files["dvae.pth"] = _released(coqui.dvae_tensors(config.model), dvae, folder) | dvae_constants
    if voices := dict(_voices(folder, which)):
        files["speakers_xtts.pth"] = voices
    written = [output.parent / name for name in (*files, "config.json", "vocab.json")]
    for path in filter(os.path.lexists, written):
        raise CheckpointError(f"{path} already exists. Give an --output in another folder.")
    output.parent.mkdir(parents=True, exist_ok=True)
    # The stack renames the complete files in reverse order, so that the model file is the last to appear.
    with ExitStack() as stack:
        places = {path.name: stack.enter_context(write_whole(path)) for path in written}
        for name, content in files.items():
            write_torch_checkpoint(places[name], content)
        write_json(places["config.json"], settings)
        shutil.copyfile(vocabulary, places["vocab.json"])
    return written


def _voices(folder, which):
    """Yields each voice as `(name, {tensor name: array})` for coqui-tts. Encodes voices stored as recordings."""
    speakers = read_speakers(folder)
    if any(speaker.clip for speaker in speakers.values()):
        from myxtts.inference.loading import load_model  # imports TensorFlow, which other voices do not need
        from myxtts.inference.voices import VoiceEncoder

        model = load_model(folder, which)
        listen = VoiceEncoder(model, model.preset[1], traced=False)
    for name, speaker in speakers.items():
        try:
            voice = listen(speaker.clip) if speaker.clip else Voice(*read_speaker(folder, name))
        except AudioError as error:
            print(f"{name} is not in speakers_xtts.pth. {error}", file=sys.stderr)
        else:
            yield name, {"gpt_cond_latent": voice.latents, "speaker_embedding": voice.speaker[..., np.newaxis]}


def _read_part(folder, part, which):
    """Returns weights (and `mel_stats`, if any) of a `part` as `{name: array}`; {} if the part has no checkpoint."""
    store = CheckpointStore(folder / part)
    if not store.steps():
        return {}
    step = chosen_step(store, part, which)
    has_stats = store.file(step, f"{MEL_STATS}.safetensors")
    return dict(store.open(step)) | (dict(store.open(step, MEL_STATS)) if has_stats else {})


def _released(tensors, weights, folder):
    """Converts MyXTTS's `weights` `{name: array}` to Coqui's, as described by `tensors`. Most results are views."""
    if unknown := sorted(weights.keys() - {tensor.weight for tensor in tensors}):
        raise CheckpointError(f"{folder} has weights that XTTS v2 does not have: {', '.join(unknown[:20])}.")
    released = {}
    for tensor in tensors:
        weight, shape = weights.get(tensor.weight), coqui.our_shape(tensor)
        if (found := getattr(weight, "shape", "no such weight")) != shape:
            raise CheckpointError(f"{folder}: {tensor.weight} must have the shape {shape}. Received: {found}.")
        released |= zip(tensor.names, coqui.to_coqui(weight, tensor.layout), strict=True)
    return released
