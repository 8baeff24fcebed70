"""Abbreviations and symbols, and the words they are read as.

For the XTTS languages the first two tables hold what the reference reads, so that token ids agree with released
checkpoints, its slips included (`co.` is always a company). `SYMBOL_READINGS` goes beyond the reference: it is used
only for characters that the vocabulary does not have (see `XTTSTokenizer`).
"""

# Written before a full stop, in order of replacement. Longer forms need not come first: the full stop ends the match.
ABBREVIATIONS = {
    "en": {
        "mrs": "misess",
        "mr": "mister",
        "dr": "doctor",
        "st": "saint",
        "co": "company",
        "jr": "junior",
        "maj": "major",
        "gen": "general",
        "drs": "doctors",
        "rev": "reverend",
        "lt": "lieutenant",
        "hon": "honorable",
        "sgt": "sergeant",
        "capt": "captain",
        "esq": "esquire",
        "ltd": "limited",
        "col": "colonel",
        "ft": "fort",
    },
    "es": {
        "sra": "señora",
        "sr": "señor",
        "dr": "doctor",
        "dra": "doctora",
        "st": "santo",
        "co": "compañía",
        "jr": "junior",
        "ltd": "limitada",
    },
    "fr": {
        "mme": "madame",
        "mr": "monsieur",
        "dr": "docteur",
        "st": "saint",
        "co": "compagnie",
        "jr": "junior",
        "ltd": "limitée",
    },
    "de": {"fr": "frau", "dr": "doktor", "st": "sankt", "co": "firma", "jr": "junior"},
    "pt": {
        "sra": "senhora",
        "sr": "senhor",
        "dr": "doutor",
        "dra": "doutora",
        "st": "santo",
        "co": "companhia",
        "jr": "júnior",
        "ltd": "limitada",
    },
    "it": {"sig": "signore", "dr": "dottore", "st": "santo", "co": "compagnia", "jr": "junior", "ltd": "limitata"},
    "pl": {"p": "pani", "m": "pan", "dr": "doktor", "sw": "święty", "jr": "junior"},
    "cs": {"dr": "doktor", "ing": "inženýr", "p": "pan"},
    "ru": {"г-жа": "госпожа", "г-н": "господин", "д-р": "доктор"},
    "nl": {"dhr": "de heer", "mevr": "mevrouw", "dr": "dokter", "jhr": "jonkheer"},
    "tr": {"b": "bay", "byk": "büyük", "dr": "doktor"},
    "hu": {"dr": "doktor", "b": "bácsi", "nőv": "nővér"},
    "fa": {"ه.ش": "هجری شمسی", "ه.ق": "هجری قمری", "ق.م": "قبل از میلاد"},
    "am": {
        "ዓ.ም": "ዓመተ ምህረት",
        "እ.ኤ.አ": "እንደ ኤውሮፓውያን አቆጣጠር",
        "ዶ/ር": "ዶክተር",
        "ፕ/ር": "ፕሮፌሰር",
        "ወ/ሮ": "ወይዘሮ",
        "ወ/ሪት": "ወይዘሪት",
        "ት/ቤት": "ትምህርት ቤት",
        "መ/ቤት": "መሥሪያ ቤት",
        "ፍ/ቤት": "ፍርድ ቤት",
        "ጠ/ሚ": "ጠቅላይ ሚኒስትር",
    },
}

# Languages whose abbreviations stand without a full stop after them, or may.
ABBREVIATIONS_WITHOUT_STOP = frozenset({"ru", "fa", "am"})

