"""Turkish."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="tr",
    name="Turkish",
    other_names=("tur", "türkçe"),
    char_limit=226,
    normalize=lambda text: text.replace("İ", "i"),  # Before lower(), which makes two characters of it.
    expand_numbers=Num2Words("tr", ordinal_endings=r"\.|inci|nci|uncu|üncü", reads_decimals=False),
    abbreviations=table("b bay, byk büyük, dr doktor"),
    symbols=table("& ve, @ at, % yüzde, # diyez, $ dolar, £ sterlin, ° derece"),
    symbol_readings=table("€ euro, + artı, = eşittir"),
    ordinal_stop=True,
)
