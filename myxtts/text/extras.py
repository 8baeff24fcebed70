"""Imports of optional packages, with an error that says what to install."""

import importlib
from types import ModuleType


def import_extra(module: str, package: str, purpose: str) -> ModuleType:
    """Imports an optional package: `import_extra("hangul_romanize", "hangul-romanize", "Korean text")`.

    Raises:
        ImportError: The package is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is there but lacks one of its own dependencies says so itself.
        if error.name != module:
            raise
        for_all = '(for all languages, in the repository: pip install -e ".[languages]")'
        message = f"{purpose} needs the package {package}. Install it with: pip install {package} {for_all}"
        raise ImportError(message, name=module) from error
