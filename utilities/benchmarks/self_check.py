"""How many bad sentences the self-check of speech finds, and how many good ones it refuses.

    python utilities/benchmarks/self_check.py --checkpoint run --corpus sample_corpus
    python utilities/benchmarks/self_check.py --checkpoint digits --corpus ../shared/data/fsdd --texts digits

Sentences that the model speaks count as good, as they come. Bad ones are made of them: codes broken off, left out, said
twice, followed by others, caught in a loop, replaced by those of others, or of another text. `--half even` has the
texts on which the scores of `inference/self_check.py` were set, `odd` the others, which are to be judged. With
`--texts digits` they are ten words, else sentences that the sample corpus does not have.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from myxtts.data.corpora import load_corpus
from myxtts.data.sample_corpus import unheard_sentences
from myxtts.inference.self_check import Verdict, judge
from myxtts.inference.speech import SpokenPiece
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import Voice, stored_voice
from myxtts.storage.speakers import read_speakers
from myxtts.text.speech_rates import SpeechRate, measure_rates

DIGITS = "zero one two three four five six seven eight nine".split()
SHORTEST = 9
"""Codes of a sentence that bad ones are made of, at least."""


def rates_of(corpus: Path) -> dict[str, SpeechRate]:
    """Rates of a training set, as a checkpoint of today keeps them."""
    clips = load_corpus(corpus).utterances
    seconds = (soundfile.info(str(clip.wav_path)).duration for clip in clips)
    return measure_rates((clip.language, clip.text, length) for clip, length in zip(clips, seconds))


def planted(codes: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Bad sentences made of a good one and of codes of other sentences."""
    count = len(codes)
    start, length = rng.integers(count // 4, count // 2), rng.integers(count // 5, count // 3)
    yield "broken off at 40 to 70 %", codes[: int(count * rng.uniform(0.4, 0.7))]
    yield "a fifth to a third left out", np.delete(codes, np.s_[start : start + length])
    yield "a fifth to a third said twice", np.concatenate([codes[: start + length], codes[start:]])
    yield "0.6 to 1.4 s of others at its end", np.concatenate([codes, rng.permutation(others)[: rng.integers(12, 30)]])
    yield "caught in a loop", np.concatenate([codes[:start], np.tile(codes[start : start + 6], 12)])
    yield "codes of others in its place", rng.permutation(others)[:count]


class Judge:
    """Judges codes of one model as speaking does."""

    def __init__(self, synthesizer: Synthesizer, rates: dict[str, SpeechRate]):
        self.synthesizer, self.rates = synthesizer, rates

    def __call__(self, text: str, codes: np.ndarray, stopped: bool, voice: Voice) -> Verdict:
        """The verdict on codes that claim to say a text."""
        ids = self.synthesizer.text_front.ids(text, "en")
        reading = self.synthesizer.read_again(voice.latents, ids, codes) if len(codes) else None
        return judge(text, codes, stopped, self.rates["en"], reading)


def judged(judge_of: Judge, spoken: list[SpokenPiece], voices: list[Voice]) -> Iterator[tuple[str, Verdict]]:
    """Kind and verdict of every sentence, good and planted."""
    rng, others = np.random.default_rng(0), np.concatenate([piece.codes for piece in spoken])
    for number, (piece, voice) in enumerate(zip(spoken, voices)):
        yield "good", judge_of(piece.text, piece.codes, piece.stopped, voice)
        other = spoken[(number + len(spoken) // 3 + 1) % len(spoken)]
        if other.text != piece.text:
            yield "another text", judge_of(piece.text, other.codes, True, voice)
        if len(piece.codes) >= SHORTEST:
            for kind, codes in planted(piece.codes, others, rng):
                yield kind, judge_of(piece.text, codes, True, voice)


def main() -> None:
    """Prints a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="what it was trained on, for its rates")
    parser.add_argument("--texts", choices=("sample", "digits"), default="sample")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--half", choices=("even", "odd"), default="odd")
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    synthesizer, rates = Synthesizer.load(arguments.checkpoint), rates_of(arguments.corpus)
    unheard = unheard_sentences("en")
    texts = DIGITS if arguments.texts == "digits" else unheard
    names = list(read_speakers(arguments.checkpoint))
    half = [text for number, text in enumerate(texts) if number % 2 == (arguments.half == "odd")]
    texts = [half[number % len(half)] for number in range(arguments.sentences)]
    voices = [
        synthesizer.as_voice(stored_voice(arguments.checkpoint, name, synthesizer.voice))
        for name in (names[number // len(half) % len(names)] for number in range(len(texts)))
    ]
    speeches = synthesizer.batch(texts, voices, ["en"] * len(texts), seed=arguments.seed)
    spoken = [speech.pieces[0] for speech in speeches]
    found: dict[str, list[Verdict]] = {}
    for kind, verdict in judged(Judge(synthesizer, rates), spoken, voices):
        found.setdefault(kind, []).append(verdict)
    print(f"rate: {rates['en']}")
    for kind, verdicts in found.items():
        doubted = [verdict for verdict in verdicts if verdict.doubts]
        reasons = sorted({verdict.reason.split(",")[0][:40] for verdict in doubted})
        middle = np.median([verdict.confidence for verdict in verdicts])
        print(f"{kind:36} {len(doubted):4} of {len(verdicts):4} doubted, median confidence {middle:.2f}  {reasons[:3]}")


if __name__ == "__main__":
    main()
