"""The account of the training switches: what was asked for, and what the first step was seen to do."""

from collections import Counter
from dataclasses import asdict, dataclass

import tensorflow as tf

from myxtts.config.checks import ConfigError
from myxtts.devices.precision import rounds_to_tf32
from myxtts.training.graph_facts import attention_forms, nodes, recomputed_blocks

PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")
"""Operations that a policy of lower precision is about: matrix products and convolutions."""
POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
WATCHED_AVERAGES = 8
"""Weight averages, the smallest ones, that are looked at to see whether they move."""


class LedgerDifference(ConfigError):
    """Under `--strict`: a switch has another effect than asked for."""


@dataclass(frozen=True)
class LedgerRow:
    """One switch."""

    optimisation: str
    requested: str
    """What was asked for, and by whom."""
    effective: str
    """What was observed."""
    reason: str
    """What the observation rests on, and why it differs where it does."""
    as_requested: bool


@dataclass(frozen=True)
class Ledger:
    """All switches of a run."""

    rows: tuple[LedgerRow, ...]

    def __str__(self):
        cells = [("optimisation", "requested", "effective", "reason")]
        cells += [
            (row.optimisation, row.requested, ("" if row.as_requested else "! ") + row.effective, row.reason)
            for row in self.rows
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in cells
        )

    def row(self, optimisation):
        """The row of that name."""
        return next(row for row in self.rows if row.optimisation == optimisation)

    def state(self):
        """The rows as JSON values."""
        return [asdict(row) for row in self.rows]

    def require(self):
        """Raises `LedgerDifference` naming every switch whose effect is not what was asked for."""
        differing = [row for row in self.rows if not row.as_requested]
        if differing:
            raise LedgerDifference(
                "--strict: "
                + "; ".join(
                    f"{row.optimisation} was to be {row.requested} and is {row.effective} ({row.reason})"
                    for row in differing
                )
                + ". Ask for what there is, or leave --strict out to train with that."
            )


