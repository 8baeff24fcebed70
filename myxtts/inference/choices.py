"""Command-line options for speech synthesis; imports no TensorFlow, so that wrong options are reported immediately."""

import argparse

DECODERS: dict[str, str] = {"model": "decoder", "griffin-lim": "dvae"}
"""Values of `--decoder`, each mapped to the part of the model that it requires."""
ENGINES: dict[str, str | None] = {"tensorflow": None, "onnx": "int8", "onnx-float32": "float32"}
"""Values of `--engine`, mapped to the number format of the weights in ONNX Runtime, or to None for TensorFlow."""


def add_choices(group: argparse._ActionsContainer, engines: bool = True) -> None:
    """Adds `--decoder` and `--device` to an argument group, and also `--engine` if `engines` is true."""
    decoder = "vocoder: converts codes to audio (default: the model's waveform decoder if it has one)"
    group.add_argument("--decoder", choices=tuple(DECODERS), help=decoder)
    if engines:
        engine = "inference engine; onnx (8-bit weights) and onnx-float32 use ONNX Runtime on the CPU "
        default = "(default: onnx-float32 if ONNX Runtime is installed and memory suffices, else tensorflow)"
        group.add_argument("--engine", choices=tuple(ENGINES), help=engine + default)
    group.add_argument("--device", help="cpu, gpu or gpu:N (default: the first GPU if there is one)")
