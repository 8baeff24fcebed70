"""What a run will do to each stage, settled and told before it is done: from which step to which, or why it stays."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from myxtts.training.resuming.state import changed_settings, data_digest
from myxtts.training.watching.guards import has_stopped

logger = logging.getLogger(__name__)

_STARTS_OVER = "starts it over and sets aside what depends on it"


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
    """Why more steps would not be trained, as the end of a sentence; empty where nothing else speaks against them."""
    origin: str | None = None
    """Where a fresh start takes its weights from, if not from random ones."""

    @property
    def trains(self) -> bool:
        """Whether the stage is opened for training, be it only to declare it finished."""
        if self.step is None or not self.finished:
            return True
        return self.step < self.total and self.can_continue

    @property
    def can_continue(self) -> bool:
        """Whether more steps, where they are asked for, would be trained."""
        return not (self.needed_by or self.stays)

    def describe(self) -> str:
        """A sentence or two for the user, before it happens."""
        if self.step is None:
            origin = f", from the weights in {self.origin}" if self.origin else ""
            return f"Stage {self.stage}: steps 1 to {self.total}{origin}"
        steps = counted(self.step, "step")
        if self.trains and self.step >= self.total:
            return f"Stage {self.stage}: ends as it is, at step {self.step}, as {self.total} were asked for"
        if self.trains:
            verb = "was trained for" if self.finished else "stopped after"
            return f"Stage {self.stage}: {verb} {steps} and continues to step {self.total}"
        told = f"Stage {self.stage}: already trained"
        if self.stays:
            return f"{told}, {self.stays}"
        if self.step >= self.total:
            return f"{told}, {steps}"
        why = f"Not extended to {self.total}, because {_trained(self.needed_by)} on it"
        return f"{told}, {steps}. {why}.\n  --reset-training --stage {self.stage} {_STARTS_OVER}"


@dataclass(frozen=True)
class Agenda:
    """What a run will do, stage by stage."""

    works: tuple[StageWork, ...]
    changes: tuple[str, ...] = ()
    """What is other than when the last stage was trained, where nothing is left to train and so nothing comes of it."""

    def lines(self) -> list[str]:
        """What the user is told before it happens."""
        lines = [work.describe() for work in self.works]
        if not any(work.trains for work in self.works):
            more = listed([work.stage for work in self.works if work.can_continue])
            told = f"Raise --max-steps to continue with {more}, or use" if more else "Use"
            lines.append(f"Already trained. {told} --reset-training to start over.")
            if self.changes:
                lines.append("Changed since then, with effect from the next step on: " + "; ".join(self.changes))
        return lines


def make_agenda(
    config: XTTSConfig, dataset: SpeechDataset, reset: Sequence[str] = (), taken: Sequence[str] = ()
) -> Agenda:
    """Settles what a run does; nothing is changed but for damaged checkpoints of its own, which are set aside.

    Args:
        config: With what the run began from in `training.init_from`.
        dataset: For the number of batches of an epoch.
        reset: Stages that start anew, whatever there is.
        taken: Finished parts that the run is about to take from `training.init_from`.

    Raises:
        UserError: A stage was asked for by name, and training it would make those useless that depend on it.
    """
    stores = {name: CheckpointStore(f"{config.training.checkpoint_dir}/{name}") for name in STAGES}
    states = {}
    for name, store in stores.items():
        step = None if name in reset else store.newest_sound(logger.warning)
        if name in taken:
            states[name] = {"step": 0, "finished": True, TAKEN_FROM: config.training.init_from}
        elif step is not None and not is_start(state := store.read_state(step)):
            states[name] = state
    wanted = tuple(name for name in STAGES if name in states or name not in config.training.leave_out)
    chosen = wanted if config.training.stage == "all" else (config.training.stage,)
    works = tuple(_work(config, name, dataset, states, stores) for name in chosen)
    if config.training.stage != "all":
        _refuse_useless(works[0])
    changes = () if any(work.trains for work in works) else _changes(config, dataset, chosen, states)
    return Agenda(works, changes)


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _trained(stages):
    return f"{listed(stages)} {'was' if len(stages) == 1 else 'were'} trained"


def _work(config, stage, dataset, states, stores):
    state, training = states.get(stage), config.training
    total = _total(config, stage, dataset, state)
    if state is None:
        origin = training.init_from if stage in tuned_stages(config) else None
        return StageWork(stage, None, total, needed_by=_needed_by(config, stage, states, stores), origin=origin)
    stays = _stays(config, stage, states, stores)
    return StageWork(stage, state["step"], total, state["finished"], _needed_by(config, stage, states, stores), stays)


def _stays(config, stage, states, stores):
    """See `StageWork.stays`."""
    state, training = states[stage], config.training
    # Of another run, or of a stage that had nothing to learn: no step to continue from.
    if "position" not in state or state["step"] == 0 or TAKEN_FROM in state:
        return "and taken as it is"
    lineage, steps = state.get("lineage", {}), counted(state["step"], "step")
    below = [name for name in lineage if name in states and name not in STAGES[stage].follows]
    if others := [name for name in below if stores[name].digest(states[name]["step"]) != lineage[name]]:
        over = f"--reset-training --stage {stage} trains it anew on this run's"
        return f"{steps}, on another {' and '.join(others)}, so it stays as it is.\n  {over}"
    detector = state.get("parts", {}).get("overtraining")
    with refusing_damage(f"{training.checkpoint_dir}/{stage}"):
        if 0 < training.evaluation_patience <= int(state.get("stale_evaluations", 0)):
            return f"{steps}: evaluations had brought nothing better; --evaluation-patience 0 continues it"
        if detector is not None and has_stopped(detector, training.overtraining_patience):
            return f"{steps}: validation had turned up; --overtraining-patience 0 continues it"
    return ""


def _needed_by(config, stage, states, stores):
    """The stages that were trained on this one's weights as they are now, or begin as another run's that were."""
    found = []
    for name in [name for name, entry in STAGES.items() if stage in {*entry.builds_on} - {*entry.follows}]:
        if name in states and stage in states:
            built_on = states[name].get("lineage", {}).get(stage)
            needs = built_on is not None and built_on == stores[stage].digest(states[stage]["step"])
        else:
            tuned = tuned_stages(config) if config.training.init_from else ()
            needs = name in tuned and stage not in tuned
        found += [name] * needs
    return tuple(found)


def _total(config, stage, dataset, state):
    """Steps that are asked for; those of an epoch by the batches that the stage has, or will have."""
    sizes = ((state or {}).get("parts") or {}).get("micro_batches")
    if config.training.automatic_batch_size and sizes:
        config = with_batch(config, stage, sizes["batch_size"], sizes["accumulation"])
    training, asked = config.training, config.stage(stage).max_steps
    batches = asked or dataset.with_config(config).order(stage).batches_per_epoch
    return total_steps(asked, training.epochs, batches, training.gradient_accumulation)


def _refuse_useless(work):
    """Raises `UserError` where a stage that was asked for by its name has steps left that must not be trained."""
    # Without steps left it is opened all the same: it declares as finished what had stopped at this step.
    if work.step is not None and work.step < work.total and work.needed_by:
        asked = f"--stage {work.stage} (training.stage) would train it from step {work.step} to {work.total}"
        raise UserError(
            f"{asked}, and {_trained(work.needed_by)} on it as it is now. Leave --stage out to train the last stage "
            f"further; --reset-training --stage {work.stage} {_STARTS_OVER}; another --checkpoint-dir leaves this "
            "run alone."
        )


def _changes(config: XTTSConfig, dataset: SpeechDataset, chosen: Sequence[str], states: Mapping[str, dict]):
    """What is other than at the last of the chosen stages, without the lengths and what concerns other stages alone."""
    last = chosen[-1]
    state = states[last]
    if "position" not in state:
        return ()
    others = tuple(f"training.{name}." for name in STAGES if name != last)
    found = [
        line
        for name, line in changed_settings(state, config, f"{config.training.checkpoint_dir}/{last}").items()
        if not name.startswith(others) and not name.endswith((".max_steps", ".epochs", ".batch_size", "_accumulation"))
    ]
    if state["data"] is not None and state["data"] != data_digest(dataset.train):
        found.append("the recordings")
    return tuple(found)
