"""Texts as programs send them -> what is said of them: without Markdown, addresses and tags, with `[pause:1s]`."""

import re

from myxtts.apps.server.errors import ApiError

SILENCE_SECONDS = 0.1
"""Of a text without a letter or digit, such as an emoji."""
MOST_PAUSE_SECONDS = 60.0
"""Of all pauses in a text."""
_PAUSE = re.compile(r"\[pause:\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)?\s*\]", re.IGNORECASE)


def _sentence(parts):
    text = ", ".join(filter(None, map(str.strip, parts)))
    return text + "." * text[-1:].isalnum()


_MARKUP = (
    (r"(?s)```.*?(?:```|\Z)", " "),
    (r"!?\[([^\[\]\n]{0,500})\]\([^()\n]{0,2000}\)", r"\1"),
    (r"(?i)<?\b(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]}'\"…؟]>?", ""),
    (r"</?[a-zA-Z][^<>\n]{0,500}>", " "),
    (r"(?m)^[ \t]{0,9}(?:(?:[-*_=][ \t]{0,3}){3,}|\|?[ \t]{0,9}:?-{2,}[-:| \t]*)$", ""),
    (r"(?m)^[ \t]{0,9}#{1,6}[ \t](.*)$", r"\n\1\n\n"),
    (r"(?m)^(?:[ \t]{0,9}>)+", ""),
    (r"(?m)^([ \t]{0,9})[-*+•][ \t]\[[ xX]\][ \t]", r"\1- "),
    (r"(?m)^[ \t]{0,99}[-*+•][ \t](.*)$", lambda item: _sentence([item[1]])),
    (r"(?m)^[ \t]{0,9}\|(.*)\|[ \t]{0,9}$", lambda row: _sentence(row[1].split("|"))),
    *((rf"(?<![\w{mark[-1]}]){mark}(?=\S)(.{{0,499}}?\S){mark}(?![\w{mark[-1]}])", r"\1")
      for mark in (r"\*\*\*", r"\*\*", "__", "~~", r"\*", "_", "``", "`")),
)  # fmt: skip
"""What is replaced, in turns: code, links, addresses, tags, rules, headings, quotations, lists, tables, emphasis."""


def plain_text(text: str) -> str:
    """A text without Markdown, tags and addresses of pages; headings are paragraphs, items of lists sentences."""
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    return text


def spoken_parts(text: str) -> tuple[float, list[tuple[str, float]]]:
    """Seconds of silence before a text, and its parts with something to say, each with the seconds asked for after it.

    A text that says nothing is `SILENCE_SECONDS` or more of silence.

    Raises:
        ApiError: The pauses are longer than `MOST_PAUSE_SECONDS` in all.
    """
    parts = [("", 0.0)]
    said, *rest = _PAUSE.split(plain_text(text))
    for part, number, unit in zip([said, *rest[2::3]], [*rest[0::3], "0"], [*rest[1::3], None]):
        seconds = float(number) / (1000 if unit and unit.lower() == "ms" else 1)
        if any(map(str.isalnum, part)):
            parts.append((part, seconds))
        else:
            parts[-1] = parts[-1][0], parts[-1][1] + seconds
    if sum(seconds for _, seconds in parts) > MOST_PAUSE_SECONDS:
        raise ApiError(400, f"The pauses of a text may have {MOST_PAUSE_SECONDS:g} s in all.", "input")
    (_, lead), *parts = parts
    return lead if parts else max(lead, SILENCE_SECONDS), parts
