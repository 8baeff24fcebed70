"""A parser that takes a flag for no other: none is abbreviated, and a misspelt one is answered with the nearest."""

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from myxtts.config.checks import UserError
from myxtts.config.settings import nearest


class PlainParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` whose errors are `UserError`s; help shows defaults and keeps the layout of texts."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):
        """Like the base's; an unknown flag is named with the nearest known one."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            if flag.startswith("-"):
                hint = nearest(flag, [name for name in known if name.startswith(flag)] or known)
            else:
                hint = " Put text of several words in quotes."
            raise UserError(f"{flag} is not an option of {self.prog}.{hint}")
        return arguments

    def error(self, message: str) -> NoReturn:
        """Raises `UserError`, which names flag, rule and value."""
        for pattern, sentence in _SENTENCES:
            if match := pattern.fullmatch(message):
                raise UserError(sentence(*match.groups()))
        raise UserError(f"{message[:1].upper()}{message[1:]}. {self.prog} --help lists the options.")


def _choice(flag, given, choices):
    known = re.findall(r"'([^']*)'", choices)
    hint = nearest(given, known)
    return f"{flag} must be one of {', '.join(known)}. Received: {given}.{hint if 'mean' in hint else ''}"


_SENTENCES = [
    (re.compile(pattern), sentence)
    for pattern, sentence in {
        r"argument (\S+): invalid int value: '(.*)'": "{} must be a whole number. Received: {}.".format,
        r"argument (\S+): invalid float value: '(.*)'": "{} must be a number. Received: {}.".format,
        r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)": _choice,
        r"argument (\S+): expected one argument": "{} needs a value after it.".format,
        r"argument (\S+): expected at least one argument": "{} needs a value after it, or several.".format,
        r"argument (\S+): not allowed with argument (\S+)": "{} is not allowed with {}: give one of them.".format,
        r"argument (\S+): (must be .*)": "{} {}.".format,
    }.items()
]
"""How the errors of `argparse` begin, and what is said instead."""


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action):
        hidden = action.default is None or action.default is False or action.default == []
        return action.help if hidden else super()._get_help_string(action)
