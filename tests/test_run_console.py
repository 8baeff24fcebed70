"""What a run prints at its end: commands that can be pasted, whatever recordings and settings say."""

import subprocess
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


def printed_end(capsys, home, text, **clip):
    config = XTTSConfig(training=TrainingConfig(checkpoint_dir=str(home)))
    CheckpointStore(home / "gpt").write(1, {}, {})
    clip = SimpleNamespace(**{"id": "a", "wav_path": "/data/a.wav", "language": "en", **clip})
    console = RunConsole(Run(config, plan_devices(num_gpus=0)))
    console.on_finished(SimpleNamespace(validation=[clip], texts={"a": text}))
    return capsys.readouterr().out


def pasted(printed, folder):
    """Arguments that a shell gives `myxtts` for the printed command."""
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


def test_printed_lines_hold_nothing_that_steers_a_terminal(tmp_path, capsys):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "\x1b[2J\u202ea.wav").write_bytes(b"")
    said = printed_end(capsys, tmp_path, "one \u202e\x1b]0;owned\x07two \u0645\u06cc\u200c\u0634\u0648\u062f")
    assert said.replace("\n", "").replace("\u200c", "").isprintable() and "one ]0;ownedtwo" in said
    assert "\u0645\u06cc\u200c\u0634\u0648\u062f" in said, "Persian needs its zero-width non-joiner"
