"""What a run will do to each stage, settled and told before it is done: from which step to which, or why it stays."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from myxtts.config.checks import UserError, counted
from myxtts.config.config import XTTSConfig
from myxtts.config.stages import STAGES
from myxtts.data.dataset import SpeechDataset
from myxtts.storage.parts import TAKEN_FROM, part_store
from myxtts.storage.saved_state import refusing_damage
from myxtts.training.loop.batching import with_batch
from myxtts.training.loop.schedules import total_steps
from myxtts.training.resuming.state import changed_settings, data_digest
from myxtts.training.watching.overtraining import has_stopped

logger = logging.getLogger(__name__)

_STARTS_OVER = "starts it over and sets aside what rests on it"


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
    resting: tuple[str, ...] = ()
    """Stages whose weights rest on this one's as they are: training it on would make those useless."""
    estranged: tuple[str, ...] = ()
    """Stages that it was trained on as they were once, or in another run, and are no longer."""
    overtrained: bool = False
    """Whether it ended at its best checkpoint, as validation had turned up."""
    unimproved: bool = False
    """Whether it ended at its best checkpoint, as evaluations brought nothing better."""
    weights_only: bool = False
    """Whether it holds imported weights, which have no training to continue."""
    origin: str | None = None
    """Where a fresh start takes its weights from, if not from random ones."""

    @property
    def trains(self) -> bool:
        """Whether the stage is opened for training, be it only to declare it finished."""
        if self.step is None or not self.finished:
            return True
        return self.step < self.total and self.can_go_on

    @property
    def can_go_on(self) -> bool:
        """Whether more steps, where they are asked for, would train it on."""
        return not (self.resting or self.estranged or self.overtrained or self.unimproved or self.weights_only)

    def describe(self) -> str:
        """A sentence or two for the user, before it happens."""
        if self.step is None:
            origin = f", from the weights in {self.origin}" if self.origin else ""
            return f"Stage {self.stage}: steps 1 to {self.total}{origin}"
        if self.trains and self.step >= self.total:
            asked = f"{counted(self.total, 'step')} {'was' if self.total == 1 else 'were'} asked for"
            return f"Stage {self.stage}: ends as it is, at step {self.step}, for {asked}"
        if self.trains:
            verb = "was trained for" if self.finished else "stopped after"
            return f"Stage {self.stage}: {verb} {counted(self.step, 'step')} and goes on to step {self.total}"
        if self.weights_only:
            return f"Stage {self.stage}: trained already, and taken as it is"
        told = f"Stage {self.stage}: trained already, {counted(self.step, 'step')}"
        if self.estranged:
            names = " and ".join(self.estranged)
            over = f"--reset-training --stage {self.stage} trains it anew on this run's"
            return f"{told}, on another {names}, so it stays as it is.\n  {over}"
        if self.step >= self.total:
            return told
        if self.resting:
            why = f"It stays so, though {self.total} were asked for: {_rest(self.resting)} on it."
            return f"{told}. {why}\n  --reset-training --stage {self.stage} {_STARTS_OVER}"
        if self.unimproved:
            return f"{told}: evaluations had brought nothing better; --evaluation-patience 0 lets it go on"
        return f"{told}: validation had turned up; --overtraining-patience 0 lets it go on"


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
            going_on = [work.stage for work in self.works if work.can_go_on]
            more = f"A larger --max-steps trains {listed(going_on)} on; " if going_on else ""
            lines.append(f"Nothing is left to train. {more}--reset-training starts over.")
            if self.changes:
                lines.append("It counts from the next step on that since then changed: " + "; ".join(self.changes))
        return lines


def make_agenda(
    config: XTTSConfig, dataset: SpeechDataset, reset: Sequence[str] = (), source: Path | None = None
) -> Agenda:
    """Settles what a run does; nothing is changed but for damaged checkpoints of its own, which are set aside.

    Args:
        config: With what the run began from in `training.init_from`.
        dataset: For the number of batches of an epoch.
        reset: Stages that start anew, whatever there is.
        source: Folder of another run, whose finished stages this one is about to take over where it has none.

    Raises:
        UserError: A stage was asked for by name, and training it on would make those useless that rest on it.
    """
    stores = {name: _store(config, name, source) for name in STAGES}
    steps = {name: None if name in reset else _newest(store, source) for name, store in stores.items()}
    states = {name: stores[name].read_state(step) for name, step in steps.items() if step is not None}
    wanted = tuple(name for name in STAGES if name in states or name not in config.training.leave_out)
    chosen = wanted if config.training.stage == "all" else (config.training.stage,)
    works = []
    for name in chosen:
        ties = dict(resting=_resting(config, name, states, stores), estranged=_estranged(name, states, stores))
        work = replace(_work(config, name, dataset, states.get(name)), **ties)
        if config.training.stage != "all":
            work = _as_named(work)
        works.append(work)
    changes = () if any(work.trains for work in works) else _changes(config, dataset, chosen, states)
    return Agenda(tuple(works), changes)


