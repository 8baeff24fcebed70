"""Command-line parser that does not allow abbreviated flags. For an unknown flag, it suggests the nearest flag."""

import argparse
import difflib
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from myxtts.config.checks import UserError, read_toml, require
from myxtts.config.flags import AUTOMATIC, Flag
from myxtts.config.settings import nearest, path_text

GROUPS = ("data", "devices", "training", "optimizations")
"""Headings of the flag groups in `myxtts train --help`, in order."""
LICENCE = dict(action="store_true", help="accept the licence of a Hugging Face model without a prompt")
"""`add_argument` keyword arguments for `--accept-licence`, a flag of every command that accepts a hub model."""
EXAMPLES = read_toml(__file__, "examples.toml")
"""Texts that commands print. `EXAMPLES["myxtts say"]`, for example, ends the output of `myxtts say --help`."""
OPTIONS = read_toml(__file__, "options.toml")
"""Tables of options for `add_options`, by command: `OPTIONS["say"]` has the options of `myxtts say`."""


class PlainParser(argparse.ArgumentParser):
    """`ArgumentParser` that raises `UserError` for wrong arguments. The help shows defaults and keeps line breaks."""

    def __init__(self, **options):
        examples = {"epilog": EXAMPLES.get(options.get("prog"))}
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **examples | options)
        self.register("type", float, _finite)

    def parse_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):
        """Parses arguments. Raises `UserError` for an unknown flag, and suggests the nearest flag of the command or its
        sub-commands. The attribute `given` of the result is the set of the options in `args`, as attribute names such
        as `batch_size`. Options of sub-commands are not in the set."""
        args = sys.argv[1:] if args is None else args
        subjects = next((one.choices for one in self._actions if isinstance(one, argparse._SubParsersAction)), {})
        used = next((subjects[one] for one in args if one in subjects), self)
        homes = {name: one for one in (*subjects.values(), self, used) for name in one._option_string_actions}
        try:
            arguments, unknown = self.parse_known_args(args, namespace)
        except UserError:  # argparse may take the value of an unknown flag for a sub-command
            names = [one.partition("=")[0] for one in args if subjects and one.startswith("--")]
            unknown = [name for name in names if homes.get(name) not in (self, used)]
            if not unknown:
                raise
        if unknown:
            flag = unknown[0].partition("=")[0]
            if flag in homes:
                hint = f" It is an option of {homes[flag].prog}."
            elif not flag.startswith("-"):
                hint = " Put a text or path with spaces in quotes."
            else:
                own = [name for name in used._option_string_actions if name.startswith("--")]
                known = homes if difflib.get_close_matches(flag, homes, n=1) else own
                hint = nearest(flag, [name for name in known if name.startswith(flag)] or known)
            raise UserError(f"{flag} is not an option of {used.prog}.{hint}")
        named = (self._option_string_actions.get(one.partition("=")[0]) for one in args)
        arguments.given = {action.dest for action in named if action}
        return arguments

    def parse_known_args(self, args=None, namespace=None):
        """Parses known arguments like the base class, but rejects `--flag=--`, which older versions of Python drop."""
        for one in sys.argv[1:] if args is None else args:
            flag, _, value = one.partition("=")
            if value == "--" and flag in self._option_string_actions:
                self.error(f"argument {flag}: expected one argument")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises a `UserError` that rewords argparse's error `message` more clearly (see `_SENTENCES`)."""
        for pattern, sentence in _SENTENCES.items():
            if match := re.fullmatch(pattern, message):
                raise UserError(sentence(*match.groups()))
        raise UserError(f"{message[:1].upper()}{message[1:]}. {self.prog} --help lists the options.")


def _finite(text):
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def keywords(parser: argparse.ArgumentParser, named: Mapping[str, Any]) -> argparse.Namespace:
    """Converts Python keyword arguments to parsed arguments of `parser`. Raises `UserError` for invalid arguments."""
    actions = [action for action in parser._actions if action.dest != "help"]
    known = {name.lstrip("-").replace("-", "_"): one for one in actions for name in one.option_strings or [one.dest]}
    given = {}
    for name, value in named.items():
        if name not in known:
            raise UserError(f"{name} is not an option of {parser.prog}.{nearest(name, known)}")
        choices = known[name].choices or [value]
        require(value in choices, name, f"one of {', '.join(map(str, choices))}", value)
        if value is not None:
            values = [value] if isinstance(value, (str, os.PathLike)) or not known[name].nargs else value
            plain = [path_text(one) for one in values]
            given[known[name].dest] = plain if known[name].nargs else plain[0]
    if missing := [name for name, action in known.items() if action.required and name not in named]:
        raise UserError(f"{parser.prog} needs {missing[0]}=.")
    return argparse.Namespace(**{action.dest: action.default for action in actions} | given)


