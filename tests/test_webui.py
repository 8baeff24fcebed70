"""What stands behind the page: the ordinary commands as processes, and the run folder as the state."""

import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from myxtts.config.checks import UserError
from myxtts.storage.run_folder import own_run_folder
from myxtts.webui.processes import sentence_of, start_training, stop_training, trainer_of
from myxtts.webui.run_view import run_folder, runs_in, view_run

LINE = "17:23:43 INFO dvae step {step}/800 | loss {loss} | reconstruction 0.81 | lr 1.3e-03 | Avg: 96.9ms, Std: 10.8ms"
LINE += " | Throughput: 10.32 steps/sec | Variation: 11.2% | stall 2.0% | buffer 1/1 | 01:12 left"


def test_log_of_a_run_tells_losses_times_and_progress(tmp_path):
    lines = [LINE.format(step=step, loss=loss) for step, loss in ((50, "0.8227"), (100, "0.4361"))]
    (tmp_path / "train.log").write_text("17:23:33 INFO Stage dvae: steps 1 to 800\n" + "\n".join(lines) + "\n")
    view = view_run(tmp_path)
    assert view.progress == {"dvae": (100, 800)} and not view.running and view.failed is None
    assert [(one["step"], one["loss"], one["step_ms"], one["stall_percent"]) for one in view.losses] == [
        (50, 0.8227, 96.9, 2.0),
        (100, 0.4361, 96.9, 2.0),
    ]
    assert view.summary == "not training · dvae 100/800 · loss 0.4361 · 97 ms a step · stall 2 %"


def test_log_line_of_a_loss_that_is_not_a_number_breaks_nothing(tmp_path):
    (tmp_path / "train.log").write_bytes(b"\xff\xfe\n" + LINE.format(step=50, loss="nan").encode() + b"\nINFO x step")
    assert view_run(tmp_path).progress == {"dvae": (50, 800)}


def test_folder_that_is_not_there_tells_nothing(tmp_path):
    assert view_run(tmp_path / "none").summary == "not training" and runs_in(tmp_path / "none") == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/locks")
def test_who_trains_in_a_folder_is_known_to_all(tmp_path):
    folder = tmp_path / "run"
    # A suite that was started in the background has its children ignore what stops them.
    holds = "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    holds += "from myxtts.storage.run_folder import own_run_folder\n"
    holds += f"with own_run_folder({str(folder)!r}):\n"
    holds += " print('held', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n" and trainer_of(folder) == process.pid
        assert view_run(folder).running
        with pytest.raises(UserError, match="trains in .* already"):
            start_training(folder, [])
        stop_training(folder)
        process.wait(60)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    assert trainer_of(folder) is None
    with pytest.raises(UserError, match="Nothing trains"):
        stop_training(folder)
    with own_run_folder(folder):
        assert trainer_of(folder) is not None


def test_training_that_fails_says_the_sentence_of_the_command(tmp_path):
    folder = tmp_path / "run"
    start_training(folder, ["--train-data", str(tmp_path / "nothing")])
    end = time.monotonic() + 300
    while not (failed := view_run(folder).failed):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "nothing" in failed and "Traceback" not in failed and not failed.startswith("Error:")


def test_sentence_is_found_in_what_a_command_printed():
    assert sentence_of("INFO a\nError: It is wrong.\nTry again.\n") == "It is wrong.\nTry again."
    assert sentence_of("Segmentation fault\n") == "Segmentation fault" and sentence_of("")


@pytest.mark.parametrize("name", ["", "..", "../up", "/etc", "a/b", ".hidden", "a\x00", None])
def test_name_of_a_run_is_no_path(tmp_path, name):
    with pytest.raises(UserError, match="A run's name"):
        run_folder(tmp_path, name)


def test_flags_are_those_of_the_command():
    from myxtts.cli.train import build_parser, config_from_arguments
    from myxtts.webui.studio import training_flags

    switches = {"--gradient-checkpointing": True, "--attention=memory-efficient": True, "--xla": False}
    flags = training_flags(" --odd name", "am", "nano", "gpt", 4, 3, 20, 2, 50, True, switches)
    config = config_from_arguments(build_parser().parse_args(flags))
    assert config.data.train_data == "--odd name" and config.data.language == "am" and tuple(config.data.g2p) == ("am",)
    training = config.training
    assert (config.model.size, training.stage, config.data.batch_size) == ("nano", "gpt", 4)
    assert (training.epochs, training.gpt.max_steps, training.gradient_accumulation) == (3, 20, 2)
    assert training.checkpoint_every_steps == 50 and training.gradient_checkpointing and not training.xla
    assert training.attention == "memory-efficient"


def test_plan_and_data_are_told_by_the_commands(tmp_path, tiny_corpus):
    from myxtts.webui.studio import Studio

    studio = Studio(tmp_path)
    assert "GB" in studio.plan(["--model-size=nano", "--batch-size=2"])
    assert "accepted: 12" in studio.check_data(str(tiny_corpus), "en") and not list(tmp_path.iterdir())
    for bad in (str(tmp_path / "none"), "--help", ""):
        with pytest.raises(UserError) as told:
            studio.check_data(bad, "en")
        assert "Traceback" not in str(told.value)


def test_texts_of_both_languages_are_complete():
    from myxtts.webui.texts import TEXTS

    assert set(TEXTS["en"]) == set(TEXTS["fa"]) and all(all(texts.values()) for texts in TEXTS.values())


@pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra ui")
def test_page_is_built_in_both_languages_and_refuses_the_public(tmp_path, capsys, monkeypatch):
    from myxtts.webui.__main__ import main, switches
    from myxtts.webui.page import build_page
    from myxtts.webui.studio import Studio

    for language in ("en", "fa"):
        page = build_page(Studio(tmp_path), language, switches())
        names = {function.api_name for function in page.fns.values()}
        assert {"check_data", "plan", "start", "stop", "state", "speak", "compare", "models"} <= names
    monkeypatch.delenv("MYXTTS_UI_PASSWORD", raising=False)
    assert main(["--host", "0.0.0.0", "--runs", str(tmp_path)]) == 2
    assert "Set MYXTTS_UI_PASSWORD" in capsys.readouterr().err
