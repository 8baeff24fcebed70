"""The network of an aligner as an ONNX graph."""

import numpy as np

from myxtts.audio.mel import MelSpec
from myxtts.interchange.onnx.builder import Builder
from myxtts.interchange.onnx.voice import log_mel
from myxtts.models.letter_network import LetterNetwork


def build_letters(network: LetterNetwork, spec: MelSpec, bias: np.ndarray) -> Builder:
    """`samples` `(B, S)` to `scores` `(B, T, V)`, `bias` `(V,)` added to them."""
    graph = Builder("letters")
    mel = log_mel(graph, spec, graph.input("samples", np.float32, "recordings", "samples"))
    x = ""
    for convolution, norm in zip(network.convolutions, network.norms):
        update = _convolved(graph, convolution, x or mel)
        update = graph.op("Relu", graph.layer_norm(update, norm))
        x = graph.op("Add", x, update) if x else update
    scores = graph.op("Add", graph.linear(x, network.head), graph.constant(bias))
    graph.output(scores, "scores", np.float32, "recordings", "frames", len(bias))
    return graph


def _convolved(graph, layer, x):
    """`(B, T, C)` to `(B, T', C')`."""
    kernel = graph.constant(np.transpose(np.asarray(layer.kernel), (2, 1, 0)))
    shape = dict(strides=[layer.stride], pads=[layer.padding] * 2, dilations=[layer.dilation])
    y = graph.op("Conv", graph.transpose(x, 0, 2, 1), kernel, graph.constant(layer.bias), **shape)
    return graph.transpose(y, 0, 2, 1)
