"""Measures how many bad sentences the self-check of synthesis flags, and how many good ones.

    python utilities/benchmarks/self_check.py --checkpoint run --corpus sample_corpus
    python utilities/benchmarks/self_check.py --checkpoint digits --corpus ../shared/data/fsdd --texts digits

All sentences that the model speaks count as good. Bad ones are made by changing the codes: the end is cut off, a part
is deleted or repeated, or codes of other sentences are appended or used instead. The thresholds of
`inference/self_check.py` were set with `--half even`, on the texts with even numbers; `--half odd` tests them on the
other texts. Texts are held-out sentences of the sample corpus, or, with `--texts digits`, the ten digits.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from myxtts.data.corpora import load_corpus
from myxtts.data.sample_corpus import unheard_sentences
from myxtts.inference.self_check import judge
from myxtts.inference.speech import SpokenPiece, Verdict
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import Voice
from myxtts.text.speech_rates import SpeechRate, measure_rates

DIGITS = "zero one two three four five six seven eight nine".split()
SHORTEST = 9
"""Minimum number of codes of a sentence that is changed to make bad examples."""


def planted(codes: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Yields `(kind, codes)` of bad sentences, which are made from the codes of a good sentence and of `others`."""
    count = len(codes)
    start, length = rng.integers(count // 4, count // 2), rng.integers(count // 5, count // 3)
    yield "broken off at 40 to 70 %", codes[: int(count * rng.uniform(0.4, 0.7))]
    yield "a fifth to a third left out", np.delete(codes, np.s_[start : start + length])
    yield "a fifth to a third said twice", np.concatenate([codes[: start + length], codes[start:]])
    yield "0.6 to 1.4 s of others at its end", np.concatenate([codes, rng.permutation(others)[: rng.integers(12, 30)]])
    yield "caught in a loop", np.concatenate([codes[:start], np.tile(codes[start : start + 6], 12)])
    yield "codes of others in its place", rng.permutation(others)[:count]


def judged(
    synthesizer: Synthesizer, rate: SpeechRate, spoken: list[SpokenPiece], voices: list[Voice]
) -> Iterator[tuple[str, Verdict]]:
    """Yields `(kind, verdict of the self-check)` of every sentence, good and bad."""
    rng, others = np.random.default_rng(0), np.concatenate([piece.codes for piece in spoken])

    def check(text, codes, stopped, voice):
        ids = synthesizer.text_front.ids(text, "en")
        reading = synthesizer.read_again(voice.latents, ids, codes) if len(codes) else None
        return judge(text, codes, stopped, rate, reading)

    for number, (piece, voice) in enumerate(zip(spoken, voices)):
        yield "good", check(piece.text, piece.codes, piece.stopped, voice)
        other = spoken[(number + len(spoken) // 3 + 1) % len(spoken)]
        if other.text != piece.text:
            yield "another text", check(piece.text, other.codes, True, voice)
        if len(piece.codes) >= SHORTEST:
            for kind, codes in planted(piece.codes, others, rng):
                yield kind, check(piece.text, codes, True, voice)


def main() -> None:
    """Speaks sentences, makes bad ones, and prints for each kind how many the self-check flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="training data of the model, for its speech rates")
    parser.add_argument("--texts", choices=("sample", "digits"), default="sample")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--half", choices=("even", "odd"), default="odd")
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    synthesizer, clips = Synthesizer.load(arguments.checkpoint), load_corpus(arguments.corpus).utterances
    rate = measure_rates((one.language, one.text, soundfile.info(one.wav_path).duration) for one in clips)["en"]
    texts = DIGITS if arguments.texts == "digits" else unheard_sentences("en")
    voices = [synthesizer.as_voice(name) for name in synthesizer.speakers]
    half = [text for number, text in enumerate(texts) if number % 2 == (arguments.half == "odd")]
    texts = [half[number % len(half)] for number in range(arguments.sentences)]
    voices = [voices[number // len(half) % len(voices)] for number in range(len(texts))]
    speeches = synthesizer.batch(texts, voices, ["en"] * len(texts), seed=arguments.seed)
    found: dict[str, list[Verdict]] = {}
    for kind, verdict in judged(synthesizer, rate, [speech.pieces[0] for speech in speeches], voices):
        found.setdefault(kind, []).append(verdict)
    print(f"rate: {rate}")
    for kind, verdicts in found.items():
        flagged = [verdict for verdict in verdicts if verdict.doubts]
        reasons = sorted({verdict.reason.split(",")[0][:40] for verdict in flagged})
        middle = np.median([verdict.confidence for verdict in verdicts])
        print(f"{kind:36} {len(flagged):4} of {len(verdicts):4} flagged, median confidence {middle:.2f}  {reasons[:3]}")


if __name__ == "__main__":
    main()
