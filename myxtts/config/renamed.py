"""Settings that have another name now, or are gone: runs and files that hold the old names are still read."""

import logging

from myxtts.config.checks import ConfigError

logger = logging.getLogger(__name__)

MOVED = {
    "training.mel_loss_weight": "training.gpt.code_loss_weight",
    **{
        f"training.{name}": f"training.gpt.{name}"
        for name in (
            *("text_loss_weight", "code_loss_weight", "label_smoothing", "alignment_loss_weight", "code_masking"),
            *("lora_rank", "lora_alpha", "lora_targets", "lora_dropout"),
        )
    },
    **{
        f"training.decoder_{name}": f"training.decoder.{name}"
        for name in ("frames", "mel_weight", "stft_weight", "adversarial_weight", "feature_weight", "speaker_weight")
    },
    "training.decoder_warmup": "training.decoder.spectral_share",
    "training.discriminator_warmup": "training.decoder.discriminator_warmup",
    "model.vocoder_channels": "model.decoder_channels",
}
"""Where a setting is now, by where it was."""
REMOVED: dict[str, str] = {}
"""What to do instead, by the setting that is gone."""


def with_current_names(values: dict, path: object = None) -> dict:
    """Nested mappings of settings with the names of today; a value at the place of today wins.

    Args:
        values: As a run's `config.json` or a YAML file has them.
        path: YAML file of a user, who is warned of names that are old; None for what a run wrote.

    Raises:
        ConfigError: A user's file has a setting that is gone.
    """
    current = {name: dict(section) if isinstance(section, dict) else section for name, section in values.items()}
    for old in (*MOVED, *REMOVED):
        section, name = old.split(".")
        if not isinstance(current.get(section), dict) or name not in current[section]:
            continue
        value, new = current[section].pop(name), MOVED.get(old)
        if new is None:
            if path is not None:
                raise ConfigError(f"{path}: {old} is no setting any more. {REMOVED[old]}")
            continue
        if path is not None:
            logger.warning("%s: %s is now called %s.", path, old, new)
        *sections, name = new.split(".")
        place = current
        for section in sections:
            place[section] = dict(place.get(section) or {})
            place = place[section]
        place.setdefault(name, value)
    return current


def way_of(setting: str) -> str:
    """What a message about an old setting says about today; empty for one that never was."""
    return f" It is now {MOVED[setting]}." if setting in MOVED else f" {REMOVED.get(setting, '')}".rstrip()
