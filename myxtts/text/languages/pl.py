"""Polish."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="pl",
    name="Polish",
    other_names=("pol", "polski"),
    char_limit=224,
    expand_numbers=Num2Words("pl", ordinal_endings="º|ª|st|nd|rd|th"),
    abbreviations=table("p pani, m pan, dr doktor, sw święty, jr junior"),
    symbols=table("& i, @ małpa, % procent, # krzyżyk, $ dolar, £ funt, ° stopnie"),
    symbol_readings=table("€ euro, + plus, = równa się"),
    ordinal_stop=True,
)
