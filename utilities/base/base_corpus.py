"""The training corpus of the bundled model: six languages in two synthetic voices of eSpeak NG.

One clip in ten is a sentence from the grammars of the sample corpus. Half of the English clips are example sentences of
WordNet (Miller 1995), with the rhythm of real sentences. All other clips are random words, weighted by the square root
of their frequency (package `wordfreq`; Speer 2022), so that each sound occurs in many contexts. Amharic, which
`wordfreq` lacks, has the words of Aspell's dictionary. Sentences on which the model is evaluated are left out.
"""

import csv
import gzip
import random
import re
from pathlib import Path

from myxtts.config.checks import needing
from myxtts.data.sample_corpus import SENTENCES, SpeechJob, speak_to_files, unheard_sentences

LANGUAGES = {"en": "en-us", "de": "de", "es": "es", "fr": "fr", "fa": "fa", "am": "am"}
"""eSpeak NG's name of each language, by language code."""
PITCHES = {"Gene": (88, 92), "f2": (43, 47)}
"""Range of eSpeak NG's pitch setting (0 to 100) for each voice; narrow, as the DVAE's codes represent pitch poorly."""
WORDS_PER_MINUTE = (140, 185)
CLIPS = {"en": 32000, "de": 3000, "es": 3000, "fr": 3000, "fa": 3000, "am": 3000}
"""Number of clips of each language, half of them in each voice."""
FREQUENT_WORDS = 20000
WORD_LETTERS = (1, 14)
WORDS_A_SENTENCE = (1, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10)
"""Numbers of words in a sentence. One entry is sampled uniformly, so that repeated numbers are more likely."""
GRAMMAR_SHARE = 0.1
EXAMPLE_SHARE = 0.5
"""Fraction of the English clips that are example sentences of WordNet."""
WORDNET = Path("/usr/share/wordnet")
"""Folder of WordNet 3.0 from the Debian package `wordnet-base`."""
EXAMPLE = re.compile(r"[A-Za-z][A-Za-z' ,]*[.!?]?")
EXAMPLE_WORDS = (2, 20)
ENDS = {"am": ("።", "።", "፧"), "fa": (".", ".", "؟", "!")}
COMMAS = {"am": "፣", "fa": "،"}
JOBS_A_PROCESS = 2000
AMHARIC = Path("/usr/share/aspell/am.cwl.gz")
"""Word list of the Debian package `aspell-am` (Yacob 2004)."""
SPELLED_OUT = range(0x1250, 0x1260)
"""Ethiopic syllables that Amharic lacks. Words with them are left out, since eSpeak NG speaks their Unicode names."""


def words_of(language: str) -> tuple[list[str], list[float]]:
    """Returns frequent words of a language and their sampling weights: square roots of frequencies (Amharic: 1)."""
    if language == "am":
        words = [word for word in amharic_words() if word and not any(ord(letter) in SPELLED_OUT for letter in word)]
        return words, [1.0] * len(words)
    with needing('The corpus needs wordfreq. Install it with: pip install -e ".[bench]"', SystemExit):
        import wordfreq
    found, (shortest, longest) = wordfreq.top_n_list(language, FREQUENT_WORDS), WORD_LETTERS
    words = [word for word in found if word.replace("'", "").isalpha() and shortest <= len(word) <= longest]
    return words, [wordfreq.word_frequency(word, language) ** 0.5 for word in words]


def amharic_words() -> list[str]:
    """Returns the words in `AMHARIC`, stored as the length of the prefix shared with the word before, then the rest."""
    if not AMHARIC.is_file():
        raise SystemExit(f"{AMHARIC} is missing. Install Aspell's Amharic dictionary there: apt-get install aspell-am")
    words, word = [], b""
    for shared, rest in re.findall(rb"([\x00-\x1e])([^\x00-\x1f]*)", gzip.decompress(AMHARIC.read_bytes())[1:]):
        word = word[: ord(shared)] + rest
        words.append(word.decode())
    return words


def random_sentences(language: str, count: int, seed: str) -> list[str]:
    """Returns sentences of random words, some with a comma."""
    draw, (words, weights), texts = random.Random(seed), words_of(language), []
    ends, comma = ENDS.get(language, (".", ".", ".", "?", "!")), COMMAS.get(language, ",")
    for _ in range(count):
        drawn = draw.choices(words, weights, k=draw.choice(WORDS_A_SENTENCE))
        if len(drawn) > 4 and draw.random() < 0.3:
            drawn[draw.randrange(1, len(drawn) - 2)] += comma
        texts.append(" ".join(drawn) + draw.choice(ends))
    return [text[0].upper() + text[1:] for text in texts]


def evaluated(text: str) -> str:
    """Returns the words of a sentence in lower case, without punctuation, to find sentences that are held out."""
    return " ".join(re.findall(r"\w+", text.lower()))


def example_sentences() -> list[str]:
    """Returns the example sentences of WordNet, except those on which the model is evaluated."""
    files = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*_sentences.txt")]
    held_out = {evaluated(line.rpartition("|")[2]) for text in files for line in text.splitlines()}
    if not WORDNET.is_dir():
        raise SystemExit(f"{WORDNET} is missing. Install WordNet 3.0 there: apt-get install wordnet-base")
    glosses = "".join(path.read_text(encoding="utf-8") for path in sorted(WORDNET.glob("data.*")))
    texts, (fewest, most) = sorted({text.strip() for text in re.findall(r'"([^"\n]+)"', glosses)}), EXAMPLE_WORDS
    texts = [text for text in texts if EXAMPLE.fullmatch(text) and fewest <= len(text.split()) <= most]
    return [text[0].upper() + text[1:] + "." * text[-1].isalpha() for text in texts if evaluated(text) not in held_out]


def make_base_corpus(root: Path, seed: int = 0) -> Path:
    """Creates the corpus in `root` if it is missing, in the LJSpeech layout with `speakers.csv`; returns `root`."""
    if (root / "metadata.csv").is_file():
        return root
    (root / "wavs").mkdir(parents=True, exist_ok=True)
    jobs, rows, examples = [], [], example_sentences()
    for language, espeak_language in LANGUAGES.items():
        unheard = set(unheard_sentences(language))
        known = [sentence for sentence in SENTENCES[language] if sentence not in unheard]
        for variant in PITCHES:
            speaker, draw = f"{language}_{variant}", random.Random(f"{seed} {language} {variant}")
            clips = CLIPS[language] // len(PITCHES)
            texts = draw.choices(known, k=round(clips * GRAMMAR_SHARE))
            if language == "en":
                texts += draw.sample(examples, round(clips * EXAMPLE_SHARE))
            texts += random_sentences(language, clips - len(texts), f"{seed} {speaker}")
            for number, text in enumerate(texts):
                name, pitch = f"{speaker}_{number:05d}", draw.randint(*PITCHES[variant])
                path = str(root / "wavs" / f"{name}.wav")
                jobs.append(SpeechJob(path, text, espeak_language, variant, pitch, draw.randint(*WORDS_PER_MINUTE)))
                rows.append((name, text, speaker, language))
    for first in range(0, len(jobs), JOBS_A_PROCESS):
        speak_to_files(jobs[first : first + JOBS_A_PROCESS])
    with open(root / "speakers.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "speaker", "language"), *((row[0], *row[2:]) for row in rows)])
    (root / "metadata.csv").write_text("".join(f"{name}|{text}|{text}\n" for name, text, *_ in rows), encoding="utf-8")
    return root
