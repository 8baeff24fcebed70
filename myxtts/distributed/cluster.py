"""TensorFlow's strategy over several workers."""

import logging

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from myxtts.devices.device_plan import DeviceError, DevicePlan
from myxtts.devices.kinds import runs_on_cpu, short_name

logger = logging.getLogger(__name__)


def make_strategy(addresses: tuple[str, ...], index: int, plan: DevicePlan) -> tf.distribute.Strategy:
    """`MultiWorkerMirroredStrategy` on the model devices of this worker's plan and those of the others.

    NCCL carries the gradients between GPUs, a ring over gRPC between CPUs. Blocks until every worker calls it; starts
    TensorFlow's runtime, so that it must come before anything else does. Its operations wait for ever for a worker that
    hangs; see `Workers.watch`.

    Raises:
        DeviceError: TensorFlow takes other devices, or its runtime has been started before.
    """
    kinds = tf.distribute.experimental.CommunicationImplementation
    implementation = kinds.RING if runs_on_cpu(plan.model_device) else kinds.NCCL
    # Without `timeout_seconds`: for each operation TensorFlow starts a thread that sleeps for so long, and some minutes
    # of training are more threads than a machine has.
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=index, rpc_layer="grpc"
    )

    def model_devices(extended, resolver, worker_device):
        kind = "CPU" if runs_on_cpu(plan.model_device) else "GPU"
        return tuple(f"{worker_device}/device:{name.strip('/')}" for name in plan.model_devices), kind

    # Left to itself it takes every GPU of a worker, the data GPU included, or the first CPU device.
    choose = CollectiveAllReduceExtended._initialize_local_devices
    CollectiveAllReduceExtended._initialize_local_devices = model_devices
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except RuntimeError as error:
        rule = "Workers must be joined before TensorFlow's devices are initialized"
        raise DeviceError(f"{rule}: call myxtts.train first thing in a process. TensorFlow says: {error}.") from error
    finally:
        CollectiveAllReduceExtended._initialize_local_devices = choose
    taken = tuple(short_name(device) for device in strategy.extended.worker_devices)
    if taken != plan.model_devices:
        raise DeviceError(f"The workers should train on {plan.model_devices} each, and TensorFlow took {taken}.")
    return strategy
