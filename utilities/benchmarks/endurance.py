"""What speaking does with many texts, with a long one, and in many calls.

    python utilities/benchmarks/endurance.py texts [--checkpoint RUN] [--count 500]
    python utilities/benchmarks/endurance.py long --checkpoint RUN [--minutes 1 2.5 5 10]
    python utilities/benchmarks/endurance.py calls --checkpoint RUN [--count 1000]

`texts` speaks texts of 1 to 600 characters with digits, emoji and odd marks, in all languages of the sample corpus by a
random model of size nano, 24 codes a sentence, or in English by a trained one: each is spoken or refused with a
sentence, no letter is missing without a warning, samples are finite and within full scale, and a duration beyond its
band is a doubt. `long` has processor time and memory by length. `calls` speaks short sentences alone, in batches,
streamed, given up, and by two threads, with other sampling values each time, and compares memory after a tenth of them
and at the end.
"""

import argparse
import gc
import logging
import threading
import time
from pathlib import Path

import keras
import numpy as np
from bench_extra import process_state

from myxtts.config.checks import UserError
from myxtts.config.config import ModelConfig, SamplingConfig, XTTSConfig
from myxtts.data.sample_corpus import SENTENCES, unheard_sentences
from myxtts.inference.self_check import BEYOND_BAND, CODE_SECONDS
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import Voice, stored_voice
from myxtts.models.xtts import XTTS
from myxtts.storage.speakers import read_speakers
from myxtts.text.speech_rates import rule_of_thumb
from myxtts.text.tokenizer import XTTSTokenizer

MARKS = [*"?!…—–-\"'()[]{}<>|/\\@#%&*+=~^_:;,.،؟«»“”„¡¿。，", "...", "?!", " \n\n ", "\t", "\u200b", "\u00a0", "\ufeff"]
MARKS += "😀 👩‍👩‍👧‍👦 🇮🇷 ❤️ 3.14 2026 1,000,000 -7 50% $5 12:30 1/2 a@b.org https://x.y/z?a=1".split()
SAMPLING_VALUES = 200


def random_model(languages: list[str]) -> tuple[Synthesizer, Voice]:
    """A random model that knows the letters of some languages, and a voice."""
    keras.utils.set_random_seed(0)
    tokenizer = XTTSTokenizer.train([(text, one) for one in languages for text in unheard_sentences(one)])
    ids = dict(num_text_tokens=tokenizer.num_tokens, start_text_token=tokenizer.start_id)
    config = XTTSConfig(model=ModelConfig("nano", **ids, stop_text_token=tokenizer.stop_id))
    model, random = XTTS(config.model, parts=("dvae", "gpt", "speaker", "decoder")), np.random.default_rng(0)
    latents = random.standard_normal((1, config.model.num_latents, config.model.width)).astype("float32")
    speaker = random.standard_normal((1, config.model.speaker_width)).astype("float32")
    return Synthesizer(model, tokenizer, config), Voice(latents, speaker / np.linalg.norm(speaker))


def trained_model(folder: Path) -> tuple[Synthesizer, Voice]:
    """A run and the first of its voices."""
    synthesizer = Synthesizer.load(folder)
    name = next(iter(read_speakers(folder)))
    return synthesizer, synthesizer.as_voice(stored_voice(folder, name, synthesizer.voice))


def odd_text(language: str, rng: np.random.Generator) -> str:
    """1 to 600 characters: words of the sample corpus, and what else people type."""
    words = " ".join(unheard_sentences(language)).split()
    text, size = "", int(np.exp(rng.uniform(0, np.log(600))))
    while len(text) < size:
        odd = rng.random() < 0.25
        text += str(rng.choice(MARKS) if odd else rng.choice(words)) + " " * int(rng.random() < 0.8)
    return text[:size]


class Warnings(logging.Handler):
    """The warnings since it was last emptied."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one."""
        self.said.append(record.getMessage())


def faults(synthesizer: Synthesizer, speech, text: str, language: str, said: list[str]) -> list[str]:
    """What is wrong with how a text was spoken."""
    letters = lambda text: "".join(filter(str.isalnum, text))
    spoken, found = letters("".join(piece.text for piece in speech.pieces)), []
    if spoken != letters(text) and not any("not spoken" in one or "left out" in one for one in said):
        found.append("letters are missing without a warning")
    if not np.isfinite(speech.samples).all() or np.abs(speech.samples).max() > 1:
        found.append("samples beyond full scale")
    for piece in speech.pieces:
        low, high = (synthesizer.rates.get(language) or rule_of_thumb(language)).band(piece.text)
        inside = low / BEYOND_BAND[1] <= len(piece.codes) * CODE_SECONDS <= high * BEYOND_BAND[1]
        if not (inside or piece.doubts):
            found.append("a duration beyond its band without a doubt")
    return found


