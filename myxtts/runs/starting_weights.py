"""`--init-from`: the weights that a fresh stage starts from, grown to a larger vocabulary."""

from pathlib import Path

import numpy as np

from myxtts.storage.checkpoint import CheckpointError, CheckpointStore

GROWING = ("gpt/text_embedding", "gpt/text_head/kernel", "gpt/text_head/bias")
"""Weights with a row (or a column) per text token."""


def starting_weights(folder: str, stage: str, num_text_tokens: int, seed: int) -> dict[str, np.ndarray]:
    """The best weights of a stage of another run by name, grown to `num_text_tokens`.

    New tokens get vectors drawn like the old ones (their standard deviation), and heads of zero weight with the lowest
    old bias: the logits of every old token stay what they were.

    Raises:
        CheckpointError: The other run knows more tokens than that.
    """
    store = CheckpointStore(Path(folder) / stage)
    best, steps = store.best_step(), store.steps()
    arrays = store.read(best if best in steps else steps[-1], ("model",))[0]["model"]
    if GROWING[0] not in arrays:
        return arrays
    new = num_text_tokens - len(arrays[GROWING[0]])
    if new < 0:
        raise CheckpointError(
            f"The vocabulary has {num_text_tokens} tokens and the {stage} in {folder} knows {num_text_tokens - new}. "
            "Leave --vocabulary out to take the one that belongs to it."
        )
    if new:
        table, kernel, bias = (arrays[name] for name in GROWING)
        drawn = np.random.default_rng(seed).normal(0.0, table.std(), (new, table.shape[1])).astype(table.dtype)
        head = np.zeros((len(kernel), new), kernel.dtype)
        grown = [table, drawn], [kernel, head], [bias, np.full(new, bias.min(), bias.dtype)]
        arrays |= {
            name: np.concatenate(parts, axis=-1 if parts is grown[1] else 0) for name, parts in zip(GROWING, grown)
        }
    return arrays
