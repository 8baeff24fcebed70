"""What `myxtts doctor --workers …` finds: whether workers reach each other and fit, and how fast they sum gradients."""

import time
from collections.abc import Iterator

from myxtts.config.config import XTTSConfig
from myxtts.config.model import ModelConfig
from myxtts.config.sizes import MODEL_SIZES
from myxtts.data.corpora import load_corpus
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.distributed.meeting import join_workers
from myxtts.distributed.workers import Workers, leaving_together
from myxtts.memory.estimates import count_gpt
from myxtts.storage.files import new_hasher

SIZES_MB = (1, 4, 16, 64, 256)
"""Of the sums that are measured."""
REPEATS = 5
TEXT_TOKENS = 5000
"""Of the vocabulary of the model that shares are expected for; fewer change little."""
MESSAGES = 50
MB = 2**20
CLOCK_LIMIT_SECONDS = 5.0
"""Difference of two clocks that is worth a line: logs would be hard to compare."""


def examine_workers(config: XTTSConfig) -> list[str]:
    """Meets the other workers, compares and measures; to be called on all of them at once.

    Args:
        config: With `training.workers` and `training.worker_index`, and `data.train_data` if recordings are to be
            compared.

    Returns:
        Lines for the user; the other workers get those that worker 0 measured.

    Raises:
        UserError: A worker cannot be reached or does not fit: other code, versions, devices or recordings.
    """
    training = config.training
    plan = early_gpu_configuration(config.data.data_gpu, config.data.model_gpu)
    joined = training.workers, training.worker_index, plan, {}, training.worker_timeout_seconds
    workers = join_workers(*joined)
    with leaving_together(workers):
        lines = [f"All {workers.count} workers are there, with the same code and versions, on {plan.model_device} each"]
        if config.data.train_data:
            way_out = "Give each a copy of one data set in --train-data."
            found = _digest(config.data.train_data)
            workers.require_equal("recordings", found, way_out)
            lines.append(f"Recordings: the same {found[0]} on all, by name and size (digest {found[1]})")
        lines += [*_clocks(workers), *_messages(workers), *_sums(workers, training.worker_timeout_seconds)]
        lines = workers.tell(lines)
        workers.close()
    return lines


def _digest(folder):
    hasher, clips = new_hasher(), load_corpus(folder).utterances
    for clip in clips:
        size = clip.wav_path.stat().st_size if clip.wav_path.is_file() else -1
        hasher.update(f"{clip.id}|{clip.text}|{size}\n".encode())
    return [len(clips), hasher.hexdigest()[:12]]


def _clocks(workers: Workers):
    workers.gather()
    times = workers.gather(time.time())
    worst = max(range(workers.count), key=lambda index: abs(times[index] - times[0]))
    apart = abs(times[worst] - times[0])
    warning = " Their logs are hard to compare: set the clocks." if apart > CLOCK_LIMIT_SECONDS else ""
    return [f"Clocks: at most {apart:.1f} s apart (worker {worst}).{warning}"]


def _messages(workers):
    began = time.perf_counter()
    for _ in range(MESSAGES):
        workers.gather()
    return [f"A message to all and back: {1000 * (time.perf_counter() - began) / MESSAGES:.1f} ms"]


def _sums(workers, seconds_at_most):
    """A line for each size of what is summed over all workers."""
    from myxtts.training.watching.measurement import seconds_of_sum

    measured = {}
    workers.watch(seconds_at_most)
    for size in SIZES_MB:
        seconds = measured[size] = seconds_of_sum(workers.strategy, size * MB, REPEATS)
        # Each worker sends and gets that share of the bytes in a ring.
        moved = 2 * (workers.count - 1) / workers.count * size
        yield f"Sum of {size} MB over all: {1000 * seconds:.1f} ms, {moved / seconds:.0f} MB/s through each worker"
    workers.watch(None)
    yield from expected_shares(measured)


def expected_shares(seconds: dict[int, float]) -> Iterator[str]:
    """What to expect of training, a line for each model size, from the seconds that sums of so many MB took."""
    (less, of_less), (more, of_more) = sorted(seconds.items())[-2:]
    for size in MODEL_SIZES:
        megabytes = 4 * count_gpt(ModelConfig(size=size, num_text_tokens=TEXT_TOKENS)) / MB
        # On the line through the two largest: what a sum takes besides its bytes counts little there.
        took = max(0.0, of_more + (of_more - of_less) / (more - less) * (megabytes - more))
        told = f"Gradients of the GPT, {size}: {megabytes:.0f} MB, {1000 * took:.0f} ms to sum"
        yield f"{told}; a tenth of steps of {10 * took:.1f} s (--grad-accum makes steps longer)"