def many_texts(folder: Path | None, count: int) -> None:
    """Speaks odd texts and prints what came of them."""
    languages = ["en"] if folder else list(SENTENCES)
    synthesizer, voice = trained_model(folder) if folder else random_model(languages)
    rng, warnings, tally = np.random.default_rng(0), Warnings(), dict.fromkeys(("spoken", "refused", "doubted"), 0)
    logging.getLogger("myxtts").addHandler(warnings)
    logging.getLogger("myxtts").propagate = False
    wrong, began = [], time.process_time()
    for number in range(count):
        language = languages[number % len(languages)]
        text = odd_text(language, rng)
        warnings.said.clear()
        try:
            options = dict(seed=number, max_codes=0 if folder else 24)
            (speech,) = synthesizer.batch([text], [voice], [language], **options)
        except UserError:
            tally["refused"] += 1
            if any(map(str.isalnum, text)):
                wrong.append((number, repr(text[:60]), "refused although there are letters or digits"))
            continue
        tally["spoken"] += 1
        tally["doubted"] += bool(speech.doubts)
        wrong += [(number, repr(text[:60]), one) for one in faults(synthesizer, speech, text, language, warnings.said)]
        if number % 50 == 49:
            print(f"{number + 1} texts in {len(languages)} languages: {tally}, {len(wrong)} faults", flush=True)
    print(f"{count} texts: {tally}, {len(wrong)} faults, {time.process_time() - began:.0f} s of processor time")
    for one in wrong[:20]:
        print(*one, sep="  ")


def long_text(folder: Path, minutes: list[float]) -> None:
    """Speaks texts of about so many minutes and prints processor time and memory."""
    synthesizer, voice = trained_model(folder)
    sentences = unheard_sentences("en")
    (first,) = synthesizer.batch([" ".join(sentences[:20])], [voice], ["en"])
    per_sentence = first.seconds / 20
    for length in minutes:
        count = round(60 * length / per_sentence)
        text = " ".join(sentences[number % len(sentences)] for number in range(count))
        gc.collect()
        before, began, wall = process_state()[0], time.process_time(), time.perf_counter()
        (speech,) = synthesizer.batch([text], [voice], ["en"])
        took, wall = time.process_time() - began, time.perf_counter() - wall
        memory = (process_state()[0] - before) / 2**20
        rate, size = 60 * took / speech.seconds, speech.samples.nbytes / 2**20
        print(f"{speech.seconds / 60:5.2f} min: {took:6.1f} s of processor time, {rate:.2f} s a minute", end="")
        print(f" ({wall:.0f} s wall), memory grew by {memory:.0f} MB, samples are {size:.0f} MB", flush=True)
        del speech


def many_calls(folder: Path, count: int) -> None:
    """Speaks in every way with `SAMPLING_VALUES` settings, and prints memory along the way."""
    synthesizer, voice = trained_model(folder)
    rng, sentences = np.random.default_rng(0), unheard_sentences("en")
    settings = [
        SamplingConfig(
            temperature=float(rng.uniform(0.1, 1.2)),
            top_k=int(rng.integers(0, 80)),
            top_p=float(rng.uniform(0.3, 1.0)),
            repetition_penalty=float(rng.uniform(1.0, 9.0)),
        )
        for _ in range(SAMPLING_VALUES)
    ]

    def call(number):
        sampling, some = settings[number % SAMPLING_VALUES], rng.choice(sentences, int(rng.integers(1, 4)))
        if number % 10 < 6:
            synthesizer.batch(some, [voice] * len(some), ["en"] * len(some), sampling, number, max_codes=16)
        elif number % 10 < 8:
            for part, _ in enumerate(synthesizer.stream(some[0], voice, "en", sampling, number)):
                if part:
                    break  # given up
        else:
            texts = [str(text) for text in rng.choice(sentences, 2)]
            one = lambda text: synthesizer.batch([text], [voice], ["en"], sampling, number, max_codes=16)
            threads = [threading.Thread(target=one, args=(text,)) for text in texts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    memory = []
    for number in range(count):
        call(number)
        if (number + 1) % (count // 10) == 0:
            gc.collect()
            memory.append(process_state()[0] / 2**20)
            print(f"{number + 1} calls: {memory[-1]:.0f} MB, {process_state()[1]} threads", flush=True)
    growth = 100 * (memory[-1] / memory[0] - 1)
    print(f"growth from call {count // 10} to {count}: {growth:+.1f} % (goal: at most 2 %)")


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("texts", "long", "calls"))
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 2.5, 5.0, 10.0])
    arguments = parser.parse_args()
    if arguments.what != "texts" and arguments.checkpoint is None:
        parser.error(f"{arguments.what} needs --checkpoint.")
    if arguments.what == "texts":
        many_texts(arguments.checkpoint, arguments.count or 500)
    elif arguments.what == "long":
        long_text(arguments.checkpoint, arguments.minutes)
    else:
        many_calls(arguments.checkpoint, arguments.count or 1000)


if __name__ == "__main__":
    main()
