"""Options shared by the commands that speak. Imports no TensorFlow, so that wrong values fail at once."""

import argparse

DECODERS: dict[str, str] = {"model": "decoder", "griffin-lim": "dvae"}
"""Decoders, and the part of the model that each needs."""
ENGINES: dict[str, str | None] = {"tensorflow": None, "onnx": "int8", "onnx-float32": "float32"}
"""Engines that sample codes, and the weights that ONNX Runtime uses for each."""


def add_choices(group: argparse._ActionsContainer, engines: bool = True) -> None:
    """Adds `--decoder`, `--engine` and `--device`."""
    decoder = "what turns codes into audio (default: the model's waveform decoder if it has one)"
    group.add_argument("--decoder", choices=tuple(DECODERS), help=decoder)
    if engines:
        engine = (
            "what samples the codes; onnx and onnx-float32 are ONNX Runtime on the CPU, onnx with 8-bit weights "
            "(default: onnx-float32 if it is installed and the model is not too large for it, else tensorflow)"
        )
        group.add_argument("--engine", choices=tuple(ENGINES), help=engine)
    group.add_argument("--device", help="cpu, gpu or gpu:N (default: the first GPU if there is one)")
