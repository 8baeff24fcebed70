"""How a front end follows a run."""

from myxtts.config.config import XTTSConfig
from myxtts.devices.device_plan import DevicePlan


class RunListener:
    """Methods that a run calls; a listener has those that it needs, in the thread of `Run.train`.

    It may also have any method of `training.callbacks.Callback`, which tell the steps of each stage.
    """

    def on_pipeline(self, config: XTTSConfig, plan: DevicePlan):
        """The run has its folder and its devices."""

    def on_inspection(self, done: int, total: int):
        """So many of the recordings have been checked."""

    def on_corpus(self, dataset):
        """The recordings have been read: a `data.dataset.SpeechDataset`."""

    def on_stage_skipped(self, stage: str):
        """The stage was trained already."""

    def on_stage(self, stage: str, order):
        """The stage is next; `order` is the `data.buckets.BatchOrder` of its batches."""

    def on_set_aside(self, stage: str, folder):
        """Earlier checkpoints of the stage were moved into a folder, for it starts anew."""

    def on_stopped(self, stage: str):
        """The run stops in this stage, as it was asked to."""

    def on_finished(self, dataset):
        """All stages that were asked for are trained."""
