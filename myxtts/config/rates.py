"""Sample rates, strides and mel bands of the model."""

MODEL_SAMPLE_RATE = 22050
"""Input rate of the DVAE and the GPT in Hz."""
DECODER_SAMPLE_RATE = 24000
"""Output rate of the waveform decoder in Hz."""
SPEAKER_SAMPLE_RATE = 16000
"""Input rate of the speaker encoder in Hz."""
MEL_HOP_SAMPLES = 256
"""Hop length in samples: of the DVAE's and the conditioning mel at 22 050 Hz, and of the waveform decoder's frames at
24 000 Hz."""
MEL_FRAMES_PER_CODE = 4
"""Mel frames per audio code; the DVAE halves the frame rate twice."""
CODE_STRIDE_SAMPLES = MEL_HOP_SAMPLES * MEL_FRAMES_PER_CODE
"""Samples per audio code at `MODEL_SAMPLE_RATE`."""
MEL_FLOOR = 1e-5
"""Minimum power of a mel band before the logarithm."""
NUM_MELS = 80
"""Mel bands of the DVAE and the conditioning encoder."""
