"""Evaluates the bundled model with a speech recognizer, and lists every sentence with its transcription.

    python utilities/base/judge_base.py --recognizer base --output base.md

The model speaks 100 held-out sentences of the grammars in its training corpus, then free sentences, which may contain
new words. A male and a female voice of each language take turns. The table has the CER of the model and of eSpeak NG,
which spoke the training corpus. As controls, it also has the CER of the model with shuffled texts and with added noise.

    python utilities/base/judge_base.py --losses

With --losses, no recognizer is used: eSpeak NG speaks new sentences of random words in every language, and the GPT's
cross-entropy on this speech is printed in nats per code, first with the text as input, then without.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from base_corpus import LANGUAGES, PITCHES, WORDS_PER_MINUTE, random_sentences  # noqa: E402
from first_words import NOISE, error_rate  # noqa: E402

from myxtts.audio.files import load_samples  # noqa: E402
from myxtts.audio.mel import DVAE_MEL, MelSpectrogram  # noqa: E402
from myxtts.config.rates import MODEL_SAMPLE_RATE  # noqa: E402
from myxtts.data.sample_corpus import SpeechJob, speak_to_files, unheard_sentences  # noqa: E402
from myxtts.hearing.measuring import spread  # noqa: E402
from myxtts.hearing.recognizers import open_recognizer  # noqa: E402
from myxtts.inference.synthesizer import Synthesizer  # noqa: E402
from myxtts.storage.base_model import BASE_FOLDER  # noqa: E402

JUDGED = ("en", "de", "fr", "es")
"""Languages that Whisper base understands."""
VOICES = ("Gene", "f2")
SENTENCES, NUM_LOSSES = 25, 60
FREE = Path(__file__).with_name("free_sentences.txt")
"""File with lines `language|sentence`, whose words need not be in the training corpus."""


def free_sentences(language: str) -> list[str]:
    """Returns the sentences of a language in `FREE`."""
    lines = (line.split("|", 1) for line in FREE.read_text(encoding="utf-8").splitlines())
    return [text for code, text in lines if code == language]


def spoken_by_espeak(texts: list[str], language: str) -> list[np.ndarray]:
    """Synthesizes texts by eSpeak NG, in turn in the voices of the training corpus; returns samples, `(S,)` each."""
    words_per_minute = round(np.mean(WORDS_PER_MINUTE))
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, f"{number}.wav")) for number in range(len(texts))]
        turns = [(voice, round(np.mean(PITCHES[voice]))) for voice in np.resize(VOICES, len(texts)).tolist()]
        named = zip(paths, texts, turns)
        speak_to_files([SpeechJob(*one, LANGUAGES[language], *turn, words_per_minute) for *one, turn in named])
        return [load_samples(path) for path in paths]


def losses(synthesizer: Synthesizer, language: str) -> tuple[float, float]:
    """Returns the GPT's mean loss per code on eSpeak NG's speech in a language, with the text and without the text."""
    model, texts, sums = synthesizer.model, random_sentences(language, NUM_LOSSES, "judged"), np.zeros(3)
    voices = [synthesizer.as_voice(f"{language}_{voice}") for voice in VOICES]
    to_mel = MelSpectrogram(DVAE_MEL)
    for number, (text, sound) in enumerate(zip(texts, spoken_by_espeak(texts, language))):
        codes = np.asarray(model.dvae.encode(model.normalize_mel(to_mel(sound[None]))))[0]
        ids = synthesizer.text_front.ids(text, language)
        read = synthesizer.read_again(voices[number % len(voices)].latents, ids, codes)
        sums += -read.logs.sum(), -read.without.sum(), len(read.logs)
    return sums[0] / sums[2], sums[1] / sums[2]


def main() -> None:
    """Prints a row of results for each language; writes the rows and all transcriptions to `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=BASE_FOLDER)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--recognizer", help="Whisper size base or larger, or another recognizer")
    which.add_argument("--losses", action="store_true", help="print the GPT's loss in each language instead")
    parser.add_argument("--output", type=Path, help="Markdown file for the tables")
    parser.add_argument("--decoder", choices=("model", "griffin-lim"), help="vocoder (default: that of the model)")
    parser.add_argument("--texts", type=Path, help="text file of English sentences to speak instead, one per line")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.losses:
        synthesizer = Synthesizer.load(arguments.checkpoint)
        for language in LANGUAGES:
            print(language, *(f"{loss:.2f}" for loss in losses(synthesizer, language)), flush=True)
        return
    kinds = (("grammar", lambda language: spread(unheard_sentences(language), SENTENCES)), ("free", free_sentences))
    languages = JUDGED
    if arguments.texts:
        given = [line for line in arguments.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
        kinds, languages = (("given", lambda language: given),), ("en",)
    whisper, rng = open_recognizer(arguments.recognizer), np.random.default_rng(0)
    synthesizer = Synthesizer.load(arguments.checkpoint, decoder=arguments.decoder)
    rate = synthesizer.sample_rate
    rows, sentences = ["| language | sentences | errors | by eSpeak | shuffled | noise |", "|" + "---|" * 6], []
    for kind, texts_of in kinds:
        for language in languages:
            voices, texts = [synthesizer.as_voice(f"{language}_{voice}") for voice in VOICES], texts_of(language)
            turns = [voices[n % len(voices)] for n in range(len(texts))]
            spoken = synthesizer.batch(texts, turns, [language] * len(texts), seed=arguments.seed, retries=1)
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


if __name__ == "__main__":
    main()
