"""The data doctor: decodes every clip of a corpus and says of each whether it can be trained on, and why not."""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.files import AudioError, read_audio, to_pcm16
from myxtts.config.checks import counted, read_bounded, require
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.corpora import Corpus, Finding, Utterance, load_corpus
from myxtts.data.corpora.folder import relative_path
from myxtts.data.splits import Leak, find_leakage
from myxtts.storage.files import csv_text, digest_bytes, write_text
from myxtts.text.tokenizer import XTTSTokenizer

MAX_CHARACTERS_PER_SECOND = 40.0
"""Nobody speaks so fast: the transcript belongs to other audio, or the audio was cut."""
MIN_CHARACTERS_PER_SECOND = 2.0
"""Below it a clip gets a warning: part of its transcript may be missing, or much of it is silence."""
_CACHE_FORMAT = 4
_MAX_CACHE_BYTES = 2**30
_CHUNK_CLIPS = 1_024
# Clips that end in the middle of a sound have 0.3 to 2 times their mean level in the last 20 ms; LJSpeech, VCTK and
# other carefully cut recordings stay below 0.15.
_CUT_SECONDS = 0.02
_CUT_LEVEL = 0.5
_CONTROL_CHARACTER = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")

_COLUMNS = ("id", "verdict", "reason", "detail", "path", "line", "seconds")

Progress = Callable[[int, int], None]
"""Called with how many clips are done, and of how many."""


@dataclass(frozen=True)
class ClipLimits:
    """Lengths that a clip must keep to."""

    min_seconds: float = 0.1
    max_seconds: float = 30.0

    def __post_init__(self):
        require(self.min_seconds < self.max_seconds, "min_seconds", f"below {self.max_seconds}", self.min_seconds)


@dataclass(frozen=True)
class Inspection:
    """Every clip of the corpus at `root` is either in `accepted` or in `rejections`, which include the corpus's own."""

    root: Path
    accepted: tuple[Utterance, ...]
    rejections: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    """Of accepted clips."""
    notes: tuple[str, ...]

    @property
    def given(self) -> int:
        """How many clips the folder names, usable or not."""
        return len(self.accepted) + len(self.rejections)

    def checked(self, check_text: Callable[[str, str], str | None]) -> "Inspection":
        """The inspection without the clips for whose text and language `check_text` returns what is wrong with it."""
        faults = [check_text(utterance.text, utterance.language) for utterance in self.accepted]
        refused = [
            _finding(self.root, clip, "text not usable", fault) for clip, fault in zip(self.accepted, faults) if fault
        ]
        accepted = tuple(clip for clip, fault in zip(self.accepted, faults) if not fault)
        return replace(self, accepted=accepted, rejections=(*self.rejections, *refused))


def check_data(
    folder: str | Path,
    validation: str | Path | None = None,
    *,
    limits: ClipLimits = ClipLimits(),
    language: str | None = None,
    vocabulary: str | Path | None = None,
    format_name: str | None = None,
    audio_roots: Sequence[str | Path] = (),
    progress: Callable[[str | Path], AbstractContextManager[Progress]],
) -> tuple[Inspection, tuple[Leak, ...]]:
    """Inspects a data set as training would. Also returns which validation clips are trained on as well.

    Validation clips are those of `validation`, without one those that the data set itself keeps for it.

    Args:
        language: Of recordings whose set names none.
        vocabulary: Tokenizer file that transcripts must fit.
        format_name, audio_roots: As `load_corpus` takes them.
        progress: Called as `progress(folder)` for each set; gives a context, as `progress_bar` does.
    """
    check_text = XTTSTokenizer.from_file(vocabulary).check if vocabulary else lambda text, language: None

    def inspect(folder):
        corpus = load_corpus(folder, language, format_name, audio_roots)
        with progress(folder) as shown:
            return inspect_corpus(corpus, limits, progress=shown).checked(check_text)

    inspection = inspect(folder)
    held = inspect(validation).accepted if validation else [clip for clip in inspection.accepted if clip.validation]
    return inspection, find_leakage([clip for clip in inspection.accepted if not clip.validation], held)


