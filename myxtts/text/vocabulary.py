"""The vocabulary file of XTTS: Hugging Face `tokenizers` JSON with a BPE model.

Byte-pair encoding: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
"""

import itertools
import json
import os
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tokenizers.models import BPE

from myxtts.config.checks import UserError, brief, read_bounded

STOP, UNKNOWN, SPACE, START = "[STOP]", "[UNK]", "[SPACE]", "[START]"

# About 80 times the released vocabulary (6,681 tokens, 0.4 MB). The largest id sets the size of the model's text
# embedding, so a hostile file could otherwise demand any amount of memory.
_MAX_FILE_BYTES = 32 * 2**20
_MAX_TOKEN_ID = 500_000
_MAX_SPECIAL_TOKENS = 1000
_MAX_SPECIAL_CHARACTERS = 100
# Required values of the other parts of the format; different ones would change the ids.
_UNUSED = """
normalizer post_processor truncation padding model.dropout model.continuing_subword_prefix model.end_of_word_suffix
model.fuse_unk model.byte_fallback model.ignore_merges
""".split()
_FIXED = {"model.type": "BPE", "pre_tokenizer": {"type": "Whitespace"}, "model.unk_token": UNKNOWN}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and merges of a BPE tokenizer."""

    tokens: dict[str, int]
    """Ids by token; ids may have holes."""
    merges: list[tuple[str, str]]
    """Pairs of tokens in the order in which they are merged."""
    special_tokens: tuple[str, ...]
    """Control tokens and language tags, matched before text is split."""

    @property
    def next_id(self) -> int:
        """The largest id plus one."""
        return max(self.tokens.values()) + 1

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters with a token, and the space."""
        return frozenset(token for token in self.tokens if len(token) == 1) | {" "}

    def to_json(self) -> str:
        """Serializes the vocabulary as Hugging Face `tokenizers` JSON, which the reference also loads."""
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

    def extend(self, counts: dict[str, int], tags: list[str], num_merges: int) -> Self:
        """Adds missing `tags` and characters, and at most `num_merges` merges that contain a new character.

        `counts` are the occurrences of each word. Old ids are kept. A vocabulary without merges gets none.
        """
        new_characters = set().union(*counts) - self.characters
        tokens, ids = dict(self.tokens), itertools.count(self.next_id)
        tags = [tag for tag in tags if tag not in tokens]
        tokens |= {token: next(ids) for token in (*tags, *sorted(new_characters))}
        model = BPE(vocab=tokens, merges=self.merges, unk_token=UNKNOWN)
        words = [
            ([token.value for token in model.tokenize(word)], count)
            for word, count in sorted(counts.items())
            if not new_characters.isdisjoint(word)
        ]
        merges = learn_merges(words, new_characters, num_merges if self.merges else 0)
        for token in map("".join, merges):
            if token not in tokens:
                tokens[token] = next(ids)
        return type(self)(tokens, self.merges + merges, self.special_tokens + tuple(tags))

    @classmethod
    def read(cls, path: str | os.PathLike) -> Self:
        """Reads and checks a vocabulary file.

        Raises:
            FileNotFoundError: The file does not exist.
            UserError: It is not an XTTS vocabulary; the message names the fault.
        """
        try:
            text = read_bounded(Path(path), _MAX_FILE_BYTES)
        except FileNotFoundError:
            raise FileNotFoundError(f"Vocabulary file not found: {path}.") from None
        except ValueError as error:
            raise UserError(f"Vocabulary file {path} {error}.") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Parses the JSON text of a vocabulary; `source` names it in errors. Raises UserError as `read` does."""
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
    """Learns at most `limit` BPE merges from `words`, pairs of a token list, which is changed, and a count.

    Each merge contains a new character, because others would change the ids of text that the vocabulary already covers.
    The most frequent pairs come first, ties in code point order; pairs that occur once are not merged.
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
        for index in sorted(places.pop(best)):
            count_pairs(index, -1)
            _merge_pair(words[index][0], best)
            count_pairs(index, +1)
        frequency = +frequency
    return merges


def _merge_pair(word: list[str], pair: tuple[str, str]) -> None:
    index = 0
    while index < len(word) - 1:
        if (word[index], word[index + 1]) == pair:
            word[index : index + 2] = ["".join(pair)]
        index += 1
