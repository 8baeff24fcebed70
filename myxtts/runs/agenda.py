"""What a run will do to each stage, settled and printed before it begins: from which step to which, or why not."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from myxtts.config.checks import UserError, counted
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
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
    """What is done to one stage."""

    stage: str
    step: int | None
    """Optimizer steps taken so far; None where it starts from the first."""
    total: int
    """Steps that are asked for."""
    finished: bool = False
    """Whether it was trained to an end before."""
    needed_by: tuple[str, ...] = ()
    """Stages that were trained on its weights as they are: training it further would make those useless."""
    stays: str = ""
    """Why it cannot continue, besides `needed_by`, as the end of a sentence; empty where it can."""
    origin: str | None = None
    """Where a fresh start takes its weights from, if not from random ones."""

    @property
    def trains(self) -> bool:
        """Whether the stage is opened for training, be it only to declare it finished."""
        return self.step is None or not self.finished or (self.step < self.total and self.can_continue)

    @property
    def can_continue(self) -> bool:
        """Whether more steps, where they are asked for, would be trained."""
        return not (self.needed_by or self.stays)

    def describe(self) -> str:
        """A sentence or two for the user, before it happens."""
        if self.step is None:
            doing = f"steps 1 to {self.total}" + (f", from the weights in {self.origin}" if self.origin else "")
        elif self.trains and self.step >= self.total:
            doing = f"ends as it is, at step {self.step}, as {self.total} were asked for"
        elif self.trains:
            verb = "was trained for" if self.finished else "stopped after"
            doing = f"{verb} {counted(self.step, 'step')} and continues to step {self.total}"
        else:
            doing = f"already trained, {self.stays or counted(self.step, 'step')}"
            if not self.stays and self.step < self.total:
                doing += (
                    f". Not extended to {self.total}, because {_trained_on_it(self)}.\n  {_starts_over(self.stage)}"
                )
        return f"Stage {self.stage}: {doing}"


def describe_works(works: Sequence[StageWork]) -> str:
    """What the user reads before it happens, a line or two for each stage."""
    lines = [work.describe() for work in works]
    if not any(work.trains for work in works):
        more = listed([work.stage for work in works if work.can_continue])
        hint = f"Raise --max-steps to continue with {more}, or use" if more else "Use"
        lines.append(f"Already trained. {hint} --reset-training to start over.")
    return "\n".join(lines)


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _trained_on_it(work):
    return f"{listed(work.needed_by)} {'was' if len(work.needed_by) == 1 else 'were'} trained on it"


def _starts_over(stage):
    return f"--reset-training --stage {stage} starts it over and sets aside what depends on it"


def make_agenda(
    config: XTTSConfig, dataset: SpeechDataset, reset: Sequence[str] = (), taken: Sequence[str] = ()
) -> list[StageWork]:
    """Settles what a run does to each stage. Only damaged checkpoints of the run are moved, out of the way.

    Args:
        config: With what the run began from in `training.init_from`.
        dataset: For the number of batches of an epoch.
        reset: Stages that start over, whatever there is.
        taken: Finished parts that the run is about to take from `training.init_from`.

    Raises:
        UserError: A stage was asked for by name, and training it would make those useless that depend on it.
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
    # Without steps left it is opened all the same: it declares as finished what had stopped at this step.
    if work.step is not None and work.step < work.total and work.needed_by:
        asked = f"--stage {work.stage} (training.stage) would train it from step {work.step} to {work.total}"
        raise UserError(
            f"{asked}, and {_trained_on_it(work)} as it is now. Leave --stage out to train the last stage further; "
            f"{_starts_over(work.stage)}; another --checkpoint-dir leaves this run alone."
        )
    return [work]


def _work(config, stage, dataset, states, stores):
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
        else:  # its weights are another run's, which were trained on those of this stage
            needs = name in tuned and stage not in tuned
        needed_by += [name] * needs
    if state is None:
        origin = training.init_from if stage in tuned else None
        return StageWork(stage, None, total, needed_by=tuple(needed_by), origin=origin)
    stays = _stays(training, stage, states, stores)
    return StageWork(stage, state["step"], total, state["finished"], tuple(needed_by), stays)


def _stays(training, stage, states, stores):
    """See `StageWork.stays`."""
    state = states[stage]
    # Of another run, or of a stage that had nothing to learn: no step to continue from.
    if "position" not in state or state["step"] == 0 or TAKEN_FROM in state:
        return "and taken as it is"
    lineage, steps = state.get("lineage", {}), counted(state["step"], "step")
    below = [name for name in lineage if name in states and name not in STAGES[stage].follows]
    if others := [name for name in below if stores[name].digest(states[name]["step"]) != lineage[name]]:
        hint = f"--reset-training --stage {stage} trains it again on this run's"
        return f"{steps}, on another {' and '.join(others)}, so it stays as it is.\n  {hint}"
    detector = state.get("parts", {}).get("overtraining")
    with refusing_damage(f"{training.checkpoint_dir}/{stage}"):
        if 0 < training.evaluation_patience <= int(state.get("stale_evaluations", 0)):
            return f"{steps}: the evaluation had stopped improving; --evaluation-patience 0 continues it"
        if detector is not None and has_stopped(detector, training.overtraining_patience):
            return f"{steps}: the validation loss had risen; --overtraining-patience 0 continues it"
    return ""
