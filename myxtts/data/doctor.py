"""Checks data sets before training: rejects unusable clips, splits off validation clips, and finds leakage."""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.files import AudioError, read_audio, to_int16
from myxtts.config.checks import counted
from myxtts.config.data import DataConfig
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.corpora import Corpus, Utterance, load_corpus
from myxtts.data.corpora.folder import relative_path
from myxtts.storage.files import csv_text, digest_bytes, write_text
from myxtts.text.languages import LANGUAGES
from myxtts.text.tokenizer import XTTSTokenizer

MAX_CHARACTERS_PER_SECOND = 40.0
"""Maximum speech rate of accepted clips. At a higher rate, the transcript belongs to other audio, or audio was cut."""
MIN_CHARACTERS_PER_SECOND = 2.0
"""Speech rate below which a clip gets a warning: the transcript may be incomplete, or the audio has much silence."""
# The last 10 ms of carefully cut recordings, such as LJSpeech and VCTK, have at most 0.13 times the mean level. If the
# recordings are cut at random places, half exceed 0.4 times that level. Even abrupt synthetic voices end in silence.
_CUT_SECONDS = 0.01

_COLUMNS = ("id", "verdict", "reason", "detail", "path", "line", "seconds")

Progress = Callable[[int, int], None]
"""Callback that receives the number of clips checked so far, and the number of all clips."""


class ClipLimits(NamedTuple):
    """Minimum and maximum duration of a clip in seconds. Training has the same default limits."""

    min_seconds: float = DataConfig.min_seconds
    max_seconds: float = DataConfig.max_seconds


def check_data(
    folder: str | Path,
    validation: str | Path | None = None,
    *,
    limits: ClipLimits = ClipLimits(),
    vocabulary: str | Path | None = None,
    progress: Progress | None = None,
    **corpus_options: Any,
) -> tuple[Corpus, str]:
    """Checks a data set as training does. Returns its `Corpus`, and a sentence about leakage (see `find_leakage`).

    Args:
        validation: Data set of validation clips; None uses the validation split of `folder`, if there is one.
        vocabulary: Tokenizer file. A clip is rejected if this tokenizer cannot encode its text. None skips this check.
        progress: Called after each checked clip, first for the clips of `folder`, then for those of `validation`.
        corpus_options: Arguments of `load_corpus`, such as `format_name`, for both data sets.
    """
    encode = XTTSTokenizer.from_file(vocabulary).encode_checked if vocabulary else lambda text, language: ((), None)

    def inspect(folder):
        corpus = load_corpus(folder, **{"language": None} | corpus_options)
        return inspect_corpus(corpus, limits, progress=progress).encoded(encode)

    corpus = inspect(folder)
    held = inspect(validation).utterances if validation else [clip for clip in corpus.utterances if clip.validation]
    return corpus, find_leakage([clip for clip in corpus.utterances if not clip.validation], held)


def inspect_corpus(
    corpus: Corpus,
    limits: ClipLimits = ClipLimits(),
    *,
    workers: int = 8,
    cache_path: str | Path | None = None,
    keeps_cache: bool = True,
    progress: Progress | None = None,
) -> Corpus:
    """Checks the audio and the transcript of every clip of a corpus, decoding in `workers` threads. Returns the corpus
    with only the accepted clips, with further rejections, and with warnings about accepted clips.

    `cache_path` is a JSON file with earlier results. An audio file is decoded again only if its size, modification time
    or `limits` changed. If `keeps_cache`, saves new results, even if interrupted. Calls `progress` after each clip.
    """
    key = [6, MODEL_SAMPLE_RATE, *limits]  # 6: version of the cache
    cached = _load_cache(cache_path, key) if cache_path is not None else {}
    verdicts, paths = [], [utterance.wav_path for utterance in corpus.utterances]
    try:
        with ThreadPool(workers) as pool:
            for verdict in pool.imap(lambda path: _examine(path, limits, cached.get(path)), paths):
                verdicts.append(verdict)
                if progress is not None:
                    progress(len(verdicts), len(paths))
    finally:
        new = {path: one for path, one in zip(paths, verdicts) if one.reason not in ("missing file", "unreadable")}
        if cache_path is not None and keeps_cache and (clips := cached | new) != cached:
            with suppress(OSError):  # without a cache, the next inspection is only slower
                write_text(cache_path, json.dumps({"limits": key, "clips": clips}))
    rejections, good = list(corpus.rejections), []
    for utterance, verdict in zip(corpus.utterances, verdicts):
        if refusal := _refusal(utterance.text, utterance.language, verdict):
            rejections.append(corpus.finding(utterance, *refusal))
        else:
            good.append((replace(utterance, num_samples=verdict.num_samples, audio=verdict.content_hash), verdict))
    accepted, warnings = tuple(clip for clip, _ in good), tuple(_warnings(corpus, good))
    return replace(corpus, utterances=accepted, rejections=tuple(rejections), warnings=warnings)


