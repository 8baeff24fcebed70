"""Shards of encoded clips give the same batches and losses as recordings, whichever process wrote which shard."""

import shutil
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest
import soundfile
import tensorflow as tf
from tiny import tiny_run_config, write_run

from myxtts.audio.files import AudioError
from myxtts.config.checks import UserError
from myxtts.data.dataset import SpeechDataset
from myxtts.data.doctor import ClipLimits
from myxtts.data.shards import PreparedClips, read_index, shard_name, write_shard
from myxtts.models.xtts import XTTS
from myxtts.runs.opening import open_run
from myxtts.runs.preparing import LOCK, prepare
from myxtts.storage.files import read_json, temporary_path, write_json
from myxtts.training.resuming import load_foundations
from myxtts.training.stages.classes import STAGE_CLASSES
from myxtts.training.stages.gpt import GPTObjective

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def run(tiny_corpus, tmp_path_factory):
    """Configuration of a run without augmentation whose DVAE counts as trained."""
    home = tmp_path_factory.mktemp("prepare") / "run"
    home.mkdir()
    dataset = SpeechDataset.open(tiny_run_config(tiny_corpus, home, data={"augment": False}))
    keras.utils.set_random_seed(1)
    model = XTTS(dataset.config.model, parts=("dvae",))
    # Otherwise the same code would be nearest to all outputs of random weights.
    vectors = model.dvae.mel_to_vectors(np.random.default_rng(0).normal(size=(1, 64, 80)).astype("float32"))
    model.dvae.quantizer.codebook.assign(3 * vectors[0, : model.dvae.num_codes])
    gone = replace(dataset.config.data, val_data="gone", val_prepared="gone")
    write_run(home, model, dataset.tokenizer, replace(dataset.config, data=gone))
    return dataset.config


@pytest.fixture(scope="module")
def shards(run, tmp_path_factory):
    """Folder with the corpus as one shard. Tests must not change it."""
    folder = tmp_path_factory.mktemp("shards")
    prepare(run.training.checkpoint_dir, folder, 1, "/CPU:0")
    return folder


def with_prepared(config, folder):
    return replace(config, data=replace(config.data, prepared=str(folder)))


def clips_of(folder):
    """Returns `{id: {samples and codes}}` of all shards, read with TensorFlow's reader, which verifies checksums."""
    found = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord")))):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        kept = found.setdefault(features["id"].bytes_list.value[0].decode(), {})
        assert not kept.keys() & (features.keys() - {"id"})
        kept |= {kind: features[kind].SerializeToString() for kind in features if kind != "id"}
    return found


def test_batches_and_losses_equal_the_recordings(run, shards):
    recorded, prepared = SpeechDataset.open(run), SpeechDataset.open(with_prepared(run, shards))
    foundations, lineage = load_foundations(prepared.config, "gpt", "/CPU:0")
    preparation = STAGE_CLASSES["gpt"](recorded.config, foundations).make_preparation("/CPU:0")
    objective = GPTObjective(XTTS(recorded.config.model, parts=("gpt",)), recorded.config)
    seen = set()
    for kind in ("train_loader", "validation_loader"):
        ours, theirs = (getattr(dataset, kind)("gpt") for dataset in (prepared, recorded))
        for position in range(theirs.order.batches_per_epoch):
            waves, computed = ours(position), theirs(position)
            assert waves.codes.shape[1] and not computed.codes.shape[1]
            np.testing.assert_array_equal(waves.conditioning, computed.conditioning)
            batches = [preparation(tf.nest.map_structure(tf.constant, batch)) for batch in (waves, computed)]
            for name, ours_of, theirs_of in zip(batches[0]._fields, *batches):
                counts = tf.sequence_mask(batches[0].code_lengths, ours_of.shape[1]) if name == "codes" else True
                np.testing.assert_array_equal(ours_of.numpy()[counts], theirs_of.numpy()[counts], err_msg=name)
            seen |= set(waves.codes.ravel())
        losses = [objective.loss_sums(batch)[0]["codes"].numpy() for batch in batches]
        assert losses[0] == losses[1]
    assert len(seen) > 3, "codes that are all alike would show nothing"


