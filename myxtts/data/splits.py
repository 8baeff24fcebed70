"""Dividing a corpus into training and validation, and finding clips that are in both."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from myxtts.data.corpora import Utterance
from myxtts.storage.files import digest_bytes, digest_file


@dataclass(frozen=True)
class Leak:
    """A validation clip that is also trained on. `reason`: "same id", "same file" or "same content"."""

    train_id: str
    validation_id: str
    reason: str

    def __str__(self):
        return f"validation clip {self.validation_id} is also trained on as {self.train_id} ({self.reason})"


def split_by_hash(utterances: Sequence, validation_share: float) -> tuple[tuple, tuple]:
    """Divides utterances, or anything else with an `id`, by a hash of it into `(train, validation)`, in their order.

    So there is no seed, and a clip keeps its side when others come or go. Only where that would leave a side empty does
    one clip, the one nearest to the border, change sides. With a single utterance, validation is empty.

    `validation_share` is the share of clips to expect in validation, between 0 and 1.
    """
    if not 0 < validation_share < 1:
        raise ValueError(f"validation_share must be between 0 and 1, both excluded. Received: {validation_share}.")
    # Numbers in [0, 1) that depend on nothing but the ids: Python's own `hash` changes with every process.
    digests = [digest_bytes(utterance.id.encode("utf-8", "surrogatepass"), 8) for utterance in utterances]
    positions = [int(digest, 16) / 2**64 for digest in digests]
    ranks = sorted(range(len(utterances)), key=positions.__getitem__)
    expected = sum(position < validation_share for position in positions)
    chosen = set(ranks[: min(max(expected, 1), len(utterances) - 1)])
    train = tuple(utterance for index, utterance in enumerate(utterances) if index not in chosen)
    return train, tuple(utterance for index, utterance in enumerate(utterances) if index in chosen)


def find_leakage(train: Sequence[Utterance], validation: Sequence[Utterance]) -> tuple[Leak, ...]:
    """Finds validation clips whose id, file or content is also in training: at most one `Leak` for each, in order.

    Content is compared by hash, and only files of equal size are read.
    """
    ids = {utterance.id for utterance in train}
    by_path = {os.path.realpath(utterance.wav_path): utterance.id for utterance in train}
    by_size = defaultdict(list)
    for utterance in train:
        by_size[os.path.getsize(utterance.wav_path)].append(utterance)
    digest = cache(digest_file)
    leaks = []
    for utterance in validation:
        path = utterance.wav_path
        alike = (one.id for one in by_size[os.path.getsize(path)] if digest(one.wav_path) == digest(path))
        if utterance.id in ids:
            leaks.append(Leak(utterance.id, utterance.id, "same id"))
        elif (train_id := by_path.get(os.path.realpath(path))) is not None:
            leaks.append(Leak(train_id, utterance.id, "same file"))
        elif (train_id := next(alike, None)) is not None:
            leaks.append(Leak(train_id, utterance.id, "same content"))
    return tuple(leaks)
