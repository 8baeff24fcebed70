"""Classes of the stages in `config.stages.STAGES`, by stage name. Add the class of a new stage here."""

from myxtts.training.stages.base import Stage
from myxtts.training.stages.decoder import DecoderStage
from myxtts.training.stages.dvae import DVAEStage
from myxtts.training.stages.gpt import GPTStage
from myxtts.training.stages.speaker import SpeakerStage

STAGE_CLASSES: dict[str, type[Stage]] = {one.name: one for one in (DVAEStage, GPTStage, SpeakerStage, DecoderStage)}
