"""Fits the confidence of the bundled model's self-check: the probability that a recognizer understands a sentence.

    python utilities/base/calibrate_confidence.py --recognizer base

The model speaks the English sentences of `confidence_sentences.txt`. For bad examples, some sentences are also spoken
with noise on the weights of the GPT or the decoder, or compared with the text of another sentence. The coefficients in
the model's folder are fitted to all examples. For the printed tables, each half of the sentences is evaluated with
coefficients fitted to the other half. The measurements are stored in `--work`, and reused by the next call if it has
the same weights, sentences and recognizer.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from myxtts.config.stages import STAGES
from myxtts.hearing.recognizers import Listening, open_recognizer
from myxtts.inference.self_check import DISTORTION, Calibration, features
from myxtts.inference.synthesizer import Synthesizer
from myxtts.storage.base_model import BASE_FOLDER
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.files import digest_file, read_json, write_json
from myxtts.storage.run_folder import CONFIDENCE_FILE

SENTENCES = Path(__file__).with_name("confidence_sentences.txt")
"""File with lines `language|sentence`, written before the model spoke any of them."""
LANGUAGE, VOICES = "en", ("en_Gene", "en_f2")
"""Language and voices of the sentences: English, because small Whisper models understand eSpeak NG's English well."""
UNDERSTOOD = 1 / 3
"""Maximum CER at which a sentence counts as understood."""
SPOILT = {"gpt": (0.2, 0.35, 0.5, 0.7), "decoder": (0.3, 0.5, 0.8)}
"""Standard deviations of the noise added to each weight tensor of a part, relative to that of the tensor's values."""
AS_TRAINED, SEEDS = "as trained", 4
"""Name of the kind of examples with trained weights and the right text, and the number of seeds to speak with."""
FLAGGED = 0.05
"""Fraction of the understood `AS_TRAINED` examples that the threshold flags; goal for new sentences: at most 0.1."""
PENALTY = 0.01
"""Weight of the L2 penalty on the coefficients of the standardized features."""