def summarize(corpus: Corpus) -> str:
    """Returns a summary: a line of totals, a line per reason for rejection, a line per reason for a warning, and notes.
    The line of a reason contains the number of clips and the first clip. If more than half of all clips are rejected
    for this reason, the line also contains the `detail` of the first rejection."""
    minutes = sum(utterance.seconds for utterance in corpus.utterances) / 60
    duration = f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
    accepted = f"clips given: {corpus.given}, accepted: {len(corpus.utterances)} ({duration})"
    lines = [f"{accepted}, rejected: {len(corpus.rejections)}, warnings: {len(corpus.warnings)}"]
    for title, findings in (("rejected", corpus.rejections), ("warning", corpus.warnings)):
        firsts = {finding.reason: finding for finding in reversed(findings)}
        for reason, count in Counter(finding.reason for finding in findings).most_common():
            first = firsts[reason]
            why = f" {first.detail}" if title == "rejected" and 2 * count > corpus.given else ""
            lines.append(f"{title}: {reason}: {count} (first: {first.id or f'line {first.line}'}){why}")
    return "\n".join([*lines, *(f"note: {note}" for note in corpus.notes)])


def write_report(corpus: Corpus, path: str | Path, mark: str = ""):
    """Writes a CSV file with the verdict and reasons for each clip. `mark` is the byte-order mark for Excel, or ""."""
    warnings = defaultdict(list)
    for warning in corpus.warnings:
        warnings[warning.id].append(warning)
    rows = [(clip.id, "rejected", clip.reason, clip.detail, clip.path, clip.line, "") for clip in corpus.rejections]
    for clip in corpus.utterances:
        found = warnings[clip.id]
        reasons, details = "; ".join(item.reason for item in found), " ".join(item.detail for item in found)
        verdict, audio = "warning" if found else "accepted", relative_path(Path(clip.wav_path), corpus.root)
        rows.append((clip.id, verdict, reasons, details, audio, clip.line, f"{clip.seconds:.3f}"))
    write_text(path, mark + csv_text((_COLUMNS, *rows), end="\r\n"))


def id_hash(clip_id: str) -> int:
    """Returns a 64-bit hash of a clip's id. Unlike Python's `hash`, it is the same in all processes."""
    return int(digest_bytes(clip_id.encode("utf-8", "surrogatepass"), 8), 16)


def split_by_hash(utterances: Sequence, share: float, trained: Set[int] = frozenset()) -> tuple[tuple, tuple]:
    """Splits utterances, or other objects with an `id`, by a hash of the id. Returns `(train, validation)`.

    Adding or removing clips does not move other clips between the two parts. `share` is the expected fraction of
    validation clips. Clips whose `id_hash` is in `trained` go to training; at least one other clip goes to validation.
    """
    hashes = [id_hash(utterance.id) for utterance in utterances]
    ranks = sorted(set(hashes) - trained)
    chosen = set(ranks[: min(max(sum(rank / 2**64 < share for rank in ranks), 1), len(utterances) - 1)])
    train = tuple(one for one, rank in zip(utterances, hashes) if rank not in chosen)
    return train, tuple(one for one, rank in zip(utterances, hashes) if rank in chosen)


def find_leakage(train: Sequence[Utterance], validation: Sequence[Utterance]) -> str:
    """Returns a sentence about validation clips with the same id or audio as training clips; "" if there are none."""
    ids, by_audio = {one.id for one in train}, {one.audio: one.id for one in reversed(train)}
    leaks = [f"{one.id} (same id)" for one in validation if one.id in ids]
    alike = [one for one in validation if one.id not in ids and one.audio in by_audio]
    leaks += [f"{one.id} (same audio as {by_audio[one.audio]})" for one in alike]
    examples = ", ".join(leaks[:3]) + ", …" * (len(leaks) > 3)
    return f"{len(leaks)} of {len(validation)} validation clips are also trained on: {examples}" if leaks else ""


class _Verdict(NamedTuple):
    """Result of the check of an audio file. If the file's size or modification time changes, the result is outdated."""

    size: int
    mtime_ns: int
    reason: str = ""
    detail: str = ""
    num_samples: int = 0
    content_hash: str = ""
    warnings: Sequence[str] = ()


