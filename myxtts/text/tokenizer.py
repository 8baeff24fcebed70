"""The XTTS text tokenizer."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Self

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from myxtts.config.checks import counted
from myxtts.storage.files import write_text
from myxtts.text.cleaners import TYPOGRAPHIC_VARIANTS, plain_letter, replace_unknown
from myxtts.text.g2p import alphabet, g2p_codes, written
from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.languages.base import Language
from myxtts.text.vocabulary import SPACE, START, STOP, UNKNOWN, Vocabulary

Corpus = Iterable[tuple[str, str]]
"""Texts as written, each with its language code."""


class XTTSTokenizer:
    """Tokenizes text of all languages in `languages.LANGUAGES` for XTTS.

    A text becomes its language's tag and the BPE tokens of the cleaned text (`cleaners.clean_text`), with `[SPACE]` for
    each space. The model adds `[START]` and `[STOP]`. With a released vocabulary the ids are the reference's;
    `docs/text.md` lists the deliberate differences.

    A character that the vocabulary lacks is replaced by one that sounds the same (a straight quote for a curly one,
    "euro" for €), or dropped if it is silent (an emoji). If some of the text has no substitute, its unknown characters
    become `[UNK]`, which `check` reports.

    Instances are immutable and thread-safe. All methods but `check` raise ValueError for an unsupported language.

    Args:
        vocabulary: Tokens and merges; `from_file`, `train` and `extend` create tokenizers from other sources.
        g2p: Languages to convert to phonemes, as in `with_g2p`.
    """

    def __init__(self, vocabulary: Vocabulary, g2p: Iterable[str] = ()):
        self.g2p = g2p_codes(g2p)
        """Codes of the languages whose text is converted to phonemes (`g2p.written`)."""
        tokens, special_tokens = vocabulary.tokens, vocabulary.special_tokens
        self.num_tokens: int = vocabulary.next_id
        """Rows of the model's text table: the largest id plus one (ids may have holes)."""
        self.languages: tuple[str, ...] = tuple(code for code, one in LANGUAGES.items() if one.tag in special_tokens)
        self.start_id, self.stop_id, self.unk_id = tokens[START], tokens[STOP], tokens[UNKNOWN]
        """Ids that the model puts before and after a text, and the id of unknown characters."""
        self._vocabulary, self._characters = vocabulary, vocabulary.characters
        self._tokenizer = Tokenizer.from_str(vocabulary.to_json())
        self._pieces = {token_id: token for token, token_id in tokens.items()}
        self._special_in_text = re.compile("|".join(map(re.escape, special_tokens)))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Self:
        """Loads a vocabulary file of a released checkpoint or of `save`; raises as `Vocabulary.read`."""
        return cls(Vocabulary.read(path))

    @classmethod
    def train(
        cls, texts_with_languages: Corpus, vocab_size: int = 512, languages: Iterable[str] = (), g2p: Iterable[str] = ()
    ) -> Self:
        """Trains a vocabulary on a corpus, deterministically.

        Ids are `[STOP]` 0, `[UNK]` 1, `[SPACE]` 2, `[START]` 3, then tags, characters and merges.

        Args:
            vocab_size: Maximum number of tokens; control tokens, language tags and all characters of the corpus are
                kept even beyond it.
            languages: Codes of further languages that need a tag.
            g2p: Languages to convert to phonemes.

        Raises:
            ValueError: There is no text, or no phoneme rules for a language.
        """
        g2p = g2p_codes(g2p)
        texts, codes = _clean_corpus(texts_with_languages, languages, g2p)
        if not any(texts):
            raise ValueError("The corpus must contain text to train a vocabulary.")
        special_tokens = [STOP, UNKNOWN, SPACE, START, *(LANGUAGES[code].tag for code in codes)]
        tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=special_tokens, show_progress=False)
        tokenizer.train_from_iterator((text.translate(TYPOGRAPHIC_VARIANTS) for text in texts), trainer)
        return cls(Vocabulary.parse(tokenizer.to_str(), "just trained"), g2p)

    def with_g2p(self, languages: Iterable[str]) -> Self:
        """Returns a tokenizer with the same vocabulary that converts exactly these languages to phonemes.

        Raises:
            ValueError: There are no phoneme rules for one of them.
        """
        return type(self)(self._vocabulary, languages)

    def extend(self, texts_with_languages: Corpus, num_new_tokens: int = 256, languages: Iterable[str] = ()) -> Self:
        """Returns a tokenizer whose vocabulary also covers a corpus and the alphabets of its languages.

        Old ids are kept, and so are the ids of any text that the old vocabulary covers: every new token contains a new
        character. A language in a known script therefore gets few new tokens.

        Args:
            num_new_tokens: Maximum number of new multi-character tokens, beside new characters and tags.
            languages: Codes of further languages that need a tag.
        """
        texts, codes = _clean_corpus(texts_with_languages, languages, self.g2p)
        tags = [LANGUAGES[code].tag for code in codes]
        split = pre_tokenizers.Whitespace()
        variants = {code: to for code, to in TYPOGRAPHIC_VARIANTS.items() if chr(code) not in self._characters}
        counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text.translate(variants)))
        counts.update(letter for code in codes for letter in alphabet(code, self.g2p))
        return type(self)(self._vocabulary.extend(counts, tags, num_new_tokens), self.g2p)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary as a Hugging Face `tokenizers` JSON file, atomically."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Returns the content of the file of `save`."""
        return self._vocabulary.to_json()

    def encode(self, text: str, language: str, *, allow_missing_tag: bool = False) -> list[int]:
        """Returns the ids of a text as written: the language's tag, then the tokens of the cleaned text.

        Args:
            allow_missing_tag: Whether a tag that the vocabulary lacks becomes unknown tokens, as in the reference.

        Raises:
            ValueError: The vocabulary has no tag for the language.
            ImportError: The text needs an optional package that is not installed.
        """
        language = get_language(language)
        if language.code not in self.languages and not allow_missing_tag:
            raise ValueError(
                f"The vocabulary has no language tag {language.tag}. It has: {', '.join(self.languages)}. "
                f"Add {language.name} with XTTSTokenizer.extend."
            )
        return self._encode_cleaned(self._clean(text, language), language)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the cleaned text of ids with its language tag; `[STOP]`, `[UNK]` and unused ids are dropped."""
        text = "".join(self._pieces.get(int(token_id), "") for token_id in ids)
        return text.replace(SPACE, " ").replace(STOP, "").replace(UNKNOWN, "")

    def check(
        self, text: str, language: str, max_tokens: int | None = None, *, allow_unknown: bool = False
    ) -> str | None:
        """Returns the reason why a text cannot be used, or None.

        The reasons are an unsupported language, no letter or digit, unknown characters, or too many tokens.

        Args:
            max_tokens: Maximum number of ids from `encode`; None for no limit.
            allow_unknown: Whether to accept unknown characters, which are not spoken.
        """
        try:
            language = get_language(language, self.languages)
        except ValueError as error:
            return str(error)
        if language.code not in self.languages:
            return f"the vocabulary has no language tag {language.tag}, only: {', '.join(self.languages)}"
        cleaned = self._clean(text, language)
        if not allow_unknown and (unknown := self._unknown(cleaned, language)):
            return _name_all(unknown)
        if not any(character.isalnum() and character in self._characters for character in cleaned):
            return "no text: no letter or digit that the vocabulary has"
        num_tokens = len(self._encode_cleaned(cleaned, language))
        if max_tokens is not None and num_tokens > max_tokens:
            return f"text too long: {num_tokens} tokens, at most {max_tokens}"
        return None

    def unknown_characters(self, text: str, language: str) -> str:
        """Describes the characters of the cleaned text that the vocabulary lacks; empty if there are none."""
        language = get_language(language)
        unknown = self._unknown(self._clean(text, language), language)
        return _name_all(unknown) if unknown else ""

    def with_known_letters(self, text: str, language: str) -> str:
        """Removes diacritics from letters that the vocabulary lacks (`naïve` becomes `naive`). Not for training."""
        language = get_language(language)
        unknown = set(self._unknown(self._clean(text, language), language))

        def known(character):
            plain = plain_letter(character)
            is_better = not unknown.isdisjoint(character.lower()) and self._characters.issuperset(plain.lower())
            return plain if is_better else character

        return "".join(map(known, unicodedata.normalize("NFC", text))) if unknown else text

    def unspoken_share(self, text: str, language: str) -> float:
        """Returns the share of letters and digits that have no token, with or without marks."""
        cleaned = self._clean(self.with_known_letters(text, language), get_language(language))
        letters = [one for one in replace_unknown(cleaned, get_language(language), self._characters) if one.isalnum()]
        return sum(one not in self._characters for one in letters) / max(1, len(letters))

    def _encode_cleaned(self, cleaned: str, language: Language) -> list[int]:
        return self._tokenizer.encode((language.tag + cleaned).replace(" ", SPACE)).ids

    def _clean(self, text: str, language: Language) -> str:
        cleaned = written(text, language.code, self.g2p)
        if "[" in cleaned:
            # Control tokens spelled out in a text must stay text.
            cleaned = self._special_in_text.sub(lambda match: f"({match.group()[1:-1]})", cleaned)
        if self._characters.issuperset(cleaned):
            return cleaned
        replaced = replace_unknown(cleaned, language, self._characters)
        # If unknown characters remain, keep the ids of the reference.
        return replaced if self._characters.issuperset(replaced) else cleaned

    def _unknown(self, cleaned: str, language: Language) -> list[str]:
        known = self._characters
        return [] if known.issuperset(cleaned) else sorted(set(replace_unknown(cleaned, language, known)) - known)


def _name_all(unknown: list[str]) -> str:
    names = ", ".join(f"{c!r} ({unicodedata.name(c, 'unnamed')})" for c in unknown[:5])
    return f"{counted(len(unknown), 'character')} not in the vocabulary: {names}" + (", ..." if unknown[5:] else "")


def _clean_corpus(texts: Corpus, languages: Iterable[str], g2p: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns the cleaned texts, and the sorted codes of their languages and of `languages`."""
    pairs = list(texts)
    codes = {get_language(code).code for code in (*languages, *(language for _, language in pairs))}
    return [written(text, language, g2p) for text, language in pairs], sorted(codes)
