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

    A text becomes its language's tag followed by the BPE tokens of the cleaned text (`cleaners.clean_text`), with
    `[SPACE]` for each space. `[START]` and `[STOP]` are left to the model. With a released vocabulary the ids are the
    reference's; `docs/text.md` lists the deliberate differences.

    Where the vocabulary lacks a character, it is replaced by something that sounds the same (a straight quote for a
    curly one, "euro" for €), or dropped if it is silent (an emoji). If part of the text stays unknown even so, the
    unknown characters become `[UNK]`, which `check` reports.

    Instances do not change; encoding is safe from several threads. Whatever takes a language raises a ValueError for
    one that is not supported, `check` excepted.
    """

    def __init__(self, vocabulary: Vocabulary, g2p: Iterable[str] = ()):
        """Wraps a vocabulary; `from_file`, `train` and `extend` make one. `g2p` as of `with_g2p`."""
        self.g2p = g2p_codes(g2p)
        """Codes of the languages that are written as they sound (`g2p.written`) before they are tokenized."""
        tokens, special_tokens = vocabulary.tokens, vocabulary.special_tokens
        self.num_tokens: int = vocabulary.next_id
        """Rows of the model's text table: the largest id plus one (ids may have holes)."""
        self.languages: tuple[str, ...] = tuple(code for code, one in LANGUAGES.items() if one.tag in special_tokens)
        self.start_id, self.stop_id, self.unk_id = tokens[START], tokens[STOP], tokens[UNKNOWN]
        """Ids that the model puts before and after a text, and that of characters without a token."""
        self._vocabulary, self._characters = vocabulary, vocabulary.characters
        self._tokenizer = Tokenizer.from_str(vocabulary.to_json())
        self._pieces = {token_id: token for token, token_id in tokens.items()}
        self._special_in_text = re.compile("|".join(map(re.escape, special_tokens)))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Self:
        """Loads a vocabulary file, a released checkpoint's or one written by `save`; errors as of `Vocabulary.read`."""
        return cls(Vocabulary.read(path))

    @classmethod
    def train(
        cls, texts_with_languages: Corpus, vocab_size: int = 512, languages: Iterable[str] = (), g2p: Iterable[str] = ()
    ) -> Self:
        """Trains a vocabulary on a corpus; the same corpus gives the same vocabulary.

        Ids are `[STOP]` 0, `[UNK]` 1, `[SPACE]` 2, `[START]` 3, then tags, characters and merges.

        Args:
            vocab_size: Most tokens in all. Control tokens, language tags and every character of the corpus have
                their token even where that makes more.
            languages: Codes of languages to have a tag besides those of the corpus.
            g2p: Codes of languages to be written as they sound.

        Raises:
            ValueError: There is no text, or there are no rules for the sounds of a language.
        """
        g2p = g2p_codes(g2p)
        texts, codes = _clean_corpus(texts_with_languages, languages, g2p)
        if not any(texts):
            raise ValueError("A vocabulary is trained on the text of a corpus. Received no text.")
        special_tokens = [STOP, UNKNOWN, SPACE, START, *(LANGUAGES[code].tag for code in codes)]
        tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=special_tokens, show_progress=False)
        tokenizer.train_from_iterator((text.translate(TYPOGRAPHIC_VARIANTS) for text in texts), trainer)
        return cls(Vocabulary.parse(tokenizer.to_str(), "just trained"), g2p)

    def with_g2p(self, languages: Iterable[str]) -> Self:
        """The same vocabulary for texts that are written as they sound in these languages, and in no other.

        Raises:
            ValueError: There are no rules for the sounds of one of them.
        """
        return type(self)(self._vocabulary, languages)

    def extend(self, texts_with_languages: Corpus, num_new_tokens: int = 256, languages: Iterable[str] = ()) -> Self:
        """Makes a tokenizer whose vocabulary has the characters of a corpus and of its languages' alphabets as well.

        Old ids stay, and any text that the old vocabulary knew in full keeps its ids: every new token has a character
        in it that was unknown before. For a language in a known script, therefore, few tokens are learned.

        Args:
            num_new_tokens: Most tokens of several characters to add; new characters and tags come on top.
            languages: Codes of languages to have a tag besides those of the corpus.
        """
        texts, codes = _clean_corpus(texts_with_languages, languages, self.g2p)
        tags = [LANGUAGES[code].tag for code in codes]
        split = pre_tokenizers.Whitespace()
        variants = {code: to for code, to in TYPOGRAPHIC_VARIANTS.items() if chr(code) not in self._characters}
        counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text.translate(variants)))
        counts.update(letter for code in codes for letter in alphabet(code, self.g2p))
        return type(self)(self._vocabulary.extend(counts, tags, num_new_tokens), self.g2p)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary as a Hugging Face `tokenizers` JSON file, whole or not at all."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Returns what `save` writes."""
        return self._vocabulary.to_json()

    def encode(self, text: str, language: str, *, allow_missing_tag: bool = False) -> list[int]:
        """Cleans a text as written and turns it into ids: the language's tag, then its tokens.

        Args:
            allow_missing_tag: Encode although the vocabulary has no tag for the language. The tag then becomes
                unknown tokens, as in the reference.

        Raises:
            ValueError: The vocabulary has no tag for the language.
            ImportError: The text needs an optional package that is not installed.
        """
        language = get_language(language)
        if language.code not in self.languages and not allow_missing_tag:
            known = f"It has: {', '.join(self.languages)}. Add {language.name} with XTTSTokenizer.extend."
            raise ValueError(f"The vocabulary has no language tag {language.tag}. {known}")
        return self._encode_cleaned(self._clean(text, language), language)

    def decode(self, ids: Iterable[int]) -> str:
        """Turns ids back into cleaned text, language tag included; `[STOP]`, `[UNK]` and unused ids are left out."""
        text = "".join(self._pieces.get(int(token_id), "") for token_id in ids)
        return text.replace(SPACE, " ").replace(STOP, "").replace(UNKNOWN, "")

    def check(
        self, text: str, language: str, max_tokens: int | None = None, *, allow_unknown: bool = False
    ) -> str | None:
        """Returns why a text cannot be used as it is; None when it can.

        The reasons: an unsupported language, nothing to say, characters that the vocabulary does not have, or too
        many tokens.

        Args:
            max_tokens: Most ids that `encode` may return; None for no limit.
            allow_unknown: Accept characters that the vocabulary does not have; they are not spoken.
        """
        try:
            language = get_language(language, self.languages)
        except ValueError as error:
            return str(error)
        if language.code not in self.languages:
            return f"the vocabulary has no language tag {language.tag}, only: {', '.join(self.languages)}"
        cleaned = self._clean(text, language)
        if not any(map(str.isalnum, cleaned)):
            return "no text: no letter or digit in it"
        if not allow_unknown and (unknown := self._unknown(cleaned, language)):
            return _name_all(unknown)
        if not any(character.isalnum() and character in self._characters for character in cleaned):
            return "no text: the vocabulary has no letter or digit of it"
        num_tokens = len(self._encode_cleaned(cleaned, language))
        if max_tokens is not None and num_tokens > max_tokens:
            return f"text too long: {num_tokens} tokens, at most {max_tokens}"
        return None

    def unknown_characters(self, text: str, language: str) -> str:
        """Names the characters of a text, cleaned, that the vocabulary does not have; empty where it has them all."""
        language = get_language(language)
        unknown = self._unknown(self._clean(text, language), language)
        return _name_all(unknown) if unknown else ""

    def with_known_letters(self, text: str, language: str) -> str:
        """A text as written in which letters lose their marks where the vocabulary has only the plain ones.

        For speaking: `naïve` is understood as `naive`, and not as `nave`. It is no way to train.
        """
        language = get_language(language)
        unknown = set(self._unknown(self._clean(text, language), language))

        def known(character):
            plain = plain_letter(character)
            is_better = not unknown.isdisjoint(character.lower()) and self._characters.issuperset(plain.lower())
            return plain if is_better else character

        return "".join(map(known, unicodedata.normalize("NFC", text))) if unknown else text

    def unspoken_share(self, text: str, language: str) -> float:
        """Share of a text's letters and digits that the vocabulary has in no form."""
        cleaned = self._clean(self.with_known_letters(text, language), get_language(language))
        letters = [one for one in replace_unknown(cleaned, get_language(language), self._characters) if one.isalnum()]
        return sum(one not in self._characters for one in letters) / max(1, len(letters))

    def _encode_cleaned(self, cleaned: str, language: Language) -> list[int]:
        return self._tokenizer.encode((language.tag + cleaned).replace(" ", SPACE)).ids

    def _clean(self, text: str, language: Language) -> str:
        cleaned = written(text, language.code, self.g2p)
        if "[" in cleaned:
            # Control tokens spelled out in a text are text.
            cleaned = self._special_in_text.sub(lambda match: f"({match.group()[1:-1]})", cleaned)
        if self._characters.issuperset(cleaned):
            return cleaned
        replaced = replace_unknown(cleaned, language, self._characters)
        # Substitutes that leave part of the text unknown help nobody: its ids stay the reference's.
        return replaced if self._characters.issuperset(replaced) else cleaned

    def _unknown(self, cleaned: str, language: Language) -> list[str]:
        if self._characters.issuperset(cleaned):
            return []
        return sorted(set(replace_unknown(cleaned, language, self._characters)) - self._characters)


def _name_all(unknown: list[str]) -> str:
    names = ", ".join(f"{c!r} ({unicodedata.name(c, 'unnamed')})" for c in unknown[:5])
    return f"{counted(len(unknown), 'character')} not in the vocabulary: {names}" + (", ..." if unknown[5:] else "")


def _clean_corpus(texts: Corpus, languages: Iterable[str], g2p: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Cleaned texts, and the codes of their languages and of `languages`, sorted."""
    pairs = list(texts)
    codes = {get_language(code).code for code in (*languages, *(language for _, language in pairs))}
    return [written(text, language, g2p) for text, language in pairs], sorted(codes)
