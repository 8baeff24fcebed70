"""Vector quantizer with a codebook learned by moving averages."""

import keras
from keras import ops

from myxtts.models.layers.tensor import Shape, Tensor


class VectorQuantizer(keras.layers.Layer):
    """Nearest-neighbor codebook with exponential moving averages (van den Oord et al. 2017, appendix A.1).

    A call never changes the codebook: `statistics` of several replicas or accumulated batches are summed, and `update`
    applies the sum once.

    Args:
        decay: Share of the old average that stays at each update.
        epsilon: Laplace smoothing of the cluster sizes.

    Call arguments: `codes`, integers of any shape. Returns their vectors `(..., width)`.
    """

    def __init__(self, num_codes: int, width: int, decay: float = 0.99, epsilon: float = 1e-5, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.num_codes, self.width, self.decay, self.epsilon = num_codes, width, decay, epsilon

    def build(self, input_shape: Shape | None = None):
        def weight(name, shape, start):
            # Float32 even inside a layer of lower precision.
            return self.add_weight(shape=shape, name=name, trainable=False, autocast=False, initializer=start)

        shape = (self.num_codes, self.width)
        self.codebook = weight("codebook", shape, keras.initializers.RandomNormal(0.0, 1.0))
        self.codebook_sum = weight("codebook_sum", shape, "zeros")
        self.cluster_size = weight("cluster_size", shape[:1], "zeros")

    def call(self, codes: Tensor) -> Tensor:
        return ops.take(self.codebook, codes, axis=0)

    def distances(self, vectors: Tensor) -> Tensor:
        """Squared distances to all codes minus the vectors' squared norms: `(..., width)` -> `(..., num_codes)`."""
        vectors = ops.cast(vectors, "float32")
        codebook = ops.convert_to_tensor(self.codebook)
        return ops.sum(ops.square(codebook), axis=-1) - 2.0 * ops.matmul(vectors, ops.transpose(codebook))

    def nearest(self, vectors: Tensor) -> Tensor:
        """Nearest codes: `(..., width)` -> `(...)` int32."""
        return ops.cast(ops.argmin(self.distances(vectors), axis=-1), "int32")

    def statistics(self, vectors: Tensor, codes: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Contribution of a batch to the moving averages: `count` `(num_codes,)` and `sum` `(num_codes, width)`.

        Args:
            vectors: `(B, N, width)`.
            codes: `(B, N)`, their nearest codes.
            mask: `(B, N)`, 0 for padding.
        """
        chosen = ops.one_hot(codes, self.num_codes, dtype="float32") * ops.cast(mask, "float32")[..., None]
        chosen = ops.reshape(chosen, (-1, self.num_codes))
        flat = ops.reshape(ops.cast(vectors, "float32"), (-1, self.width))
        return {"count": ops.sum(chosen, axis=0), "sum": ops.matmul(ops.transpose(chosen), flat)}

    def update(self, count: Tensor, vector_sum: Tensor):
        """Applies summed `statistics` to the moving averages and the codebook."""
        self.cluster_size.assign(self.decay * self.cluster_size + (1.0 - self.decay) * count)
        self.codebook_sum.assign(self.decay * self.codebook_sum + (1.0 - self.decay) * vector_sum)
        total = ops.sum(self.cluster_size)
        smoothed = (self.cluster_size + self.epsilon) / (total + self.num_codes * self.epsilon) * total
        self.codebook.assign(self.codebook_sum / smoothed[:, None])

    def revive(self, candidates: Tensor, threshold: Tensor) -> Tensor:
        """Replaces rarely used codes and returns how many, int32.

        Args:
            candidates: `(num_codes, width)`, a replacement for each code.
            threshold: Codes with a lower average count per step are replaced.
        """
        dead = ops.cast(ops.convert_to_tensor(self.cluster_size) < threshold, "float32")
        keep, candidates = 1.0 - dead, ops.cast(candidates, "float32")
        fresh_size = ops.maximum(ops.cast(threshold, "float32"), 1e-3) * 2.0
        self.codebook.assign(keep[:, None] * self.codebook + dead[:, None] * candidates)
        self.cluster_size.assign(keep * self.cluster_size + dead * fresh_size)
        self.codebook_sum.assign(keep[:, None] * self.codebook_sum + dead[:, None] * candidates * fresh_size)
        return ops.cast(ops.sum(dead), "int32")
