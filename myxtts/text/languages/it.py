"""Italian."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="it",
    name="Italian",
    other_names=("ita", "italiano"),
    char_limit=213,
    expand_numbers=Num2Words("it", ordinal_endings="º|°|ª|o|a|i|e", cents_joint=" e "),
    abbreviations=table("sig signore, dr dottore, st santo, co compagnia, jr junior, ltd limitata"),
    symbols=table("& e, @ chiocciola, % per cento, # cancelletto, $ dollaro, £ sterlina, ° gradi"),
    symbol_readings=table("€ euro, + più, = uguale a"),
)