def measured(synthesizer: Synthesizer, listener: Listening) -> Iterator[dict]:
    """Speaks all examples; yields a dictionary for each: `number` of the text, `kind`, `features`, the CER as `wrong`,
    and as `distorted`, whether the check for distortion flags the example."""
    lines = (line.split("|", 1) for line in SENTENCES.read_text(encoding="utf-8").splitlines())
    texts = [text for language, text in lines if language == LANGUAGE]
    voices = [synthesizer.as_voice(name) for name in VOICES]

    def spoken(kind, numbers, seed, claimed=lambda number: number):
        """Speaks the sentences `numbers`; yields a row for each, measured against the text of `claimed(number)`."""
        own = [voices[number // 2 % 2] for number in numbers]
        said = [texts[number] for number in numbers]
        speeches = synthesizer.batch(said, own, [LANGUAGE] * len(said), seed=seed)
        for number, voice, speech in zip(numbers, own, speeches):
            if not len(speech.codes):
                continue  # flagged without a reading
            text = texts[claimed(number)]
            ids = synthesizer.text_front.ids(text, LANGUAGE)
            reading = synthesizer.read_again(voice.latents, ids, speech.codes)
            wrong = listener(speech.samples, speech.sample_rate, text, LANGUAGE)
            distorted = synthesizer.distortion(speech.codes, speech.samples) > DISTORTION[1]
            row = {"number": claimed(number), "kind": kind, "wrong": wrong, "distorted": distorted}
            yield row | {"features": features(reading)}

    some = [number for number in range(len(texts)) if number % 10 in (0, 1, 4, 5)]
    for seed in range(SEEDS):
        yield from spoken(AS_TRAINED, range(len(texts)), seed)
    yield from spoken("another text", some, 0, lambda number: (number + 10) % len(texts))
    for part, strength in [(part, strength) for part, strengths in SPOILT.items() for strength in strengths]:
        weights = synthesizer.model.part_weights(part).values()
        kept, random = [weight.numpy() for weight in weights], np.random.default_rng(int(100 * strength))
        for weight, value in zip(weights, kept):
            weight.assign(value + (strength * value.std() * random.standard_normal(value.shape)).astype(value.dtype))
        yield from spoken(f"{part}, noise {strength}", some, 2)
        for weight, value in zip(weights, kept):
            weight.assign(value)


def fitted(rows: list[dict]) -> Calibration:
    """Fits a logistic regression with L2 penalty, which predicts from the features whether a sentence is understood.

    Sentences with noise on the decoder's weights are left out, because the features measure only the GPT.
    """
    rows = [row for row in rows if not row["kind"].startswith("decoder")]
    names = list(rows[0]["features"])
    values = np.array([[row["features"][name] for name in names] for row in rows])
    signs = np.where([row["wrong"] <= UNDERSTOOD for row in rows], 1.0, -1.0)
    mean, spread = values.mean(axis=0), values.std(axis=0)
    scaled = (values - mean) / spread

    def loss(weights):
        return np.logaddexp(0, -signs * (scaled @ weights[1:] + weights[0])).mean() + PENALTY * (weights[1:] ** 2).sum()

    intercept, *weights = minimize(loss, np.zeros(len(names) + 1)).x
    weights = np.array(weights) / spread
    return Calibration([LANGUAGE], float(intercept - weights @ mean), dict(zip(names, weights.tolist())))


def with_threshold(calibration: Calibration, rows: list[dict]) -> Calibration:
    """Returns the calibration with a threshold `doubt` that flags a fraction `FLAGGED` of the understood examples."""
    understood = [row for row in rows if row["kind"] == AS_TRAINED and row["wrong"] <= UNDERSTOOD]
    limit = np.quantile([calibration(row["features"]) for row in understood], FLAGGED)
    return calibration._replace(doubt=round(float(limit), 2))


def tables(rows: list[dict]) -> str:
    """Formats two tables: flagged sentences of each kind, and the fraction understood in each range of confidence."""
    halves = [[row for row in rows if row["number"] % 2 == half] for half in (0, 1)]
    rows, judges = halves[0] + halves[1], [with_threshold(fitted(half), half) for half in halves[::-1]]
    judges = [judges[0]] * len(halves[0]) + [judges[1]] * len(halves[1])
    sure = np.array([judge(row["features"]) for judge, row in zip(judges, rows)])
    doubted = (sure < np.array([judge.doubt for judge in judges])) | np.array([row["distorted"] for row in rows])
    right, kinds = np.array([row["wrong"] <= UNDERSTOOD for row in rows]), np.array([row["kind"] for row in rows])
    lines = ["| sentences | not understood | of them flagged | understood | of them flagged |", "|" + "---|" * 5]
    for kind in ("all", *dict.fromkeys(kinds)):
        own = (kinds == kind) | (kind == "all")
        cells = [str(n) for group in (own & ~right, own & right) for n in (group.sum(), doubted[group].sum())]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines += ["", "Without noise on the decoder:", ""]
    lines += ["| confidence | sentences | mean confidence | share understood |", "|" + "---|" * 4]
    for low in np.arange(0, 1, 0.2):
        group = (sure >= low) & (sure < low + 0.2) & ~np.char.startswith(kinds, "decoder")
        found = f"{sure[group].mean():.2f} | {right[group].mean():.2f}" if group.any() else "– | –"
        lines.append(f"| {low:.1f} to {low + 0.2:.1f} | {group.sum()} | {found} |")
    return "\n".join(lines)


def main() -> None:
    """Measures speech, or reads earlier measurements from `--work`; writes the coefficients and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recognizer", required=True, help="Whisper size base or larger, or another recognizer")
    parser.add_argument("--work", type=Path, default=Path("confidence_rows.json"), help="file of the measurements")
    arguments = parser.parse_args()
    stores = [CheckpointStore(BASE_FOLDER / part) for part in STAGES]
    origin = [arguments.recognizer, digest_file(SENTENCES), *(store.digest(store.steps()[-1]) for store in stores)]
    known = read_json(arguments.work) if arguments.work.is_file() else []
    if known[:1] != [origin]:
        listener = Listening(open_recognizer(arguments.recognizer))
        known = [origin, *measured(Synthesizer.load(BASE_FOLDER), listener)]
        write_json(arguments.work, known)
    rows = known[1:]
    print(tables(rows))
    write_json(BASE_FOLDER / CONFIDENCE_FILE, with_threshold(fitted(rows), rows)._asdict())


if __name__ == "__main__":
    main()
