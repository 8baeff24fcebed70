"""Compiles a network's blocks with XLA: all blocks share one forward and one backward program per shape."""

import keras
import tensorflow as tf

from myxtts.models.layers import Layer, Tensor
from myxtts.training.loop.switches import RECOMPUTED


class CompiledBlocks(Layer):
    """Runs blocks of equal structure with XLA. All blocks share the same programs, so XLA compiles only one block.

    Each input shape has a forward program and a backward program. The weights of a block are arguments of these
    programs. The backward pass recomputes the activations from the block's input (Chen et al. 2016), so that only the
    inputs are stored. The dropout masks differ from those without XLA.
    `prefix` is prepended to the names of the blocks in name scopes.

    Call arguments: `x` is the input of the block, and `number` is the index of the block. `options` are the block's
    keyword arguments, each a tensor or None. The option `seed` is `(2,)` int32.
    """

    def __init__(self, blocks: list[keras.Layer], prefix: str = ""):
        super().__init__(autocast=False)  # the programs get weights in the weights' dtype
        self._blocks, self._prefix = tuple(blocks), prefix
        self._forward = tf.function(self._run, jit_compile=True, autograph=False)
        self._backward = tf.function(self._gradients, jit_compile=True, autograph=False)

    def call(self, x: Tensor, number: int, **options) -> Tensor:
        if options.get("seed") is not None:
            options["seed"] += tf.constant([0, number % 256 << 23])  # above the bits of step and 128 micro-batches
        block = self._blocks[number]
        frozen = [tf.convert_to_tensor(variable.value) for variable in block.non_trainable_variables]

        @tf.custom_gradient
        def run(x, *weights):
            def gradient(upstream):
                with keras.name_scope(f"{RECOMPUTED}{self._prefix}{block.name}"):
                    of_x, of_weights = self._backward(upstream, x, weights, frozen, options)
                return of_x, *of_weights

            return self._forward(x, weights, frozen, options), gradient

        return run(x, *(variable.value for variable in block.trainable_variables))

    def _run(self, x, weights, frozen, options):
        first = self._blocks[0]
        variables = first.trainable_variables + first.non_trainable_variables
        with keras.StatelessScope(state_mapping=list(zip(variables, [*weights, *frozen]))):
            return first(x, **options)

    def _gradients(self, upstream, x, weights, frozen, options):
        with tf.GradientTape() as tape:
            tape.watch((x, weights))
            output = self._run(x, weights, frozen, options)
        return tape.gradient(output, (x, weights), upstream)
