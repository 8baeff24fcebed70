"""Splitting by hash, and clips that are on both sides."""

import subprocess
import sys
from pathlib import Path

import pytest

from myxtts.data.corpora import Utterance
from myxtts.data.doctor import find_leakage, split_by_hash


def utterances(count, folder=Path("wavs")):
    return [Utterance(f"clip{i}", folder / f"clip{i}.wav", "text", "Ann", "en") for i in range(count)]


def ids(items):
    return {item.id for item in items}


def test_the_share_is_met_and_nothing_is_lost():
    train, validation = split_by_hash(utterances(2000), 0.1)
    assert 150 < len(validation) < 250
    assert ids(train) | ids(validation) == ids(utterances(2000)) and len(train) + len(validation) == 2000
    assert [u.id for u in train] == [u.id for u in utterances(2000) if u.id in ids(train)]


def test_a_clip_keeps_its_side_when_others_come_and_in_other_processes():
    _, validation = split_by_hash(utterances(200), 0.1)
    _, more = split_by_hash(utterances(400)[::-1], 0.1)
    assert ids(validation) == ids(more) & ids(utterances(200))
    code = (
        "from types import SimpleNamespace as N; from myxtts.data.doctor import split_by_hash as s;"
        "print(*(u.id for u in s([N(id=f'clip{i}') for i in range(200)], .1)[1]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    ).stdout
    assert set(output.split()) == ids(validation)


@pytest.mark.parametrize("share", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 20])
def test_neither_side_is_empty_from_two_clips_on(share, count):
    train, validation = split_by_hash(utterances(count), share)
    assert train and validation and len(train) + len(validation) == count


def test_one_clip_or_none_goes_to_training():
    assert [len(side) for side in split_by_hash(utterances(1), 0.5)] == [1, 0]
    assert split_by_hash([], 0.5) == ((), ())
    with pytest.raises(ValueError, match="between 0 and 1"):
        split_by_hash(utterances(3), 1)


def test_leakage_by_id_and_by_content(tmp_path):
    train, validation = tmp_path / "train", tmp_path / "validation"
    files = {train: {"a": "aa", "b": "bb", "c": "cc"}, validation: {"a": "xx", "d": "cc", "e": "yy"}}
    for folder, contents in files.items():
        folder.mkdir()
        for name, content in contents.items():
            (folder / f"{name}.wav").write_text(content)
    (validation / "link.wav").symlink_to(train / "b.wav")

    def clips(folder, names):
        return [Utterance(name, folder / f"{name}.wav", "text", "Ann", "en") for name in names]

    leaks = find_leakage(clips(train, "abc"), clips(validation, ["a", "d", "e", "link"]))
    assert leaks == [
        "validation clip a is also trained on as a (same id)",
        "validation clip d is also trained on as c (same content)",
        "validation clip link is also trained on as b (same content)",
    ]
