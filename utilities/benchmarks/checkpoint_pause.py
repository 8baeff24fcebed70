"""How long training waits for a checkpoint at size `small`: the copy to the host and steps slowed by the writing."""

import time
from statistics import median

from myxtts.config.config import DataConfig, ModelConfig, StageConfig, TrainingConfig, XTTSConfig
from myxtts.devices.configuration import plan_devices
from myxtts.training.watching.measurement import open_trainer, sync, take_step

STEPS_ALONE = 3
STEPS_WHILE_WRITING = 2


def measure(corpus, folder, steps_between):
    """Trains a few steps, saves, and trains on while the checkpoint is written.

    Args:
        corpus: Folder of recordings.
        folder: For the checkpoint.
        steps_between: Steps from one checkpoint to the next.

    Returns:
        The share of the time that is lost, and a row of the table in words.
    """
    training = TrainingConfig(gpt=StageConfig(max_steps=100), sample_every_steps=0)
    config = XTTSConfig(
        model=ModelConfig("small"),
        training=training,
        data=DataConfig(
            train_data=str(corpus), batch_size=8, num_buckets=1, augment=False, conditioning_seconds=(1.0, 1.0)
        ),
    )
    trainer, dataset = open_trainer(config, plan_devices(num_gpus=0), folder)
    with trainer.pipeline(dataset, 0, 100) as batches:

        def step():
            began = time.perf_counter()
            take_step(trainer, next(batches), trainer.state.position)
            sync()
            trainer.state.position += 1
            trainer.state.step += 1
            return time.perf_counter() - began

        step(), step()  # the first one traces
        alone = median(step() for _ in range(STEPS_ALONE))
        began, saved = time.perf_counter(), trainer.step
        trainer.save()
        pause = time.perf_counter() - began
        slowed = 0.0
        for _ in range(STEPS_WHILE_WRITING):
            slowed += max(0.0, step() - alone)
        trainer.checkpointer.writer.wait()
        written = time.perf_counter() - began
    size = sum(file.stat().st_size for file in trainer.store.path(saved).iterdir())
    lost = pause + slowed
    share = lost / (lost + steps_between * alone)
    return share, [
        "checkpoint at `small`",
        f"{size / 2**20:.0f} MB every {steps_between} steps of {alone:.2f} s",
        f"{100 * share:.4f} % of the time: pause {pause:.2f} s, later steps slower by {slowed:.2f} s in all, on "
        f"the disk after {written:.1f} s; 2 % would need steps under {1e3 * pause / 0.02 / steps_between:.0f} ms",
    ]
