"""One optimizer update of a train step: AdamW as in XTTS, learning rate, finite check, loss scale, weight averages."""

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from myxtts.config.stages import StageConfig
from myxtts.training.stages.base import Objective


class UpdateRule:
    """Applies the optimizer update of an objective; stores optimizer, loss scale, weight averages and accumulators.

    Must be created in the strategy's scope and on the model device.

    Args:
        settings: Settings of the stage, for optimizer and clipping.
        scaled: Turns on dynamic loss scaling, which float16 needs (Micikevicius et al. 2018, section 3.2).
        ema: Decay of the weight averages, in `[0, 1)`; 0 turns them off.
    """

    def __init__(
        self, objective: Objective, strategy: tf.distribute.Strategy, settings: StageConfig, scaled: bool, ema: float
    ):
        self.objective, self.name, self.phases = objective, objective.name, objective.phases
        self.strategy, self.scaled, self.gradient_clip = strategy, scaled, settings.gradient_clip
        self.trainable = self.objective.trainable()
        self.variables = list(self.trainable.values())
        self.optimizer = make_optimizer(settings, self.trainable)
        highest, peak = self.objective.highest_rates, settings.learning_rate
        layers = [name.split("/")[0] for name in self.trainable]
        self.optimizer.rate_factors = [min(1.0, highest.get(layer, peak) / peak) for layer in layers]
        # The gradients that the optimizer gets are already reduced over replicas.
        self.optimizer._all_reduce_sum_gradients = list
        self.first_loss_scale = 2.0**15 if scaled else 1.0
        self.loss_scale = tf.Variable(self.first_loss_scale, trainable=False, name="loss_scale")
        counter = lambda name: tf.Variable(0, trainable=False, dtype=tf.int64, name=name)
        self.good_steps, self.bad_steps_in_row = counter("good_steps"), counter("bad_steps_in_row")
        self.bad_steps, self.begun = counter("bad_steps"), counter("updates_begun")
        slots = {f"optimizer/{i:04d}": v for i, v in enumerate(self.optimizer.variables)}
        scalars = ("loss_scale", "good_steps", "bad_steps", "bad_steps_in_row")
        self.state_variables: dict[str, tf.Variable] = slots | {name: getattr(self, name) for name in scalars}
        """Variables, other than weights, that checkpoints contain: optimizer, loss scale and counters."""
        self.ema = ema if objective.averaged else 0.0
        named = self.trainable.items() if self.ema else ()
        zeros = lambda weight: tf.Variable(tf.zeros(weight.shape), trainable=False, name="average")
        self.averages: dict[str, tf.Variable] = {f"average/{name}": zeros(weight) for name, weight in named}
        """Exponential moving averages of the weights by name, on every replica; empty without weight averaging."""
        self.clip_factor = None
        """Factor in (0, 1] by which the last gradients were clipped; None before the first update."""
        self.sums = []
        """Gradient accumulators; empty without gradient accumulation."""

    def compile(self, xla: bool) -> None:
        """Sets whether XLA compiles the gradients and, with one replica, the update. Call it before the first step."""
        compiled = lambda function, on: tf.function(function, jit_compile=True, autograph=False) if on else function
        self.gradients: Callable = compiled(self._gradients, xla and not self.objective.compiles_blocks)
        # With several replicas, the optimizer leaves the replica context, which XLA cannot compile.
        self._apply_compiled: Callable = compiled(self._apply, xla and self.strategy.num_replicas_in_sync == 1)

    def named(self, values: dict) -> dict:
        """Returns `values` with the keys `{update name}/{key}`, or `values` unchanged if the update's name is empty."""
        return {f"{self.name}/{name}": value for name, value in values.items()} if self.name else values

    def all_reduce(self, value):
        """Sums a value over all replicas; must be called in the replica context."""
        if self.strategy.num_replicas_in_sync == 1:
            return value
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    def first(self, value):
        """Returns the first replica's copy of a value that is equal on all replicas."""
        return tf.nest.map_structure(lambda v: self.strategy.experimental_local_results(v)[0], value)

    def weighted(self, sums: dict, counts: dict) -> tf.Tensor:
        """Returns the weighted sum of the losses. Each loss is `sums[name] / counts[name]`, a mean over items."""
        weights = self.objective.loss_weights.items()
        return tf.add_n([weight * sums[name] / tf.maximum(counts[name], 1.0) for name, weight in weights])

    def _gradients(self, batch, counts, seed, phase):
        """Returns `(gradients, loss sums, statistics)` on one replica. The gradients are scaled by `loss_scale`."""
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
        """Returns the accumulated gradients, summed over replicas; clears the accumulators. Needs a replica context."""
        gradients = [tf.identity(accumulator) for accumulator in self.sums]
        with tf.control_dependencies(gradients):
            for accumulator in self.sums:
                accumulator.assign(tf.zeros_like(accumulator))
        return self.all_reduce(gradients)

    def update(self, gradients: list, sums: dict, counts: dict, statistics: dict) -> dict[str, tf.Tensor]:
        """If loss and gradient norm are finite, clips and applies `gradients`. All arguments are sums over replicas.

        Returns scalars: each loss (`sums / counts`), `loss` (weighted sum), `gradient_norm`, `finite`, `clip_factor`.
        """
        scale = self.loss_scale.read_value()
        norm = tf.linalg.global_norm(self.first(gradients)) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(self.weighted(sums, counts))
        clip_factor = tf.minimum(1.0, self.gradient_clip / (norm + 1e-6)) if self.gradient_clip else tf.ones_like(norm)
        factor = clip_factor / scale
        # A step runs out of memory before this increment, if at all. So the count tells whether the weights changed.
        with tf.control_dependencies([finite]):
            self.begun.assign_add(1)

        def apply():
            self.strategy.run(self._apply_compiled, (gradients, statistics, factor))
            return True

        tf.cond(finite, apply, lambda: False)
        is_good, is_bad = tf.cast(finite, tf.int64), tf.cast(~finite, tf.int64)
        self.bad_steps.assign_add(is_bad)
        self.bad_steps_in_row.assign((self.bad_steps_in_row + 1) * is_bad)
        if self.scaled:
            good_steps = (self.good_steps + 1) * is_good
            grows = good_steps >= 2000  # as in Keras's LossScaleOptimizer, like the first scale
            self.good_steps.assign(tf.where(grows, tf.constant(0, tf.int64), good_steps))
            larger, smaller = tf.minimum(scale * 2.0, 2.0**24), tf.maximum(scale * 0.5, 1.0)
            self.loss_scale.assign(tf.where(finite, tf.where(grows, larger, scale), smaller))
        losses = {name: value / tf.maximum(counts[name], 1.0) for name, value in sums.items()}
        figures = {"loss": self.weighted(sums, counts), "gradient_norm": norm, "finite": finite}
        return {**losses, **figures, "clip_factor": clip_factor}

    def _apply(self, gradients, statistics, factor):
        taken = tf.identity(self.optimizer.iterations.value)
        self.optimizer.apply([gradient * factor for gradient in gradients], self.variables)
        if self.averages:
            self.update_averages(taken)
        if statistics:
            self.objective.apply_statistics(statistics)

    def update_averages(self, step: tf.Tensor) -> None:
        """Updates a replica's weight averages (Polyak and Juditsky 1992). `step` is the number of earlier updates.

        The decay is `min(ema, (1 + step) / (10 + step))`, as in `tf.train.ExponentialMovingAverage` with `num_updates`.
        Keras's `use_ema` has no warm-up: with decay 0.999, the initial weights still contribute 37% after 1000 steps.
        """
        step = tf.cast(step, tf.float32)
        rate = 1.0 - tf.minimum(self.ema, (1.0 + step) / (10.0 + step))
        for average, weight in zip(self.averages.values(), self.variables):
            average.assign_add((weight.value - average) * rate)


