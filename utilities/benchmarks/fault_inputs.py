"""Damaged checkpoints and generated lists and WAV files, for `faults.py`. Everything is drawn from a seed."""

import random
import shutil
import signal
import struct
from collections import Counter

import numpy as np

from myxtts.data.corpora import CorpusError, load_corpus
from myxtts.data.doctor import ClipLimits, inspect_corpus
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore

DAMAGES = ("cut short", "bit flipped", "file removed")
LINES_A_FOLDER = 200
LONGEST_FOLDER_SECONDS = 120
LETTERS = (
    "abc xyz ÄÖü ß é ñ чп سلام پ\u200cگ ሰላም 你好 한글 "
    "'\"`,;:!?()[]{}<>#%&*+-=/\\~^_@$\t\x0b\x0c\x1c\u2028\ufeff\ufffd\x00\x07😀"
)
CHUNKS = (b"LIST", b"fact", b"JUNK", b"data", b"fmt ", b"bext", b"\0\0\0\0")


def damage_checkpoints(folder, count, seed):
    """Damages the newer of two checkpoints `count` times. Returns rows and whether the older was used each time."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    sound, faults, kinds = CheckpointStore(folder / "sound"), [], Counter()
    for step in (1, 2):
        tensors = {
            name: {
                f"{name}/{i}": numbers.standard_normal(size).astype(np.float32)
                for i, size in enumerate((3, 700, (40, 50), ()))
            }
            for name in ("model", "optimizer")
        }
        sound.write(step, tensors, {"finished": False, "history": [{"step": step, "mel": 1.25}]})
    for number in range(count):
        store = CheckpointStore(folder / "damaged")
        shutil.rmtree(store.folder, ignore_errors=True)
        shutil.copytree(sound.folder, store.folder)
        kind = DAMAGES[number % len(DAMAGES)]
        file = draw.choice(sorted(store.path(2).iterdir()))
        content = bytearray(file.read_bytes())
        place = draw.randrange(len(content))
        what = f"{kind}: {file.name} at {place}"
        if kind == "file removed":
            file.unlink()
        elif kind == "cut short":
            file.write_bytes(content[:place])
        else:
            content[place] ^= 1 << draw.randrange(8)
            file.write_bytes(content)
        kinds[kind] += 1
        try:
            CheckpointStore(store.folder).read(2, ("model", "optimizer"))
            faults.append(f"{what}: loaded")
        except CheckpointError:
            pass
        said = []
        used = store.newest_sound(said.append)
        if used != 1 or len(said) != 1 or "step_00000002" not in said[0] or store.steps() != [1]:
            faults.append(f"{what}: step {used} used, said {said}")
    print("\n".join(faults[:20]), end="\n" * bool(faults), flush=True)
    return [
        [
            "checkpoint damaged",
            ", ".join(f"{number} {kind}" for kind, number in kinds.items()),
            f"{count - len(faults)} noticed and the one before used",
            str(count),
        ]
    ], not faults


def judge_inputs(folder, count, seed):
    """Inspects `count` generated lines with a WAV file each. Returns rows and whether all are accounted for."""
    draw = random.Random(seed)
    given = accepted = rejected = whole = 0
    reasons, faults = Counter(), []

    def hangs(number, frame):
        raise TimeoutError(f"{LONGEST_FOLDER_SECONDS} s for {LINES_A_FOLDER} clips")

    signal.signal(signal.SIGALRM, hangs)
    for number in range(-(-count // LINES_A_FOLDER)):
        corpus_folder = folder / str(number)
        lines = _write_folder(corpus_folder, draw, min(LINES_A_FOLDER, count - number * LINES_A_FOLDER))
        given += lines
        signal.alarm(LONGEST_FOLDER_SECONDS)
        try:
            corpus = load_corpus(corpus_folder)
            inspection = inspect_corpus(corpus, ClipLimits(max_seconds=5.0), workers=2)
        except CorpusError as error:
            whole += lines
            reasons[str(error).replace(str(corpus_folder), "").split(":")[0][:60]] += lines
        else:
            # A first line that names columns is told in a note and is no clip.
            lines -= corpus.format == "header"
            given -= corpus.format == "header"
            accepted += len(inspection.accepted)
            rejected += len(inspection.rejections)
            reasons.update(rejection.reason for rejection in inspection.rejections)
            if lines != len(inspection.accepted) + len(inspection.rejections):
                faults.append(f"folder {number}: {lines} lines, {inspection.given} accounted for")
        signal.alarm(0)
        shutil.rmtree(corpus_folder)
    print("\n".join([*faults[:20], *(f"  {reason}: {number}" for reason, number in reasons.most_common())]), flush=True)
    ok = not faults and given == accepted + rejected + whole
    return [
        [
            "generated lines and WAV headers",
            f"{given} clips",
            f"{accepted} accepted + {rejected} rejected for {len(reasons)} reasons + {whole} in lists refused as a "
            f"whole = {accepted + rejected + whole}; no traceback, no hang",
            f"{given}",
        ]
    ], ok


def _write_folder(folder, draw, count):
    """Writes a list of `count` lines and as many WAV files; returns the number of lines, counted by their ends."""
    (folder / "wavs").mkdir(parents=True)
    end = draw.choice(("\n", "\r\n", "\n", "\n"))
    lines = [_line(draw, number) for number in range(count)]
    if draw.random() < 0.1:
        lines.insert(0, "id|text|normalized_text")
    for number in range(count):
        (folder / "wavs" / f"{number:03d}.wav").write_bytes(_wav(draw))
    encoding = draw.choices(("utf-8", "utf-8-sig", "utf-16", "latin-1"), (80, 10, 7, 3))[0]
    text = end.join(lines) + end
    (folder / "metadata.csv").write_bytes(text.encode(encoding, "replace"))
    return len(text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n"))


def _text(draw, longest):
    return "".join(draw.choice(LETTERS) for _ in range(draw.randrange(longest)))


def _line(draw, number):
    name = draw.choices(
        (
            f"{number:03d}",
            f"{number:03d}.wav",
            f"wavs/{number:03d}",
            f"{draw.randrange(200):03d}",
            "../" * draw.randrange(1, 5) + "etc/passwd",
            "/etc/passwd",
            "..\\x",
            _text(draw, 9),
            "a" * 600,
        ),
        (70, 3, 3, 5, 3, 1, 1, 10, 1),
    )[0]
    text = draw.choices(
        (draw.choice(("one", "two", "six")), _text(draw, 40), _text(draw, 3), "word " * 5000, "x" * 70_000),
        (70, 20, 8, 1, 0.2),
    )[0]
    cells = [name, text, draw.choice(("", text, _text(draw, 20)))]
    line = "|".join(cells[: draw.choices((1, 2, 3), (3, 10, 87))[0]] + ["more"] * (draw.random() < 0.03))
    return (
        draw.choices((line, "", "#" + line, line.replace("|", "\t")), (94, 2, 2, 2))[0]
        .replace("\r", "")
        .replace("\n", "")
    )


def _wav(draw):
    """A WAV file whose header is right, or wrong in one or several places, or of random chunks."""
    rate = draw.choices(
        (22050, 16000, 8000, 48000, 0, 1, 3999, 2**31, 2**32 - 1, draw.randrange(2**32)),
        (50, 10, 10, 10, 1, 1, 1, 1, 1, 5),
    )[0]
    channels = draw.choices((1, 2, 0, 8, 9, 65535), (80, 10, 1, 1, 1, 1))[0]
    tag, bits = draw.choices(
        ((1, 16), (1, 24), (3, 32), (1, 8), (7, 8), (1, 0), (0xFFFE, 16), (draw.randrange(65536), 16)),
        (60, 8, 8, 5, 5, 3, 3, 5),
    )[0]
    frames = draw.choices((4000, 12000, 0, 1, 30000), (60, 20, 3, 3, 5))[0]
    wave = (
        0.3
        * np.sin(np.arange(frames * max(1, min(channels, 8))) * draw.uniform(0.02, 0.2))
        * draw.choice((1,) * 19 + (0,))
    )
    if (tag, bits) == (3, 32):
        wave[:1] = draw.choice((0.0, 0.0, np.nan, np.inf, 1e30))
        samples = wave.astype("<f4").tobytes()
    elif bits == 24:
        samples = (wave * 8e6).astype("<i4").view("u1").reshape(-1, 4)[:, :3].tobytes()
    else:
        samples = (wave * 32767).astype("<i2").tobytes() if bits != 8 else ((wave + 1) * 127).astype("u1").tobytes()
    width = max(1, bits // 8) * channels
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * width % 2**32, width % 65536, bits)
    claimed = draw.choices(
        (len(samples), 0, len(samples) * 2, 2**32 - 1, 2**31, draw.randrange(2**32)), (80, 2, 4, 2, 2, 5)
    )[0]
    extra = b"".join(
        draw.choice(CHUNKS) + struct.pack("<I", draw.choice((0, 4, 2**32 - 1, 2**31))) + b"abcd"
        for _ in range(draw.choices((0, 1, 3), (90, 7, 3))[0])
    )
    content = bytearray(
        b"RIFF"
        + struct.pack("<I", draw.choice((36 + len(samples), 0, 2**32 - 1)))
        + b"WAVE"
        + extra
        + b"fmt "
        + struct.pack("<I", 16)
        + fmt
        + b"data"
        + struct.pack("<I", claimed)
        + samples
    )
    for _ in range(draw.choices((0, 1, 5), (75, 20, 5))[0]):
        content[draw.randrange(44)] = draw.randrange(256)
    return bytes(content if draw.random() < 0.95 else content[: draw.randrange(len(content))])
