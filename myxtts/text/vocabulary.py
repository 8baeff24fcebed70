"""The vocabulary file of XTTS: Hugging Face `tokenizers` JSON with a BPE model, read as data and checked.

Byte-pair encoding: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STOP, UNKNOWN, SPACE, START = "[STOP]", "[UNK]", "[SPACE]", "[START]"

# Some hundred times the released vocabulary (6,681 tokens, 0.4 MB). Each id is a row of the model's text table, so a
# hostile file could otherwise ask for any amount of memory.
_MAX_FILE_BYTES = 64 * 2**20
_MAX_TOKEN_ID = 500_000
# Parts of the format that XTTS vocabularies leave empty; each of them would change the ids.
_UNUSED_PARTS = ("normalizer", "post_processor", "truncation", "padding")
_UNUSED_MODEL_PARTS = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and merges of a BPE tokenizer."""

    tokens: dict[str, int]
    """Token to id; ids may have holes."""

    merges: list[tuple[str, str]]
    """Pairs in the order in which they are merged."""

    special_tokens: tuple[str, ...]
    """Control tokens and language tags, found in text before anything is split."""

    @property
    def next_id(self) -> int:
        return max(self.tokens.values()) + 1

    def to_json(self) -> str:
        """Writes the file format of Hugging Face `tokenizers`, which the reference loads as well."""
        added_tokens = [
            {
                "id": self.tokens[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in sorted(self.special_tokens, key=self.tokens.__getitem__)
        ]
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": dict(sorted(self.tokens.items(), key=lambda item: item[1])),
            "merges": [f"{left} {right}" for left, right in self.merges],
        }
        document = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens,
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": model,
        }
        return json.dumps(document, ensure_ascii=False, indent=1)


def read_vocabulary(path: str | os.PathLike) -> Vocabulary:
    """Reads and checks a vocabulary file.

    Args:
        path: Hugging Face `tokenizers` JSON.

    Returns:
        The vocabulary.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not an XTTS vocabulary; the message says what is wrong.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"Vocabulary file not found: {path}. It is the JSON file of a trained tokenizer.")
    if not path.is_file():
        raise ValueError(f"Vocabulary must be a file. Received the folder {path}.")
    size = path.stat().st_size
    if size > _MAX_FILE_BYTES:
        raise ValueError(
            f"Vocabulary file {path} must be at most {_MAX_FILE_BYTES // 2**20} MB. It has {size / 2**20:.0f} MB."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"Vocabulary file {path} is not UTF-8 text: {error}.") from error
    return parse_vocabulary(text, str(path))


def parse_vocabulary(text: str, source: str) -> Vocabulary:
    """Reads a vocabulary from JSON text; `source` names it in errors. Raises ValueError as `read_vocabulary` does."""
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"Vocabulary {source} is not JSON: {error}.") from error

    def require(condition: bool, fault: str) -> None:
        if not condition:
            raise ValueError(f"Vocabulary {source} is not an XTTS tokenizer file: {fault}.")

    require(isinstance(document, dict) and isinstance(document.get("model"), dict), 'it has no "model"')
    model = document["model"]
    require(model.get("type", "BPE") == "BPE", f'the model type must be "BPE", not {model.get("type")!r}')
    for part in _UNUSED_PARTS:
        require(not document.get(part), f'"{part}" must be empty')
    for part in _UNUSED_MODEL_PARTS:
        require(not model.get(part), f'"model.{part}" must be empty')
    require(document.get("pre_tokenizer") == {"type": "Whitespace"}, 'the pre-tokenizer must be "Whitespace"')
    require(model.get("unk_token") == UNKNOWN, f'the unknown token must be "{UNKNOWN}"')

    tokens, merges, added = model.get("vocab"), model.get("merges"), document.get("added_tokens")
    require(
        isinstance(tokens, dict) and isinstance(merges, list) and isinstance(added, list),
        '"model.vocab", "model.merges" or "added_tokens" is missing',
    )
    special_tokens = []
    tokens = dict(tokens)
    for entry in added:
        require(
            isinstance(entry, dict) and isinstance(entry.get("content"), str) and entry["content"] != "",
            f"an added token has no content: {entry!r:.80}",
        )
        require(
            tokens.setdefault(entry["content"], entry.get("id")) == entry.get("id"),
            f"the added token {entry['content']!r} has two ids",
        )
        special_tokens.append(entry["content"])
    for token, token_id in tokens.items():
        require(
            type(token_id) is int and 0 <= token_id <= _MAX_TOKEN_ID,
            f"the id of {token!r:.40} must be a whole number from 0 to {_MAX_TOKEN_ID}, not {token_id!r:.40}",
        )
    require(len(set(tokens.values())) == len(tokens), "two tokens have the same id")
    for token in (STOP, UNKNOWN, SPACE, START):
        require(token in special_tokens, f"the control token {token} is missing")

    pairs = []
    for merge in merges:
        pair = tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) if isinstance(merge, list) else ()
        require(
            len(pair) == 2
            and all(isinstance(part, str) and part in tokens for part in pair)
            and "".join(pair) in tokens,
            f"the merge {merge!r:.80} does not join two tokens into a third",
        )
        pairs.append(pair)
    return Vocabulary(tokens, pairs, tuple(special_tokens))


def learn_merges(words: Iterable[tuple[list[str], int]], new_characters: set[str], limit: int) -> list[tuple[str, str]]:
    """Learns BPE merges, each of which has a new character in it.

    A merge without a new character could also apply to text of the languages the vocabulary already has, and change
    its ids.

    Args:
        words: Each word as its present tokens, and how often it occurs.
        new_characters: Characters that the vocabulary did not have.
        limit: Most merges to learn.

    Returns:
        Pairs in order, most frequent first; ties in code point order. Pairs seen once are not merged.
    """
    pieces = [(list(word), count) for word, count in words]
    frequency: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def count_pairs(index: int, sign: int) -> None:
        word, count = pieces[index]
        for pair in zip(word, word[1:]):
            if new_characters.isdisjoint(pair[0]) and new_characters.isdisjoint(pair[1]):
                continue
            frequency[pair] += sign * count
            if sign > 0:
                places[pair].add(index)

    for index in range(len(pieces)):
        count_pairs(index, +1)
    merges: list[tuple[str, str]] = []
    while len(merges) < limit and frequency:
        best = min(frequency, key=lambda pair: (-frequency[pair], pair))
        if frequency[best] < 2:
            break
        merges.append(best)
        for index in sorted(places.pop(best)):
            count_pairs(index, -1)
            _merge_pair(pieces[index][0], best)
            count_pairs(index, +1)
        frequency = +frequency
    return merges


def _merge_pair(word: list[str], pair: tuple[str, str]) -> None:
    index = 0
    while index < len(word) - 1:
        if word[index] == pair[0] and word[index + 1] == pair[1]:
            word[index : index + 2] = [pair[0] + pair[1]]
        index += 1
