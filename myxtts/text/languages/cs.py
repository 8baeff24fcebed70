"""Czech. Its ordinals, which num2words lacks, are read in the masculine nominative."""

from myxtts.text.languages.base import Language, Num2Words, table
from myxtts.text.numbers import number_to_words

_ONES = (
    "první druhý třetí čtvrtý pátý šestý sedmý osmý devátý desátý jedenáctý dvanáctý třináctý čtrnáctý "
    "patnáctý šestnáctý sedmnáctý osmnáctý devatenáctý"
).split()
_TENS = "dvacátý třicátý čtyřicátý padesátý šedesátý sedmdesátý osmdesátý devadesátý".split()
_HUNDREDS = "stý dvoustý třístý čtyřstý pětistý šestistý sedmistý osmistý devítistý".split()
_THOUSANDS = (
    "tisící dvoutisící třítisící čtyřtisící pětitisící šestitisící sedmitisící osmitisící devítitisící desetitisící"
).split()


def czech_ordinal(number: int) -> str:
    """Reads a Czech ordinal: tens and ones are ordinals, what comes before them a cardinal (123: sto dvacátý třetí).

    Round numbers above ten thousand, which have no ordinal in use, are read as cardinals.
    """
    if number == 0:
        return "nultý"
    rest, below_hundred = divmod(number, 100)
    if below_hundred:
        words = [number_to_words(rest * 100, "cs")] if rest else []
        if below_hundred < 20:
            return " ".join([*words, _ONES[below_hundred - 1]])
        tens, ones = divmod(below_hundred, 10)
        return " ".join([*words, _TENS[tens - 2], *([_ONES[ones - 1]] if ones else [])])
    thousands, hundreds = divmod(rest, 10)
    if hundreds:
        return " ".join(([number_to_words(thousands * 1000, "cs")] if thousands else []) + [_HUNDREDS[hundreds - 1]])
    return _THOUSANDS[thousands - 1] if thousands <= len(_THOUSANDS) else number_to_words(number, "cs")


LANGUAGE = Language(
    code="cs",
    name="Czech",
    other_names=("ces", "cze", "čeština"),
    letters="áčďéěíňóřšťúůýž",
    char_limit=186,
    # A number that ends the text ends its sentence; anywhere else the full stop makes it an ordinal.
    expand_numbers=Num2Words("cs", ordinal_endings=r"\.(?=\s+\S)", to_ordinal=czech_ordinal),
    abbreviations=table("dr doktor, ing inženýr, p pan"),
    symbols=table("& a, @ na, % procento, # křížek, $ dolar, £ libra, ° stupně"),
    symbol_readings=table("€ euro, + plus, = rovná se"),
    ordinal_stop=True,
)
