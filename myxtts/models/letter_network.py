"""Which letter is spoken when: the small network of an aligner that learns from a data set of one's own."""

import keras
from keras import ops

from myxtts.models.layers.convolution import Conv1D
from myxtts.models.layers.linear import built, torch_linear
from myxtts.models.layers.tensor import Tensor

DILATIONS = (1, 2, 4)
"""Of the blocks: each frame follows from half a second around it, which is too little to learn sentences by heart."""
TAPS = 5
FRAMES_PER_SCORE = 2
DROPOUT = 0.25


class LetterNetwork(keras.Model):
    """Convolutions over a log-mel, `(B, T, num_bands)`, to scores of letters, `(B, ceil(T / 2), num_letters)`.

    Args:
        num_bands: Of the log-mel.
        num_letters: With the blank.
        width: Channels between.
        seed: Of dropout.

    Call arguments: `mel`; `training`.
    """

    def __init__(self, num_bands: int, num_letters: int, width: int = 128, seed: int = 0):
        super().__init__()
        shape = (None, None, width)
        stem = Conv1D(width, TAPS, FRAMES_PER_SCORE, padding=TAPS // 2, name="stem")
        self.convolutions = [built(stem, (None, None, num_bands))]
        for index, dilation in enumerate(DILATIONS):
            self.convolutions.append(built(Conv1D(width, TAPS, dilation=dilation, name=f"block_{index}"), shape))
        self.norms = [built(keras.layers.LayerNormalization(epsilon=1e-5), shape) for _ in self.convolutions]
        self.dropout = keras.layers.Dropout(DROPOUT, seed=seed)
        self.head = torch_linear(num_letters, width, "head")
        self.built = True

    def call(self, mel: Tensor, training: bool = False) -> Tensor:
        x = 0.0
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
            update = ops.relu(norm(convolution(x if index else mel)))
            x = x + self.dropout(update, training=training)
        return self.head(x)