def inspect_corpus(
    corpus: Corpus,
    limits: ClipLimits = ClipLimits(),
    *,
    workers: int = 8,
    cache_path: str | Path | None = None,
    keeps_cache: bool = True,
    progress: Progress | None = None,
) -> Inspection:
    """Decodes every clip of a corpus, checks it and its transcript, and says what became of each, in their order.

    Args:
        workers: Threads that decode.
        cache_path: JSON file that remembers the result for each audio file until its size, its time or the limits
            change. A damaged one is ignored and one inside the corpus is not written, each with a note.
        keeps_cache: False only reads that file.
        progress: Called after each clip.
    """
    notes = list(corpus.notes)
    if cache_path is not None and not corpus.is_list and Path(cache_path).resolve().is_relative_to(corpus.root):
        notes.append(f"The results are not cached: {cache_path} lies in the data set, which is never written to.")
        cache_path = None
    key = [_CACHE_FORMAT, MODEL_SAMPLE_RATE, limits.min_seconds, limits.max_seconds]
    cached, note = _load_cache(cache_path, key) if cache_path is not None else ({}, None)
    verdicts = []
    with ThreadPoolExecutor(workers) as pool:
        # In chunks: a million clips submitted at once would hold a million pending calls.
        for start in range(0, len(corpus.utterances), _CHUNK_CLIPS):
            paths = [utterance.wav_path for utterance in corpus.utterances[start : start + _CHUNK_CLIPS]]
            for verdict in pool.map(lambda path: _examine(path, limits, cached.get(str(path))), paths):
                verdicts.append(verdict)
                if progress is not None:
                    progress(len(verdicts), len(corpus.utterances))
    if cache_path is not None and keeps_cache:
        notes.extend(filter(None, (note, _save_cache(cache_path, key, cached, corpus, verdicts))))
    rejections, good = list(corpus.rejections), []
    for utterance, verdict in zip(corpus.utterances, verdicts):
        if refusal := _refusal(utterance.text, verdict):
            rejections.append(_finding(corpus.root, utterance, *refusal))
        else:
            good.append((replace(utterance, num_samples=verdict.num_samples), verdict))
    accepted, warnings = (clip for clip, _ in good), _warnings(corpus, good)
    return Inspection(corpus.root, tuple(accepted), tuple(rejections), tuple(warnings), tuple(notes))


def summarize(inspection: Inspection) -> str:
    """The inspection in a few lines: totals, then one line a reason with its count and the first clip.

    A reason that most clips are rejected for is given in full.
    """
    minutes = sum(utterance.seconds for utterance in inspection.accepted) / 60
    duration = f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
    given, accepted = f"clips given: {inspection.given}", f"accepted: {len(inspection.accepted)} ({duration})"
    found = f"rejected: {len(inspection.rejections)}, warnings: {len(inspection.warnings)}"
    lines = [f"{given}, {accepted}, {found}"]
    for title, findings in (("rejected", inspection.rejections), ("warning", inspection.warnings)):
        firsts = {finding.reason: finding for finding in reversed(findings)}
        for reason, count in Counter(finding.reason for finding in findings).most_common():
            first = firsts[reason]
            why = f" {first.detail}" if title == "rejected" and 2 * count > inspection.given else ""
            lines.append(f"{title}: {reason}: {count} (first: {first.id or f'line {first.line}'}){why}")
    return "\n".join([*lines, *(f"note: {note}" for note in inspection.notes)])


def write_report(inspection: Inspection, path: str | Path):
    """Writes a CSV file with a row for every clip: what became of it, and every reason."""
    warnings = defaultdict(list)
    for warning in inspection.warnings:
        warnings[warning.id].append(warning)
    rows = [(clip.id, "rejected", clip.reason, clip.detail, clip.path, clip.line, "") for clip in inspection.rejections]
    for clip in inspection.accepted:
        found = warnings[clip.id]
        reasons, details = "; ".join(item.reason for item in found), " ".join(item.detail for item in found)
        verdict, audio = "warning" if found else "accepted", relative_path(clip.wav_path, inspection.root)
        rows.append((clip.id, verdict, reasons, details, audio, clip.line, f"{clip.seconds:.3f}"))
    write_text(path, csv_text((_COLUMNS, *rows), end="\r\n"))


