"""Downloads models from the Hugging Face hub, `hf://owner/name[@revision]`, and converts them if necessary.

`huggingface_hub` downloads, resumes and caches files under `HF_HOME`. The resulting model folders are stored there too,
as `myxtts/OWNER--NAME/COMMIT`, and can be used without a network.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from myxtts.config.checks import UserError, printable
from myxtts.config.stages import STAGES
from myxtts.interchange.coqui.conversion import RELEASED_NAMES, CoquiFiles, find_release, import_coqui, imported_release
from myxtts.storage.base_model import MODELS, is_base, require_kind
from myxtts.storage.files import AnyPath, write_whole_folder
from myxtts.storage.speakers import SPEAKERS_FILE

MODEL = "model.pth"
_OWN_FILES = ["config.json", "vocab.json", SPEAKERS_FILE, *(f"{part}/step_*/*" for part in STAGES)]
_RELEASED_FILES = [MODEL, *RELEASED_NAMES.values()]
TERMS = ["README.md", "LICENSE*", "LICENCE*"]
"""Files with the licence, which are downloaded first."""
_NAME = re.compile(r"hf://([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_FOUND: dict[str, Path] = {}
"""Model folders by hub name, so that a process uses one commit of a model."""


class HubError(UserError):
    """A model on the hub cannot be downloaded, uploaded or used."""


def is_hub_name(source: str | os.PathLike) -> bool:
    """Whether `source` is a name on the hub, `hf://…`, and not a folder."""
    return isinstance(source, str) and source.startswith("hf://")


def parse_hub_name(source: str) -> tuple[str, str]:
    """Splits `hf://owner/name[@revision]` into `owner/name` and the branch, tag or commit; raises `HubError`."""
    match = _NAME.fullmatch(source)
    if not match or ".." in source:
        raise HubError(f"A model of the hub must be hf://owner/name or hf://owner/name@revision. Received: {source}.")
    return match[1], match[2] or "main"


def full_name(source: str | os.PathLike) -> str:
    """Makes a path absolute; returns the name of a hub model or of the bundled model unchanged."""
    return os.fspath(source) if is_hub_name(source) or is_base(source) else str(Path(source).resolve())


def import_hub() -> Any:
    """Imports `huggingface_hub`; raises `HubError` if it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise HubError('hf:// needs huggingface_hub. Install it: pip install "myxtts[hub]"') from None
    return huggingface_hub


def check_model(source: AnyPath, what: str = "A model (--checkpoint)", kinds: Sequence[str] = MODELS) -> None:
    """Raises the errors of `local_folder` that need no download and no conversion."""
    if is_hub_name(source):
        parse_hub_name(source)
    elif not find_release(source):
        require_kind(source, what, kinds)


def local_folder(
    source: AnyPath, accept_licence: bool = False, what: str = "A model (--checkpoint)", kinds: Sequence[str] = MODELS
) -> Path:
    """Returns the folder of a model; downloads and converts the model if necessary.

    Args:
        source: The folder of a model; the folder or the `model.pth` of a Coqui model; `hf://owner/name[@revision]`; or
            `base`, the bundled model.
        accept_licence: Accepts the licence of a hub model; else the user is asked, once per commit.
        what: The option that names the model, for errors.
        kinds: Kinds of folders to accept, keys of `storage.base_model.KINDS`.

    Raises:
        UserError: There is no model, it cannot be downloaded or converted, or its licence was not accepted.
    """
    if not is_hub_name(source):
        release = find_release(source)
        return imported_release(release) if release else require_kind(source, what, kinds)
    (repository, revision), hub = parse_hub_name(source), import_hub()
    if source not in _FOUND or not _FOUND[source].is_dir():
        with hub_errors(source):
            terms = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=TERMS))
        home = Path(hub.constants.HF_HOME, "myxtts", repository.replace("/", "--"), terms.name)
        if not home.is_dir():
            _require_licence(source, terms, accept_licence)
            patterns = [*_OWN_FILES, *_RELEASED_FILES]
            with hub_errors(source):
                snapshot = hub.snapshot_download(repository, revision=terms.name, allow_patterns=patterns)
            _make_folder(source, Path(snapshot), home)
        _FOUND[source] = home
    return _FOUND[source]


