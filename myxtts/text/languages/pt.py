"""Portuguese."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="pt",
    name="Portuguese",
    other_names=("por", "português"),
    char_limit=203,
    expand_numbers=Num2Words("pt", ordinal_endings="º|ª|o|a|os|as", cents_joint=" e "),
    abbreviations=table(
        "sra senhora, sr senhor, dr doutor, dra doutora, st santo, co companhia, jr júnior, ltd limitada"
    ),
    symbols=table("& e, @ arroba, % por cento, # cardinal, $ dólar, £ libra, ° graus"),
    symbol_readings=table("€ euros, + mais, = igual a"),
)
