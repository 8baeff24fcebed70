"""Russian."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="ru",
    name="Russian",
    other_names=("rus", "русский"),
    scripts=("CYRILLIC",),
    char_limit=182,
    expand_numbers=Num2Words("ru", ordinal_endings="-й|-я|-е|-ое|-ье|-го", thousands=","),
    abbreviations=table("г-жа госпожа, г-н господин, д-р доктор"),
    abbreviation_stop="never",
    symbols=table("& и, @ собака, % процентов, # номер, $ доллар, £ фунт, ° градус"),
    symbol_readings=table("€ евро, + плюс, = равно"),
)
