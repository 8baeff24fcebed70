"""Options shared by the commands that speak. Imports no TensorFlow, so that invalid values are reported at once."""

import argparse

DECODERS: dict[str, str] = {"model": "decoder", "griffin-lim": "dvae"}
"""Values of `--decoder`, each with the part of the model that it needs."""
ENGINES: dict[str, str | None] = {"tensorflow": None, "onnx": "int8", "onnx-float32": "float32"}
"""Values of `--engine`, each with the weights that ONNX Runtime uses; None for TensorFlow."""


def add_choices(group: argparse._ActionsContainer, engines: bool = True) -> None:
    """Adds the options `--decoder` and `--device`, and if `engines` is true also `--engine`."""
    decoder = "vocoder: converts codes to audio (default: the model's waveform decoder if it has one)"
    group.add_argument("--decoder", choices=tuple(DECODERS), help=decoder)
    if engines:
        engine = (
            "inference engine; onnx (8-bit weights) and onnx-float32 use ONNX Runtime on the CPU "
            "(default: onnx-float32 if ONNX Runtime is installed and memory suffices, else tensorflow)"
        )
        group.add_argument("--engine", choices=tuple(ENGINES), help=engine)
    group.add_argument("--device", help="cpu, gpu or gpu:N (default: the first GPU if there is one)")
