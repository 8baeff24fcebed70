"""A released XTTS checkpoint, or a fine-tune of one -> a folder that `myxtts say` and `--init-from` open."""

import glob
import math
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.config.checks import brief
from myxtts.config.config import XTTSConfig
from myxtts.config.rates import SPEAKER_SAMPLE_RATE
from myxtts.devices.tensorflow_start import filter_native_errors
from myxtts.interchange.coqui import weights as coqui
from myxtts.interchange.coqui.settings import model_config, read_settings, run_config
from myxtts.interchange.coqui.torch_checkpoint import read_torch_checkpoint
from myxtts.storage.checkpoint import CheckpointStore, read_manifest, write_manifest
from myxtts.storage.files import AnyPath, CheckpointError, digest_bytes, write_json, write_whole_folder
from myxtts.storage.provenance import MEL_STATS, VOCABULARY
from myxtts.storage.speakers import write_speakers
from myxtts.storage.tensor_file import write_tensors
from myxtts.text.tokenizer import XTTSTokenizer

RELEASED_NAMES = {
    "dvae": "dvae.pth",
    "mel_stats": "mel_stats.pth",
    "vocab": "vocab.json",
    "speakers": "speakers_xtts.pth",
    "config": "config.json",
}
"""Files that come with `model.pth`: the fields of `CoquiFiles`, and the names under which they are released."""
MODEL_NAMES = ("model.pth", "best_model.pth")
"""Names of the weights in a released folder, and in that of a Coqui training."""
_CONVERSION = 1
"""Raised where the same files are converted otherwise, so that converted ones are not taken for it."""
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class CoquiFiles:
    """The files of a released model, `model.pth`, `vocab.json`, `dvae.pth`, `mel_stats.pth`, `speakers_xtts.pth` and
    `config.json`; all but the first two may be None."""

    model: Path
    """The released one, a trainer's checkpoint, or a bare state dict."""
    vocab: Path
    dvae: Path | None = None
    """None takes the DVAE that a trainer's checkpoint holds, if any."""
    mel_stats: Path | None = None
    speakers: Path | None = None
    config: Path | None = None
    """None takes the settings that the checkpoint holds, else those of the released model."""

    @classmethod
    def of(cls, model: Path, **given: Path | None) -> "CoquiFiles":
        """A model with the files `given`; the others are taken from its folder where they have their released names.

        Raises:
            CheckpointError: There is no vocabulary.
        """
        beside = {field: model.with_name(name) for field, name in RELEASED_NAMES.items()}
        files = {field: given.get(field) or (path if path.is_file() else None) for field, path in beside.items()}
        if files["vocab"] is None:
            lack = f"{model} needs the model's vocab.json, and none is beside it"
            way_out = "Copy it there from the model that this was fine-tuned from, or use myxtts convert --vocab."
            raise CheckpointError(f"{lack}. {way_out}")
        return cls(model, **files)


def find_release(source: AnyPath) -> Path | None:
    """The weights of a Coqui model named by its folder or by themselves; None where `source` is something else."""
    path = Path(source)
    if path.suffix == ".pth":
        return path if path.is_file() else None
    is_ours = (path / "gpt").is_dir()
    return None if is_ours else next((path / name for name in MODEL_NAMES if (path / name).is_file()), None)


def imported_release(model: Path) -> Path:
    """The folder that a Coqui model is converted into: kept in the user's cache until one of its files changes.

    Raises as `import_coqui`.
    """
    files = CoquiFiles.of(model)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "myxtts")
    stats = [(str(path.resolve()), path.stat()) for path in vars(files).values() if path]
    content = repr([_CONVERSION, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)])
    name = model.resolve().parent.name
    output = cache / f"{name}-{digest_bytes(str(model.resolve()).encode(), 4)}-{digest_bytes(content.encode(), 4)}"
    if not output.is_dir():
        told = f"{model.parent} is a Coqui model: converting it once into {output}"
        print(f"{told} (deleting that is safe)", file=sys.stderr, flush=True)
        filter_native_errors()  # what converts imports TensorFlow
        cache.mkdir(parents=True, exist_ok=True)
        import_coqui(files, output)
        for stale in cache.glob(f"{glob.escape(output.name.rpartition('-')[0])}-*"):
            if stale != output:
                shutil.rmtree(stale, ignore_errors=True)
    return output


class Coverage(NamedTuple):
    """What became of one tensor: `name`, `shape` and `dtype` are those in the file."""

    file: str
    name: str
    shape: tuple
    dtype: str
    weight: str | None
    """Our weight that it became, or None."""
    reason: str
    """Why it became none; empty for a used one."""