def test_augmented_clips_take_the_samples_and_compute_their_codes(run, shards, caplog):
    config = with_prepared(replace(run, data=replace(run.data, augment=True)), shards)
    batch = SpeechDataset.open(config).train_loader("gpt")(0)
    assert batch.codes.shape[1] == 0 and batch.wav.any()
    assert "data.augment is on" in caplog.text


def test_shards_written_in_any_order_equal_one_shard_and_are_not_rewritten(run, shards, tmp_path, capsys):
    home, train_data = run.training.checkpoint_dir, run.data.train_data
    for number in (1, 2, 0):
        with pytest.raises(UserError, match="has no manifest.json"):
            PreparedClips.open(tmp_path)
        prepare(home, tmp_path, 3, "/CPU:0", number, train_data)
    assert clips_of(tmp_path) == clips_of(shards)
    manifest = read_json(tmp_path / "manifest.json")
    assert PreparedClips.open(tmp_path).dvae == read_json(shards / "manifest.json")["dvae"]
    for damaged in (["a"], {**manifest, "shards": 5}, {**manifest, "shards": [{}]}):
        write_json(tmp_path / "manifest.json", damaged)
        with pytest.raises(UserError, match="manifest.json is damaged"):
            PreparedClips.open(tmp_path)
    write_json(tmp_path / "manifest.json", manifest)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    capsys.readouterr()
    prepare(home, tmp_path, 3, "/CPU:0")
    assert "All 3 shards are complete" in capsys.readouterr().out
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    with pytest.raises(UserError, match="--shards must be 3"):
        prepare(home, tmp_path, 2, "/CPU:0")


def test_a_clip_whose_audio_changed_makes_its_shard_stale(run, shards, tmp_path, tiny_corpus):
    corpus, home, lines = shutil.copytree(tiny_corpus, tmp_path / "corpus"), run.training.checkpoint_dir, []
    changed = replace(run, data=replace(run.data, train_data=str(corpus), prepared=str(tmp_path / "shards")))
    for _ in range(2):
        prepare(home, tmp_path / "shards", 2, "/CPU:0", None, str(corpus), tell=lines.append)
        SpeechDataset.open(changed)
        wav = sorted(corpus.rglob("*.wav"))[0]
        samples, rate = soundfile.read(wav)
        soundfile.write(wav, 0.5 * samples, rate)
        with pytest.raises(UserError, match="unchanged: .* was changed. Run the same"):
            SpeechDataset.open(changed)
    assert len([line for line in lines if line.startswith("Shard")]) == 3, "both, then the one with the quieter clip"
    before, after = clips_of(shards), clips_of(tmp_path / "shards")
    assert [name for name in before if before[name] != after[name]] == [wav.stem]


def test_other_limits_and_texts_make_shards_stale_that_left_clips_out(run, shards, tmp_path):
    home, folder, lines = run.training.checkpoint_dir, tmp_path / "shards", []
    short = ClipLimits(0.1, sorted(clip.seconds for clip in SpeechDataset.open(run).train)[1] + 0.001)
    for limits in (short, short, (None, None), short):
        prepare(home, folder, 1, "/CPU:0", limits=limits, tell=lines.append)
        if limits is short and len(lines) < 4:
            with pytest.raises(UserError, match="is missing. Run the same .*--max-seconds"):
                SpeechDataset.open(with_prepared(run, folder))
    assert [line.startswith("Shard 0 of 1") for line in lines] == [True, False, False, True, False, False]
    assert clips_of(folder) == clips_of(shards)


