"""Texts of recordings: cues of subtitles, or sentences of a transcript."""

import html
import re
from dataclasses import dataclass, replace
from pathlib import Path

from myxtts.config.checks import UserError, read_bounded
from myxtts.data.corpora import SUBTITLES, files_beside
from myxtts.text.cleaners import split_sentences

TRANSCRIPT_EXTENSIONS = (".txt", ".lab")

_MAX_TEXT_BYTES = 64 * 2**20
_LONG_PIECE_CHARACTERS = 80
_TAGS = re.compile(r"<[^<>]{0,200}>|\{[^{}]{0,200}\}|\[[^\[\]]{0,200}\]|【[^【】]{0,200}】")
_ASIDE = re.compile(r"[(（][^()（）]{0,200}[)）]")
_DASH = re.compile(r"^\s*[-‐–—]\s*(?=\S)")
_SPEAKER_LABEL = re.compile(r"^\s*(?:>>\s*)?[^\W\d_a-z][^\Wa-z]*(?: [^\Wa-z]+){0,2}:\s+|^\s*>>\s*")
_MUSIC = re.compile("[♪♫♬🎵🎶]")
_SENTENCE_END = re.compile(r"""[.!?…؟۔।॥。！？｡።፧፨]["'”’»」』）)\]]*$""")
_CLAUSE_END = re.compile(r"(?<=[,;:،؛，；：፣፤—–])\s+")
_OVERLAP_SECONDS, _OVERLAP_SHARE = 0.3, 0.3


@dataclass(frozen=True)
class Piece:
    """A cue or a sentence.

    Attributes:
        text: The text in one line.
        start, end: Times in seconds; None in a transcript.
        ends_sentence: Whether it ends a sentence.
        fault: Why it cannot be used, in a few words, or "".
    """

    text: str
    start: float | None = None
    end: float | None = None
    ends_sentence: bool = True
    fault: str = ""


def count_letters(text: str) -> int:
    """Counts letters and digits."""
    return sum(map(str.isalnum, text))


def is_subtitles(path: Path) -> bool:
    """Whether a file has the suffix of subtitles; other texts are transcripts."""
    return path.suffix.lower() in SUBTITLES


def find_text(recording: Path) -> Path | None:
    """Finds subtitles or a transcript next to a recording: `talk.srt`, `talk.en.srt`, `talk.txt`."""
    return next(iter(files_beside(recording, (*SUBTITLES, *TRANSCRIPT_EXTENSIONS))), None)


def read_subtitles(path: Path) -> list[Piece]:
    """Reads the cues of an `.srt`, `.vtt` or `.ass` file in order, without tags, sound descriptions and speaker labels.

    Cues that overlap, are sung or have two speakers get a `fault`.

    Raises:
        UserError: pysubs2 is missing, or the file has no readable cue.
    """
    try:
        import pysubs2
    except ModuleNotFoundError:
        raise UserError('Subtitles need pysubs2: pip install "myxtts[recordings]".') from None
    content = _read_text(path)
    try:
        try:
            file = pysubs2.SSAFile.from_string(content)  # detects the format by content
        except pysubs2.FormatAutodetectionError:
            file = pysubs2.SSAFile.from_string(content, format_=path.suffix[1:].lower())
    except Exception as error:  # damaged files raise errors of any type
        raise UserError(f"{path} cannot be read as subtitles: {str(error)[:200] or type(error).__name__}.") from None
    cues = [cue for cue in file if not cue.is_comment and not cue.is_drawing and cue.end > cue.start]
    pieces = []
    for cue in sorted(cues, key=lambda cue: (cue.start, cue.end)):
        text, fault = clean_cue(cue.plaintext)
        if count_letters(text):
            pieces.append(Piece(text, cue.start / 1000, cue.end / 1000, bool(_SENTENCE_END.search(text)), fault))
    if not pieces:
        raise UserError(f"{path} has no cue with a text. Name another with --subtitles.")
    return _mark_overlaps(_without_repeats(pieces))


def clean_cue(text: str) -> tuple[str, str]:
    """Returns the spoken text of a cue in one line, and its fault or ""."""
    text = html.unescape(text)
    if _MUSIC.search(text):
        return _one_line(_MUSIC.sub(" ", text)), "sung or music"
    lines = [_TAGS.sub(" ", line) for line in text.splitlines()]
    lines = [line for line in lines if not _ASIDE.fullmatch(line.strip())]
    dashes = sum(bool(_DASH.match(line)) for line in lines)
    lines = [_SPEAKER_LABEL.sub("", _DASH.sub("", line)) for line in lines]
    return _one_line(" ".join(lines)), "two speakers" if dashes > 1 else ""


def read_transcript(path: Path, language: str) -> list[Piece]:
    """Splits a plain text into sentences, and long sentences into clauses.

    Paragraphs are separated by blank lines, if there are any, else by line breaks.

    Raises:
        UserError: The file is not text, or has no letter and no digit.
    """
    pieces, text = [], _read_text(path).strip()
    for paragraph in re.split(r"\n\s*\n" if re.search(r"\n\s*\n", text) else r"\n", text):
        for sentence in split_sentences(_one_line(paragraph), language):
            clauses = _CLAUSE_END.split(sentence) if len(sentence) > _LONG_PIECE_CHARACTERS else [sentence]
            pieces += [Piece(one, ends_sentence=one is clauses[-1]) for one in clauses]
    joined: list[Piece] = []
    for piece in pieces:
        if count_letters(piece.text):
            joined.append(piece)
        elif joined:  # such as a lone dash
            joined[-1] = replace(joined[-1], text=f"{joined[-1].text} {piece.text}", ends_sentence=piece.ends_sentence)
    if not joined:
        raise UserError(f"{path} holds no letter and no digit.")
    return joined


def _read_text(path):
    try:
        with open(path, "rb") as file:
            mark = file.read(2)
        if mark in (b"\xff\xfe", b"\xfe\xff") and path.stat().st_size <= _MAX_TEXT_BYTES:
            return path.read_text(encoding="utf-16")
        return read_bounded(path, _MAX_TEXT_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path} {str(error).rstrip('.')}. Save it as UTF-8.") from None


def _one_line(text):
    return " ".join(text.replace("|", " ").split())


def _without_repeats(pieces):
    """Removes the text that cues of rolling captions repeat from the cue before."""
    kept: list[Piece] = []
    for piece in pieces:
        before = kept[-1] if kept else None
        if before and piece.start <= before.end + 0.1 and piece.text.startswith(before.text):
            rest = piece.text[len(before.text) :].strip()
            if not count_letters(rest):
                kept[-1] = replace(before, end=max(before.end, piece.end))
                continue
            if len(before.text) > 3:
                piece = replace(piece, text=rest)
        kept.append(piece)
    return kept


def _mark_overlaps(marked):
    """Marks cues that overlap for long; of two that overlap briefly, the first is shortened."""
    for index in range(len(marked) - 1):
        first, second = marked[index : index + 2]
        overlap = min(first.end, second.end) - second.start
        shorter = min(first.end - first.start, second.end - second.start)
        if overlap > _OVERLAP_SECONDS and overlap > _OVERLAP_SHARE * shorter:
            marked[index] = replace(first, fault=first.fault or "overlapping cues")
            marked[index + 1] = replace(second, fault=second.fault or "overlapping cues")
        elif overlap > 0:
            marked[index] = replace(first, end=second.start)
    return marked
