"""Converts a released XTTS v2 checkpoint, or a fine-tune of one, to a model folder of this project."""

import glob
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
from myxtts.storage.checkpoint import CheckpointStore, read_manifest, write_manifest, write_tensors
from myxtts.storage.files import AnyPath, CheckpointError, digest_bytes, user_cache, write_json, write_whole_folder
from myxtts.storage.run_folder import MEL_STATS, VOCABULARY
from myxtts.storage.speakers import write_speakers
from myxtts.text.tokenizer import XTTSTokenizer

RELEASED_NAMES = {
    "dvae": "dvae.pth",
    "mel_stats": "mel_stats.pth",
    "vocab": "vocab.json",
    "speakers": "speakers_xtts.pth",
    "config": "config.json",
}
"""Fields of `CoquiFiles` and the names of these files in a release."""
MODEL_NAMES = ("model.pth", "best_model.pth")
"""Names of the weights in a release, and in a Coqui training folder."""
_CONVERSION = 1
"""Version of the conversion; cached folders of other versions are converted again."""
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class CoquiFiles:
    """Paths of a released model's files; all but `model` and `vocab` are optional."""

    model: Path
    """A released model, a trainer's checkpoint, or a bare state dict."""
    vocab: Path
    dvae: Path | None = None
    """None uses the DVAE in a trainer's checkpoint, if there is one."""
    mel_stats: Path | None = None
    speakers: Path | None = None
    config: Path | None = None
    """None uses the settings in the checkpoint, else those of the released model."""

    @classmethod
    def of(cls, model: Path, **given: Path | None) -> "CoquiFiles":
        """Combines a model and the files `given` with the files of released names in the model's folder.

        Raises:
            CheckpointError: There is no vocabulary.
        """
        beside = {field: model.with_name(name) for field, name in RELEASED_NAMES.items()}
        files = {field: given.get(field) or (path if path.is_file() else None) for field, path in beside.items()}
        if files["vocab"] is None:
            raise CheckpointError(
                f"{model} needs its model's vocab.json. Copy it into that folder, or use myxtts convert --vocab."
            )
        return cls(model, **files)


def find_release(source: AnyPath) -> Path | None:
    """Path of the weights of a Coqui model, given as its folder or its file; None for other sources."""
    path = Path(source)
    if path.suffix == ".pth":
        return path if path.is_file() else None
    is_ours = (path / "gpt").is_dir()
    return None if is_ours else next((path / name for name in MODEL_NAMES if (path / name).is_file()), None)


def imported_release(model: Path) -> Path:
    """Converts a Coqui model into the user's cache, if it or its files changed, and returns the folder.

    Raises as `import_coqui`.
    """
    files = CoquiFiles.of(model)
    cache = user_cache()
    stats = [(str(path.resolve()), path.stat()) for path in vars(files).values() if path]
    content = repr([_CONVERSION, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)])
    stem = f"{model.resolve().parent.name}-{digest_bytes(str(model.resolve()).encode(), 4)}"
    output = cache / f"{stem}-{digest_bytes(content.encode(), 4)}"
    if not output.is_dir():
        print(f"{model.parent} is a Coqui model: converting it once into {output}", file=sys.stderr, flush=True)
        filter_native_errors()
        cache.mkdir(parents=True, exist_ok=True)
        import_coqui(files, output)
        for stale in cache.glob(f"{glob.escape(stem)}-*"):
            if stale != output:
                shutil.rmtree(stale, ignore_errors=True)
    return output


class Coverage(NamedTuple):
    """One tensor of a file and its use; `name`, `shape` and `dtype` are those in the file."""

    file: str
    name: str
    shape: tuple
    dtype: str
    weight: str | None
    """Name of the MyXTTS weight that it was converted to; None if it is not used."""
    reason: str
    """Why it is not used; empty for a used one."""


class _Stored(NamedTuple):
    """A tensor in a file."""

    file: str
    name: str
    array: np.ndarray


