"""French."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="fr",
    name="French",
    other_names=("fra", "fre", "français"),
    char_limit=273,
    expand_numbers=Num2Words("fr", ordinal_endings="º|ª|er|re|e|ème", cents_joint=" et "),
    abbreviations=table("mme madame, mr monsieur, dr docteur, st saint, co compagnie, jr junior, ltd limitée"),
    symbols=table("& et, @ arobase, % pour cent, # dièse, $ dollar, £ livre, ° degrés"),
    symbol_readings=table("€ euros, + plus, = égale"),
)
