"""Numbers to words, against num2words' own answers, CLDR's rules and worked examples."""

import pytest

from myxtts.text.languages import get_language
from myxtts.text.languages.am import ethiopic_to_int
from myxtts.text.languages.zh import read_number


def expand_numbers(text, code):
    language = get_language(code)
    return language.expand_numbers(language.normalize(text))


WORDS = {
    "en": {
        "$20.15 or 12,345.67": "twenty dollars, fifteen cents or twelve thousand, three hundred and "
        "forty-five point six seven"
    },
    "cs": {
        "2 a 2,0 a 2": "dva a dva celá nula nula a dva",
        "2. den jich bylo 20.": "druhý den jich bylo dvacet.",  # at the end of the text it is a cardinal
        "1. den": "první den",
        "123. den": "sto dvacátý třetí den",
        "2000. den": "dvoutisící den",
        "1999. den": "tisíc devětset devadesátý devátý den",
    },
    "fr": {"1er prix: 20,15€": "premier prix: vingt euros et quinze centimes"},
    "es": {"100.000,5": "cien mil punto cinco"},
    "de": {"am 2. tag": "am zweite tag"},
    "tr": {"12,5": "oniki,beş"},
    "hu": {"az 1. nap": "az első nap"},
    "ko": {"800번째": "팔백 번째"},
    "pl": {"£3 i 5€": "£trzy i pięć€"},
    "hi": {
        "0": "शून्य",
        "28": "अट्ठाईस",
        "105": "एक सौ पाँच",
        "1986": "एक हज़ार नौ सौ छियासी",
        "25000000": "दो करोड़ पचास लाख",
        "1000000001": "एक अरब एक",
        "₹1,00,000 और ५० बजे": "एक लाख रुपये और पचास बजे",
        "₹12.50": "बारह रुपये पचास पैसे",
        "12.05 किलो, 5वाँ, 2nd": "बारह दशमलव शून्य पाँच किलो, पाँचवाँ, दूसरा",
    },
    "fa": {
        "۱۲٫۵ یا ۱۲/۰۵": "دوازده ممیز پنج یا دوازده ممیز صفر پنج",
        "۲۱ام، ۳م، ۳۰م و ۲مین": "بیست و یکم، سوم، سی‌ام و دومین",
        "1,204 و ٣": "هزار و دویست و چهار و سه",
        "۱۴۰۲/۰۵/۱۲": "هزار و چهارصد و دو پنج دوازده",
        "کووید۱۹ و ۳تا": "کووید نوزده و سه تا",
        "$12.50": "دوازده دلار و پنجاه سنت",
    },
    "am": {
        "0, 14, 40": "ዜሮ, አስራ አራት, አርባ",
        "1204": "አንድ ሺህ ሁለት መቶ አራት",
        "2000000": "ሁለት ሚሊዮን",
        "1ኛ, 2ኛው": "አንደኛ, ሁለተኛው",
        "$5.25": "አምስት ዶላር ከሃያ አምስት ሳንቲም",
        "0.5": "ዜሮ ነጥብ አምስት",
    },
    "zh": {
        "2021年10月5日": "二零二一年十月五日",
        "花了12.5元": "花了十二点五元",
        "拨打13812345678。": "拨打一三八一二三四五六七八,",
        "约1/3，5%": "约三分之一,百分之五",
        "b2b有2张": "b2b有二张",
        "编号2048": "编号二零四八",
    },
}


@pytest.mark.parametrize("language", WORDS)
def test_numbers_are_read_as_words(language):
    assert {text: expand_numbers(text, language) for text in WORDS[language]} == WORDS[language]


def test_ethiopic_numerals():
    numerals = {"፩": 1, "፲፬": 14, "፻": 100, "፲፱፻፺፱": 1999, "፳፻፲": 2010, "፼": 10_000, "፲፪፼፫፻፵፭": 120_345}
    assert {numeral: ethiopic_to_int(numeral) for numeral in numerals} == numerals


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("10", "十"),
        ("102", "一百零二"),
        ("2000", "两千"),
        ("22000", "两万两千"),
        ("10012", "一万零一十二"),
        ("12.5", "十二点五"),
        ("100000000", "一亿"),
        ("007", "零七"),
    ],
)
def test_chinese_quantities(number, words):
    assert read_number(number) == words


@pytest.mark.parametrize("language", ["en", "es", "pt", "tr", "cs", "ar", "hu", "ko", "hi", "fa", "am"])
def test_numbers_beyond_the_tables_are_read_digit_by_digit(language):
    digit = expand_numbers("7", language)
    assert expand_numbers("7" * 60, language) == " ".join([digit] * 60)


@pytest.mark.parametrize("language", ["en", "de", "hu", "zh", "fa"])
def test_very_long_digit_runs_are_read(language):
    # Rules with quadratic cost would take too long here.
    words = expand_numbers("7" * 200_000 + "," + "1," * 20_000, language)
    assert len(words) > 200_000 and not any(digit in words for digit in "17")
