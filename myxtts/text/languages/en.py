"""English."""

from myxtts.text.languages.base import Language, Num2Words, table

LANGUAGE = Language(
    code="en",
    name="English",
    other_names=("eng",),
    char_limit=250,
    expand_numbers=Num2Words("en", ordinal_endings="st|nd|rd|th", thousands=","),
    abbreviations=table(
        "mrs misess, mr mister, dr doctor, st saint, co company, jr junior, maj major, gen general, "
        "drs doctors, rev reverend, lt lieutenant, hon honorable, sgt sergeant, capt captain, esq esquire, "
        "ltd limited, col colonel, ft fort"
    ),
    symbols=table("& and, @ at, % percent, # hash, $ dollar, £ pound, ° degree"),
    symbol_readings=table("€ euro, + plus, = equals"),
)
