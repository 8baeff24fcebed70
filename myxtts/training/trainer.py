"""`XTTSTrainer`, which trains one stage from a configuration alone: a door above `runs`, which no room imports."""

from collections.abc import Iterable
from dataclasses import replace

from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_for
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.kinds import device_named
from myxtts.models.xtts import XTTS
from myxtts.runs.alone import StageAlone
from myxtts.storage.run_folder import own_run_folder
from myxtts.training.stage_trainer import StageTrainer


class XTTSTrainer(StageTrainer):
    """Trains one stage of XTTS.

    Made of a configuration alone, with `data.train_data`, it gets what it needs by itself: recordings and tokenizer
    when it is made; the scale of the mel bands, and the stages that its own builds on unless the run's folder or the
    model has them trained, in `train`.

    Args:
        config: As asked for. `data.data_gpu` and `data.model_gpu` name the devices.
        model: With the stage's part, made on the model device, which is then trained; None makes one.
        resume_checkpoint: Folder of the run to resume from; None takes `training.checkpoint_dir`, and starts fresh
            where that has no checkpoint of this stage.
        model_device, plan: None takes the plan for the configuration's devices, and its device.
        stage: None takes `training.stage`, and the GPT where that is `all`.
        options: `foundations` and more of `StageTrainer`, which is then all that there is: `train` is to be given the
            recordings, and `config` is theirs.

    Raises:
        DeviceError: The devices that the configuration names cannot be had.
        UserError: Something else that is needed cannot be had.
    """

    def __init__(
        self,
        config: XTTSConfig,
        model: XTTS | None = None,
        resume_checkpoint: str | None = None,
        model_device: str | None = None,
        *,
        stage: str | None = None,
        plan: DevicePlan | None = None,
        **options,
    ):
        plan = plan or plan_for(config.data.data_gpu, config.data.model_gpu)
        if model_device is not None:
            plan = replace(plan, model_devices=(device_named(model_device, "model_device"),))
        stage = stage or ("gpt" if config.training.stage == "all" else config.training.stage)
        self._alone = None
        if "foundations" not in options and (STAGES[stage].builds_on or not config.model.num_text_tokens):
            self._alone = StageAlone(config, stage, plan, model)
            config = self._alone.dataset.config
            options |= {"foundations": self._alone.foundations, "lineage": self._alone.lineage}
        options = {"foundations": {}, **options}
        super().__init__(config, stage, plan, model=model, resume_checkpoint=resume_checkpoint, **options)

    def train(self, dataset: SpeechDataset | None = None, callbacks: Iterable = ()) -> dict[str, float]:
        """Trains until the stage's last step; returns the last validation losses by name.

        Args:
            dataset: None takes the one that the configuration names.
            callbacks: Objects with any of the methods of `callbacks.Callback`.
        """
        if self._alone is None:
            return super().train(dataset or SpeechDataset.open(self.config), callbacks)
        with own_run_folder(self.config.training.checkpoint_dir):
            if not self._alone.train_missing(callbacks, self.stop_requested):
                return {}
            self.state.lineage = self._alone.lineage
            losses = super().train(dataset or self._alone.dataset, callbacks)
        self._alone.hand_over(self.config)
        return losses