SYMBOLS = {
    "en": {"&": "and", "@": "at", "%": "percent", "#": "hash", "$": "dollar", "£": "pound", "°": "degree"},
    "es": {"&": "y", "@": "arroba", "%": "por ciento", "#": "numeral", "$": "dolar", "£": "libra", "°": "grados"},
    "fr": {"&": "et", "@": "arobase", "%": "pour cent", "#": "dièse", "$": "dollar", "£": "livre", "°": "degrés"},
    "de": {"&": "und", "@": "at", "%": "prozent", "#": "raute", "$": "dollar", "£": "pfund", "°": "grad"},
    "pt": {"&": "e", "@": "arroba", "%": "por cento", "#": "cardinal", "$": "dólar", "£": "libra", "°": "graus"},
    "it": {
        "&": "e",
        "@": "chiocciola",
        "%": "per cento",
        "#": "cancelletto",
        "$": "dollaro",
        "£": "sterlina",
        "°": "gradi",
    },
    "pl": {"&": "i", "@": "małpa", "%": "procent", "#": "krzyżyk", "$": "dolar", "£": "funt", "°": "stopnie"},
    "ar": {"&": "و", "@": "على", "%": "في المئة", "#": "رقم", "$": "دولار", "£": "جنيه", "°": "درجة"},
    "zh": {"&": "和", "@": "在", "%": "百分之", "#": "号", "$": "美元", "£": "英镑", "°": "度"},
    "cs": {"&": "a", "@": "na", "%": "procento", "#": "křížek", "$": "dolar", "£": "libra", "°": "stupně"},
    "ru": {"&": "и", "@": "собака", "%": "процентов", "#": "номер", "$": "доллар", "£": "фунт", "°": "градус"},
    "nl": {"&": "en", "@": "bij", "%": "procent", "#": "hekje", "$": "dollar", "£": "pond", "°": "graden"},
    "tr": {"&": "ve", "@": "at", "%": "yüzde", "#": "diyez", "$": "dolar", "£": "sterlin", "°": "derece"},
    "hu": {"&": "és", "@": "kukac", "%": "százalék", "#": "kettőskereszt", "$": "dollár", "£": "font", "°": "fok"},
    "ko": {"&": "그리고", "@": "에", "%": "퍼센트", "#": "번호", "$": "달러", "£": "파운드", "°": "도"},
    "hi": {
        "&": "और",
        "@": "ऐट दी रेट",
        "%": "प्रतिशत",
        "#": "हैश",
        "$": "डॉलर",
        "£": "पाउंड",
        "°": "डिग्री",
        "€": "यूरो",
        "₹": "रुपये",
    },
    "fa": {
        "&": "و",
        "@": "ات",
        "%": "درصد",
        "#": "هشتگ",
        "$": "دلار",
        "£": "پوند",
        "€": "یورو",
        "°": "درجه",
        "+": "به‌علاوه",
        "=": "مساوی",
    },
    "am": {
        "&": "እና",
        "@": "አት",
        "%": "በመቶ",
        "#": "ቁጥር",
        "$": "ዶላር",
        "£": "ፓውንድ",
        "€": "ዩሮ",
        "°": "ዲግሪ",
        "+": "ሲደመር",
        "=": "እኩል ነው",
    },
}

# What a symbol is read as when the vocabulary lacks it: already romanised for Chinese, Korean and Japanese, whose
# text is romanised when this table is consulted.
SYMBOL_READINGS = {
    "en": {"€": "euro", "+": "plus", "=": "equals"},
    "es": {"€": "euros", "+": "más", "=": "igual a"},
    "fr": {"€": "euros", "+": "plus", "=": "égale"},
    "de": {"€": "euro", "+": "plus", "=": "gleich"},
    "pt": {"€": "euros", "+": "mais", "=": "igual a"},
    "it": {"€": "euro", "+": "più", "=": "uguale a"},
    "pl": {"€": "euro", "+": "plus", "=": "równa się"},
    "ar": {"€": "يورو", "+": "زائد", "=": "يساوي"},
    "zh": {"€": "ou1yuan2", "£": "ying1bang4"},
    "cs": {"€": "euro", "+": "plus", "=": "rovná se"},
    "ru": {"€": "евро", "+": "плюс", "=": "равно"},
    "nl": {"€": "euro", "+": "plus", "=": "is"},
    "tr": {"€": "euro", "+": "artı", "=": "eşittir"},
    "hu": {"€": "euro", "+": "plusz", "=": "egyenlő"},
    "ko": {"€": "yulo", "+": "deohagi", "=": "neun"},
    "ja": {"€": "yuuro", "+": "purasu", "=": "ikooru", "&": "ando", "%": "paasento"},
    "hi": {"+": "जोड़", "=": "बराबर"},
    "fa": {},
    "am": {},
}

# Typographic variants and what they become when the vocabulary lacks them. The empty string drops a mark that is not
# heard; the plain double quote is dropped by the cleaners themselves.
PUNCTUATION_VARIANTS = {
    **dict.fromkeys("‘’‚‛ʼ＇`´′", "'"),
    **dict.fromkeys("“”„‟«»‹›″「」『』《》〈〉¿¡*_~^|\\", ""),
    **dict.fromkeys("–—―‒‐‑−－", "-"),
    **dict.fromkeys("[{［｛（", "("),
    **dict.fromkeys("]}］｝）", ")"),
    **dict.fromkeys("،，、﹐", ","),
    **dict.fromkeys("؛；", ";"),
    **dict.fromkeys("؟？", "?"),
    **dict.fromkeys("。｡．।॥۔", "."),
    "…": "...",
    "‥": "..",
    "！": "!",
    "：": ":",
    "／": "/",
    "•": ",",
    "·": ",",
    "・": " ",
    "％": "%",
}

# The variants written as one plain mark when a vocabulary is trained or extended, so that no token is spent on each
# way to write a quote. Punctuation of a script (، ؟ 。) is kept: it belongs to the language.
TYPOGRAPHIC_VARIANTS = {mark: PUNCTUATION_VARIANTS[mark] for mark in "‘’‚‛ʼ＇`´′“”„‟‹›″–—―‒‐‑−－…‥"}
