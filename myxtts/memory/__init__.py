"""Memory of training, estimated by arithmetic."""

from collections.abc import Callable

from myxtts.memory.decoder import estimate_decoder
from myxtts.memory.estimates import estimate_dvae, estimate_gpt
from myxtts.memory.speaker import estimate_speaker

ESTIMATES: dict[str, Callable] = {
    "dvae": estimate_dvae,
    "gpt": estimate_gpt,
    "speaker": estimate_speaker,
    "decoder": estimate_decoder,
}
"""Estimate of each stage that has one; called like `estimate_gpt`."""
