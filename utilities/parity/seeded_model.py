"""Creates an `XTTS` with the same seeded weights as the reference model in `make_reference.py`."""

from myxtts.interchange.coqui import weights as coqui
from myxtts.models.layers import blank_weights
from myxtts.models.xtts import XTTS
from utilities.parity.seeded_weights import seeded_tensor


def seeded_model(config, parts):
    """Creates an `XTTS` of only the given parts, with seeded weights. The part `dvae` includes `mel_stats`."""
    with blank_weights():
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
