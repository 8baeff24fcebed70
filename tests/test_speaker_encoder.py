"""Speaker encoder: features, batches. `test_layers` checks its layers, `test_seeded_parity` compares whole models."""

import keras
import numpy as np
from test_hifigan import normal

from myxtts.audio.mel import SPEAKER_MEL, MelSpectrogram
from myxtts.models.speaker_encoder import SpeakerEncoder

TINY = {"num_mels": 64, "widths": (32, 32), "num_blocks": (1, 2), "embedding_width": 12, "attention_width": 4}
WAV_TO_MEL = MelSpectrogram(SPEAKER_MEL)


def test_embedding_is_a_unit_vector_that_loudness_hardly_moves():
    encoder = SpeakerEncoder(**TINY)
    wav = normal(1, 8000)
    loud, quiet = (keras.ops.convert_to_numpy(encoder(WAV_TO_MEL(gain * wav)))[0] for gain in (0.5, 0.05))
    np.testing.assert_allclose([np.linalg.norm(loud), np.linalg.norm(quiet)], 1.0, rtol=1e-5)
    assert loud @ quiet > 0.999
