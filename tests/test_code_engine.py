"""Sampling codes together: a sentence's codes do not depend on batching, compilation, calls or cancelled neighbors."""

import os
from unittest import mock

import keras
import numpy as np
import pytest
from logical_devices import on_logical_devices
from tiny import spread, tiny_model_config

from myxtts.config.config import SamplingConfig
from myxtts.devices.machine import resident_bytes
from myxtts.inference import code_engine
from myxtts.inference.advancing import TensorflowSteps
from myxtts.inference.code_engine import MOST_ROWS, CodeEngine, mark_text
from myxtts.models.gpt import sample, teacher_forcing
from myxtts.models.xtts import XTTS

CONFIG = tiny_model_config()
START, STOP = CONFIG.start_audio_token, CONFIG.stop_audio_token
GREEDY = SamplingConfig(temperature=0.0, repetition_penalty=1.0)
SAMPLED = SamplingConfig(temperature=1.1, top_k=12, top_p=0.95, repetition_penalty=1.3)
TEXTS = [[5, 6, 7, 8], [9], [4, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [20, 21], [7, 7, 7], [22, 5, 9, 8, 6, 4]]


def engine_of(gpt, by_block=None):
    return CodeEngine(TensorflowSteps(gpt, CONFIG, by_block=by_block), CONFIG)


def make_gpt():
    keras.utils.set_random_seed(0)
    gpt = XTTS(CONFIG, parts=("gpt",)).gpt
    spread(gpt.trainable_variables, 0.25)
    return gpt


def voice_latents(number):
    return np.random.default_rng(number).standard_normal((1, CONFIG.num_latents, CONFIG.width)).astype("float32")


def all_codes(engine):
    """Samples the codes of all `TEXTS` together, each in its own voice."""
    streams = [engine.open(ids, voice_latents(n), SAMPLED, 3, n) for n, ids in enumerate(TEXTS)]
    engine.finish(streams)
    return [stream.codes for stream in streams]


@pytest.fixture(scope="module")
def gpt():
    return make_gpt()


@pytest.fixture(scope="module")
def engine(gpt):
    return engine_of(gpt)


@pytest.fixture(scope="module")
def alone(engine):
    """Codes of every text sampled alone, and their latents."""
    found = []
    for number, ids in enumerate(TEXTS):
        stream = engine.open(ids, voice_latents(number), SAMPLED, 3, number)
        engine.finish([stream])
        found.append((stream.codes, stream.latents()))
    return found


@pytest.fixture
def endless(gpt):
    """Prevents the stop code, so that no sentence ends by itself."""
    before = gpt.audio_head.bias.numpy().copy()
    gpt.audio_head.bias.assign(np.where(np.arange(len(before)) == STOP, -1e9, before))
    yield
    gpt.audio_head.bias.assign(before)


def codes_by_teacher_forcing(gpt, ids, latents, sampling, seed, sentence, count):
    """Samples each code from a full pass over all earlier codes, with the noise of its position."""
    codes, seen = [], np.zeros((1, CONFIG.num_audio_tokens), bool)
    while len(codes) < count and STOP not in codes:
        padded = [*codes, *[0] * (count - len(codes))]  # to one shape
        arrays = (np.array(one, "int32") for one in ([ids], [len(ids)], [padded], [len(codes)]))
        streams = teacher_forcing(CONFIG, *arrays)
        logits = gpt(latents, streams.text_inputs, streams.audio_inputs, key_mask=streams.key_mask)[1]
        row = keras.ops.convert_to_numpy(logits)[:, len(codes)].copy()
        row[:, START] = -1e30
        noise = code_engine.gumbel_noise(seed, sentence, len(codes), 1, CONFIG.num_audio_tokens)
        codes.append(int(sample(row, sampling, seen, noise)[0]))
        seen[0, codes[-1]] = True
    return [code for code in codes if code != STOP]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_codes_are_those_of_repeated_teacher_forcing(gpt, engine, endless, sampling):
    latents = voice_latents(0)
    stream = engine.open(TEXTS[0], latents, sampling, 3, 2, max_codes=18)
    engine.finish([stream])
    assert stream.codes == codes_by_teacher_forcing(gpt, TEXTS[0], latents, sampling, 3, 2, 18)
    assert len(set(stream.codes)) > 1 and len(stream.codes) == 18 and not stream.stopped


def test_sentences_end_by_themselves_and_their_codes_are_the_same_in_a_batch_at_any_place(engine, alone):
    lengths = [len(codes) for codes, _ in alone]
    assert len(set(lengths)) > 2 and min(lengths) > 0 and min(lengths) < CONFIG.max_codes
    codes = sum((codes for codes, _ in alone), [])
    assert min(codes) >= 0 and max(codes) < CONFIG.num_codes
    order = [3, 0, 5, 4, 1, 2]
    streams = [engine.open(TEXTS[n], voice_latents(n), SAMPLED, 3, n) for n in order]
    engine.finish(streams)
    for number, stream in zip(order, streams):
        codes, states = alone[number]
        assert stream.codes == codes
        np.testing.assert_allclose(stream.latents(), states, atol=1e-4)


def test_codes_are_the_same_when_rows_join_and_leave(engine, alone):
    streams = []
    for number, ids in enumerate(TEXTS * 3):
        number %= len(TEXTS)
        streams.append(engine.open(ids, voice_latents(number), SAMPLED, 3, number, hurry=number % 2 == 0))
        engine.wait(lambda: any(stream.codes for stream in streams[-2:]))
    assert len(streams) > MOST_ROWS
    engine.finish(streams)
    for number, stream in enumerate(streams):
        assert stream.codes == alone[number % len(TEXTS)][0]


def test_codes_are_the_same_with_compiled_blocks(gpt, alone):
    assert all_codes(engine_of(gpt, by_block=True)) == [codes for codes, _ in alone]


def test_codes_are_the_same_compiled(gpt, alone, monkeypatch):
    monkeypatch.setattr(code_engine, "CACHE_SIZES", (128,))
    engine = engine_of(gpt)
    engine.steps.shapes = {(rows, 128) for rows in (1, 2, 4, 8)}
    assert all_codes(engine) == [codes for codes, _ in alone]
    first = engine.open(TEXTS[2], voice_latents(2), SAMPLED, 3, 2)
    engine.finish([first])
    assert first.codes == alone[2][0]
    assert engine.steps.num_traces == 1  # batches are padded to these shapes, so that no other graph is traced


@on_logical_devices
def codes_on_one_thread():
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1"
    return all_codes(engine_of(make_gpt()))


def test_codes_are_the_same_on_one_thread_as_on_all_of_the_machine(alone):
    assert codes_on_one_thread() == [codes for codes, _ in alone]


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("limit", [1, 15, 16, 17, 0])
def test_limit_is_enforced_and_reported(gpt, engine, limit):
    longer = engine.open(TEXTS[1], voice_latents(1), GREEDY, max_codes=40)
    stream = engine.open(TEXTS[0], voice_latents(0), GREEDY, max_codes=limit)
    engine.finish([stream, longer])
    assert len(stream.codes) == (limit or CONFIG.max_codes) and not stream.stopped and stream.finished
    text, codes = np.array([mark_text(TEXTS[0], CONFIG)], "int32"), np.array([[*stream.codes, STOP]], "int32")
    expected = gpt.codes_to_latents(voice_latents(0), text, codes)
    np.testing.assert_allclose(stream.latents(), keras.ops.convert_to_numpy(expected)[0], atol=1e-4)


def test_repeated_sentence_of_a_text_is_sampled_independently(engine):
    same, other_sentence, other_seed = (
        engine.open(TEXTS[2], voice_latents(2), SAMPLED, seed, sentence) for seed, sentence in ((3, 2), (3, 1), (4, 2))
    )
    engine.finish([same, other_sentence, other_seed])
    assert same.codes != other_sentence.codes != other_seed.codes != same.codes


def test_sampling_values_seeds_and_limits_add_no_graph_and_no_memory(engine, endless):
    engine.finish([engine.open(TEXTS[0], voice_latents(0), GREEDY, max_codes=3)])
    traces, rss = engine.steps.num_traces, []
    random, drawn = np.random.default_rng(0), set()
    for i in range(200):
        sampling = SamplingConfig(
            temperature=float(random.choice([0.0, 1, random.uniform(0.1, 2.0)])),
            top_k=int(random.integers(0, 25)),
            top_p=float(random.choice([1.0, random.uniform(0.01, 1.0)])),
            repetition_penalty=float(random.choice([1, random.uniform(1.0, 9.0)])),
        )
        stream = engine.open(TEXTS[i % 6], voice_latents(0), sampling, seed=i, max_codes=3 + i % 2)
        engine.finish([stream])
        assert len(stream.codes) == 3 + i % 2
        drawn.add(tuple(stream.codes))
        rss.append(resident_bytes())
    assert engine.steps.num_traces == traces
    assert rss[-1] - rss[20] < 40e6 and len(drawn) > 50


@pytest.mark.usefixtures("endless")
def test_cancelled_row_leaves_before_the_next_codes_and_the_thread_ends(engine, monkeypatch):
    sizes, streams, draw = [], [], engine.steps.draw

    def cancelling(state, request):  # between two calls, because it runs in the thread of the engine
        sizes.append(len(engine._rows))
        streams[1].cancelled, streams[2].cancelled = True, len(sizes) > 1
        return draw(state, request)

    monkeypatch.setattr(engine.steps, "draw", cancelling)
    with engine.changed:
        streams += [engine.open(TEXTS[n], voice_latents(n), SAMPLED) for n in range(3)]
        thread = engine._thread
    engine.finish([streams[0]])
    assert sizes == [3, 2, 1]
    thread.join(30)
    assert engine._thread is None and engine._state is None


@pytest.mark.parametrize("method", ["read", "move", "draw"])
def test_sampling_error_is_raised_in_waiting_threads_and_later_sentences_work(engine, alone, monkeypatch, method):
    engine = CodeEngine(engine.steps, CONFIG)
    with monkeypatch.context() as patch:
        patch.setattr(engine.steps, method, mock.Mock(side_effect=MemoryError))
        stream = engine.open(TEXTS[0], voice_latents(0), SAMPLED)
        with pytest.raises(MemoryError):
            engine.finish([stream])
    assert all_codes(engine) == [codes for codes, _ in alone]


def test_thread_that_cannot_start_is_started_by_the_next_sentence(engine, alone, monkeypatch):
    engine = CodeEngine(engine.steps, CONFIG)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr("threading.Thread.start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        engine.open(TEXTS[0], voice_latents(0), SAMPLED)
    assert all_codes(engine) == [codes for codes, _ in alone] and not engine._waiting
