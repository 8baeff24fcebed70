"""Shows whether the metrics of `myxtts evaluate` detect known damage to recordings and to synthesized speech.

    python utilities/benchmarks/known_order.py --run RUN --data DIR [--recognizer NAME] [--sentences 16] [--output CSV]

The damage is noise at 5 dB SNR, another sentence in the same voice, the same sentence in another voice, or a cut to
55 % of the duration. A * marks metrics that differ significantly from those of the undamaged audio.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from myxtts.apps.evaluation.command import subjects
from myxtts.apps.evaluation.comparison import METRICS, compare
from myxtts.apps.evaluation.report import as_csv
from myxtts.apps.evaluation.sentences import Row, choose_sentences, rows_to_speak
from myxtts.hearing.measuring import Measurer, Sentence, Spoken
from myxtts.hearing.networks import DNSMOS, find_encoder
from myxtts.hearing.recognizers import open_recognizer
from myxtts.storage.files import write_text

NOISE_DB = 5.0
KEPT_SHARE = 0.55
MOST_SENTENCES = 1000


def noisy(said: Sequence[Spoken]) -> Iterator[Spoken]:
    """Yields the speech with white noise, at a signal-to-noise ratio of `NOISE_DB`."""
    random = np.random.default_rng(0)
    for one in said:
        noise = np.sqrt(np.mean(one.samples**2)) * 10 ** (-NOISE_DB / 20) * random.standard_normal(len(one.samples))
        yield replace(one, samples=np.clip(one.samples + noise, -1, 1).astype(np.float32))


def from_others(said: Sequence[Spoken], fits: Callable[[Sentence, Sentence], bool]) -> Iterator[Spoken]:
    """Yields each sentence with the audio of the next one that `fits` it. Skips a sentence if no other one fits."""
    for index, one in enumerate(said):
        turned = [*said[index + 1 :], *said[:index]]
        other = next((two for two in turned if fits(one.sentence, two.sentence)), None)
        if other is not None:
            yield replace(one, samples=other.samples, codes=other.codes)


BROKEN = {
    "noise": noisy,
    "cut short": lambda said: (replace(one, samples=one.samples[: int(KEPT_SHARE * len(one.samples))]) for one in said),
    "other words": partial(from_others, fits=lambda a, b: a.speaker == b.speaker and a.text != b.text),
    "other voice": partial(from_others, fits=lambda a, b: a.speaker != b.speaker and a.text == b.text),
}
"""Functions that damage speech, by the name of the damage."""


def with_broken(source: Row) -> Iterator[Row]:
    """Yields `source`, then a row for each of `BROKEN`, with damaged audio of `source`, which must speak first."""
    said: list[Spoken] = []

    def speak():
        for one in source.speak():
            said.append(one)
            yield one

    yield replace(source, speak=speak, measured=[])
    for name, change in BROKEN.items():
        yield Row(f"{source.name}, {name}", "resynthesis", lambda change=change: change(said))


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates the original and the damaged audio; prints a line of metrics for each row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--language", default="en")
    parser.add_argument("--recognizer")
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="without DNSMOS, and damage only the recordings")
    parser.add_argument("--output", type=Path, help="CSV file")
    arguments = parser.parse_args(argv)
    judged = subjects([arguments.run], "best")
    sentences = choose_sentences(judged, arguments.data, None, [], arguments.language, MOST_SENTENCES)
    by_text = Counter(one.text for one in sentences)
    # Texts spoken by several speakers come first, so that "other voice" finds another voice.
    sentences = sorted(sentences, key=lambda one: (-by_text[one.text], one.text))[: arguments.sentences]
    first, resynthesis, run = rows_to_speak(judged, sentences, [0])
    sources = [*with_broken(first), resynthesis, *([run] if arguments.quick else with_broken(run))]
    recognizer = arguments.recognizer and open_recognizer(arguments.recognizer)
    measurer = Measurer(recognizer, find_encoder(), None if arguments.quick else DNSMOS.load())
    progress = lambda row: print(f"\r{row.name} {len(row.measured)}", file=sys.stderr)
    comparison = compare(sources, sentences, measurer, {}, progress)
    for row in comparison.rows:
        own = next((one for one in comparison.rows if row.name in {f"{one.name}, {name}" for name in BROKEN}), None)
        cells = []
        for metric in METRICS:
            if (figure := comparison.figure(row, metric)) is not None:
                difference = own and comparison.difference(own, row, metric)
                is_certain = difference and not difference.holds_zero
                cells.append(f"{metric.name} {figure.value:.{metric.decimals}f}{'*' if is_certain else ''}")
        print(f"{row.name} ({len(row.measured)}): {', '.join(cells)}", flush=True)
    print(comparison.not_judged() or "evaluated", comparison.strangers)
    if arguments.output:
        write_text(arguments.output, as_csv(comparison))


if __name__ == "__main__":
    main()