def import_coqui(files: CoquiFiles, output: Path) -> tuple[XTTSConfig, list[Coverage]]:
    """Converts a model, tensor by tensor, into `output`, a new or empty folder.

    Returns:
        The settings, and the use of each tensor in the files.

    Raises:
        CheckpointError: A tensor is missing, unknown, misshapen or not finite, or the files do not belong together.
            Nothing has been written.
        TorchCheckpointError: A file is damaged, or asks to call a function.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CheckpointError(f"--output must be a new or empty folder. Received: {output}.")
    checkpoint = read_torch_checkpoint(files.model)
    stored = _gather(files, checkpoint)
    tokenizer = XTTSTokenizer.from_file(files.vocab)
    settings = read_settings(files.config, checkpoint.get("config"))
    shapes = {key: one.array.shape for key, one in stored.items()}
    config = run_config(model_config(shapes, settings, tokenizer), settings)
    with_dvae = any(key.startswith("dvae.") for key in stored)
    matched = _match(coqui.model_tensors(config.model), stored)
    matched += _match(coqui.dvae_tensors(config.model), stored, "dvae.") if with_dvae else []
    weights = {key: f"{tensor.part}: {tensor.weight}" for tensor, keys in matched for key in keys}
    coverage = _coverage(stored, weights)
    _check_front_end(stored)
    speakers = _read_speakers(files.speakers, config.model) if files.speakers else None

    with write_whole_folder(output) as temporary:
        _write_parts(temporary, stored, matched, config, files, with_dvae)
        write_json(temporary / "config.json", config.to_dict())
        shutil.copyfile(files.vocab, temporary / VOCABULARY)
        if speakers:
            write_speakers(temporary, speakers)
    return config, coverage


def _gather(files, checkpoint):
    """Collects all tensors by their current names; those of the DVAE get the prefix `dvae.`."""
    stored = {}
    for name, array in _tensors(checkpoint, files.model):
        key = coqui.modern_name(name)
        if files.dvae and key.startswith("dvae."):
            key = f"replaced {key}"
        if key in stored:
            raise CheckpointError(f"{files.model} holds {key} twice, as {name} and under another name.")
        stored[key] = _Stored(files.model.name, name, array)
    if files.dvae:
        for name, array in _tensors(read_torch_checkpoint(files.dvae), files.dvae):
            stored[f"dvae.{name}"] = _Stored(files.dvae.name, name, array)
    if files.mel_stats:
        stats = read_torch_checkpoint(files.mel_stats)
        if not isinstance(stats, np.ndarray):
            raise CheckpointError(f"--mel-stats must be a file with one tensor. {files.mel_stats} is not.")
        inside = stored.setdefault(MEL_STATS, _Stored(files.model.name, MEL_STATS, stats)).array
        if inside.shape != stats.shape or not np.allclose(inside, stats, rtol=0.01):  # a bfloat16 model has 8 bits
            raise CheckpointError(f"{files.mel_stats} and the model's own mel_stats differ: take those of one model.")
    return stored


def _tensors(checkpoint, path):
    """Items of a dictionary of tensors, or of the one in a trainer's checkpoint."""
    stored = checkpoint.get("model", checkpoint) if isinstance(checkpoint, dict) else checkpoint
    if not isinstance(stored, dict) or not stored:
        raise CheckpointError(f"{path} must hold tensors by name. Received: {brief(stored)}.")
    for name, value in stored.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            raise CheckpointError(f"{path} must hold tensors by name. {brief(name)} is something else.")
    return stored.items()


def _match(tensors, stored, prefix=""):
    """Pairs each `Tensor` with the keys of its stored tensors, whose shapes and types are checked."""
    missing, wrong = [], []
    matched = [(tensor, [prefix + name for name in tensor.names]) for tensor in tensors]
    for tensor, keys in matched:
        for key, shape in zip(keys, tensor.shapes, strict=True):
            if key not in stored:
                missing.append(key)
            elif (array := stored[key].array).shape != shape or array.dtype.name not in _FLOATS:
                wrong.append(f"{key} is {array.shape} {array.dtype} and not {shape} of floating-point numbers")
    for problem, names in {"lacks tensors": missing, "has tensors of the wrong kind": wrong}.items():
        if names:
            raise CheckpointError(f"The checkpoint {problem}: {', '.join(names[:20])} ({len(names)} in all).")
    return matched


