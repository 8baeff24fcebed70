"""Options of the commands that speak; imports no TensorFlow, so that a wrong value is refused at once."""

import argparse

DECODERS: dict[str, str] = {"model": "decoder", "griffin-lim": "dvae"}
"""What can make the sound, and the part of the model that it needs."""
ENGINES: dict[str, str | None] = {"tensorflow": None, "onnx": "int8", "onnx-float32": "float32"}
"""What can draw the codes, and the weights that ONNX Runtime takes for it."""


def add_choices(group: argparse._ActionsContainer, engines: bool = True) -> None:
    """Adds `--decoder`, `--engine` and `--device`."""
    decoder = "what makes the sound of the codes (default: the model's waveform decoder, where there is one)"
    group.add_argument("--decoder", choices=tuple(DECODERS), help=decoder)
    if engines:
        drawn = (
            "what draws the codes: onnx is ONNX Runtime with 8-bit weights, onnx-float32 with the model's, on the CPU "
            "(default: onnx-float32 where it is installed and the model is not too large for it, else tensorflow)"
        )
        group.add_argument("--engine", choices=tuple(ENGINES), help=drawn)
    group.add_argument("--device", help="cpu, gpu or gpu:N (default: the first GPU, where there is one)")
