"""Which clips an epoch has had, by identity: a run whose clips or batches have changed goes on with the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from myxtts.data.buckets import BatchOrder, EpochStart
from myxtts.data.pipeline import Clip
from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.files import digest_bytes, new_hasher

CLIPS = "clips"
"""Tensor file of a checkpoint that holds `ClipRecord.arrays`."""
_IDENTITY_BYTES = 8
_ARRAYS = {"identity": "uint64", "heard_at_start": "uint8", "heard": "uint8"}


@dataclass(frozen=True, eq=False)
class ClipRecord:
    """What a checkpoint keeps of the order of clips."""

    identities: np.ndarray
    """`(N,)` uint64, a digest of each clip's id."""
    digest: str
    """Of all that the order follows from but its start: where it is the same, so are the batches."""
    start: EpochStart
    """Where the order began."""
    cut: EpochStart
    """Where it was at the checkpoint; another order goes on from there."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors of the file `CLIPS`."""
        marks = np.zeros((2, len(self.identities)), np.uint8)
        for row, place in zip(marks, (self.start, self.cut)):
            row[place.heard] = 1
        return dict(zip(_ARRAYS, (self.identities, *marks)))

    def state(self) -> dict:
        """What goes into the checkpoint's state, as JSON values."""
        numbers = ([place.position, place.epoch, place.offset] for place in (self.start, self.cut))
        return {"digest": self.digest, **dict(zip(("start", "cut"), numbers))}

    @classmethod
    def restore(cls, arrays: dict[str, np.ndarray], state: dict, position: int, where: str) -> "ClipRecord":
        """The record that gave `arrays` and `state`, at a position.

        Raises:
            CheckpointError: They are of none, or of another position.
        """
        dtypes = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
        lengths = {array.size for array in arrays.values()}
        numbers = [state.get(name) for name in ("start", "cut")]
        counts = [isinstance(place, list) and len(place) == 3 and all(map(_is_count, place)) for place in numbers]
        is_whole = dtypes == {name: (dtype, 1) for name, dtype in _ARRAYS.items()} and len(lengths) == 1 and all(counts)
        if not is_whole or not numbers[0][0] <= numbers[1][0] == position:
            raise CheckpointError(f"{where} is damaged: it does not say which clips the run has had.")
        identities, *marks = (arrays[name] for name in _ARRAYS)
        places = (EpochStart(*place, np.flatnonzero(row)) for place, row in zip(numbers, marks))
        return cls(identities, state.get("digest"), *places)


def _is_count(value):
    return type(value) is int and 0 <= value < 2**62


class OrderedClips:
    """The clips of a run in the order of a stage's batches, whose indices count in `clips`."""

    def __init__(self, clips: Sequence[Clip], order: BatchOrder):
        digests = (digest_bytes(clip.id.encode("utf-8", "surrogatepass"), _IDENTITY_BYTES) for clip in clips)
        self.identities = np.array([int(digest, 16) for digest in digests], np.uint64)
        self.order = order
        hasher = new_hasher()
        hasher.update(self.identities.tobytes() + order.digest().encode())
        self._digest = hasher.hexdigest()

    def record(self, position: int) -> ClipRecord:
        """What a checkpoint at `position` keeps."""
        return ClipRecord(self.identities, self._digest, self.order.start_at(position), self.order.cut(position))

    def continuing(self, record: ClipRecord) -> tuple[EpochStart, str | None]:
        """Where the order has to begin to go on where a record was made, and what to tell if it is another order."""
        if record.digest == self._digest:
            return record.start, None
        heard = np.flatnonzero(np.isin(self.identities, record.identities[record.cut.heard]))
        start = EpochStart(record.cut.position, record.cut.epoch, record.cut.offset, heard)
        new, gone = (
            int((~np.isin(one, other)).sum())
            for one, other in ((self.identities, record.identities), (record.identities, self.identities))
        )
        if new or gone:
            changed = f"The training set has changed since the checkpoint: {new} clips are new, and {gone} are gone."
        else:
            changed = "Recordings, transcripts or batches have changed since the checkpoint, and with them the order."
        if new and gone == len(record.identities):
            changed += " None is left: to begin from this model with others, name it as --init-from elsewhere."
        left, count = len(self.identities) - len(heard), len(self.identities)
        return start, f"{changed} The epoch goes on with the {left} of {count} clips that it has not had."
