"""The switches of training, and the presets that set them together."""

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
"""What each preset sets. `conservative` keeps the numbers of training up to rounding; `balanced` lowers the precision
of matrix products where the hardware gains by it; `aggressive` compiles as well; `auto` is another name of `balanced`."""

DEFAULT_EMA_DECAY = 0.999
"""What `--ema` without a number takes."""


def requested_switches(training):
    """What each switch is asked to be, and by whom.

    Args:
        training: `TrainingConfig`; its own settings win over those of its preset.

    Returns:
        `{switch: (value, source)}` with the source `given`, `preset NAME` or `default`.
    """
    found = {}
    preset = PRESETS[training.optimizations]
    for name, default in SWITCHES.items():
        value = getattr(training, name)
        if value is not None:
            found[name] = value, "given"
        elif name in preset:
            found[name] = preset[name], f"preset {training.optimizations}"
        else:
            found[name] = default, "default"
    return found
