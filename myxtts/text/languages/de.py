"""German."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="de",
    name="German",
    other_names=("deu", "ger", "deutsch"),
    char_limit=253,
    expand_numbers=Num2Words("de", ordinal_endings=r"st|nd|rd|th|º|ª|\.(?=\s|$)", cents_joint=" und "),
    abbreviations=table("fr frau, dr doktor, st sankt, co firma, jr junior"),
    symbols=table("& und, @ at, % prozent, # raute, $ dollar, £ pfund, ° grad"),
    symbol_readings=table("€ euro, + plus, = gleich"),
    ordinal_stop=True,
)
