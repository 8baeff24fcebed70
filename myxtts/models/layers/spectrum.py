"""Differentiable short-time Fourier transform for losses and discriminators."""

import numpy as np
from keras import ops

from myxtts.models.layers.tensor import Tensor


def short_time_spectrum(wav: Tensor, n_fft: int) -> tuple[Tensor, Tensor]:
    """Computes real and imaginary parts of a Hann-windowed STFT with a hop of a quarter window.

    Reflection padding of 3/8 window at both ends gives one frame per hop, as in the code of Kong et al. 2020.

    Args:
        wav: `(B, S)` float32; S must be a multiple of `n_fft // 4` and above `3 n_fft // 8`.
        n_fft: Window and transform length, a multiple of 8.

    Returns:
        Two tensors `(B, 4 S // n_fft, n_fft // 2 + 1)` float32.
    """
    hop, margin = n_fft // 4, 3 * n_fft // 8
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype("float32")
    start, end = ops.flip(wav[:, 1 : margin + 1], axis=1), ops.flip(wav[:, -margin - 1 : -1], axis=1)
    blocks = ops.concatenate([start, wav, end], axis=1)
    blocks = ops.reshape(blocks, (ops.shape(wav)[0], -1, hop))
    num_frames = ops.shape(blocks)[1] - 3
    frames = ops.concatenate([blocks[:, i : i + num_frames] for i in range(4)], axis=-1)
    return ops.rfft(frames * window, fft_length=n_fft)
