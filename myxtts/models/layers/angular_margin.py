"""The classifier that speaker vectors are trained against."""

import math

import keras
from keras import ops

from myxtts.models.layers.tensor import Tensor


class AngularMarginClassifier(keras.layers.Layer):
    """Logits of classes by angle, with a margin that the right one has to win by.

    Deng et al., "ArcFace: additive angular margin loss for deep face recognition" (2019), equation 3. Beyond the angle
    where `cos(angle + margin)` would rise again the margin is that of the cosine, `margin sin(margin)`, as in the
    authors' code.

    Args:
        num_classes: Classes, each with a direction of its own.
        width: Length of a vector.
        scale: What cosines are multiplied by.
        margin: Added to the angle to the right class, in radians.

    Call arguments: `vectors`, `(B, width)` of unit length, `classes`, `(B,)` integers, `active`, `(num_classes,)`, 1
    for classes that take part and 0 for those that are no answer. Returns `(B, num_classes)` float32.
    """

    def __init__(self, num_classes: int, width: int, scale: float = 30.0, margin: float = 0.2, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.num_classes, self.width, self.scale, self.margin = num_classes, width, scale, margin

    def build(self, input_shape=None):
        start = keras.initializers.GlorotUniform()
        shape = (self.num_classes, self.width)
        self.directions = self.add_weight(shape=shape, name="directions", autocast=False, initializer=start)

    def call(self, vectors: Tensor, classes: Tensor, active: Tensor) -> Tensor:
        directions = ops.convert_to_tensor(self.directions)
        norm = ops.sqrt(ops.sum(ops.square(directions), axis=-1, keepdims=True))
        cosine = ops.matmul(ops.cast(vectors, "float32"), ops.transpose(directions / ops.maximum(norm, 1e-12)))
        cosine = ops.clip(cosine, -1.0, 1.0)
        # The root has no slope to follow at zero.
        sine = ops.sqrt(ops.maximum(1.0 - ops.square(cosine), 1e-7))
        moved = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        far = cosine - self.margin * math.sin(self.margin)
        target = ops.where(cosine > -math.cos(self.margin), moved, far)
        right = ops.one_hot(classes, self.num_classes, dtype="float32")
        logits = self.scale * (right * target + (1.0 - right) * cosine)
        return ops.where(ops.cast(active, "bool")[None], logits, -1e9)
