"""What a setting must hold, and the sentence for one that does not."""


class ConfigError(ValueError):
    """A setting that breaks a rule; the message names the setting, the rule, the value and the way out."""


def require(holds, setting, rule, value, way_out=""):
    """Raises `ConfigError` naming the setting, its rule and the value unless the rule holds."""
    if not holds:
        raise ConfigError(f"{setting} must be {rule}. Received: {value}. {way_out}".rstrip())


def require_at_least(smallest, settings, where, *names):
    """Raises `ConfigError` for the first of the named fields that is set and below `smallest`."""
    for name in names:
        value = getattr(settings, name)
        require(value is None or value >= smallest, f"{where}.{name}", f"{smallest} or more", value)