@contextmanager
def hub_errors(source: str) -> Iterator[None]:
    """Converts errors of `huggingface_hub` in a `with` block to `HubError`, with the name `source`."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{parse_hub_name(source)[0]}"
    # GatedRepoError is a subclass of RepositoryNotFoundError.
    messages = {
        errors.GatedRepoError: f"needs approval. Request access at {page}, then run `hf auth login` or set HF_TOKEN",
        errors.RepositoryNotFoundError: f"was not found. Check {page}; if it is private, run `hf auth login`",
        errors.RevisionNotFoundError: "has no such revision. Name a branch, a tag or a commit of it",
        errors.LocalEntryNotFoundError: f"is not complete under {constants.HF_HOME}, and {page} cannot be reached. "
        "Run the same command once with a network and without HF_HUB_OFFLINE",
    }
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("huggingface_hub", "httpx")):
            raise
        problem = " ".join(str(error).split())[:300]
        failed = f"cannot be transferred: {problem}. Run the same command again to resume"
        message = next((text for kind, text in messages.items() if isinstance(error, kind)), failed)
        raise HubError(f"{source} {message}.") from error


def ask_on_terminal(question: str) -> bool | None:
    """Asks a yes-or-no question and returns the answer; None without a terminal."""
    if not (sys.stdin and sys.stdin.isatty()):
        return None
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def describe_licence(source: str, terms: Path) -> tuple[bool, str]:
    """Reads the licence in the folder `terms`; returns whether the model card names one, and a description."""
    from huggingface_hub.repocard import metadata_load

    try:
        head = metadata_load(terms / "README.md") or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        head = {}
    licence, link = head.get("license_name") or head.get("license"), head.get("license_link")
    texts = [str(path) for path in sorted(terms.glob("LICEN*"))]
    shown = f"{source} has the licence {licence!s:.200}" if licence else f"{source} names no licence"
    shown = printable(shown + (f" ({link!s:.200})" if licence and link else ""))
    return bool(licence), shown + (f"; its text: {', '.join(texts)}" if texts else "")


def _require_licence(source, terms, accepted):
    """Prints the licence of a model, and raises `HubError` unless the user accepts it."""
    has_licence, shown = describe_licence(source, terms)
    print(f"{shown}.", file=sys.stderr, flush=True)
    answer = accepted or ask_on_terminal("Do you accept it?" if has_licence else "Use the model without one?")
    if answer is None:
        raise HubError(f"{shown}. Read it, then accept it by --accept-licence (accept_licence=True from Python).")
    if not answer:
        raise HubError(f"{shown}. It was not accepted, and the model was not downloaded.")


def _make_folder(source, snapshot, home):
    """Checks the downloaded files and makes the model folder `home` from them."""
    from huggingface_hub.utils import filter_repo_objects

    paths = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    is_own = any(fnmatch(path, "gpt/step_*/manifest.json") for path in paths)
    if not is_own and not {MODEL, RELEASED_NAMES["vocab"]} <= {*paths}:
        kinds = f"of XTTS v2 ({MODEL} and vocab.json) nor of MyXTTS (gpt/step_…, config.json, vocab.json)"
        raise HubError(f"{source} is neither a model {kinds}.")
    paths = [*filter_repo_objects(paths, allow_patterns=_OWN_FILES if is_own else _RELEASED_FILES)]
    for path in paths:
        check_digest(source, snapshot / path)
    if not is_own:
        print(f"Converting {source} into {home}", file=sys.stderr, flush=True)
        import_coqui(CoquiFiles.of(snapshot / MODEL), home)
        return
    with write_whole_folder(home) as new:
        for path in paths:
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(os.path.realpath(snapshot / path), new / path)  # neither file is ever changed
            except OSError:
                shutil.copyfile(snapshot / path, new / path)


def check_digest(source: str, path: Path):
    """Checks a file against its digest, which is its name in the hub's cache; removes the file if they differ."""
    from huggingface_hub.utils.sha import git_hash, sha_fileobj

    blob = Path(os.path.realpath(path))
    if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return  # on a system without links, files in the cache have their own names
    with open(blob, "rb") as file:
        digest = sha_fileobj(file).hex() if len(blob.name) == 64 else git_hash(file.read())
    if digest != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        raise HubError(f"{path.name} of {source} has a wrong checksum; it was removed. Run the same command again.")
