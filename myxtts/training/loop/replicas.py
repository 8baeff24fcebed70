"""Replicas on the model devices: where variables are created, and how batches are distributed."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

import keras
import tensorflow as tf

from myxtts.config.checks import require
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import short_name
from myxtts.distributed.workers import Workers, current_workers
from myxtts.models.layers.batch_normalization import BatchNormalization
from myxtts.training.loop.device_pipeline import copy_to

LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
)
"""Errors that a collective operation raises when a worker is lost."""


class Replicas:
    """Replicas on the model devices of this process and of the other workers, under one `tf.distribute` strategy."""

    def __init__(self, plan: DevicePlan):
        self.data_device, self.devices = plan.data_device, plan.model_devices
        """Devices of this process."""
        self.workers: Workers = current_workers()
        self.strategy: tf.distribute.Strategy = self.workers.strategy or (
            tf.distribute.OneDeviceStrategy(self.devices[0])
            if len(self.devices) == 1
            else tf.distribute.MirroredStrategy(list(self.devices), tf.distribute.ReductionToOneDevice())
        )

    @property
    def count(self) -> int:
        """Number of replicas of all workers together."""
        return self.strategy.num_replicas_in_sync

    def scope(self) -> ExitStack:
        """Context manager that creates variables on the model devices."""
        stack = ExitStack()
        stack.enter_context(self.strategy.scope())
        if self.count == 1:
            stack.enter_context(tf.device(self.devices[0]))
        return stack

    def adopt(self, model: keras.Model) -> None:
        """Prepares a model that was created outside of `scope` for training.

        Raises:
            ConfigError: The model is not on the model device, or there are several.
        """
        hint = "Save it with model.save_to_preset(FOLDER) and give training.init_from=FOLDER to myxtts.train()."
        require(self.count == 1, "model=", "trained on one device", f"{self.count} devices", hint)
        device, found = self.devices[0], {short_name(variable.value.device) for variable in model.variables}
        hint = f"Create it within tf.device({device!r})."
        require(found == {device}, "model=", f"on {device}", ", ".join(sorted(found)), hint)
        for variable in model.variables:
            # TensorFlow refuses optimizer variables for a variable without a strategy, even on the same device.
            variable.value._distribute_strategy = self.strategy

    def transfer(self, batch: NamedTuple) -> NamedTuple:
        """Copies a prepared batch to the model devices, in equal shards if there are several."""
        if len(self.devices) == 1:
            return copy_to(batch, self.devices[0])
        with tf.device(self.data_device):
            shards = equal_parts(batch, len(self.devices))
        return self.distribute([copy_to(shard, device) for shard, device in zip(shards, self.devices)])

    def distribute(self, shards: list):
        """Combines one batch per replica of this worker into a distributed value."""
        if len(shards) == 1:
            return shards[0]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: shards[context.replica_id_in_sync_group % len(shards)]
        )

    def share(self, variables: Iterable[tf.Variable], seconds: float) -> None:
        """Copies the chief's values of variables to all workers, whose processors may round differently.

        `seconds` is the waiting time limit for each variable.
        """
        for variable in variables:
            self.workers.watch(seconds)
            with tf.device(self.strategy.extended.worker_devices[0]):
                value = self.local(self._send(tf.constant(variable.numpy())))[0].numpy()
            variable.assign(value)
        self.workers.watch(None)

    @tf.function(reduce_retracing=True)
    def _send(self, value):
        def replica(own):
            context = tf.distribute.get_replica_context()
            sent = tf.where(context.replica_id_in_sync_group == 0, own, tf.zeros_like(own))
            return context.all_reduce("SUM", sent)

        return self.strategy.run(replica, (value,))

    def local(self, batch) -> tuple:
        """Shards of a batch, one per replica of this worker."""
        return self.strategy.experimental_local_results(batch)

    def split(self, batch, parts: int) -> list:
        """Splits a batch into equal parts, each distributed like the batch."""
        if parts == 1:
            return [batch]
        pieces = []
        for local, device in zip(self.local(batch), self.devices):
            with tf.device(device):
                pieces.append(equal_parts(local, parts))
        return [self.distribute([shard[part] for shard in pieces]) for part in range(parts)]


def equal_parts(batch: NamedTuple, count: int) -> list:
    """Splits the rows of a batch by slices, because `tf.split` has no GPU kernel for integers."""
    rows = len(batch[0]) // count
    return [type(batch)(*(field[rows * part : rows * (part + 1)] for field in batch)) for part in range(count)]


def synchronize_statistics(model: keras.Model) -> None:
    """Lets batch normalization take its statistics over the rows of all replicas."""
    for layer in model._flatten_layers():
        if isinstance(layer, BatchNormalization):
            layer.over_replicas = lambda value: tf.distribute.get_replica_context().all_reduce("SUM", value)
