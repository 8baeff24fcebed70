"""ONNX Runtime, where it is installed."""

from typing import Any

from myxtts.interchange.onnx.builder import Builder, import_package


def open_session(graph: Builder, threads: int = 0) -> Any:
    """A graph in ONNX Runtime, on the CPU, with so many threads; 0 takes all cores."""
    onnxruntime = import_package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    content = graph.model().SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
