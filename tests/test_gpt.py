"""The GPT: its inputs and targets, causality, padding, and decoding with a cache against teacher forcing."""

import keras
import numpy as np
import pytest
from keras.ops import convert_to_numpy as to_numpy
from tiny import advance, spread, tiny_model_config

from myxtts.models.gpt import teacher_forcing
from myxtts.models.xtts import XTTS

CONFIG = tiny_model_config(dropout=0.3)
START, STOP = CONFIG.start_audio_token, CONFIG.stop_audio_token
TEXT_START, TEXT_STOP = CONFIG.start_text_token, CONFIG.stop_text_token


@pytest.fixture(scope="module")
def gpt():
    """A GPT whose weights cannot hide errors: none is zero or one, and position embeddings are not small."""
    keras.utils.set_random_seed(0)
    gpt = XTTS(CONFIG, parts=("gpt",)).gpt
    spread(gpt.trainable_variables, 0.3)
    return gpt


@pytest.fixture
def inputs():
    """Returns two rows of different lengths: latents, text ids, text lengths, codes, code lengths."""
    random = np.random.default_rng(1)
    return (
        random.standard_normal((2, CONFIG.num_latents, CONFIG.width)).astype("float32"),
        np.array([[5, 6, 7, 8, 9], [10, 11, 0, 0, 0]], "int32"),
        np.array([5, 2], "int32"),
        random.integers(0, CONFIG.num_codes, (2, 9)).astype("int32"),
        np.array([9, 4], "int32"),
    )


def forward(gpt, latents, text, text_lengths, codes, code_lengths):
    streams = teacher_forcing(CONFIG, text, text_lengths, codes, code_lengths)
    text_logits, audio_logits = gpt(latents, streams.text_inputs, streams.audio_inputs, key_mask=streams.key_mask)
    return to_numpy(text_logits), to_numpy(audio_logits)


def test_teacher_forcing_worked_example():
    # Two texts of 3 and 2 tokens, two clips of 2 and 3 codes; 7 and 99 are padding of any kind.
    streams = teacher_forcing(
        CONFIG,
        np.array([[5, 6, 7], [8, 9, 7]], "int32"),
        np.array([3, 2], "int32"),
        np.array([[1, 2, 99], [3, 4, 5]], "int32"),
        np.array([2, 3], "int32"),
    )
    s, e = START, STOP
    expected = {
        "text_inputs": [[3, 5, 6, 7, 0], [3, 8, 9, 0, 0]],
        "text_targets": [[5, 6, 7, 0, 0], [8, 9, 0, 0, 0]],
        "text_target_mask": [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]],
        "audio_inputs": [[s, 1, 2, e, e, e, e, e], [s, 3, 4, 5, e, e, e, e]],
        "audio_targets": [[1, 2, e, e, e, e, e, e], [3, 4, 5, e, e, e, e, e]],
        # The codes and four stops.
        "audio_target_mask": [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0]],
        # [START], text, [STOP]; then the start code, the codes and three stops.
        "key_mask": [[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0]],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(to_numpy(getattr(streams, name)).astype(int), values, err_msg=name)


def test_padding_of_text_and_codes_changes_nothing(gpt, inputs):
    latents, text, text_lengths, codes, code_lengths = inputs
    together = forward(gpt, *inputs)
    more_text = np.pad(text, ((0, 0), (0, 4)), constant_values=13)
    more_codes = np.pad(codes, ((0, 0), (0, 6)), constant_values=3)
    padded = forward(gpt, latents, more_text, text_lengths, more_codes, code_lengths)
    for row in range(2):
        n, m = text_lengths[row], code_lengths[row]
        latent, ids, length, drawn, count = (array[row : row + 1] for array in inputs)
        alone = forward(gpt, latent, ids[:, :n], length, drawn[:, :m], count)
        for batch in (together, padded):
            np.testing.assert_allclose(batch[0][row, : n + 1], alone[0][0, : n + 1], atol=1e-5)
            np.testing.assert_allclose(batch[1][row, : m + 4], alone[1][0, : m + 4], atol=1e-5)


