"""Calibrates the self-check of the bundled model: when does a recognizer understand what it says?

    python utilities/base/calibrate_confidence.py --recognizer whisper-base

Sentences of `confidence_sentences.txt` are spoken by the model, by copies with noise on the weights of the GPT or of
the decoder, and claimed to be other sentences. The coefficients in the model's folder are made of all of them; in the
tables that are printed, each half of the sentences is judged by coefficients that are made of the other. What was
measured is kept in `--work`, of which a second call makes the coefficients at once.

A sentence is understood where Whisper gets at most a third of its characters wrong. Here it hears windows of 10 s
instead of 30, which takes a fifth of the time.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import ctranslate2
import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.tokenizer import Tokenizer
from scipy.optimize import minimize

from myxtts.hearing.recognizers import at_rate
from myxtts.hearing.text_errors import character_errors
from myxtts.inference.self_check import CONFIDENCE_FILE, DOUBT, Calibration, features, judge
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.voices import stored_voice
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.storage.files import read_json, write_json

SENTENCES = Path(__file__).with_name("confidence_sentences.txt")
"""A line `language|sentence` each, which were chosen before any of them was heard."""
VOICES = ("Gene", "f2")
JUDGED = ("en",)
"""Languages of which the recognizer understands the teacher, eSpeak NG, well: at most 15 % of the characters wrong."""
UNDERSTOOD = 1 / 3
"""Most wrong characters over those of the text."""
WINDOW = 1000
"""Frames of 10 ms that Whisper hears."""
TOGETHER = 10
SPOILT = {"gpt": (0.1, 0.2, 0.35), "decoder": (0.15, 0.3)}
"""Standard deviations of the noise on the weights of a part, over those of the weights."""
PENALTY = 0.01
"""On squared coefficients of standardized features."""


class Hearing:
    """Whisper with short windows, greedy, several sentences at a time."""

    def __init__(self, folder: Path):
        self.model = WhisperModel(str(folder), device="cpu", compute_type="int8", local_files_only=True)

    def __call__(self, sounds: list[np.ndarray], sample_rate: int, language: str) -> list[str]:
        """What is understood of samples `(S,)` in one language."""
        tokenizer = Tokenizer(self.model.hf_tokenizer, True, task="transcribe", language=language)
        prompt, texts = [*tokenizer.sot_sequence, tokenizer.no_timestamps], []
        for start in range(0, len(sounds), TOGETHER):
            mels = [self.model.feature_extractor(at_rate(one, sample_rate)) for one in sounds[start : start + TOGETHER]]
            mels = np.stack([np.pad(mel[:, :WINDOW], ((0, 0), (0, max(0, WINDOW - mel.shape[1])))) for mel in mels])
            encoded = self.model.model.encode(ctranslate2.StorageView.from_array(mels.astype(np.float32)))
            found = self.model.model.generate(encoded, [prompt] * len(mels), beam_size=1, max_length=80)
            texts += [tokenizer.decode(one.sequences_ids[0]).strip() for one in found]
        return texts


def measured(synthesizer: Synthesizer, hearing: Hearing) -> Iterator[dict]:
    """Of every sentence its number, kind, features, the rules' confidence and the share of wrong characters."""
    lines = [line.split("|", 1) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    everything = range(len(lines))
    some = [number for number in everything if number % 10 in ((0, 1, 4, 5) if lines[number][0] == "en" else (0, 1))]
    english = [number for number in everything if lines[number][0] == "en"]
    spoken = yield from _kind("base", synthesizer, hearing, lines, everything, 0)
    yield from _kind("base", synthesizer, hearing, lines, english, 1)
    yield from _other_texts(synthesizer, lines, [one for one in spoken if one["number"] in some])
    for part, strengths in SPOILT.items():
        for strength in strengths:
            weights = synthesizer.model.part_weights(part).values()
            kept, random = [weight.numpy() for weight in weights], np.random.default_rng(int(100 * strength))
            for weight, value in zip(weights, kept):
                noise = strength * value.std() * random.standard_normal(value.shape)
                weight.assign(value + noise.astype(value.dtype))
            yield from _kind(f"{part}, noise {strength}", synthesizer, hearing, lines, some, 2)
            for weight, value in zip(weights, kept):
                weight.assign(value)


def _kind(kind, synthesizer, hearing, lines, numbers, seed):
    """Rows of the sentences with these numbers, spoken once; returns what was spoken."""
    spoken = []
    for language in dict.fromkeys(lines[number][0] for number in numbers):
        own = [number for number in numbers if lines[number][0] == language]
        names = [f"{language}_{VOICES[number % 4 // 2]}" for number in own]
        voices = [synthesizer.as_voice(stored_voice(BASE_FOLDER, name, synthesizer.voice)) for name in names]
        texts = [lines[number][1] for number in own]
        speeches = synthesizer.batch(texts, voices, [language] * len(own), seed=seed)
        heard = hearing([speech.samples for speech in speeches], synthesizer.sample_rate, language)
        for number, text, voice, speech, understood in zip(own, texts, voices, speeches, heard):
            said = dict(number=number, kind=kind, language=language, understood=understood)
            yield said | _row(synthesizer, text, language, voice, speech, understood)
            spoken.append(said | dict(voice=voice, speech=speech))
    return spoken


def _other_texts(synthesizer, lines, spoken):
    """Rows of speech that is claimed to be the sentence of nearest length."""
    for one in spoken:
        codes = len(one["speech"].codes)
        same = [other for other in spoken if other["language"] == one["language"] and other is not one]
        other = min(same, key=lambda other: abs(len(other["speech"].codes) - codes))
        said = {**one, "kind": "another text", "understood": other["understood"]}
        text = lines[one["number"]][1]
        row = _row(synthesizer, text, one["language"], other["voice"], other["speech"], other["understood"])
        yield {name: said[name] for name in ("number", "kind", "language", "understood")} | row


def _row(synthesizer, text, language, voice, speech, understood):
    """Features and rules' confidence of codes that claim to say a text, and the share of it that is not understood."""
    (piece,), rate = speech.pieces, synthesizer.rates[language]
    if not len(piece.codes):
        return {"wrong": 1.0}
    reading = synthesizer.read_again(voice.latents, synthesizer.text_front.ids(text, language), piece.codes)
    wrong, expected = character_errors(text, understood, language)
    rules = judge(text, piece.codes, piece.stopped, rate, reading)
    return {
        "wrong": min(1.0, wrong / expected),
        "rules": rules.confidence,
        "fault": rules.reason,
        "features": features(reading),
    }


def fitted(rows: list[dict]) -> Calibration:
    """Logistic regression on standardized features of the judged rows, with a small penalty."""
    rows = [row for row in rows if row["language"] in JUDGED]
    names = list(rows[0]["features"])
    values = np.array([[row["features"][name] for name in names] for row in rows])
    signs = np.where([row["wrong"] <= UNDERSTOOD for row in rows], 1.0, -1.0)
    mean, spread = values.mean(axis=0), values.std(axis=0)
    scaled = (values - mean) / spread

    def loss(weights):
        return np.logaddexp(0, -signs * (scaled @ weights[1:] + weights[0])).mean() + PENALTY * (weights[1:] ** 2).sum()

    intercept, *weights = minimize(loss, np.zeros(len(names) + 1)).x
    weights = np.array(weights) / spread
    return Calibration([*JUDGED], float(intercept - weights @ mean), dict(zip(names, weights.tolist())))


def tables(rows: list[dict]) -> str:
    """How often sentences of each kind are flagged, and how often those of a confidence are understood.

    Each half is judged by coefficients of the other.
    """
    sure = np.zeros(len(rows))
    judged, half = np.array([(row["language"] in JUDGED, row["number"] % 2) for row in rows]).T
    for part in (0, 1):
        calibration = fitted([row for row, of in zip(rows, half) if of != part])
        own = half == part
        values = np.array([list(row["features"].values()) for row in rows])[own]
        total = values @ list(calibration.weights.values()) + calibration.intercept
        sure[own] = 1 / (1 + np.exp(-total))
    judged, right = judged.astype(bool), np.array([row["wrong"] <= UNDERSTOOD for row in rows])
    faulty = np.array([row["rules"] < DOUBT for row in rows])
    flagged = (sure < DOUBT) | faulty
    kinds = [f"{row['kind']}, {row['language']}" if row["kind"] == "base" else row["kind"] for row in rows]
    lines = [
        "| sentences | not understood | of them flagged | understood | of them flagged | by rules |",
        "|" + "---|" * 6,
    ]
    for kind in ("all judged", *dict.fromkeys(kinds)):
        of_kind = judged if kind == "all judged" else np.array([kind == one for one in kinds])
        of_kind = of_kind if kind.startswith("base") else of_kind & judged
        cells = [kind]
        for group in (of_kind & ~right, of_kind & right):
            count, of = flagged[group].sum(), group.sum()
            cells += [str(of), f"{count} ({100 * count / of:.0f} %)" if of else "–"]
        lines.append("| " + " | ".join([*cells, str(faulty[of_kind & right].sum())]) + " |")
    lines += ["", "| confidence | sentences | mean | understood |", "|" + "---|" * 4]
    for low in np.arange(0, 1, 0.2):
        group = judged & (sure >= low) & (sure < low + 0.2)
        if group.any():
            cells = (
                f"{low:.1f} to {low + 0.2:.1f}",
                group.sum(),
                f"{sure[group].mean():.2f}",
                f"{right[group].mean():.2f}",
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measures what is not measured yet, writes the coefficients and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recognizer", type=Path, required=True, help="folder of a Whisper model")
    parser.add_argument("--work", type=Path, default=Path("confidence_rows.json"), help="file for what was measured")
    arguments = parser.parse_args()
    if not arguments.work.is_file():
        write_json(arguments.work, list(measured(Synthesizer.load(BASE_FOLDER), Hearing(arguments.recognizer))))
    rows = [row for row in read_json(arguments.work) if "features" in row]
    write_json(BASE_FOLDER / CONFIDENCE_FILE, fitted(rows)._asdict())
    print(tables(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