class LedgerKeeper:
    """Looks at a trainer before its first step and after it.

    Args:
        trainer: `XTTSTrainer` that has not taken a step in this process.
        num_shapes: Shapes that its batches can have.
    """

    def __init__(self, trainer, num_shapes):
        self._trainer = trainer
        self._num_shapes = num_shapes
        averages = trainer.train_step.averages
        self._watched = (
            sorted(averages.averages, key=lambda v: v.shape.num_elements())[:WATCHED_AVERAGES] if averages else []
        )
        self._before = [v.numpy() for v in self._watched]

    def ledger(self, gradient_norm):
        """The `Ledger`; to be called after a step that was applied, with the global norm of its gradient."""
        rows = [
            row(self._trainer)
            for row in (
                self._precision,
                self._tf32,
                self._loss_scaling,
                *self._memory_rows(),
                self._xla,
                self._averages,
                self._accumulation,
                self._batch,
            )
        ]
        return Ledger((*rows, self._clipping(self._trainer, gradient_norm)))

    def _memory_rows(self):
        # The DVAE has neither attention nor blocks to recompute.
        return (self._recomputation, self._attention) if self._trainer.stage == "gpt" else ()

    def _precision(self, trainer):
        products = count_products(trainer.train_step.graph)
        total = sum(products.values())
        # The one with most products; what stays in float32 (the codebook's distances) is a handful.
        kind = max(products, key=products.get) if products else "float32"
        seen = f"{products[kind]} of {total} matrix products of the step in {kind}"
        value, source = trainer.switches.requested["precision"]
        effective = POLICIES[kind]
        return LedgerRow(
            "precision",
            f"{value} ({source})",
            effective,
            f"{seen}; {trainer.switches.reasons['precision']}",
            value in ("auto", effective),
        )

    def _tf32(self, trainer):
        value, source = trainer.switches.requested["tf32"]
        seen = rounds_to_tf32(trainer.model_device)
        reason = (
            f"{'allowed' if trainer.switches.tf32 else 'not allowed'}; float32 products on {trainer.model_device} are "
            f"{'rounded to 10 bits' if seen else 'exact'}"
        )
        return LedgerRow(
            "TF32", f"{value if value == 'auto' else _on(value)} ({source})", _on(seen), reason, value in ("auto", seen)
        )

    def _clipping(self, trainer, gradient_norm):
        largest, factor = trainer.stage_config.gradient_clip, float(trainer.train_step.clip_factor)
        applied = gradient_norm * factor
        return LedgerRow(
            "gradient clipping",
            f"global norm {largest:g}" if largest else "off",
            "off" if not largest and factor == 1 else f"global norm {applied:.3g}",
            f"the first step's gradient has the norm {gradient_norm:.3g}",
            applied <= 1.001 * largest if largest else factor == 1,
        )

    def _loss_scaling(self, trainer):
        scale = float(trainer.train_step.loss_scale)
        wanted = trainer.switches.precision == "mixed_float16"
        # A scale may have halved to 1 in time; it is still one that moves.
        effective = f"dynamic, now {scale:g}" if trainer.train_step.scaled else "off"
        return LedgerRow(
            "loss scaling",
            "dynamic (float16)" if wanted else "off (no float16)",
            effective,
            f"{int(trainer.train_step.bad_steps)} steps skipped so far",
            wanted == trainer.train_step.scaled,
        )

    def _recomputation(self, trainer):
        value, source = trainer.switches.requested["gradient_checkpointing"]
        gpt = trainer.model.gpt
        blocks, total = (
            recomputed_blocks(trainer.train_step.graph),
            len(gpt.blocks) + len(gpt.conditioning_encoder.blocks),
        )
        return LedgerRow(
            "gradient checkpointing",
            f"{_on(value)} ({source})",
            _on(bool(blocks)),
            f"{len(blocks)} of {total} blocks are recomputed in the backward pass",
            len(blocks) == (total if value else 0),
        )

    def _attention(self, trainer):
        value, source = trainer.switches.requested["attention"]
        forms = attention_forms(trainer.train_step.graph)
        effective = " and ".join(sorted(forms)) or "none"
        # The perceiver is left out of this: it has few queries and keeps the standard form.
        reason = ", ".join(f"{number} layers {form}" for form, number in sorted(forms.items()))
        return LedgerRow(
            "attention",
            f"{value} ({source})",
            effective,
            "; ".join(filter(None, (reason, trainer.switches.reasons.get("attention")))),
            effective == trainer.switches.attention,
        )

    def _xla(self, trainer):
        value, source = trainer.switches.requested["xla"]
        clusters, step = count_clusters(trainer.train_step.graph), trainer.train_step
        reason = f"{clusters} compiled clusters in the step"
        if clusters:
            bound = step.most_compilations(self._num_shapes)
            reason += f"; {step.compilations} programs compiled so far, at most {bound} for {self._num_shapes} shapes"
        return LedgerRow(
            "XLA",
            f"{_on(value)} ({source})",
            _on(clusters > 0),
            trainer.switches.reasons.get("xla", reason),
            value == (clusters > 0),
        )

    def _averages(self, trainer):
        value, source = trainer.switches.requested["ema"]
        averages = trainer.train_step.averages
        requested = f"{value or 'off'} ({source})"
        if averages is None:
            return LedgerRow("weight averages", requested, "off", "no averages are kept", not value)
        moved = any((before != v.numpy()).any() for before, v in zip(self._before, self._watched))
        reason = f"{len(averages.averages)} averages, " + (
            "moved by the first step; they are validated and spoken with" if moved else "none of which moves"
        )
        return LedgerRow(
            "weight averages",
            requested,
            str(averages.decay) if moved else "standing still",
            reason,
            moved and averages.decay == value,
        )

    def _accumulation(self, trainer):
        value = trainer.config.training.gradient_accumulation
        step = trainer.train_step
        accumulators = len(step.accumulators())
        parts = trainer.micro_batches.parts
        why = f", since memory ran out for {trainer.stage_config.batch_size} at once" if parts > 1 else ""
        return LedgerRow(
            "gradient accumulation",
            str(value),
            str(step.micro_batches),
            f"{step.micro_batches} times a gradient in the last update, {accumulators} accumulators{why}",
            value == step.micro_batches,
        )

    def _batch(self, trainer):
        settings, clips = trainer.config.training, trainer.micro_batches.clips
        wanted = trainer.stage_config.batch_size * settings.gradient_accumulation
        found = clips * trainer.train_step.micro_batches
        requested = f"{wanted} an update" + (", auto at once" if settings.automatic_batch_size else "")
        return LedgerRow(
            "batch size",
            requested,
            f"{clips} x {trainer.train_step.micro_batches}",
            f"{clips} clips at once make {found} an update",
            wanted == found,
        )


def count_products(graph):
    """How many matrix products and convolutions a traced graph has, by the dtype they are computed in."""
    return Counter(tf.as_dtype(node.attr["T"].type).name for node in nodes(graph) if node.op in PRODUCTS)


def count_clusters(graph):
    """How many calls of functions that XLA must compile a traced graph has."""
    return sum(node.attr["_XlaMustCompile"].b for node in nodes(graph) if "_XlaMustCompile" in node.attr)


def _on(value):
    return "on" if value else "off"
