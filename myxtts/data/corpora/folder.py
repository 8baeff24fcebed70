"""Reads untrusted data sets safely: limits file sizes, and restricts access to files outside the data set."""

import itertools
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from myxtts.audio.files import AUDIO_EXTENSIONS, CONVERT, MEDIA_EXTENSIONS
from myxtts.config.checks import UNPRINTABLE, UserError, printable, read_bounded

MAX_LIST_BYTES = 256 * 2**20
MAX_LINES = 2_000_000
MAX_TRANSCRIPT_BYTES = 65_536
MAX_NAME_LENGTH = 512
"""Maximum length of ids, speaker names and languages."""
_TRIED = f"({', '.join(AUDIO_EXTENSIONS)} were tried)"
_OUTSIDE = "leads outside the data set; it was not opened. --audio-root allows another folder."


class CorpusError(UserError):
    """Error for a data set or list that cannot be read."""


class TextsMissing(CorpusError):
    """Error for recordings without transcripts, or with only subtitles. `root` is the file or folder that was given."""

    def __init__(self, message: str, root: Path, recordings: list[Path]):
        super().__init__(message)
        self.root, self.recordings = root, recordings


@dataclass(eq=False)
class ClipRefused(Exception):
    """Raised to reject one clip. `path` is the file with the problem; None means the list of clips."""

    reason: str
    detail: str
    path: Path | None = None


