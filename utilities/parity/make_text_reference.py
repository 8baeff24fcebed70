"""Writes tests/data/text_reference.json: what the reference's tokenizer makes of a thousand sentences.

Run with the Python of an environment that has the reference (`pip install torch coqui-tts six pypinyin cutlet
unidic_lite`); nothing of MyXTTS is imported:

    python utilities/parity/make_text_reference.py --vocab vocab.json --output tests/data/text_reference.json

The sentences are made here from templates. Of each the file has the text, and digests of the reference's cleaned text
and ids, or no digest where the reference fails.
"""

import argparse
import hashlib
import importlib.metadata
import json
import logging
import random
import sys
import types
from pathlib import Path

SENTENCES_PER_LANGUAGE = 63

# Slots: {n} small number, {big} thousands in the language's own grouping, {dec} decimal, {eur} {usd} {gbp} money,
# {ord} ordinal as the language writes it, {year}, {m} month, {d} day, {eight} digits of a telephone number.
# One template a line.
TEMPLATES = {
    "en": """
        Dr. Marsh counted {n} geese by the weir.
        The bill came to {usd}, not {gbp}!
        On the {ord} day it rained {dec} inches.
        St. Anne's choir sang at no. {n} & won.
        About {big} people, i.e. {n}%, voted.
        "Wait," said Mrs. Pool; "it's {year}."
        Col. Reed's hen laid {n} eggs @ dawn.
        Can you hear the sea?
        He paid {eur} for a naïve drawing.
        Lt. Gov. Shaw left...
        It’s “{n}”, isn’t it…
        Gen. Cole sent {big} maps – by mail.
    """,
    "es": """
        El Sr. Luna compró {n} peras.
        ¿Cuesta {eur} o {usd}?
        La {ord} puerta está rota.
        Vinieron {big} personas & un perro.
        Mide {dec} metros.
        ¡Qué día tan frío!
        La Dra. Vega llegó en {year}.
        Subió un {n}% en mayo.
        Mañana iré al jardín de mi abuela.
    """,
    "fr": """
        Mme. Petit a cueilli {n} pommes.
        Ça coûte {eur}, pas {usd}.
        C'est la {ord} fois qu'il neige.
        Le Dr. Blanc vit {big} oies.
        Il fait {dec} degrés.
        Où est passé l'œuf d'hier ?
        En {year}, tout a changé.
        Il reste {n}% du gâteau & du thé.
        Encore {n} € pour l’eau.
        Mr. Roux dort déjà.
    """,
    "de": """
        Fr. Busch pflückt {n} Birnen.
        Am {ord} Abend fiel Schnee.
        Der Fluss ist {dec} Meter tief.
        Es kamen {big} Gäste & ein Hund.
        Dr. Weiß wohnt seit {year} hier.
        Übrig sind {n}% vom Käse.
        Schöne Grüße aus Köln!
        Das kostet {eur}.
        Hört ihr die Glocken?
    """,
    "it": """
        Il Sig. Bruni ha {n} galline.
        Costa {eur}, non {usd}.
        È la {ord} volta che piove.
        Sono venute {big} persone.
        È alto {dec} metri.
        Perché non parli più?
        Nel {year} la città era piccola.
        Il {n}% & il resto.
        Il dr. Neri dorme.
    """,
    "pt": """
        O Sr. Prado tem {n} galinhas.
        Custa {eur} ou {usd}?
        É a {ord} vez que chove.
        Vieram {big} pessoas & um cão.
        Mede {dec} metros.
        Não há pão em casa!
        Em {year} a avó nasceu.
        Restam {n}% do bolo.
        A Dra. Reis já saiu.
    """,
    "pl": """
        P. Lis ma {n} kur.
        To kosztuje {eur}.
        Rzeka ma {dec} metra.
        Przyszło {big} osób & pies.
        Dr. Wrona żyje od {year} roku.
        Zostało {n}% ciasta.
        Gdzie jest żółty kot?
        Śnieg spadł wczoraj w nocy.
        M. Gil śpi.
    """,
    "tr": """
        Dr. Aydın {n} elma aldı.
        Bu {ord} gün yağmur yağdı.
        Yaklaşık {big} kişi geldi & gitti.
        Yıl {year} idi.
        Pastanın %{n} kadarı kaldı.
        İki çocuk bahçede oynuyor.
        Üzüm çok güzel!
        Şu köprü nerede?
        B. Öztürk uyuyor.
    """,
    "ru": """
        Г-н Лисин купил {n} груш.
        Это стоит {eur}.
        Река глубиной {dec} метра.
        Пришло {big} человек & пёс.
        Д-р Белов живёт здесь с {year} года.
        Осталось {n}% пирога.
        Где моя синяя шапка?
        Вчера ночью выпал снег!
        Это {ord} дом.
    """,
    "nl": """
        Dhr. Bakker heeft {n} kippen.
        Dat kost {eur} of {usd}.
        Op de {ord} dag regende het.
        Er kwamen {big} mensen & een hond.
        De sloot is {dec} meter diep.
        Waar is mijn blauwe jas?
        In {year} was alles anders.
        Er is {n}% over.
        Mevr. Smit slaapt al!
    """,
    "cs": """
        P. Liška má {n} slepic.
        Stojí to {eur}.
        Řeka má {dec} metru.
        Přišlo {big} lidí & pes.
        Dr. Vrána žije od {year} tady.
        Zbývá {n}% koláče.
        Kde je můj žlutý klobouk?
        V noci napadl sníh!
        Ing. Sova spí.
        Je to {ord} dům v ulici.
    """,
    "ar": """
        اشترت سلمى {n} تفاحات.
        انتظرنا ٣٠ دقيقة.
        جاء {big} شخص & كلب.
        بقي {n}% من الكعكة.
        أين قبعتي الزرقاء؟
        نزل المطر أمس، ثم أشرقت الشمس.
        كان ذلك في عام {year}.
        الكِتَابُ عَلَى الطَّاوِلَةِ.
        عمق النهر {dec} متر.
    """,
    "zh-cn": """
        她买了{n}个苹果。
        今天来了{big}人。
        河深{dec}米，水很冷！
        那是{year}年{m}月{d}日。
        还剩{n}%的蛋糕。
        我的蓝帽子在哪里？
        这本书{n}块{m}，很便宜。
        第{n}天下雨了。
        大约{m}/{d}的人同意。
        昨晚下雪了；孩子们很高兴。
        请打电话138{eight}。
    """,
    "hu": """
        Dr. Róka {n} almát vett.
        Ez {eur} volt.
        A {ord} napon esett.
        Jött {big} ember & egy kutya.
        A folyó {dec} méter mély.
        Maradt {n}% a tortából.
        Hol van a kék sapkám?
        Tegnap éjjel havazott!
        A {year} év hideg volt.
    """,
    "ko": """
        오늘은 {m}월 {d}일이다.
        강아지가 마당에서 논다.
        도서관은 월요일에 쉰다.
        그녀는 사과 {n} 개를 샀다.
        오늘 {big} 명이 왔다.
        강은 {dec} 미터 깊이다.
        케이크가 {n}% 남았다.
        내 파란 모자는 어디에 있니?
        어젯밤에 눈이 왔다!
        그때는 {year} 년이었다.
        {m}번째 집 & 개.
    """,
    "ja": """
        彼女はりんごを買った。
        今日はとても寒いですね。
        私の青い帽子はどこですか?
        昨夜、雪が降った!
        東京タワーへ行きましょう。
        川の水は冷たい。
        カメラを{m}台買った。
        犬と猫が庭で遊んでいる。
        あの橋は{m}つ目です。
        {year}年の夏は暑かった。
        駅まで歩いて{n}分かかります。
        窓を開けてもいいですか?
        コーヒーを二杯ください。
        図書館は月曜日に休みです。
        海の見える部屋に泊まりたい。
        電車が遅れています。
        おばあさんは元気ですか?
    """,
    "hi": """
        उसने कल सेब खरीदे।
        मेरी नीली टोपी कहाँ है?
        रात को बर्फ गिरी!
        नदी का पानी ठंडा है।
        बच्चे & कुत्ता बगीचे में हैं।
        मेज़ पर {n} किताबें हैं।
        दादी {year} में पैदा हुई थीं।
        पुल के उस पार एक पुराना मंदिर है।
        क्या तुम कल आओगे?
        हवा तेज़ चल रही है, खिड़की बंद कर दो।
        चाय में चीनी कम है।
        घंटी {m} बार बजी।
        उस पेड़ पर तोता बैठा है।
        रेलगाड़ी देर से आई।
        बाज़ार आज बंद है।
    """,
}
OPENINGS = {
    "ja": ["", "ねえ、", "さあ、", "はい、", "でも、", "今朝、", "先生、"],
    "zh-cn": ["", "听说", "他说，", "不过，", "昨天"],
    "ko": ["", "그런데 ", "어제 ", "민수야, ", "아니, "],
    "ar": ["", "قالت: ", "أمس ", "لكن ", "يا ليلى، "],
    "hi": [
        "",
        "लेकिन ",
        "सुनो, ",
        "आज ",
        "माँ बोली, ",
        "अरे, ",
        "सच में, ",
        "फिर ",
        "अब ",
        "हाँ, ",
        "देखो, ",
        "शायद ",
        "राम, ",
    ],
    "ru": ["", "Слушай, ", "Но ", "Вчера ", "Анна, "],
    "en": ["", "Well, ", "But ", "Today, ", "Ada, "],
}
DEFAULT_OPENINGS = ["", "Ada: ", '"Oh", ', "Nina, ", "(1) "]
ORDINALS = {
    "en": lambda n: f"{n}{'th' if n % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}",
    "es": lambda n: f"{n}ª",
    "fr": lambda n: f"{n}e",
    "de": lambda n: f"{n}.",
    "it": lambda n: f"{n}a",
    "pt": lambda n: f"{n}ª",
    "tr": lambda n: f"{n}.",
    "ru": lambda n: f"{n}-й",
    "nl": lambda n: f"{n}de",
    "hu": lambda n: f"{n}.",
    "cs": lambda n: f"{n}.",
}


