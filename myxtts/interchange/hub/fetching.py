"""Models of the Hugging Face hub, `hf://owner/name[@revision]`: fetched, checked, converted if need be, and kept.

`huggingface_hub` fetches: it shows progress, goes on where a connection broke, and keeps what came under `HF_HOME`.
What is made of it lies there too, in `myxtts/OWNER--NAME/COMMIT`, so that the next time works without a network.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from myxtts.config.checks import UserError, printable, read_bounded
from myxtts.config.stages import STAGES
from myxtts.interchange.coqui.importing import RELEASED_NAMES, CoquiFiles, find_release, import_coqui, imported_release
from myxtts.storage.base_model import base_folder, is_base
from myxtts.storage.files import MAX_JSON_BYTES, digest_foreign_file, write_whole_folder
from myxtts.storage.speakers import SPEAKERS_FILE

PREFIX = "hf://"
OWN_FILES = ("config.json", "vocab.json", SPEAKERS_FILE, *(f"{part}/step_*/*" for part in STAGES))
"""Files of a folder of ours."""
MODEL = "model.pth"
RELEASED_FILES = (MODEL, *RELEASED_NAMES.values())
TERMS = ("README.md", "LICENSE*", "LICENCE*")
"""Files that say under which licence a model comes; fetched before anything else."""
_NAME = re.compile(r"hf://([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_FOUND: dict[tuple[str, str], Path] = {}
"""Folders by `HF_HOME` and name: a name means one commit for as long as a process lasts."""


class HubError(UserError):
    """A model of the hub that cannot be had; the message says why and what to do."""


class HubName(NamedTuple):
    """A model on the hub."""

    repository: str
    """`owner/name`."""
    revision: str
    """A branch, a tag or a commit."""


def is_hub_name(source: str | os.PathLike) -> bool:
    """Whether a model is named on the hub and not by its folder."""
    return isinstance(source, str) and source.startswith(PREFIX)


def parse_hub_name(source: str) -> HubName:
    """Raises `HubError` unless `source` is `hf://owner/name` or `hf://owner/name@revision`."""
    match = _NAME.fullmatch(source)
    if not match or ".." in source:
        raise HubError(
            f"A model of the hub must be named hf://owner/name or hf://owner/name@revision. Received: {source}."
        )
    return HubName(match[1], match[2] or "main")


def full_name(source: str | os.PathLike) -> str:
    """What names the same model from any folder: a hub's name as it is, else the full path."""
    return os.fspath(source) if is_hub_name(source) or is_base(source) else str(Path(source).resolve())


def import_hub() -> Any:
    """The library `huggingface_hub`. Raises `HubError` where it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise HubError('hf:// needs huggingface_hub. Install it: pip install "myxtts[hub]"') from None
    return huggingface_hub


def ask_on_terminal(question: str) -> bool | None:
    """Whether the user said yes; None where nobody can be asked."""
    if not (sys.stdin and sys.stdin.isatty()):
        return None
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def folder_here(source: str | os.PathLike | None) -> Path | None:
    """The folder of a model that is on this machine; None for one of the hub and for what is no model."""
    if not source or is_hub_name(source):
        return None
    folder = local_folder(source)
    return folder if (folder / "config.json").is_file() else None


def local_folder(
    source: str | os.PathLike, accept_licence: bool = False, ask: Callable[[str], bool | None] = ask_on_terminal
) -> Path:
    """The folder of a model: `source` itself, or where a model of the hub or of Coqui's is kept once it is converted.

    Args:
        source: A folder, which need not be there; a Coqui model's folder or its `model.pth`;
            `hf://owner/name[@revision]`; or `base` for the model in the box.
        accept_licence: Take the model's licence as accepted; else it is shown and asked for, once per commit.
        ask: Called with the question; gives None where nobody can answer.

    Raises:
        UserError: It cannot be had, its licence is not accepted, or it is no model that can be used here.
    """
    if is_base(source):
        return base_folder()
    if not is_hub_name(source):
        release = find_release(source)
        return imported_release(release) if release else Path(source)
    name = parse_hub_name(source)
    hub = import_hub()
    key = hub.constants.HF_HOME, source
    if key in _FOUND and _FOUND[key].is_dir():
        return _FOUND[key]
    with hub_errors(source):
        terms = Path(hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=TERMS))
    commit = terms.name
    home = Path(hub.constants.HF_HOME, "myxtts", name.repository.replace("/", "--"), commit)
    if not home.is_dir():
        _require_licence(source, terms, accept_licence, ask)
        _make(source, name.repository, commit, home, hub)
    _FOUND[key] = home
    return home


@contextmanager
def hub_errors(source: str) -> Iterator[None]:
    """Inside, what the hub's library raises becomes a `HubError` that names `source`."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        way_out = f"Ask for it at {constants.ENDPOINT}/{parse_hub_name(source).repository}, then run `hf auth login`"
        raise HubError(f"{source} is given only to those who asked for it. {way_out} or set HF_TOKEN.") from error
    except errors.RepositoryNotFoundError as error:
        way_out = "Look at its name; for a private one run `hf auth login` or set HF_TOKEN"
        raise HubError(f"{source} is not there, or not for you. {way_out}.") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{source} has no such revision. Name a branch, a tag or a commit of it.") from error
    except errors.LocalEntryNotFoundError as error:
        lack = (
            f"{source} is not kept under {constants.HF_HOME}, or not all of it, and {constants.ENDPOINT} is not reached"
        )
        raise HubError(f"{lack}. Run the same command once with a network and without HF_HUB_OFFLINE.") from error
    except Exception as error:
        if not type(error).__module__.startswith(("huggingface_hub", "httpx", "requests")):
            raise
        told = " ".join(str(error).split())[:300]
        way_out = "What has arrived is kept; run the same command again"
        raise HubError(f"{source}: {constants.ENDPOINT} failed: {told}. {way_out}.") from error


