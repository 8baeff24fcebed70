"""What a setting must hold, and the sentence for one that does not."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names the thing, the rule and the way out.

    A command prints the message alone and ends with exit code 2.
    """


class ConfigError(UserError):
    """A setting that breaks a rule; the message names the setting, the rule, the value and the way out."""


def require(holds: bool, setting: str, rule: str, value: object, way_out: str = "") -> None:
    """Raises `ConfigError` naming the setting, its rule and the value unless the rule holds."""
    if not holds:
        raise ConfigError(f"{setting} must be {rule}. Received: {value}. {way_out}".rstrip())
