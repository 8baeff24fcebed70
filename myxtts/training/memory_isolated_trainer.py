"""The trainer under memory isolation, data and model work each within a hard limit: a door, which no room imports."""

import tensorflow as tf

from myxtts.data.pipeline import prefetch_to
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.training.loop.device_pipeline import prefetch_depth
from myxtts.training.trainer import XTTSTrainer


class MemoryIsolatedDualGPUTrainer(XTTSTrainer):
    """`XTTSTrainer` on two devices with a memory limit each: a producer on one, the train step on the other.

    To be made before TensorFlow's devices are initialized, unless the isolated plan for this pair is applied already
    (as `train_main.py --enable-memory-isolation` does). One GPU may play both roles.

    Args:
        config, model, resume_checkpoint: As in `XTTSTrainer`.
        data_gpu_id, model_gpu_id: GPUs that prepare data and train, among those this process may see.
        data_gpu_memory_limit, model_gpu_memory_limit: Their hard limits, MB.
        plan: An isolated `DevicePlan` that is applied already; the GPUs and limits are then taken from it.
        stage_options: Keyword arguments of `XTTSTrainer`: `stage`, `foundations`, ...

    Raises:
        DeviceError: The pair cannot be had, or TensorFlow's devices are initialized; the message says what to do.
    """

    def __init__(
        self,
        config,
        data_gpu_id,
        model_gpu_id,
        data_gpu_memory_limit=8192,
        model_gpu_memory_limit=16384,
        model=None,
        resume_checkpoint=None,
        *,
        plan=None,
        **stage_options,
    ):
        if plan is None:
            limits = dict(data_gpu_memory=data_gpu_memory_limit, model_gpu_memory=model_gpu_memory_limit)
            plan = early_gpu_configuration(data_gpu_id, model_gpu_id, memory_isolation=True, **limits)
        super().__init__(config, model, resume_checkpoint, plan=plan, **stage_options)

    @property
    def step_times(self) -> list[float]:
        """Seconds of each step so far, without the first few, which trace and compile."""
        return self.clock.step_times

    def optimize_dataset_for_dual_gpu(
        self, dataset: tf.data.Dataset, prefetch_buffer_size: int | None = 4
    ) -> tf.data.Dataset:
        """Lets tf.data read in parallel and ends the dataset in a buffer on the data device.

        The order of the elements stays what it is: a run is resumed by position.

        Args:
            dataset: On the host. Nothing may be mapped or batched after this: it would move the elements back there.
            prefetch_buffer_size: Batches in that buffer; None takes as many as in training, see `prefetch_depth`.
        """
        if prefetch_buffer_size is None:
            prefetch_buffer_size = prefetch_depth(self.config, self.plan, self.stage.name)
        options = tf.data.Options()
        for optimization in ("parallel_batch", "map_fusion", "map_parallelization"):
            setattr(options.experimental_optimization, optimization, True)
        options.autotune.enabled = True
        return prefetch_to(dataset.with_options(options), self.data_device, prefetch_buffer_size)
