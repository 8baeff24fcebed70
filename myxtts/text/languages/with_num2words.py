"""Languages whose numbers num2words reads, in the order of their codes."""

import threading
from functools import cache
from typing import Any

from myxtts.text.languages.base import Language, Num2Words, import_extra, table
from myxtts.text.numbers import number_to_words

# Arabic-Indic digits, decimal and thousands separators and percent sign; the ASCII thousands separator is the dot here.
_ARABIC_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫٬٪", "01234567890123456789,.%")

ARABIC = Language(
    code="ar",
    name="Arabic",
    other_names=("ara", "arb", "العربية"),
    scripts=("ARABIC",),
    letters="ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي،؛؟",
    char_limit=166,
    normalize=lambda text: text.translate(_ARABIC_DIGITS),
    expand_numbers=Num2Words("ar", ordinal_endings="ون|ين|ث|ر|ى"),  # money in riyals, as in the reference
    symbols=table("& و, @ على, % في المئة, # رقم, $ دولار, £ جنيه, ° درجة"),
    symbol_readings=table("€ يورو, + زائد, = يساوي"),
)
_CZECH_NUMBERS = (*range(20), *range(20, 100, 10), *range(100, 1000, 100), *range(1000, 10001, 1000))
_CZECH_WORDS = (
    "nultý první druhý třetí čtvrtý pátý šestý sedmý osmý devátý desátý jedenáctý dvanáctý třináctý čtrnáctý patnáctý "
    "šestnáctý sedmnáctý osmnáctý devatenáctý dvacátý třicátý čtyřicátý padesátý šedesátý sedmdesátý osmdesátý "
    "devadesátý stý dvoustý třístý čtyřstý pětistý šestistý sedmistý osmistý devítistý tisící dvoutisící třítisící "
    "čtyřtisící pětitisící šestitisící sedmitisící osmitisící devítitisící desetitisící"
).split()
_CZECH_ORDINALS = dict(zip(_CZECH_NUMBERS, _CZECH_WORDS, strict=True))
"""Ordinals in the masculine nominative."""


def czech_ordinal(number: int) -> str:
    """Returns a Czech ordinal, which num2words lacks: ordinals for tens and ones, a cardinal before them.

    Round numbers above ten thousand have no ordinal in use and are read as cardinals.
    """
    if number in _CZECH_ORDINALS:
        return _CZECH_ORDINALS[number]
    if number < 100:
        return f"{_CZECH_ORDINALS[number // 10 * 10]} {_CZECH_ORDINALS[number % 10]}"
    last = number % 100 or number % 1000
    cardinal = number_to_words(number - last, "cs")
    return f"{cardinal} {czech_ordinal(last)}" if last else cardinal


