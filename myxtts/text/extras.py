"""Imports of optional packages, with an error that says what to install."""

import importlib
from types import ModuleType


def import_extra(module: str, purpose: str, extra: str = "languages") -> ModuleType:
    """Imports an optional package.

    Args:
        module: Name to import, such as `"pypinyin"`.
        purpose: What it is needed for, as the start of a sentence: `"Chinese text"`.
        extra: The extra of this package that installs it.

    Returns:
        The module.

    Raises:
        ImportError: The package is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is there but lacks one of its own dependencies says so itself.
        if error.name != module:
            raise
        raise ImportError(
            f'{purpose} needs the package {module!r}. Install it with: pip install "myxtts[{extra}]"', name=module
        ) from error
