"""Batches of the stages `decoder` and `speaker`: synchronous audio at 24 kHz, and speakers."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile
import soxr
from test_pipeline import make_loader
from tiny import make_tiny_corpus, tiny_run_config, voiced

from myxtts.config.rates import DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data.batch import target_width
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import MAX_SHIFT_SAMPLES, SpeechDataset

SOURCE_RATES = (24000, 48000, 8000)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """One recording for each rate of `SOURCE_RATES`, by two speakers."""
    folder, made = tmp_path_factory.mktemp("clips"), []
    for index, rate in enumerate(SOURCE_RATES):
        path = folder / f"{index}.wav"
        sound = voiced(0.4 + 0.1 * index, 150, index, sample_rate=rate)
        if rate == 48000:
            sound = sound + 0.1 * np.sin(2 * np.pi * 11500 * np.arange(len(sound)) / rate)  # 22 050 Hz cannot have it
        soundfile.write(path, sound, rate, subtype="PCM_16")
        length = round(len(sound) * MODEL_SAMPLE_RATE / rate)
        made.append(Utterance(str(index), str(path), "", "ab"[index % 2], "en", num_samples=length, tokens=(1, 2)))
    return made


def test_target_is_the_recording_and_begins_with_the_model_input(clips):
    loader, shifts = make_loader(clips, targets=True), set()
    for position in range(8):
        batch = loader(position)
        assert batch.target_wav.shape == (3, target_width(batch.wav.shape[1]))
        for row, index in enumerate(batch.index):
            source, rate = soundfile.read(clips[index].wav_path, dtype="float32")
            assert batch.source_rate[row] == rate == SOURCE_RATES[index]
            expected = source if rate == DECODER_SAMPLE_RATE else soxr.resample(source, rate, DECODER_SAMPLE_RATE)
            shift = batch.wav_lengths[row] - clips[index].num_samples
            assert shift % 147 == 0
            begin, end = shift // 147 * 160, batch.target_lengths[row]
            np.testing.assert_allclose(batch.target_wav[row, begin:end], expected[: end - begin], atol=2e-4)
            assert abs(end - begin - len(expected)) <= 1
            assert not batch.target_wav[row, :begin].any() and not batch.target_wav[row, end:].any()
            shifts.add(int(shift))
    assert len(shifts) > 3


def test_target_keeps_frequencies_above_the_models_rate(clips):
    batch = make_loader(clips, training=False, targets=True)(0)
    row = list(batch.index).index(1)
    spectrum = np.abs(np.fft.rfft(batch.target_wav[row, : batch.target_lengths[row]]))
    hz = np.fft.rfftfreq(batch.target_lengths[row], 1 / DECODER_SAMPLE_RATE)
    assert spectrum[(hz > 11450) & (hz < 11550)].max() > 0.2 * spectrum.max()


def test_slices_of_both_rates_have_the_same_audio(clips):
    batch = make_loader(clips, crop_samples=4096, targets=True)(3)
    for row, index in enumerate(batch.index):
        low = batch.wav[row, : batch.wav_lengths[row]].astype(np.float64)
        high = batch.target_wav[row, : batch.target_lengths[row]]
        again = soxr.resample(high, DECODER_SAMPLE_RATE, MODEL_SAMPLE_RATE)[: len(low)]
        # Slices are cut without a fade, which causes different ringing at each rate.
        inner = slice(600 + MAX_SHIFT_SAMPLES, len(again) - 600)
        error = again[inner] - low[: len(again)][inner]
        assert np.sqrt(np.mean(error**2)) < 0.01 * np.sqrt(np.mean(low[inner] ** 2)), index
    assert batch.target_wav.shape[1] < target_width(8 * 1024)


def test_speakers_are_numbered_and_unknown_ones_are_minus_one(clips):
    batch = make_loader(clips, training=False, speakers=("b", "c"))(0)
    assert {int(i): int(s) for i, s in zip(batch.index, batch.speaker)} == {0: -1, 1: 0, 2: -1}


def test_stages_without_targets_load_none(clips):
    loader = make_loader(clips)
    batch = loader(0)
    assert batch.target_wav.shape == (3, 0)
    assert not np.any([batch.target_lengths, batch.source_rate, batch.speaker])
    assert {rate for _, rate in loader.cache._arrays} == {MODEL_SAMPLE_RATE}
    plain, asked = make_loader(clips)(4), make_loader(clips, speakers=("a", "b"))(4)
    np.testing.assert_array_equal(plain.wav, asked.wav)


def test_a_stage_requests_targets_by_its_entry_and_static_shapes_include_them(tmp_path, monkeypatch):
    monkeypatch.setitem(STAGES, "gpt", replace(STAGES["gpt"], targets=True, speakers=True))
    corpus = make_tiny_corpus(tmp_path / "corpus")
    dataset = SpeechDataset.open(tiny_run_config(corpus, tmp_path / "run", data={"static_shapes": True}))
    assert dataset.speakers == ("high", "low")
    loader = dataset.train_loader("gpt")
    for position in range(3):
        batch = loader(position)
        assert batch.target_wav.shape[1] == target_width(loader.order.shapes[0][0])
        assert [dataset.speakers[index] for index in batch.speaker] == [
            dataset.train[index].speaker for index in batch.index
        ]
    assert dataset.validation_loader("gpt")(0).target_lengths.min() > 0
    assert dataset.train_loader("dvae")(0).target_wav.shape[1] == 0