def tuned_stages(config: XTTSConfig) -> list[str]:
    """The stages that train on from the weights of `--init-from`: the one asked for if it can, else those of `all`."""
    if config.training.tune:
        return [name for name in STAGES if name in config.training.tune]
    kinds = {name: entry.load() for name, entry in STAGES.items()}
    asked = kinds.get(config.training.stage)
    if asked is not None and asked.takes_init_from:
        return [config.training.stage]
    return [name for name, kind in kinds.items() if kind.takes_init_from and kind.tuned_with_all]


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _rest(stages):
    return f"{' and '.join(stages)} {'rests' if len(stages) == 1 else 'rest'}"


def _store(config, stage, source):
    own = part_store(config.training.checkpoint_dir, stage)
    is_taken = source and not own.steps() and stage not in tuned_stages(config)
    return part_store(source, stage) if is_taken else own


def _newest(store, source):
    if source is not None and store.folder.parent == source:
        return max(store.steps(), default=None)  # another run's folder is only read
    return store.newest_sound(logger.warning)


def _resting(config, stage, states, stores):
    """The stages whose weights are made for this one's as they are now, or begin as another run's that are."""
    found = []
    for name in [name for name, entry in STAGES.items() if stage in {*entry.builds_on} - {*entry.follows}]:
        if name in states and stage in states:
            built_on = states[name].get("lineage", {}).get(stage)
            is_resting = built_on is not None and built_on == stores[stage].digest(states[stage]["step"])
        else:
            tuned = tuned_stages(config) if config.training.init_from else ()
            is_resting = name in tuned and stage not in tuned
        found += [name] * is_resting
    return tuple(found)


def _estranged(stage, states, stores):
    """Those that a stage was trained on and that are there with other weights now."""
    lineage = states.get(stage, {}).get("lineage", {})
    steps = {name: states[name]["step"] for name in lineage if name in states and name not in STAGES[stage].follows}
    return tuple(name for name, step in steps.items() if stores[name].digest(step) != lineage[name])


def _work(config, stage, dataset, state):
    training = config.training
    if state is None:
        origin = training.init_from if stage in tuned_stages(config) else None
        return StageWork(stage, None, _total(config, stage, dataset, None), origin=origin)
    detector = state.get("parts", {}).get("overtraining")
    with refusing_damage(f"{training.checkpoint_dir}/{stage}"):
        overtrained = detector is not None and has_stopped(detector, training.overtraining_patience)
        unimproved = 0 < training.evaluation_patience <= int(state.get("stale_evaluations", 0))
    total, weights_only = _total(config, stage, dataset, state), _is_given(state)
    flags = dict(finished=state["finished"], overtrained=overtrained, unimproved=unimproved, weights_only=weights_only)
    return StageWork(stage, state["step"], total, **flags)


def _is_given(state):
    """Whether a checkpoint is of another run, or of a stage that had nothing to learn: no step to go on from."""
    return "position" not in state or state["step"] == 0 or TAKEN_FROM in state


def _total(config, stage, dataset, state):
    """Steps that are asked for; those of an epoch by the batches that the stage has, or will have."""
    sizes = ((state or {}).get("parts") or {}).get("micro_batches")
    if config.training.automatic_batch_size and sizes:
        config = with_batch(config, stage, sizes["batch_size"], sizes["accumulation"])
    training, asked = config.training, config.stage(stage).max_steps
    batches = asked or dataset.with_config(replace(dataset.config, training=training)).order(stage).batches_per_epoch
    return total_steps(asked, training.epochs, batches, training.gradient_accumulation)


def _as_named(work):
    """The work on a stage that was asked for by its name, which is done or refused but not passed over."""
    if work.step is None or work.step >= work.total or not work.resting:
        # Opened even if there is nothing to train: it declares as finished what had stopped at this step.
        return work
    stage = work.stage
    would = f"--stage {stage} (training.stage) would train the {stage} on from step {work.step} to {work.total}"
    raise UserError(
        f"{would}, and {_rest(work.resting)} on it as it is now. Leave --stage out to train the last stage on; "
        f"--reset-training --stage {stage} {_STARTS_OVER}; another --checkpoint-dir leaves this run alone."
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
