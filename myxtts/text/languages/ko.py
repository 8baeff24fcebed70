"""Korean."""

import re
from functools import cache
from typing import Any

from myxtts.text.languages.base import Language, Num2Words, import_extra, table

_HANGUL = re.compile("[가-힣]")


def hangul_to_latin(text: str) -> str:
    """Romanizes Hangul by the academic rules of the Revised Romanization of Korean (2000); the rest is kept.

    안녕하세요 is `"annyeonghaseyo"`. Needs hangul-romanize.
    """
    return _transliter().translit(text) if _HANGUL.search(text) else text


@cache
def _transliter() -> Any:
    hangul_romanize = import_extra("hangul_romanize", "Korean text")
    rule = import_extra("hangul_romanize.rule", "Korean text")
    return hangul_romanize.Transliter(rule.academic)


LANGUAGE = Language(
    code="ko",
    name="Korean",
    other_names=("kor", "한국어"),
    scripts=("HANGUL",),
    char_limit=95,
    expand_numbers=Num2Words("ko", ordinal_endings="번째|번|차|째", ordinal_suffix=" 번째"),
    abbreviations={},
    symbols=table("& 그리고, @ 에, % 퍼센트, # 번호, $ 달러, £ 파운드, ° 도"),
    symbol_readings=table("€ yulo, + deohagi, = neun"),
    romanize=hangul_to_latin,
)
