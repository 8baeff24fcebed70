"""Imports of optional packages, with an error that says what to install."""

import importlib
from types import ModuleType


def import_extra(module: str, package: str, purpose: str) -> ModuleType:
    """Imports an optional package.

    Args:
        module: Name to import, such as `"hangul_romanize"`.
        package: Name to install, such as `"hangul-romanize"`.
        purpose: What it is needed for, as the start of a sentence: `"Korean text"`.

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
            f"{purpose} needs the package {package}. Install it with: pip install {package} "
            '(for all languages, in the repository: pip install -e ".[languages]")',
            name=module,
        ) from error
