"""Connection of the workers through TensorFlow's runtime: distribution strategy, key-value store and health checks.

The store belongs to TensorFlow's coordination service, which runs in worker 0. Store and health checks have no public
interface, so this module uses `tensorflow.python.eager.context` (TensorFlow 2.21).
"""

import re

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager.context import context

from myxtts.config.checks import UserError
from myxtts.devices.device_plan import DeviceError, DevicePlan
from myxtts.devices.machine import runs_on_cpu

_JOB = "/job:worker/replica:0/task:"


class Cluster:
    """Connection to the other workers. Every worker must create a `Cluster` before TensorFlow's runtime starts.

    `addresses` lists the `host:port` of all workers, in the same order on every worker; this worker's address is
    `addresses[index]`. All workers must connect within `timeout_seconds`.

    Raises `UserError` if a worker is missing or cannot be reached, or the port is taken; `DeviceError` if TensorFlow's
    runtime has already started.
    """

    def __init__(self, addresses: tuple[str, ...], index: int, plan: DevicePlan, timeout_seconds: float):
        context().configure_coordination_service(
            "standalone",
            service_leader=f"{_JOB}0",
            cluster_register_timeout_in_ms=int(1000 * timeout_seconds),
            heartbeat_timeout_in_ms=60_000,  # longer than our own health checks, which name the lost worker
            coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=len(addresses))],
        )
        context().coordination_service.cluster_register_with_barrier = True
        try:
            self.strategy: tf.distribute.Strategy = _make_strategy(addresses, index, plan)
        except RuntimeError as error:
            raise DeviceError(f"myxtts.train must be called before TensorFlow starts. TensorFlow: {error}.") from error
        except tf.errors.OpError as error:
            late = re.findall(rf"^{_JOB}(\d+)", error.message.partition("timed out task names:")[2], re.MULTILINE)
            named = "".join(f" Worker {number} ({addresses[int(number)]}) is missing." for number in late)
            raise UserError(
                f"Worker {index} ({addresses[index]}) could not connect to all {len(addresses)} workers within "
                f"{timeout_seconds:.0f} s (training.worker_timeout_seconds).{named} Give each worker the "
                f"same --workers, its own --worker-index and a free port. TensorFlow: {error.message.splitlines()[0]}"
            ) from error

    def write(self, key: str, value: str) -> None:
        """Stores a value that all workers can read. Raises `ConnectionError` if worker 0 is gone or the key exists."""
        try:
            context().set_config_key_value(key, value)
        except tf.errors.OpError as error:
            raise ConnectionError(error.message) from error

    def read(self, key: str) -> str:
        """Waits until a key has a value and returns the value. Raises `ConnectionError` if the store cannot be read."""
        while True:
            try:
                return context().get_config_key_value(key, 1000)  # short, so that Python can handle Ctrl-C
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError as error:
                raise ConnectionError(error.message) from error

    def delete(self, key: str) -> None:
        """Removes `key` and all keys that begin with `key/`."""
        context().delete_config_key_value(key)

    def failure(self, index: int, seconds: float) -> str | None:
        """Returns None if worker `index` responds within `seconds`, else a description of the fault."""
        try:
            context().check_collective_ops_peer_health(f"{_JOB}{index}", timeout_in_ms=int(1000 * seconds))
        except tf.errors.DeadlineExceededError:
            return f"has not answered for {seconds:.0f} s"
        except tf.errors.OpError:
            return "is gone: it was killed, or its machine is down"
        return None


def _make_strategy(addresses, index, plan):
    """Creates a `MultiWorkerMirroredStrategy` on the plan's model devices. GPUs use NCCL; CPUs use ring all-reduce."""
    kind = "CPU" if runs_on_cpu(plan.model_device) else "GPU"
    # No `timeout_seconds`: TensorFlow would start a sleeping thread per operation and soon run out of threads.
    options = tf.distribute.experimental.CommunicationOptions(implementation="RING" if kind == "CPU" else "NCCL")
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, "", "worker", index, rpc_layer="grpc")

    def model_devices(extended, resolver, worker_device):
        return tuple(f"{worker_device}/device:{name.strip('/')}" for name in plan.model_devices), kind

    # TensorFlow's own choice is every GPU of a worker, including the data GPU, or the first CPU device.
    CollectiveAllReduceExtended._initialize_local_devices = model_devices
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
