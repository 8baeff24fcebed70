"""One update of a train step: gradients, finite check, clipping, loss scale, optimizer, weight averages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from myxtts.training.loop.optimizers import make_optimizer
from myxtts.training.stages.base import Update

SUM = tf.distribute.ReduceOp.SUM
LARGEST_LOSS_SCALE = 2.0**24
FIRST_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000


class UpdateRule:
    """State of one `Update` between steps: optimizer, loss scale, weight averages, accumulators.

    Must be created in the strategy's scope and on the model device.

    Args:
        scaled: Turns on dynamic loss scaling, which float16 needs (Micikevicius et al. 2018, section 3.2).
        ema: Decay of the weight averages; 0 keeps none.
        stage_learning_rate: Peak learning rate of the stage; the update's own rate keeps its ratio to it.
    """

    def __init__(
        self, update: Update, strategy: tf.distribute.Strategy, scaled: bool, ema: float, stage_learning_rate: float
    ):
        self.name, self.objective, settings, self.phases, averaged = update
        self.strategy = strategy
        self.gradient_clip = settings.gradient_clip
        self.rate_share = settings.learning_rate / stage_learning_rate
        self.trainable = self.objective.trainable()
        self.variables = list(self.trainable.values())
        self.optimizer = make_optimizer(settings, self.trainable)
        # The optimizer gets gradients that are reduced already.
        self.optimizer._all_reduce_sum_gradients = list
        self.scaled = scaled
        self.loss_scale = tf.Variable(FIRST_LOSS_SCALE if scaled else 1.0, trainable=False, name="loss_scale")
        counters = ("good_steps", "bad_steps_in_row", "bad_steps", "updates_begun")
        self.good_steps, self.bad_steps_in_row, self.bad_steps, self.begun = (
            tf.Variable(0, trainable=False, dtype=tf.int64, name=name) for name in counters
        )
        self.averages = WeightAverages(self.trainable, ema, strategy) if ema and averaged else None
        self.clip_factor = None
        """Factor, at most 1, that bounded the global norm of the last gradients."""
        self.sums = []

    def compile(self, xla: bool) -> None:
        """Sets whether XLA compiles the gradients and, on one device, the update; must be called before a step."""
        self.gradients: Callable = self._gradients
        self._apply_compiled: Callable = self._apply
        if xla:
            self.gradients = tf.function(self._gradients, jit_compile=True)
            # With several replicas, the optimizer leaves the replica context, which XLA cannot.
            if self.strategy.num_replicas_in_sync == 1:
                self._apply_compiled = tf.function(self._apply, jit_compile=True)

    def has_turn(self, phase: str) -> bool:
        """Whether the update is applied in this phase of the stage."""
        return self.phases is None or phase in self.phases

    def named(self, values: dict) -> dict:
        """Prefixes the names of `values` with the update's, as in checkpoints and logs."""
        return {f"{self.name}/{name}": value for name, value in values.items()} if self.name else values

    def state_variables(self) -> dict[str, tf.Variable]:
        """Everything that a checkpoint needs besides the weights, by name."""
        slots = {f"optimizer/{i:04d}": v for i, v in enumerate(self.optimizer.variables)}
        scalars = ("loss_scale", "good_steps", "bad_steps", "bad_steps_in_row")
        return slots | {name: getattr(self, name) for name in scalars}

    def make_accumulators(self) -> None:
        """Creates the gradient accumulators; must be called in the strategy's scope."""
        kind = dict(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
        self.sums = self.sums or [
            tf.Variable(tf.zeros(v.shape), trainable=False, name="accumulator", **kind) for v in self.variables
        ]

    def all_reduce(self, value):
        """Sums a value over all replicas; must be called in a replica."""
        if self.strategy.num_replicas_in_sync == 1:
            return value
        return tf.distribute.get_replica_context().all_reduce(SUM, value)

    def first(self, value):
        """The first replica's part of a value that is equal on all of them."""
        return tf.nest.map_structure(lambda v: self.strategy.experimental_local_results(v)[0], value)

    def weighted(self, sums: dict, counts: dict) -> tf.Tensor:
        """Total loss: weighted sum of the mean of each loss."""
        weights = self.objective.loss_weights.items()
        return tf.add_n([weight * sums[name] / tf.maximum(counts[name], 1.0) for name, weight in weights])

    def _gradients(self, batch, counts, seed, phase):
        """Gradients of one replica's share of the loss, with its loss sums and statistics."""
        self.objective.phase = phase
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            values = [v.value for v in self.variables]
            tape.watch(values)
            sums, statistics = self.objective.loss_sums(batch, seed)
            loss = self.weighted(sums, counts) * self.loss_scale
        gradients = tape.gradient(loss, values)
        if lost := [name for name, gradient in zip(self.trainable, gradients) if gradient is None]:
            raise ValueError(f"The losses do not depend on {lost[0]} ({len(lost)} weights in all).")
        return [tf.convert_to_tensor(gradient) for gradient in gradients], sums, statistics

    def take_accumulated(self) -> list:
        """Sums the accumulated gradients over replicas and clears the accumulators; must be called in a replica."""
        gradients = [tf.identity(accumulator) for accumulator in self.sums]
        with tf.control_dependencies(gradients):
            for accumulator in self.sums:
                accumulator.assign(tf.zeros_like(accumulator))
        return self.all_reduce(gradients)

    def update(self, gradients: list, sums: dict, counts: dict, statistics: dict) -> dict[str, tf.Tensor]:
        """Checks, clips and applies reduced gradients; if they or the loss are not finite, no weight changes.

        Returns:
            Scalars by name: each loss, `loss` (weighted), `gradient_norm`, `finite`, `clip_factor`.
        """
        scale = self.loss_scale.read_value()
        norm = tf.linalg.global_norm(self.first(gradients)) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(self.weighted(sums, counts))
        clip_factor = tf.minimum(1.0, self.gradient_clip / (norm + 1e-6)) if self.gradient_clip else tf.ones_like(norm)
        factor = clip_factor / scale
        # A step that runs out of memory does so before this count: it tells whether the weights are unchanged.
        with tf.control_dependencies([finite]):
            self.begun.assign_add(1)

        def good():
            self.strategy.run(self._apply_compiled, (gradients, statistics, factor))
            self.bad_steps_in_row.assign(0)
            if self.scaled:
                grows = self.good_steps + 1 >= LOSS_SCALE_GROWTH_STEPS
                self.loss_scale.assign(tf.where(grows, tf.minimum(scale * 2.0, LARGEST_LOSS_SCALE), scale))
                self.good_steps.assign(tf.where(grows, tf.constant(0, tf.int64), self.good_steps + 1))
            return True

        def bad():
            self.bad_steps.assign_add(1)
            self.bad_steps_in_row.assign_add(1)
            if self.scaled:
                self.loss_scale.assign(tf.maximum(scale * 0.5, 1.0))
                self.good_steps.assign(0)
            return False

        tf.cond(finite, good, bad)
        losses = {name: value / tf.maximum(counts[name], 1.0) for name, value in sums.items()}
        figures = {"loss": self.weighted(sums, counts), "gradient_norm": norm, "finite": finite}
        return {**losses, **figures, "clip_factor": clip_factor}

    def _apply(self, gradients, statistics, factor):
        taken = tf.identity(self.optimizer.iterations.value)
        self.optimizer.apply([gradient * factor for gradient in gradients], self.variables)
        if self.averages is not None:
            self.averages.update(taken)
        if statistics:
            self.objective.apply_statistics(statistics)


class WeightAverages:
    """Exponential moving averages of trained weights (Polyak and Juditsky 1992), on every replica.

    The decay of step t is `min(decay, (1 + t) / (10 + t))`, as in `tf.train.ExponentialMovingAverage` with
    `num_updates`. Keras's `use_ema` has no such warm-up: at a decay of 0.999, the initial weights would still make up a
    third of the average after a thousand steps.

    Must be created in the strategy's scope and on the model device. `decay` is in `[0, 1)`.
    """

    def __init__(self, named: dict[str, keras.Variable], decay: float, strategy: tf.distribute.Strategy):
        self.decay, self._strategy = decay, strategy
        self.variables: dict[str, tf.Variable] = {
            f"average/{name}": tf.Variable(tf.zeros(v.shape), trainable=False, name="average")
            for name, v in named.items()
        }
        self._pairs = list(zip(self.variables.values(), named.values()))
        self.restart()

    def restart(self) -> None:

        def assign():
            for average, weight in self._pairs:
                average.assign(weight.value)

        self._strategy.run(assign)

    def update(self, step: tf.Tensor) -> None:
        """Updates the moving averages after an optimizer step, in a replica; `step` is the number of earlier steps."""
        step = tf.cast(step, tf.float32)
        rate = 1.0 - tf.minimum(self.decay, (1.0 + step) / (10.0 + step))
        for average, weight in self._pairs:
            average.assign_add((weight.value - average) * rate)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Exchanges weights and averages within the block."""

        def exchange():
            for average, weight in self._pairs:
                held = tf.identity(weight.value)
                weight.assign(average.read_value())
                average.assign(held)

        self._strategy.run(exchange)
        try:
            yield
        finally:
            self._strategy.run(exchange)