def _choice(flag, given, choices):
    known = re.findall(r"[^\s',]+", choices)  # some versions of Python leave out the quotes
    hint = nearest(given, known)
    return f"{flag} must be one of {', '.join(known)}. Received: {given}.{hint if 'mean' in hint else ''}"


_SENTENCES = {
    r"argument (\S+): invalid int value: '(.*)'": "{} must be a whole number. Received: {}.".format,
    r"argument (\S+): invalid float value: '(.*)'": "{} must be a number. Received: {}.".format,
    r"argument subject: .*?'(.*)' .*": "{0} is not data: `myxtts doctor data '{0}'` checks a data set.".format,
    r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)": _choice,
    r"argument (\S+): expected (?:one|at least one) argument": "{} needs a value.".format,
    r"argument (\S+): not allowed with argument (\S+)": "{} is not allowed with {}: give one of them.".format,
    r"argument (\S+): (must be .*)": "{} {}.".format,
}
"""Maps a pattern of argparse's messages to a function that returns a clearer message, given the match's groups."""


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action):
        hidden = action.default is None or action.default is False or action.default in ("", [], (), {})
        return action.help if hidden else super()._get_help_string(action)


def add_model(parser: argparse.ArgumentParser, more: str = "", name: str = "--checkpoint", **options) -> None:
    """Adds the argument `name`, which selects a model, and the flags `--accept-licence` and `--which`. `more` is
    appended to the help text of `name`, and `options` are further `add_argument` keywords for `name`."""
    model = f"folder of a training run, an imported model or a released XTTS v2, base, or hf://owner/name{more}"
    parser.add_argument(name, metavar="FOLDER", help=model, **options)
    parser.add_argument("--accept-licence", **LICENCE)
    parser.add_argument("--which", choices=("best", "last"), default="best", help="checkpoint to use")


def add_options(
    parser: argparse.ArgumentParser,
    options: Mapping[str, Mapping[str, Mapping[str, Any]]],
    computed: Mapping[str, Mapping[str, Any]] = {},
) -> dict[str, argparse._ActionsContainer]:
    """Adds the options of a table, such as `OPTIONS["say"]`. Returns the argument groups of the parser by heading.
    `computed` is `{flag: keyword arguments}` for `add_argument`, in addition to the keyword arguments in the table."""
    groups, rivals, types = {}, {}, {"int": int, "float": float}
    for heading, entries in options.items():
        groups[heading] = parser.add_argument_group(heading) if heading else parser
        for flags, words in entries.items():
            given = {**words, **computed.get(flags, {})}
            place, rival = groups[heading], given.pop("rival", None)
            if rival and rival not in rivals:
                rivals[rival] = place.add_mutually_exclusive_group()
            if "type" in given:
                given["type"] = types.get(given["type"], given["type"])
            rivals.get(rival, place).add_argument(*flags.split(), **given)
    return groups


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag]) -> None:
    """Adds flags under the headings of their groups. If a flag changes settings, its parser default is None."""
    options = {group: {} for group in GROUPS}
    for flag in flags:
        options[flag.group][" ".join(flag.names)] = _options(flag)
    add_options(parser, options)["optimizations"].description = "the effect of each is printed after the first step"


def _options(flag):
    """Returns the flag's entry for an `add_options` table."""
    metadata = flag.field.metadata
    options = dict(help=flag.help.replace("%", "%%"), rival=metadata["rival"])
    if flag.kind is bool:
        is_optional = flag.field.default is None or metadata["page"]  # a form must be able to undo a recipe's value
        return options | dict(action=argparse.BooleanOptionalAction if is_optional else "store_true", default=None)
    options |= dict(default=None if flag.settings else flag.field.default, metavar=metadata["metavar"])
    options |= dict(const=metadata["alone"], nargs=None if metadata["alone"] is None else "?")
    options["action"] = "append" if flag.repeats else "store"
    if flag.takes_list:
        options["type"] = _value("numbers such as 1,2,3" if flag.kind is int else "names such as a,b", flag.plain)
    elif flag.names == ("--batch-size",):
        options["type"] = _value("a number of clips, or auto", lambda text: text if text == AUTOMATIC else int(text))
    elif flag.choices:
        options["choices"] = flag.choices
    elif flag.kind is not str:
        options["type"] = flag.kind
    return options


def _value(rule, parse):
    """Returns a `type` function for `add_argument`. It calls `parse`; the error for invalid text states `rule`."""

    def value(text):
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {rule}. Received: {text}") from None

    return value
