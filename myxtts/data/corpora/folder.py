"""Safe access to a folder that somebody else made: nothing outside it is opened, and sizes are limited."""

import os
import re
import stat
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS
from myxtts.config.checks import UNPRINTABLE, UserError, printable

MAX_LIST_BYTES = 256 * 2**20
MAX_LINES = 2_000_000
MAX_LINE_CHARACTERS = 65_536
MAX_NAME_CHARACTERS = 512
"""Of an id, a speaker or a language."""


class CorpusError(UserError):
    """A folder or a list that cannot be used as a whole."""


class TextsMissing(CorpusError):
    """Recordings that have no texts, or only subtitles: at `root`, which is one of them or a folder of them."""

    def __init__(self, message: str, root: Path, recordings: list[Path]):
        super().__init__(message)
        self.root, self.recordings = root, recordings


@dataclass(eq=False)
class ClipRefused(Exception):
    """Ends the reading of one clip. `path` is the file at fault where that is not the list."""

    reason: str
    detail: str
    path: Path | None = None


class CorpusFolder:
    """The files of one data set. `root` is absolute and free of links.

    Audio may also lie in `audio_roots`, and where a link of the user's leads to files that are the user's too.
    """

    def __init__(self, root: str | Path, audio_roots: Sequence[str | Path] = ()):
        self.root = Path(root).resolve()
        self.audio_roots = tuple(Path(one).resolve() for one in audio_roots)
        # As written, too: lists name files by the path that people see, which a link may be part of.
        written = (Path(os.path.abspath(one)) for one in (root, *audio_roots))
        self._roots = dict.fromkeys([self.root, *self.audio_roots, *written])
        self.linked: set[Path] = set()
        """The user's folders outside the data set that audio is taken from, through links or by their full path."""
        self._listings: dict[tuple[Path, bool], tuple[dict[str, str], list[Path]]] = {}
        self._links: set[Path] = set()
        # A format looks into a list to recognize it, and then reads it.
        self.read_lines = lru_cache(maxsize=2)(self._read_lines)

    def allow(self, folder: Path):
        """Counts a folder among the `audio_roots`."""
        self.audio_roots += (folder.resolve(),)
        self._roots |= dict.fromkeys((folder, folder.resolve()))

    def allow_named(self, names: Collection[str]):
        """Allows the user's own folder outside the data set in which at least half of a list's names have audio."""
        away = [name for name in names if (name[:1] == "/" or ".." in name) and name.lower().endswith(AUDIO_EXTENSIONS)]
        paths = [Path(os.path.normpath(self.root / name)) for name in away]
        outside = [path for path in paths if not any(path.is_relative_to(root) for root in self._roots)]
        if self.audio_roots or not outside or 2 * len(outside) < len(names) or not hasattr(os, "geteuid"):
            return
        common = Path(os.path.commonpath([path.parent for path in outside]))
        if common.is_dir() and os.stat(common).st_uid == os.geteuid():
            self.allow(common)
            self.linked.add(common)

    def subfolders(self, folder: Path) -> list[Path]:
        """The folders directly under another, without hidden ones, in order of name. Raises as `files` does."""
        return self._list(folder)[1]

    def walk(self, folder: Path, depth: int) -> Iterator[Path]:
        """The folders below another in order of name, `depth` levels down, without those that may not be listed."""
        for path in self.subfolders(folder):
            if path in self._links and path.is_relative_to(os.path.realpath(path)):
                continue  # a circle
            try:
                self._list(path)
            except ClipRefused:
                continue
            yield path
            if depth > 1:
                yield from self.walk(path, depth - 1)

    def files(self, folder: Path) -> dict[str, str]:
        """Lists a folder, once: `{name as a list would write it: name on disk}` of what is not itself a folder.

        One that does not exist is empty; one outside the data set, or that cannot be listed, raises `ClipRefused`.
        """
        return self._list(folder)[0]

    def _list(self, folder, for_audio=False):
        if (folder, for_audio) not in self._listings:
            self._linked_audio(folder) if for_audio else self._inside(folder)
            try:
                with os.scandir(folder) as listing:
                    entries = [*listing]
            except (FileNotFoundError, NotADirectoryError):
                return {}, []
            except OSError as error:
                raise ClipRefused("unreadable", f"Its folder cannot be listed: {error.strerror}.", folder) from error
            self._links.update(folder / entry.name for entry in entries if entry.is_symlink())
            names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
            folders = sorted(folder / entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
            self._listings[folder, for_audio] = {_file_key(name): name for name in names}, folders
        return self._listings[folder, for_audio]

    def has(self, folder: Path, *names: str) -> bool:
        """Whether a folder holds all of these files. Raises as `files` does."""
        return all(name in self.files(folder) for name in names)

    def audio_stems(self, folder: Path) -> set[str]:
        """Names without extension of the audio files in a folder. Raises as `files` does."""
        return {stem for stem, extension in map(os.path.splitext, self.files(folder)) if extension in AUDIO_EXTENSIONS}

    def find_audio(self, places: Sequence[Path], parts: list[str]) -> Path:
        """The audio file of a clip, by its full name or without its extension, in the first of `places` that has it.

        The `audio_roots` are looked at last. A file that is missing, or a link that leads outside the data set to what
        is not the user's, raises `ClipRefused`.
        """
        has_extension = parts[-1].lower().endswith(AUDIO_EXTENSIONS)
        keys = [_file_key(parts[-1] + extension) for extension in ([""] if has_extension else AUDIO_EXTENSIONS)]
        for place in dict.fromkeys((*places, *self.audio_roots)):
            place = place.joinpath(*parts[:-1])
            files, _ = self._list(place, for_audio=True)
            if key := next((key for key in keys if key in files), None):
                path = place / files[key]
                # The folder itself was checked when it was listed: no look at the disk for each clip.
                return self._linked_audio(path) if path in self._links else path
        tried = "" if has_extension else f" with one of the extensions {', '.join(AUDIO_EXTENSIONS)}"
        detail = (
            f"There is no audio file {Path(*parts).as_posix()}{tried}. --audio-root DIR looks in another folder too."
        )
        raise ClipRefused("missing file", detail, places[0].joinpath(*parts[:-1], keys[0]))

    def has_audio(self, places: Sequence[Path], name: str) -> bool:
        """Whether what a list calls a clip is in one of the places."""
        try:
            return bool(self.find_audio(places, self.name_to_parts(name)))
        except ClipRefused:
            return False

    def name_to_parts(self, name: str) -> list[str]:
        """Splits what a list calls a clip into path parts that cannot leave the data set by their spelling.

        The first part of a file in one of the `audio_roots`, named by its full path, is that root. A name that is
        missing, malformed, or leads elsewhere raises `ClipRefused`.
        """
        if not is_name(name):
            detail = f"The id has over {MAX_NAME_CHARACTERS} characters or holds control or direction characters."
            raise ClipRefused("bad id", detail)
        name, first = name.replace("\\", "/"), []
        if self.audio_roots and ".." in name.split("/"):
            # The root may lie beside one that the user named.
            name = Path(os.path.normpath(self.root / name)).as_posix()
        for root in self._roots:
            if name.startswith(f"{root.as_posix()}/"):
                name = name.removeprefix(f"{root.as_posix()}/")
                first = [] if root.resolve() == self.root else [str(root)]
                break
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or re.match("[A-Za-z]:/", name) or ".." in parts:
            detail = "The id leads outside the data set; it was not opened. --audio-root allows another folder."
            raise ClipRefused("outside the data set", detail)
        if not parts:
            raise ClipRefused("no id", "The column that names the clip is empty.")
        return first + parts

    def _inside(self, path):
        """Returns `path`; a link that leads outside the data set and the `audio_roots` is refused (`ClipRefused`)."""
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(root) for root in (self.root, *self.audio_roots)):
            detail = "A link leads outside the data set; it was not opened. --audio-root allows its target."
            raise ClipRefused("outside the data set", detail, path)
        return path

    def _linked_audio(self, path):
        """As `_inside`, but links of the user's to audio files or folders that are the user's, too, are followed."""
        try:
            return self._inside(path)
        except ClipRefused:
            real = Path(os.path.realpath(path))
            if not _is_users(path, real, self.root):
                raise
        self.linked.add(real if real.is_dir() else real.parent)
        return path

    def read_text(self, path: Path, max_bytes: int) -> str:
        """Reads a UTF-8 file (or UTF-16 with a byte-order mark); every kind of line end becomes `\\n`.

        Its name may be the one on the disk or the one in `files`.

        Raises:
            CorpusError: The file leads outside, cannot be read, is too large, or is in another encoding.
        """
        try:
            path = path.with_name(self.files(path.parent).get(path.name, path.name))
            # Before it is opened: a pipe would wait for a writer for ever.
            if not stat.S_ISREG(os.stat(self._inside(path)).st_mode):
                raise CorpusError(f"{path} is not a regular file.")
            with open(path, "rb") as file:
                data = file.read(max_bytes + 1)
        except ClipRefused as refused:
            raise CorpusError(f"{path}: {refused.detail}") from refused
        except OSError as error:
            raise CorpusError(f"{path} cannot be read: {error.strerror}.") from error
        if len(data) > max_bytes:
            raise CorpusError(f"{path} is too large: at most {max_bytes} bytes are read. Split the data set.")
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data[: error.start].decode(encoding, "replace").count("\n") + 1
            found = f"line {line} holds the byte 0x{data[error.start]:02X}, which is invalid there"
            name = encoding.removesuffix("-sig").upper()
            if name == "UTF-8":
                around = data[max(error.start - 8, 0) : error.start + 8].decode("cp1252", "replace")
                found += f"; as Windows-1252 it reads {' '.join(around.split())!r}"
            raise CorpusError(
                f"{path} is not {name}: {found}. Save the file as UTF-8 (in Excel, as CSV UTF-8)."
            ) from error
        if text.count("\0") > len(text) // 4:
            found = "line 1 looks like UTF-16 without a byte-order mark"
            raise CorpusError(f"{path} is not UTF-8: {found}. Save the file as UTF-8.")
        # Only these end a line: `str.splitlines` would also cut at characters that are part of a text.
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _read_lines(self, path: Path) -> list[str]:
        """Reads a list as lines, without the empty ones at its end. Raises `CorpusError` as `read_text` does."""
        text = self.read_text(path, MAX_LIST_BYTES).rstrip("\n")
        if text.count("\n") >= MAX_LINES:
            raise CorpusError(f"{path} has over {MAX_LINES} lines; no more are read. Split the data set.")
        return text.split("\n") if text else []

    def relative(self, path: Path) -> str:
        """`path` as seen from the root where it lies below it, with forward slashes, fit to print."""
        return printable(relative_path(path, self.root))


