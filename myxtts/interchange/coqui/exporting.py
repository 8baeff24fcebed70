"""Exports a model in the files that the reference loads."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from myxtts.audio.mel import SPEAKER_MEL
from myxtts.interchange.coqui import weights as coqui
from myxtts.interchange.coqui.settings import coqui_settings
from myxtts.interchange.coqui.torch_checkpoint import write_torch_checkpoint
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import CheckpointError, write_json, write_whole
from myxtts.storage.run_folder import MEL_STATS, chosen_step, read_config, vocabulary_path
from myxtts.storage.speakers import read_speaker, speaker_names
from myxtts.text.tokenizer import XTTSTokenizer


def export_coqui(folder: str | os.PathLike, output: str | os.PathLike, which: str = "best") -> list[Path]:
    """Writes `model.pth` and, next to it, `config.json`, `vocab.json`, `mel_stats.pth` and, if the model has them,
    `dvae.pth` and `speakers_xtts.pth`.

    Args:
        folder: A model of `import_coqui`, or a run whose stages are all trained.
        output: Path of the model file. None of the files may exist.
        which: `best` or `last` checkpoint of the GPT and the waveform decoder.

    Returns:
        Paths of the files written.

    Raises:
        CheckpointError: A part is missing, or the model has a shape that the reference does not support.
        OSError: A file could not be written; then there is no model file.
    """
    folder, output = Path(folder), Path(output)
    config, vocabulary = read_config(folder), vocabulary_path(folder)
    settings = coqui_settings(config, XTTSTokenizer.from_file(vocabulary).languages)
    parts = {part: _read_part(folder, part, which) for part in ("gpt", "speaker", "decoder", "dvae")}
    if missing := [part for part in ("gpt", "speaker", "decoder") if not parts[part]]:
        raise CheckpointError(
            f"{folder} has no {missing[0]}, which the reference needs. "
            f"Train it: python train_main.py --stage {missing[0]} --checkpoint-dir {folder} --train-data …"
        )
    dvae, weights = parts.pop("dvae"), {}
    for part in parts.values():
        weights |= part
    # `mel_stats` is stored with the DVAE, or with the GPT of a model without one.
    if dvae:
        weights[MEL_STATS] = dvae.pop(MEL_STATS)
    counters, dvae_constants = coqui.constant_tensors(config.model)
    model = _tensors(coqui.model_tensors(config.model), weights, folder) | counters | speaker_front_end()
    files = {output.name: {"model": model}, "mel_stats.pth": np.asarray(weights[MEL_STATS], np.float32)}
    if dvae:
        files["dvae.pth"] = _tensors(coqui.dvae_tensors(config.model), dvae, folder) | dvae_constants
    if voices := {name: read_speaker(folder, name) for name in speaker_names(folder)}:
        files["speakers_xtts.pth"] = {
            name: {"gpt_cond_latent": latents, "speaker_embedding": vector[..., np.newaxis]}
            for name, (latents, vector) in voices.items()
        }
    written = [output.parent / name for name in (*files, "config.json", "vocab.json")]
    for path in written:
        if os.path.lexists(path):
            raise CheckpointError(f"{path} already exists. Give an --output in another folder.")
    output.parent.mkdir(parents=True, exist_ok=True)
    # All files are complete before the first is renamed; the model, which the stack leaves last, is renamed last.
    with ExitStack() as stack:
        places = {path.name: stack.enter_context(write_whole(path)) for path in written}
        for name, content in files.items():
            write_torch_checkpoint(places[name], content)
        write_json(places["config.json"], settings)
        shutil.copyfile(vocabulary, places["vocab.json"])
    return written


def speaker_front_end() -> dict[str, np.ndarray]:
    """Pre-emphasis, window and mel filters of the speaker encoder, which the released files store as tensors."""
    root, taps = coqui.SPEAKER_FRONT_END, np.array([[[-SPEAKER_MEL.preemphasis, 1.0]]], np.float32)
    spectrogram = {"spectrogram.window": SPEAKER_MEL.window_values(), "mel_scale.fb": SPEAKER_MEL.filterbank()}
    return {f"{root}.0.filter": taps} | {f"{root}.1.{name}": values for name, values in spectrogram.items()}


def _read_part(folder, part, which):
    """Reads the weights of a part by name, `mel_stats` with those of the GPT if stored there; empty if untrained."""
    store = CheckpointStore(folder / part)
    if not store.steps():
        return {}
    step = chosen_step(store, part, which)
    extra = [MEL_STATS] if (store.path(step) / f"{MEL_STATS}.safetensors").is_file() else []
    arrays, _ = store.read(step, ("model", *extra))
    return arrays["model"] | {name: arrays[name][name] for name in extra}


def _tensors(tensors, weights, folder):
    """Converts our weights to released tensors by name, without copies where the layout allows it."""
    known = {tensor.weight for tensor in tensors}
    if unknown := [name for name in weights if name not in known]:
        raise CheckpointError(f"{folder} has weights that XTTS v2 does not have: {', '.join(unknown[:20])}.")
    released = {}
    for tensor in tensors:
        weight, shape = weights.get(tensor.weight), coqui.our_shape(tensor)
        found = getattr(weight, "shape", "no such weight")
        if found != shape:
            raise CheckpointError(f"{folder}: {tensor.weight} must have the shape {shape}. Received: {found}.")
        released |= zip(tensor.names, coqui.to_coqui(weight, tensor.layout), strict=True)
    return released
