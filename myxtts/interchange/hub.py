"""Downloads and uploads models of the Hugging Face hub, which are named `hf://owner/name[@revision]`.

`huggingface_hub` downloads, resumes and caches files under `HF_HOME`. From these files, this module makes the model
folder `HF_HOME/myxtts/OWNER--NAME/COMMIT`, which can be used offline.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

import myxtts
from myxtts.config.checks import UserError, needing, printable, read_toml
from myxtts.config.config import XTTSConfig
from myxtts.config.data import PATHS
from myxtts.config.stages import STAGES
from myxtts.interchange.coqui.conversion import CoquiFiles, find_release, import_coqui, imported_release, make_once
from myxtts.interchange.coqui.settings import RELEASED_NAMES
from myxtts.storage import files
from myxtts.storage.base_model import BASE_NAME, MODELS, RELEASE, is_base, require_kind
from myxtts.storage.files import AnyPath, read_csv, write_json, write_text, write_whole_folder
from myxtts.storage.run_folder import CONFIDENCE_FILE, listed_seconds, stores_in
from myxtts.storage.speakers import SPEAKERS_FILE

_OWN_FILES = ["config.json", "vocab.json", SPEAKERS_FILE, CONFIDENCE_FILE, *(f"{part}/step_*/*" for part in STAGES)]
_RELEASED_FILES = [RELEASE, *RELEASED_NAMES.values()]
TERMS = ["README.md", "LICENSE*", "LICENCE*"]
"""Patterns of the files that state the licence. They are downloaded before the user is asked to accept the licence."""
_MESSAGES = read_toml(__file__, "hub.toml")
_FOUND: dict[str, Path] = {}
"""Folders of the models used so far, by hub name, so that a process never mixes two commits of a model."""


class HubError(UserError):
    """Error for a model on the hub that cannot be downloaded, uploaded or used."""


def is_hub_name(source: str | os.PathLike) -> bool:
    """Returns whether `source` is the name of a model on the hub (`hf://…`) rather than a folder."""
    return isinstance(source, str) and source.startswith("hf://")


def parse_hub_name(source: str) -> tuple[str, str]:
    """Splits `hf://owner/name[@revision]` into `owner/name` and revision (`main` by default), or raises `HubError`."""
    match = re.fullmatch(r"hf://([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", source)
    if not match or ".." in source:
        raise HubError(f"A model of the hub must be hf://owner/name or hf://owner/name@revision. Received: {source}.")
    return match[1], match[2] or "main"


def import_hub() -> Any:
    """Imports `huggingface_hub`; raises `HubError` if it is not installed."""
    with needing('hf:// needs huggingface_hub. Install it: pip install "myxtts[hub]"', HubError):
        import huggingface_hub.constants
        import huggingface_hub.errors  # not an attribute of the package until it is imported
    return huggingface_hub


def check_model(source: AnyPath, what: str = "A model (--checkpoint)", kinds: Sequence[str] = MODELS) -> None:
    """Raises the errors of `local_folder` that can be detected without downloading or converting the model."""
    if is_hub_name(source):
        parse_hub_name(source)
    elif not find_release(source):
        require_kind(source, what, kinds)


def local_folder(
    source: AnyPath, accept_licence: bool = False, what: str = "A model (--checkpoint)", kinds: Sequence[str] = MODELS
) -> Path:
    """Returns the folder of a model; downloads and converts the model if necessary.

    Args:
        source: Folder of a model, folder or `.pth` of a Coqui model, `hf://owner/name[@revision]`, or `base` (bundled).
        accept_licence: Whether to accept a hub model's licence. If False, the user is asked, once per commit.
        what: Name of the option in error messages.
        kinds: Kinds of folders to accept, keys of `storage.base_model.KINDS`.

    Raises `UserError` if the model does not exist, cannot be downloaded or converted, or its licence was not accepted.
    """
    if not is_hub_name(source):
        release = find_release(source)
        return imported_release(release) if release else require_kind(source, what, kinds)
    (repository, revision), hub = parse_hub_name(source), import_hub()
    if source not in _FOUND or not _FOUND[source].is_dir():
        with hub_errors(source):
            terms = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=TERMS))
        if not (home := Path(hub.constants.HF_HOME, "myxtts", repository.replace("/", "--"), terms.name)).is_dir():
            _require_licence(source, terms, accept_licence)
            patterns = [*_OWN_FILES, *_RELEASED_FILES]
            with hub_errors(source):
                snapshot = hub.snapshot_download(repository, revision=terms.name, allow_patterns=patterns)
            make_once(home, lambda: _make_folder(source, Path(snapshot), home))
        _FOUND[source] = home
    return _FOUND[source]


@contextmanager
def hub_errors(source: str) -> Iterator[None]:
    """Context manager that converts errors of `huggingface_hub` to `HubError`s about the model `source`."""
    from huggingface_hub import constants

    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("huggingface_hub", "httpx")):
            raise
        kinds = [kind.__name__ for kind in type(error).__mro__]
        message = next(text for kind, text in _MESSAGES.items() if kind in kinds)
        page = f"{constants.ENDPOINT}/{parse_hub_name(source)[0]}"
        reason = " ".join(str(error).split())[:300]
        raise HubError(f"{source} {message.format(page=page, home=constants.HF_HOME, reason=reason)}.") from error


def ask_on_terminal(question: str) -> bool | None:
    """Asks a yes-or-no question and returns the answer; None if there is no terminal."""
    if not (sys.stdin and sys.stdin.isatty()):
        return None
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def describe_licence(source: str, terms: Path) -> tuple[bool, str]:
    """Returns a pair: whether the model card in folder `terms` names a licence, and a message about it for users."""
    from huggingface_hub.repocard import metadata_load

    try:
        head = metadata_load(terms / "README.md") or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        head = {}
    licence, link = head.get("license_name") or head.get("license"), head.get("license_link")
    shown = f"{source} has the licence {licence!s:.200}" if licence else f"{source} names no licence"
    shown = printable(shown + f" ({link!s:.200})" * bool(licence and link))
    if texts := [str(path) for path in sorted(terms.glob("LICEN*"))]:
        shown += f"; its text: {', '.join(texts)}"
    return bool(licence), shown


def _require_licence(source, terms, accepted):
    """Prints a model's licence and, unless `accepted`, asks the user. Raises `HubError` if the user does not accept."""
    has_licence, shown = describe_licence(source, terms)
    print(f"{shown}.", file=sys.stderr, flush=True)
    answer = accepted or ask_on_terminal("Do you accept it?" if has_licence else "Use the model without one?")
    if answer is None:
        raise HubError(f"{shown}. Read it, then accept it with --accept-licence (accept_licence=True from Python).")
    if not answer:
        raise HubError(f"{shown}. It was not accepted, and the model was not downloaded.")


