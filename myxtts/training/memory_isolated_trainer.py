"""`MemoryIsolatedDualGPUTrainer`, the public trainer under memory limits; no other package imports it."""

import tensorflow as tf

from myxtts.data.pipeline import prefetch_to
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.training.loop.device_pipeline import prefetch_depth
from myxtts.training.trainer import XTTSTrainer


class MemoryIsolatedDualGPUTrainer(XTTSTrainer):
    """`XTTSTrainer` on two devices, each with a hard memory limit: one prepares data, the other trains.

    Must be created before TensorFlow initializes its devices, unless the same isolated plan is in effect already, as in
    `train_main.py --enable-memory-isolation`. Data and training may use the same GPU.

    Args:
        config, model, resume_checkpoint: See `XTTSTrainer`.
        data_gpu_id, model_gpu_id: GPUs that prepare data and train, among those visible to the process.
        data_gpu_memory_limit, model_gpu_memory_limit: Memory limits of these GPUs in MB.
        plan: Isolated `DevicePlan` that is in effect; GPUs and limits are then ignored.
        stage_options: Other keyword arguments of `XTTSTrainer`, such as `stage`.

    Raises:
        DeviceError: The GPUs are not available, or TensorFlow's devices are already initialized.
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
        """Seconds of each step so far, without the first steps, which trace."""
        return self.clock.step_times

    def optimize_dataset_for_dual_gpu(
        self, dataset: tf.data.Dataset, prefetch_buffer_size: int | None = 4
    ) -> tf.data.Dataset:
        """Turns on tf.data's parallel optimizations and prefetches to the data device; keeps the order of elements.

        Args:
            dataset: Data set on the host. Later `map` or `batch` calls on the result move its elements to the host.
            prefetch_buffer_size: Number of batches to prefetch; None prefetches as many as in training.
        """
        if prefetch_buffer_size is None:
            prefetch_buffer_size = prefetch_depth(self.config, self.plan, self.stage.name)
        options = tf.data.Options()
        for optimization in ("parallel_batch", "map_fusion", "map_parallelization"):
            setattr(options.experimental_optimization, optimization, True)
        options.autotune.enabled = True
        return prefetch_to(dataset.with_options(options), self.data_device, prefetch_buffer_size)