def _coverage(stored, weights):
    """Lists the use of each stored tensor; `weights` has our weights by key."""
    rows = []
    for key, (file, name, array) in stored.items():
        reason = "" if key in weights else coqui.skip_reason(key.removeprefix("dvae."))
        reason = "another DVAE is used" if key.startswith("replaced ") else reason
        rows.append(Coverage(file, name, array.shape, str(array.dtype), weights.get(key), reason))
    if unknown := [row.name for row in rows if row.reason is None]:
        raise CheckpointError(f"The checkpoint has tensors that XTTS v2 does not have: {', '.join(unknown[:20])}.")
    return rows


def _check_front_end(stored):
    """Refuses a speaker encoder with another spectrogram than the one that is computed here."""
    hertz = 700 * (10 ** np.linspace(0, np.log10(1 + SPEAKER_SAMPLE_RATE / 2 / 700), 66) - 1)  # HTK's mel scale
    low, peak, high = hertz[:-2], hertz[1:-1], hertz[2:]
    bins = np.linspace(0, SPEAKER_SAMPLE_RATE / 2, 257)[:, np.newaxis]
    expected = {
        "0.filter": np.array([[[-0.97, 1.0]]]),
        "1.spectrogram.window": 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(400) / 400),
        "1.mel_scale.fb": np.clip(np.minimum((bins - low) / (peak - low), (high - bins) / (high - peak)), 0, None),
    }
    for name, values in expected.items():
        one = stored.get(name := f"{coqui.SPEAKER_FRONT_END}.{name}")
        if one and (one.array.shape != values.shape or not np.allclose(one.array.astype(float), values, atol=5e-3)):
            raise CheckpointError(f"{name} is not that of XTTS v2: this speaker encoder needs another spectrogram.")


def _write_parts(folder, stored, matched, config, files, with_dvae):
    """Writes the checkpoint of each part; without a DVAE, `mel_stats` goes with the GPT."""
    parts = {}
    for tensor, keys in matched:
        part, file = (tensor.part, "model") if with_dvae or tensor.part != "dvae" else ("gpt", MEL_STATS)
        parts.setdefault(part, {}).setdefault(f"{file}.safetensors", []).append((tensor, keys))
    for part, contents in parts.items():
        state = {"finished": True, "config": config.to_dict(), "converted_from": files.model.name}
        copies = {VOCABULARY: files.vocab.read_bytes()} if part == "gpt" else {}
        step_folder = CheckpointStore(folder / part).write(0, {}, state, copies=copies)
        entries = read_manifest(step_folder)
        for file, tensors in contents.items():
            shapes = {tensor.weight: coqui.our_shape(tensor) for tensor, _ in tensors}
            entries[file] = write_tensors(step_folder / file, shapes, _finite_weights(tensors, stored))
        write_manifest(step_folder, entries)


def _finite_weights(tensors, stored):
    for tensor, keys in tensors:
        value = coqui.to_ours([stored[key].array for key in keys], tensor.layout)
        if not np.isfinite(value).all():
            raise CheckpointError(f"{' or '.join(tensor.names)} holds values that are not finite.")
        yield value


def _read_speakers(path, model):
    """Reads `{name: (latents, vector)}`; like the reference, takes the two values of a voice by their order."""
    stored = read_torch_checkpoint(path)
    if not isinstance(stored, dict) or not stored:
        raise CheckpointError(f"--speakers must be a file with voices by name. {path} holds {type(stored).__name__}.")
    expected = ((1, model.num_latents, model.width), (1, model.speaker_width, 1))
    speakers = {}
    for name, voice in stored.items():
        values = list(voice.values()) if isinstance(voice, dict) else []
        shapes = tuple(getattr(value, "shape", None) for value in values)
        if shapes != expected:
            raise CheckpointError(f"{path}: {brief(name)} must be arrays {expected}. Received: {shapes[:4]}.")
        latents, vector = (np.asarray(value, np.float32) for value in values)
        speakers[str(name)] = latents, vector[..., 0]
    return speakers


def count_reasons(coverage: list[Coverage]) -> dict[str, int]:
    """Counts the skipped tensors by reason, most frequent first."""
    return dict(Counter(row.reason for row in coverage if row.weight is None).most_common())
