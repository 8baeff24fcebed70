"""Sizes and inputs of the cases of `against_reference.py`, and the protocol of its workers.

Imports NumPy only, since it also runs in the reference's environment.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench_extra import answer_requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

from seeded_weights import seeded_integers, seeded_values  # noqa: E402

SAMPLE_RATE = 22050
NUM_TEXT_TOKENS = 6681
NUM_CODES = 1024
GPT_SIZES = {"small": dict(layers=4, width=256, heads=4), "medium": dict(layers=8, width=512, heads=8)}
NUM_LATENTS = 32
CLIP_SECONDS = 11
CONDITIONING_SECONDS = 6
REFERENCE_SECONDS = 12
REFERENCE_CHUNK_SECONDS = 4
VOCODER_CODES = 100
SPOKEN_SIZES = {**GPT_SIZES, "normal": dict(layers=16, width=768, heads=12)}
SPOKEN_CODES = 100
SPOKEN_TEXT_TOKENS = 60
SPOKEN_TOGETHER = 8
SPOKEN_SAMPLING = dict(temperature=0.75, top_k=50, top_p=0.85, repetition_penalty=10.0)
"""Sampling settings: the defaults of the reference."""


class Case(NamedTuple):
    """A computation on which MyXTTS and the reference are compared; it is a row of the table of results."""

    what: str
    """Title of the row."""
    kind: str
    """Name of the worker method that prepares the case."""
    arguments: tuple
    """Arguments of the worker method."""
    goal: float
    """Target speed-up: the reference's time divided by the time of MyXTTS."""
    tolerance: float
    """Difference above which output values count as different, relative to the reference's largest absolute value."""


CASES = {
    "features": Case(f"features and DVAE codes, 8 clips of {CLIP_SECONDS} s", "features", (), 1.5, 1e-3),
    "latents": Case(f"conditioning latents and speaker vector, {REFERENCE_SECONDS} s", "latents", (), 1.2, 1e-3),
    "vocoder": Case(f"waveform decoder, {VOCODER_CODES} codes", "vocoder", (), 1.2, 1e-2),
}
for _size in GPT_SIZES:
    for _name, _encoder, _told in (("", True, "with the conditioning encoder"), ("-latents", False, "latents given")):
        _case = Case(f"GPT train step, {_size}, {_told}", "gpt", (_size, _encoder), 1.3, 1e-3)
        CASES[f"gpt-{_size}{_name}"] = _case
for _size in SPOKEN_SIZES:
    for _engine in ("plain", "xla", "onnx32", "onnx"):
        _what = f"{_size}, {SPOKEN_CODES} codes, {_engine}"
        for _rows, _goal in ((1, 1.5), (8, 6.0)):
            _told = f"{_what}: {_rows} together, the reference one by one"
            CASES[f"codes-{_size}-{_rows}-{_engine}"] = Case(_told, "codes", (_size, _rows, _engine), _goal, 1e-3)
        for _decoder in ("hifigan", "istft"):
            for _kind, _told, _goal in (("chain", "to sound", 3.0), ("first", "first sound", 2.0)):
                _case = Case(f"{_what}, {_decoder}: {_told}", _kind, (_size, _engine, _decoder), _goal, 1e-3)
                CASES[f"{_kind}-{_size}-{_engine}-{_decoder}"] = _case


def gpt_inputs(width):
    """Returns text, codes, conditioning mel `(B, 80, F)` and latents `(B, 32, width)`, without padding."""
    return dict(
        text=seeded_integers("speed/text", (8, 60), NUM_TEXT_TOKENS - 300) + 300,
        codes=seeded_integers("speed/codes", (8, 200), NUM_CODES),
        mel=seeded_values("speed/mel", (8, 80, 1 + CONDITIONING_SECONDS * SAMPLE_RATE // 256)),
        latents=seeded_values("speed/latents", (8, NUM_LATENTS, width)),
    )


def noise(name, seconds, rows=1):
    """Returns noise of varying level at `SAMPLE_RATE`, `(rows, samples)` float32 in [-1, 1], seeded by `name`."""
    samples = seconds * SAMPLE_RATE // 1024 * 1024
    level = 0.02 + 0.2 * seeded_values(f"speed/{name}/level", (rows, samples // 1024)) ** 2
    return (level.repeat(1024, axis=1) * seeded_values(f"speed/{name}", (rows, samples))).clip(-1, 1).astype("float32")


def spoken_inputs(width):
    """Returns texts `(8, tokens)`, codes `(1, codes)`, latents `(1, 32, width)` and a speaker vector `(1, 512)`."""
    return dict(
        text=seeded_integers("speed/spoken", (SPOKEN_TOGETHER, SPOKEN_TEXT_TOKENS), NUM_TEXT_TOKENS - 300) + 300,
        codes=seeded_integers("speed/spoken_codes", (1, SPOKEN_CODES), NUM_CODES),
        latents=seeded_values("speed/spoken_latents", (1, NUM_LATENTS, width)),
        speaker=seeded_values("speed/speaker", (1, 512)) / 20,
    )


def vocoder_inputs():
    """Returns latents `(1, codes, 1024)` and a speaker vector `(1, 512)`."""
    return seeded_values("speed/vocoder", (1, VOCODER_CODES, 1024)), seeded_values("speed/speaker", (1, 512)) / 20


def serve(worker):
    """Runs a worker process, which answers three kinds of requests.

    `{"prepare": case}` builds a case and warms it up; the response has a sample of its output. `{"run": case}` runs it
    once; the response has the wall and CPU seconds. `{"forget": true}` frees the prepared cases.

    Args:
        worker: Object with a method for each `Case.kind`. The method returns two functions: the function to time, and
            a function that returns a NumPy array to compare.
    """
    prepared = {}

    def respond(request):
        if "prepare" in request:
            name = request["prepare"]
            run, output = getattr(worker, CASES[name].kind)(*CASES[name].arguments)
            values = output().reshape(-1)
            run()
            prepared[name] = run
            return {"size": values.size, "values": values[:: max(1, values.size // 1000)].tolist()}
        if "run" in request:
            run = prepared[request["run"]]
            began, began_cpu = time.perf_counter(), time.process_time()
            run()
            return {"wall": time.perf_counter() - began, "cpu": time.process_time() - began_cpu}
        prepared.clear()
        return {}

    answer_requests(lambda: respond)
