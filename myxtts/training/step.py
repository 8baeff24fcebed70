"""The one train step, the same for every stage, for one replica or several, for one batch or an accumulated group.

Gradients are sums over the tokens of all replicas and micro-batches, divided by the number of those tokens; they are
reduced once, then checked, clipped and applied. Keras's own shortcuts do not fit: its global-norm clipping and its loss
scaling look at one replica, and its accumulation averages micro-batches whatever their number of tokens.
"""

import tensorflow as tf

from myxtts.training.averaging import WeightAverages
from myxtts.training.optimizers import AdamW

SUM = tf.distribute.ReduceOp.SUM
LARGEST_LOSS_SCALE = 2.0**24
LOSS_SCALE_GROWTH_STEPS = 2000


def no_weight_decay(name):
    """Whether AdamW leaves a weight undecayed: biases, norms and embedding tables, as in the XTTS recipe.

    The perceiver's latents and its `gamma` are decayed there.
    """
    last = name.rsplit("/", 1)[-1]
    return last in ("bias", "beta") or last.endswith("_embedding") or (last == "gamma" and "norm" in name)


class TrainStep:
    """Forward, backward, reduction, finite check, clipping and update of an objective's weights.

    To be made in the strategy's scope and on the model device, since every variable stays where it is made.

    Args:
        objective: See `objectives.py`.
        strategy: `tf.distribute.Strategy`.
        stage_config: `StageConfig` with its learning rate set.
        accumulation: Batches per update.
        precision: Dtype policy of the model; `mixed_float16` turns dynamic loss scaling on.
        xla: Compile the gradients, and on one device the update. XLA compiles once per shape of batch.
        ema: Decay of the weight averages; 0 for none.
    """

    def __init__(self, objective, strategy, stage_config, accumulation=1, precision="float32", *, xla=False, ema=0.0):
        self.objective = objective
        self.strategy = strategy
        self.gradient_clip = stage_config.gradient_clip
        self.names, self.variables = zip(*objective.trainable().items())
        beta_1, beta_2 = stage_config.betas
        self.optimizer = AdamW(
            stage_config.learning_rate,
            weight_decay=stage_config.weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=1e-8,
        )
        excluded = [v for name, v in zip(self.names, self.variables) if no_weight_decay(name)]
        if excluded:
            self.optimizer.exclude_from_weight_decay(var_list=excluded)
        self.optimizer.build(self.variables)
        # The gradients handed to the optimizer are reduced already.
        self.optimizer._all_reduce_sum_gradients = list
        self.scaled = precision == "mixed_float16"
        self.loss_scale = tf.Variable(
            2.0**15 if self.scaled else 1.0, trainable=False, dtype=tf.float32, name="loss_scale"
        )
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_steps")
        self.bad_steps_in_row = tf.Variable(0, trainable=False, dtype=tf.int64, name="bad_steps_in_row")
        self.bad_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="bad_steps")
        self.averages = WeightAverages(objective.trainable(), ema, strategy) if ema else None
        self._accumulators = []
        if accumulation > 1:
            self.make_accumulators()
        self.micro_batches = 0
        """Batches whose gradients went into the last update."""
        self.clip_factor = None
        """What the last update multiplied its gradients by to keep their global norm in bounds: a scalar tensor, up to 1."""
        self.xla = xla
        self._updates_begun = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates_begun")
        self._updates_done = 0
        self.forget_traces()

    def forget_traces(self):
        """Traces anew from here on, as if no batch had been seen."""
        self.traces = 0
        self.graph = None
        """The graph that was traced last, of a function that computes gradients."""
        self._compiled_shapes = set()
        self._gradients, self._apply = self._replica_gradients, self._apply_gradients
        if self.xla:
            self._gradients = tf.function(self._gradients, jit_compile=True)
            if self.strategy.num_replicas_in_sync == 1:  # with several, the optimizer leaves the replica: XLA cannot
                self._apply = tf.function(self._apply, jit_compile=True)
        # XLA compiles for each shape in any case; with the shape known when traced, loops over it can be unrolled.
        self._whole = tf.function(self._whole_step, reduce_retracing=not self.xla)
        self._counts = tf.function(self._reduced_counts, reduce_retracing=True)
        self._accumulate = tf.function(self._accumulate_step, reduce_retracing=not self.xla)
        self._finish = tf.function(self._finish_step, reduce_retracing=True)

    def state_variables(self):
        """Everything a checkpoint needs besides the weights, by name."""
        named = {f"optimizer/{i:04d}": v for i, v in enumerate(self.optimizer.variables)}
        return {
            **named,
            "loss_scale": self.loss_scale,
            "good_steps": self.good_steps,
            "bad_steps": self.bad_steps,
            "bad_steps_in_row": self.bad_steps_in_row,
        }

    @property
    def compilations(self):
        """Programs that XLA has made for the batches so far."""
        return self.most_compilations(len(self._compiled_shapes)) if self._compiled_shapes else 0

    def most_compilations(self, num_shapes):
        """Programs that XLA makes for batches of `num_shapes` shapes: the gradients' for each, on each replica, and the
        update's, which is compiled where there is one replica."""
        replicas = self.strategy.num_replicas_in_sync
        return num_shapes * replicas + (replicas == 1)

    def make_accumulators(self):
        """Makes what sums of gradients over several batches need; to be called in the strategy's scope."""
        self._accumulators = self._accumulators or [
            tf.Variable(
                tf.zeros(v.shape),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name="accumulator",
            )
            for v in self.variables
        ]

    def drop_accumulators(self):
        """Frees what sums of gradients took, before a first step."""
        self._accumulators = []
        self.forget_traces()

    def forget_partial_step(self):
        """Readies the step for being taken again after an error within it.

        Returns:
            False when the error struck while weights were being changed, so that they are of no step.
        """
        for accumulator in self._accumulators:
            self.strategy.run(lambda a=accumulator: a.assign(tf.zeros_like(a)))
        done, self._updates_done = self._updates_done, int(self._updates_begun)
        return done == self._updates_done

    def accumulators(self):
        """Where gradients of micro-batches are summed, by name; empty between steps, so no checkpoint needs them."""
        return {f"accumulator/{name}": v for name, v in zip(self.names, self._accumulators)}

    def __call__(self, batches, learning_rate, seed):
        """Takes one optimizer step.

        Args:
            batches: One batch, or several to sum the gradients of, on the model device; distributed where there are
                several replicas.
            learning_rate: Of this step.
            seed: `(2,)` int32, of dropout; the second number may grow by one per micro-batch.

        Returns:
            A dictionary of scalar tensors: each loss by name, `loss` (weighted), `gradient_norm`, `finite`.
        """
        # What stands outside the replicas (norm, finite check, loss scale) would run on TensorFlow's first device, which
        # is the data device where there are two.
        with tf.device(self.strategy.extended.worker_devices[0]):
            losses = self._step(batches, learning_rate, tf.constant(seed, tf.int32))
        self.micro_batches, self.clip_factor = len(batches), losses.pop("clip_factor")
        self._updates_done += 1
        if self.xla:
            self._compiled_shapes.update(
                tuple(tuple(field.shape) for field in tf.nest.flatten(self._first(batch))) for batch in batches
            )
        return losses

    def _step(self, batches, learning_rate, seed):
        self.optimizer.learning_rate.assign(learning_rate)
        if len(batches) == 1:
            return self._whole(batches[0], seed)
        counts = [self._counts(batch) for batch in batches]
        counts = {name: tf.add_n([c[name] for c in counts]) for name in counts[0]}
        sums, statistics = None, None
        for micro, batch in enumerate(batches):
            more = self._accumulate(batch, counts, seed + [0, micro << 16])
            sums, statistics = more if sums is None else tf.nest.map_structure(tf.add, (sums, statistics), more)
        return self._finish(sums, counts, statistics)

    def _all_reduce(self, value):
        if self.strategy.num_replicas_in_sync == 1:
            return value
        return tf.distribute.get_replica_context().all_reduce(SUM, value)

    def _first(self, value):
        """The first replica's value of something equal on all of them."""
        return tf.nest.map_structure(lambda v: self.strategy.experimental_local_results(v)[0], value)

    def _trace(self):
        """Called when a function that computes gradients is traced."""
        self.traces += 1
        self.graph = tf.compat.v1.get_default_graph()

    def _seed(self, seed):
        """The replica's own seed."""
        return seed + tf.stack([tf.distribute.get_replica_context().replica_id_in_sync_group, 0])

    def _replica_gradients(self, batch, counts, seed):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            values = [v.value for v in self.variables]
            tape.watch(values)
            sums, statistics = self.objective.loss_sums(batch, seed)
            loss = self._weighted(sums, counts) * self.loss_scale
        gradients = tape.gradient(loss, values)
        lost = [name for name, gradient in zip(self.names, gradients) if gradient is None]
        if lost:
            raise ValueError(f"The losses do not depend on {lost[0]} ({len(lost)} weights in all).")
        return [tf.convert_to_tensor(gradient) for gradient in gradients], sums, statistics

    def _weighted(self, sums, counts):
        return tf.add_n(
            [
                weight * sums[name] / tf.maximum(counts[name], 1.0)
                for name, weight in self.objective.loss_weights.items()
            ]
        )

    def _reduced_counts(self, batch):
        return self._first(self.strategy.run(lambda b: self._all_reduce(self.objective.counts(b)), (batch,)))

    def _whole_step(self, batch, seed):
        self._trace()

        def replica(batch, seed):
            counts = self._all_reduce(self.objective.counts(batch))
            return self._all_reduce(self._gradients(batch, counts, self._seed(seed))), counts

        (gradients, sums, statistics), counts = self.strategy.run(replica, (batch, seed))
        return self._update(gradients, self._first(sums), self._first(counts), statistics)

    def _accumulate_step(self, batch, counts, seed):
        self._trace()

        def replica(batch, seed):
            gradients, sums, statistics = self._gradients(batch, counts, self._seed(seed))
            for accumulator, gradient in zip(self._accumulators, gradients):
                accumulator.assign_add(gradient)
            return self._all_reduce((sums, statistics))

        return self._first(self.strategy.run(replica, (batch, seed)))

    def _finish_step(self, sums, counts, statistics):
        def replica():
            gradients = [tf.identity(accumulator) for accumulator in self._accumulators]
            with tf.control_dependencies(gradients):
                for accumulator in self._accumulators:
                    accumulator.assign(tf.zeros_like(accumulator))
            return self._all_reduce(gradients)

        return self._update(self.strategy.run(replica), sums, counts, statistics)

    def _update(self, gradients, sums, counts, statistics):
        """Checks, clips and applies reduced gradients; a step that is not finite changes no weight."""
        scale = self.loss_scale.read_value()
        norm = tf.linalg.global_norm(self._first(gradients)) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(self._weighted(sums, counts))
        clip_factor = tf.minimum(1.0, self.gradient_clip / (norm + 1e-6)) if self.gradient_clip else tf.ones_like(norm)
        factor = clip_factor / scale

        # Only now: the memory that a step takes is needed before, so this tells where an error left the weights.
        with tf.control_dependencies([finite]):
            self._updates_begun.assign_add(1)

        def good():
            self.strategy.run(self._apply, (gradients, statistics, factor))
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
        return {
            "loss": self._weighted(sums, counts),
            **losses,
            "gradient_norm": norm,
            "finite": finite,
            "clip_factor": clip_factor,
        }

    def _apply_gradients(self, gradients, statistics, factor):
        step = tf.identity(self.optimizer.iterations.value)
        self.optimizer.apply([gradient * factor for gradient in gradients], self.variables)
        if self.averages is not None:
            self.averages.update(step)
        if statistics:
            self.objective.apply_statistics(statistics)
