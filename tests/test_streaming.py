"""Streaming: audio equals the whole, starts early, has no gaps, and stops when the client disconnects."""

import logging
import threading
import time

import keras
import numpy as np
import pytest
from tiny import small_encoders, spread, tiny_run_config, voiced

from myxtts.config.config import SamplingConfig
from myxtts.inference.advancing import TensorflowSteps
from myxtts.inference.speech import Verdict, word_times
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.text_stream import Sentence
from myxtts.inference.windows import spoken_faster
from myxtts.models.waveform_decoders import interpolate_linearly
from myxtts.models.xtts import XTTS
from myxtts.text.reading import SENTENCE_PAUSE_SECONDS

TEXT = "one two three four five six. six five four. one."
SAMPLED = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


@small_encoders()
def make_synthesizer(tokenizer, decoder_type, parts=("gpt", "speaker", "decoder"), max_audio_tokens=103, **options):
    """A random model that seldom stops, with a decoder whose windows matter."""
    keras.utils.set_random_seed(0)
    settings = dict(num_text_tokens=tokenizer.num_tokens, max_audio_tokens=max_audio_tokens, max_text_tokens=60)
    settings |= dict(decoder_type=decoder_type)
    config = tiny_run_config(model=settings)
    model = XTTS(config.model, parts=parts)
    for part in parts:
        spread(model.part_weights(part).values(), 0.05 if part == "decoder" else 0.1)
    stop = np.arange(config.model.num_audio_tokens) == config.model.stop_audio_token
    model.gpt.audio_head.bias.assign(np.where(stop, -3.0, 0.0))
    return Synthesizer(model, tokenizer, config, **options)


@pytest.fixture(scope="module", params=["hifigan", "istft"])
def synthesizer(request, tokenizer):
    return make_synthesizer(tokenizer, request.param)


@pytest.fixture(scope="module")
def voice(synthesizer):
    return synthesizer.voice(voiced(0.5, 150, 1))


@pytest.fixture(autouse=True)
def many_windows(monkeypatch):
    monkeypatch.setattr("myxtts.inference.windows.MOST_FRAMES", 30)
    monkeypatch.setattr("myxtts.inference.text_front.get_language", lambda *_: ShortPieces)


@pytest.fixture
def slow_codes(monkeypatch):
    """Slows down sampling, so that codes always come more slowly than real time."""
    slow = lambda steps, *given, draw=TensorflowSteps.draw: time.sleep(0.05) or draw(steps, *given)
    monkeypatch.setattr(TensorflowSteps, "draw", slow)


class ShortPieces:
    char_limit, code = 30, "en"


def pcm(samples):
    return np.round(np.clip(samples, -1, 1) * 32767).astype(int)


@pytest.mark.parametrize("speed", [1.0, 1.3])
def test_stream_has_the_samples_of_the_whole(synthesizer, voice, speed, slow_codes):
    whole = synthesizer.speak(TEXT, voice, "en", SAMPLED, seed=1, speed=speed)
    stream = synthesizer.stream(TEXT, voice, "en", SAMPLED, seed=1, speed=speed)
    chunks = list(stream)
    assert len(whole.pieces) > 1 and max(len(piece.codes) for piece in whole.pieces) > 30
    assert len(chunks) > 2 * len(whole.pieces) and all(len(chunk) for chunk in chunks)
    streamed = np.concatenate(chunks)
    assert streamed.shape == whole.samples.shape and np.abs(streamed).max() > 0.01
    np.testing.assert_allclose(streamed, whole.samples, atol=1e-6)
    assert np.abs(pcm(streamed) - pcm(whole.samples)).max() <= 1
    assert stream.doubts and (stream.confidence, stream.reason) == (whole.confidence, whole.reason)
    for one, other in zip(stream.pieces, whole.pieces, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes)
        assert [*vars(one)] == [*vars(other)]
        assert all(vars(one)[name] == value for name, value in vars(other).items() if name != "codes")


