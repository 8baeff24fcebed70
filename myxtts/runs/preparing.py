"""Data preparation apart from training: clips of a data set, as the GPT stage reads them, into shards."""

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
from myxtts.data.doctor import inspect_corpus
from myxtts.data.pipeline import SampleCache
from myxtts.data.shards import MAX_SHARD_CLIPS, MAX_SHARDS, merge, read_index, refuse_other_count, shard_of, write_shard
from myxtts.storage.files import digest_file
from myxtts.storage.locks import claimed
from myxtts.storage.provenance import read_config
from myxtts.training.resuming.foundations import load_foundations
from myxtts.training.stages.gpt import GPTPreparation

LOCK = "shards.lock"
_WIDTH_CODES = 32
"""Clips are encoded one by one in widths of a multiple of this: few widths, and no clip's codes depend on another."""


def prepare(
    checkpoint: str | Path,
    output: str | Path,
    shards: int,
    device: str,
    shard: int | None = None,
    train_data: str | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Makes the shards that are not there yet, or the one asked for, and the manifest once all of them are.

    Args:
        checkpoint: Folder of a run whose DVAE is trained; its settings say which clips can be used.
        output: Folder of the shards; several processes may write to it at the same time. A shard that another makes
            is left to it, and waited for in the end.
        device: TensorFlow's name of the one that encodes.
        shard: Which one, from 0; None makes all, one after the other.
        train_data: None takes the run's.

    Raises:
        UserError: The run has no trained DVAE, the data set cannot be read, or `output` holds other shards.
    """
    require(1 <= shards <= MAX_SHARDS, "--shards", f"1 to {MAX_SHARDS}", shards)
    require(shard is None or 0 <= shard < shards, "--shard", f"0 to {shards - 1}, below --shards", shard)
    output, config = Path(output), _config(Path(checkpoint), train_data)
    data = config.data
    output.mkdir(parents=True, exist_ok=True)
    refuse_other_count(output, shards)
    foundations, lineage = load_foundations(config, "gpt", device)
    dvae = lineage["dvae"]
    preparation = GPTPreparation(foundations["dvae"], device, False, 0, foundations["dvae"].dvae.reach)
    corpus = load_corpus(data.train_data, data.language, data.format, data.audio_roots)
    clips = {number: [] for number in (range(shards) if shard is None else [shard])}
    for utterance in corpus.utterances:
        if (number := shard_of(utterance.id, shards)) in clips:
            clips[number].append(utterance)
    most = max(map(len, clips.values()))
    require(most <= MAX_SHARD_CLIPS, "--shards", f"so many that none has more than {MAX_SHARD_CLIPS} clips", shards)

    def is_made(number):
        """Whether the shard was made from the audio that the data set has for it today."""
        index = read_index(output, number, shards, dvae)
        return index is not None and index.get("audio") == _digests(clips[number])

    def make(number):
        part = replace(corpus, utterances=tuple(clips[number]), rejections=())
        inspection = inspect_corpus(part, clip_limits(config), workers=data.num_workers)
        left_out = [(clip.id, f"{clip.reason}: {clip.detail}") for clip in inspection.rejections]
        audio = _digests(clips[number])
        count = write_shard(output, number, shards, dvae, _encoded(inspection.accepted, preparation), left_out, audio)
        tell(f"Shard {number} of {shards}: {counted(count, 'clip')}, {len(left_out)} left out")

    waiting = [number for number in clips if not is_made(number)]
    if not waiting:
        tell(f"Nothing to do: {'all shards are' if shard is None else f'shard {shard} is'} made already.")
    _make_alone(waiting, make, is_made, output / LOCK, tell)
    if missing := merge(output, shards, dvae):
        tell(f"{len(missing)} of {shards} shards are still to be made, first {missing[0]}.")
    else:
        tell(f"All {shards} shards are there. Train with --prepared {output}")


def _digests(utterances):
    """Digest of each clip's audio file by id; "" for a file that cannot be read."""
    found = {}
    for utterance in utterances:
        try:
            found[utterance.id] = digest_file(utterance.wav_path)
        except OSError:
            found[utterance.id] = ""
    return found


def _config(checkpoint, train_data):
    """The run's, of other recordings where they are named."""
    config = read_config(checkpoint)
    data = replace(config.data, train_data=train_data or config.data.train_data, prepared=None)
    if data.train_data is None:
        raise UserError("--train-data must name the data set, as the run in --checkpoint has none that is kept.")
    return replace(config, data=data, training=replace(config.training, checkpoint_dir=str(checkpoint)))


def _make_alone(numbers, make, is_made, lock, tell):
    """Calls `make` for each shard that no other process makes meanwhile; waits in the end for those that one does."""
    for waits in (False, True):
        of_others = []
        for number in numbers:
            with claimed(lock, number, waits) as is_ours:
                if not is_ours:
                    tell(f"Shard {number}: another process makes it")
                    of_others.append(number)
                elif not is_made(number):
                    make(number)
        numbers = of_others


def _encoded(utterances, preparation) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Id, codes and samples of each clip, as the GPT stage would compute them."""
    cache = SampleCache(0)
    for utterance in utterances:
        samples, _ = cache.load(str(utterance.wav_path))
        width = -(-len(samples) // (_WIDTH_CODES * CODE_STRIDE_SAMPLES)) * _WIDTH_CODES * CODE_STRIDE_SAMPLES
        padded = np.pad(samples, (0, width - len(samples)))[None]
        wave = noise_batch(1, 0, 1, CODE_STRIDE_SAMPLES, 1)
        wave = wave._replace(wav=padded, wav_lengths=np.array([len(samples)], np.int32))
        codes = preparation(tf.nest.map_structure(tf.constant, wave)).codes.numpy()
        yield utterance.id, codes[0, : -(-len(samples) // CODE_STRIDE_SAMPLES)], to_int16(samples)
