"""A folder of ours -> the files with which the reference loads the same model."""

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
from myxtts.storage.provenance import MEL_STATS, chosen_step, read_config, vocabulary_path
from myxtts.storage.speakers import read_speaker, speaker_names
from myxtts.text.tokenizer import XTTSTokenizer


def export_coqui(folder: str | os.PathLike, output: str | os.PathLike, which: str = "best") -> list[Path]:
    """Writes `model.pth` and, in its folder, `config.json`, `vocab.json`, `mel_stats.pth`, and where the model has them
    `dvae.pth` and `speakers_xtts.pth`.

    Args:
        folder: Of `import_coqui`, or of a training run whose stages are all trained.
        output: The model file to write; neither it nor a file of those names may be there.
        which: `best` or `last` checkpoint of GPT and waveform decoder.

    Returns:
        Paths of the files written.

    Raises:
        CheckpointError: The folder lacks a part, or its model has a shape that the reference cannot have. Nothing has
            been written then.
        OSError: The disk failed; the model file is not there then.
    """
    folder, output = Path(folder), Path(output)
    config, vocabulary = read_config(folder), vocabulary_path(folder)
    tokenizer = XTTSTokenizer.from_file(vocabulary)
    settings = coqui_settings(config, tokenizer.languages)
    parts = {}
    for part in ("gpt", "speaker", "decoder", "dvae"):
        parts |= _read_part(folder, part, which)
    if missing := [part for part in ("gpt", "speaker", "decoder") if part not in parts]:
        raise CheckpointError(
            f"{folder} has no {missing[0]}, and the reference cannot load a model without one. "
            f"Train it: python train_main.py --stage {missing[0]} --checkpoint-dir {folder} --train-data …"
        )
    dvae = parts.get("dvae")
    stats = parts[MEL_STATS] if dvae is None else dvae.pop(MEL_STATS)
    weights = parts["gpt"] | parts["speaker"] | parts["decoder"] | {MEL_STATS: stats}
    counters, dvae_constants = coqui.constant_tensors(config.model)
    model = _tensors(coqui.model_tensors(config.model), weights, folder) | counters | speaker_front_end()
    files = {output.name: {"model": model}, "mel_stats.pth": np.asarray(stats, np.float32)}
    if dvae is not None:
        files["dvae.pth"] = _tensors(coqui.dvae_tensors(config.model), dvae, folder) | dvae_constants
    voices = {name: read_speaker(folder, name) for name in speaker_names(folder)}
    if voices:
        files["speakers_xtts.pth"] = {
            name: {"gpt_cond_latent": latents, "speaker_embedding": vector[..., np.newaxis]}
            for name, (latents, vector) in voices.items()
        }
    written = [output.parent / name for name in (*files, "config.json", "vocab.json")]
    for path in written:
        if os.path.lexists(path):
            raise CheckpointError(f"{path} is already there. Give an --output in another folder.")
    output.parent.mkdir(parents=True, exist_ok=True)
    # All are written before the first gets its name, and the model, which comes first, gets it last.
    with ExitStack() as stack:
        places = {path.name: stack.enter_context(write_whole(path)) for path in written}
        for name, content in files.items():
            write_torch_checkpoint(places[name], content)
        write_json(places["config.json"], settings)
        shutil.copyfile(vocabulary, places["vocab.json"])
    return written


def speaker_front_end() -> dict[str, np.ndarray]:
    """The speaker encoder's pre-emphasis, window and mel filters, which the released files hold as tensors."""
    root, taps = coqui.SPEAKER_FRONT_END, np.array([[[-SPEAKER_MEL.preemphasis, 1.0]]], np.float32)
    spectrogram = {"spectrogram.window": SPEAKER_MEL.window_values(), "mel_scale.fb": SPEAKER_MEL.filterbank()}
    return {f"{root}.0.filter": taps} | {f"{root}.1.{name}": values for name, values in spectrogram.items()}


def _read_part(folder, part, which):
    """`{part: weights by name}` of one checkpoint, with `mel_stats` where it lies with the GPT; empty without one."""
    store = CheckpointStore(Path(folder) / part)
    if not store.steps():
        return {}
    step = chosen_step(store, part, which)
    extra = [MEL_STATS] if (store.path(step) / f"{MEL_STATS}.safetensors").is_file() else []
    arrays, _ = store.read(step, ("model", *extra))
    return {part: arrays["model"], **{name: arrays[name][name] for name in extra}}


def _tensors(tensors, weights, folder):
    """Released tensors by name, as views of our weights where the layout allows it."""
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
