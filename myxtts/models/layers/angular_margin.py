"""ArcFace classifier, against which the speaker encoder is trained."""

import math

import keras
from keras import ops

from myxtts.models.layers.tensor import Tensor


class AngularMarginClassifier(keras.layers.Layer):
    """Scaled cosine logits with an additive angular margin on the target class.

    Deng et al., "ArcFace: additive angular margin loss for deep face recognition" (2019), equation 3. Where
    `cos(angle + margin)` would rise again, `margin sin(margin)` is subtracted instead, as in the authors' code.

    Args:
        scale: Factor of the cosines.
        margin: Added to the angle to the target class, in radians.

    Call arguments: unit `vectors` `(B, width)`; target `classes` `(B,)`; `active` `(num_classes,)`, 0 for classes to
    exclude. Returns logits `(B, num_classes)` float32.
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
        # The gradient of the root is infinite at zero.
        sine = ops.sqrt(ops.maximum(1.0 - ops.square(cosine), 1e-7))
        moved = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        far = cosine - self.margin * math.sin(self.margin)
        target = ops.where(cosine > -math.cos(self.margin), moved, far)
        right = ops.one_hot(classes, self.num_classes, dtype="float32")
        logits = self.scale * (right * target + (1.0 - right) * cosine)
        return ops.where(ops.cast(active, "bool")[None], logits, -1e9)
