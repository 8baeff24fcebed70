"""Builds ONNX graphs node by node, from Keras layers and NumPy-like expressions."""

import importlib
import os
from collections.abc import Collection
from functools import partialmethod
from types import ModuleType
from typing import Any

import numpy as np

from myxtts.config.checks import needing
from myxtts.models.layers import shared_array

FLOAT32, INT8 = "float32", "int8"
"""Number formats for the matrices of linear layers."""
BLOCK = 32
"""Number of int8 weights that share a scale. Rounding errors are at most 0.4 % of the largest of these weights."""


def import_package(name: str) -> ModuleType:
    """Imports `onnx` (writes graphs) or `onnxruntime` (runs graphs). Raises `UserError` if the package is missing."""
    with needing(f'ONNX graphs need the package {name}. Install it: pip install "myxtts[onnx]"'):
        return importlib.import_module(name)


class Tensor:
    """Output of a graph node. Methods and operators add new nodes. In `x + y`, `y` can be a number or an array too."""

    def __init__(self, graph: "Builder", name: str):
        self.graph, self.name = graph, name

    def _combine(self, kind, other):
        return self.graph.op(kind, self, other)

    __add__, __sub__ = partialmethod(_combine, "Add"), partialmethod(_combine, "Sub")
    __mul__, __truediv__ = partialmethod(_combine, "Mul"), partialmethod(_combine, "Div")
    __matmul__ = partialmethod(_combine, "MatMul")
    __lt__, __le__ = partialmethod(_combine, "Less"), partialmethod(_combine, "LessOrEqual")
    __and__, __or__ = partialmethod(_combine, "And"), partialmethod(_combine, "Or")

    def cast(self, dtype: Any) -> "Tensor":
        """Converts the values to `dtype`, a NumPy dtype."""
        return self.graph.op("Cast", self, to=self.graph.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, *shape: int) -> "Tensor":
        """Changes the shape. In `shape`, 0 keeps the length of the axis, and -1 infers the length."""
        return self.graph.op("Reshape", self, shape)

    def transpose(self, *order: int) -> "Tensor":
        """Permutes the axes."""
        return self.graph.op("Transpose", self, perm=order)

    def unsqueeze(self, *axes: int) -> "Tensor":
        """Inserts axes of length 1."""
        return self.graph.op("Unsqueeze", self, axes)

    def slice(self, axis: int, start: Any, end: Any) -> "Tensor":
        """Returns `start:end` of an axis; both ends are integers or tensors `(1,)`."""
        start, end = ([one] if isinstance(one, int) else one for one in (start, end))
        return self.graph.op("Slice", self, start, end, [axis])

    def split(self, parts: int) -> list["Tensor"]:
        """Splits the last axis into equal parts."""
        return self.graph.op("Split", self, outputs=parts, axis=-1, num_outputs=parts)

    def length(self, axis: int) -> "Tensor":
        """Returns the length of an axis, `(1,)` int64."""
        return self.graph.op("Shape", self, start=axis, end=axis + 1)


