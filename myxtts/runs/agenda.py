"""Agenda of a run: the first and last step of each stage, or why it is not trained."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from myxtts.config.checks import UserError, counted
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.config.training import TUNABLE
from myxtts.data.dataset import SpeechDataset
from myxtts.runs.origin import tuned_stages
from myxtts.storage.checkpoint import CheckpointStore
from myxtts.storage.provenance import TAKEN_FROM, is_start
from myxtts.storage.saved_state import refusing_damage
from myxtts.training.loop.batching import with_batch
from myxtts.training.loop.optimizers import total_steps
from myxtts.training.watching.guards import has_stopped

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageWork:
    """Work on one stage."""

    stage: str
    step: int | None
    """Optimizer steps taken so far; None for a fresh start."""
    total: int
    """Requested number of steps."""
    finished: bool = False
    """Whether an earlier run trained it to the end."""
    needed_by: tuple[str, ...] = ()
    """Stages that were trained on its weights and would become unusable if they changed."""
    stays: str = ""
    """Reason other than `needed_by` why it cannot continue, as the end of a sentence; empty if it can."""
    origin: str | None = None
    """Source of the weights of a fresh start; None for random weights."""

    @property
    def trains(self) -> bool:
        """Whether the stage is opened for training, if only to mark it finished."""
        return self.step is None or not self.finished or (self.step < self.total and self.can_continue)

    @property
    def can_continue(self) -> bool:
        """Whether a higher number of steps would be trained."""
        return not (self.needed_by or self.stays)

    def describe(self) -> str:
        """Returns a description for the user."""
        if self.step is None:
            doing = f"steps 1 to {self.total}" + (f", from the weights in {self.origin}" if self.origin else "")
        elif self.trains and self.step >= self.total:
            doing = f"finished at step {self.step}, because {self.total} were requested"
        elif self.trains:
            verb = "was trained for" if self.finished else "stopped after"
            doing = f"{verb} {counted(self.step, 'step')} and continues to step {self.total}"
        else:
            doing = f"already trained, {self.stays or counted(self.step, 'step')}"
            if not self.stays and self.step < self.total:
                doing += f". Not extended to {self.total}, because {self._dependents}.\n  {self._restart}"
        return f"Stage {self.stage}: {doing}"

    @property
    def _dependents(self):
        return f"{listed(self.needed_by)} {'was' if len(self.needed_by) == 1 else 'were'} trained on it"

    @property
    def _restart(self):
        return f"--reset-training --stage {self.stage} starts it over and sets aside what depends on it"


def describe_works(works: Sequence[StageWork]) -> str:
    """Returns a description of the agenda for the user, a line or two per stage."""
    lines = [work.describe() for work in works]
    if not any(work.trains for work in works):
        more = listed([work.stage for work in works if work.can_continue])
        hint = f"Raise --max-steps to continue with {more}, or use" if more else "Use"
        lines.append(f"Already trained. {hint} --reset-training to start over.")
    return "\n".join(lines)


def listed(names: Sequence[str]) -> str:
    """Joins names as in `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def make_agenda(
    config: XTTSConfig, dataset: SpeechDataset, reset: Sequence[str] = (), taken: Sequence[str] = ()
) -> list[StageWork]:
    """Settles the work on each stage. Damaged checkpoints are set aside; nothing else is changed.

    Args:
        reset: Stages to start over.
        taken: Finished parts that the run will take from `training.init_from`.

    Raises:
        UserError: Training the stage in `training.stage` would make stages that depend on it unusable.
    """
    training = config.training
    stores = {name: CheckpointStore(f"{training.checkpoint_dir}/{name}") for name in STAGES}
    states = {}
    for name, store in stores.items():
        step = None if name in reset else store.newest_sound(logger.warning)
        if name in taken:
            states[name] = {"step": 0, "finished": True, TAKEN_FROM: training.init_from}
        elif step is not None and not is_start(state := store.read_state(step)):
            states[name] = state
    if training.stage == "all":
        stages = [name for name in STAGES if name in states or name not in training.leave_out]
        return [_work(config, name, dataset, states, stores) for name in stages]
    work = _work(config, training.stage, dataset, states, stores)
    # Without steps left, the stage is opened to mark it finished.
    if work.step is not None and work.step < work.total and work.needed_by:
        if work.stage in taken:
            rule = f"--stage {work.stage} (training.stage) with --init-from needs --tune {','.join(TUNABLE)}"
            raise UserError(f"{rule}, because {work._dependents}.")
        raise UserError(
            f"--stage {work.stage} (training.stage) cannot be trained from step {work.step} to {work.total}, because "
            f"{work._dependents}. Leave --stage out to continue with the last stage, or give another --checkpoint-dir; "
            f"{work._restart}."
        )
    return [work]


def _work(config, stage, dataset, states, stores):
    """Settles the work on one stage, by the `states` of the newest checkpoints in `stores`."""
    state, training = states.get(stage), config.training
    tuned = tuned_stages(config) if training.init_from else []
    sizes = ((state or {}).get("parts") or {}).get("micro_batches")
    if training.automatic_batch_size and sizes:
        config = with_batch(config, stage, sizes["batch_size"], sizes["accumulation"])
    asked = config.stage(stage).max_steps
    batches = asked or replace(dataset, config=config).order(stage).batches_per_epoch
    total = total_steps(asked, training.epochs, batches, config.training.gradient_accumulation)
    needed_by = []
    for name in [name for name, entry in STAGES.items() if stage in {*entry.builds_on} - {*entry.follows}]:
        if state and name in states:
            built_on = states[name].get("lineage", {}).get(stage)
            needs = built_on is not None and built_on == stores[stage].digest(state["step"])
        else:  # `name` has another run's weights, which were trained on this stage
            needs = name in tuned and stage not in tuned
        needed_by += [name] * needs
    if state is None:
        origin = training.init_from if stage in tuned else None
        return StageWork(stage, None, total, needed_by=tuple(needed_by), origin=origin)
    stays = _stays(training, stage, states, stores)
    return StageWork(stage, state["step"], total, state["finished"], tuple(needed_by), stays)


def _stays(training, stage, states, stores):
    """Returns the reason for `StageWork.stays`."""
    state = states[stage]
    # Taken from another run, or without trainable weights: there is no step to continue from.
    if "position" not in state or state["step"] == 0 or TAKEN_FROM in state:
        return "and used as it is"
    lineage, steps = state.get("lineage", {}), counted(state["step"], "step")
    below = [name for name in lineage if name in states and name not in STAGES[stage].follows]
    if others := [name for name in below if stores[name].digest(states[name]["step"]) != lineage[name]]:
        hint = f"--reset-training --stage {stage} trains it again"
        return f"{steps}, on another {' and '.join(others)}, so it cannot continue.\n  {hint}"
    detector = state.get("parts", {}).get("overtraining")
    with refusing_damage(f"{training.checkpoint_dir}/{stage}"):
        if 0 < training.evaluation_patience <= int(state.get("stale_evaluations", 0)):
            return f"{steps}: the evaluation had stopped improving; --evaluation-patience 0 continues it"
        if detector is not None and has_stopped(detector, training.overtraining_patience):
            return f"{steps}: the validation loss had risen; --overtraining-patience 0 continues it"
    return ""
