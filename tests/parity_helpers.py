"""Helpers of the tests that compare with the reference's values."""

import numpy as np
import tensorflow as tf

from myxtts.models.gpt import sample
from myxtts.training.loop.updates import AdamW, no_weight_decay
from myxtts.training.stages.gpt import GPTObjective


class ReferenceObjective(GPTObjective):
    """The GPT's objective with the text's stop token hidden from attention, as the reference does in training."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.gpt.set_memory_use()

    def _streams(self, batch):
        streams, audio_mask = super()._streams(batch)
        stop = tf.one_hot(batch.text_lengths + 1, tf.shape(streams.key_mask)[1], True, False)
        return streams._replace(key_mask=streams.key_mask & ~stop), audio_mask

    def losses(self, batch):
        """Returns mean losses by name, and the weighted loss as a tensor."""
        sums, _ = self.loss_sums(batch)
        counts = self.counts(batch)
        means = {name: sums[name] / counts[name] for name in sums}
        return {name: float(mean) for name, mean in means.items()}, 0.01 * means["text"] + means["codes"]

    def gradients(self, batch):
        """Returns the weighted loss, and its gradients by the names of weights in MyXTTS."""
        variables = self.trainable()
        with tf.GradientTape() as tape:
            _, loss = self.losses(batch)
        found = tape.gradient(loss, [variable.value for variable in variables.values()])
        return float(loss), {name: tf.convert_to_tensor(value).numpy() for name, value in zip(variables, found)}


def recipe_optimizer(variables):
    """Returns the optimizer of the reference's recipe, with learning rate 1e-3, for `{name in MyXTTS: variable}`."""
    optimizer = AdamW(1e-3, weight_decay=1e-2, beta_1=0.9, beta_2=0.96, epsilon=1e-8)
    optimizer.exclude_from_weight_decay(var_list=[v for name, v in variables.items() if no_weight_decay(name)])
    optimizer.build(list(variables.values()))
    return optimizer


def channels_last(array):
    """Converts an array `(B, C, T)` to a tensor `(B, T, C)`."""
    return tf.constant(np.ascontiguousarray(np.asarray(array).transpose(0, 2, 1)))


def difference(actual, expected):
    """Returns the largest absolute difference of two arrays of equal shape."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max()


def greedy_codes(gpt, latents, text_inputs, sampling, config, max_codes):
    """Decodes one row greedily with a cache; as in the reference, two codes count as already sampled at the start."""
    state = gpt.prefill(latents, text_inputs, tf.ones(text_inputs.shape, tf.bool))
    start, step = state.keys[0].shape[2], tf.function(gpt.advance)
    longer = lambda layers: tuple(tf.pad(one, ((0, 0), (0, 0), (0, max_codes), (0, 0))) for one in layers)
    state = state._replace(keys=longer(state.keys), values=longer(state.values))
    seen = np.zeros((1, config.num_audio_tokens), bool)
    seen[0, [1, config.start_audio_token]] = True  # the reference's placeholders for the prompt, and the start code
    codes = []
    while len(codes) < max_codes and (not codes or codes[-1] != config.stop_audio_token):
        code = sample(state.logits, sampling, tf.constant(seen), 0.0)
        codes.append(int(code[0]))
        seen[0, codes[-1]] = True
        last = tf.constant(start + len(codes) - 1)
        state = step(code, tf.constant(len(codes) - 1), last, tf.range(start + max_codes)[None] <= last, state)
    return codes