def make_optimizer(settings: StageConfig, trainable: dict) -> keras.optimizers.Optimizer:
    """Creates the optimizer and its slots for the weights `trainable`, on the current device."""
    beta_1, beta_2 = settings.betas
    rates = dict(weight_decay=settings.weight_decay, beta_1=beta_1, beta_2=beta_2, epsilon=1e-8)
    optimizer = AdamW(settings.learning_rate, **rates)
    optimizer.exclude_from_weight_decay([v for name, v in trainable.items() if no_weight_decay(name)])
    optimizer.build(list(trainable.values()))
    return optimizer


def no_weight_decay(name: str) -> bool:
    """Returns True for variables without weight decay in XTTS: biases, embeddings, and norms outside the perceiver."""
    last = name.rsplit("/", 1)[-1]
    return last in ("bias", "beta") or last.endswith("_embedding") or (last == "gamma" and "norm" in name)


class AdamW(keras.optimizers.AdamW):
    """AdamW that adds epsilon after the bias correction, as PyTorch does (Loshchilov and Hutter 2019, algorithm 2).

    Keras adds epsilon before the correction, which multiplies epsilon by `1 / sqrt(1 - beta_2)` in the first step. This
    changes the update of weights with gradients near epsilon. This class is also faster: it calls one fused kernel;
    Keras makes a dozen passes over the weights. The constructor's arguments are those of Keras's `AdamW`.
    """

    rate_factors: Sequence[float] = ()
    """Learning-rate factors of the variables, in the order of `build`; 1 if empty. Weight decay uses the full rate."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        dtype = variable.dtype
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        step = tf.cast(self.iterations + 1, dtype)
        index = self._get_variable_index(variable)
        factor = self.rate_factors[index] if self.rate_factors else 1.0
        beta_2_power = tf.pow(beta_2, step)
        # The kernel adds epsilon before the correction. Scaling epsilon has the effect of adding it afterwards.
        epsilon = tf.cast(self.epsilon, dtype) * tf.sqrt(1 - beta_2_power)
        m, v = (slots[index].value.handle for slots in (self._momentums, self._velocities))
        betas = dict(beta1_power=tf.pow(beta_1, step), beta2_power=beta_2_power, beta1=beta_1, beta2=beta_2)
        rates = dict(lr=factor * tf.cast(learning_rate, dtype), epsilon=epsilon)
        tf.raw_ops.ResourceApplyAdam(var=variable.handle, m=m, v=v, grad=tf.cast(gradient, dtype), **betas, **rates)


def total_steps(max_steps: int | None, epochs: int, batches_per_epoch: int, accumulation: int) -> int:
    """Returns the number of optimizer steps of a stage: `max_steps` if given, else the steps of `epochs` epochs."""
    return max_steps or max(1, epochs * batches_per_epoch // accumulation)


def learning_rate(settings: StageConfig, step: int, total_steps: int) -> float:
    """Returns the learning rate after `step` steps: linear warm-up, then a half cosine (Loshchilov, Hutter 2017).

    The warm-up takes at most a tenth of the steps. After `total_steps`, the rate stays at its final value.
    """
    peak, final_share = settings.learning_rate, settings.final_learning_rate
    warmup = min(settings.warmup_steps, total_steps // 10)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * progress)))