def _make_folder(source, snapshot, home):
    """Verifies the downloaded files in `snapshot` and turns them into the model folder `home`."""
    from huggingface_hub.utils import filter_repo_objects

    paths = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    is_own = any(fnmatch(path, "gpt/step_*/manifest.json") for path in paths)
    if not is_own and not {RELEASE, RELEASED_NAMES["vocab"]} <= {*paths}:
        raise HubError(f"{source} is neither a model of XTTS v2 ({RELEASE}, vocab.json) nor of MyXTTS (gpt/step_…).")
    paths = [*filter_repo_objects(paths, allow_patterns=_OWN_FILES if is_own else _RELEASED_FILES)]
    for path in paths:
        check_digest(source, snapshot / path)
    if not is_own:
        print(f"Converting {source} into {home}", file=sys.stderr, flush=True)
        import_coqui(CoquiFiles.of(snapshot / RELEASE), home)
        return
    with write_whole_folder(home) as new:
        for path in paths:
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(os.path.realpath(snapshot / path), new / path)  # neither file is ever changed
            except OSError:
                shutil.copyfile(snapshot / path, new / path)


def check_digest(source: str, path: Path):
    """Checks a downloaded file against its checksum. If they differ, deletes the file and raises `HubError`."""
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


def push(model: Any, target: str, private: bool = False, licence: str | None = None) -> str:
    """Uploads an `XTTS`, its voices and a model card, and returns the URL of the repository on the hub.

    Creates the repository if necessary, and replaces its checkpoints and voices. Uploads no local paths or recordings.

    Args:
        target: Name of the repository, `hf://owner/name[@branch]`.
        private: Whether a new repository is private.
        licence: Identifier of the licence for the model card, such as `cc-by-4.0`.

    Raises `UserError` if the model has no tokenizer, and `HubError` if `target` is no hub name or the hub fails."""
    (repository, branch), hub = parse_hub_name(str(target)), import_hub()
    from myxtts.inference.loading import save_to_preset  # imports TensorFlow, which the card does not need

    temporary = files.temporary_path(Path(tempfile.gettempdir(), "push"))
    files.remove_leftovers(temporary.parent, "push")  # of killed processes
    temporary.mkdir(mode=0o700)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        stack.enter_context(files.locked_folder(temporary, f"{temporary} is in use by another process."))
        save_to_preset(model, folder := temporary / "model")
        config = replace(model.preset[1], model=model.config)
        write_json(folder / "config.json", without_places(config).to_dict())
        write_text(folder / "README.md", model_card(repository, config, model.origin, licence))
        with hub_errors(target):
            url = hub.create_repo(repository, private=private, exist_ok=True)
            hub.upload_folder(
                repo_id=repository,
                revision=branch,
                folder_path=folder,
                commit_message=f"Model trained with MyXTTS {myxtts.__version__}",
                delete_patterns=[*(f"{part}/*" for part in STAGES), SPEAKERS_FILE, CONFIDENCE_FILE],
            )
    return str(url)


