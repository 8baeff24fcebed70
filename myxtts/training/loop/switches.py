"""Training switches such as XLA: requested values, applied values, and a report (`Ledger`) on the observed effects."""

import re
import textwrap
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from myxtts.config.checks import ConfigError, counted
from myxtts.config.config import ModelConfig, TrainingConfig
from myxtts.config.training import SWITCHES, requested_switches
from myxtts.devices.machine import choose_precision, rounds_to_tf32, runs_on_cpu
from myxtts.models.attention import ATTENTION_SCOPES, MEMORY_EFFICIENT, STANDARD, MemoryUse, attend
from myxtts.models.layers import Dropout

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

STEPS_PER_PROGRAM = 2000
"""Number of steps after which compiling a batch shape with XLA pays off, except in tiny models. Measured for the GPT on
an H100: a shape takes 65 to 100 s to compile and then saves 0.1 s per step (0.01 s in size nano)."""
RESUMED = "as in the resumed checkpoint"
RECOMPUTED = "recomputed_"
"""Prefix of the name scopes of recomputed operations, followed by the name of the block."""
PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")
"""Names of the operations that mixed precision applies to: matrix products and convolutions."""
_RECOMPUTED = re.compile(rf"(?:^|/){RECOMPUTED}((?:conditioning_)?block_\d+)(?:_\d+)?/")
_ATTENTION = re.compile(rf"^(?:replica_\d+/)?(.*?)({'|'.join(ATTENTION_SCOPES.values())})(?:_\d+)?/")


class Switches(SimpleNamespace):
    """Applied values of the training switches on this machine, as one attribute per name in `config.training.SWITCHES`.

    `requested` is the result of `requested_switches`. `reasons` contains the reasons for applied values, if known.
    """

    def applied(self) -> dict:
        """Returns `{switch name: applied value}` for checkpoints. All values are JSON values."""
        return {name: getattr(self, name) for name in SWITCHES}

    def requested_text(self, name: str) -> tuple[object, str]:
        """Returns the requested value of a switch, and a text with this value and its source, such as `on (given)`."""
        value, source = self.requested[name]
        return value, f"{on_or_off(value) if isinstance(value, bool) else value} ({source})"


def on_or_off(value: bool) -> str:
    return "on" if value else "off"


def settle_switches(
    training: TrainingConfig,
    model_config: ModelConfig,
    device: str,
    applicable: tuple[str, ...] = tuple(SWITCHES),
    before: dict | None = None,
    stage: str | None = None,
    steps_per_shape: float = 0.0,
) -> Switches:
    """Returns the switches to apply on a device, and sets TF32 and determinism for the whole process.

    Args:
        applicable: Names of the switches that apply to the stage. All other switches get their default values.
        before: Result of `Switches.applied` in the run to resume. If `attention` or `xla` is `auto`, the value from
            that run is used, because another value would round losses differently.
        stage: Name of the stage. Its default EMA decay is used if neither `training.ema` nor the preset sets a decay.
        steps_per_shape: Number of steps per batch shape, which decides whether XLA pays off; 0 if unknown.
    """
    requested = requested_switches(training, stage)
    values = {name: value if name in applicable else SWITCHES[name] for name, (value, _) in requested.items()}
    reasons = {}
    values["precision"], reasons["precision"] = choose_precision(values["precision"], device)
    values["tf32"] = values["tf32"] is not False
    tf.config.experimental.enable_tensor_float_32_execution(values["tf32"])
    if training.deterministic:
        tf.config.experimental.enable_op_determinism()
    if values["xla"] == "auto":
        values["xla"], reasons["xla"] = _choose_xla(device, before, requested, training.deterministic, steps_per_shape)
    if values["xla"] and (refusal := xla_refusal(device)):
        values["xla"], reasons["xla"] = False, f"XLA cannot compile for {device}: {refusal}"
    if values["attention"] == "auto" and (before or {}).get("attention") in (STANDARD, MEMORY_EFFICIENT):
        values["attention"], reasons["attention"] = before["attention"], RESUMED
    elif values["xla"] and requested["attention"][1].startswith("preset") and not runs_on_cpu(device):
        values["attention"], reasons["attention"] = STANDARD, "XLA fuses attention and stores no scores"
    elif values["attention"] == "auto":
        values["attention"], reasons["attention"] = choose_attention(model_config, values["precision"], device)
    return Switches(**values, requested=requested, reasons=reasons)