def test_sentence_of_a_stream_is_checked_after_the_next_one_has_begun(synthesizer, voice, monkeypatch):
    judged, counts, now = [], [], 0.0
    low = lambda text, *rest: judged.append(text) or Verdict(confidence=0.2, reason="a")
    monkeypatch.setattr("myxtts.inference.self_check.judge", low)
    text = f"{TEXT} {TEXT}"  # so the last piece comes after the verdict on the first, in however few chunks
    stream = synthesizer.stream(text, voice, "en", SAMPLED, seed=1)
    pieces = synthesizer.text_front.pieces(text, "en")
    for samples in stream:
        counts.append((len(judged), now))
        now += len(samples) / synthesizer.sample_rate
    starts = [piece.start_seconds for piece in stream.pieces[1:]]
    assert all(count <= sum(start < before for start in starts) for count, before in counts)
    assert judged == [piece.text for piece in pieces] and 0 < counts[-1][0] and stream.confidence == 0.2
    unchecked = synthesizer.stream(text, voice, "en", SAMPLED, check=False)
    assert [*unchecked] and len(judged) == len(pieces) == len(unchecked.pieces)


def test_first_audio_precedes_the_last_codes_of_the_sentence(synthesizer, voice, monkeypatch):
    known, follow = [], Sentence.more

    def spy(sentence):
        known.append(len(sentence.stream.codes))
        return follow(sentence)

    monkeypatch.setattr(Sentence, "more", spy)
    stream = synthesizer.stream(TEXT, voice, "en", SAMPLED, seed=1)
    next(stream)
    stream.close()
    assert 0 < known[0] < len(synthesizer.speak(TEXT, voice, "en", SAMPLED, seed=1).pieces[0].codes)


def test_closed_stream_frees_its_rows(synthesizer, voice):
    stream = synthesizer.stream(TEXT, voice, "en", SAMPLED, seed=1)
    next(stream)
    stream.close()
    synthesizer.engine.wait(lambda: not synthesizer.engine._rows)
    assert stream.num_rows == 0 and list(stream) == []
    # A stream that is never started uses no row, and one that is deleted frees its rows.
    dropped = synthesizer.stream(TEXT, voice, "en", SAMPLED)
    assert dropped.num_rows == 0 == len(dropped.codes)
    next(dropped)
    del dropped
    synthesizer.engine.wait(lambda: not synthesizer.engine._rows)


def test_stream_that_another_thread_closes_ends(synthesizer, voice, monkeypatch):
    stream = synthesizer.stream(TEXT, voice, "en", SAMPLED, seed=1)
    closing = lambda steps, *given, draw=TensorflowSteps.draw: time.sleep(0.2) or stream.close() or draw(steps, *given)
    monkeypatch.setattr(TensorflowSteps, "draw", closing)
    reader = threading.Thread(target=list, args=[stream], daemon=True)
    reader.start()
    reader.join(60)
    assert not reader.is_alive() and stream.num_rows == 0


def test_total_work_of_a_stream_is_a_fixed_multiple_of_the_whole(synthesizer, voice, monkeypatch):
    frames, decode = [], synthesizer.to_waveform.to_samples

    def spy(latents, speaker, start, end):
        frames.append(end - start)
        return decode(latents, speaker, start, end)

    monkeypatch.setattr(synthesizer.to_waveform, "to_samples", spy)
    monkeypatch.setattr("myxtts.inference.windows.MOST_FRAMES", 172)
    whole = synthesizer.speak(TEXT, voice, "en", SAMPLED, seed=1)
    once, decoder = sum(frames), synthesizer.model.decoder
    frames.clear()
    list(synthesizer.stream(TEXT, voice, "en", SAMPLED, seed=1))
    context = decoder.history_frames + decoder.lookahead_frames
    # Windows of 8, 16, 32, 64, 128 frames and then 172 each.
    windows = sum(5 + decoder.num_frames(len(piece.codes) + 1) / 172 for piece in whole.pieces)
    assert sum(frames) <= once + windows * context


