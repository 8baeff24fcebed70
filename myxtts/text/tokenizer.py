"""The XTTS text tokenizer and its vocabulary file: a BPE model in the JSON format of Hugging Face `tokenizers`.

Byte-pair encoding: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
"""

import itertools
import json
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from myxtts.config.checks import UserError, brief, counted, read_bounded
from myxtts.storage.files import write_text
from myxtts.text.cleaners import TYPOGRAPHIC_VARIANTS, replace_unknown
from myxtts.text.g2p import alphabet, g2p_codes, written
from myxtts.text.languages import LANGUAGES, get_language
from myxtts.text.reading import SPACE, Reader

STOP, UNKNOWN, START = "[STOP]", "[UNK]", "[START]"

# Limits of a vocabulary file, about 80 times the released one (6,681 tokens, 0.4 MB): the largest id is the size of the
# model's text embedding, so a hostile file could demand any amount of memory.
_MAX_FILE_BYTES = 32 * 2**20
_MAX_TOKEN_ID = 500_000
_MAX_SPECIAL_TOKENS = 1000
_MAX_SPECIAL_CHARACTERS = 100
# Required values of other fields of the format; different values would change the ids.
_UNUSED = """
normalizer post_processor truncation padding model.dropout model.continuing_subword_prefix model.end_of_word_suffix
model.fuse_unk model.byte_fallback model.ignore_merges
""".split()
_FIXED = {"model.type": "BPE", "pre_tokenizer": {"type": "Whitespace"}, "model.unk_token": UNKNOWN}

Corpus = Iterable[tuple[str, str]]
"""Pairs of a written text and its language code."""


class Vocabulary(NamedTuple):
    """Tokens and merges of a BPE tokenizer."""

    tokens: dict[str, int]
    """Id of each token. The ids need not be consecutive."""
    merges: list[tuple[str, str]]
    """Pairs of tokens to merge, in order of priority."""
    special_tokens: tuple[str, ...]
    """Control tokens and language tags, which are never split."""

    def to_json(self) -> str:
        """Returns the vocabulary in the JSON format of Hugging Face `tokenizers`, which Coqui's XTTS can load too."""
        flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        special_tokens = sorted(self.special_tokens, key=self.tokens.__getitem__)
        added = [{"id": self.tokens[token], "content": token} | flags for token in special_tokens]
        model = dict(type="BPE", dropout=None, unk_token=UNKNOWN, continuing_subword_prefix=None)
        model |= dict(end_of_word_suffix=None, fuse_unk=False)
        model["vocab"] = dict(sorted(self.tokens.items(), key=lambda item: item[1]))
        model["merges"] = [f"{left} {right}" for left, right in self.merges]
        document = dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None)
        document |= dict(pre_tokenizer={"type": "Whitespace"}, post_processor=None, decoder=None, model=model)
        return json.dumps(document, ensure_ascii=False, indent=1)

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Parses text in the format of `to_json`. If the text is invalid, raises a `UserError` that names `source`."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"Vocabulary {source} is not JSON: {error}.") from error

        def require(condition: bool, fault: str) -> None:
            if not condition:
                raise UserError(f"Vocabulary {source} is not an XTTS tokenizer file: {fault}.")

        require(isinstance(document, dict) and isinstance(document.get("model"), dict), 'it has no "model"')
        model = document["model"]
        parts = {"model.type": "BPE"} | document | {f"model.{name}": value for name, value in model.items()}
        for name in _UNUSED:
            require(not parts.get(name), f'"{name}" must be empty')
        for name, value in _FIXED.items():
            require(parts.get(name) == value, f'"{name}" must be {json.dumps(value)}')
        tokens, merges, added = model.get("vocab"), model.get("merges"), document.get("added_tokens")
        complete = isinstance(tokens, dict) and isinstance(merges, list) and isinstance(added, list)
        require(complete, '"model.vocab", "model.merges" or "added_tokens" is missing')
        few = len(added) <= _MAX_SPECIAL_TOKENS
        require(few, f'"added_tokens" must have at most {_MAX_SPECIAL_TOKENS} entries, not {len(added)}')
        special_tokens, tokens = [], dict(tokens)
        for entry in added:
            content, token_id = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
            valid = isinstance(content, str) and 0 < len(content) <= _MAX_SPECIAL_CHARACTERS
            require(valid, f"an added token must have 1 to {_MAX_SPECIAL_CHARACTERS} characters: {brief(content)}")
            require(tokens.setdefault(content, token_id) == token_id, f"the added token {brief(content)} has two ids")
            special_tokens.append(content)
        for token, token_id in tokens.items():
            fault = f"the id of {brief(token)} must be a whole number from 0 to {_MAX_TOKEN_ID}, not {brief(token_id)}"
            require(type(token_id) is int and 0 <= token_id <= _MAX_TOKEN_ID, fault)
        require(not re.search("[\ud800-\udfff]", "".join(tokens)), "a token contains a lone surrogate")
        require(len(set(tokens.values())) == len(tokens), "two tokens have the same id")
        for token in (STOP, UNKNOWN, SPACE, START):
            require(token in special_tokens, f"the control token {token} is missing")
        pairs = []
        for merge in merges:
            pair = merge.split(" ") if isinstance(merge, str) else merge
            valid = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
            valid = valid and tokens.keys() >= {*pair, "".join(pair)}
            require(valid, f"the merge {brief(merge)} does not join two tokens into a third")
            pairs.append(tuple(pair))
        return cls(tokens, pairs, tuple(special_tokens))


