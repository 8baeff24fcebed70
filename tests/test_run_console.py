"""Final output of a run: commands that are safe to paste, whatever recordings and settings contain."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from myxtts.cli import say
from myxtts.config.config import TrainingConfig, XTTSConfig
from myxtts.devices.configuration import plan_devices
from myxtts.runs.console import RunConsole
from myxtts.runs.run import Run
from myxtts.storage.checkpoint import CheckpointStore

HOSTILE = [
    "one two",
    'he said: "it\'s $5"',
    '"; touch caught; "',
    "$(touch caught)",
    "`touch caught`",
    '\\"; touch caught #',
    "'; touch caught; '",
    "-Hello",
    "--output=caught",
    "one\ttwo & touch caught",
    "!! | touch caught > caught",
]


def printed_end(capsys, home, text, state=None, step=1, train=(), **clip):
    config = XTTSConfig(training=TrainingConfig(checkpoint_dir=str(home)))
    if not CheckpointStore(home / "gpt").steps():
        CheckpointStore(home / "gpt").write(step, {}, state or {}, best=state is not None)
    known = {"id": "a", "wav_path": "/data/a.wav", "language": "en", "speaker": "emma", "num_samples": 22050}
    clip = SimpleNamespace(**{**known, **clip}, text=text)
    data = SimpleNamespace(conditioning_seconds=(2.6, 2.6))
    dataset = SimpleNamespace(validation=[clip], train=train, config=SimpleNamespace(data=data))
    RunConsole(Run(config, plan_devices(num_gpus=0))).on_finished(dataset)
    return capsys.readouterr().out


def pasted(printed, folder):
    """Returns the arguments that `myxtts` gets from a shell for the printed command."""
    command = "myxtts() { printf '%s\\0' \"$@\"; }\n" + printed.split("Speak with it:\n")[1]
    shell = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    assert not shell.stderr
    return shell.stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", HOSTILE)
def test_pasted_command_speaks_the_text_and_runs_nothing_else(tmp_path, capsys, text):
    home = tmp_path / "the run's"
    paths = dict(wav_path=f"/data/{text.replace('/', '_')}.wav", language=text if text[0] != "-" else "en")
    argv = pasted(printed_end(capsys, home, text, **paths), tmp_path)
    asked = say.build_parser().parse_args(argv[1:])
    assert argv[0] == "say" and (asked.text, asked.output) == (text.replace("\t", ""), "out.wav")
    assert (asked.checkpoint, asked.reference_audio) == (str(home), [paths["wav_path"].replace("\t", "")])
    assert [path.name for path in Path(tmp_path).iterdir()] == [home.name]


def test_voice_to_speak_with_is_held_out_and_as_long_as_those_of_training(tmp_path, capsys):
    train = [SimpleNamespace(wav_path="more", speaker="emma", num_samples=90000)]
    spoken = lambda train, **clip: printed_end(capsys, tmp_path, "one", train=train, **clip)
    assert "--reference-audio /data/a.wav more --language" in spoken(train)
    assert "--reference-audio /data/a.wav --language" in spoken(train, num_samples=57330)


def test_final_output_lists_skipped_stages_with_reasons(tmp_path, capsys, monkeypatch):
    rows = [f"{n},{'rejected' if n < 4 else 'accepted'},{'too long' if n < 3 else 'silent'}" for n in range(9)]
    (tmp_path / "clips_train.csv").write_text("\n".join(["id,verdict,reason", *rows]))
    said = printed_end(capsys, tmp_path, "one")
    assert f"4 of 9 clips (too long 3, silent 1); see {tmp_path}/clips_train.csv" in said
    (tmp_path / "clips_train.csv").write_text("verdict;id;reason\nrejected;Jos\xe9;silent", "cp1252")  # by Excel
    assert "1 of 1 clips (silent 1)" in printed_end(capsys, tmp_path, "one")
    (tmp_path / "clips_train.csv").write_text("id,verdict,reason\n1,accepted,\n")
    assert "Left out" not in printed_end(capsys, tmp_path, "one")
    CheckpointStore(tmp_path / "speaker").write(0, {}, {})
    assert "Stage speaker: used as it is\n" in printed_end(capsys, tmp_path, "one")
    monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))
    assert printed_end(capsys, tmp_path, "one") == ""


def test_printed_lines_cannot_control_a_terminal(tmp_path, capsys):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "step_\x1b[2J\u202ea.wav").write_bytes(b"")
    said = printed_end(capsys, tmp_path, "one \u202e\x1b]0;owned\x07two \u0645\u06cc\u200c\u0634\u0648\u062f")
    assert said.replace("\n", "").replace("\u200c", "").isprintable() and "one ]0;ownedtwo" in said
    assert "\u0645\u06cc\u200c\u0634\u0648\u062f" in said, "Persian needs its zero-width non-joiner"