def make_sentences(language: str, count: int) -> list[str]:
    """Fills the templates of a language with numbers drawn from a seeded generator; no sentence comes twice."""
    draw = random.Random(f"text reference {language}")
    comma_decimals = language not in ("en", "ru", "zh-cn", "ko", "ja")
    templates = [line.strip() for line in TEMPLATES[language].strip().splitlines()]
    openings = OPENINGS.get(language, DEFAULT_OPENINGS)
    sentences: dict[str, None] = {}
    while len(sentences) < count:

        def money() -> str:
            amount = draw.choice([f"{draw.randrange(1, 90)}", f"{draw.randrange(1, 90)}.{draw.randrange(5, 100):02d}"])
            return amount.replace(".", ",") if comma_decimals else amount

        thousands = f"{draw.randrange(1000, 2_000_000):,}"
        decimal = f"{draw.randrange(0, 40)}.{draw.randrange(1, 100)}"
        slots = {
            "n": draw.randrange(0, 120),
            "m": draw.randrange(1, 6),
            "d": draw.randrange(1, 29),
            "big": thousands.replace(",", ".") if comma_decimals else thousands,
            "dec": decimal.replace(".", ",") if comma_decimals else decimal,
            "eur": draw.choice(["€{}", "{}€"]).format(money()),
            "usd": "$" + money(),
            "gbp": "£" + money(),
            "ord": ORDINALS.get(language, str)(draw.randrange(1, 60)),
            "year": draw.randrange(1900, 2060),
            "eight": draw.randrange(10_000_000, 99_999_999),
        }
        if language == "zh-cn":
            slots["big"] = thousands.replace(",", "")
        sentences[draw.choice(openings) + draw.choice(templates).format(**slots)] = None
    return list(sentences)


