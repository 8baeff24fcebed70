"""From recordings to batches: content of a row, dependence on the position, and clips that are left out."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from tiny import make_tiny_corpus, tiny_run_config, voiced

from myxtts.audio.files import AudioError
from myxtts.config.config import DataConfig
from myxtts.config.rates import CODE_STRIDE_SAMPLES, MODEL_SAMPLE_RATE
from myxtts.config.stages import STAGES
from myxtts.data import ljspeech, pipeline
from myxtts.data.batch import BatchOrder, SequentialOrder, WaveBatch, check_wave_batch, noise_batch
from myxtts.data.corpora import CorpusError, Utterance
from myxtts.data.dataset import MAX_SHIFT_SAMPLES, SpeechDataset, conditioning_seconds
from myxtts.data.pipeline import BatchLoader, SampleCache, prefetch_to, wave_dataset


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Seven clips whose samples identify clip and position: clip i rises from i / 10 to (i + 1) / 10."""
    folder = tmp_path_factory.mktemp("ramps")
    made = []
    for index, length in enumerate([3000, 5000, 7000, 2500, 4000, 9000, 6000]):
        samples = index / 10 + 0.1 * np.arange(length) / length
        path = folder / f"{index}.wav"
        soundfile.write(path, samples, MODEL_SAMPLE_RATE, subtype="PCM_16")
        speaker, tokens = "abababo"[index], tuple(range(1, index + 2))  # only the last clip is spoken by "o"
        made.append(Utterance(str(index), str(path), "", speaker, "en", num_samples=length, tokens=tokens))
    return made


def owner(samples):
    """Returns the number of the clip that a slice comes from."""
    return int(np.median(samples) * 10)


def make_loader(clips, *, budget_mb=8, seed=3, training=True, extra=MAX_SHIFT_SAMPLES, **arguments):
    lengths = [min(clip.num_samples, arguments.get("crop_samples") or clip.num_samples) for clip in clips]
    tokens = [len(clip.tokens) for clip in clips]
    order = SequentialOrder(lengths, tokens, 3)
    if training:
        order = BatchOrder(lengths, tokens, 3, 2, seed, extra_samples=extra)
    return BatchLoader(clips, order, SampleCache(budget_mb), seed, max_shift=extra, training=training, **arguments)


def rule(source="speaker", padding="repeat", low=1000, high=4000):
    seconds = ((low + 0.5) / MODEL_SAMPLE_RATE, (high + 0.5) / MODEL_SAMPLE_RATE)
    return DataConfig(conditioning_seconds=seconds, conditioning_source=source, conditioning_padding=padding)


def assert_equal_batches(one, other):
    for name, left, right in zip(WaveBatch._fields, one, other):
        np.testing.assert_array_equal(left, right, err_msg=name)


def test_row_holds_its_clip_shifted_by_silence(clips):
    loader = make_loader(clips)
    shifts = set()
    for position in range(30):
        batch = loader(position)
        assert batch.conditioning.shape == (3, 0)
        for row, index in enumerate(batch.index):
            clip, length = clips[index], batch.wav_lengths[row]
            shift = length - clip.num_samples
            shifts.add(int(shift))
            assert 0 <= shift <= MAX_SHIFT_SAMPLES
            assert not batch.wav[row, :shift].any() and not batch.wav[row, length:].any()
            expected = soundfile.read(clip.wav_path, dtype="float32")[0]
            np.testing.assert_allclose(batch.wav[row, shift:length], expected, atol=1.01 / 32767)
            assert tuple(batch.text[row, : batch.text_lengths[row]]) == clip.tokens
            assert not batch.text[row, batch.text_lengths[row] :].any()
    assert min(shifts) < 150 and max(shifts) > 850


def test_loader_is_a_function_of_position(clips):
    one, other = (make_loader(clips, conditioning=rule()) for _ in range(2))
    expected = [one(position) for position in range(6)]
    for position in (5, 0, 3, 3, 1):
        assert_equal_batches(other(position), expected[position])


def test_cache_does_not_change_numbers(clips):
    full, half, none = (make_loader(clips, conditioning=rule(), budget_mb=budget) for budget in (8, 0.02, 0))
    for _ in range(2):
        for position in range(4):
            batch = full(position)
            assert_equal_batches(half(position), batch)
            assert_equal_batches(none(position), batch)


def test_cache_keeps_within_its_budget(clips):
    cache = SampleCache(0.02)
    for clip in clips:
        cache.load(clip.wav_path)
    assert 0 < sum(samples.nbytes for samples, *_ in cache._arrays.values()) <= 0.02 * 2**20


