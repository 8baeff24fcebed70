"""What a setting must hold, the sentence for one that does not, and text from elsewhere made fit to print."""

import re

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal might obey or cannot show: controls, lone surrogates, line separators and marks of direction."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names the thing, the rule and the way out.

    A command prints the message alone and ends with exit code 2.
    """


class ConfigError(UserError):
    """A setting that breaks a rule; the message names the setting, the rule, the value and the way out."""


def printable(text: str) -> str:
    """`text` with what is `UNPRINTABLE` spelled out, so that a hostile name cannot steer the terminal that shows it."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def require(holds: bool, setting: str, rule: str, value: object, way_out: str = "") -> None:
    """Raises `ConfigError` naming the setting, its rule and the value unless the rule holds."""
    if not holds:
        raise ConfigError(f"{setting} must be {rule}. Received: {value}. {way_out}".rstrip())
