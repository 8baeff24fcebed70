"""Resuming a run whose clips changed: in the current epoch, no clip is used twice and none is missed."""

from collections import Counter

import numpy as np
import pytest
from test_trainer import Recorder, dvae_trainer, open_run
from tiny import make_tiny_corpus, untraced, with_training

from myxtts.data.batch import BatchOrder, EpochStart
from myxtts.data.corpora import Utterance
from myxtts.data.dataset import trained_on
from myxtts.data.doctor import id_hash
from myxtts.storage.checkpoint import CheckpointError, CheckpointStore
from myxtts.storage.files import write_json
from myxtts.training.resuming import OrderedClips, checked_record

BATCH = 4


def ordered(names, start=None, batch_size=BATCH):
    """Returns the batch order of clips whose lengths depend on their names."""
    lengths, tokens = [5000 + 137 * sum(name.encode()) for name in names], [len(name) + 1 for name in names]
    clips = [Utterance(name, "", "", "a", "en", tokens=(1,) * count) for name, count in zip(names, tokens)]
    order = BatchOrder(lengths, tokens, batch_size, num_buckets=3, seed=5, start=start or EpochStart())
    return OrderedClips(clips, order)


def heard(names, start, positions):
    """Counts how often each clip is in some batches of an order."""
    order = ordered(names, start).order
    return Counter(names[index] for position in positions for index in order.batch(position).indices)


