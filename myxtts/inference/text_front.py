"""Text as written -> pieces that the model can speak, and their ids."""

import logging

from myxtts.config.checks import UserError
from myxtts.config.config import ModelConfig
from myxtts.text.languages import get_language
from myxtts.text.sentences import split_text
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)


class SpeechError(UserError):
    """A text or a language that the model cannot speak; the message says why."""


class TextFront:
    """Checks texts and cuts them to what fits the model.

    Args:
        tokenizer: Of the model.
        config: Of the model, for its longest text.
    """

    def __init__(self, tokenizer: XTTSTokenizer, config: ModelConfig):
        self.tokenizer = tokenizer
        self.max_tokens = config.max_text_tokens

    def pieces(self, text: str, language: str) -> list[str]:
        """Cuts a text of any length into whole sentences where they fit the model, else into parts of sentences.

        Those with nothing to say are left out.

        Raises:
            SpeechError: There is nothing to say, or the model does not speak the language.
        """
        self._check(text, language)
        limit = get_language(language).char_limit
        pieces = split_text(text, language, limit)
        while limit > 1 and max(len(self.tokenizer.encode(piece, language)) for piece in pieces) > self.max_tokens:
            limit = limit * 3 // 4
            pieces = split_text(text, language, limit)
        return [piece for piece in pieces if self.tokenizer.check(piece, language, allow_unknown=True) is None]

    def ids(self, text: str, language: str) -> list[int]:
        """Ids of a text that is spoken in one go, without those of unknown characters.

        Raises:
            SpeechError: The text is too long, or as for `pieces`.
        """
        self._check(text, language, self.max_tokens)
        return [token for token in self.tokenizer.encode(text, language) if token != self.tokenizer.unk_id]

    def _check(self, text: str, language: str, max_tokens: int | None = None) -> None:
        """Raises `SpeechError` for a text that cannot be spoken; warns of characters that are left out."""
        if reason := self.tokenizer.check(text, language, max_tokens, allow_unknown=True):
            raise SpeechError(f"{text!r} cannot be spoken by this model: {reason}.")
        if unknown := self.tokenizer.unknown_characters(text, language):
            logger.warning("%r: %s; they are not spoken.", text, unknown)