def without_places(config: XTTSConfig) -> XTTSConfig:
    """Returns the settings without the paths, commands and addresses of this machine, so that they can be published."""
    data = replace(config.data, **dict.fromkeys((*PATHS, "vocabulary")), audio_roots=())
    base = config.training.init_from
    if base and not is_hub_name(base):  # not None, because a model without a base splits texts differently
        base = BASE_NAME if is_base(base) else "unpublished"
    places = dict(checkpoint_dir="./checkpoints", init_from=base, workers=(), worker_index=0)
    places |= dict.fromkeys(("tensorboard_log_dir", "evaluation_recognizer"))
    return replace(config, data=data, training=replace(config.training, **places))


def model_card(repository: str, config: XTTSConfig, origin: str | os.PathLike | None, licence: str | None) -> str:
    """Returns the text of the model card. If `origin` is a run's folder, the card lists the run's data and losses."""
    base = config.training.init_from
    head = {
        "license": licence,
        "pipeline_tag": "text-to-speech",
        "library_name": "myxtts",
        "base_model": parse_hub_name(base)[0] if is_hub_name(base) else None,
        "tags": ["text-to-speech", "xtts", "voice-cloning"],
    }
    import jinja2  # downloads do not need it

    template = Path(__file__).with_name("hub_card.md").read_text("utf-8")
    return jinja2.Template(template, trim_blocks=True, keep_trailing_newline=True).render(
        repository=repository,
        head=yaml.safe_dump({name: value for name, value in head.items() if value}, sort_keys=False),
        version=myxtts.__version__,
        model=config.model,
        lists=list(_lists(Path(origin))) if origin else [],
        stages=list(_stages(Path(origin))) if origin else [],
    )


def _lists(origin):
    """Yields `(title, number of accepted clips, minutes of audio)` for a run's training and validation sets."""
    for name, title in (("train", "Training"), ("validation", "Validation")):
        if listed := read_csv(origin / f"clips_{name}.csv"):
            rows = [row for row in listed if row.get("verdict") != "rejected"]
            yield title, len(rows), sum(map(listed_seconds, rows)) / 60


def _stages(origin):
    """Yields `(stage, steps, shown step, losses)` for each stage of a run. `steps` is `(last step, best step)`, or None
    if the run did not train the stage. The shown step is the best step or, if the losses of the best step are unknown,
    the last step with known losses. `losses` are the validation losses of the shown step, as texts."""
    for stage, store in stores_in(origin).items():
        state, best_step = store.read_state(store.steps()[-1]), store.best_step()
        was_trained = "position" in state and "taken_from" not in state
        trained_steps = (state["step"], best_step or state["step"]) if was_trained else None
        history = {row["step"]: row for row in state.get("history", [])}
        best = history.get(best_step) or (history[max(history)] if history else {})
        losses = [f"{printable(name)} {value:.4f}" for name, value in best.items() if name != "step"]
        yield stage, trained_steps, best.get("step"), losses