class Builder:
    """Builds a graph, node by node. `weights` is the format in which `linear` stores matrices: `FLOAT32` or `INT8`."""

    def __init__(self, name: str, weights: str = FLOAT32):
        self.name, self.weights, self.onnx = name, weights, import_package("onnx")
        self._nodes, self._arrays, self._inputs, self._outputs, self._count = [], {}, [], [], 0

    def input(self, name: str, dtype: Any, *shape: int | str) -> Tensor:
        """Declares an input of the graph. In `shape`, a name such as `rows` stands for a dynamic length."""
        self._inputs.append(self._declared(name, dtype, shape))
        return Tensor(self, name)

    def output(self, x: Tensor, name: str, dtype: Any, *shape: int | str) -> None:
        """Declares `x` as the output `name`."""
        self._nodes.append(self.onnx.helper.make_node("Identity", [x.name], [name]))
        self._outputs.append(self._declared(name, dtype, shape))

    def _declared(self, name, dtype, shape):
        helper = self.onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def op(self, kind: str, *inputs: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Adds a node of operator `kind`; returns its output, or a list if `outputs` > 1. Inputs may be arrays."""
        inputs = [one if isinstance(one, Tensor) else self.constant(one) for one in inputs]
        found = [self._new(kind) for _ in range(outputs)]
        names = [one.name for one in inputs], [one.name for one in found]
        self._nodes.append(self.onnx.helper.make_node(kind, *names, domain=domain, **attributes))
        return found[0] if outputs == 1 else found

    def constant(self, value: Any, dtype: Any = None) -> Tensor:
        """Stores an array in the graph and returns its tensor. If `dtype` is None, floats are stored as float32."""
        array, found = shared_array(value), self._new("weight")
        array = array.astype(dtype or (np.float32 if array.dtype.kind == "f" else array.dtype), order="C", copy=False)
        self._arrays[found.name] = array
        return found

    def _new(self, kind):
        self._count += 1
        return Tensor(self, f"{kind}_{self._count}")

    def count(self, length: Any) -> Tensor:
        """Returns the integers from 0 to `length` - 1, where `length` is a tensor `(1,)` int64."""
        return self.op("Range", 0, self.op("Squeeze", length), 1)

    def linear(self, x: Tensor, layer: Any, activation: str | None = None) -> Tensor:
        """Applies a Keras `Dense` layer, `(..., K)` to `(..., N)`, and then the ONNX operator `activation`, if any."""
        kernel = shared_array(layer.kernel)
        num_rows, num_columns = kernel.shape
        if self.weights == INT8:
            # As `MatMulNBits` needs them: values `(N, ceil(K / 32), 32)`, 128 for zero; scales `(N, ceil(K / 32))`.
            columns = np.pad(kernel.T, ((0, 0), (0, -num_rows % BLOCK))).reshape(num_columns, -1, BLOCK)
            scales = np.abs(columns).max(axis=-1) / 127
            values = (np.rint(columns / np.where(scales == 0, 1, scales)[..., None]) + 128).astype(np.uint8)
            # Level 4 rounds the input to 8 bits too, block by block.
            shape = dict(K=num_rows, N=num_columns, bits=8, block_size=BLOCK, accuracy_level=4)
            x = self.op("MatMulNBits", x, values, scales.ravel(), domain="com.microsoft", **shape)
        else:
            x = x @ kernel
        x = x + layer.bias if layer.use_bias else x
        return x if activation is None else self.op(activation, x)

    def conv(self, x: Tensor, layer: Any) -> Tensor:
        """Applies a convolution layer of `models.layers` to `x` `(B, C, ...)`."""
        kernel = np.moveaxis(np.asarray(layer.kernel), (-1, -2), (0, 1))
        axes, bias = kernel.ndim - 2, [layer.bias] if layer.use_bias else []
        shape = dict(strides=[layer.stride] * axes, dilations=[layer.dilation] * axes)
        return self.op("Conv", x, kernel, *bias, pads=[layer.padding] * 2 * axes, **shape)

    def layer_norm(self, x: Tensor, layer: Any, width: int = 0) -> Tensor:
        """Applies a Keras LayerNormalization to the last axis. `width`, its size, may be 0 if `layer` has a scale."""
        scale = layer.gamma if layer.scale else np.ones(width)
        bias = [layer.beta] if layer.center else []
        return self.op("LayerNormalization", x, scale, *bias, axis=-1, epsilon=layer.epsilon)

    def model(self, outside: Collection[str] = ()) -> Any:
        """Returns the graph as an `onnx.ModelProto`, without the values of the arrays that are named in `outside`."""
        helper, stored = self.onnx.helper, []
        for name, array in self._arrays.items():
            if name in outside:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                stored.append(self.onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=1))
                stored[-1].external_data.add(key="location", value="memory")
            else:
                stored.append(self.onnx.numpy_helper.from_array(array, name))
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, stored)
        domains = {node.domain for node in self._nodes}
        # Version 20 of the standard operators is the first one with `Gelu`.
        opsets = [helper.make_opsetid(domain, 1 if domain else 20) for domain in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="myxtts")

    def save(self, path: Any) -> None:
        """Writes the graph to a file. For a graph above 1.9 GB, weights go to a second file in the same folder."""
        large = sum(array.nbytes for array in self._arrays.values()) > 1_900_000_000
        self.onnx.save_model(self.model(), path, save_as_external_data=large, location=f"{self.name}.weights")
        self.onnx.checker.check_model(os.fspath(path))  # by path, because messages above 2 GiB cannot be checked

    def session(self, threads: int = 0) -> Any:
        """Loads the graph into ONNX Runtime and returns the session. If `threads` is 0, the session uses all cores."""
        onnxruntime = import_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Arrays of 4 kB and more stay out of the graph, so that optimization skips them.
        large = {name: array for name, array in self._arrays.items() if array.nbytes >= 4096}
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in large.values()]
        options.add_external_initializers([*large], values)
        content = self.model(large).SerializeToString()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