def _choose_xla(device, before, requested, deterministic, steps_per_shape):
    """Decides whether to compile with XLA if switch `xla` is `auto`. Returns the decision, and its reason as text."""
    if before and "xla" in before:
        return before["xla"], RESUMED
    if runs_on_cpu(device):
        return False, "compiled steps are not faster on a CPU"
    if deterministic:
        return False, "--deterministic, and XLA chooses its kernels by trial"
    if requested["gradient_checkpointing"][0]:
        return True, "it needs less memory"
    known = f"{steps_per_shape:,.0f} steps per batch shape" if steps_per_shape else "--max-steps is not set"
    return steps_per_shape >= STEPS_PER_PROGRAM, f"{known}; compiling a shape pays off after {STEPS_PER_PROGRAM} steps"


def xla_refusal(device: str) -> str | None:
    """Returns TensorFlow's error message if XLA cannot compile for `device`, else None."""
    try:
        with tf.device(device):
            tf.function(lambda x: x + x, jit_compile=True)(tf.constant(1.0))
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return None


def choose_attention(model_config: ModelConfig, precision: str, device: str) -> tuple[str, str]:
    """Chooses `standard` or `memory-efficient` attention by measuring both. Returns the choice and its reason as text.

    Times the forward and backward pass of one layer at the model's maximum length. The result depends on the processor,
    the precision (a Keras dtype policy) and the head width. Takes a few seconds, mostly for tracing.
    """
    heads, width = model_config.heads, model_config.width // model_config.heads
    longest = model_config.num_latents + model_config.max_text_tokens + 2 + model_config.max_audio_tokens
    dtype = keras.DTypePolicy(precision).compute_dtype
    with tf.device(device):
        tensors = [tf.random.stateless_normal((1, heads, longest, width), (0, i), dtype=dtype) for i in range(3)]
        seconds = {form: _seconds(form, tensors, model_config.dropout) for form in (STANDARD, MEMORY_EFFICIENT)}
    ratio = seconds[MEMORY_EFFICIENT] / seconds[STANDARD]
    reason = f"memory-efficient attention takes {ratio:.2f} times as long as standard at {longest} tokens"
    return STANDARD if ratio > 1.05 else MEMORY_EFFICIENT, reason  # memory-efficient attention takes less memory


