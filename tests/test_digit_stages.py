"""The benchmark's table of stages: what is trained on, what is printed, what counts as a goal."""

import numpy as np
import pytest

from utilities.benchmarks.digit_judge import HELD_OUT_INDICES, Verdict
from utilities.benchmarks.digit_stages import Result, Row, Spoken, listen, table_line
from utilities.benchmarks.digits import figures, training_folder


def result(stage, digits, voices, signal=None):
    clips = [Spoken(speaker, digit, np.zeros(3)) for speaker in ("ann", "bob") for digit in (6, 7)]
    return Result(stage, np.array(digits, bool), np.array(voices, bool), [], clips, signal)


class FirstDigitOnly:
    """Hears "six" by ann in every clip that is not silent."""

    def judge_batch(self, clips, sample_rate):
        heard, silence = Verdict(6, "ann", 1.0, 1.0), Verdict(None, None, 0.0, 0.0)
        return [heard if np.any(clip) else silence for clip in clips]


def test_training_folder_leaves_out_what_is_judged(tmp_path):
    data = tmp_path / "data"
    (data / "wavs").mkdir(parents=True)
    clips = [f"{digit}_{speaker}_{index}" for digit in (3, 4) for speaker in ("ann", "bob") for index in (10, 20)]
    assert 10 in HELD_OUT_INDICES and 20 not in HELD_OUT_INDICES
    for clip in clips:
        (data / "wavs" / f"{clip}.wav").write_bytes(b"sound")
    (data / "metadata.csv").write_text("".join(f"{clip}|three|three\n" for clip in clips), encoding="utf-8")
    speakers = "id,speaker\n" + "".join(f"{clip},{clip.split('_')[1]}\n" for clip in clips)
    (data / "speakers.csv").write_text(speakers, encoding="utf-8")

    folder = training_folder(data, tmp_path, {("bob", 4)})
    kept = ["3_ann_20", "3_bob_20", "4_ann_20"]
    assert sorted(path.stem for path in (folder / "wavs").iterdir()) == kept
    assert [line.split("|")[0] for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()] == kept
    lines = (folder / "speakers.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["id,speaker", "3_ann_20,ann", "3_bob_20,bob", "4_ann_20,ann"]


def test_row_is_right_where_the_judge_hears_what_was_meant():
    clips = [Spoken("ann", 6, np.ones(3)), Spoken("bob", 6, np.ones(3)), Spoken("ann", 6, np.zeros(3))]
    heard = listen(Row("codes", clips, 8000), FirstDigitOnly(), None)
    assert heard.digits.tolist() == [True, True, False]
    assert heard.voices.tolist() == [True, False, False]


def test_table_names_the_worst_digit_and_voice_and_missing_scores():
    line = table_line(result("free speech", [1, 0, 1, 1], [1, 1, 0, 0]))
    assert "75.0 % (seven 50 %)" in line and "50.0 % (bob 0 %)" in line and "not available" in line
    assert table_line(result("free speech", [1] * 4, [1] * 4, 3.14)).endswith("3.14")


def test_goals_count_the_signal_only_where_there_is_a_decoder_to_compare():
    results = {"free speech": result("free speech", [1, 1, 1, 0], [1, 1, 0, 0], 3.0)}
    assert figures(results, set()) == [("digits recognized, %", 75.0, 95), ("voices told apart, %", 50.0, 93)]
    results["free speech, Griffin-Lim"] = result("free speech, Griffin-Lim", [1] * 4, [1] * 4, 2.5)
    assert figures(results, set())[2] == ("signal above Griffin-Lim's", pytest.approx(0.5), 0.3)
    assert figures(results, {("ann", 6)}) == [("left-out pairs recognized, in the right voice, %", 50.0, 75)]
