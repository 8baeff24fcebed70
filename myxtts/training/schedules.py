"""The learning rate over a stage."""

import math


def warmup_cosine(step: int, peak: float, total_steps: int, warmup_steps: int, final_share: float) -> float:
    """Linear rise to `peak`, then half a cosine down to `final_share * peak` (Loshchilov and Hutter 2017).

    Args:
        step: Steps taken so far.
        total_steps: Length of the stage; the rate stays at its end value beyond it.
        warmup_steps: Length of the rise; at most a tenth of the stage is used.
        final_share: End value as a share of the peak.
    """
    warmup = min(warmup_steps, total_steps // 10)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * progress)))
