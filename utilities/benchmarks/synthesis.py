"""How fast text becomes sound: whole sentences one by one against the engine, in turns in one process.

    python utilities/benchmarks/synthesis.py --sizes nano small --codes 96 --turns 3 --threads 2

For each size, with untrained weights: codes by a cache of the model's full length and a second pass of the GPT for the
latents ("before"); the engine, plain, compiled, and in ONNX Runtime with 8-bit weights; the time to the first sound.
Figures are medians over the turns, in CPU time and in wall-clock time; read their ratios, which come from one run, not
figures of different runs.
"""

import argparse
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402, I001

import myxtts  # noqa: E402, F401  settles what TensorFlow reads when it is imported
from myxtts.config.config import ModelConfig, SamplingConfig  # noqa: E402
from myxtts.inference.code_engine import CodeEngine, CodeStream, mark_text  # noqa: E402
from myxtts.inference.voices import Voice  # noqa: E402
from myxtts.inference.waveforms import LatentDecoder  # noqa: E402
from myxtts.interchange.onnx.steps import OnnxSteps  # noqa: E402
from myxtts.models.gpt import GPT  # noqa: E402
from myxtts.models.sampling import EXCLUDED, SamplingValues, gumbel_noise, sample  # noqa: E402
from myxtts.models.xtts import XTTS  # noqa: E402
from utilities.benchmarks.bench_extra import import_extra  # noqa: E402

NUM_TEXT_TOKENS = 300
SAMPLING = SamplingConfig()


class Before:
    """One loop to the end over a cache of the full length, and a second pass for the latents."""

    def __init__(self, gpt: GPT, config: ModelConfig):
        self.gpt, self.config = gpt, config
        self._draw, self._second_pass = tf.function(self._loop), tf.function(self._states)

    def __call__(self, texts: list[list[int]], voice: np.ndarray, count: int) -> list[np.ndarray]:
        """Latents `(count + 1, width)` of each text."""
        text = np.array([mark_text(ids, self.config) for ids in texts], np.int32)
        latents = np.repeat(voice, len(texts), axis=0)
        noise = np.stack([gumbel_noise(0, n, 0, count, self.config.num_audio_tokens) for n in range(len(texts))])
        codes = self._draw(latents, text, noise, tf.constant(count)).numpy()
        codes = np.pad(codes, ((0, 0), (0, 1)), constant_values=self.config.stop_audio_token)
        return [
            self._second_pass(voice, text[row : row + 1], codes[row : row + 1])[0].numpy() for row in range(len(texts))
        ]

    def _states(self, latents, text, codes):
        return self.gpt.codes_to_latents(latents, text, codes, self.config.start_audio_token)

    def _loop(self, latents, text, noise, count):
        gpt, config = self.gpt, self.config
        mask, never = tf.ones(tf.shape(text), tf.bool), tf.range(config.num_audio_tokens) == config.start_audio_token
        logits, _, state = gpt.prefill(latents, text, mask, config.start_audio_token, config.max_codes)
        num_prompt = tf.shape(state.key_mask)[1] - config.max_codes
        codes = tf.zeros((config.max_codes, tf.shape(text)[0]), tf.int32)
        seen = tf.zeros(tf.shape(logits), tf.bool)
        values = SamplingValues(*(getattr(SAMPLING, name) for name in SamplingValues._fields))

        def draw(i, codes, seen, logits, state):
            code = sample(tf.where(never, EXCLUDED, logits), values, seen, noise[:, i])
            codes = tf.tensor_scatter_nd_update(codes, [[i]], code[None])
            seen = seen | tf.cast(tf.one_hot(code, config.num_audio_tokens), tf.bool)
            logits, _, state = gpt.advance(code, i, num_prompt + i, state)
            return i + 1, codes, seen, logits, state

        drawn = tf.while_loop(lambda i, *rest: i < count, draw, (tf.constant(0), codes, seen, logits, state))
        return tf.transpose(drawn[1][:count])


def by_engine(engine: CodeEngine, texts: list[list[int]], voice: np.ndarray, count: int) -> list[CodeStream]:
    """The same by the engine."""
    streams = [engine.open(ids, voice, SAMPLING, 0, n, count) for n, ids in enumerate(texts)]
    engine.finish(streams)
    return streams


def same_beginning(streams: list[CodeStream], others: list[CodeStream]) -> float:
    """Share of codes before the first one that differs."""
    pairs = [np.array([one.codes, other.codes]) for one, other in zip(streams, others)]
    return float(np.mean([np.cumprod(one == other).mean() for one, other in pairs]))


