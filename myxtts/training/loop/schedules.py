"""The learning rate over a stage."""

import math

from myxtts.config.stages import StageConfig


def total_steps(max_steps: int | None, epochs: int, batches_per_epoch: int, accumulation: int) -> int:
    """Optimizer steps of a whole stage: `max_steps`, or those of its epochs."""
    return max_steps or max(1, epochs * batches_per_epoch // accumulation)


def learning_rate(settings: StageConfig, step: int, total_steps: int) -> float:
    """Learning rate of a step.

    Args:
        settings: `StageConfig` with its learning rate set.
        step: Steps taken so far.
        total_steps: Length of the stage.
    """
    shape = settings.warmup_steps, settings.final_learning_rate
    return warmup_cosine(step, settings.learning_rate, total_steps, *shape)


def warmup_cosine(step: int, peak: float, total_steps: int, warmup_steps: int, final_share: float) -> float:
    """Linear rise to `peak`, then half a cosine down to `final_share * peak` (Loshchilov and Hutter 2017).

    Args:
        step: Steps taken so far.
        peak: Largest learning rate.
        total_steps: Length of the stage; the rate stays at its end value beyond it.
        warmup_steps: Length of the rise; at most a tenth of the stage is used.
        final_share: End value as a share of the peak.
    """
    warmup = min(warmup_steps, total_steps // 10)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * progress)))
