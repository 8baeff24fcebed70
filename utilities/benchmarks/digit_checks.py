"""Judges the judge of spoken digits: its figures must be high on real recordings and fall as the sound gets worse.

    python utilities/benchmarks/digit_checks.py --data ../shared/data/fsdd

The recordings are kept out of its training, and the damage is done to the waveform or its mel, in other ways than those
that it has learned from (`digit_damage` works on spectra). Of pieces of sentences and of noise, it should name nothing.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile
import soxr
from scipy import cluster, ndimage, signal

sys.path.insert(0, str(Path(__file__).resolve().parent))

from digit_features import SAMPLE_RATE  # noqa: E402  neighbors of this file
from digit_judge import (  # noqa: E402
    HELD_OUT_INDICES,
    TRAIN_INDICES,
    DigitJudge,
    Recording,
    Verdict,
    load_recordings,
    log_mel,
    to_judge_rate,
)

from myxtts.audio.griffin_lim import log_mel_to_wav  # noqa: E402
from myxtts.config.rates import MEL_FLOOR, MODEL_SAMPLE_RATE  # noqa: E402

FRICATIVE_BAND = 46
"""The band of the DVAE's mel that begins at 2.2 kHz: in fricatives the loudest is above, in vowels below."""
CODEBOOK_INDICES = range(15, 19)
"""Recordings whose mel frames the codebooks are made of; the others are quantized by what they have not seen."""


def noisy(samples: np.ndarray, snr_db: float, rng: np.random.Generator) -> np.ndarray:
    """White noise, `snr_db` below the loud samples."""
    loud = samples[np.abs(samples) > 0.05 * np.abs(samples).max()]
    deviation = np.sqrt(np.mean(loud**2) / 10 ** (snr_db / 10))
    return (samples + rng.normal(0, deviation, len(samples))).astype(np.float32)


def low_passed(samples: np.ndarray, edge_hz: float) -> np.ndarray:
    """Nothing above `edge_hz`, without delay."""
    sections = signal.butter(8, edge_hz, fs=SAMPLE_RATE, output="sos")
    return signal.sosfiltfilt(sections, np.pad(samples, 200)).astype(np.float32)


def blurred_in_time(mel: np.ndarray, frames: float) -> np.ndarray:
    """Mel power mixed with that of neighboring frames of 11.6 ms."""
    return np.log(ndimage.gaussian_filter1d(np.exp(mel), frames, axis=0) + MEL_FLOOR)


def without_fricatives(mel: np.ndarray) -> np.ndarray:
    """Every frame that is loudest above 2.2 kHz, silenced."""
    fricative = mel[:, FRICATIVE_BAND:].max(axis=1) > mel[:, : FRICATIVE_BAND - 6].max(axis=1) - 1
    return np.where(fricative[:, None], np.log(MEL_FLOOR), mel).astype(np.float32)


def quantized(mels: Sequence[np.ndarray], codebook: np.ndarray) -> list[np.ndarray]:
    """Each frame replaced by the nearest of a codebook `(codes, num_mels)`: what a crude codec leaves of a voice."""
    return [codebook[cluster.vq.vq(mel, codebook)[0]] for mel in mels]


def part(samples: np.ndarray, first: float, last: float) -> np.ndarray:
    """From one share of a clip's loud stretch to another."""
    energy = np.convolve(samples**2, np.ones(160) / 160, "same")
    loud = np.flatnonzero(energy > 1e-3 * energy.max())
    start, length = loud[0], loud[-1] + 1 - loud[0]
    return samples[int(start + first * length) : int(start + last * length)]


def joined_halves(recordings: Sequence[Recording], rng: np.random.Generator) -> list[np.ndarray]:
    """Of each, the first half and the last half of another word by the same voice."""
    joined = []
    for one in recordings:
        others = [other for other in recordings if other.speaker == one.speaker and other.digit != one.digit]
        other = others[rng.integers(len(others))]
        joined.append(np.concatenate([part(one.samples, 0, 0.5), part(other.samples, 0.5, 1)]))
    return joined


