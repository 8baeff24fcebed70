"""Public names of the package, for editors and type checkers; `__init__.py` imports a name when it is first used."""

from myxtts.api import from_preset as from_preset
from myxtts.api import load as load
from myxtts.api import plan as plan
from myxtts.api import train as train
from myxtts.apps.datasets.command import make_dataset as make_dataset
from myxtts.apps.evaluation.command import evaluate as evaluate
from myxtts.config.checks import UserError as UserError
from myxtts.config.config import DataConfig as DataConfig
from myxtts.config.config import ModelConfig as ModelConfig
from myxtts.config.config import SamplingConfig as SamplingConfig
from myxtts.config.config import TrainingConfig as TrainingConfig
from myxtts.config.config import XTTSConfig as XTTSConfig
from myxtts.inference.loading import save_to_preset as save_to_preset
from myxtts.inference.synthesizer import Synthesizer as Synthesizer
from myxtts.interchange.hub import push as push
from myxtts.models.xtts import XTTS as XTTS
from myxtts.runs.run import Run as Run
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer as MemoryIsolatedDualGPUTrainer
from myxtts.training.trainer import XTTSTrainer as XTTSTrainer

__version__: str
