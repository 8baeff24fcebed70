// Stands in for ONNX Runtime.
export const env = { wasm: {} };
export class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims });
  }
}
