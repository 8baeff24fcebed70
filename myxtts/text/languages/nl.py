"""Dutch."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="nl",
    name="Dutch",
    other_names=("nld", "dut", "nederlands"),
    char_limit=251,
    expand_numbers=Num2Words("nl", ordinal_endings="de|ste|e"),
    abbreviations=table("dhr de heer, mevr mevrouw, dr dokter, jhr jonkheer"),
    symbols=table("& en, @ bij, % procent, # hekje, $ dollar, £ pond, ° graden"),
    symbol_readings=table("€ euro, + plus, = is"),
)
