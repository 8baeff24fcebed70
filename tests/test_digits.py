"""Benchmarks: training data of the digits, and faults of killed runs."""

from types import SimpleNamespace

from utilities.benchmarks import faults
from utilities.benchmarks.digits import HELD_OUT_INDICES, training_folder


def test_training_folder_leaves_out_evaluated_clips(tmp_path):
    data = tmp_path / "fsdd"
    (data / "wavs").mkdir(parents=True)
    clips = ["3_theo_10", "3_theo_20", "4_theo_20"]
    for clip in clips:
        (data / "wavs" / f"{clip}.wav").touch()
    (data / "metadata.csv").write_text("".join(f"{clip}|three|three\n" for clip in clips))
    (data / "speakers.csv").write_text("id,speaker\n" + "".join(f"{clip},theo\n" for clip in clips))
    folder = training_folder(data, tmp_path)
    assert {path.stem for path in (folder / "wavs").iterdir()} == set(clips[1:])
    assert (folder / "metadata.csv").read_text() == "".join(f"{clip}|three|three\n" for clip in clips[1:])
    assert (folder / "speakers.csv").read_text().splitlines()[0] == "id,speaker" and 10 in HELD_OUT_INDICES


def test_run_that_ends_before_its_signal_is_a_fault_unless_it_is_complete(tmp_path):
    for code, left in ((0, [9]), (1, [])):
        run, kinds = faults.TrainingRun(tmp_path, "a"), [9]
        run.process = SimpleNamespace(poll=lambda code=code: code)
        assert len(list(faults.kill_once(run, kinds, faults.random.Random(0), 0.0, 1))) == code and kinds == left
