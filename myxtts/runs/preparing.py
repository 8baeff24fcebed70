"""Prepares a data set for the GPT stage: encodes its clips with the DVAE and stores the codes in shards."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.files import to_int16
from myxtts.config.checks import UserError, counted, require
from myxtts.config.rates import CODE_STRIDE_SAMPLES
from myxtts.data.batch import noise_batch
from myxtts.data.corpora import load_corpus
from myxtts.data.dataset import clip_limits
from myxtts.data.doctor import ClipLimits, id_hash, inspect_corpus
from myxtts.data.pipeline import SampleCache
from myxtts.data.shards import MAX_SHARD_CLIPS, MAX_SHARDS, merge, read_index, refuse_other_count, write_shard
from myxtts.storage.files import claimed, digest_file
from myxtts.storage.run_folder import read_config
from myxtts.training.resuming import load_foundations
from myxtts.training.stages.gpt import GPTPreparation

LOCK = "shards.lock"


def prepare(
    checkpoint: str | Path,
    output: str | Path,
    shards: int,
    device: str,
    shard: int | None = None,
    train_data: str | None = None,
    limits: tuple[float | None, float | None] = (None, None),
    tell: Callable[[str], None] = print,
) -> None:
    """Encodes missing shards of a data set. Several processes can share the work; the last one writes the manifest.

    The DVAE of the run in `checkpoint` runs on `device`. The run's settings select the clips of `train_data` (default:
    the run's data set). `limits` are the minimum and maximum clip length in seconds (None: as in the run). `shards` is
    the total number of shards. If `shard` is given, encodes only the shard with this index. `tell` reports progress.
    Raises `UserError` if the run has no trained DVAE, the data set cannot be read, or `output` has another shard count.
    """
    require(1 <= shards <= MAX_SHARDS, "--shards", f"1 to {MAX_SHARDS}", shards)
    require(shard is None or 0 <= shard < shards, "--shard", f"0 to {shards - 1}, below --shards", shard)
    output, config = Path(output), read_config(Path(checkpoint))
    limits = ClipLimits(*(own if given is None else given for given, own in zip(limits, clip_limits(config))))
    require(0 < limits.min_seconds < limits.max_seconds, "--min-seconds", "above 0 and below --max-seconds", limits[0])
    data = replace(config.data, train_data=train_data or config.data.train_data, prepared=None, val_prepared=None)
    if data.train_data is None:
        raise UserError("--train-data must name the data set, because the run in --checkpoint does not name one.")
    config = replace(config, data=data, training=replace(config.training, checkpoint_dir=str(checkpoint)))
    output.mkdir(parents=True, exist_ok=True)
    refuse_other_count(output, shards)
    foundations, lineage = load_foundations(config, "gpt", device)
    model, dvae = foundations["dvae"], lineage["dvae"]
    preparation = GPTPreparation(model, device, False, 0, model.dvae.reach)
    corpus = load_corpus(data.train_data, data.language, data.format, data.audio_roots)
    clips = {number: [] for number in (range(shards) if shard is None else [shard])}
    for utterance in corpus.utterances:
        if (number := id_hash(utterance.id) % shards) in clips:
            clips[number].append(utterance)
    most = max(map(len, clips.values()))
    require(most <= MAX_SHARD_CLIPS, "--shards", f"large enough for {MAX_SHARD_CLIPS} clips per shard", shards)
    for number in _claimed([*clips], output / LOCK, tell):
        paths = {one.id: Path(one.wav_path) for one in clips[number]}
        audio = {name: digest_file(path) if path.is_file() else "" for name, path in paths.items()}
        # Changes of text, language or limits matter only for clips that were left out; encoded clips stay valid.
        rules = {one.id: f"{audio[one.id]} {one.text} {one.language} {limits}" for one in clips[number]}
        sources = lambda left_out: audio | {name: rules.get(name) for name, _ in left_out}
        index = read_index(output, number, shards, dvae)
        if index is not None and index.get("audio") == sources(index["left_out"]):
            continue
        part = replace(corpus, utterances=tuple(clips[number]), rejections=())
        part = inspect_corpus(part, limits, workers=data.num_workers)
        left_out = [(clip.id, f"{clip.reason}: {clip.detail}") for clip in part.rejections]
        encoded = _encoded(part.utterances, preparation)
        count = write_shard(output, number, shards, dvae, encoded, left_out, sources(left_out))
        tell(f"Shard {number} of {shards}: {counted(count, 'clip')}, {len(left_out)} left out")
    if missing := merge(output, shards, dvae):
        tell(f"{len(missing)} of {shards} shards are missing, the first is {missing[0]}.")
    else:
        tell(f"All {shards} shards are complete. Train with --prepared {output}")


def _claimed(numbers, lock, tell):
    """Locks each shard in `numbers` and yields its number. Shards that another process has locked come last."""
    turns = [(number, False) for number in numbers]
    for number, waits in turns:
        with claimed(lock, number, waits) as is_ours:
            if is_ours:
                yield number
            else:
                tell(f"Shard {number}: another process is encoding it")
                turns += [(number, True)] if not waits else []


def _encoded(utterances, preparation) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields `(id, codes, samples)` of each clip: the DVAE codes `(C,)` for the GPT stage, and int16 audio `(S,)`."""
    cache = SampleCache(0)
    for utterance in utterances:
        samples, _ = cache.load(str(utterance.wav_path))
        # Padded to a multiple of 32 codes, so that TensorFlow traces few shapes.
        padded = np.pad(samples, (0, -len(samples) % (32 * CODE_STRIDE_SAMPLES)))[None]
        wave = noise_batch(1, 0, 1, CODE_STRIDE_SAMPLES, 1)
        wave = wave._replace(wav=padded, wav_lengths=np.array([len(samples)], np.int32))
        codes = preparation(tf.nest.map_structure(tf.constant, wave)).codes.numpy()
        yield utterance.id, codes[0, : -(-len(samples) // CODE_STRIDE_SAMPLES)], to_int16(samples)