def import_coqui(files: CoquiFiles, output: Path) -> tuple[XTTSConfig, list[Coverage]]:
    """Converts a model into the folder `output`, which must be new or empty. Tensors are converted one by one.

    Returns:
        The settings, and what became of each tensor of the files.

    Raises:
        CheckpointError: A tensor is missing, unknown, misshapen or not finite, or files do not belong together. Nothing
            has been written then.
        TorchCheckpointError: A file is damaged, or asks to run something.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CheckpointError(f"--output must be a folder that is new or empty. {output} is not. Give another one.")
    checkpoint = read_torch_checkpoint(files.model)
    model, dvae, renamed = _sort_tensors(checkpoint, files)
    settings = read_settings(files.config, checkpoint.get("config"))
    tokenizer = XTTSTokenizer.from_file(files.vocab)
    shapes = (_shapes(model), None if dvae is None else _shapes(dvae))
    config = run_config(model_config(*shapes, settings, tokenizer, files.model.name), settings)
    matched = _match(coqui.model_tensors(config.model), model, files.model.name)
    dvae_name = (files.dvae or files.model).name
    if dvae is not None:
        matched += _match(coqui.dvae_tensors(config.model), dvae, dvae_name)
    _check_front_end(model)
    speakers = _read_speakers(files.speakers, config.model) if files.speakers else None

    with write_whole_folder(output) as temporary:
        _write_parts(temporary, matched, config, files, with_dvae=dvae is not None)
        write_json(temporary / "config.json", config.to_dict())
        shutil.copyfile(files.vocab, temporary / VOCABULARY)
        if speakers:
            write_speakers(temporary, speakers)
    weights = {name: f"{tensor.part}: {tensor.weight}" for tensor, _ in matched for name in tensor.names}
    return config, _coverage(files, dvae_name, model, renamed, dvae, weights)


def _sort_tensors(checkpoint, files):
    """Tensors of the model and of the DVAE (or None) by today's names, and the names that differ in the file."""
    stored = checkpoint.get("model", checkpoint) if isinstance(checkpoint, dict) else checkpoint
    model, inner_dvae, renamed = {}, {}, {}
    for name, array in _tensors(stored, files.model).items():
        home, modern = model, coqui.modern_name(name)
        if modern.startswith("dvae."):
            home, modern = inner_dvae, modern.removeprefix("dvae.")
        if modern in home:
            raise CheckpointError(f"{files.model} holds {modern} twice, as {name} and under another name.")
        home[modern] = array
        if home is model and modern != name:
            renamed[modern] = name
    if files.dvae is None:
        dvae = inner_dvae or None
    else:
        dvae = _tensors(read_torch_checkpoint(files.dvae), files.dvae)
        model |= {f"dvae.{name}": array for name, array in inner_dvae.items()}
    if files.mel_stats is not None:
        _add_mel_stats(model, read_torch_checkpoint(files.mel_stats), files.mel_stats)
    return model, dvae, renamed


def _tensors(stored, path):
    if not isinstance(stored, dict) or not stored:
        raise CheckpointError(f"{path} must hold tensors by name. Received: {type(stored).__name__}.")
    for name, value in stored.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            raise CheckpointError(f"{path} must hold tensors by name. {brief(name)} is something else.")
    return dict(stored)


def _shapes(arrays):
    return {name: array.shape for name, array in arrays.items()}


def _add_mel_stats(model, stats, path):
    """Takes `mel_stats.pth` where the model has no such tensor; where it has, the two must agree."""
    if not isinstance(stats, np.ndarray):
        raise CheckpointError(f"--mel-stats must be a file with one tensor. {path} holds a {type(stats).__name__}.")
    inside = model.setdefault(MEL_STATS, stats)
    if inside.shape != stats.shape or not np.allclose(inside, stats, rtol=0.01):  # a bfloat16 model has 8 bits
        raise CheckpointError(f"{path} and the model's own mel_stats differ: they belong to different models.")


def _match(tensors, stored, file):
    """Pairs each `Tensor` with its arrays; every tensor must be there, have its shape, and every other be known."""
    missing, wrong = [], []
    for tensor in tensors:
        for name, shape in zip(tensor.names, tensor.shapes, strict=True):
            if name not in stored:
                missing.append(name)
            elif stored[name].shape != shape:
                wrong.append(f"{name} is {stored[name].shape} and not {shape}")
            elif stored[name].dtype.name not in _FLOATS:
                wrong.append(f"{name} holds {stored[name].dtype} and not floating-point numbers")
    known = {name for tensor in tensors for name in tensor.names}
    others = [name for name in stored if name not in known and not name.startswith("dvae.")]
    unknown = [name for name in others if not coqui.skip_reason(name)]
    problems = {"lacks tensors": missing, "has tensors of the wrong kind": wrong}
    for problem, names in (problems | {"has tensors that XTTS v2 does not have": unknown}).items():
        if names:
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            raise CheckpointError(f"{file} {problem}: {', '.join(names[:20])}{more}.")
    return [(tensor, [stored[name] for name in tensor.names]) for tensor in tensors]