def test_griffin_lim_streams_sentence_by_sentence(tokenizer, without_griffin_lim):
    synthesizer = make_synthesizer(tokenizer, "hifigan", ("gpt", "dvae"))
    voice = synthesizer.voice(voiced(0.5, 150, 1))
    whole = synthesizer.speak(TEXT, voice, "en", SAMPLED, seed=1, speed=1.5)
    chunks = list(synthesizer.stream(TEXT, voice, "en", SAMPLED, seed=1, speed=1.5))
    assert len(chunks) == len(whole.pieces) > 1
    np.testing.assert_array_equal(np.concatenate(chunks), whole.samples)
    pauses = int(SENTENCE_PAUSE_SECONDS * 22050) * (len(whole.pieces) - 1)
    assert len(whole.samples) == sum(256 * int(4 * len(piece.codes) / 1.5) for piece in whole.pieces) + pauses


def test_speech_cut_at_the_limit_keeps_its_last_audio_and_warns(synthesizer, voice, caplog):
    bias, stop = synthesizer.model.gpt.audio_head.bias, synthesizer.config.model.stop_audio_token
    before = bias.numpy()
    bias.assign(np.where(np.arange(len(before)) == stop, -1e9, before))
    try:
        with caplog.at_level(logging.WARNING, "myxtts.inference"):
            stream = synthesizer.stream("one.", voice, "en", SAMPLED)
            samples = np.concatenate(list(stream))
    finally:
        bias.assign(before)
    assert "100 codes" in caplog.text and not stream.pieces[0].stopped
    assert len(samples) == 256 * synthesizer.model.decoder.num_frames(101)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.7])
def test_speed_interpolates_like_the_reference(speed):
    x = np.random.default_rng(0).standard_normal((37, 3)).astype("float32")
    expected = keras.ops.convert_to_numpy(interpolate_linearly(x[None], 1 / speed))[0]
    np.testing.assert_allclose(spoken_faster(x, speed), expected, atol=1e-5)
    # Results for an unfinished sequence do not change later.
    for length in range(1, 37):
        part = spoken_faster(x[:length], speed, finished=False)
        np.testing.assert_array_equal(part, spoken_faster(x, speed)[: len(part)])
        assert len(part) >= (length - 1) / speed - 1


def test_audio_is_the_same_without_graphs(synthesizer, voice):
    plain = Synthesizer(synthesizer.model, synthesizer.tokenizer, synthesizer.config, traced=False)
    np.testing.assert_allclose(plain.voice(voiced(0.5, 150, 1)).latents, voice.latents, atol=1e-5)
    whole, other = (one.speak("one two.", voice, seed=2) for one in (synthesizer, plain))
    assert whole.codes.tolist() == other.codes.tolist()
    np.testing.assert_allclose(other.samples, whole.samples, atol=1e-4)


def test_words_divide_the_time_of_a_sentence_by_their_lengths():
    length = lambda word: sum(one.isalnum() or one == "%" for one in word)
    rate, tone = 16_000, np.sin(np.arange(16_000) * 0.1).astype("float32")
    samples = np.concatenate([np.zeros(8_000, "float32"), tone, tone, np.zeros(4_000, "float32")])
    times = word_times(samples, rate, "aaaa – bb, cccc", length, start_seconds=10.0)
    assert [one.text for one in times] == ["aaaa", "bb,", "cccc"]
    assert times[0].start == pytest.approx(10.5, abs=0.02) and times[-1].end == pytest.approx(12.5, abs=0.02)
    assert times[1].start == times[0].end and times[2].start > times[1].end  # a pause at the comma alone
    assert times[0].end - times[0].start == pytest.approx(times[2].end - times[2].start, abs=0.003)
    assert word_times(np.zeros(8_000, "float32"), rate, "a b", length) == []
    spoken = word_times(tone, rate, "aa % bb", length)
    assert [one.text for one in spoken] == ["aa", "%", "bb"] and spoken[1].end == spoken[2].start
    hindi = word_times(tone, rate, "में की की", length)
    assert [one.end for one in hindi[:-1]] == [one.start for one in hindi[1:]]  # vowel signs are no punctuation