def licence_of(folder: Path) -> str | None:
    """The licence that the head of a model card (`README.md`) names, with its link; None where it names none."""
    try:
        text = read_bounded(folder / "README.md", MAX_JSON_BYTES)
        head = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
    except (OSError, ValueError, IndexError, RecursionError, yaml.YAMLError):
        return None
    head = head if isinstance(head, dict) else {}
    name, link = (head.get(key) for key in ("license_name", "license_link"))
    name = name or head.get("license")
    return name and printable(f"{name!s:.200}" + (f" ({link!s:.200})" if link else ""))


def _require_licence(source, terms, accepted, ask):
    licence = licence_of(terms)
    texts = [str(path) for path in sorted(terms.glob("*")) if not path.name.startswith("README")]
    told = f"{source} comes under the licence {licence}" if licence else f"{source} names no licence"
    told += f"; its text: {', '.join(texts)}" if texts else ""
    print(f"{told}.", file=sys.stderr, flush=True)
    if accepted:
        return
    answer = ask("Do you accept it?" if licence else "May you use it all the same?")
    if answer is None:
        way_out = "Read it, then give --accept-licence (accept_licence=True from Python)"
        raise HubError(f"{told}. It must be accepted before the model is fetched. {way_out}.")
    if not answer:
        raise HubError(f"{told}. It was not accepted, and nothing has been fetched.")


def _make(source, repository, commit, home, hub):
    """Fetches a commit's model into the cache, and makes of it the folder `home`."""
    patterns = _patterns(source, repository, commit, hub)
    with hub_errors(source):
        snapshot = Path(hub.snapshot_download(repository, revision=commit, allow_patterns=patterns))
    files = [path for path in snapshot.rglob("*") if path.is_file() and _fits(path, snapshot, patterns)]
    for path in files:
        _verify(source, path)
    names = {str(path.relative_to(snapshot)) for path in files}
    if MODEL in names:
        print(f"Converting {source} into {home}", file=sys.stderr, flush=True)
        if RELEASED_NAMES["vocab"] not in names:
            raise HubError(f"{source} has {MODEL} and no vocab.json, without which it cannot read. Name another model.")
        import_coqui(CoquiFiles.of(snapshot / MODEL), home)
        return
    with write_whole_folder(home) as new:
        for path in files:
            target = new / path.relative_to(snapshot)
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(os.path.realpath(path), target)


def _patterns(source, repository, commit, hub) -> Sequence[str]:
    """The files to fetch: those of a folder of ours, else those of a release. Raises for a model of another kind."""
    try:
        with hub_errors(source):
            wanted = hub.snapshot_download(
                repository, revision=commit, allow_patterns=[*OWN_FILES, *RELEASED_FILES], dry_run=True
            )
    except HubError as error:
        if not isinstance(error.__cause__, hub.errors.DryRunError):
            raise
        return (*OWN_FILES, *RELEASED_FILES)  # offline: what is there shows what it is
    names = [file.filename for file in wanted]
    is_ours = any(fnmatch(name, "gpt/step_*/manifest.json") for name in names)
    if not (is_ours or MODEL in names):
        seen = f"it has {', '.join(map(printable, names[:8]))}" if names else "it has none of their files"
        kinds = f"of XTTS v2 ({MODEL}, vocab.json) nor of this project (gpt/step_…/, config.json, vocab.json)"
        raise HubError(f"{source} is neither a model {kinds}: {seen}. Name another one.")
    patterns = OWN_FILES if is_ours else RELEASED_FILES
    size = sum(file.file_size for file in wanted if any(fnmatch(file.filename, one) for one in patterns))
    print(f"Fetching {source}: {size / 1e6:,.1f} MB", file=sys.stderr, flush=True)
    return patterns


def _fits(path, snapshot, patterns):
    return any(fnmatch(str(path.relative_to(snapshot)), pattern) for pattern in patterns)


def _verify(source, path):
    """Compares a file's content with the digest that the hub names it by in the cache, and removes a wrong one."""
    blob = Path(os.path.realpath(path))
    if re.fullmatch("[0-9a-f]{64}", blob.name):
        digest = digest_foreign_file(blob, "sha256")
    elif re.fullmatch("[0-9a-f]{40}", blob.name):  # as git names it
        digest = digest_foreign_file(blob, "sha1", b"blob %d\0" % blob.stat().st_size)
    else:
        return  # a system without links keeps files under their own names
    if digest != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        told = f"{path.name} of {source} does not have the checksum that the hub gives for it; it was removed"
        raise HubError(f"{told}. Run the same command again.")


def _link_or_copy(source, target):
    try:
        os.link(source, target)  # nobody writes into either
    except OSError:
        shutil.copyfile(source, target)
