"""The XTTS text tokenizer: written text to the token ids the model reads, and back."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Self

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from myxtts.storage.files import write_text
from myxtts.text.cleaners import clean_text
from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.numbers import digits_to_words
from myxtts.text.romanization import japanese_to_romaji
from myxtts.text.symbols import PUNCTUATION_VARIANTS, SYMBOL_READINGS, TYPOGRAPHIC_VARIANTS
from myxtts.text.vocabulary import (
    SPACE,
    START,
    STOP,
    UNKNOWN,
    Vocabulary,
    learn_merges,
    parse_vocabulary,
    read_vocabulary,
)

_TYPOGRAPHIC = str.maketrans(TYPOGRAPHIC_VARIANTS)
_DIGIT_RUN = re.compile("[0-9]+")
# Unicode categories of what is seen and not heard: punctuation, pictures, letter-like marks, format characters.
_SILENT_CATEGORIES = ("P", "So", "Sk", "C")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f]")


class XTTSTokenizer:
    """Tokenizes text of nineteen languages for XTTS.

    A text becomes its language's tag followed by the BPE tokens of the cleaned text (`cleaners.clean_text`), with
    `[SPACE]` for each space. `[START]` and `[STOP]` are left to the model. With a released vocabulary the ids are the
    reference's; `docs/text.md` lists the deliberate differences.

    Where the vocabulary lacks a character, something it has that is said alike takes its place (a straight quote for
    a curly one, "euro" for €), or nothing if nothing is heard (an emoji). If that does not make all of the text
    known, the unknown characters become `[UNK]`, which `check` reports.

    Instances do not change; encoding is safe from several threads.
    """

    def __init__(self, vocabulary: Vocabulary):
        """Wraps a vocabulary; `from_file`, `train` and `extend` make one."""
        self._vocabulary = vocabulary
        self._tokenizer = Tokenizer.from_str(vocabulary.to_json())
        self._pieces = {token_id: token for token, token_id in vocabulary.tokens.items()}
        self._characters = frozenset(token for token in vocabulary.tokens if len(token) == 1) | {" "}
        self._special_in_text = re.compile("|".join(map(re.escape, vocabulary.special_tokens)))
        self._languages = tuple(
            code for code, language in sorted(LANGUAGES.items()) if language.tag in vocabulary.special_tokens
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Self:
        """Loads a vocabulary file, such as `vocab.json` of a released checkpoint or one written by `save`.

        Args:
            path: Hugging Face `tokenizers` JSON file.

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is too large, not JSON, or not an XTTS tokenizer.
        """
        return cls(read_vocabulary(path))

    @classmethod
    def from_json(cls, text: str, source: str = "JSON text") -> Self:
        """Loads a vocabulary from JSON text, as `to_json` returns it; `source` names it in errors."""
        return cls(parse_vocabulary(text, source))

    @classmethod
    def train(
        cls, texts_with_languages: Iterable[tuple[str, str]], vocab_size: int = 512, languages: Iterable[str] = ()
    ) -> Self:
        """Trains a vocabulary on a corpus; the same corpus gives the same vocabulary.

        Args:
            texts_with_languages: Pairs of text as written and language code.
            vocab_size: Most tokens in all. Control tokens, language tags and every character of the corpus have
                their token even where that makes more.
            languages: Codes of languages to have a tag besides those of the corpus.

        Returns:
            The tokenizer, with ids `[STOP]` 0, `[UNK]` 1, `[SPACE]` 2, `[START]` 3, then tags, characters, merges.

        Raises:
            ValueError: There is no text, or a language is not supported.
        """
        codes = {get_language(code).code for code in languages}
        texts = []
        for text, language in texts_with_languages:
            codes.add(get_language(language).code)
            texts.append(clean_text(text, language).translate(_TYPOGRAPHIC))
        if not any(texts):
            raise ValueError("A vocabulary is trained on the text of a corpus. Received no text.")
        special_tokens = [STOP, UNKNOWN, SPACE, START] + [LANGUAGES[code].tag for code in sorted(codes)]
        tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=special_tokens, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return cls(parse_vocabulary(tokenizer.to_str(), "just trained"))

    def extend(
        self, texts_with_languages: Iterable[tuple[str, str]], num_new_tokens: int = 256, languages: Iterable[str] = ()
    ) -> Self:
        """Grows the vocabulary for the characters and languages of a corpus.

        Old ids stay, and any text that the old vocabulary knew in full keeps its ids: every new token has a character
        in it that was unknown before. For a language in a known script, therefore, few tokens are learnt.

        Args:
            texts_with_languages: Pairs of text as written and language code.
            num_new_tokens: Most tokens of several characters to add; new characters and tags come on top.
            languages: Codes of languages to add a tag for besides those of the corpus.

        Returns:
            A new tokenizer; this one is unchanged.

        Raises:
            ValueError: A language is not supported.
        """
        codes = {get_language(code).code for code in languages}
        split = pre_tokenizers.Whitespace()
        counts: Counter[str] = Counter()
        for text, language in texts_with_languages:
            codes.add(get_language(language).code)
            cleaned = clean_text(text, language)
            known = self._characters
            cleaned = "".join(c if c in known else TYPOGRAPHIC_VARIANTS.get(c, c) for c in cleaned)
            counts.update(word for word, _ in split.pre_tokenize_str(cleaned))

        tokens = dict(self._vocabulary.tokens)
        tags = [LANGUAGES[code].tag for code in sorted(codes) if LANGUAGES[code].tag not in tokens]
        new_characters = set().union(*counts) - self._characters
        next_id = self._vocabulary.next_id
        for token in tags + sorted(new_characters):
            tokens[token] = next_id
            next_id += 1

        model = BPE(vocab=tokens, merges=self._vocabulary.merges, unk_token=UNKNOWN)
        words = (
            ([token.value for token in model.tokenize(word)], count)
            for word, count in sorted(counts.items())
            if not new_characters.isdisjoint(word)
        )
        merges = learn_merges(words, new_characters, num_new_tokens)
        for left, right in merges:
            if left + right not in tokens:
                tokens[left + right] = next_id
                next_id += 1
        special_tokens = self._vocabulary.special_tokens + tuple(tags)
        return type(self)(Vocabulary(tokens, self._vocabulary.merges + merges, special_tokens))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary as a Hugging Face `tokenizers` JSON file, whole or not at all."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Returns what `save` writes."""
        return self._vocabulary.to_json()

    def encode(self, text: str, language: str, *, allow_missing_tag: bool = False) -> list[int]:
        """Cleans a text and turns it into token ids.

        Args:
            text: Text as written, in any case.
            language: Language code, with or without region (`"en"`, `"zh-cn"`).
            allow_missing_tag: Encode although the vocabulary has no tag for the language. The tag then becomes
                unknown tokens, as in the reference.

        Returns:
            Ids: the language's tag, then the text's tokens. Without `[START]` and `[STOP]`.

        Raises:
            ValueError: The language is not supported, or not by this vocabulary.
            ImportError: The text needs an optional package that is not installed.
        """
        language = get_language(language)
        if language.code not in self._languages and not allow_missing_tag:
            raise ValueError(
                f"The vocabulary has no language tag {language.tag}. It has: {', '.join(self._languages)}. "
                f"Add {language.name} with XTTSTokenizer.extend."
            )
        return self._encode_cleaned(self._clean(text, language.code), language.tag)

    def decode(self, ids: Iterable[int]) -> str:
        """Turns ids back into cleaned text, language tag included; `[STOP]`, `[UNK]` and unused ids are left out."""
        text = "".join(self._pieces.get(int(token_id), "") for token_id in ids)
        return text.replace(SPACE, " ").replace(STOP, "").replace(UNKNOWN, "")

    def check(
        self, text: str, language: str, max_tokens: int | None = None, *, allow_unknown: bool = False
    ) -> str | None:
        """Tells why a text cannot be used as it is.

        Args:
            text: Text as written.
            language: Language code.
            max_tokens: Most ids that `encode` may return; None for no limit.
            allow_unknown: Characters that the vocabulary does not have are no reason; they say nothing, either.

        Returns:
            None when the text is good, else the reason: an unsupported language, nothing to say, characters that the
            vocabulary does not have, or too many tokens.
        """
        try:
            language = get_language(language)
        except ValueError as error:
            return str(error)
        if language.code not in self._languages:
            return f"the vocabulary has no language tag {language.tag}, only: {', '.join(self._languages)}"
        cleaned = self._clean(text, language.code)
        if not any(character.isalnum() for character in cleaned):
            return "no text: no letter or digit in it"
        if allow_unknown:
            if not any(character.isalnum() and character in self._characters for character in cleaned):
                return "no text: the vocabulary has no letter or digit of it"
        elif unknown := self.unknown_characters(text, language.code):
            return unknown
        num_tokens = len(self._encode_cleaned(cleaned, language.tag))
        if max_tokens is not None and num_tokens > max_tokens:
            return f"text too long: {num_tokens} tokens, at most {max_tokens}"
        return None

    def unknown_characters(self, text: str, language: str) -> str | None:
        """Names the characters of a cleaned text that the vocabulary does not have; None where it has them all.

        Args:
            text: Text as written.
            language: Language code.

        Raises:
            ValueError: The language is not supported.
        """
        code = get_language(language).code
        cleaned = self._clean(text, code)
        if self._characters.issuperset(cleaned):
            return None
        unknown = sorted(set(self._replace_unknown(cleaned, code)) - self._characters)
        names = ", ".join(f"{c!r} ({unicodedata.name(c, 'unnamed')})" for c in unknown[:5])
        return f"{len(unknown)} characters not in the vocabulary: {names}" + (", ..." if unknown[5:] else "")

    @property
    def num_tokens(self) -> int:
        """Rows of the model's text table: the largest id plus one (ids may have holes)."""
        return self._vocabulary.next_id

    @property
    def start_id(self) -> int:
        """Id of `[START]`, put before a text by the model."""
        return self._vocabulary.tokens[START]

    @property
    def stop_id(self) -> int:
        """Id of `[STOP]`, put after a text by the model."""
        return self._vocabulary.tokens[STOP]

    @property
    def unk_id(self) -> int:
        """Id of `[UNK]`, which stands for characters the vocabulary does not have."""
        return self._vocabulary.tokens[UNKNOWN]

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages the vocabulary has a tag for, sorted."""
        return self._languages

    def _encode_cleaned(self, cleaned: str, tag: str) -> list[int]:
        return self._tokenizer.encode((tag + cleaned).replace(" ", SPACE)).ids

    def _clean(self, text: str, language: str) -> str:
        cleaned = clean_text(text, language)
        if "[" in cleaned:
            # Control tokens spelled out in a text are text.
            cleaned = self._special_in_text.sub(lambda match: f"({match.group()[1:-1]})", cleaned)
        if self._characters.issuperset(cleaned):
            return cleaned
        replaced = self._replace_unknown(cleaned, language)
        # A text that stays unknown in part is of no use either way: its ids are the reference's.
        return replaced if self._characters.issuperset(replaced) else cleaned

    def _replace_unknown(self, cleaned: str, language: str) -> str:
        text = _VARIATION_SELECTORS.sub("", unicodedata.normalize("NFC", cleaned))
        if language == "ja":
            text = _DIGIT_RUN.sub(self._japanese_digits, text)
        readings = SYMBOL_READINGS[language]
        parts = []
        for character in text:
            if character in self._characters:
                parts.append(character)
            elif character.isspace():
                parts.append(" ")
            elif character in readings:
                parts.append(f" {readings[character]} ")
            elif self._characters.issuperset(variant := PUNCTUATION_VARIANTS.get(character, character)):
                parts.append(variant)
            elif not unicodedata.category(character).startswith(_SILENT_CATEGORIES):
                parts.append(character)
        return " ".join("".join(parts).split())

    def _japanese_digits(self, match: re.Match) -> str:
        # Digits that the vocabulary has are kept: the reference leaves them, and models have learnt to read them.
        digits = match.group()
        if self._characters.issuperset(digits):
            return digits
        return f" {japanese_to_romaji(digits_to_words(digits, 'ja'))} "