def _check_front_end(model):
    """The speaker encoder's front-end is computed here, so a checkpoint that brings another one is refused."""
    hamming = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(400) / 400)
    checks = {
        "0.filter": lambda taps: taps.shape == (1, 1, 2) and np.allclose(taps, [-0.97, 1.0], atol=5e-3),
        "1.spectrogram.window": lambda window: window.shape == (400,) and np.allclose(window, hamming, atol=5e-3),
        "1.mel_scale.fb": _is_htk_filterbank,
    }
    for name, holds in checks.items():
        name = f"{coqui.SPEAKER_FRONT_END}.{name}"
        if name in model and not holds(np.asarray(model[name], np.float64)):
            raise CheckpointError(f"{name} is not that of XTTS v2: this speaker encoder hears another spectrum.")


def _is_htk_filterbank(filters, bin_hz=SPEAKER_SAMPLE_RATE / 512, top_hz=SPEAKER_SAMPLE_RATE / 2):
    """Whether the peaks of all filters lie where 64 HTK mel bands have them."""
    if filters.shape != (257, 64):
        return False
    mel = np.linspace(0.0, math.log10(1 + top_hz / 700), 66)[1:-1]
    off = np.abs(filters.argmax(axis=0) * bin_hz - 700 * (10**mel - 1)) > bin_hz
    return not (off & filters.any(axis=0)).any()


def _write_parts(folder, matched, config, files, with_dvae):
    """Writes the checkpoint of each part; `mel_stats` goes with the GPT where there is no DVAE."""
    parts = {}
    for tensor, arrays in matched:
        file = MEL_STATS if tensor.part == "dvae" and not with_dvae else "model"
        part = "gpt" if file == MEL_STATS else tensor.part
        parts.setdefault(part, {}).setdefault(f"{file}.safetensors", []).append((tensor, arrays))
    for part, contents in parts.items():
        state = {"finished": True, "config": config.to_dict(), "converted_from": files.model.name}
        copies = {VOCABULARY: files.vocab.read_bytes()} if part == "gpt" else {}
        step_folder = CheckpointStore(folder / part).write(0, {}, state, copies=copies)
        entries = read_manifest(step_folder)
        for file, tensors in contents.items():
            shapes = {tensor.weight: coqui.our_shape(tensor) for tensor, _ in tensors}
            entries[file] = write_tensors(step_folder / file, shapes, _finite_weights(tensors))
        write_manifest(step_folder, entries)


def _finite_weights(tensors):
    """Our weights, made one by one."""
    for tensor, arrays in tensors:
        value = coqui.to_ours(arrays, tensor.layout)
        if not np.isfinite(value).all():
            raise CheckpointError(f"{' or '.join(tensor.names)} holds values that are not finite.")
        yield value


def _read_speakers(path, model):
    """`{name: (latents, vector)}`; like the reference, takes the two values of a voice by their order."""
    stored = read_torch_checkpoint(path)
    if not isinstance(stored, dict) or not stored:
        raise CheckpointError(f"--speakers must be a file with voices by name. {path} holds {type(stored).__name__}.")
    expected = ((1, model.num_latents, model.width), (1, model.speaker_width, 1))
    speakers = {}
    for name, voice in stored.items():
        values = list(voice.values()) if isinstance(voice, dict) else []
        shapes = tuple(getattr(value, "shape", None) for value in values)
        if shapes != expected:
            rule = f"{path}: a voice must be latents {expected[0]} and a vector {expected[1]}"
            raise CheckpointError(f"{rule}. Received for {brief(name)}: {shapes[:4]}.")
        latents, vector = (np.asarray(value, np.float32) for value in values)
        speakers[str(name)] = latents, vector[..., 0]
    return speakers


def _coverage(files, dvae_name, model, renamed, dvae, weights):
    """A `Coverage` for each tensor; `weights` holds what became of the used ones by name."""
    dvae_prefix = "" if files.dvae else "dvae."
    tensors = [(files.model.name, renamed.get(name, name), name, array) for name, array in model.items()]
    tensors += [(dvae_name, dvae_prefix + name, name, array) for name, array in (dvae or {}).items()]
    rows = []
    for file, name_there, name, array in tensors:
        reason = "" if name in weights else coqui.skip_reason(name) or f"the DVAE of {dvae_name} is used"
        rows.append(Coverage(file, name_there, array.shape, str(array.dtype), weights.get(name), reason))
    return rows


def count_reasons(coverage: list[Coverage]) -> dict[str, int]:
    """`{reason: number of tensors}` of the skipped ones, most frequent first."""
    return dict(Counter(row.reason for row in coverage if row.weight is None).most_common())