OLD = [f"clip_{number}" for number in range(26)]
NEW = [name for name in OLD if name not in ("clip_3", "clip_7", "clip_11")] + [f"more_{number}" for number in range(6)]


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_changed_clips_are_used_once_in_the_current_epoch(cut):
    per_epoch = len(OLD) // BATCH
    position = per_epoch + cut
    before = heard(OLD, None, range(per_epoch, position))
    start, reported = ordered(NEW).continuing(ordered(OLD).record(position))
    assert "6 clips are new, and 3 are gone" in reported
    left = (len(NEW) - len([name for name in NEW if name in before])) // BATCH
    after = heard(NEW, start, range(position, position + left))
    assert not before.keys() & after.keys() and set(after.values()) == {1} and len(after) == left * BATCH
    # Only clips that do not fill a batch are left out, as in any epoch.
    assert len(set(NEW) - before.keys() - after.keys()) < BATCH
    following = heard(NEW, start, range(position + left, position + left + len(NEW) // BATCH))
    assert set(following.values()) == {1} and len(following) == len(NEW) // BATCH * BATCH
    _, reported = ordered([f"other_{number}" for number in range(9)]).continuing(ordered(OLD).record(3))
    assert "9 clips are new, and 26 are gone" in reported


def test_run_with_changed_clips_can_be_resumed_at_any_step():
    position = len(OLD) // BATCH + 2
    start, _ = ordered(NEW).continuing(ordered(OLD).record(position))
    unbroken = ordered(NEW, start)
    for cut in range(position, position + 14):
        again, reported = ordered(NEW).continuing(unbroken.record(cut))
        resumed = ordered(NEW, again).order
        assert reported is None
        for place in range(cut, cut + 8):
            one, other = unbroken.order.batch(place), resumed.batch(place)
            assert one[:2] + one[3:] == other[:2] + other[3:]
            np.testing.assert_array_equal(one.indices, other.indices)


def test_clips_that_change_twice_in_an_epoch_are_used_once():
    third = NEW[2:] + ["last"]
    first, _ = ordered(NEW).continuing(ordered(OLD).record(2))
    second, _ = ordered(third).continuing(ordered(NEW, first).record(4))
    count = heard(OLD, None, range(2)) + heard(NEW, first, range(2, 4))
    count += heard(third, second, range(4, 4 + (len([name for name in third if name not in count]) // BATCH)))
    assert set(count.values()) == {1} and len(set(third) - count.keys()) < BATCH


def test_another_batch_size_continues_with_the_unused_clips_of_the_epoch():
    start, reported = ordered(OLD, batch_size=2).continuing(ordered(OLD).record(3))
    assert "0 clips are new, and 0 are gone" in reported and "14 of 26 clips" in reported
    order = ordered(OLD, start, batch_size=2).order
    after = [OLD[index] for position in range(3, 10) for index in order.batch(position).indices]
    assert sorted(after) == sorted(set(OLD) - heard(OLD, None, range(3)).keys())
    assert order.batch(9).epoch == 0 and order.batch(10).epoch == 1


@pytest.mark.parametrize(
    "arrays, state",
    [
        ({"identity": np.zeros(3, np.float32)}, {}),
        ({"heard": np.zeros(2, np.uint8)}, {}),
        ({}, {"cut": [1, 2]}),
        ({}, {"start": "x"}),
        ({}, {"start": [10**30, 0, 0]}),
        ({}, {"start": [2, 0, 0], "cut": [1, 0, 0]}),
        ({}, {"start": [2, 0, 0], "cut": [2, 0, 0]}),  # of another position than the checkpoint
        ({}, {"cut": [0, 0, 0]}),
    ],
)
def test_invalid_record_is_refused(arrays, state):
    whole = checked_record(ordered(OLD[:8]).record(1), 1, "here")
    with pytest.raises(CheckpointError, match="here is damaged"):
        checked_record((whole[0] | arrays, whole[1] | state), 1, "here")


def test_trained_clip_never_becomes_a_validation_clip_while_there_are_others(tmp_path, caplog):
    corpus, run = make_tiny_corpus(tmp_path / "corpus"), tmp_path / "run"
    opened = lambda: open_run(corpus, run, data={"validation_share": 1e-6})
    dataset = opened()
    clips = OrderedClips(dataset.train, dataset.order("dvae")).record(2)[0]
    CheckpointStore(run / "dvae").write(2, {"clips": clips}, {})
    assert opened().validation == dataset.validation
    write_json(run / "config.json", dataset.config.to_dict())
    for place in (corpus, tmp_path / "moved"):
        corpus = corpus.rename(place)
        other = open_run(place, tmp_path / "other", data={"validation_share": 0.9}, training={"init_from": str(run)})
        assert [one.id for one in other.validation] == [one.id for one in dataset.validation], "not trained on before"
    lines = (corpus / "metadata.csv").read_text().splitlines()
    (corpus / "metadata.csv").write_text("\n".join(one for one in lines if dataset.validation[0].id not in one))
    assert len(opened().validation) == len(dataset.train) and "Give --val-data" in caplog.text


class Hearing(Recorder):
    """A `Recorder` that also stores the clips of each step."""

    def __init__(self, trainer, stop_after=None):
        super().__init__(trainer, stop_after)
        self.heard, take_step = [], trainer.batching.take_step
        trainer.batching.take_step = lambda group, *rest: (self.heard.append(group), take_step(group, *rest))[1]

    def names(self, dataset):
        return [dataset.train[index].id for group in self.heard for batch in group for index in batch.index.numpy()]


def test_resumed_run_with_other_clips_repeats_none_and_misses_none(tmp_path, caplog):
    corpus, run = make_tiny_corpus(tmp_path / "corpus"), tmp_path / "run"
    sections = dict(data={"batch_size": 2}, dvae={"max_steps": 9, "crop_seconds": 0.4})
    dataset = open_run(corpus, run, **sections)
    trainer = dvae_trainer(dataset)
    first = Hearing(trainer, 2)
    with untraced():
        trainer.train(dataset, [first])
    before = first.names(dataset)
    lines = (corpus / "metadata.csv").read_text().splitlines()
    lines.remove(next(line for line in lines if line.split("|")[0] == before[0]))
    for name in ("new_a", "new_b"):
        (corpus / f"wavs/{name}.wav").write_bytes((corpus / f"wavs/{before[0]}.wav").read_bytes())
        lines.append(f"{name}|one|one")
    (corpus / "metadata.csv").write_text("\n".join(lines) + "\n")
    dataset = open_run(corpus, run, **sections)
    trainer = dvae_trainer(dataset)
    left = [clip.id for clip in dataset.train if clip.id not in before]
    second = Hearing(trainer, 2 + len(left) // 2)
    with untraced():
        trainer.train(dataset, [second])
    after = second.names(dataset)
    assert len(before) == 4 and len(after) == len(set(after)) == len(left) // 2 * 2 and set(after) <= set(left)
    assert "clips are new, and 1 are gone" in caplog.text
    kept = lambda stage: trained_on(run, with_training(dataset.config, reset_training=True, stage=stage))
    assert kept("gpt") == {id_hash(clip.id) for clip in dataset.train} and not kept("dvae")
