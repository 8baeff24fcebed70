"""Evaluates a model of the sample corpus on held-out sentences by the CER of a speech recognizer.

    python utilities/benchmarks/first_words.py --checkpoint checkpoints --corpus sample_corpus --recognizer base

The model speaks 32 sentences, half of them in each voice, and each sentence is listed with its transcription. The CER
is shown next to that of recordings and of controls, which must have a higher CER: shuffled texts, noise, and silence.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from myxtts.audio.files import load_samples
from myxtts.config.rates import MODEL_SAMPLE_RATE
from myxtts.data.corpora import load_corpus
from myxtts.data.sample_corpus import unheard_sentences
from myxtts.hearing.measuring import spread
from myxtts.hearing.recognizers import open_recognizer, recognition_errors
from myxtts.inference.synthesizer import Synthesizer

SENTENCES = 32
GOAL = 0.15
NOISE = 0.1
"""RMS of the added noise, relative to full scale."""


def error_rate(expected: Sequence[str], found: Sequence[str], language: str = "en") -> float:
    """Returns the CER of the transcriptions `found` as a whole; "neighbor" and "neighbour" count as equal."""
    same = lambda text: text.lower().replace("neighbor", "neighbour")
    pairs = [recognition_errors(same(a), same(b), language)["cer"] for a, b in zip(expected, found)]
    return sum(wrong for wrong, _ in pairs) / sum(size for _, size in pairs)


def main() -> int:
    """Prints the sentences and their CER; returns exit code 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="run of the sample corpus in English")
    parser.add_argument("--corpus", type=Path, required=True, help="the sample corpus, for the reference voices")
    parser.add_argument("--recognizer", required=True, help="Whisper size base or larger, or another recognizer")
    parser.add_argument("--decoder", choices=("model", "griffin-lim"), help="vocoder (default: the model's)")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    whisper, rng = open_recognizer(arguments.recognizer), np.random.default_rng(0)
    recognize = lambda samples, sample_rate: whisper(samples, sample_rate, "en")
    recordings = {one.speaker: one for one in load_corpus(arguments.corpus).utterances if one.language == "en"}
    texts = spread(unheard_sentences("en"), SENTENCES)
    synthesizer = Synthesizer.load(arguments.checkpoint, decoder=arguments.decoder)
    voices = [synthesizer.voice(str(recording.wav_path)) for recording in recordings.values()]
    voices = [voices[number % len(voices)] for number in range(len(texts))]
    speeches = synthesizer.batch(texts, voices, ["en"] * len(texts), seed=arguments.seed)
    sounds, rate = [speech.samples for speech in speeches], synthesizer.sample_rate
    heard = [recognize(sound, rate) for sound in sounds]
    for text, found in zip(texts, heard):
        print(f"{error_rate([text], [found]):5.2f}  {text}  |  {found.strip()}")
    few = sounds[:8]
    noisy = [recognize(sound + NOISE * rng.standard_normal(len(sound)), rate) for sound in few]
    silent = [recognize(np.zeros_like(sound), rate) for sound in few]
    real = [recognize(load_samples(str(one.wav_path)), MODEL_SAMPLE_RATE) for one in recordings.values()]
    figure = error_rate(texts, heard)
    print(f"\nunheard sentences        {figure:.3f}  (goal: at most {GOAL})")
    print(f"recordings               {error_rate([one.text for one in recordings.values()], real):.3f}")
    print(f"against other sentences  {error_rate(texts[1:] + texts[:1], heard):.3f}")
    print(f"under noise, {len(few)} of them   {error_rate(texts, noisy):.3f}")
    print(f"silence                  {error_rate(texts, silent):.3f}")
    return int(figure > GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
