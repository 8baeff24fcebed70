"""Spanish."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="es",
    name="Spanish",
    other_names=("spa", "castilian", "español"),
    char_limit=239,
    expand_numbers=Num2Words("es", ordinal_endings="º|ª|er|o|a|os|as", cents_joint=" con "),
    abbreviations=table("sra señora, sr señor, dr doctor, dra doctora, st santo, co compañía, jr junior, ltd limitada"),
    symbols=table("& y, @ arroba, % por ciento, # numeral, $ dolar, £ libra, ° grados"),
    symbol_readings=table("€ euros, + más, = igual a"),
)
