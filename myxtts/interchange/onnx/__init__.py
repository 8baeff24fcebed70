"""The model as ONNX graphs, and the runtime that runs them."""
