"""What one optimizer does for one set of weights: gradients, finite check, clipping, loss scale, update, averages."""

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
    """One `Update` of a stage, with everything that it carries from one step to the next.

    To be made in the strategy's scope and on the model device. `scaled` turns on dynamic loss scaling, as float16 needs
    (Micikevicius et al. 2018, section 3.2), `ema` is the decay of the weight averages, 0 for none. The update's
    learning rate keeps its ratio to `stage_learning_rate`, the peak of the stage.
    """

    def __init__(
        self, update: Update, strategy: tf.distribute.Strategy, *, scaled=False, ema=0.0, stage_learning_rate=None
    ):
        self.name, self.objective, settings, self.phases, averaged = update
        self.strategy = strategy
        self.gradient_clip = settings.gradient_clip
        self.rate_share = settings.learning_rate / (stage_learning_rate or settings.learning_rate)
        self.trainable = self.objective.trainable()
        self.variables = list(self.trainable.values())
        self.optimizer = make_optimizer(settings, self.trainable)
        # The gradients handed to the optimizer are reduced already.
        self.optimizer._all_reduce_sum_gradients = list
        self.scaled = scaled
        self.loss_scale = tf.Variable(FIRST_LOSS_SCALE if scaled else 1.0, trainable=False, name="loss_scale")
        counters = ("good_steps", "bad_steps_in_row", "bad_steps", "updates_begun")
        self.good_steps, self.bad_steps_in_row, self.bad_steps, self.begun = (
            tf.Variable(0, trainable=False, dtype=tf.int64, name=name) for name in counters
        )
        self.averages = WeightAverages(self.trainable, ema, strategy) if ema and averaged else None
        self.clip_factor = None
        """Scalar up to 1 by which the last update multiplied its gradients to bound their global norm."""
        self.sums = []
        self.compile(False)

    def compile(self, xla: bool) -> None:
        """Decides whether XLA compiles gradients and, on one device, the update, once per shape of batch."""
        self.gradients: Callable = self._gradients
        self._apply_compiled: Callable = self._apply
        if xla:
            self.gradients = tf.function(self._gradients, jit_compile=True)
            if self.strategy.num_replicas_in_sync == 1:  # with several, the optimizer leaves the replica: XLA cannot
                self._apply_compiled = tf.function(self._apply, jit_compile=True)

    def has_turn(self, phase: str) -> bool:
        """Whether the update is taken in this phase of the stage."""
        return self.phases is None or phase in self.phases

    def named(self, values: dict) -> dict:
        """`values` under the update's name, as checkpoints and logs have them."""
        return {f"{self.name}/{name}": value for name, value in values.items()} if self.name else values

    def state_variables(self) -> dict[str, tf.Variable]:
        """Everything a checkpoint needs besides the weights, by name within the update."""
        slots = {f"optimizer/{i:04d}": v for i, v in enumerate(self.optimizer.variables)}
        scalars = ("loss_scale", "good_steps", "bad_steps", "bad_steps_in_row")
        return slots | {name: getattr(self, name) for name in scalars}

    def make_accumulators(self) -> None:
        """Creates the gradient accumulators; to be called in the strategy's scope."""
        kind = dict(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
        self.sums = self.sums or [
            tf.Variable(tf.zeros(v.shape), trainable=False, name="accumulator", **kind) for v in self.variables
        ]

    def all_reduce(self, value):
        """The sum over replicas; to be called in one of them."""
        if self.strategy.num_replicas_in_sync == 1:
            return value
        return tf.distribute.get_replica_context().all_reduce(SUM, value)

    def first(self, value):
        """The first replica's value of something equal on all of them."""
        return tf.nest.map_structure(lambda v: self.strategy.experimental_local_results(v)[0], value)

    def weighted(self, sums: dict, counts: dict) -> tf.Tensor:
        """The loss: weighted sum of the means."""
        weights = self.objective.loss_weights.items()
        return tf.add_n([weight * sums[name] / tf.maximum(counts[name], 1.0) for name, weight in weights])

    def _gradients(self, batch, counts, seed, phase):
        """Gradients of one replica's part of the loss, and the sums and statistics behind it."""
        self.objective.phase = phase
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            values = [v.value for v in self.variables]
            tape.watch(values)
            sums, statistics = self.objective.loss_sums(batch, seed)
            loss = self.weighted(sums, counts) * self.loss_scale
        gradients = tape.gradient(loss, values)
        lost = [name for name, gradient in zip(self.trainable, gradients) if gradient is None]
        if lost:
            raise ValueError(f"The losses do not depend on {lost[0]} ({len(lost)} weights in all).")
        return [tf.convert_to_tensor(gradient) for gradient in gradients], sums, statistics

    def take_accumulated(self) -> list:
        """The sums over micro-batches and replicas; the accumulators are empty afterwards. In a replica."""
        gradients = [tf.identity(accumulator) for accumulator in self.sums]
        with tf.control_dependencies(gradients):
            for accumulator in self.sums:
                accumulator.assign(tf.zeros_like(accumulator))
        return self.all_reduce(gradients)

    def update(self, gradients: list, sums: dict, counts: dict, statistics: dict) -> dict[str, tf.Tensor]:
        """Checks, clips and applies reduced gradients; a step that is not finite changes no weight.

        Returns:
            Scalars by name: each loss, `loss` (weighted), `gradient_norm`, `finite`, `clip_factor`.
        """
        scale = self.loss_scale.read_value()
        norm = tf.linalg.global_norm(self.first(gradients)) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(self.weighted(sums, counts))
        clip_factor = tf.minimum(1.0, self.gradient_clip / (norm + 1e-6)) if self.gradient_clip else tf.ones_like(norm)
        factor = clip_factor / scale
        # Only now: a step runs out of memory before this, so it shows whether an error left the weights unchanged.
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
    """Exponential moving averages of trained weights (Polyak and Juditsky 1992), one beside each weight's replica.

    The decay of step t is `min(decay, (1 + t) / (10 + t))`, as in `tf.train.ExponentialMovingAverage` with
    `num_updates`. Keras's `use_ema` has no such rise: with a decay of 0.999 the weights of the first step would still
    make up a third of the average after a thousand steps, which is more than a short run has.

    To be made in the strategy's scope and on the model device. `decay` is from 0 to below 1.
    """

    def __init__(self, named: dict[str, keras.Variable], decay: float, strategy: tf.distribute.Strategy):
        self.decay, self._strategy = decay, strategy
        averages = [tf.Variable(tf.zeros(v.shape), trainable=False, name="average") for v in named.values()]
        self.variables: dict[str, tf.Variable] = {f"average/{name}": v for name, v in zip(named, averages)}
        """The averages by name."""
        self._pairs = list(zip(averages, named.values()))
        self.restart()

    def restart(self) -> None:
        """Sets each average to its weight."""

        def assign():
            for average, weight in self._pairs:
                average.assign(weight.value)

        self._strategy.run(assign)

    def update(self, step: tf.Tensor) -> None:
        """Updates the averages; to be called on each replica, after the optimizer. `step` is the number of earlier
        updates.
        """
        step = tf.cast(step, tf.float32)
        rate = 1.0 - tf.minimum(self.decay, (1.0 + step) / (10.0 + step))
        for average, weight in self._pairs:
            average.assign_add((weight.value - average) * rate)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Swaps weights and averages within the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self):
        def exchange():
            for average, weight in self._pairs:
                held = tf.identity(weight.value)
                weight.assign(average.read_value())
                average.assign(held)

        self._strategy.run(exchange)
