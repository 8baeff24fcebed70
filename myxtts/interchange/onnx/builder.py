"""Writes ONNX graphs node by node: layers that the model's parts share, 8-bit matrices, sessions of ONNX Runtime."""

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from myxtts.config.checks import UserError

OPSET = 20
"""Of the standard operators: the first one with `Gelu`."""
IR_VERSION = 10
FLOAT32, INT8 = "float32", "int8"
WEIGHTS = (FLOAT32, INT8)
"""What matrices can be kept in."""
BLOCK = 32
"""Weights of a column that share a scale: half a byte more for each block, and an error of 0.4 % of its largest."""


def import_package(name: str) -> ModuleType:
    """The package `onnx`, which writes graphs, or `onnxruntime`, which runs them.

    Raises:
        UserError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f'ONNX graphs need the package {name}. Install it: pip install "myxtts[onnx]"') from error


def quantized(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix `(K, N)` in 8 bits, as `MatMulNBits` of ONNX Runtime takes it.

    Returns:
        `(N, K / 32, 32)` uint8, 128 standing for zero, K filled up to whole blocks; and the scale of each block,
        `(N, K / 32)` float32.
    """
    columns = np.pad(kernel.T, ((0, 0), (0, -kernel.shape[0] % BLOCK))).reshape(kernel.shape[1], -1, BLOCK)
    scales = np.abs(columns).max(axis=-1) / 127
    steps = np.rint(columns / np.where(scales == 0, 1, scales)[..., None])
    return (steps + 128).astype(np.uint8), scales.astype(np.float32)


class Builder:
    """A graph in the making. Tensors are names; a method adds nodes and gives the name of what comes out.

    Args:
        name: Of the graph.
        weights: `float32`, or `int8` for the matrices of `linear`.
    """

    def __init__(self, name: str, weights: str = FLOAT32):
        self.name, self.weights = name, weights
        self._onnx = import_package("onnx")
        self._nodes, self._arrays, self._inputs, self._outputs = [], [], [], []
        self._known: dict[tuple, str] = {}
        self._count = 0

    def input(self, name: str, dtype: Any, *shape: int | str) -> str:
        """An input; axes whose length varies have a name for it."""
        self._inputs.append(self._declared(name, dtype, shape))
        return name

    def output(self, x: str, name: str, dtype: Any, *shape: int | str) -> None:
        """Gives out `x` as `name`."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [x], [name]))
        self._outputs.append(self._declared(name, dtype, shape))

    def _declared(self, name, dtype, shape):
        helper = self._onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Adds a node: the name of its output, or a list of them where it has several."""
        names = [self._new(kind) for _ in range(outputs)]
        node = self._onnx.helper.make_node(kind, inputs, names, domain=domain, **attributes)
        self._nodes.append(node)
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """An array that is part of the file; equal small ones are kept once."""
        array = np.ascontiguousarray(value, dtype).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes() if array.size < 64 else self._count)
        if key not in self._known:
            self._known[key] = self._new("weight")
            self._arrays.append(self._onnx.numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def ints(self, *values: int) -> str:
        """A vector of 64-bit whole numbers, as shapes and axes are."""
        return self.constant(np.array(values), np.int64)

    def number(self, value: int) -> str:
        """A 64-bit whole number."""
        return self.constant(np.array(value), np.int64)

    def _new(self, kind):
        self._count += 1
        return f"{kind}_{self._count}"

    def reshape(self, x: str, *shape: int) -> str:
        """`0` keeps the length of an axis, `-1` is what is left."""
        return self.op("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *order: int) -> str:
        """Its axes in another order."""
        return self.op("Transpose", x, perm=order)

    def slice(self, x: str, axis: int, start: str | int, end: str | int) -> str:
        """Part of an axis; ends may be vectors of one number that are known at run time only."""
        start, end = (self.ints(one) if isinstance(one, int) else one for one in (start, end))
        return self.op("Slice", x, start, end, self.ints(axis))

    def length(self, x: str, axis: int) -> str:
        """The length of an axis, a vector of one number."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def concat(self, *parts: str, axis: int) -> str:
        """Parts one after the other."""
        return self.op("Concat", *parts, axis=axis)

    def count(self, length: str) -> str:
        """`0, 1, ...` of a length that `length` gave."""
        return self.op("Range", self.number(0), self.op("Squeeze", length), self.number(1))

    def linear(self, x: str, layer: Any, activation: str | None = None) -> str:
        """A Keras Dense layer, `(..., K)` to `(..., N)`, its matrix in 8 bits where the graph's are."""
        kernel = np.asarray(layer.kernel)
        if self.weights == INT8:
            values, scales = quantized(kernel)
            arrays = self.constant(values, np.uint8), self.constant(scales.ravel())
            # Level 4 rounds the input to 8 bits too, block by block.
            shape = dict(K=kernel.shape[0], N=kernel.shape[1], bits=8, block_size=BLOCK, accuracy_level=4)
            x = self.op("MatMulNBits", x, *arrays, domain="com.microsoft", **shape)
        else:
            x = self.op("MatMul", x, self.constant(kernel))
        if layer.use_bias:
            x = self.op("Add", x, self.constant(layer.bias))
        return x if activation is None else self.op(activation, x)

    def layer_norm(self, x: str, layer: Any, width: int = 0) -> str:
        """A Keras LayerNormalization over the last axis; without a scale its `width` must be given."""
        scale = np.asarray(layer.gamma) if layer.scale else np.ones(width)
        inputs = [x, self.constant(scale)] + ([self.constant(layer.beta)] if layer.center else [])
        return self.op("LayerNormalization", *inputs, axis=-1, epsilon=layer.epsilon)

    def model(self) -> Any:
        """The whole graph, checked, as an `onnx.ModelProto`."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._arrays)
        domains = {node.domain for node in self._nodes}
        opsets = [helper.make_opsetid(domain, 1 if domain else OPSET) for domain in sorted(domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="myxtts")
        self._onnx.checker.check_model(model)
        return model

    def save(self, path: Any) -> None:
        """Writes the file; weights beyond the 2 GB that one file of this format can hold go into one beside it."""
        model = self.model()
        large = model.ByteSize() > 1_900_000_000
        self._onnx.save_model(model, path, save_as_external_data=large, location=f"{self.name}.weights")

    def session(self, threads: int = 0) -> Any:
        """The graph in ONNX Runtime, on the CPU, with so many threads; 0 takes all cores."""
        onnxruntime = import_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        content = self.model().SerializeToString()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
