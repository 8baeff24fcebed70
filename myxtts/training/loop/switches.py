"""Training switches: as requested, as the hardware allows, and (the ledger) as observed in the first step."""

import re
import textwrap
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from myxtts.config.checks import ConfigError, counted
from myxtts.config.config import ModelConfig, TrainingConfig
from myxtts.config.training import SWITCHES, requested_switches
from myxtts.devices.machine import choose_precision, rounds_to_tf32
from myxtts.models.attention import ATTENTION_SCOPES, MEMORY_EFFICIENT, STANDARD, MemoryUse, attend
from myxtts.models.layers import Dropout
from myxtts.utils.commons import line_width

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

SLOWER_BY = 1.05
"""Largest ratio of times at which the memory-efficient form of attention counts as no slower."""
REPEATS = 3
RECOMPUTED = "recomputed_"
"""Prefix of a block's name in the name scope of its recomputed operations."""


class Switches(SimpleNamespace):
    """Training switches as applied on this machine.

    Has an attribute for each of `config.training.SWITCHES`, and `requested`, `{switch: (value, source)}`, see
    `requested_switches`, and `reasons`, `{switch: explanation}`, for some switches.
    """

    def applied(self) -> dict:
        """Applied values by switch, as JSON; a resumed run keeps the measured ones."""
        return {name: getattr(self, name) for name in SWITCHES}

    def requested_text(self, name: str) -> tuple[object, str]:
        """The requested value of a switch, and its text with the source."""
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
    default_ema: float = 0.0,
) -> Switches:
    """Resolves the requested switches for a device, and sets TF32 and determinism for the whole process.

    Args:
        applicable: Switches that the stage has; the others keep their defaults.
        before: `Switches.applied` of the run to resume. Its attention is kept, because another measurement may choose
            another form, which rounds differently.
        default_ema: Decay of weight averages, where neither settings nor preset name one.
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
        values["attention"], reasons["attention"] = earlier, "as in the resumed checkpoint"
    elif values["attention"] == "auto":
        values["attention"], reasons["attention"] = choose_attention(model_config, values["precision"], device)
    refusal = xla_refusal(device) if values["xla"] else None
    if refusal:
        values["xla"], reasons["xla"] = False, f"XLA cannot compile for {device}: {refusal}"
    return Switches(**values, requested=requested, reasons=reasons)


def xla_refusal(device: str) -> str | None:
    """TensorFlow's error message if XLA cannot compile for `device`, else None."""
    double = tf.function(lambda x: x + x, jit_compile=True)
    try:
        with tf.device(device):
            double(tf.constant(1.0))
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return None


def choose_attention(model_config: ModelConfig, precision: str, device: str) -> tuple[str, str]:
    """Returns the faster form of attention, `standard` or `memory-efficient`, and the measurement as text.

    Times the forward and backward pass of one layer in both forms, at the model's longest sequence. Which one is faster
    depends on processor, precision (a Keras dtype policy) and head width. Takes a few seconds, mostly for tracing.
    """
    heads, width = model_config.heads, model_config.width // model_config.heads
    longest = model_config.num_latents + model_config.max_text_tokens + 2 + model_config.max_audio_tokens
    dtype = keras.DTypePolicy(precision).compute_dtype
    with tf.device(device):
        tensors = [tf.random.stateless_normal((1, heads, longest, width), (0, i), dtype=dtype) for i in range(3)]
        standard, efficient = (
            _seconds(form, tensors, Dropout(model_config.dropout)) for form in (STANDARD, MEMORY_EFFICIENT)
        )
    ratio = efficient / standard
    reason = f"memory-efficient attention takes {ratio:.2f} times as long as standard at {longest} tokens"
    return STANDARD if ratio > SLOWER_BY else MEMORY_EFFICIENT, reason


