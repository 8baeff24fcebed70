"""The account of the training switches: what was asked for, and what the first step was seen to do."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import tensorflow as tf

from myxtts.config.checks import ConfigError, counted
from myxtts.devices.precision import rounds_to_tf32
from myxtts.models.layers.attention import ATTENTION_SCOPES
from myxtts.training.loop.batching import Batching
from myxtts.training.loop.gradient_order import RECOMPUTED
from myxtts.training.loop.optimizations import Switches, is_deterministic
from myxtts.training.loop.step import TrainStep
from myxtts.training.stages.base import Stage
from myxtts.utils.commons import LINE_WIDTH

PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")
"""Operations that a policy of lower precision is about: matrix products and convolutions."""
POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
WATCHED_AVERAGES = 8
"""Weight averages, the smallest ones, that are looked at to see whether they move."""

_RECOMPUTED = re.compile(rf"(?:^|/){RECOMPUTED}((?:conditioning_)?block_\d+)(?:_\d+)?/")
_ATTENTION = re.compile(rf"^(?:replica_\d+/)?(.*?)({'|'.join(ATTENTION_SCOPES.values())})(?:_\d+)?/")


class LedgerDifference(ConfigError):
    """Under `--strict`: a switch has another effect than asked for."""


@dataclass(frozen=True)
class LedgerRow:
    """One switch: what was asked for and by whom, what was observed, what that rests on and why it differs."""

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
            first, *rest = textwrap.wrap(reason, max(LINE_WIDTH - indent, 30)) or [""]
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
    """Looks at a train step, whose batches have up to `num_shapes` shapes, before its first call here and after it."""

    def __init__(
        self, stage: Stage, train_step: TrainStep, switches: Switches, batching: Batching, device: str, num_shapes: int
    ):
        self.stage, self.step, self.switches, self.batching = stage, train_step, switches, batching
        self.device, self.num_shapes = device, num_shapes
        self._watched = sorted(train_step.averages().values(), key=lambda v: v.shape.num_elements())[:WATCHED_AVERAGES]
        self._before = [v.numpy() for v in self._watched]

    def ledger(self, figures: dict) -> Ledger:
        """The `Ledger`; to be called after a step that was applied, with what it returned."""
        rows = [self._precision(), self._tf32(), self._loss_scaling()]
        looks = {"gradient_checkpointing": self._recomputation, "attention": self._attention}
        rows += [look() for switch, look in looks.items() if switch in self.stage.switches]
        rows += [self._adapters()] if hasattr(self.stage, "lora") and self.stage.config.training.gpt.lora_rank else []
        rows += [self._xla(), self._determinism(), self._averages(), self._accumulation(), self._batch()]
        return Ledger((*rows, *(self._clipping(rule, figures) for rule in self.step.rules)))

    def _asked(self, switch):
        """What a switch was asked to be, and that with its source in words."""
        value, source = self.switches.requested[switch]
        return value, f"{_on(value) if isinstance(value, bool) else value} ({source})"

    def _precision(self):
        products = count_products(self.step.graph)
        total = sum(products.values())
        # The one with most products; what stays in float32 (the codebook's distances) is a handful.
        kind = max(products, key=products.get) if products else "float32"
        seen = f"{products[kind]} of {total} matrix products of the step in {kind}"
        value, requested = self._asked("precision")
        effective, reason = POLICIES[kind], f"{seen}; {self.switches.reasons['precision']}"
        return LedgerRow("precision", requested, effective, reason, value in ("auto", effective))

    def _tf32(self):
        value, requested = self._asked("tf32")
        seen = rounds_to_tf32(self.device)
        allowed = "allowed" if self.switches.tf32 else "not allowed"
        reason = f"{allowed}; float32 products on {self.device} are {'rounded to 10 bits' if seen else 'exact'}"
        return LedgerRow("TF32", requested, _on(seen), reason, value in ("auto", seen))

    def _loss_scaling(self):
        wanted, scaled = self.switches.precision == "mixed_float16", all(rule.scaled for rule in self.step.rules)
        # A scale may have halved to 1 in time; it is still one that moves.
        scales = ", ".join(f"{float(rule.loss_scale.numpy()):g}" for rule in self.step.rules)
        requested = "dynamic (float16)" if wanted else "off (no float16)"
        reason = f"{counted(self.step.bad_steps, 'step')} skipped so far"
        effective = f"dynamic, now {scales}" if scaled else "off"
        return LedgerRow("loss scaling", requested, effective, reason, wanted == scaled)

    def _recomputation(self):
        value, requested = self._asked("gradient_checkpointing")
        blocks, total = recomputed_blocks(self.step.graph), self.stage.recomputable_blocks()
        reason = f"{len(blocks)} of {total} blocks are recomputed in the backward pass"
        as_requested = len(blocks) == (total if value else 0)
        return LedgerRow("gradient checkpointing", requested, _on(bool(blocks)), reason, as_requested)

    def _attention(self):
        forms = attention_forms(self.step.graph)
        effective = " and ".join(sorted(forms)) or "none"
        # The perceiver is left out of this: it has few queries and keeps the standard form.
        reason = ", ".join(f"{number} layers {form}" for form, number in sorted(forms.items()))
        reason = "; ".join(filter(None, (reason, self.switches.reasons.get("attention"))))
        as_requested = effective == self.switches.attention
        return LedgerRow("attention", self._asked("attention")[1], effective, reason, as_requested)

    def _adapters(self):
        training, trained = self.stage.config.training, self.step.trainable()
        ranks = {variable.shape[-1] for name, variable in trained.items() if name.endswith("lora_kernel_a")}
        of_adapters = sum(int(tf.size(v.value)) for name, v in trained.items() if "lora_kernel" in name)
        others = sum(int(tf.size(v.value)) for name, v in trained.items() if "lora_kernel" not in name)
        reason = f"{of_adapters:,} weights of adapters and {others:,} of text are trained; alpha "
        reason += f"{training.gpt.lora_alpha or training.gpt.lora_rank:g}, dropout {training.gpt.lora_dropout:g}, on "
        reason += ", ".join(training.gpt.lora_targets)
        effective = f"rank {', '.join(map(str, sorted(ranks)))}" if ranks else "off"
        as_requested = ranks == {training.gpt.lora_rank}
        return LedgerRow("LoRA", f"rank {training.gpt.lora_rank} (given)", effective, reason, as_requested)

    def _xla(self):
        value, requested = self._asked("xla")
        clusters = count_clusters(self.step.graph)
        reason = f"{clusters} compiled clusters in the step"
        if clusters:
            most = f"at most {self.step.most_compilations(self.num_shapes)} for {counted(self.num_shapes, 'shape')}"
            reason += f"; {self.step.compilations} programs compiled so far, {most}"
        reason = self.switches.reasons.get("xla", reason)
        return LedgerRow("XLA", requested, _on(clusters > 0), reason, value == (clusters > 0))

    def _determinism(self):
        value, seen = self.stage.config.training.deterministic, is_deterministic()
        reason = f"TensorFlow takes sums in {'one order' if seen else 'any order that is quick'}"
        requested = f"{_on(value)} ({'given' if value else 'default'})"
        return LedgerRow("determinism", requested, _on(seen), reason, seen or not value)

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

    def _accumulation(self):
        value, parts, seen = self.batching.accumulation, self.batching.parts, self.step.micro_batches
        why = f", since memory ran out for {self.batching.batch_size} at once" if parts > 1 else ""
        accumulators = len(self.step.accumulators())
        reason = f"{seen} times a gradient in the last update, {accumulators} accumulators{why}"
        return LedgerRow("gradient accumulation", str(value), str(seen), reason, value == seen)

    def _batch(self):
        clips, times = self.batching.clips, self.step.micro_batches
        wanted, found = self.batching.batch_size * self.batching.accumulation, clips * times
        requested = f"{wanted} an update" + (", auto at once" if self.batching.automatic else "")
        reason = f"{clips} clips at once make {found} an update"
        return LedgerRow("batch size", requested, f"{clips} x {times}", reason, wanted == found)

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


def _on(value):
    return "on" if value else "off"