def test_conditioning_clip_is_another_of_the_speaker_or_the_only_one_which_says_where(clips):
    loader, pairs, found = make_loader(clips, conditioning=rule()), set(), 0
    for position in range(60):
        batch = loader(position)
        for row, (index, conditioning) in enumerate(zip(batch.index, batch.conditioning)):
            start, end = batch.conditioning_span[row]
            if clips[index].speaker == "o":
                found += 1
                assert 1000 <= end - start <= 4000
                np.testing.assert_array_equal(conditioning[: end - start], batch.wav[row, start:end])
            else:
                other = owner(conditioning)
                pairs.add((int(index), other))
                assert other != index and clips[other].speaker == clips[index].speaker
                assert (start, end) == (0, 0)
    assert found > 3
    assert pairs == {(i, j) for i in range(6) for j in range(6) if i != j and i % 2 == j % 2}


@pytest.mark.parametrize("padding", ["repeat", "zeros"])
def test_own_clip_span_lies_where_the_sound_is_and_is_filled(clips, padding):
    loader = make_loader(clips, conditioning=rule("clip", padding, low=3000, high=4000))
    halves = 0
    for position in range(12):
        batch = loader(position)
        for row, (start, end) in enumerate(batch.conditioning_span):
            clip = clips[batch.index[row]]
            assert batch.wav_lengths[row] - clip.num_samples <= start < end <= batch.wav_lengths[row]
            filled = 4000 if padding == "repeat" else end - start
            np.testing.assert_array_equal(
                batch.conditioning[row, :filled], np.resize(batch.wav[row, start:end], filled)
            )
            if clip.num_samples < 3000:
                # If a clip is shorter than the sampled length, half of the clip is used, as in the reference.
                halves += 1
                assert end - start == clip.num_samples // 2
    assert halves


def test_crop_comes_from_anywhere_in_the_clip(clips):
    loader = make_loader(clips, crop_samples=2048)
    starts = {index: [] for index in range(7)}
    for position in range(120):
        batch = loader(position)
        for row, index in enumerate(batch.index):
            length = min(2048, clips[index].num_samples)
            end = batch.wav_lengths[row]
            assert length <= end <= length + MAX_SHIFT_SAMPLES
            starts[index].append(((batch.wav[row, end - length] - index / 10) / 0.1) * clips[index].num_samples)
    for index, found in starts.items():
        room = clips[index].num_samples - 2048
        assert min(found) < 0.2 * room + 10 and max(found) > 0.8 * room - 10, f"clip {index}, {room} to spare: {found}"


def test_validation_has_no_random_choices(clips):
    loaders = [make_loader(clips, seed=seed, training=False, conditioning=rule()) for seed in (1, 2)]
    for position in range(3):
        batch = loaders[0](position)
        assert_equal_batches(batch, loaders[1](position))
        np.testing.assert_array_equal(batch.wav_lengths, [clips[index].num_samples for index in batch.index])


@pytest.mark.parametrize(("workers", "at_once"), [(7, 7), (DataConfig.num_workers, DataConfig.num_workers + 1)])
def test_dataset_yields_the_requested_batches_in_order(clips, workers, at_once):
    loader, together = make_loader(clips, conditioning=rule()), threading.Barrier(at_once)

    def read(position):
        together.wait(60)  # all readers wait for the disk at once, whatever the number of cores
        return loader(position)

    batches = list(prefetch_to(wave_dataset(read, 2, 2 + at_once, workers), "/CPU:0", 2))
    assert len(batches) == at_once
    for position, batch in enumerate(batches, 2):
        assert_equal_batches(WaveBatch(*(field.numpy() for field in batch)), loader(position))
    assert wave_dataset(read, 0, 1, 8).options().threading.private_threadpool_size == 8, "as given, not adapted"


def test_batch_that_breaks_the_contract_is_refused():
    batch = noise_batch(2, 2048, 3, 0, 9, targets=True)
    for change, words in [
        ({"wav": batch.wav.astype(np.float64)}, "WaveBatch.wav must be float32"),
        ({"text_lengths": batch.text_lengths[:1]}, "WaveBatch.text_lengths"),
        ({"wav": batch.wav[:, :-1]}, "multiple of 1024"),
        ({"wav_lengths": batch.wav_lengths * 0}, "WaveBatch.wav_lengths"),
        ({"text_lengths": batch.text_lengths + 100}, "WaveBatch.text_lengths"),
        ({"target_wav": batch.target_wav[:, :-256]}, "target_wav must have 2304 samples or none"),
        ({"target_lengths": batch.target_lengths * 0}, "WaveBatch.target_lengths"),
        ({"speaker": batch.speaker.astype(np.int64)}, "WaveBatch.speaker must be int32"),
    ]:
        with pytest.raises(ValueError, match=words):
            check_wave_batch(batch._replace(**change))
    assert check_wave_batch(batch) is batch


