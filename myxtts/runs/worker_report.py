"""`myxtts doctor --workers …`: compares workers, and measures their network and the summing of gradients."""

import time

from myxtts.config.config import XTTSConfig
from myxtts.config.model import MODEL_SIZES, ModelConfig
from myxtts.data.corpora import load_corpus
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.distributed.workers import join_workers, leaving_together
from myxtts.memory.estimates import count_gpt
from myxtts.storage.files import new_hasher

SIZES_MB = (1, 4, 16, 64, 256)
"""Sizes of the measured sums."""
REPEATS = 5
TEXT_TOKENS = 5000
"""Vocabulary size in the estimated size of gradients."""
MESSAGES = 50
MB = 2**20


def examine_workers(config: XTTSConfig) -> list[str]:
    """Connects to the other workers, compares and measures them; call it on all workers at once.

    Returns lines for the user, as measured by worker 0. Recordings are compared if `data.train_data` is set.

    Raises:
        UserError: A worker cannot be reached, or has different code, versions, devices or recordings.
    """
    training = config.training
    plan = early_gpu_configuration(config.data.data_gpu, config.data.model_gpu)
    workers = join_workers(training.workers, training.worker_index, plan, {}, training.worker_timeout_seconds)
    with leaving_together(workers):
        lines = [f"All {workers.count} workers are connected, with the same code and versions, on {plan.model_device}"]
        if config.data.train_data:
            found = _digest(config.data.train_data)
            workers.require_equal("recordings", found, "Give each a copy of one data set in --train-data.")
            lines.append(f"Recordings: the same {found[0]} on all, by name, text and size (digest {found[1]})")
        workers.gather()
        times = workers.gather(time.time())
        lines.append(f"Clocks: at most {max(times) - min(times):.1f} s apart")
        began = time.perf_counter()
        for _ in range(MESSAGES):
            workers.gather()
        lines.append(f"A message to all and back: {1000 * (time.perf_counter() - began) / MESSAGES:.1f} ms")
        lines = workers.tell([*lines, *_sums(workers, training.worker_timeout_seconds)])
        workers.close()
    return lines


def _digest(folder):
    hasher, clips = new_hasher(), load_corpus(folder).utterances
    for clip in clips:
        size = clip.wav_path.stat().st_size if clip.wav_path.is_file() else -1
        hasher.update(f"{clip.id}|{clip.text}|{size}\n".encode())
    return [len(clips), hasher.hexdigest()[:12]]


def _sums(workers, timeout_seconds):
    """Yields a line for each measured sum, and for the gradients of each model size."""
    from myxtts.training.watching.measurement import seconds_of_sum

    workers.watch(timeout_seconds)
    for size in SIZES_MB:
        seconds = seconds_of_sum(workers.strategy, size * MB, REPEATS)
        # Bytes that each worker sends and receives in a ring all-reduce.
        rate = 2 * (workers.count - 1) / workers.count * size / seconds
        yield f"Sum of {size} MB over all: {1000 * seconds:.1f} ms, {rate:.0f} MB/s through each worker"
    workers.watch(None)
    for name in MODEL_SIZES:  # at the rate of the largest sum
        megabytes = 4 * count_gpt(ModelConfig(size=name, num_text_tokens=TEXT_TOKENS)) / MB
        milliseconds = 1000 * seconds * megabytes / SIZES_MB[-1]
        yield f"Gradients of the GPT, {name}: {megabytes:.0f} MB, {milliseconds:.0f} ms to sum"
