"""What the base model learns from: sentences of six languages by many synthetic voices, made offline by eSpeak NG.

Half of the clips are sentences of the sample corpus's grammars, but for those that it never speaks. The others are a
few frequent words of the language in a random order (package `wordfreq`; Speer 2022), and for Amharic, which it lacks,
words of random syllables, so that letters become sounds in words that were never heard.
"""

import csv
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from bench_extra import import_extra  # noqa: E402

from myxtts.data.espeak_ng import SpeechJob, speak_to_files  # noqa: E402
from myxtts.data.sample_corpus import SENTENCES, unheard_sentences  # noqa: E402

LANGUAGES = {"en": "en-us", "de": "de", "es": "es", "fr": "fr", "fa": "fa", "am": "am"}
"""The tokenizer's code and eSpeak NG's."""
PITCHES = {"f1": (30, 55), "m1": (30, 60), "f2": (30, 55), "m4": (30, 60), "f5": (30, 55), "Gene": (30, 60)}
"""Variants of eSpeak NG's voices, and their pitches: those of its 50 that a recognizer understands best in English."""
VARIANTS = tuple(PITCHES)
WORDS_PER_MINUTE = (140, 185)
FREQUENT_WORDS = 2500
WORD_LETTERS = (2, 9)
WORDS_A_SENTENCE = (2, 6)
JOBS_A_PROCESS = 2000
FIDEL = range(0x1208, 0x1328)
"""Ethiopic syllables, of which the first seven forms of each row are common."""


def words_of(language: str) -> list[str]:
    """Frequent words of a language."""
    if language == "am":
        draw, syllables = random.Random("am"), [chr(c) for c in FIDEL if c % 8 < 7]
        return sorted({"".join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(FREQUENT_WORDS)})
    shortest, longest = WORD_LETTERS
    found = import_extra("wordfreq").top_n_list(language, FREQUENT_WORDS)
    return [word for word in found if word.isalpha() and shortest <= len(word) <= longest]


def random_sentences(language: str, count: int, seed: str) -> list[str]:
    """Sentences of words that do not follow from each other."""
    draw, words, full_stop = random.Random(seed), words_of(language), "።" if language == "am" else "."
    texts = [" ".join(draw.sample(words, draw.randint(*WORDS_A_SENTENCE))) + full_stop for _ in range(count)]
    return [text[0].upper() + text[1:] for text in texts]


def speak_jobs(jobs: list[SpeechJob]) -> None:
    """Lets eSpeak NG of the extra `sample` speak into files."""
    for first in range(0, len(jobs), JOBS_A_PROCESS):
        speak_to_files(jobs[first : first + JOBS_A_PROCESS])


def make_base_corpus(root: Path, clips_a_voice: int, seed: int = 0) -> Path:
    """Makes the corpus in `root`, in the layout of LJSpeech with `speakers.csv`; one that is there stays."""
    if (root / "metadata.csv").is_file():
        return root
    (root / "wavs").mkdir(parents=True, exist_ok=True)
    jobs, rows = [], []
    for language, espeak_language in LANGUAGES.items():
        unheard = set(unheard_sentences(language))
        known = [sentence for sentence in SENTENCES[language] if sentence not in unheard]
        for variant in VARIANTS:
            speaker, draw = f"{language}_{variant}", random.Random(f"{seed} {language} {variant}")
            texts = draw.choices(known, k=clips_a_voice // 2)
            texts += random_sentences(language, clips_a_voice - len(texts), f"{seed} {speaker}")
            for number, text in enumerate(texts):
                name, pitch = f"{speaker}_{number:04d}", draw.randint(*PITCHES[variant])
                path = str(root / "wavs" / f"{name}.wav")
                jobs.append(SpeechJob(path, text, espeak_language, variant, pitch, draw.randint(*WORDS_PER_MINUTE)))
                rows.append((name, text, speaker, language))
    speak_jobs(jobs)
    with open(root / "speakers.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "speaker", "language"), *((row[0], *row[2:]) for row in rows)])
    (root / "metadata.csv").write_text("".join(f"{name}|{text}|{text}\n" for name, text, *_ in rows), encoding="utf-8")
    return root