@pytest.mark.parametrize("stream", ["text", "codes"])
def test_no_position_sees_what_comes_after_it(gpt, inputs, stream):
    latents, text, text_lengths, codes, code_lengths = (array[:1] for array in inputs)
    before = forward(gpt, latents, text, text_lengths, codes, code_lengths)
    at = 3
    text, codes = text.copy(), codes.copy()
    (text if stream == "text" else codes)[0, at] += 1
    after = forward(gpt, latents, text, text_lengths, codes, code_lengths)
    changed = [np.abs(b - a).max(-1)[0] > 1e-6 for b, a in zip(before, after)]
    # Input position at + 1 holds token `at`; audio comes after all of the text.
    if stream == "text":
        assert not changed[0][: at + 1].any() and changed[0][at + 1 :].all() and changed[1].all()
    else:
        assert not changed[0].any() and not changed[1][: at + 1].any() and changed[1][at + 1 :].all()


def prompt(text, text_lengths):
    """Returns `[START]` text `[STOP]` and padding, and the mask, as the synthesizer creates them."""
    rows = [[TEXT_START, *ids[:length], TEXT_STOP] for ids, length in zip(text, text_lengths)]
    longest = max(map(len, rows))
    return (
        np.array([row + [0] * (longest - len(row)) for row in rows], "int32"),
        np.array([[True] * len(row) + [False] * (longest - len(row)) for row in rows]),
    )


def cached_decoding(gpt, latents, text, text_lengths, codes):
    """Decodes one code at a time; returns the logits after each of `start, codes...`, and the latents behind them."""
    text_inputs, text_mask = prompt(text, text_lengths)
    state = gpt.prefill(latents, text_inputs, text_mask)
    mask = np.pad(text_mask, ((0, 0), (CONFIG.num_latents, 1)), constant_values=True)
    found = [(to_numpy(state.logits), to_numpy(state.hidden))]
    for index in range(codes.shape[1]):
        mask, state = advance(gpt, codes[:, index], index, mask, state)
        found.append((to_numpy(state.logits), to_numpy(state.hidden)))
    return (np.stack(arrays, axis=1) for arrays in zip(*found))


def test_codes_to_latents_are_the_states_that_predict_the_codes(gpt, inputs):
    latents, text, text_lengths, codes, _ = inputs
    text_inputs, text_mask = prompt(text, text_lengths)
    states = gpt.codes_to_latents(latents, text_inputs, codes, text_mask)
    assert states.shape == (2, codes.shape[1], CONFIG.width)
    logits, hidden = cached_decoding(gpt, latents, text, text_lengths, codes)
    np.testing.assert_allclose(to_numpy(gpt.audio_head(states)), logits[:, : codes.shape[1]], atol=1e-4)
    assert np.abs(hidden).max() > 1
    np.testing.assert_allclose(to_numpy(states), hidden[:, : codes.shape[1]], atol=1e-5)


def test_longest_text_and_clip_have_positions(gpt):
    text = np.full((1, CONFIG.max_text_tokens), 5, "int32")
    # A clip of the longest length, one code more for its shift in time.
    codes = np.zeros((1, CONFIG.max_codes + 1), "int32")
    latents = np.zeros((1, CONFIG.num_latents, CONFIG.width), "float32")
    text_logits, audio_logits = forward(gpt, latents, text, np.array([len(text[0])]), codes, np.array([len(codes[0])]))
    assert text_logits.shape[1] == CONFIG.max_text_tokens + 2 and audio_logits.shape[1] == CONFIG.max_codes + 6


def test_initial_weights_are_the_reference_s_but_for_positions():
    config = tiny_model_config(width=64, heads=2, layers=8, num_text_tokens=500, max_text_tokens=500)
    gpt = XTTS(config, parts=("gpt",)).gpt
    block = gpt.blocks[0]
    for weight, stddev in (
        (gpt.text_embedding, 1.0),
        (block.attention.qkv.kernel, 0.02),
        (block.mlp_in.kernel, 0.02),
        (block.attention.output_projection.kernel, 0.02 / 4),
        (block.mlp_out.kernel, 0.02 / 4),
    ):
        assert to_numpy(weight).std() == pytest.approx(stddev, rel=0.1), weight.path
    positions = to_numpy(gpt.audio_positions)
    assert np.sqrt((positions**2).mean(axis=1)) == pytest.approx(0.5, rel=1e-5)
    # Neighboring rows are similar, distant rows less so.
    likeness = (positions[:1] * positions[:6]).sum(axis=1)
    assert (np.diff(likeness) < 0).all() and likeness[5] > 0.5 * likeness[0]
    assert not to_numpy(block.mlp_out.bias).any()
    assert np.abs(to_numpy(gpt.audio_head.kernel)).max() <= 1 / 8
    assert not to_numpy(gpt.conditioning_encoder.blocks[0].output_projection.kernel).any()