def test_conditioning_length_follows_short_corpora():
    def lengths(*seconds):
        return [Utterance("a", "", "", "", "en", num_samples=int(s * MODEL_SAMPLE_RATE)) for s in seconds]

    low, high = conditioning_seconds(DataConfig(), lengths(*[0.5] * 50, *[0.4] * 50))
    assert (low, high) == pytest.approx((0.5, 0.5), abs=1e-3)
    assert conditioning_seconds(DataConfig(), lengths(*[9.0] * 50)) == (3.0, 6.0)
    low, high = conditioning_seconds(DataConfig(), lengths(*[4.0] * 50))
    assert (low, high) == pytest.approx((3.0, 4.0), abs=1e-3)
    assert conditioning_seconds(DataConfig(conditioning_padding="zeros"), lengths(0.5)) == (3.0, 6.0)


@pytest.fixture
def corpus_with_long_clips(tmp_path):
    folder = make_tiny_corpus(tmp_path / "data")
    metadata = folder / "metadata.csv"
    metadata.write_text(metadata.read_text() + "long_one|one|one\nlong_text|" + "one two three " * 4 + "|\n")
    speakers = folder / "speakers.csv"
    speakers.write_text(speakers.read_text() + "long_one,low\nlong_text,low\n")
    soundfile.write(folder / "wavs/long_one.wav", voiced(2.0, 110, 0), MODEL_SAMPLE_RATE)
    soundfile.write(folder / "wavs/long_text.wav", voiced(1.2, 110, 0), MODEL_SAMPLE_RATE)
    return folder


@pytest.mark.parametrize("limits", [{"max_seconds": 1.3}, {"max_seconds": 2.2, "max_mel_frames": 120}])
def test_pipeline_drops_clips_longer_than_max_frames(corpus_with_long_clips, tmp_path, limits):
    dataset = SpeechDataset.open(tiny_run_config(corpus_with_long_clips, tmp_path / "run", data=limits))
    ids = {clip.id for clip in (*dataset.train, *dataset.validation)}
    assert len(ids) == 12 and not ids & {"long_one", "long_text"}
    rows = (tmp_path / "run/clips_train.csv").read_text(encoding="utf-8").splitlines()
    report = {clip_id: row for row in rows for clip_id in ("long_one", "long_text") if clip_id in row}
    assert "too long" in report["long_one"] and "text too long" in report["long_text"]


def test_stage_decides_over_conditioning_clips_and_slices(tiny_corpus, tmp_path, monkeypatch):
    dataset = SpeechDataset.open(tiny_run_config(tiny_corpus, tmp_path, dvae={"crop_seconds": 0.2}))
    longest = 4 * CODE_STRIDE_SAMPLES + MAX_SHIFT_SAMPLES
    for stage, conditioned, cropped in (("dvae", False, True), ("gpt", True, False)):
        batch = dataset.train_loader(stage)(0)
        assert bool(batch.conditioning.shape[1]) == conditioned
        assert (batch.wav_lengths.max() <= longest) == cropped
    monkeypatch.setitem(STAGES, "dvae", replace(STAGES["dvae"], conditioned=True))
    assert dataset.train_loader("dvae")(0).conditioning.shape[1]


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("max_mel_frames", [120, None])
def test_static_shapes_give_one_shape_that_holds_the_longest_clip(tiny_corpus, tmp_path, augment, max_mel_frames):
    settings = {"static_shapes": True, "augment": augment, "max_mel_frames": max_mel_frames}
    config = tiny_run_config(tiny_corpus, tmp_path, data=settings)
    dataset = SpeechDataset.open(config)
    longest = max(clip.num_samples for clip in dataset.train)
    assert longest + 1024 < config.max_samples
    num_samples = max_mel_frames * 256 if max_mel_frames else -(-longest // 1024) * 1024 + 1024 * augment
    loader = dataset.train_loader("gpt")
    for position in range(4):
        batch = loader(position)
        assert batch.wav.shape == (4, num_samples) and batch.text.shape == (4, 20)
    config = tiny_run_config(tiny_corpus, tmp_path, data=settings, dvae={"crop_seconds": 0.2})
    assert SpeechDataset.open(config).train_loader("dvae")(0).wav.shape == (4, 4 * 1024 + 1024 * augment)


def test_dataset_splits_clips_and_fills_in_the_vocabulary(tiny_corpus, tmp_path):
    config = tiny_run_config(tiny_corpus, tmp_path)
    dataset = ljspeech.LJSpeechDataset.open(config)  # its other public name
    train, validation = ({clip.id for clip in side} for side in (dataset.train, dataset.validation))
    assert train and validation and not train & validation and len(train | validation) == 12
    (listed := tmp_path / "clips_validation.csv").write_text("of a start with --val-data")
    assert dataset.config.model.num_text_tokens == dataset.tokenizer.num_tokens
    assert {clip.speaker for clip in dataset.train} == {"low", "high"}
    assert {clip.id: clip.text for clip in (*dataset.train, *dataset.validation)}["low_one"] == "one"
    again = SpeechDataset.open(config)
    assert again.train == dataset.train and again.validation == dataset.validation and not listed.exists()


@pytest.mark.parametrize("given", ["one folder", "two lists", "the folder and a list"])
def test_lists_over_one_folder_of_audio_are_kept_apart(tiny_corpus, tmp_path, given):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "wavs").symlink_to(tiny_corpus / "wavs")
    ids = [line.split("|")[0] for line in (tiny_corpus / "metadata.csv").read_text().splitlines()]
    for name, some in (("train", ids[2:]), ("eval", ids[:2])):
        lines = (f"wavs/{clip}.wav|one|emma" for clip in some)
        (folder / f"metadata_{name}.csv").write_text("\n".join(["audio_file|text|speaker_name", *lines]) + "\n")
    (folder / "lang.txt").write_text("English")
    data = {"one folder": (folder, None), "two lists": (folder / "metadata_train.csv", folder / "metadata_eval.csv")}
    train, validation = data.get(given, (folder, folder / "metadata_eval.csv"))
    data = {"train_data": str(train), "val_data": validation and str(validation)}
    dataset = SpeechDataset.open(tiny_run_config(None, tmp_path / "run", data=data))
    assert [clip.id for clip in dataset.train] == ids[2:]
    assert [clip.id for clip in dataset.validation] == ids[:2]
    assert dataset.tokenizer.languages == ("en",)


