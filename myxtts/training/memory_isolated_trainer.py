"""`MemoryIsolatedDualGPUTrainer`, the public trainer with GPU memory limits. Only user code imports this module."""

import tensorflow as tf

from myxtts.data.pipeline import prefetch_to
from myxtts.devices.configuration import early_gpu_configuration
from myxtts.training.loop.device_pipeline import prefetch_depth
from myxtts.training.trainer import XTTSTrainer


class MemoryIsolatedDualGPUTrainer(XTTSTrainer):
    """`XTTSTrainer` on two devices with hard memory limits: one device prepares data, the other one trains.

    Must be created before TensorFlow initializes its devices. If this process has already configured the devices (as
    `train_main.py --enable-memory-isolation` does), use the same GPUs and limits. Both devices may be on one GPU.

    Args:
        config, model, resume_checkpoint: See `XTTSTrainer`.
        data_gpu_id, model_gpu_id: Indices (among the visible GPUs) of the GPU for data and of the GPU for training.
        data_gpu_memory_limit, model_gpu_memory_limit: GPU memory limits in MB for data preparation and training.
        stage_options: Other keyword arguments of `XTTSTrainer`, such as `stage`.

    Raises `DeviceError` if the GPUs are not available, or TensorFlow's devices are already initialized.
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
        **stage_options,
    ):
        limits = dict(data_gpu_memory=data_gpu_memory_limit, model_gpu_memory=model_gpu_memory_limit)
        plan = early_gpu_configuration(data_gpu_id, model_gpu_id, memory_isolation=True, **limits)
        super().__init__(config, model, resume_checkpoint, plan=plan, **stage_options)

    @property
    def step_times(self) -> list[float]:
        """Duration in seconds of each step so far, except the warm-up steps, which trace graphs."""
        return self.clock.step_times

    def optimize_dataset_for_dual_gpu(
        self, dataset: tf.data.Dataset, prefetch_buffer_size: int | None = 4
    ) -> tf.data.Dataset:
        """Returns `dataset` with parallel execution and prefetching to the data device. The order is not changed.

        Args:
            dataset: Data set on the host. Later `map` or `batch` calls on the result move elements back to the host.
            prefetch_buffer_size: Number of batches to prefetch; None means the number that training prefetches.
        """
        if prefetch_buffer_size is None:
            prefetch_buffer_size = prefetch_depth(self.config, self.plan, self.stage.name)
        options = tf.data.Options()
        for optimization in ("parallel_batch", "map_fusion", "map_parallelization"):
            setattr(options.experimental_optimization, optimization, True)
        options.autotune.enabled = True
        return prefetch_to(dataset.with_options(options), self.data_device, prefetch_buffer_size)
