"""What a checkpoint holds of a run, taken between two steps, and how a run takes it up again.

Everything that is drawn is a function of the seed and a position (docs/architecture.md), so weights, optimizer state and
positions are all there is. Whatever else must survive a stop registers itself in `XTTSTrainer.saved_parts` under a name; it
has `state()`, which returns JSON values, and `restore(state)`.
"""

import json
import logging

import keras
import tensorflow as tf

import myxtts
from myxtts.storage.checkpoint import CheckpointError, assign_by_name
from myxtts.storage.files import new_hasher

logger = logging.getLogger(__name__)

TRAINED = "trained"
"""Tensor file of a run with weight averages: the weights that training goes on with. `model`, which everything else reads,
then holds the averages: what was validated and what speaks."""

_WITHOUT_EFFECT = {
    "training.checkpoint_dir",
    "training.tensorboard_log_dir",
    "training.stage",
    "training.reset_training",
    "training.init_from",
    "training.log_every_steps",
    "training.checkpoint_every_steps",
    "training.keep_checkpoints",
    "training.sample_every_steps",
    "training.num_samples",
    "data.train_data",
    "data.val_data",
    "data.vocabulary",
    "data.num_workers",
    "data.cache_mb",
    "data.pipeline_buffer_size",
    "data.model_start_delay",
    "data.data_gpu",
    "data.model_gpu",
    "training.strict",
    "training.overtraining_patience",
    "training.automatic_batch_size",
    "training.memory_budget_mb",
}
"""Settings that a resumed run may change without changing its losses; a changed data set is told by its digest."""


def snapshot(trainer, finished):
    """Copies the run's state to the host.

    Args:
        trainer: `XTTSTrainer`, between two steps.
        finished: Whether the stage's last step has been taken.

    Returns:
        `(tensors, state)` as `CheckpointStore.write` takes them; training goes on without changing them.
    """
    weights = trainer.model.part_weights(trainer.stage)
    tensors = {"optimizer": {name: v.numpy() for name, v in trainer.train_step.state_variables().items()}}
    with trainer.averaged_weights():
        if trainer.lora is None:
            tensors["model"] = {name: v.numpy() for name, v in weights.items()}
        else:
            tensors["model"], tensors["lora"] = trainer.lora.split(weights)
    averages = trainer.train_step.averages
    if averages is not None:
        tensors[TRAINED] = {name: v.numpy() for name, v in averages.weights.items()}
    state = {
        "stage": trainer.stage,
        "finished": finished,
        "lineage": trainer.lineage,
        "history": list(trainer.history),
        "best": trainer.best,
        "position": trainer.position,
        "data": trainer.data_digest,
        "bad_steps_in_row": int(tensors["optimizer"]["bad_steps_in_row"]),
        "parts": {name: part.state() for name, part in trainer.saved_parts.items()},
        "averaged": averages is not None,
        "ledger": trainer.ledger and trainer.ledger.state(),
        "versions": _versions(),
        "config": trainer.config.to_dict(),
    }
    return tensors, state


def restore(trainer, store, step):
    """Puts a checkpoint into a trainer.

    Raises:
        CheckpointError: It is damaged, of another model, or was trained on the codes of another DVAE.
    """
    state = store.read_state(step)
    names = ("model", "optimizer", *(["lora"] if trainer.lora else []), *([TRAINED] if state.get("averaged") else []))
    where = str(store.path(step))
    if "position" not in state:
        raise CheckpointError(f"{where} holds weights without a run to go on with. Start from them with --init-from.")
    if state["lineage"] != trainer.lineage:
        raise CheckpointError(
            f"{where} was trained on the codes of another DVAE than the one there is now, so going on "
            "would teach it another language of codes. Train the stage anew with --reset-training "
            f"--stage {trainer.stage}, or bring the DVAE back."
        )
    missing = trainer.saved_parts.keys() - state["parts"].keys()
    if missing:
        raise CheckpointError(
            f"{where} lacks the state of {', '.join(sorted(missing))}: it was written without. Turn that "
            "off, or start anew with --reset-training."
        )
    tensors, _ = store.read(step, names)
    assign_by_name(trainer.model.part_weights(trainer.stage), {**tensors["model"], **tensors.get("lora", {})}, where)
    assign_by_name(trainer.train_step.state_variables(), tensors["optimizer"], where)
    averages = trainer.train_step.averages
    if averages is not None:
        averages.restart()
    if TRAINED in tensors:
        assign_by_name(dict(trainer.objective.trainable()), tensors[TRAINED], where)
    if trainer.stage == "dvae":
        trainer.tokenizer_model.mel_stats.assign(trainer.model.mel_stats.numpy())
    trainer.step, trainer.position, trainer.history = step, state["position"], state["history"]
    trainer.best = tuple(state["best"]) if state["best"] else None
    trainer.data_digest = state["data"]
    trainer.finished = state["finished"]
    for name, part in trainer.saved_parts.items():
        part.restore(state["parts"][name])
    for line in _differences(state, trainer.config):
        logger.info("%s", line)
    return state


def data_digest(clips):
    """Identifies a list of `Clip`s in their order, on which the order of batches rests."""
    hasher = new_hasher()
    for clip in clips:
        hasher.update(json.dumps([clip.id, clip.num_samples, clip.tokens]).encode())
    return hasher.hexdigest()


def _versions():
    return {"myxtts": myxtts.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}


def _differences(state, config):
    """Lines on what makes the losses from here on other than those of an unbroken run."""
    before, now = _flat(state["config"]), _flat(json.loads(json.dumps(config.to_dict())))
    changed = [
        f"{name} {before.get(name)!r} -> {value!r}"
        for name, value in now.items()
        if value != before.get(name) and name not in _WITHOUT_EFFECT and not name.startswith("sampling.")
    ]
    if changed:
        yield f"Settings changed since the checkpoint: {'; '.join(changed)}"
    if state["versions"] != _versions():
        yield f"The checkpoint was written with {state['versions']}; now it is {_versions()}: last bits may differ."


def _flat(values, where=""):
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{where}{name}.") if isinstance(value, dict) else {where + name: value}
    return flat