def relative_path(path: Path, root: Path) -> str:
    """`path` as seen from `root`, or in full where it lies elsewhere, with forward slashes."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _is_users(path, real, root):
    """Whether all links in `path` below `root`, and what they lead to, are this user's: a folder, or an audio file."""
    if not hasattr(os, "geteuid"):  # Windows has no such owners
        return False
    links = [one for one in (path, *path.parents) if one.is_relative_to(root) and one != root and one.is_symlink()]
    try:
        target = os.stat(real)
        owners = {target.st_uid, *(os.lstat(link).st_uid for link in links)}
    except OSError:
        return False
    is_audio = stat.S_ISREG(target.st_mode) and real.suffix.lower() in AUDIO_EXTENSIONS
    return owners == {os.geteuid()} and (is_audio or stat.S_ISDIR(target.st_mode))


def parts_to_id(parts: list[str]) -> str:
    """The id of a clip from the parts of its name: `wavs/b.wav` and `b` are the same clip."""
    parts = [part for part in parts if not os.path.isabs(part)]
    parts = parts[1:] if parts[0] == "wavs" and len(parts) > 1 else parts
    stem, extension = os.path.splitext(parts[-1])
    name = stem if extension.lower() in AUDIO_EXTENSIONS else parts[-1]
    return unicodedata.normalize("NFC", "/".join([*parts[:-1], name]))


def is_name(text: str) -> bool:
    """Whether `text` is short enough for a name and holds nothing that a terminal might obey or cannot show."""
    return len(text) <= MAX_NAME_CHARACTERS and not UNPRINTABLE.search(text)


def _file_key(name):
    """macOS stores names decomposed, and Windows tools write `.WAV`: neither is what a list says."""
    stem, extension = os.path.splitext(unicodedata.normalize("NFC", name))
    return stem + extension.lower()
