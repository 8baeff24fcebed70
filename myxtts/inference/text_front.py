"""Text front end: splits texts into pieces that the model can speak, and encodes pieces to token ids."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from myxtts.config.checks import brief, require
from myxtts.config.config import XTTSConfig
from myxtts.inference.speech import SpeechError
from myxtts.storage.files import AnyPath, CheckpointError
from myxtts.storage.run_folder import read_config, vocabulary_path
from myxtts.text.language_guess import guess_language
from myxtts.text.languages import get_language
from myxtts.text.reading import Piece
from myxtts.text.speech_rates import longest_texts, read_rates
from myxtts.text.tokenizer import XTTSTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextFront:
    """Splits texts into pieces and encodes pieces to token ids. Raises `SpeechError` if a text cannot be spoken."""

    tokenizer: XTTSTokenizer
    max_tokens: int
    """Maximum number of text token ids per piece."""
    longest_texts: Mapping[str, int] = field(default_factory=dict)
    """Length in characters of the longest training text, by language. A model may skip the end of longer texts."""

    def pieces(self, text: str, language: str) -> list[Piece]:
        """Splits a text into whole sentences or parts of long sentences. Drops pieces with too few known letters."""
        read = self._read(text, language)
        reader, shown = self.tokenizer.reader, brief(text)
        known = reader.with_known_letters(text, language)
        if known != text:
            logger.warning("%s has letters that are not in the vocabulary, spoken as %s.", shown, brief(known))
        if fault := self.tokenizer.check(known, language):
            unknown = {one for one in reader.unknown(read, language) if one.isalpha()}
            faulty = [word for word in known.split() if unknown & {*word.lower()}]
            other = guess_language(faulty, language, self.tokenizer.languages)[0]
            hint = f", or give --language {other}" if other != language else ""
            way = f"Write {brief(' '.join(faulty))} in {get_language(language).name} letters{hint}." if faulty else ""
            logger.warning("%s: %s; they are not spoken. %s", shown, fault, way)
        fits = lambda read: len(self.tokenizer.encode_read(read, language)) <= self.max_tokens
        if not (pieces := reader.pieces(text, language, self.longest_text(language), fits)):
            raise SpeechError(f"{brief(text)} cannot be spoken by this model: it has no words.")
        return pieces

    def longest_text(self, language: str) -> int:
        """Returns the length in characters of a language's longest training text, or an estimate if it is not known."""
        language = get_language(language)
        return self.longest_texts.get(language.code, max(self.longest_texts.values(), default=language.char_limit))

    def ids(self, text: str, language: str) -> list[int]:
        """Encodes the text of a piece to token ids; leaves out characters that the vocabulary lacks."""
        read = self._read(text, language, self.max_tokens)
        return [token for token in self.tokenizer.encode_read(read, language) if token != self.tokenizer.unk_id]

    def check(self, text: str, language: str) -> None:
        """Raises `SpeechError` if the model cannot speak a text, or the letters of the text do not fit `language`."""
        if fault := guess_language([text], language, self.tokenizer.languages)[1]:
            raise SpeechError(fault)
        self._read(text, language)

    def _read(self, text: str, language: str, max_tokens: int | None = None) -> str:
        """Returns the text to tokenize. Raises `SpeechError` if the text cannot be spoken or exceeds `max_tokens`."""
        require(isinstance(text, str), "text", "a string", brief(text))
        try:
            get_language(language, self.tokenizer.languages)
            read = self.tokenizer.reader.spoken(text, language)
            reason = self.tokenizer.fault(read, language, max_tokens)
        except ValueError as error:  # also if a package for the language is not installed
            reason = str(error)
        if reason and not text.strip():
            raise SpeechError("The text is empty.")
        if reason:
            raise SpeechError(f"{brief(text)} cannot be spoken by this model: {reason.rstrip('.')}.")
        return read


def open_text_front(folder: AnyPath, g2p: Sequence[str] | None = None) -> tuple[TextFront, XTTSConfig]:
    """Loads the text front end and the configuration of the model in a folder, without weights or TensorFlow.

    `g2p` lists the languages whose texts are converted to phonemes. None means the same languages as in training.

    Raises `UserError` if a file is missing or damaged, and `SpeechError` if a language in `g2p` has no phoneme rules.
    """
    config, path = read_config(Path(folder)), vocabulary_path(Path(folder))
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist. Is this the folder of a run or of `myxtts convert`?")
    tokenizer = XTTSTokenizer.from_file(path)
    try:
        tokenizer = tokenizer.with_g2p(config.data.g2p or () if g2p is None else g2p)
    except ValueError as error:
        raise SpeechError(f"--g2p: {error}") from None
    longest = longest_texts(read_rates(folder), config.training.init_from)
    return TextFront(tokenizer, config.model.max_text_tokens, longest), config