def damaged(
    recordings: Sequence[Recording], others: Sequence[Recording], rng: np.random.Generator
) -> Iterator[tuple[str, list[np.ndarray], int]]:
    """`(what was done, clips, sample rate)`, each series from the least damage to the worst.

    Args:
        others: Recordings to make the codebooks from.
    """
    waves = [recording.samples for recording in recordings]
    yield "as recorded", waves, SAMPLE_RATE
    quiet = [np.round(0.3 * wave * 32767) / 32767 for wave in waves]
    yield "gain 0.3, silence around", [np.pad(wave, SAMPLE_RATE // 5).astype(np.float32) for wave in quiet], SAMPLE_RATE
    for snr_db in (20, 10, 5, 0, -5):
        yield f"noise, SNR {snr_db} dB", [noisy(wave, snr_db, rng) for wave in waves], SAMPLE_RATE
    for edge_hz in (3000, 2000, 1000, 500):
        yield f"nothing above {edge_hz} Hz", [low_passed(wave, edge_hz) for wave in waves], SAMPLE_RATE
    for first, last in ((0, 0.75), (0, 0.5), (0.25, 1), (0.5, 1)):
        yield f"{first:.0%} to {last:.0%} of the word", [part(wave, first, last) for wave in waves], SAMPLE_RATE
    yield "halves of two words", joined_halves(recordings, rng), SAMPLE_RATE
    yield "backwards", [wave[::-1].copy() for wave in waves], SAMPLE_RATE
    for semitones in (-4, -2, -1, 1, 2, 4):
        played_hz = SAMPLE_RATE * 2 ** (semitones / 12)
        yield f"played {semitones:+d} semitones", [soxr.resample(w, played_hz, SAMPLE_RATE) for w in waves], SAMPLE_RATE
    mels = [log_mel(wave) for wave in waves]
    frames = np.concatenate([log_mel(other.samples) for other in others])
    frames = frames[frames.max(axis=1) > frames.max() - 12]
    for what, changed in damaged_mels(mels, frames, rng):
        yield f"mel{what}", [log_mel_to_wav(mel.astype(np.float32)) for mel in changed], MODEL_SAMPLE_RATE


def damaged_mels(
    mels: Sequence[np.ndarray], frames: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """`(what was done, log-mels)`, to be made audible by Griffin-Lim; `frames` are others, for codebooks."""
    yield "", list(mels)
    for sigma in (2, 4, 8, 16):
        yield f", blurred over {sigma} frames", [blurred_in_time(mel, sigma) for mel in mels]
    for sigma in (2, 4, 8, 16):
        yield f", blurred over {sigma} bands", [ndimage.gaussian_filter1d(mel, sigma, axis=1) for mel in mels]
    for num_codes in (1024, 256, 64, 16, 4):
        if num_codes < len(frames):
            codebook, _ = cluster.vq.kmeans2(frames, num_codes, minit="points", rng=rng)
            yield f", frames by {num_codes} codes", quantized(mels, codebook)
    yield ", without fricatives", [without_fricatives(mel) for mel in mels]


def foreign(vctk_dir: Path, rng: np.random.Generator) -> list[np.ndarray]:
    """Half seconds of other people's sentences, at `SAMPLE_RATE`."""
    pieces = []
    for path in sorted(Path(vctk_dir, "wavs").glob("*.wav")):
        samples = to_judge_rate(*soundfile.read(path, dtype="float32"))
        for start in rng.integers(0, len(samples) - SAMPLE_RATE // 2, 8):
            piece = samples[start : start + SAMPLE_RATE // 2]
            if piece.std() > 0.3 * samples.std():
                pieces.append(piece)
    return pieces


def shares(verdicts: Sequence[Verdict], recordings: Sequence[Recording]) -> dict[str, float]:
    """Right, and not named at all: digits and voices, 0 to 1."""
    pairs = list(zip(verdicts, recordings, strict=True))
    return {
        "digits": np.mean([heard.digit == said.digit for heard, said in pairs]),
        "no word": np.mean([heard.digit is None for heard in verdicts]),
        "voices": np.mean([heard.speaker == said.speaker for heard, said in pairs]),
        "no voice": np.mean([heard.speaker is None for heard in verdicts]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table: a line for each kind of damage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Free Spoken Digit Dataset")
    parser.add_argument("--foreign", type=Path, help="folder whose wavs/ hold other speech: nothing should be named")
    parser.add_argument("--cache", type=Path, default=Path(".bench/digits/judge"), help="folder of the trained judge")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        recordings = load_recordings(options.data, indices=HELD_OUT_INDICES)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    others = load_recordings(options.data, indices=CODEBOOK_INDICES)
    judge = DigitJudge.load_or_train(options.data, options.cache, seed=options.seed, indices=TRAIN_INDICES)
    rng = np.random.default_rng(options.seed)
    print(f"{len(recordings)} recordings that the judge has not heard, %")
    for what, clips, sample_rate in damaged(recordings, others, rng):
        figures = shares(judge.judge_batch(clips, sample_rate), recordings)
        print(f"{what:30s} " + "  ".join(f"{name} {100 * share:5.1f}" for name, share in figures.items()), flush=True)
    unknown = {"noise": [rng.normal(0, 0.1, SAMPLE_RATE // 2) for _ in range(100)]}
    if options.foreign:
        unknown["pieces of sentences"] = foreign(options.foreign, rng)
    for what, clips in unknown.items():
        heard = judge.judge_batch(clips, SAMPLE_RATE)
        words, voices = (100 * np.mean([v[place] is None for v in heard]) for place in range(2))
        print(f"{what:30s} no word {words:5.1f}  no voice {voices:5.1f}  of {len(clips)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