def _seconds(form, tensors, dropout):
    @tf.function
    def forward_and_backward(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output = attend(MemoryUse(form), query, key, value, causal=True, dropout=dropout, seed=tf.constant([0, 1]))
        return tape.gradient(output, (query, key, value))

    run = lambda: forward_and_backward(*tensors)[0][0, 0, 0, 0].numpy()  # reading a value waits for the device
    return min(timeit.repeat(run, number=1, repeat=REPEATS + 1)[1:])  # the first call traces


def recompute(segment: Callable, block: str) -> Callable:
    """Wraps a segment of a block so that the backward pass recomputes its activations (Chen et al. 2016).

    Only its arguments and result are kept. The recomputed operations have `block` in their names; graph and compiler
    prune those that the gradient does not need.
    """
    forward = True

    def named(*tensors):
        nonlocal forward
        if forward:
            forward = False
            return segment(*tensors)
        with keras.name_scope(RECOMPUTED + block):
            return segment(*tensors)

    return weights_first(keras.remat(named))


def weights_first(function: Callable) -> Callable:
    """Wraps a function so that the gradients of its weights are computed before those of its tensors are passed on.

    TensorFlow's executor starts with the operations that became ready last, so the gradients of weights, and the
    recomputed operands that they hold, would wait for all blocks. Grappler removes control dependencies, but not a sum.
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
                of_tensors = [one + tf.cast(zero, one.dtype) for one in of_tensors]
            return of_tensors, of_weights

        return result, gradient

    return gated


PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")
"""Operations that mixed precision applies to: matrix products and convolutions."""
POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
WATCHED_AVERAGES = 8
"""Number of weight averages, the smallest, that are checked for movement."""

_RECOMPUTED = re.compile(rf"(?:^|/){RECOMPUTED}((?:conditioning_)?block_\d+)(?:_\d+)?/")
_ATTENTION = re.compile(rf"^(?:replica_\d+/)?(.*?)({'|'.join(ATTENTION_SCOPES.values())})(?:_\d+)?/")


class LedgerDifference(ConfigError):
    """Error under `--strict`: a switch has another effect than requested."""


@dataclass(frozen=True)
class LedgerRow:
    """One switch: requested value with its source, observed effect, and the evidence for it."""

    optimization: str
    requested: str
    effective: str
    reason: str
    as_requested: bool


@dataclass(frozen=True)
class Ledger:
    """Rows of all switches of a run; `str` makes a table as wide as the terminal."""

    rows: tuple[LedgerRow, ...]

    def __str__(self):
        cells = [("optimization", "requested", "effective", "reason")]
        for row in self.rows:
            effective = row.effective if row.as_requested else f"! {row.effective}"
            cells.append((row.optimization, row.requested, effective, row.reason))
        *columns, reasons = zip(*cells)
        columns = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
        starts = ["  ".join([*row, ""]) for row in zip(*columns)]
        options = dict(width=max(line_width(), len(starts[0]) + 30), subsequent_indent=" " * len(starts[0]))
        return "\n".join(textwrap.fill(r, initial_indent=start, **options) for start, r in zip(starts, reasons))

    def row(self, optimization: str) -> LedgerRow:
        return next(row for row in self.rows if row.optimization == optimization)

    def state(self) -> list[dict]:
        return [asdict(row) for row in self.rows]

    def require(self) -> None:
        """Raises `LedgerDifference` with every switch whose effect is not the requested one."""
        if differing := "; ".join(
            f"{row.optimization} must be {row.requested}, and is {row.effective} ({row.reason})"
            for row in self.rows
            if not row.as_requested
        ):
            raise LedgerDifference(f"--strict: {differing}. Request these effects, or leave out --strict.")


class LedgerKeeper:
    """Observer of a trainer's first step; must be created before that step."""

    def __init__(self, trainer: "StageTrainer"):
        self.trainer, self.step, self.switches = trainer, trainer.train_step, trainer.switches
        averages = sorted(self.step.averages().values(), key=lambda v: v.shape.num_elements())
        self._watched = averages[:WATCHED_AVERAGES]
        self._before = [v.numpy() for v in self._watched]

    def ledger(self, figures: dict) -> Ledger:
        """Returns the `Ledger`, given the results of the train step that was applied."""
        rows = [*self._numbers(), *self.trainer.stage.ledger_rows(self.step, self.switches), *self._graph()]
        rows += [self._averages(), *self._sizes(), *(self._clipping(rule, figures) for rule in self.step.rules)]
        return Ledger(tuple(rows))

    def _numbers(self):
        step, switches = self.step, self.switches
        products = count_products(step.graph)
        # The dtype of most products: a few, such as codebook distances, stay in float32.
        kind = max(products, key=products.get) if products else "float32"
        value, requested = switches.requested_text("precision")
        seen = f"{products[kind]} of {sum(products.values())} matrix products of the step in {kind}"
        effective, reason = POLICIES[kind], f"{seen}; {switches.reasons['precision']}"
        yield LedgerRow("precision", requested, effective, reason, value in ("auto", effective))
        value, requested = switches.requested_text("tf32")
        device, allowed = self.trainer.model_device, "allowed" if switches.tf32 else "not allowed"
        seen = rounds_to_tf32(device)
        reason = f"{allowed}; float32 products on {device} are {'rounded to 10 bits' if seen else 'exact'}"
        yield LedgerRow("TF32", requested, on_or_off(seen), reason, value in ("auto", seen))
        wanted, scaled = switches.precision == "mixed_float16", all(rule.scaled for rule in step.rules)
        scales = ", ".join(f"{float(rule.loss_scale.numpy()):g}" for rule in step.rules)
        requested = "dynamic (float16)" if wanted else "off (no float16)"
        reason = f"{counted(step.bad_steps, 'step')} skipped so far"
        effective = f"dynamic, now {scales}" if scaled else "off"
        yield LedgerRow("loss scaling", requested, effective, reason, wanted == scaled)

    def _graph(self):
        value, requested = self.switches.requested_text("xla")
        clusters = sum(
            node.attr["_XlaMustCompile"].b for node in nodes(self.step.graph) if "_XlaMustCompile" in node.attr
        )
        reason = self.switches.reasons.get("xla", f"{clusters} compiled clusters in the step")
        yield LedgerRow("XLA", requested, on_or_off(clusters > 0), reason, value == (clusters > 0))
        value, seen = self.trainer.config.training.deterministic, is_op_determinism_enabled()
        reason = f"TensorFlow sums in {'a fixed' if seen else 'any'} order"
        requested = f"{on_or_off(value)} ({'given' if value else 'default'})"
        yield LedgerRow("determinism", requested, on_or_off(seen), reason, seen or not value)

    def _averages(self):
        value, source = self.switches.requested["ema"]
        requested = f"{value or 'off'} ({source})"
        kept = [rule.ema for rule in self.step.rules if rule.averages]
        if not kept:
            return LedgerRow("weight averages", requested, "off", "no averages are kept", not value)
        moved = any((before != v.numpy()).any() for before, v in zip(self._before, self._watched))
        seen = "moved by the first step; used for validation and synthesis" if moved else "not moved by the first step"
        reason = f"{len(self.step.averages())} averages, {seen}"
        as_requested = moved and all(decay == value for decay in kept)
        return LedgerRow("weight averages", requested, str(kept[0]) if moved else "frozen", reason, as_requested)

    def _sizes(self):
        batching, times = self.trainer.batching, self.step.micro_batches
        why = f"; memory ran out with {batching.batch_size} clips at once" if batching.parts > 1 else ""
        reason = f"batches in the last update: {times}, accumulators: {len(self.step.accumulators())}{why}"
        accumulation = batching.accumulation
        yield LedgerRow("gradient accumulation", str(accumulation), str(times), reason, accumulation == times)
        wanted, found = batching.batch_size * batching.accumulation, batching.clips * times
        requested = f"{wanted} per update" + (", auto at once" if batching.automatic else "")
        reason = f"{batching.clips} clips at once, {found} per update"
        yield LedgerRow("batch size", requested, f"{batching.clips} x {times}", reason, wanted == found)

    @staticmethod
    def _clipping(rule, figures):
        largest, factor = rule.gradient_clip, float(rule.clip_factor)
        norm = float(figures[f"{rule.name}/gradient_norm" if rule.name else "gradient_norm"])
        applied = norm * factor
        name = f"gradient clipping ({rule.name})" if rule.name else "gradient clipping"
        requested = f"global norm {largest:g}" if largest else "off"
        effective = "off" if not largest and factor == 1 else f"global norm {applied:.3g}"
        as_requested = applied <= 1.001 * largest if largest else factor == 1
        reason = f"gradient norm of the first step: {norm:.3g}"
        if rule.phases is not None and not norm:
            effective, reason = requested, f"applied in later phases ({', '.join(rule.phases)})"
        return LedgerRow(name, requested, effective, reason, as_requested)


def nodes(graph: tf.Graph) -> Iterator:
    """Yields the nodes of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def recomputed_blocks(graph: tf.Graph) -> set[str]:
    """Names of the blocks with operations that the backward pass recomputes."""
    return {found.group(1) for node in nodes(graph) if (found := _RECOMPUTED.search(node.name))}


def attention_forms(graph: tf.Graph) -> Counter:
    """Number of attention layers of each form in a graph's forward pass."""
    forward = (node.name for node in nodes(graph) if "gradient" not in node.name)
    layers = {found.groups() for name in forward if (found := _ATTENTION.match(name))}
    names = {scope: form for form, scope in ATTENTION_SCOPES.items()}
    return Counter(names[scope] for _, scope in layers)


def count_products(graph):
    """Number of matrix products and convolutions in a graph, by dtype."""
    return Counter(tf.as_dtype(node.attr["T"].type).name for node in nodes(graph) if node.op in PRODUCTS)
