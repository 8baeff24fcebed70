"""Guided attention: its loss, the head that it applies to, and its decrease in training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny import tiny_run_config

from myxtts.data.batch import GPTBatch
from myxtts.models.gpt import teacher_forcing
from myxtts.models.xtts import XTTS
from myxtts.training.stages.gpt import DIAGONAL_WIDTH, GPTObjective, off_diagonal


def charged(attention, num_text, num_codes):
    """Computes the loss of Tachibana et al., equation 5, one position at a time."""
    total = 0.0
    for code in range(num_codes):
        for place in range(num_text):
            apart = place / num_text - code / num_codes
            total += attention[code, place] * (1 - np.exp(-(apart**2) / (2 * DIAGONAL_WIDTH**2)))
    return total


def test_only_attention_off_the_diagonal_has_a_loss_and_padding_never():
    attention = np.random.default_rng(0).dirichlet(np.ones(5), (2, 7)).astype("float32")
    attention[1, :, 3:] = 0
    expected = charged(attention[0], 5, 7) + charged(attention[1], 3, 4)
    np.testing.assert_allclose(off_diagonal(attention, np.array([5, 3]), np.array([7, 4])), expected, rtol=1e-5)
    diagonal = np.eye(6, dtype="float32")[None]
    assert off_diagonal(diagonal, np.array([6]), np.array([6])) < 1e-6
    assert off_diagonal(diagonal[:, ::-1], np.array([6]), np.array([6])) > 2


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(2)
    config = tiny_run_config(gpt={"alignment_loss_weight": 1.0})
    rng = np.random.default_rng(1)
    lengths = dict(text_lengths=np.array([6, 4], "int32"), code_lengths=np.array([12, 9], "int32"))
    batch = GPTBatch(
        index=np.arange(2),
        text=rng.integers(4, config.model.num_text_tokens, (2, 6), dtype="int32"),
        conditioning_mel=rng.normal(size=(2, 24, config.model.num_mels)).astype("float32"),
        codes=rng.integers(0, config.model.num_codes, (2, 12), dtype="int32"),
        conditioning_codes=np.zeros((2, 2), "int32"),
        **lengths,
    )
    return config, XTTS(config.model, parts=("gpt",)), GPTBatch(*map(tf.constant, batch))


def test_attention_from_codes_to_text_is_from_the_first_head(trained):
    config, model, batch = trained
    gpt, seen = model.gpt, {}
    streams = teacher_forcing(config.model, batch.text, batch.text_lengths, batch.codes, batch.code_lengths)
    voice = gpt.mel_to_latents(batch.conditioning_mel)
    gpt.hidden(voice, streams.text_inputs, streams.audio_inputs, streams.key_mask, see_input=seen.__setitem__)
    text_mask = streams.key_mask[:, :8]
    actual = gpt.text_attention(0, seen[0], text_mask).numpy()
    block, width = gpt.blocks[0], config.model.width // config.model.heads
    qkv = block.attention.qkv(block.attention_norm(seen[0])).numpy()[:, config.model.num_latents :]
    query, key = qkv[:, 8:, :width], qkv[:, :8, config.model.width : config.model.width + width]
    scores = np.where(text_mask[:, None], query @ key.transpose(0, 2, 1) / np.sqrt(width), -np.inf)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(actual, expected / expected.sum(-1, keepdims=True), atol=1e-5)


def test_training_brings_attention_to_the_diagonal(trained):
    config, model, batch = trained
    objective = GPTObjective(model, config)
    variables, optimizer = list(objective.trainable().values()), keras.optimizers.Adam(2e-2)
    reported = []
    for _ in range(12):
        with tf.GradientTape() as tape:
            sums, _ = objective.loss_sums(batch)
            loss = sums["alignment"] / objective.counts(batch)["alignment"]
        reported.append(float(loss))
        gradients = tape.gradient(loss, variables)
        optimizer.apply([g if g is not None else tf.zeros_like(v) for g, v in zip(gradients, variables)], variables)
    assert reported[-1] < 0.8 * reported[0]
