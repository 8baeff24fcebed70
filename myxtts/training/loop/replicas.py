"""The devices that train, as one: where variables are made, and how a batch gets there."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import keras
import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.kinds import short_name
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
"""Errors of a collective operation when a worker is gone."""


class Replicas:
    """The model devices of a plan, and those of other workers, under their `tf.distribute` strategy."""

    def __init__(self, plan: DevicePlan):
        self.data_device, self.devices = plan.data_device, plan.model_devices
        """Of this process."""
        self.workers: Workers = current_workers()
        self.strategy: tf.distribute.Strategy = self.workers.strategy or (
            tf.distribute.OneDeviceStrategy(self.devices[0])
            if len(self.devices) == 1
            else tf.distribute.MirroredStrategy(list(self.devices), tf.distribute.ReductionToOneDevice())
        )

    @property
    def count(self) -> int:
        """Replicas of all workers together."""
        return self.strategy.num_replicas_in_sync

    def scope(self) -> ExitStack:
        """Context in which variables are made on the model devices."""
        stack = ExitStack()
        stack.enter_context(self.strategy.scope())
        if self.count == 1:
            stack.enter_context(tf.device(self.devices[0]))
        return stack

    def adopt(self, model: keras.Model) -> None:
        """Prepares a model that was made outside of `scope`, on the model device.

        Raises:
            ConfigError: It is elsewhere; or there are several devices, and it has no copy of its weights on each.
        """
        if self.count > 1:
            raise ConfigError(
                f"model= is for training on one device. Received: {self.count} devices. Save it with "
                "model.save_to_preset(FOLDER) and give training.init_from=FOLDER to myxtts.train()."
            )
        strays = {short_name(variable.value.device) for variable in model.variables} - set(self.devices)
        if strays:
            found, device = ", ".join(sorted(strays)), self.devices[0]
            raise ConfigError(f"model= must be on {device}. It is on {found}. Make it within tf.device({device!r}).")
        for variable in model.variables:
            # TensorFlow refuses optimizer variables for one that has no strategy, even on the same device.
            variable.value._distribute_strategy = self.strategy

    def transfer(self, batch: NamedTuple) -> NamedTuple:
        """A prepared batch of this worker on the model device; on several, split into equal shards."""
        if len(self.devices) == 1:
            return copy_to(batch, self.devices[0])
        with tf.device(self.data_device):
            shards = equal_parts(batch, len(self.devices))
        return self.distribute([copy_to(shard, device) for shard, device in zip(shards, self.devices)])

    def distribute(self, shards: list):
        """The strategy's value per replica of one batch each."""
        if len(shards) == 1:
            return shards[0]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: shards[context.replica_id_in_sync_group % len(shards)]
        )

    def share(self, variables: Iterable[tf.Variable], seconds: float) -> None:
        """Gives variables the chief's values, which other processors may have rounded differently.

        `seconds` is the longest wait for the other workers for each variable.
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

    @contextmanager
    def naming_who_is_lost(self) -> Iterator[None]:
        """Inside, a collective operation that fails because a worker is gone names it; see `Workers.part_of`."""
        try:
            yield
        except LOST_WORKER as error:
            self.workers.part_of(error)
            raise

    def local(self, batch) -> tuple:
        """The shards of a batch, one per replica of this worker."""
        return self.strategy.experimental_local_results(batch)

    def split(self, batch, parts: int) -> list:
        """A batch in so many equal parts, each distributed as the batch is."""
        if parts == 1:
            return [batch]
        pieces = []
        for local, device in zip(self.local(batch), self.devices):
            with tf.device(device):
                pieces.append(equal_parts(local, parts))
        return [self.distribute([shard[part] for shard in pieces]) for part in range(parts)]


def equal_parts(batch: NamedTuple, count: int) -> list:
    """The rows of a batch in so many equal parts. By slices, as `tf.split` has no GPU kernel for integers."""
    rows = len(batch[0]) // count
    return [type(batch)(*(field[rows * part : rows * (part + 1)] for field in batch)) for part in range(count)]


def synchronize_statistics(model: keras.Model) -> None:
    """Makes batch normalization take its statistics over the rows of all replicas, as on one device."""
    for layer in model._flatten_layers():
        if isinstance(layer, BatchNormalization):
            layer.over_replicas = lambda value: tf.distribute.get_replica_context().all_reduce("SUM", value)
