"""Arabic. Amounts of money are read in riyals, as in the reference."""

from myxtts.text.languages.base import Language, Num2Words, table

# Arabic-Indic digits, decimal and thousands separators, percent sign. The thousands separator of ASCII is the dot here.
_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫٬٪", "01234567890123456789,.%")

LANGUAGE = Language(
    code="ar",
    name="Arabic",
    other_names=("ara", "arb", "العربية"),
    scripts=("ARABIC",),
    char_limit=166,
    normalize=lambda text: text.translate(_DIGITS),
    expand_numbers=Num2Words("ar", ordinal_endings="ون|ين|ث|ر|ى"),
    abbreviations={},
    symbols=table("& و, @ على, % في المئة, # رقم, $ دولار, £ جنيه, ° درجة"),
    symbol_readings=table("€ يورو, + زائد, = يساوي"),
)
