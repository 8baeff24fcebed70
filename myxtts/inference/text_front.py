"""Text as written -> pieces that the model can speak, and their ids."""

import logging
from dataclasses import dataclass

from myxtts.config.checks import UserError
from myxtts.text.languages import get_language
from myxtts.text.sentences import split_text
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)


class SpeechError(UserError):
    """A text or a language that the model cannot speak; the message says why."""


@dataclass(frozen=True)
class TextFront:
    """Cuts texts to what fits a model of `max_tokens` text ids; raises `SpeechError` for those it cannot speak."""

    tokenizer: XTTSTokenizer
    max_tokens: int

    def pieces(self, text: str, language: str) -> list[str]:
        """Whole sentences where they fit the model, else parts of sentences; those with nothing to say are left out."""
        self._check(text, language)
        limit = get_language(language).char_limit
        pieces = split_text(text, language, limit)
        while limit > 1 and max(len(self.tokenizer.encode(piece, language)) for piece in pieces) > self.max_tokens:
            limit = limit * 3 // 4
            pieces = split_text(text, language, limit)
        return [piece for piece in pieces if self.tokenizer.check(piece, language, allow_unknown=True) is None]

    def ids(self, text: str, language: str) -> list[int]:
        """Ids of a text that is spoken in one go, without those of unknown characters."""
        self._check(text, language, self.max_tokens)
        return [token for token in self.tokenizer.encode(text, language) if token != self.tokenizer.unk_id]

    def _check(self, text: str, language: str, max_tokens: int | None = None) -> None:
        if reason := self.tokenizer.check(text, language, max_tokens, allow_unknown=True):
            raise SpeechError(f"{text!r} cannot be spoken by this model: {reason}.")
        if unknown := self.tokenizer.unknown_characters(text, language):
            logger.warning("%r: %s; they are not spoken.", text, unknown)
