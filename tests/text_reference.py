"""Results of the tokenizer of coqui-tts 0.28.0 for a thousand sentences; commit 202e875 contains the script."""

import hashlib
import importlib.metadata
import json
from pathlib import Path

import pytest

REFERENCE = json.loads((Path(__file__).parent / "data" / "text_reference.json").read_text(encoding="utf-8"))
_NEEDED_PACKAGES = {"ja": ("cutlet", "unidic-lite"), "zh-cn": ("pypinyin",), "ko": ("hangul-romanize", "num2words")}


def digest(value):
    """Returns the first eight hexadecimal digits of the SHA-256 of a value's JSON, as in `text_reference.json`."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:8]


def skip_without_packages(language):
    """Skips a test if a package for its language is missing, or is not of the version that made `REFERENCE`."""
    for package in _NEEDED_PACKAGES.get(language, ("num2words",)):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
        made_with = REFERENCE["made_with"].get(package, version)
        if version != made_with:
            pytest.skip(f"{package} {version} is installed, the reference output was made with {made_with}")
