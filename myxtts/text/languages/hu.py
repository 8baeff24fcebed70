"""Hungarian."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="hu",
    name="Hungarian",
    other_names=("hun", "magyar"),
    char_limit=224,
    expand_numbers=Num2Words("hu", ordinal_endings=r"\.|adik|edik|odik|ödik|ödike|ik"),
    abbreviations=table("dr doktor, b bácsi, nőv nővér"),
    symbols=table("& és, @ kukac, % százalék, # kettőskereszt, $ dollár, £ font, ° fok"),
    symbol_readings=table("€ euro, + plusz, = egyenlő"),
    ordinal_stop=True,
)