def is_foreign(path: str | Path) -> bool:
    """Whether a file with something in it is there that `write_report` did not write."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(1_024).split(b"\r\n")[0] not in (b"", ",".join(_COLUMNS).encode())


class _Verdict(NamedTuple):
    """What one audio file is found to be, apart from its transcript. `size` and `mtime_ns` say for which content."""

    size: int
    mtime_ns: int
    reason: str = ""
    detail: str = ""
    num_samples: int = 0
    original_sample_rate: int = 0
    content_hash: str = ""
    warnings: Sequence[str] = ()


def _examine(path, limits, known):
    try:
        status = os.stat(path)
    except OSError as error:
        return _Verdict(0, 0, "missing file", f"It cannot be found any more: {error.strerror}.")
    content = status.st_size, status.st_mtime_ns
    if known is not None and known[:2] == content:
        return known
    try:
        recording = read_audio(path, min_seconds=limits.min_seconds, max_seconds=limits.max_seconds)
    except AudioError as error:
        return _Verdict(*content, error.reason, error.detail[0].upper() + error.detail[1:])
    samples, warnings = recording.samples, [*recording.warnings]
    ending = samples[-int(_CUT_SECONDS * MODEL_SAMPLE_RATE) :]
    level = np.sqrt(np.mean(np.square(ending)) / np.mean(np.square(samples)))
    if level > _CUT_LEVEL:
        warnings.append(f"cut ending: its last {1000 * _CUT_SECONDS:g} ms are at {level:.1f} times its mean level.")
    # Rounded to 16 bit, so that a copy in another sample format counts as the same.
    digest = digest_bytes(to_pcm16(samples))
    return _Verdict(*content, "", "", len(samples), recording.original_sample_rate, digest, warnings)


def _refusal(text, verdict):
    """Reason and detail for a clip that cannot be used, else None."""
    if verdict.reason:
        return verdict.reason, verdict.detail
    is_certain, fault = _encoding_fault(text)
    if is_certain:
        return "text wrongly encoded", fault
    seconds = verdict.num_samples / MODEL_SAMPLE_RATE
    if len(text) > MAX_CHARACTERS_PER_SECOND * seconds:
        many = f"{counted(len(text), 'character')} in {seconds:.3g} s"
        return "text too long for the audio", f"{many}; the most is {MAX_CHARACTERS_PER_SECOND:g} a second."
    return None


def _warnings(corpus, good):
    rates = Counter(verdict.original_sample_rate for _, verdict in good)
    usual_rate = max(rates, key=rates.get, default=0)
    first_uses = {}
    for utterance, verdict in good:
        found, rate = [warning.split(": ", 1) for warning in verdict.warnings], verdict.original_sample_rate
        seconds = utterance.seconds
        if len(utterance.text) < MIN_CHARACTERS_PER_SECOND * seconds:
            few = f"{counted(len(utterance.text), 'character')} in {seconds:.3g} s"
            found.append(("text short for the audio", f"{few}; {MIN_CHARACTERS_PER_SECOND:g} a second is already few."))
        if fault := _encoding_fault(utterance.text)[1]:
            found.append(("text perhaps wrongly encoded", fault))
        if rate < MODEL_SAMPLE_RATE:
            limit = f"It was recorded at {rate} Hz and has nothing above {rate // 2} Hz"
            found.append(("low sample rate", f"{limit}; use {MODEL_SAMPLE_RATE} Hz or more."))
        if rate != usual_rate:
            found.append(("unusual sample rate", f"It has {rate} Hz where most clips have {usual_rate} Hz."))
        first = first_uses.setdefault(verdict.content_hash, utterance)
        if first is not utterance:
            same = "the same text" if first.text == utterance.text else "another text"
            found.append(("duplicate audio", f"It is the same recording as {first.id}, with {same}."))
        yield from (_finding(corpus.root, utterance, *warning) for warning in found)


def _finding(root, utterance, reason, detail):
    return Finding(utterance.id, utterance.line, relative_path(utterance.wav_path, root), reason, detail)


def _encoding_fault(text):
    """Signs of a text saved or read in the wrong encoding. Returns whether they are certain, and a sentence or ''."""
    if "\ufffd" in text:
        return True, "The text holds U+FFFD, which replaces letters that were lost."
    if control := _CONTROL_CHARACTER.search(text):
        return True, f"The text holds the control character U+{ord(control[0]):04X}."
    for encoding in ("cp1252", "latin-1"):
        try:
            meant = text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        fault = f"The text reads like UTF-8 taken for {encoding}; it probably says {meant[:60]!r}."
        # A capital letter and a no-break space, as in "ALLÉ !", can look like one letter in UTF-8: two cannot.
        return len(text) - len(meant) > 1, "" if meant == text else fault
    return False, ""


def _load_cache(path, key):
    """Returns `{audio path: _Verdict}` and a note or None."""
    if not os.path.lexists(path):
        return {}, None
    try:
        content = json.loads(read_bounded(Path(path), _MAX_CACHE_BYTES))
        clips = content["clips"].items() if content["limits"] == key else ()
        return {audio: _Verdict(*verdict) for audio, verdict in clips}, None
    except (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}, f"The cache {path} is damaged or of another version, and was ignored."


def _save_cache(path, key, cached, corpus, verdicts):
    """Keeps what is known of other corpora. Returns a note where the file cannot be written, which loses only time."""
    clips = {name: verdict for name, verdict in cached.items() if not Path(name).is_relative_to(corpus.root)}
    found = zip((str(utterance.wav_path) for utterance in corpus.utterances), verdicts)
    clips |= {name: verdict for name, verdict in found if verdict.reason not in ("missing file", "unreadable")}
    if clips == cached:
        return None
    try:
        write_text(path, json.dumps({"limits": key, "clips": clips}))
    except OSError as error:
        return f"The cache {path} could not be written: {error.strerror}."
    return None