def first_sound(engine: CodeEngine, decoder: LatentDecoder, ids: list[int], voice: Voice, count: int) -> np.ndarray:
    """The first samples of a streamed sentence, which is then given up."""
    stream, sound = engine.open(ids, voice.latents, SAMPLING, 0, 0, count, hurry=True), decoder.begin(voice)
    samples = np.zeros(0)
    while not len(samples):
        known = len(stream.codes)
        engine.wait(lambda: len(stream.codes) > known or not stream.active)
        samples = sound.more(stream.codes, stream.latents(), stream.finished)
    stream.cancel()
    return samples


def measure(forms: dict, turns: int) -> dict[str, tuple[float, float]]:
    """Median CPU and wall seconds of each form, which take turns; the first turn, which traces, does not count."""
    found = defaultdict(list)
    for turn in range(turns + 1):
        for name, form in forms.items():
            wall, cpu = time.perf_counter(), time.process_time()
            form()
            if turn:
                found[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: tuple(map(median, zip(*times))) for name, times in found.items()}


def bench(size: str, batches: list[int], count: int, turns: int, threads: int) -> None:
    """Prints the figures of one size."""
    keras.utils.set_random_seed(0)
    config = ModelConfig(size, num_text_tokens=NUM_TEXT_TOKENS)
    model = XTTS(config, parts=("gpt", "decoder"))
    bias = model.gpt.audio_head.bias
    bias.assign(np.where(np.arange(config.num_audio_tokens) == config.stop_audio_token, -1e9, 0.0))  # never ends
    random = np.random.default_rng(0)
    voice = Voice(
        random.standard_normal((1, config.num_latents, config.width)).astype("float32"),
        random.standard_normal((1, config.speaker_width)).astype("float32"),
    )
    before, plain, compiled = Before(model.gpt, config), *(CodeEngine(model.gpt, config, xla) for xla in (False, True))
    onnx = CodeEngine(model.gpt, config, onnx_steps=OnnxSteps(model.gpt, config, threads=threads))
    decoder = LatentDecoder(model)
    for batch in batches:
        texts = [random.integers(4, NUM_TEXT_TOKENS, 60).tolist() for _ in range(batch)]
        forms = {
            "before": lambda: before(texts, voice.latents, count),
            "engine, plain": lambda: by_engine(plain, texts, voice.latents, count),
            "engine, XLA": lambda: by_engine(compiled, texts, voice.latents, count),
            "engine, ONNX": lambda: by_engine(onnx, texts, voice.latents, count),
        }
        expected, *others, of_8_bits = (form() for form in forms.values())
        differences = [max(np.abs(a - b.latents()).max() for a, b in zip(expected, other)) for other in others]
        times = measure(forms, turns)
        print(
            f"\n{size}, batch {batch}, {count} codes; latents differ from the second pass's by {max(differences):.1e}; "
            f"8-bit weights: {100 * same_beginning(others[0], of_8_bits):.0f} % of codes before the first that differs"
        )
        for name, (cpu, wall) in times.items():
            ratios = times["before"][0] / cpu, times["before"][1] / wall
            rate = batch * count / wall
            print(f"  {name:14} {1000 * cpu / count:7.1f} ms CPU/step {rate:7.0f} codes/s wall", end="")
            print(f"   {ratios[0]:.2f}x CPU {ratios[1]:.2f}x wall")
    ids = texts[0]

    def whole():
        (latents,) = before([ids], voice.latents, count)
        return decoder.begin(voice).more([0] * count, latents, True)

    forms = {"whole sentence, before": whole}
    for name, engine in (("first sound, plain", plain), ("first sound, XLA", compiled), ("first sound, ONNX", onnx)):
        forms[name] = lambda engine=engine: first_sound(engine, decoder, ids, voice, count)
    times = measure(forms, turns)
    for name, (cpu, wall) in times.items():
        print(f"  {name:24} {1000 * cpu:8.0f} ms CPU {1000 * wall:8.0f} ms wall ({config.decoder_type})")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["nano", "small"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--codes", type=int, default=96)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    import_extra("onnx")
    import_extra("onnxruntime")
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    for size in arguments.sizes:
        bench(size, arguments.batches, arguments.codes, arguments.turns, arguments.threads)


if __name__ == "__main__":
    main()
