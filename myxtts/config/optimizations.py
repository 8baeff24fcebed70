"""The switches of training, and the presets that set them together."""

from myxtts.config.settings import Settings

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
"""Dtype policies that a stage can train under."""

ATTENTIONS = ("standard", "memory-efficient")
"""Forms of attention; `auto` takes the one that the hardware runs no slower at the longest sequence."""

SWITCHES = {
    "precision": "float32",
    "tf32": "auto",
    "gradient_checkpointing": False,
    "attention": "standard",
    "xla": False,
    "ema": 0.0,
}
"""The switches of `TrainingConfig` that a preset can set, and what they are without one."""

PRESETS = {
    "none": {},
    "conservative": {"gradient_checkpointing": True},
    "balanced": {"precision": "auto", "attention": "auto"},
    "aggressive": {"precision": "auto", "gradient_checkpointing": True, "attention": "memory-efficient", "xla": True},
}
PRESETS["auto"] = PRESETS["balanced"]
"""What each preset sets. `conservative` keeps the numbers of training up to rounding; `balanced`, also called `auto`,
lowers the precision of matrix products where the hardware gains by it; `aggressive` compiles as well."""

DEFAULT_EMA_DECAY = 0.999
"""What `--ema` without a number takes."""


def requested_switches(training: Settings) -> dict[str, tuple[object, str]]:
    """What each switch is asked to be, and by whom; the setting itself wins over the preset.

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
