"""`myxtts export --format web`: the page that speaks in a browser, and the JavaScript packages that it needs."""

import base64
import hashlib
import os
import shutil
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.config.checks import UserError, say
from myxtts.storage.files import write_json

PAGE = Path(__file__).parent / "web"
REGISTRY = "https://registry.npmjs.org"


class Package(NamedTuple):
    """A release of an npm package, and those of its files that the page needs, in `folder`."""

    name: str
    version: str
    integrity: str
    licence: str
    folder: str
    files: tuple[str, ...]

    @property
    def address(self) -> str:
        """URL of the package's archive."""
        return f"{REGISTRY}/{self.name}/-/{self.name.rpartition('/')[2]}-{self.version}.tgz"


RUNTIME = Package(
    "onnxruntime-web",
    "1.30.0",
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    "MIT",
    "ort",
    ("dist/ort.wasm.min.mjs", "dist/ort-wasm-simd-threaded.mjs", "dist/ort-wasm-simd-threaded.wasm"),
)
ESPEAK = Package(
    "@echogarden/espeak-ng-emscripten",
    "0.3.5",
    "Izbkm7NWccwb//RKgOp1/0k21StKN1DFIn+K7GU1XN7n6pmSi4bsk/0tYUsgQbysC4GVyrVompNmLInU/BFE+A==",
    "GPL-3.0-or-later",
    "espeak",
    ("espeak-ng.js", "espeak-ng.data", "COPYING"),
)


def fetch_package(package: Package) -> Path:
    """Archive of an npm package in the user's cache; downloaded once, its SHA-512 is checked.

    Raises:
        UserError: It cannot be downloaded, or is not what was published.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myxtts" / "npm"
    path = cache / f"{package.folder}-{package.version}.tgz"
    if not path.is_file():
        say(f"Downloading {package.name} {package.version} ({package.licence})")
        part = path.with_suffix(f".{os.getpid()}")
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(package.address, timeout=60) as answer, open(part, "wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            part.unlink(missing_ok=True)
            reason = getattr(error, "reason", None) or error
            hint = f"Repeat the command with a network, or save the file as {path}"
            raise UserError(f"{package.address} cannot be downloaded: {reason}. {hint}.") from None
        part.replace(path)
    with open(path, "rb") as file:
        digest = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
    if digest != package.integrity:
        raise UserError(
            f"{path} is not {package.name} {package.version} as published. Delete it and repeat the command."
        )
    return path


def write_page(folder: Path, voices: dict[str, np.ndarray], uses_espeak: bool) -> None:
    """Adds the page, its packages and `voices.json` to an exported folder.

    Args:
        voices: Arrays of `voices.npz`.
        uses_espeak: Whether a language of the model is converted to phonemes by eSpeak NG.
    """
    for file in PAGE.iterdir():
        shutil.copy(file, folder)
    for package in [RUNTIME, *[ESPEAK] * uses_espeak]:
        (target := folder / package.folder).mkdir()
        with tarfile.open(fetch_package(package)) as archive:
            for name in package.files:
                with archive.extractfile(f"package/{name}") as packed, open(target / Path(name).name, "wb") as file:
                    shutil.copyfileobj(packed, file)
    encode = lambda array: base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
    rows: list[dict[str, Any]] = [
        {"name": str(name), "language": str(language), "latents": encode(latents), "speaker": encode(speaker)}
        for name, language, latents, speaker in zip(*(voices[k] for k in ("names", "languages", "latents", "speakers")))
    ]
    write_json(folder / "voices.json", rows)
