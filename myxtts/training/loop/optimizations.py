"""The switches of training: what is asked for, and what the hardware lets be applied."""

from dataclasses import dataclass

import tensorflow as tf

from myxtts.config.config import ModelConfig, TrainingConfig
from myxtts.config.optimizations import SWITCHES, requested_switches
from myxtts.devices.precision import choose_precision
from myxtts.models.layers.attention import MEMORY_EFFICIENT, STANDARD
from myxtts.training.stages.attention_choice import choose_attention


@dataclass(frozen=True)
class Switches:
    """What is applied on this machine; the fields are `config.optimizations.SWITCHES`."""

    precision: str
    """Keras dtype policy."""
    gradient_checkpointing: bool
    """Whether the GPT's blocks recompute what the backward pass needs."""
    tf32: bool
    """Whether float32 products may be rounded to TF32, where the hardware has it; a setting of the whole process."""
    attention: str
    """`standard` or `memory-efficient`."""
    xla: bool
    """Whether gradients and update are compiled."""
    ema: float
    """Decay of the weight averages; 0 for none."""
    requested: dict
    """`{switch: (value, source)}`, see `requested_switches`."""
    reasons: dict
    """`{switch: why it is applied as it is}`, in words, where there is something to say."""

    def applied(self) -> dict:
        """What is applied by the name of the switch, as JSON values: a resumed run keeps what was measured."""
        return {name: getattr(self, name) for name in SWITCHES}


def settle_switches(
    training: TrainingConfig,
    model_config: ModelConfig,
    device: str,
    applicable: tuple[str, ...] = tuple(SWITCHES),
    before: dict | None = None,
    default_ema: float = 0.0,
) -> Switches:
    """Decides what is applied of what `training` asks for, and sets what TensorFlow has one setting for in a process:
    TF32, and determinism, which stays on from then on.

    `--attention auto` is measured at the longest sequence of the model, unless `before`, the `Switches.applied` of the
    run that is resumed, says what it was: two measurements need not agree, and the forms round otherwise. `applicable`
    are the switches that mean something for what is trained; the others stay at their defaults. `default_ema` is the
    stage's own.
    """
    requested = requested_switches(training)
    if requested["ema"][1] == "default" and default_ema:
        requested["ema"] = default_ema, "default of the stage"
    values = {name: value if name in applicable else SWITCHES[name] for name, (value, _) in requested.items()}
    reasons = {}
    values["precision"], reasons["precision"] = choose_precision(values["precision"], device)
    values["tf32"] = values["tf32"] is not False
    tf.config.experimental.enable_tensor_float_32_execution(values["tf32"])
    if training.deterministic:
        tf.config.experimental.enable_op_determinism()
    earlier = (before or {}).get("attention")
    if values["attention"] == "auto" and earlier in (STANDARD, MEMORY_EFFICIENT):
        values["attention"], reasons["attention"] = earlier, "as in the checkpoint that the run goes on from"
    elif values["attention"] == "auto":
        choice = choose_attention(model_config, values["precision"], device)
        values["attention"], reasons["attention"] = choice.form, choice.reason
    refusal = xla_refusal(device) if values["xla"] else None
    if refusal:
        values["xla"], reasons["xla"] = False, f"XLA cannot compile for {device}: {refusal}"
    return Switches(**values, requested=requested, reasons=reasons)


def is_deterministic() -> bool:
    """Whether TensorFlow takes sums in one order in this process, as is seen by what it refuses then."""
    with tf.Graph().as_default():
        try:
            tf.random.uniform(())
        except RuntimeError:  # drawing without a seed
            return True
    return False


def xla_refusal(device: str) -> str | None:
    """What TensorFlow says when it cannot compile for `device`; None when it can."""
    double = tf.function(lambda x: x + x, jit_compile=True)
    try:
        with tf.device(device):
            double(tf.constant(1.0))
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return None
