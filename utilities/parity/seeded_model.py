"""An `XTTS` with the seeded weights that `make_reference.py` gives the reference."""

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import keras
import numpy as np

from myxtts.interchange.coqui import weights as coqui
from myxtts.models.xtts import XTTS
from utilities.parity.seeded_weights import seeded_tensor


@contextmanager
def without_initial_values():
    """Context manager that initializes weights with zeros, since random values for a large model take many seconds."""
    random = (keras.initializers.RandomNormal, keras.initializers.RandomUniform, keras.initializers.GlorotUniform)
    with ExitStack() as stack:
        for cls in random:
            stack.enter_context(patch.object(cls, "__call__", lambda self, shape, dtype=None: np.zeros(shape, dtype)))
        yield


def seeded_model(config, parts):
    """Creates an `XTTS` with seeded weights; part `dvae` includes the mel scale."""
    with without_initial_values():
        model = XTTS(config, parts=parts)
    variables = {}
    for part in parts:
        variables |= model.part_weights(part)
    for tensor in (*coqui.model_tensors(config), *coqui.dvae_tensors(config)):
        if tensor.weight in variables:
            drawn = [seeded_tensor(name, shape) for name, shape in zip(tensor.names, tensor.shapes)]
            variables.pop(tensor.weight).assign(coqui.to_ours(drawn, tensor.layout))
    assert not variables
    return model
