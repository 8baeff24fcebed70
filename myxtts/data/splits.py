"""Splitting a corpus into training and validation, and finding clips that are in both."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from myxtts.config.checks import require
from myxtts.data.corpora import Utterance
from myxtts.storage.files import digest_bytes, digest_file


@dataclass(frozen=True)
class Leak:
    """A validation clip that is also a training clip. `reason` is "same id" or "same content"."""

    train_id: str
    validation_id: str
    reason: str

    def __str__(self):
        return f"validation clip {self.validation_id} is also trained on as {self.train_id} ({self.reason})"


def split_by_hash(utterances: Sequence, validation_share: float) -> tuple[tuple, tuple]:
    """Splits utterances, or other objects with an `id`, by a hash of the id into `(train, validation)`, in order.

    There is no seed: a clip stays on its side when others are added or removed, unless that side would be empty. A
    single utterance is a training clip.

    Args:
        validation_share: Expected share of validation clips, between 0 and 1.
    """
    require(0 < validation_share < 1, "validation_share", "between 0 and 1, both excluded", validation_share)
    # Uniform in [0, 1). Python's own `hash` differs between processes.
    digests = [digest_bytes(utterance.id.encode("utf-8", "surrogatepass"), 8) for utterance in utterances]
    positions = [int(digest, 16) / 2**64 for digest in digests]
    ranks = sorted(range(len(utterances)), key=positions.__getitem__)
    expected = sum(position < validation_share for position in positions)
    chosen = set(ranks[: min(max(expected, 1), len(utterances) - 1)])
    train = tuple(utterance for index, utterance in enumerate(utterances) if index not in chosen)
    return train, tuple(utterance for index, utterance in enumerate(utterances) if index in chosen)


def find_leakage(train: Sequence[Utterance], validation: Sequence[Utterance]) -> tuple[Leak, ...]:
    """Finds validation clips whose id or content is also in training; returns at most one `Leak` for each.

    Only files of equal size are read, to compare their digests.
    """
    ids, by_size = {utterance.id for utterance in train}, defaultdict(list)
    for utterance in train:
        by_size[os.path.getsize(utterance.wav_path)].append(utterance)
    digest, leaks = cache(digest_file), []
    for utterance in validation:
        path = utterance.wav_path
        alike = (one.id for one in by_size[os.path.getsize(path)] if digest(one.wav_path) == digest(path))
        if utterance.id in ids:
            leaks.append(Leak(utterance.id, utterance.id, "same id"))
        elif (train_id := next(alike, None)) is not None:
            leaks.append(Leak(train_id, utterance.id, "same content"))
    return tuple(leaks)