class CorpusFolder:
    """Access to the files of one data set. `root` is an absolute path without symbolic links. Audio files may also be
    in `audio_roots`. A link to audio elsewhere is followed if the user owns both the link and its target."""

    def __init__(self, root: str | Path, audio_roots: Sequence[str | Path] = ()):
        self.root = Path(root).resolve()
        self.given_roots = self.audio_roots = tuple(Path(one).resolve() for one in audio_roots)
        # Roots are also kept with their symbolic links, because paths in lists may contain such links.
        written = (Path(os.path.abspath(one)) for one in (root, *audio_roots))
        self._roots = dict.fromkeys([self.root, *self.audio_roots, *written])
        self.linked: set[Path] = set()
        """Folders outside the data set from which audio is read, because symbolic links or a list point to them."""
        self.searched: set[Path] = {*self.audio_roots}
        """Folders of the list being read and `given_roots`: their direct subfolders are also searched for audio."""
        self._links: set[Path] = set()
        # Formats read a list twice: to recognize it, and to read its clips.
        self.read_lines = lru_cache(maxsize=2)(self._read_lines)
        self._list, self._below = cache(self._find_entries), cache(self._find_below)
        self._on_disk = cache(self._find_on_disk)

    def allow(self, folder: Path):
        """Adds a folder to `audio_roots`, so that audio files in it may be opened."""
        self.audio_roots += (folder.resolve(),)
        self._roots |= dict.fromkeys((folder, folder.resolve()))

    def allow_named(self, names: Collection[str]):
        """If at least half of `names` are audio files outside the data set, adds their common folder to `audio_roots`.
        Does nothing if `audio_roots` has entries, or if that folder is `/` or belongs to another user."""
        away = [name for name in names if (name[:1] == "/" or ".." in name) and name.lower().endswith(AUDIO_EXTENSIONS)]
        paths = [Path(os.path.normpath(self.root / name.replace("\\", "/"))) for name in away]
        outside = [path for path in paths if not any(path.is_relative_to(root) for root in self._roots)]
        if self.audio_roots or not outside or 2 * len(outside) < len(names):
            return
        common = Path(os.path.commonpath([path.parent for path in outside]))
        if os.path.isdir(common) and common.parent != common and os.stat(common).st_uid == os.geteuid():
            self.allow(common)
            self.linked.add(common)

    def files(self, folder: Path) -> dict[str, str]:
        """Returns the files in a folder as `{normalized name: name on disk}`, or {} if there is no such folder.
        Raises `ClipRefused` if the folder is outside the data set or cannot be listed."""
        return self._list(folder)[0]

    def subfolders(self, folder: Path) -> list[Path]:
        """Returns the sorted subfolders of a folder, except hidden ones. Raises the same exceptions as `files`."""
        return self._list(folder)[1]

    def walk(self, folder: Path, depth: int) -> Iterator[Path]:
        """Yields the subfolders of a folder, down to `depth` levels. Skips folders that cannot be listed."""
        for path in self.subfolders(folder) if depth else ():
            if path in self._links and path.is_relative_to(os.path.realpath(path)):
                continue  # a link to a parent folder
            with suppress(ClipRefused):
                self._list(path)
                yield path
                yield from self.walk(path, depth - 1)

    def _find_below(self, place):
        """Returns `{name: [subfolder, …]}`: for each file or folder name, the subfolders of `place` that contain it."""
        found: dict[str, list[Path]] = {}
        for folder in self._list(place, for_audio=True)[1]:
            with suppress(ClipRefused):
                for one in itertools.chain(*self._list(folder, for_audio=True)):
                    found.setdefault(file_key(os.path.basename(one)), []).append(folder)
        return found

    def _find_on_disk(self, folder):
        """Returns `folder`, spelled in the Unicode form that the disk uses, or unchanged if it does not exist."""
        if os.path.isdir(folder) or not any(folder.is_relative_to(root) for root in self._roots):
            return folder
        beside, key = self._list(folder.parent, for_audio=True)[1], file_key(folder.name)
        return next((one for one in beside if file_key(one.name) == key), folder)

    def _find_entries(self, folder, for_audio=False):
        """Lists a folder: returns the result of `files` and sorted subfolders. `for_audio`: see `_check_links`."""
        folder = self._on_disk(folder)
        if not os.path.isdir(folder):
            return {}, []
        self._check_links(folder, for_audio)
        try:
            entries = [entry for entry in os.scandir(folder) if entry.name[:2] != "._"]  # macOS metadata
        except OSError as error:
            raise ClipRefused("unreadable", f"Its folder cannot be listed: {error.strerror}.", folder) from error
        if folder not in self._roots and any(re.match("inspected_.{8}[.]json", entry.name) for entry in entries):
            entries = []  # the folder of a run, whose recordings and lists are not part of the data set
        self._links.update(folder / entry.name for entry in entries if entry.is_symlink())
        names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
        is_folder = lambda entry: os.path.isdir(entry) if entry.is_symlink() else entry.is_dir()
        folders = sorted(folder / entry.name for entry in entries if is_folder(entry) and entry.name[0] != ".")
        return {file_key(name): name for name in names}, folders

    def has(self, folder: Path, *names: str) -> bool:
        """Returns whether a folder contains files with all these `names`. Raises the same exceptions as `files`."""
        return all(name in self.files(folder) for name in names)

    def stems(self, folder: Path, suffixes: Sequence[str] = AUDIO_EXTENSIONS) -> set[str]:
        """Returns the names of files with `suffixes`, without the suffix. Raises the same exceptions as `files`."""
        return {name.removesuffix(end) for name in self.files(folder) for end in suffixes if name[1:].endswith(end)}

    def find_audio(self, places: Sequence[Path], parts: list[str]) -> Path:
        """Returns the path of a clip's audio file. Searches `places`, `audio_roots` and subfolders (see `searched`).

        `parts` are the components of the file's path, with or without extension. Raises `ClipRefused` if the file is
        missing, is in several subfolders, or is a link to another user's file outside the data set.
        """
        *folders, name = parts
        keys = audio_keys(name)
        direct = dict.fromkeys((*places, *self.audio_roots))
        searched = [place for place in direct if place in self.searched]
        firsts = map(file_key, folders[:1] or keys)
        below = (subfolder for key in firsts for place in searched for subfolder in self._below(place).get(key, ()))
        found = {}
        for place in itertools.chain(direct, below):
            folder = self._on_disk(place.joinpath(*folders))
            files, _ = self._list(folder, for_audio=True)
            key = next((key for key in keys if key in files), None)
            if key is None:
                continue
            path = folder / files[key]
            # The folder was checked when it was listed, so only links need a check.
            if path in self._links:
                self._check_links(path, for_audio=True)
            if place in direct:
                return path
            found[os.path.realpath(path)] = path
        if len(paths := [*found.values()]) > 1:
            both = " and ".join(map(self.relative, paths[:2]))
            raise ClipRefused("several files", f"{both} have its name. List a folder, or give --audio-root.", paths[-1])
        if paths:
            return paths[0]
        others = MEDIA_EXTENSIONS[len(AUDIO_EXTENSIONS) :]
        beside = (self._list(place.joinpath(*folders), for_audio=True)[0] for place in direct)
        is_other = any(key in files for files in beside for key in audio_keys(name, others))
        hint = CONVERT if is_other or name.lower().endswith(others) else "--audio-root DIR searches another folder too"
        path = places[0].joinpath(*folders, keys[0])
        raise ClipRefused("missing file", f"There is no audio file {'/'.join(parts)} {_TRIED}. {hint}.", path)

    def has_audio(self, places: Sequence[Path], name: str) -> bool:
        """Returns whether the clip `name` has an audio file. Unlike `find_audio`, allows several matches."""
        try:
            return bool(self.find_audio(places, self.name_to_parts(name)))
        except ClipRefused as refused:
            return refused.reason == "several files"

    def name_to_parts(self, name: str) -> list[str]:
        """Splits a clip's path, as given in a list, into components relative to the data set. For a path in one of
        `audio_roots`, the first component is the path of that root. Raises `ClipRefused` if the path is invalid.

        An absolute path that does not exist, or a relative path whose first folder does not exist, may be from another
        computer. In this case, removes leading folders until the rest leads to an audio file in a folder of `searched`.
        """
        if not is_name(name):
            raise ClipRefused("bad id", f"The id has over {MAX_NAME_LENGTH} characters, or control characters.")
        name, first = name.replace("\\", "/"), []
        if climbs := ".." in name.split("/"):  # perhaps back into the data set, or to an audio root
            name = Path(os.path.normpath(self.root / name)).as_posix()
        if root := next((one for one in self._roots if name.startswith(f"{one.as_posix()}/")), None):
            name = name.removeprefix(f"{root.as_posix()}/")
            first = [] if root.resolve() == self.root else [str(root)]
        parts = [part for part in name.split("/") if part not in ("", ".")]
        is_full = name.startswith("/") or re.match("[A-Za-z]:/", name)
        is_here = os.path.exists(name) if is_full else not parts[1:] or first or self._has_folder(parts[0])
        for end in (parts[n:] for n in range(0 if climbs or is_here else len(parts))):
            inner = (self._list(place.joinpath(*end[:-1]), for_audio=True)[0] for place in self.searched)
            if any(key in files for files in inner for key in audio_keys(end[-1])):
                return end
        if is_full:
            raise ClipRefused("outside the data set", f"The id {_OUTSIDE}")
        if not parts:
            raise ClipRefused("no id", "The column that names the clip is empty.")
        return first + parts

    def _has_folder(self, name):
        """Returns whether a folder in `searched`, or one of its subfolders, contains a folder of this name."""
        return any(os.path.isdir(self._on_disk(at / name)) or file_key(name) in self._below(at) for at in self.searched)

    def _check_links(self, path, for_audio=False):
        """Raises `ClipRefused` if `path`, with links resolved, is neither in the data set nor in `audio_roots`.
        With `for_audio`, accepts an audio file or a folder elsewhere too, if the user owns it and the links to it."""
        real = Path(os.path.realpath(path))
        links = [one for one in (path, *path.parents) if one.is_relative_to(self.root) and one.is_symlink()]
        # Folders from `allow_named` are only for audio files that a list names, not for other files or links.
        roots = self.root, *(self.audio_roots if for_audio and not links else self.given_roots)
        if any(real.is_relative_to(root) for root in roots):
            return
        is_audio = for_audio and (real.is_dir() or real.is_file() and real.suffix.lower() in AUDIO_EXTENSIONS)
        if not (is_audio and {one.lstat().st_uid for one in (*links, real)} == {os.geteuid()}):
            raise ClipRefused("outside the data set", f"A link {_OUTSIDE}", path)
        self.linked.add(real if real.is_dir() else real.parent)

    def read_text(self, path: Path, max_bytes: int) -> str:
        """Reads a UTF-8 file (or UTF-16 with a byte-order mark) and converts its line ends to `\\n`.

        The names in `path` may be normalized (see `files`). Raises `CorpusError` if the file is outside the data set,
        unreadable, larger than `max_bytes` or in another encoding.
        """
        try:
            path = self._on_disk(path.parent) / self.files(path.parent).get(path.name, path.name)
            self._check_links(path)
            text = read_bounded(path, max_bytes)
        except ClipRefused as refused:
            raise CorpusError(f"{path}: {refused.detail}") from refused
        except OSError as error:
            raise CorpusError(f"{path} cannot be read: {error.strerror}.") from error
        except UnicodeError as error:
            raise CorpusError(f"{path} {error}. Save it as UTF-8 under the same name (Excel: CSV UTF-8).") from error
        except ValueError as error:
            raise CorpusError(f"{path} {error}.{' Split it.' * (path.stat().st_size > max_bytes)}") from error
        if text.count("\0") > len(text) // 4:
            raise CorpusError(f"{path} is not UTF-8 but UTF-16 without a byte-order mark. Save the file as UTF-8.")
        # Not `str.splitlines`, which also splits at characters that transcripts may contain.
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _read_lines(self, path: Path) -> list[str]:
        """Returns the lines of a list of clips, without empty last lines. Raises the same exceptions as `read_text`."""
        text = self.read_text(path, MAX_LIST_BYTES).rstrip("\n")
        if path.suffix == ".json" and text.lstrip().startswith(("[", "{")):
            with suppress(ValueError, TypeError, LookupError, RecursionError):  # one object per line, or not clips
                if isinstance(rows := json.loads(text), dict):  # `{name of the clip: text or object}`
                    names = {name: {"id": name} for name in rows if name.lower().endswith(MEDIA_EXTENSIONS)}
                    rows |= {name: {"text": rows[name]} for name in names if isinstance(rows[name], str)}
                    rows = [{"id": key, "text": row["text"], **row, **names.get(key, {})} for key, row in rows.items()]
                text = "\n".join(map(json.dumps, rows))  # a line for each clip
        if text.count("\n") >= MAX_LINES:
            raise CorpusError(f"{path} has over {MAX_LINES} lines, the maximum. Split the data set.")
        return text.split("\n") if text else []

    def relative(self, path: Path) -> str:
        """Returns a path for messages: relative to the data set, and with unprintable characters escaped."""
        return printable(relative_path(path, self.root))