def _load_cache(path, key):
    """Loads a cache `{audio path: _Verdict}`. Returns {} if it is missing or damaged, or its `limits` are not `key`."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        clips = content["clips"].items() if content["limits"] == key else ()
        return {audio: _Verdict(*verdict) for audio, verdict in clips}
    except (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def _examine(path, limits, known):
    try:
        status = os.stat(path)
        content = status.st_size, status.st_mtime_ns
        if known is not None and known[:2] == content:
            return known
        recording = read_audio(path, min_seconds=limits.min_seconds, max_seconds=limits.max_seconds)
    except OSError as error:
        return _Verdict(0, 0, "missing file", f"It was removed or cannot be read: {error.strerror}.")
    except AudioError as error:
        return _Verdict(*content, error.reason, error.detail[0].upper() + error.detail[1:])
    samples, warnings, rate = recording.samples, [*recording.warnings], recording.original_sample_rate
    level = np.sqrt(np.mean(np.square(samples[-int(_CUT_SECONDS * MODEL_SAMPLE_RATE) :])) / np.mean(np.square(samples)))
    if level > 0.5:
        warnings.append(f"cut ending: its last {1000 * _CUT_SECONDS:g} ms are at {level:.1f} times its mean level.")
    if rate < MODEL_SAMPLE_RATE:
        detail = f"At {rate} Hz, it has no content above {rate // 2} Hz; use {MODEL_SAMPLE_RATE} Hz or more."
        warnings.append(f"low sample rate: {detail}")
    # The digest is of 16-bit samples, so that copies in other sample formats have the same digest.
    return _Verdict(*content, "", "", len(samples), digest_bytes(to_int16(samples).tobytes()), warnings)


def _refusal(text, language, verdict):
    """Returns `(reason, detail)` if a clip must be rejected, or None if the clip can be used."""
    if verdict.reason:
        return verdict.reason, verdict.detail
    if language not in LANGUAGES:
        return "unsupported language", f"Its language is {language}; supported are {', '.join(LANGUAGES)}."
    is_certain, fault = _encoding_fault(text)
    if is_certain:
        return "text wrongly encoded", fault
    seconds = verdict.num_samples / MODEL_SAMPLE_RATE
    if len(text) > MAX_CHARACTERS_PER_SECOND * seconds:
        pace = f"{counted(len(text), 'character')} in {seconds:.3g} s"
        return "text too long for the audio", f"{pace}; the maximum is {MAX_CHARACTERS_PER_SECOND:g} per second."
    return None


def _warnings(corpus, good):
    first_uses = {}
    for clip, verdict in good:
        found = [warning.split(": ", 1) for warning in verdict.warnings]
        if len(clip.text) < MIN_CHARACTERS_PER_SECOND * clip.seconds:
            pace = f"{counted(len(clip.text), 'character')} in {clip.seconds:.3g} s"
            rule = f"below {MIN_CHARACTERS_PER_SECOND:g} per second is unusual"
            found.append(("text short for the audio", f"{pace}; {rule}."))
        if fault := _encoding_fault(clip.text)[1]:
            found.append(("text perhaps wrongly encoded", fault))
        first = first_uses.setdefault(verdict.content_hash, clip)
        if first is not clip:
            same = "the same text" if first.text == clip.text else "another text"
            found.append(("duplicate audio", f"It is the same recording as {first.id}, with {same}."))
        yield from (corpus.finding(clip, *warning) for warning in found)


def _encoding_fault(text):
    """Returns `(is_certain, fault)`. `fault` describes signs of a wrong text encoding, or is "" if there are none.
    If `is_certain` is False, the same signs can also occur in correct text."""
    if lost := re.search("[\ufffd\ud800-\udfff]", text):  # U+D800 and above: half of a pair in JSON
        return True, f"The text contains U+{ord(lost[0]):04X}, which stands for lost letters."
    if text.count("?") > max(2, sum(map(str.isalpha, text))):
        return True, "The text is mostly question marks: its encoding lacks its letters. Save the list as CSV UTF-8."
    if control := re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f]", text):
        return True, f"The text has the control character U+{ord(control[0]):04X}."
    try:
        meant = text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return False, ""
    fault = f"The text looks like UTF-8 read as cp1252; it may mean {meant[:60]!r}."
    # One such pair of characters can be correct text: É and a no-break space in "ALLÉ !". Two such pairs cannot.
    return len(text) - len(meant) > 1, "" if meant == text else fault