CZECH = Language(
    code="cs",
    name="Czech",
    other_names=("ces", "cze", "čeština"),
    letters="áčďéěíňóřšťúůýž",
    char_limit=186,
    # A number with a full stop at the end of the text is a cardinal that ends a sentence.
    expand_numbers=Num2Words("cs", ordinal_endings=r"\.(?=\s+\S)", to_ordinal=czech_ordinal),
    abbreviations=table("dr doktor, ing inženýr, p pan"),
    symbols=table("& a, @ na, % procento, # křížek, $ dolar, £ libra, ° stupně"),
    symbol_readings=table("€ euro, + plus, = rovná se"),
    ordinal_stop=True,
)
GERMAN = Language(
    code="de",
    name="German",
    other_names=("deu", "ger", "deutsch"),
    letters="äöüß",
    char_limit=253,
    expand_numbers=Num2Words("de", ordinal_endings=r"st|nd|rd|th|º|ª|\.(?=\s|$)", cents_joint=" und "),
    abbreviations=table("fr frau, dr doktor, st sankt, co firma, jr junior"),
    symbols=table("& und, @ at, % prozent, # raute, $ dollar, £ pfund, ° grad"),
    symbol_readings=table("€ euro, + plus, = gleich"),
    ordinal_stop=True,
)
ENGLISH = Language(
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
SPANISH = Language(
    code="es",
    name="Spanish",
    other_names=("spa", "castilian", "español"),
    letters="áéíñóúü",
    char_limit=239,
    expand_numbers=Num2Words("es", ordinal_endings="º|ª|er|o|a|os|as", cents_joint=" con "),
    abbreviations=table("sra señora, sr señor, dr doctor, dra doctora, st santo, co compañía, jr junior, ltd limitada"),
    symbols=table("& y, @ arroba, % por ciento, # numeral, $ dolar, £ libra, ° grados"),
    symbol_readings=table("€ euros, + más, = igual a"),
)
FRENCH = Language(
    code="fr",
    name="French",
    other_names=("fra", "fre", "français"),
    letters="àâæçèéêëîïôœùûüÿ",
    char_limit=273,
    expand_numbers=Num2Words("fr", ordinal_endings="º|ª|er|re|e|ème", cents_joint=" et "),
    abbreviations=table("mme madame, mr monsieur, dr docteur, st saint, co compagnie, jr junior, ltd limitée"),
    symbols=table("& et, @ arobase, % pour cent, # dièse, $ dollar, £ livre, ° degrés"),
    symbol_readings=table("€ euros, + plus, = égale"),
)
HUNGARIAN = Language(
    code="hu",
    name="Hungarian",
    other_names=("hun", "magyar"),
    letters="áéíóöőúüű",
    char_limit=224,
    expand_numbers=Num2Words("hu", ordinal_endings=r"\.|adik|edik|odik|ödik|ödike|ik"),
    abbreviations=table("dr doktor, b bácsi, nőv nővér"),
    symbols=table("& és, @ kukac, % százalék, # kettőskereszt, $ dollár, £ font, ° fok"),
    symbol_readings=table("€ euro, + plusz, = egyenlő"),
    ordinal_stop=True,
)
ITALIAN = Language(
    code="it",
    name="Italian",
    other_names=("ita", "italiano"),
    letters="àèéìíîòóùú",
    char_limit=213,
    expand_numbers=Num2Words("it", ordinal_endings="º|°|ª|o|a|i|e", cents_joint=" e "),
    abbreviations=table("sig signore, dr dottore, st santo, co compagnia, jr junior, ltd limitata"),
    symbols=table("& e, @ chiocciola, % per cento, # cancelletto, $ dollaro, £ sterlina, ° gradi"),
    symbol_readings=table("€ euro, + più, = uguale a"),
)
# MeCab's tagger, which cutlet holds, is not thread-safe.
_cutlet_lock = threading.Lock()


@cache
def _cutlet() -> Any:
    import_extra("unidic_lite", "Japanese text")
    return import_extra("cutlet", "Japanese text").Cutlet()


def japanese_to_romaji(text: str) -> str:
    """Romanizes Japanese in any mix of scripts: modified Hepburn spelling, lower case, spaces between words.

    今日は寒いですね! becomes `"kyou wa samui desu ne!"`. Needs cutlet and its dictionary unidic-lite.
    """
    with _cutlet_lock:
        return _cutlet().romaji(text).lower()


JAPANESE = Language(
    code="ja",
    name="Japanese",
    other_names=("jpn", "日本語"),
    scripts=("HIRAGANA", "KATAKANA", "CJK"),
    char_limit=71,
    expand_numbers=Num2Words("ja"),
    symbols={},
    symbol_readings=table("€ yuuro, + purasu, = ikooru, & ando, % paasento"),
    romanize=japanese_to_romaji,
    romanizes_as_written=True,  # the dictionary reads a whole text better than its parts
)


def hangul_to_latin(text: str) -> str:
    """Romanizes Hangul by the academic rules of the Revised Romanization of Korean (2000); other text is kept.

    안녕하세요 becomes `"annyeonghaseyo"`. Needs hangul-romanize.
    """
    package, rule = (import_extra(f"hangul_romanize{part}", "Korean text") for part in ("", ".rule"))
    return package.Transliter(rule.academic).translit(text)


KOREAN = Language(
    code="ko",
    name="Korean",
    other_names=("kor", "한국어"),
    scripts=("HANGUL",),
    char_limit=95,
    expand_numbers=Num2Words("ko", ordinal_endings="번째|번|차|째", ordinal_suffix=" 번째"),
    symbols=table("& 그리고, @ 에, % 퍼센트, # 번호, $ 달러, £ 파운드, ° 도"),
    symbol_readings=table("€ yulo, + deohagi, = neun"),
    romanize=hangul_to_latin,
)
DUTCH = Language(
    code="nl",
    name="Dutch",
    other_names=("nld", "dut", "nederlands"),
    letters="áèéêëíïóöúü",
    char_limit=251,
    expand_numbers=Num2Words("nl", ordinal_endings="de|ste|e"),
    abbreviations=table("dhr de heer, mevr mevrouw, dr dokter, jhr jonkheer"),
    symbols=table("& en, @ bij, % procent, # hekje, $ dollar, £ pond, ° graden"),
    symbol_readings=table("€ euro, + plus, = is"),
)
POLISH = Language(
    code="pl",
    name="Polish",
    other_names=("pol", "polski"),
    letters="ąćęłńóśźż",
    char_limit=224,
    expand_numbers=Num2Words("pl", ordinal_endings="º|ª|st|nd|rd|th"),
    abbreviations=table("p pani, m pan, dr doktor, sw święty, jr junior"),
    symbols=table("& i, @ małpa, % procent, # krzyżyk, $ dolar, £ funt, ° stopnie"),
    symbol_readings=table("€ euro, + plus, = równa się"),
    ordinal_stop=True,
)
PORTUGUESE = Language(
    code="pt",
    name="Portuguese",
    other_names=("por", "português"),
    letters="àáâãçéêíóôõúü",
    char_limit=203,
    expand_numbers=Num2Words("pt", ordinal_endings="º|ª|o|a|os|as", cents_joint=" e "),
    abbreviations=table(
        "sra senhora, sr senhor, dr doutor, dra doutora, st santo, co companhia, jr júnior, ltd limitada"
    ),
    symbols=table("& e, @ arroba, % por cento, # cardinal, $ dólar, £ libra, ° graus"),
    symbol_readings=table("€ euros, + mais, = igual a"),
)
RUSSIAN = Language(
    code="ru",
    name="Russian",
    other_names=("rus", "русский"),
    scripts=("CYRILLIC",),
    letters="абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    char_limit=182,
    expand_numbers=Num2Words("ru", ordinal_endings="-й|-я|-е|-ое|-ье|-го", thousands=","),
    abbreviations=table("г-жа госпожа, г-н господин, д-р доктор"),
    abbreviation_stop="never",
    symbols=table("& и, @ собака, % процентов, # номер, $ доллар, £ фунт, ° градус"),
    symbol_readings=table("€ евро, + плюс, = равно"),
)
TURKISH = Language(
    code="tr",
    name="Turkish",
    other_names=("tur", "türkçe"),
    letters="âçğıîöşûü",
    char_limit=226,
    normalize=lambda text: text.replace("İ", "i"),  # before lower(), which makes two characters of it
    expand_numbers=Num2Words("tr", ordinal_endings=r"\.|inci|nci|uncu|üncü", reads_decimals=False),
    abbreviations=table("b bay, byk büyük, dr doktor"),
    symbols=table("& ve, @ at, % yüzde, # diyez, $ dolar, £ sterlin, ° derece"),
    symbol_readings=table("€ euro, + artı, = eşittir"),
    ordinal_stop=True,
)