def learn_merges(words: list[tuple[list[str], int]], new_characters: set[str], limit: int) -> list[tuple[str, str]]:
    """Learns at most `limit` BPE merges from words `(tokens, count)`, and applies them to each `tokens` list in place.

    Only pairs with a character in `new_characters` are merged, so that text without these characters keeps its ids.
    The most frequent pair is merged first; ties are broken by code point. Pairs that occur only once are not merged.
    """
    frequency: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def count_pairs(index: int, sign: int) -> None:
        word, count = words[index]
        for pair in zip(word, word[1:]):
            if not new_characters.isdisjoint(pair[0] + pair[1]):
                frequency[pair] += sign * count
                places[pair].add(index)

    for index in range(len(words)):
        count_pairs(index, +1)
    merges: list[tuple[str, str]] = []
    while len(merges) < limit and frequency:
        best = min(frequency, key=lambda pair: (-frequency[pair], pair))
        if frequency[best] < 2:
            break
        merges.append(best)
        for index in places.pop(best):
            count_pairs(index, -1)
            word = words[index][0]
            for start in range(len(word) - 1):
                if (*word[start : start + 2],) == best:
                    word[start : start + 2] = ["".join(best)]
            count_pairs(index, +1)
        frequency = +frequency
    return merges


def with_names(characters: Sequence[str]) -> str:
    """Returns the first five characters, in quotes and with their Unicode names, as text for messages."""
    names = ", ".join(f"{one!r} ({unicodedata.name(one, 'unnamed')})" for one in characters[:5])
    return names + ", ..." * bool(characters[5:])


