"""What the bundled model says, as a recognizer understands it: a table with every sentence, none left out.

    python utilities/base/judge_base.py --recognizer base --output base.md

100 sentences of the grammars that it was trained on, which it never heard, then free ones, of words it may never have
heard. A male and a female voice of each language take turns: those of the teacher's that are understood best.
`--recognizer` is Whisper of the size base or larger, or another recognizer, and what it makes of
eSpeak's own speech is the figure beside ours.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "benchmarks")]

from base_corpus import LANGUAGES, PITCHES, WORDS_PER_MINUTE, speak_jobs  # noqa: E402
from first_words import NOISE, error_rate  # noqa: E402

from myxtts.audio.files import load_samples  # noqa: E402
from myxtts.config.rates import MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.data.sample_corpus import SpeechJob, unheard_sentences  # noqa: E402
from myxtts.hearing.recognizers import open_recognizer  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.inference.voices import stored_voice  # noqa: E402
from myxtts.storage.base_model import BASE_FOLDER  # noqa: E402

JUDGED = ("en", "de", "fr", "es")
"""Languages that the smallest usable Whisper understands."""
VOICES = ("Gene", "f2")
SENTENCES = 25
FREE = Path(__file__).with_name("free_sentences.txt")
"""A line `language|sentence` each."""


def grammar_sentences(language: str) -> list[str]:
    """Evenly drawn ones of those that no clip speaks."""
    unheard = unheard_sentences(language)
    return [unheard[round(place)] for place in np.linspace(0, len(unheard) - 1, SENTENCES)]


def free_sentences(language: str) -> list[str]:
    """The language's lines of `FREE`."""
    lines = (line.split("|", 1) for line in FREE.read_text(encoding="utf-8").splitlines())
    return [text for code, text in lines if code == language]


def spoken_by_espeak(texts: list[str], language: str) -> list[np.ndarray]:
    """The sentences by the teacher, in the same voices."""
    words_per_minute = round(np.mean(WORDS_PER_MINUTE))
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, f"{number}.wav")) for number in range(len(texts))]
        jobs = []
        for number, (path, text) in enumerate(zip(paths, texts)):
            variant = VOICES[number % 2]
            pitch = round(np.mean(PITCHES[variant]))
            jobs.append(SpeechJob(path, text, LANGUAGES[language], variant, pitch, words_per_minute))
        speak_jobs(jobs)
        return [load_samples(path) for path in paths]


def main() -> int:
    """Prints the figures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=BASE_FOLDER)
    parser.add_argument("--recognizer", required=True, help="base or a larger Whisper, or another recognizer")
    parser.add_argument("--output", type=Path, help="page to write, with every sentence")
    parser.add_argument("--decoder", choices=("model", "griffin-lim"), help="what makes the sound")
    parser.add_argument("--texts", type=Path, help="English sentences to judge instead, one a line")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    kinds, languages = (("grammar", grammar_sentences), ("free", free_sentences)), JUDGED
    if arguments.texts:
        given = [line for line in arguments.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
        kinds, languages = (("given", lambda language: given),), ("en",)
    whisper, rng = open_recognizer(arguments.recognizer), np.random.default_rng(0)
    synthesizer = Synthesizer.load(arguments.checkpoint, decoder=arguments.decoder)
    rate = synthesizer.sample_rate
    rows, sentences = ["| language | sentences | errors | by eSpeak | shuffled | noise |", "|" + "---|" * 6], []
    for kind, texts_of in kinds:
        for language in languages:
            own = [f"{language}_{voice}" for voice in VOICES]
            voices = [stored_voice(arguments.checkpoint, name, synthesizer.voice) for name in own]
            voices, texts = [synthesizer.as_voice(voice) for voice in voices], texts_of(language)
            turns = [voices[n % len(voices)] for n in range(len(texts))]
            spoken = synthesizer.batch(texts, turns, [language] * len(texts), seed=arguments.seed, retries=None)
            sounds = [speech.samples for speech in spoken]
            heard = [whisper(sound, rate, language).strip() for sound in sounds]
            teacher = [whisper(sound, MODEL_SAMPLE_RATE, language) for sound in spoken_by_espeak(texts, language)]
            noisy = [whisper(s + NOISE * rng.standard_normal(len(s)), rate, language) for s in sounds[:8]]
            figures = [error_rate(texts, found, language) for found in (heard, teacher, [*heard[1:], heard[0]])]
            figures.append(error_rate(texts[:8], noisy, language))
            rows.append(f"| {language} | {len(texts)} {kind} | " + " | ".join(f"{f:.2f}" for f in figures) + " |")
            print(rows[-1], flush=True)
            for text, found in zip(texts, heard):
                error = error_rate([text], [found], language)
                sentences.append(f"| {language} | {error:.2f} | {text} | {found.replace('|', ' ')} |")
    listed = ["", "| language | errors | asked for | understood |", "|" + "---|" * 4, *sentences]
    if arguments.output:
        arguments.output.write_text("\n".join([*rows, *listed]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