def load_reference_tokenizer(vocab: str) -> object:
    """Imports the reference's tokenizer without the packages around it, which want torchaudio and torchcodec."""
    root = Path(importlib.metadata.distribution("coqui-tts").locate_file("TTS"))
    for name in ("TTS", "TTS.tts", "TTS.tts.layers", "TTS.tts.layers.xtts", "TTS.tts.utils", "TTS.tts.utils.text"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from TTS.tts.layers.xtts.tokenizer import VoiceBpeTokenizer

    return VoiceBpeTokenizer(vocab)


def digest(value: object) -> str:
    """First eight hexadecimal digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", required=True, help="vocab.json of the reference")
    parser.add_argument("--output", required=True, help="JSON file to write")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)

    tokenizer = load_reference_tokenizer(arguments.vocab)
    unknown = tokenizer.tokenizer.token_to_id("[UNK]")
    languages = {}
    for language in TEMPLATES:
        rows = []
        for text in make_sentences(language, SENTENCES_PER_LANGUAGE):
            try:
                cleaned = tokenizer.preprocess_text(text, language.split("-")[0])
            except (NotImplementedError, KeyError, IndexError):
                rows.append([text])
                continue
            ids = tokenizer.encode(text, language)
            # Unknown tokens of the language's own tag do not count.
            tag_length = len(tokenizer.encode("", language))
            rows.append([text, digest(cleaned), digest(ids), int(unknown in ids[tag_length:])])
        languages[language] = rows
    packages = ("coqui-tts", "num2words", "pypinyin", "cutlet", "unidic-lite", "ko-speech-tools", "tokenizers")
    document = {
        "made_with": {name: importlib.metadata.version(name) for name in packages},
        "columns": ["text", "digest of the cleaned text", "digest of the ids", "1 if the ids have [UNK]"],
        "languages": languages,
    }
    text = json.dumps(document, ensure_ascii=False, indent=None)
    Path(arguments.output).write_text(text.replace('], ["', '],\n["') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