def test_corpus_without_a_usable_clip_is_an_error_with_a_report(tmp_path):
    folder = tmp_path / "data"
    (folder / "wavs").mkdir(parents=True)
    (folder / "metadata.csv").write_text("a|one|one\n")
    (folder / "wavs/a.wav").write_bytes(b"")
    with pytest.raises(CorpusError, match="clips_train.csv"):
        SpeechDataset.open(tiny_run_config(folder, tmp_path / "run"))
    assert "a" in (tmp_path / "run/clips_train.csv").read_text()


def test_recording_that_vanishes_in_a_run_is_named(tmp_path):
    corpus = make_tiny_corpus(tmp_path / "corpus")
    dataset = SpeechDataset.open(tiny_run_config(corpus, tmp_path / "run"))
    for clip in (corpus / "wavs").iterdir():
        clip.unlink()
    with pytest.raises(AudioError, match=r"wavs.*\.wav"):
        next(iter(dataset.stream("dvae", "/CPU:0", 0, 2)))


def test_end_of_the_data_does_not_wait_for_the_reader_to_be_destroyed(monkeypatch):
    """TensorFlow may take a minute to destroy its own reader."""
    may_end, ended = threading.Event(), []

    class Reader:
        left = [2, 1]

        def __iter__(self):
            return self

        def __next__(self):
            if self.left:
                return self.left.pop()
            raise StopIteration

        def __del__(self):
            may_end.wait(10)
            ended.append(self)

    monkeypatch.setattr(pipeline, "wave_dataset", lambda *arguments: None)
    monkeypatch.setattr(pipeline, "prefetch_to", lambda *arguments: Reader())
    assert list(pipeline.stream_batches(None, "/CPU:0", 0, 2, 1, 1)) == [1, 2]
    assert not ended
    may_end.set()


def batch_of_noise(position):
    return noise_batch(2, 4096, 5, 2048, 20)


@pytest.fixture
def asked(monkeypatch):
    """A list that grows with each requested batch."""
    count, prefetch_to = [], pipeline.prefetch_to

    class Counted:
        def __init__(self, *arguments):
            self.batches = iter(prefetch_to(*arguments))

        def __iter__(self):
            return self

        def __next__(self):
            count.append(1)
            return next(self.batches)

    monkeypatch.setattr(pipeline, "prefetch_to", Counted)
    return count


def test_no_batch_is_requested_after_the_last(asked):
    assert len(list(pipeline.stream_batches(batch_of_noise, "/CPU:0", 2, 5, 2, 1))) == len(asked) == 3


def test_error_of_the_loader_is_raised_unchanged_at_its_batch(asked):
    def failing(position):
        if position == 3:
            raise FileNotFoundError("clip 3 has vanished")
        return batch_of_noise(position)

    with pytest.raises(FileNotFoundError, match="clip 3 has vanished"):
        list(pipeline.stream_batches(failing, "/CPU:0", 1, 5, 2, 1))
    assert len(asked) == 3