class XTTSTokenizer:
    """Converts text to token ids of XTTS, for all languages in `languages.LANGUAGES`.

    The ids are the language's tag and the BPE tokens of the cleaned text (`cleaners.clean_text`), with `[SPACE]` for
    each space. The model adds `[START]` and `[STOP]`. With a released vocabulary, the ids equal those of Coqui's XTTS,
    except for the deliberate differences in `docs/text.md`.

    Characters that the vocabulary lacks are replaced by characters with the same pronunciation (curly quotes by
    straight quotes, € by "euro") or removed if silent (emoji). If any unknown character of a text has no replacement,
    all unknown characters of the text become `[UNK]`; `check` reports this case.

    The argument `g2p` lists the languages whose texts are converted to phonemes. If it contains `"espeak"`, texts in
    all languages without phoneme rules are converted too. Instances are immutable and thread-safe. Methods except
    `check` and `encode_checked` raise `ValueError` for an unsupported language.
    """

    def __init__(self, vocabulary: Vocabulary, g2p: Iterable[str] = ()):
        self.g2p = g2p_codes(g2p)
        """Sorted codes of the languages to convert to phonemes, and `"espeak"` if the argument `g2p` contains it."""
        tokens, _, special_tokens = vocabulary
        characters = frozenset(token for token in tokens if len(token) == 1) | {" "}
        self.reader = Reader(characters, re.compile("|".join(map(re.escape, special_tokens))), self.g2p)
        self.num_tokens: int = max(tokens.values()) + 1
        """Size of the model's text embedding: the largest id plus one."""
        self.languages: tuple[str, ...] = tuple(code for code, one in LANGUAGES.items() if one.tag in special_tokens)
        self.start_id, self.stop_id, self.unk_id = tokens[START], tokens[STOP], tokens[UNKNOWN]
        """Ids of `[START]` and `[STOP]`, which the model adds to a text, and of `[UNK]`, for unknown characters."""
        self._vocabulary = vocabulary
        self._tokenizer = Tokenizer.from_str(vocabulary.to_json())
        self._pieces = {token_id: token for token, token_id in tokens.items()}

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Self:
        """Loads the vocabulary file of a released checkpoint, or a file that `save` wrote.

        Raises `FileNotFoundError` if the file does not exist, and `UserError` if it is not an XTTS vocabulary.
        """
        try:
            text = read_bounded(Path(path), _MAX_FILE_BYTES)
        except FileNotFoundError:
            raise FileNotFoundError(f"Vocabulary file not found: {path}.") from None
        except ValueError as error:
            raise UserError(f"Vocabulary file {path} {error}.") from None
        return cls(Vocabulary.parse(text, str(path)))

    @classmethod
    def train(cls, texts_with_languages: Corpus, vocab_size: int = 512, g2p: Iterable[str] = ()) -> Self:
        """Trains a vocabulary on a corpus; the same corpus always gives the same vocabulary.

        The ids are `[STOP]` 0, `[UNK]` 1, `[SPACE]` 2, `[START]` 3, then tags, characters and merges.

        Merges are added until there are `vocab_size` tokens, or until no pair of tokens occurs twice. `g2p` lists the
        languages whose texts are converted to phonemes. Raises `ValueError` if the corpus has no text, or if there are
        no phoneme rules for a language in `g2p`.
        """
        g2p = g2p_codes(g2p)
        texts, codes = _clean_corpus(texts_with_languages, g2p)
        if not any(texts):
            raise ValueError("The corpus must contain text to train a vocabulary.")
        special_tokens = [STOP, UNKNOWN, SPACE, START, *(LANGUAGES[code].tag for code in codes)]
        tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=special_tokens, show_progress=False)
        tokenizer.train_from_iterator((text.translate(TYPOGRAPHIC_VARIANTS) for text in texts), trainer)
        return cls(Vocabulary.parse(tokenizer.to_str(), "just trained"), g2p)

    def with_g2p(self, languages: Iterable[str]) -> Self:
        """Returns a copy that converts only texts in `languages` to phonemes. Raises the errors of `g2p_codes`."""
        return type(self)(self._vocabulary, languages)

    def extend(self, texts_with_languages: Corpus, num_new_tokens: int = 256) -> Self:
        """Returns a tokenizer whose vocabulary also covers a corpus and the alphabets of its languages.

        New tokens are tags, characters and at most `num_new_tokens` merges. Every merge contains a new character, so
        text that the old vocabulary covers keeps its ids, and a language in a known script gets few new tokens.
        """
        texts, codes = _clean_corpus(texts_with_languages, self.g2p)
        split, (tokens, old_merges, special_tokens) = pre_tokenizers.Whitespace(), self._vocabulary
        variants = {code: to for code, to in TYPOGRAPHIC_VARIANTS.items() if chr(code) not in self.reader.characters}
        counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text.translate(variants)))
        counts.update(letter for code in codes for letter in alphabet(code, self.g2p))
        tags = [tag for tag in (LANGUAGES[code].tag for code in codes) if tag not in tokens]
        new_characters, ids = set().union(*counts) - self.reader.characters, itertools.count(self.num_tokens)
        tokens = tokens | {token: next(ids) for token in (*tags, *sorted(new_characters))}
        model = BPE(vocab=tokens, merges=old_merges, unk_token=UNKNOWN)
        new_words = ((word, n) for word, n in sorted(counts.items()) if not new_characters.isdisjoint(word))
        words = [([token.value for token in model.tokenize(word)], count) for word, count in new_words]
        # A vocabulary without merges stays without them.
        merges = learn_merges(words, new_characters, num_new_tokens if old_merges else 0)
        tokens |= {token: next(ids) for token in dict.fromkeys(map("".join, merges)) if token not in tokens}
        return type(self)(Vocabulary(tokens, old_merges + merges, special_tokens + tuple(tags)), self.g2p)

    def extends(self, other: "XTTSTokenizer") -> bool:
        """Returns whether this tokenizer has all tokens of `other`, with the same ids."""
        return self._vocabulary.tokens.items() >= other._vocabulary.tokens.items()

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary file atomically, in the JSON format of Hugging Face `tokenizers`."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Returns the content of the vocabulary file."""
        return self._vocabulary.to_json()

    def encode(self, text: str, language: str, *, allow_missing_tag: bool = False) -> list[int]:
        """Returns the ids of a written text: the language's tag, then the tokens of the cleaned text.

        If the vocabulary has no tag for the language, raises `ValueError` or, with `allow_missing_tag`, tokenizes the
        tag like text, as Coqui's XTTS does. Raises `UserError` if a package for the language is not installed.
        """
        language = get_language(language)
        if language.code not in self.languages and not allow_missing_tag:
            known = ", ".join(self.languages)
            raise ValueError(f"The vocabulary has no language tag {language.tag}, only {known}. Use tokenizer.extend.")
        return self.encode_read(self.reader.read(text, language.code), language.code)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text that ids stand for, with the language tag but without `[STOP]`, `[UNK]` and unused ids."""
        text = "".join(self._pieces.get(int(token_id), "") for token_id in ids)
        return text.replace(SPACE, " ").replace(STOP, "").replace(UNKNOWN, "")

    def check(self, text: str, language: str) -> str | None:
        """Returns the reason why a text cannot be used: an unsupported language, unknown characters or too few known
        letters. Returns None if it can be used."""
        return self.encode_checked(text, language)[1]

    def encode_checked(self, text: str, language: str, max_tokens: int | None = None) -> tuple[list[int], str | None]:
        """Returns `(ids, None)`, with the ids from `encode`, or `([], reason)` if the text cannot be used.
        A text cannot be used if `check` returns a reason, or if it has more than `max_tokens` ids."""
        try:
            language = get_language(language, self.languages)
        except ValueError as error:
            return [], str(error)
        read = self.reader.read(text, language.code)
        if unknown := self.reader.unknown(read, language.code):
            return [], f"{counted(len(unknown), 'character')} not in the vocabulary: {with_names(unknown)}"
        fault = self.fault(read, language.code, max_tokens)
        return [] if fault else self.encode_read(read, language.code), fault

    def fault(self, read: str, language: str, max_tokens: int | None = None) -> str | None:
        """Returns a message if `read`, a text returned by `Reader.read`, has too few known letters or more than
        `max_tokens` ids. Otherwise returns None: the model can speak the text. A few unknown characters are allowed."""
        if max_tokens is not None and (count := len(self.encode_read(read, language))) > max_tokens:
            return f"text too long: {count} tokens, at most {max_tokens}"
        return self.reader.fault(read, language)

    def unspoken_share(self, text: str, language: str) -> float:
        """Returns the fraction of a text's letters and digits that the vocabulary lacks, even without diacritics."""
        read, known = self.reader.spoken(text, language), self.reader.characters
        letters = [one for one in replace_unknown(read, get_language(language), known) if one.isalnum()]
        return sum(one not in known for one in letters) / max(1, len(letters))

    def encode_read(self, read: str, language: str) -> list[int]:
        """Returns the ids of `read`, a text returned by `Reader.read`."""
        return self._tokenizer.encode(self.reader.tagged(read, language)).ids


def _clean_corpus(texts: Corpus, g2p: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns the texts to tokenize (from `g2p.written`), and the sorted codes of all languages in `texts`."""
    pairs = [(unicodedata.normalize("NFC", text), language) for text, language in texts]
    codes = {get_language(language).code for _, language in pairs}
    return [written(text, language, g2p) for text, language in pairs], sorted(codes)
