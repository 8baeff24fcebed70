"""Hindi, which num2words lacks. The number words follow CLDR's spell-out rules and common spelling."""

from myxtts.text.languages.base import described
from myxtts.text.numbers import join_units

_DIGITS = str.maketrans("०१२३४५६७८९", "0123456789")
_BELOW_HUNDRED = (
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ "
    "दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस "
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस "
    "तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस "
    "चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास "
    "पचास इक्यावन बावन तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ "
    "साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर "
    "सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उन्यासी "
    "अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी "
    "नब्बे इक्यानवे बानवे तिरानवे चौरानवे पंचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे"
).split()
_UNITS = {10**11: "खरब", 10**9: "अरब", 10**7: "करोड़", 10**5: "लाख", 10**3: "हज़ार", 100: "सौ"}
_ORDINALS = {1: "पहला", 2: "दूसरा", 3: "तीसरा", 4: "चौथा", 6: "छठा"}


def hindi_cardinal(number: int) -> str:
    """Returns the Hindi words of a natural number below 10^13, with lakh and crore: 100000 becomes एक लाख."""
    return _BELOW_HUNDRED[number] if number < 100 else join_units(number, _UNITS, hindi_cardinal)


LANGUAGE = described(
    "hi",
    normalize=lambda text: text.translate(_DIGITS),
    cardinal=hindi_cardinal,
    to_ordinal=lambda cardinal, number: _ORDINALS.get(number, cardinal + "वाँ"),
)
