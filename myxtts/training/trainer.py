"""`XTTSTrainer`, the public class for training one stage. Only user code imports this module."""

from collections.abc import Iterable
from dataclasses import replace

from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.devices.configuration import plan_for
from myxtts.devices.device_plan import DevicePlan
from myxtts.devices.machine import device_named
from myxtts.models.xtts import XTTS
from myxtts.runs.opening import StageAlone
from myxtts.storage.run_folder import own_run_folder
from myxtts.training.stage_trainer import StageTrainer


class XTTSTrainer(StageTrainer):
    """Trains one stage of XTTS on the recordings in `data.train_data`.

    Loads the recordings and creates the tokenizer. `train` first trains the models that this stage depends on, unless
    they are in `training.checkpoint_dir` or in `model`.

    Args:
        config: Configuration. `data.data_gpu` and `data.model_gpu` select the devices.
        model: Model to train, on the model device; must have the part that the stage trains. None creates a model.
        resume_checkpoint: Folder of the run to resume. None resumes the run in `training.checkpoint_dir`, if it has a
            checkpoint of the stage and `training.reset_training` is False.
        model_device: TensorFlow name of the device that trains; None takes it from `plan`.
        stage: Name of the stage; None means `training.stage`, or the GPT if that is `all`.
        plan: Devices that prepare data and train; None takes them from the configuration.
        options: `foundations` and `lineage` of `StageTrainer`. With `foundations`, `config` must be the configuration
            of a `SpeechDataset`, and `train` must be called with that data set.

    Raises:
        DeviceError: The configured devices are not available.
        UserError: A setting, the recordings, the model or a checkpoint cannot be used.
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
        super().__init__(config, stage, plan, model=model, resume_checkpoint=resume_checkpoint, **options)

    def train(self, dataset: SpeechDataset | None = None, callbacks: Iterable = ()) -> dict[str, float]:
        """Trains to the stage's last step; returns the last validation losses by name.

        Args:
            dataset: Data set; None opens the one named in the configuration.
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