def test_a_stop_loses_only_the_shard_in_progress(run, shards, tmp_path):
    home, prepared = run.training.checkpoint_dir, tmp_path / "shards"
    prepare(home, prepared, 2, "/CPU:0", 0)
    first = (prepared / f"{shard_name(0, 2)}.tfrecord").stat().st_mtime_ns

    def stopped():
        yield "one", np.zeros(1, np.int32), np.zeros(9, np.int16)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shard(prepared, 1, 2, "digest", stopped(), [], {})
    leftovers = [temporary_path(prepared / f"{shard_name(number, 2)}.tfrecord") for number in (0, 1)]
    for path in leftovers:
        path.write_bytes(b"half")  # as after SIGKILL
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 1); print(); input()"
    command, pipe = [sys.executable, "-uc", code, str(prepared / LOCK)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        other.stdout.readline()
        reported = []
        prepare(home, prepared, 2, "/CPU:0", tell=lambda line: reported.append(line) or other.kill())
    assert reported[:2] == ["Shard 1: another process is encoding it", "Shard 1 of 2: 7 clips, 0 left out"]
    assert [path.exists() for path in leftovers] == [True, False], "that of another shard may still be written to"
    assert (prepared / f"{shard_name(0, 2)}.tfrecord").stat().st_mtime_ns == first
    assert clips_of(prepared) == clips_of(shards)


def test_mismatched_shards_and_runs_are_refused(run, shards, tmp_path, tiny_corpus, monkeypatch):
    prepared = PreparedClips.open(shards)
    with pytest.raises(UserError, match="codes of another DVAE"):
        prepared.require_dvae("0" * 32)
    clip = SpeechDataset.open(run).train[0]
    with pytest.raises(UserError, match=f"{clip.id} was changed"):
        prepared.by_path([replace(clip, audio="0" * 32)])
    with pytest.raises(UserError, match="nowhere is missing"):
        prepared.by_path([replace(clip, id="nowhere")])
    fresh = tiny_run_config(tiny_corpus, tmp_path / "fresh", data={"augment": False})
    with pytest.raises(UserError, match="needs its DVAE"):
        open_run(with_prepared(fresh, shards))
    monkeypatch.setattr("myxtts.storage.files.MAX_JSON_BYTES", 99)  # an index of many clips is larger
    assert read_index(shards, 0, 1, prepared.dvae)


def test_damage_is_found(run, shards, tmp_path):
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder)
    path = folder / f"{shard_name(0, 1)}.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    loader = SpeechDataset.open(with_prepared(run, folder)).train_loader("gpt")
    with pytest.raises(AudioError, match="checksum of .* Remove it"):
        [loader(position) for position in range(loader.order.batches_per_epoch)]
    path.write_bytes(content[:-1])
    with pytest.raises(UserError, match="missing or cut short"):
        PreparedClips.open(folder)


def test_a_validation_set_is_read_from_shards_of_its_own(run, shards, tmp_path):
    validated = replace(run, data=replace(run.data, val_data=run.data.train_data))
    of_both = replace(validated, data=replace(validated.data, prepared=str(shards), val_prepared=str(shards)))
    read = []
    for config in (validated, of_both):
        loader = SpeechDataset.open(config).validation_loader("gpt")
        read.append([loader(position) for position in range(loader.order.batches_per_epoch)])
    for recorded, prepared in zip(*read, strict=True):
        assert prepared.codes.shape[1] and not recorded.codes.shape[1]
        for name in ("index", "wav_lengths", "text", "conditioning_span"):
            np.testing.assert_array_equal(getattr(prepared, name), getattr(recorded, name), err_msg=name)
    with pytest.raises(UserError, match="--val-prepared. must be left out without --val-data"):
        SpeechDataset.open(replace(run, data=replace(run.data, val_prepared=str(shards))))
    clip = SpeechDataset.open(run).train[0]
    with pytest.raises(UserError, match="^--val-prepared .* --val-data unchanged"):
        PreparedClips.open(shards, "--val-prepared").by_path([replace(clip, id="nowhere")], "--val-data")


def test_shards_are_read_from_an_address(run, shards):
    address = "ram://bucket/shards"  # a file system of TensorFlow's own, as gs:// is
    tf.io.gfile.makedirs(address)
    for path in shards.glob("*.[jt]*"):
        with tf.io.gfile.GFile(f"{address}/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    datasets = (SpeechDataset.open(with_prepared(run, folder)) for folder in (shards, address))
    here, there = (dataset.train_loader("gpt")(0) for dataset in datasets)
    for name, ours, theirs in zip(here._fields, here, there):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    with pytest.raises(UserError, match="ram://nowhere has no manifest.json"):
        PreparedClips.open("ram://nowhere")
    with pytest.raises(UserError, match="storage .*TensorFlow cannot read"):
        PreparedClips.open("s9://bucket/shards")
