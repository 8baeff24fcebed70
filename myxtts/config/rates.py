"""Sample rates and strides: each number of the signal chain has its one home here."""

MODEL_SAMPLE_RATE = 22050
"""Rate in Hz of everything the DVAE and the GPT see."""
DECODER_SAMPLE_RATE = 24000
"""Rate in Hz of what the waveform decoder makes."""
SPEAKER_SAMPLE_RATE = 16000
"""Rate in Hz of what the speaker encoder hears."""
MEL_HOP_SAMPLES = 256
"""Samples from one frame of the DVAE's mel, and of the conditioning mel, to the next; at 24 000 Hz, what the waveform
decoder makes of one of its frames."""
MEL_FRAMES_PER_CODE = 4
"""Mel frames that one audio code stands for: the DVAE halves their rate twice."""
CODE_STRIDE_SAMPLES = MEL_HOP_SAMPLES * MEL_FRAMES_PER_CODE
"""Samples at `MODEL_SAMPLE_RATE` that one audio code stands for."""
MEL_FLOOR = 1e-5
"""Power below which a mel spectrogram is clamped before the logarithm."""
NUM_MELS = 80
"""Bands of the mel spectrograms that DVAE and conditioning encoder see."""
