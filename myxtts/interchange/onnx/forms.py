"""Formats of `myxtts export --format`: `onnx`, and `web`, which adds a web page to the exported folder."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from myxtts.config.checks import UserError, read_toml, say
from myxtts.storage.files import user_cache, write_json, write_whole

RUNTIME, ESPEAK = read_toml(__file__, "npm.toml").values()
"""The two npm packages for the web page, ONNX Runtime and eSpeak NG. `npm.toml` explains the keys."""


def fetch_package(package: dict[str, Any]) -> Path:
    """Downloads the archive of a package in `npm.toml`, unless it is in the user's cache. Returns the archive's path.

    Raises `UserError` if `npm` cannot download the archive, or if the digest of the archive is wrong.
    """
    path = user_cache() / "npm" / f"{package['folder']}-{package['version']}.tgz"
    release = f"{package['name']}@{package['version']}"
    if not path.is_file():
        say(f"Downloading {release} ({package['licence']}) from npm")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder, write_whole(path) as temporary:
                command = ["npm", "pack", release, "--pack-destination", folder]
                subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
                shutil.copyfile(next(Path(folder).glob("*.tgz")), temporary)
        except (FileNotFoundError, subprocess.CalledProcessError, StopIteration) as error:
            raise UserError(f"npm (Node.js) is missing or fails: save {release} (`npm pack`) as {path}.") from error
    with open(path, "rb") as file:
        digest = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
    if digest != package["integrity"]:
        raise UserError(f"{path} is not {release} as published. Delete it and repeat the command.")
    return path


def write_page(folder: Path, voices: dict, settings: dict) -> None:
    """Adds the web page to an exported folder, given the contents of `voices.npz` and `config.json`."""
    for file in (Path(__file__).parent / "web").iterdir():
        shutil.copy(file, folder)
    for package in (RUNTIME, ESPEAK) if settings["espeak_voices"] else (RUNTIME,):
        target = folder / package["folder"]
        target.mkdir()
        with tarfile.open(fetch_package(package)) as archive:
            for name in package["files"]:
                with archive.extractfile(f"package/{name}") as packed, open(target / Path(name).name, "wb") as file:
                    shutil.copyfileobj(packed, file)
    encode = lambda array: base64.b64encode(array.astype("<f4").tobytes()).decode()
    columns = zip(*(voices[key] for key in ("names", "languages", "trained", "latents", "speakers")))
    rows = [
        dict(name=str(name), language=str(of), trained=bool(is_own), latents=encode(latents), speaker=encode(speaker))
        for name, of, is_own, latents, speaker in columns
    ]
    write_json(folder / "voices.json", rows)


FORMATS = {
    "onnx": ("graphs and speak.py", lambda *_: None),
    "web": ("onnx with a demo page that runs in the browser", write_page),
}
"""Export formats as `{name: (help text, function)}`. The function adds files, and has the arguments of `write_page`."""