def relative_path(path: Path, root: Path) -> str:
    """Returns `path` with forward slashes, and relative to `root` if `path` is below `root`."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def parts_to_id(parts: list[str]) -> str:
    """Converts the components of a clip's path to its id, e.g. `["wavs", "b.wav"]` to `b`."""
    parts = [part for part in parts if not os.path.isabs(part)]
    parts = parts[1:] if parts[0] == "wavs" and len(parts) > 1 else parts
    stem, extension = os.path.splitext(parts[-1])
    name = stem if extension.lower() in MEDIA_EXTENSIONS else parts[-1]
    return unicodedata.normalize("NFC", "/".join([*parts[:-1], name]))


def audio_keys(name: str, kinds: Sequence[str] = AUDIO_EXTENSIONS) -> list[str]:
    """Returns the `file_key`s to try for a clip's audio, best first: `name` with each of the extensions in `kinds`."""
    stem, kind = os.path.splitext(name)
    stem = stem if kind.lower() in MEDIA_EXTENSIONS else name
    return [file_key(stem + one) for one in sorted(kinds, key=lambda one: one != kind.lower())]


def is_name(text: str) -> bool:
    """Returns whether `text` can be a name: printable, and at most `MAX_NAME_LENGTH` long."""
    return len(text) <= MAX_NAME_LENGTH and not UNPRINTABLE.search(text)


def file_key(name: str) -> str:
    """Normalizes a file name for look-up: Unicode NFC (macOS decomposes letters), and the extension in lower case."""
    stem, extension = os.path.splitext(unicodedata.normalize("NFC", name))
    return stem + extension.lower()
