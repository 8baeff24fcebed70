"""Sample rates, strides and mel bands of the model."""

MODEL_SAMPLE_RATE = 22050
"""Sample rate in Hz of the DVAE's and the GPT's input."""
DECODER_SAMPLE_RATE = 24000
"""Sample rate in Hz of the waveform decoder's output."""
SPEAKER_SAMPLE_RATE = 16000
"""Sample rate in Hz of the speaker encoder's input."""
MEL_HOP_SAMPLES = 256
"""Hop length in samples, both of mel spectrograms (22 050 Hz) and of the waveform decoder's frames (24 000 Hz)."""
MEL_FRAMES_PER_CODE = 4
"""Mel frames per audio code, since the DVAE halves the frame rate twice."""
CODE_STRIDE_SAMPLES = MEL_HOP_SAMPLES * MEL_FRAMES_PER_CODE
"""Samples per audio code at `MODEL_SAMPLE_RATE`."""
MEL_FLOOR = 1e-5
"""Lower bound of the power of a mel band, applied before the logarithm."""
NUM_MELS = 80
"""Number of mel bands in the input of the DVAE and the conditioning encoder."""
