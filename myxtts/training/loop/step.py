"""The train step of every stage, on one replica or several, with or without gradient accumulation.

Each loss is a mean over the items (such as tokens) of all replicas and micro-batches. Gradients are summed over the
replicas once per update, then checked, clipped and applied. Keras cannot do this: its clipping and loss scaling see one
replica, and its accumulation gives all micro-batches equal weight, even if their numbers of tokens differ.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from myxtts.config.stages import StageConfig
from myxtts.training.loop.updates import UpdateRule
from myxtts.training.stages.base import Objective


class TrainStep:
    """Train step of a stage. Runs one update per objective, in order; an update sees the changes of earlier updates.

    Must be created in the strategy's scope and on the model device, where its variables stay.

    Args:
        precision: Dtype policy; `mixed_float16` turns on dynamic loss scaling.
        xla: Whether XLA compiles the gradients (once per batch shape) and, with one device, the optimizer update.
        ema: Decay of the weight averages; 0 turns them off.
    """

    def __init__(
        self,
        objectives: list[Objective],
        strategy: tf.distribute.Strategy,
        stage_config: StageConfig,
        precision: str = "float32",
        *,
        xla: bool = False,
        ema: float = 0.0,
    ):
        self.strategy = strategy
        scaled = precision == "mixed_float16"
        self.rules = [UpdateRule(objective, strategy, stage_config, scaled, ema) for objective in objectives]
        self.trainable = self._of_rules(lambda rule: rule.trainable)
        """Weights that the step trains, by name."""
        self.averaged = self._of_rules(lambda rule: rule.trainable if rule.averages else {})
        """Weights that have moving averages, by name."""
        self.averages = self._of_rules(lambda rule: rule.averages)
        """Moving averages of the weights by name; empty without weight averaging."""
        self.state_variables = self._of_rules(lambda rule: rule.state_variables)
        """Variables that checkpoints contain in addition to weights, such as optimizer slots, by name."""
        self.restart_averages()
        self.phase, self.micro_batches = "", 0
        """`phase` is the stage's phase in the next step; `micro_batches` is the number of batches in the last step."""
        self.on_micro_batch: Callable[[int, int], None] = lambda done, count: None
        """Called with `(done, count)` after each micro-batch, if a step has several. Both numbers count all updates."""
        self.xla, self._begun = xla, 0
        self.forget_traces()

    def forget_traces(self) -> None:
        """Discards all traced graphs, so that the next step is traced again."""
        self.traces, self.graph = 0, None
        """`traces` counts traces of the functions that compute gradients; `graph` is the graph traced last."""
        for rule in self.rules:
            rule.compile(self.xla)
        # XLA compiles each shape in any case; a shape known at tracing time lets it unroll loops.
        self._whole = tf.function(self._whole_step, reduce_retracing=not self.xla, autograph=False)
        self._accumulate = tf.function(self._accumulate_step, reduce_retracing=not self.xla, autograph=False)
        self._counts = tf.function(self._counts_step, reduce_retracing=True, autograph=False)
        self._finish = tf.function(self._finish_step, reduce_retracing=True, autograph=False)

    def trace_for(self, examples: list) -> None:
        """Traces one graph for all batch shapes. `examples` contains the smallest and the largest batch or micro-batch.

        Without this method, TensorFlow would trace one graph for the first batch's shape and another one for all other
        shapes. A resumed run, whose first batch may have another shape, would then round differently than the original
        run. With XLA, this method does nothing, because XLA compiles each shape.
        """
        if self.xla or tf.config.functions_run_eagerly():
            return
        specs = [tf.nest.map_structure(tf.type_spec_from_value, example) for example in examples]
        if all(spec == specs[0] for spec in specs):
            return
        batch = tf.nest.map_structure(lambda one, *more: one.most_specific_common_supertype(more), *specs)
        seed = tf.TensorSpec((2,), tf.int32)
        with tf.device(self.strategy.extended.worker_devices[0]):
            for phase in dict.fromkeys(phase for rule in self.rules for phase in rule.phases or ("",)):
                if not self.accumulators():
                    self._whole.get_concrete_function(batch, seed, phase)
                    continue
                for rule in self.acting(phase):
                    counts = self._counts.get_concrete_function(rule, batch).structured_outputs
                    counts = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), counts)
                    self._accumulate.get_concrete_function(rule, batch, counts, seed, phase)

    def acting(self, phase: str) -> list[UpdateRule]:
        """Returns the `UpdateRule`s that apply in the stage's phase `phase`, in the order of the updates."""
        return [rule for rule in self.rules if rule.phases is None or phase in rule.phases]

    def _of_rules(self, variables) -> dict[str, tf.Variable]:
        return {name: v for rule in self.rules for name, v in rule.named(variables(rule)).items()}

    def accumulators(self) -> dict[str, tf.Variable]:
        """Returns the gradient accumulators by name. Checkpoints omit them, because they are zero between steps."""
        return self._of_rules(lambda rule: {f"accumulator/{name}": v for name, v in zip(rule.trainable, rule.sums)})

    def restart_averages(self) -> None:
        """Sets the averages to the current weights."""

        def restart():
            for average, weight in zip(self.averages.values(), self.averaged.values()):
                average.assign(weight.value)

        self.strategy.run(restart)

    def use_averages(self) -> None:
        """Sets the weights to their averages, if any, at the end of the training. Call it only with one replica."""
        for average, weight in zip(self.averages.values(), self.averaged.values()):
            weight.assign(average)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Swaps the weights with their averages (if any) during a `with` block that validates or synthesizes."""

        def exchange():
            for average, weight in zip(self.averages.values(), self.averaged.values()):
                held = tf.identity(weight.value)
                weight.assign(average.read_value())
                average.assign(held)

        self.strategy.run(exchange)
        try:
            yield
        finally:
            self.strategy.run(exchange)

    @property
    def bad_steps(self) -> int:
        """Number of updates so far that were skipped because the loss or gradient was not finite."""
        return sum(int(rule.bad_steps.numpy()) for rule in self.rules)

    def make_accumulators(self) -> None:
        """Creates the gradient accumulators on the model devices, unless they exist."""
        kind = dict(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
        zeros = lambda weight: tf.Variable(tf.zeros(weight.shape), trainable=False, name="accumulator", **kind)
        is_alone, devices = self.strategy.num_replicas_in_sync == 1, self.strategy.extended.worker_devices
        with self.strategy.scope(), tf.device(devices[0] if is_alone else None):
            for rule in self.rules:
                rule.sums = rule.sums or [zeros(weight) for weight in rule.variables]

    def drop_accumulators(self) -> None:
        """Frees the gradient accumulators and discards the graphs that use them."""
        for rule in self.rules:
            rule.sums = []
        self.forget_traces()

    def forget_partial_step(self) -> bool:
        """Sets the accumulators to zero after a failed step. Returns whether the step left all weights unchanged."""
        for rule in self.rules:
            for accumulator in rule.sums:
                self.strategy.run(lambda a=accumulator: a.assign(tf.zeros_like(a)))
        before, self._begun = self._begun, sum(int(rule.begun.numpy()) for rule in self.rules)
        return before == self._begun

    def __call__(self, batches: list, learning_rate: float, seed: tuple[int, int]) -> dict[str, tf.Tensor]:
        """Takes one optimizer step.

        Args:
            batches: One batch on the model devices, or several micro-batches, whose gradients are summed.
            seed: Dropout seed, two integers.

        Returns scalars by name: `loss` (weighted sum), each loss, `gradient_norm`, and `finite`. If an update has a
        name, its results have this name as a prefix, as in `discriminator/loss`. Only updates that run in the current
        phase have results. After several updates, `loss` and `gradient_norm` without prefix are those of the last one,
        and `finite` without prefix is False if any update was skipped.
        """
        # Operations outside the replicas, such as the norm, would otherwise run on the first device: the data device.
        with tf.device(self.strategy.extended.worker_devices[0]):
            for rule in self.rules:
                rule.optimizer.learning_rate.assign(learning_rate)
            seed, acting = tf.constant(seed, tf.int32), self.acting(self.phase)
            if not acting:
                raise ValueError(f"No update runs in phase {self.phase!r}. Add it to the `phases` of an objective.")
            if len(batches) == 1:
                figures = self._whole(batches[0], seed, self.phase)
            else:
                self.make_accumulators()
                figures = [self._accumulated(rule, batches, seed) for rule in acting]
            finite = tf.reduce_all([own["finite"] for own in figures])
        self.micro_batches = len(batches)
        self._begun += len(acting)
        together = {"loss": figures[-1]["loss"]}
        for rule, own in zip(acting, figures):
            rule.clip_factor = own.pop("clip_factor")
            together |= rule.named(own)
        return together | {"gradient_norm": figures[-1]["gradient_norm"], "finite": finite}

    def _accumulated(self, rule, batches, seed):
        counts = [self._counts(rule, batch) for batch in batches]
        counts = {name: tf.add_n([c[name] for c in counts]) for name in counts[0]}
        acting, sums, statistics = self.acting(self.phase), None, None
        for micro, batch in enumerate(batches):
            # The low 16 bits of the second number hold the step; a step's higher bits change the first number.
            more = self._accumulate(rule, batch, counts, seed + [64 * (seed[1] // 2**16), micro << 16], self.phase)
            sums, statistics = more if sums is None else tf.nest.map_structure(tf.add, (sums, statistics), more)
            if not self._begun:  # the first step is timed for the log, and a GPU only queues work
                tf.nest.flatten(sums)[0].numpy()
            self.on_micro_batch(acting.index(rule) * len(batches) + micro + 1, len(acting) * len(batches))
        return self._finish(rule, sums, counts, statistics)

    def _count_trace(self):
        self.traces += 1
        self.graph = tf.compat.v1.get_default_graph()

    def _whole_step(self, batch, seed, phase):
        self._count_trace()
        return [self._whole_update(rule, batch, seed, phase) for rule in self.acting(phase)]

    def _whole_update(self, rule, batch, seed, phase):
        def replica(batch, seed):
            counts = rule.all_reduce(rule.objective.counts(batch))
            return rule.all_reduce(rule.gradients(batch, counts, replica_seed(seed), phase)), counts

        (gradients, sums, statistics), counts = self.strategy.run(replica, (batch, seed))
        return rule.update(gradients, rule.first(sums), rule.first(counts), statistics)

    def _counts_step(self, rule, batch):
        return rule.first(self.strategy.run(lambda b: rule.all_reduce(rule.objective.counts(b)), (batch,)))

    def _accumulate_step(self, rule, batch, counts, seed, phase):
        self._count_trace()

        def replica(batch, seed):
            gradients, sums, statistics = rule.gradients(batch, counts, replica_seed(seed), phase)
            for accumulator, gradient in zip(rule.sums, gradients):
                accumulator.assign_add(gradient)
            return rule.all_reduce((sums, statistics))

        return rule.first(self.strategy.run(replica, (batch, seed)))

    def _finish_step(self, rule, sums, counts, statistics):
        return rule.update(self.strategy.run(rule.take_accumulated), sums, counts, statistics)


def replica_seed(seed):
    return seed + tf.stack([tf.distribute.get_replica_context().replica_id_in_sync_group, 0])
