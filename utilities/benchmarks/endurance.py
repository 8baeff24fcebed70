"""Measures CPU time and memory of synthesis for long texts and over many calls.

    python utilities/benchmarks/endurance.py long --checkpoint RUN [--minutes 1 2.5 5 10]
    python utilities/benchmarks/endurance.py calls --checkpoint RUN [--count 1000]

`long` measures CPU time and memory by text length. `calls` speaks short sentences alone, in batches, from two threads
and as streams that are cancelled, with changing sampling settings. It compares the memory after a tenth of the calls
with the memory at the end.
"""

import argparse
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

from myxtts.config.config import SamplingConfig
from myxtts.data.sample_corpus import unheard_sentences
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import Voice

SAMPLING_VALUES = 200
PROCESS = psutil.Process()


def long_text(synthesizer: Synthesizer, voice: Voice, minutes: list[float]) -> None:
    """Speaks a text of about each length in `minutes`, and prints the CPU time and the memory that this takes."""
    sentences = unheard_sentences("en")
    (first,) = synthesizer.batch([" ".join(sentences[:20])], [voice], ["en"])
    per_sentence = first.seconds / 20
    for length in minutes:
        count = round(60 * length / per_sentence)
        text = " ".join(sentences[number % len(sentences)] for number in range(count))
        gc.collect()
        before, began, wall = PROCESS.memory_info().rss, time.process_time(), time.perf_counter()
        (speech,) = synthesizer.batch([text], [voice], ["en"])
        took, wall = time.process_time() - began, time.perf_counter() - wall
        memory = (PROCESS.memory_info().rss - before) / 2**20
        rate, size = 60 * took / speech.seconds, speech.samples.nbytes / 2**20
        print(f"{speech.seconds / 60:5.2f} min: {took:6.1f} s of CPU time, {rate:.2f} s per minute", end="")
        print(f" ({wall:.0f} s wall), memory grew by {memory:.0f} MB, samples are {size:.0f} MB", flush=True)
        del speech


def many_calls(synthesizer: Synthesizer, voice: Voice, count: int) -> None:
    """Speaks `count` times, in different ways and with different sampling settings; prints how the memory grows."""
    rng, sentences = np.random.default_rng(0), unheard_sentences("en")
    lows, highs = zip((0.1, 1.2), (0, 80), (0.3, 1.0), (1.0, 9.0))
    drawn = rng.uniform(lows, highs, (SAMPLING_VALUES, 4)).tolist()
    settings = [SamplingConfig(heat, int(top_k), top_p, penalty) for heat, top_k, top_p, penalty in drawn]

    def call(number):
        sampling, some = settings[number % SAMPLING_VALUES], rng.choice(sentences, int(rng.integers(1, 4)))
        if number % 10 < 6:
            synthesizer.batch(some, [voice] * len(some), ["en"] * len(some), sampling, number, max_codes=16)
        elif number % 10 < 8:
            for part, _ in enumerate(synthesizer.stream(some[0], voice, "en", sampling, number)):
                if part:
                    break  # cancels the stream
        else:
            texts = [str(text) for text in rng.choice(sentences, 2)]
            with ThreadPoolExecutor(2) as pool:
                one = lambda text: synthesizer.batch([text], [voice], ["en"], sampling, number, max_codes=16)
                list(pool.map(one, texts))

    memory, every = [], max(1, count // 10)
    for number in range(count):
        call(number)
        if (number + 1) % every == 0:
            gc.collect()
            memory.append(PROCESS.memory_info().rss / 2**20)
            print(f"{number + 1} calls: {memory[-1]:.0f} MB, {PROCESS.num_threads()} threads", flush=True)
    growth = 100 * (memory[-1] / memory[0] - 1)
    print(f"growth from call {every} to {count}: {growth:+.1f} % (goal: at most 2 %)")


def main() -> None:
    """Runs the measurement that the first argument selects: `long` or `calls`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("long", "calls"))
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 2.5, 5.0, 10.0])
    arguments = parser.parse_args()
    synthesizer = Synthesizer.load(arguments.checkpoint)
    voice = synthesizer.as_voice(synthesizer.speakers[0])
    if arguments.what == "long":
        long_text(synthesizer, voice, arguments.minutes)
    else:
        many_calls(synthesizer, voice, arguments.count)


if __name__ == "__main__":
    main()
