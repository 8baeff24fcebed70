"""The ledger of the training switches: what was asked for, and what the first step was seen to do."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from myxtts.config.checks import ConfigError, counted
from myxtts.devices.kinds import rounds_to_tf32
from myxtts.models.layers.attention import ATTENTION_SCOPES
from myxtts.training.loop.optimizations import RECOMPUTED, on_or_off
from myxtts.utils.commons import line_width

if TYPE_CHECKING:
    from myxtts.training.stage_trainer import StageTrainer

PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")
"""Operations that a policy of lower precision applies to: matrix products and convolutions."""
POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
WATCHED_AVERAGES = 8
"""Weight averages, the smallest ones, that are checked for movement."""

_RECOMPUTED = re.compile(rf"(?:^|/){RECOMPUTED}((?:conditioning_)?block_\d+)(?:_\d+)?/")
_ATTENTION = re.compile(rf"^(?:replica_\d+/)?(.*?)({'|'.join(ATTENTION_SCOPES.values())})(?:_\d+)?/")


class LedgerDifference(ConfigError):
    """Under `--strict`: a switch has another effect than asked for."""


@dataclass(frozen=True)
class LedgerRow:
    """One switch: what was asked for and by whom, what was observed, the evidence and why it differs."""

    optimization: str
    requested: str
    effective: str
    reason: str
    as_requested: bool


@dataclass(frozen=True)
class Ledger:
    """All switches of a run."""

    rows: tuple[LedgerRow, ...]

    def __str__(self):
        cells = [("optimization", "requested", "effective", "reason")]
        for row in self.rows:
            effective = row.effective if row.as_requested else f"! {row.effective}"
            cells.append((row.optimization, row.requested, effective, row.reason))
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        indent = sum(widths) + 3 * 2
        rows = []
        for *row, reason in cells:
            first, *rest = textwrap.wrap(reason, max(line_width() - indent, 30)) or [""]
            rows.append("  ".join([*map(str.ljust, row, widths), first]).rstrip())
            rows += [" " * indent + line for line in rest]
        return "\n".join(rows)

    def row(self, optimization: str) -> LedgerRow:
        """The row of that name."""
        return next(row for row in self.rows if row.optimization == optimization)

    def state(self) -> list[dict]:
        """The rows as JSON values."""
        return [asdict(row) for row in self.rows]

    def require(self) -> None:
        """Raises `LedgerDifference` naming every switch whose effect is not what was asked for."""
        differing = "; ".join(
            f"{row.optimization} was to be {row.requested} and is {row.effective} ({row.reason})"
            for row in self.rows
            if not row.as_requested
        )
        if differing:
            way_out = "Ask for what there is, or leave --strict out to train with that."
            raise LedgerDifference(f"--strict: {differing}. {way_out}")


class LedgerKeeper:
    """Observes a trainer's first step; to be made before it."""

    def __init__(self, trainer: "StageTrainer"):
        self.trainer, self.step, self.switches = trainer, trainer.train_step, trainer.switches
        averages = sorted(self.step.averages().values(), key=lambda v: v.shape.num_elements())
        self._watched = averages[:WATCHED_AVERAGES]
        self._before = [v.numpy() for v in self._watched]

    def ledger(self, figures: dict) -> Ledger:
        """The `Ledger`; to be called after a step that was applied, with what it returned."""
        rows = [*self._numbers(), *self.trainer.stage.ledger_rows(self.step, self.switches), self._xla()]
        rows += [self._determinism(), self._averages(), *self._sizes()]
        return Ledger((*rows, *(self._clipping(rule, figures) for rule in self.step.rules)))

    def _numbers(self):
        step, switches = self.step, self.switches
        products = count_products(step.graph)
        # The dtype of most products; what stays in float32 (the codebook's distances) is a handful.
        kind = max(products, key=products.get) if products else "float32"
        seen = f"{products[kind]} of {sum(products.values())} matrix products of the step in {kind}"
        value, requested = switches.asked("precision")
        effective, reason = POLICIES[kind], f"{seen}; {switches.reasons['precision']}"
        yield LedgerRow("precision", requested, effective, reason, value in ("auto", effective))
        value, requested = switches.asked("tf32")
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

    def _xla(self):
        value, requested = self.switches.asked("xla")
        clusters = count_clusters(self.step.graph)
        reason = self.switches.reasons.get("xla", f"{clusters} compiled clusters in the step")
        return LedgerRow("XLA", requested, on_or_off(clusters > 0), reason, value == (clusters > 0))

    def _determinism(self):
        value, seen = self.trainer.config.training.deterministic, is_op_determinism_enabled()
        reason = f"TensorFlow takes sums in {'one order' if seen else 'any order that is quick'}"
        requested = f"{on_or_off(value)} ({'given' if value else 'default'})"
        return LedgerRow("determinism", requested, on_or_off(seen), reason, seen or not value)

    def _averages(self):
        value, source = self.switches.requested["ema"]
        requested = f"{value or 'off'} ({source})"
        kept = [rule.averages for rule in self.step.rules if rule.averages is not None]
        if not kept:
            return LedgerRow("weight averages", requested, "off", "no averages are kept", not value)
        moved = any((before != v.numpy()).any() for before, v in zip(self._before, self._watched))
        seen = "moved by the first step; they are validated and spoken with" if moved else "none of which moves"
        reason = f"{len(self.step.averages())} averages, {seen}"
        as_requested = moved and all(averages.decay == value for averages in kept)
        return LedgerRow("weight averages", requested, str(kept[0].decay) if moved else "frozen", reason, as_requested)

    def _sizes(self):
        batching, times = self.trainer.batching, self.step.micro_batches
        why = f", since memory ran out for {batching.batch_size} at once" if batching.parts > 1 else ""
        reason = f"{times} times a gradient in the last update, {len(self.step.accumulators())} accumulators{why}"
        asked = batching.accumulation
        yield LedgerRow("gradient accumulation", str(asked), str(times), reason, asked == times)
        wanted, found = batching.batch_size * batching.accumulation, batching.clips * times
        requested = f"{wanted} an update" + (", auto at once" if batching.automatic else "")
        reason = f"{batching.clips} clips at once make {found} an update"
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
        reason = f"the first step's gradient has the norm {norm:.3g}"
        if rule.phases is not None and not norm:
            effective, reason = requested, f"has its turn in later steps ({', '.join(rule.phases)})"
        return LedgerRow(name, requested, effective, reason, as_requested)


def nodes(graph: tf.Graph) -> Iterator:
    """Nodes of a graph and of the functions it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def recomputed_blocks(graph: tf.Graph) -> set[str]:
    """Names of the blocks that have operations which the backward pass makes again."""
    return {found.group(1) for node in nodes(graph) if (found := _RECOMPUTED.search(node.name))}


def attention_forms(graph: tf.Graph) -> Counter:
    """`{form: number of layers}` of the attention layers in a graph's forward pass."""
    forward = (node.name for node in nodes(graph) if "gradient" not in node.name)
    layers = {found.groups() for name in forward if (found := _ATTENTION.match(name))}
    names = {scope: form for form, scope in ATTENTION_SCOPES.items()}
    return Counter(names[scope] for _, scope in layers)


def count_products(graph):
    """How many matrix products and convolutions a traced graph has, by the dtype they are computed in."""
    return Counter(tf.as_dtype(node.attr["T"].type).name for node in nodes(graph) if node.op in PRODUCTS)


def count_clusters(graph):
    """How many calls of functions that XLA must compile a traced graph has."""
    return sum(node.attr["_XlaMustCompile"].b for node in nodes(graph) if "_XlaMustCompile" in node.attr)