def _seconds(form, tensors, dropout_rate):
    dropout = Dropout(dropout_rate)

    @tf.function(autograph=False)
    def forward_and_backward(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output = attend(MemoryUse(form), query, key, value, causal=True, dropout=dropout, seed=tf.constant([0, 1]))
        return tape.gradient(output, (query, key, value))

    run = lambda: forward_and_backward(*tensors)[0][0, 0, 0, 0].numpy()  # reading a value waits for the device
    return min(timeit.repeat(run, number=1, repeat=4)[1:])  # the first call traces


def recompute(segment: Callable, block: str) -> Callable:
    """Returns a version of `segment` whose activations are recomputed in the backward pass (Chen et al. 2016).

    Only the segment's arguments and result are stored. The names of recomputed operations contain the name `block`.
    """
    scopes = iter([nullcontext()])  # the first call is the forward pass

    def named(*tensors):
        with next(scopes, keras.name_scope(RECOMPUTED + block)):
            return segment(*tensors)

    return weights_first(keras.remat(named))


def weights_first(function: Callable) -> Callable:
    """Wraps a function so that the gradients of its weights are computed before those of its arguments, to save memory.

    TensorFlow's executor starts with the operations that became ready last. Without this wrapper, the weight gradients
    of all blocks would wait until the backward pass has reached the first block, and their operands would stay in
    memory. The order is enforced by adding a zero, computed from the weight gradients, to the argument gradients.
    """

    @tf.custom_gradient
    def gated(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)

        def gradient(*upstream, variables=()):
            upstream = upstream if isinstance(result, tuple) else upstream[0]
            of_tensors, of_weights = tape.gradient(result, (tensors, list(variables)), upstream)
            if of_weights:
                first = tf.reduce_max([tf.cast(tf.reshape(one, [-1])[0], "float32") for one in of_weights]) > 0
                zero = tf.where(tf.equal(first, first), 0.0, 1.0)  # no graph optimizer folds this to a constant
                of_tensors = [one + tf.cast(zero, one.dtype) for one in of_tensors]  # Grappler drops control edges
            return of_tensors, of_weights

        return result, gradient

    return gated


class LedgerRow(NamedTuple):
    """`Ledger` row of a switch: its name, requested value with source, observed effect, and evidence of the effect."""

    optimization: str
    requested: str
    effective: str
    reason: str
    as_requested: bool


class Ledger(dict[str, LedgerRow]):
    """Report on requested values and observed effects of training switches: `{name: row}`. `str()` returns a table."""

    def __str__(self):
        rows = (row if row.as_requested else row._replace(effective=f"! {row.effective}") for row in self.values())
        *columns, reasons = zip(*(row[:4] for row in (LedgerRow._fields, *rows)))  # without `as_requested`
        columns = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
        starts = ["  ".join(row).rstrip() for row in zip(*columns)]
        options = dict(width=80, initial_indent="    ", subsequent_indent="    ")
        return "\n".join(f"{start}\n{textwrap.fill(r, **options)}" for start, r in zip(starts, reasons))

    def require(self) -> None:
        """Raises `ConfigError` if the observed effect of a training switch is not the requested one."""
        describe = "{0.optimization} must be {0.requested}, and is {0.effective} ({0.reason})".format
        if differing := "; ".join(describe(row) for row in self.values() if not row.as_requested):
            raise ConfigError(f"--strict: {differing}. Request these effects, or leave out --strict.")


class LedgerKeeper:
    """Makes the `Ledger`, the report on the training switches. Create this object before the trainer's first step."""

    def __init__(self, trainer: "StageTrainer"):
        self.trainer, self.step, self.switches = trainer, trainer.train_step, trainer.switches
        averages = sorted(self.step.averages.values(), key=lambda v: v.shape.num_elements())
        self._before = [(v, v.numpy()) for v in averages[:8]]

    def ledger(self, figures: dict) -> Ledger:
        """Returns the `Ledger`. `figures` is what `TrainStep` returned for the first step that changed the weights."""
        rows = [self._precision(), self._tf32(), self._loss_scaling()]
        rows += self.trainer.stage.ledger_rows(self.step, self.switches)
        rows += [self._xla(), self._determinism(), self._averages(), *self._batches()]
        rows += [self._clipping(rule, figures) for rule in self.step.rules]
        return Ledger({row.optimization: row for row in rows})

    def _precision(self):
        value, requested = self.switches.requested_text("precision")
        products = count_products(self.step.graph)
        # The dtype of most products: a few, such as codebook distances, stay in float32.
        kind = max(products, key=products.get) if products else "float32"
        effective = kind if kind == "float32" else f"mixed_{kind}"
        seen = f"{products[kind]} of {products.total()} matrix products of the step in {kind}"
        reason = f"{seen}; {self.switches.reasons['precision']}"
        return LedgerRow("precision", requested, effective, reason, value in ("auto", effective))

    def _tf32(self):
        value, requested = self.switches.requested_text("tf32")
        device = self.trainer.model_device
        allowed, seen = "allowed" if self.switches.tf32 else "not allowed", rounds_to_tf32(device)
        reason = f"{allowed}; float32 products on {device} are {'rounded to 10 bits' if seen else 'exact'}"
        return LedgerRow("TF32", requested, on_or_off(seen), reason, value in ("auto", seen))

    def _loss_scaling(self):
        wanted, scaled = self.switches.precision == "mixed_float16", all(rule.scaled for rule in self.step.rules)
        scales = ", ".join(f"{float(rule.loss_scale.numpy()):g}" for rule in self.step.rules)
        requested = "dynamic (float16)" if wanted else "off (no float16)"
        effective = f"dynamic, now {scales}" if scaled else "off"
        reason = f"{counted(self.step.bad_steps, 'step')} skipped so far"
        return LedgerRow("loss scaling", requested, effective, reason, wanted == scaled)

    def _xla(self):
        value, requested = self.switches.requested_text("xla")
        programs = {node.attr["f"].func.name for node in nodes(self.step.graph) if node.attr["_XlaMustCompile"].b}
        compiles = bool(programs)
        reason = f"{counted(len(programs), 'compiled program')} in the step"
        reason = "; ".join(filter(None, (reason, self.switches.reasons.get("xla"))))
        as_requested = self.switches.xla == compiles and value in ("auto", compiles)
        return LedgerRow("XLA", requested, on_or_off(compiles), reason, as_requested)

    def _determinism(self):
        value, seen = self.trainer.config.training.deterministic, is_op_determinism_enabled()
        requested = f"{on_or_off(value)} ({'given' if value else 'default'})"
        reason = f"TensorFlow sums in {'a fixed' if seen else 'any'} order"
        return LedgerRow("determinism", requested, on_or_off(seen), reason, seen or not value)

    def _averages(self):
        value, source = self.switches.requested["ema"]
        requested = f"{value or 'off'} ({source})"
        if not (kept := [rule.ema for rule in self.step.rules if rule.averages]):
            return LedgerRow("weight averages", requested, "off", "no averages are kept", not value)
        moved = any((before != v.numpy()).any() for v, before in self._before)
        effective = str(kept[0]) if moved else "frozen"
        seen = "moved by the first step; used for validation and synthesis" if moved else "not moved by the first step"
        reason = f"{len(self.step.averages)} averages, {seen}"
        return LedgerRow("weight averages", requested, effective, reason, moved and set(kept) == {value})

    def _batches(self):
        batching, times = self.trainer.batching, self.step.micro_batches
        why = f"; memory ran out with {batching.batch_size} clips at once" if batching.parts > 1 else ""
        reason = f"batches in the last update: {times}, accumulators: {len(self.step.accumulators())}{why}"
        numbers = str(batching.accumulation), str(times)
        yield LedgerRow("gradient accumulation", *numbers, reason, batching.accumulation == times)
        wanted, found = batching.batch_size * batching.accumulation, batching.clips * times
        requested = f"{wanted} per update" + (", auto at once" if batching.automatic else "")
        reason = f"{batching.clips} clips at once, {found} per update"
        yield LedgerRow("batch size", requested, f"{batching.clips} x {times}", reason, wanted == found)

    @staticmethod
    def _clipping(rule, figures):
        largest, name = rule.gradient_clip, f"gradient clipping ({rule.name})" if rule.name else "gradient clipping"
        requested = f"global norm {largest:g}" if largest else "off"
        norm = figures.get(f"{rule.name}/gradient_norm" if rule.name else "gradient_norm")
        if norm is None:
            return LedgerRow(name, requested, requested, f"applied from a later phase on ({rule.phases[-1]})", True)
        norm, factor = float(norm), float(rule.clip_factor)
        applied = norm * factor
        effective = "off" if not largest and factor == 1 else f"global norm {applied:.3g}"
        as_requested = applied <= 1.001 * largest if largest else factor == 1
        return LedgerRow(name, requested, effective, f"gradient norm of the first step: {norm:.3g}", as_requested)


def nodes(graph: tf.Graph) -> Iterator:
    """Yields the nodes of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def recomputed_blocks(graph: tf.Graph) -> set[str]:
    """Returns the names of the blocks whose activations the backward pass recomputes."""
    return {found.group(1) for node in nodes(graph) if (found := _RECOMPUTED.search(node.name))}


def attention_forms(graph: tf.Graph) -> Counter:
    """Counts the attention layers of each implementation (`standard`, `memory-efficient`) in a graph's forward pass."""
    forward = (node.name for node in nodes(graph) if "gradient" not in node.name)
    layers = {found.groups() for name in forward if (found := _ATTENTION.match(name))}
    names = {scope: form for form, scope in ATTENTION_SCOPES.items()}
    return Counter(names[scope] for _, scope in layers)


def count_products(graph: tf.Graph) -> Counter:
    """Counts the matrix products and convolutions in a graph by dtype."""
    return Counter(tf.as_dtype(node.attr["T"].type).name for node in nodes(graph) if node.op in PRODUCTS)
