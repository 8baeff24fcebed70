"""Optimization switches of training and their presets."""

from myxtts.config.settings import Settings

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
"""Keras dtype policies for training."""

ATTENTIONS = ("standard", "memory-efficient")
"""Attention implementations; `auto` selects the faster one at the longest sequence."""

SWITCHES = {
    "precision": "float32",
    "tf32": "auto",
    "gradient_checkpointing": False,
    "attention": "standard",
    "xla": False,
    "ema": 0.0,
}
"""Switches of `TrainingConfig` that a preset can set, with their defaults."""

PRESETS = {
    "none": {},
    "conservative": {"gradient_checkpointing": True},
    "balanced": {"precision": "auto", "attention": "auto"},
    "aggressive": {"precision": "auto", "gradient_checkpointing": True, "attention": "memory-efficient", "xla": True},
}
PRESETS["auto"] = PRESETS["balanced"]
"""Switches of each preset. `conservative` changes results by rounding at most; `balanced`, also called `auto`, lowers
the precision of matrix products where the hardware gains from it; `aggressive` also compiles with XLA."""

DEFAULT_EMA_DECAY = 0.999
"""Decay of `--ema` without a value."""


def requested_switches(training: Settings) -> dict[str, tuple[object, str]]:
    """Returns the requested value of each switch, and where it came from. A setting overrides the preset.

    Args:
        training: `TrainingConfig`.

    Returns:
        `{switch: (value, source)}` with the source `given`, `preset NAME` or `default`.
    """
    found = {name: (value, "default") for name, value in SWITCHES.items()}
    preset = PRESETS[training.optimizations]
    found |= {name: (value, f"preset {training.optimizations}") for name, value in preset.items()}
    given = {name: getattr(training, name) for name in SWITCHES}
    return found | {name: (value, "given") for name, value in given.items() if value is not None}
