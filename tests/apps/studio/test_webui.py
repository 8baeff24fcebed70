"""The code behind the page: commands as processes, and the state of a run from its folder."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny import recorded

from myxtts.apps.studio import processes
from myxtts.apps.studio.folders import DataSets, runs_in
from myxtts.apps.studio.processes import RunView, Tasks, output_path, start_training, stop_training
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX, TEXTS
from myxtts.apps.studio.training_form import FLAGS, OWN, XTTS_V2
from myxtts.config.checks import UserError
from myxtts.config.config import DataConfig, ModelConfig, TrainingConfig, XTTSConfig, config_from_dict
from myxtts.config.stages import STAGES
from myxtts.storage.files import append_line, read_json, temporary_path, write_json
from myxtts.storage.run_folder import TAKEN_FROM, own_run_folder


def write_metrics(folder, *lines):
    for stage, step, figures in lines:
        line = {"stage": stage, "total_steps": 800, "step": step, "kind": "training", **figures}
        append_line(folder / "metrics.jsonl", json.dumps(line))


def test_metrics_of_a_run_give_losses_times_progress_and_the_time_left(tmp_path):
    timing = {"avg_ms": 96.9, "stall": 0.02, "loss": 9.0}
    (tmp_path / "train.log").write_text("17:23:33 INFO dvae step 700/800 | loss 7.0\n")
    write_metrics(tmp_path, *(("dvae", n, {"reconstruction": y, **timing}) for n, y in ((50, 0.8227), (100, 0.4361))))
    view = RunView(tmp_path)
    assert not view.running and view.failed is None and "700/800" in view.log
    facts = "dvae step 100/800 · loss 0.4361 · 97 ms per step · waits for data 2% of the time"
    assert view.state == "stopped" and " · ".join(view.facts(TEXTS["en"])) == facts
    (tmp_path / "train.log").write_bytes(b"\xff\xfe\n17:23:33 INFO x step")
    write_metrics(tmp_path, ("dvae", 150, {"loss": None}))
    assert RunView(tmp_path).facts(TEXTS["en"]) == ["dvae step 150/800"]
    write_json(tmp_path / "config.json", XTTSConfig(model=ModelConfig("nano")).to_dict())
    write_metrics(tmp_path, ("gpt", 200, {"loss": 1.0, "steps_per_second": 10.0, "host_mb": 1234.0}))
    (view := RunView(tmp_path)).running = True
    assert view.facts(TEXTS["en"])[:3] == ["stage 2 of 4", "gpt step 200/800", "01:00 left in this stage"]
    (tmp_path / "train.log").write_text("17:23:33 INFO Making codes")
    append_line(tmp_path / "metrics.jsonl", '{"stage": "vocoder", "total_steps": 1, "step": 0, "kind": "start"}')
    (later := RunView(tmp_path)).running = True
    assert later.facts(TEXTS["en"])[-2:] == ["vocoder step 0/1", "Making codes"]
    later.log = "17:23:33 INFO vocoder step 1/1"
    assert later.facts(TEXTS["en"]) == ["vocoder step 1/1"]
    view.metrics[-1]["seconds_left"] = 90.0
    assert view.facts(TEXTS["en"])[3] == "01:30 left in the run"
    assert "memory 1,234 MB" in view.facts(TEXTS["en"])
    assert {"مرحلهٔ ۲ از ۴", "۰۱:۳۰ تا پایان اجرا", "حافظه: ۱٬۲۳۴ مگابایت"} <= {*view.facts(TEXTS["fa"])}
    view.metrics.append(view.metrics[-1] | {"kind": "start"})
    assert view.facts(TEXTS["en"])[1:] == ["gpt step 200/800", "x step"], "no times of an earlier start"


def test_run_is_finished_when_all_its_stages_are(tmp_path, monkeypatch):
    write_json(tmp_path / "config.json", XTTSConfig(model=ModelConfig("nano")).to_dict())
    states = {stage: {"finished": True} for stage in STAGES}
    store = lambda folder: Mock(newest_state=lambda: states[folder.name], steps=lambda: [1])
    monkeypatch.setattr(processes, "CheckpointStore", store)
    assert RunView(tmp_path).state == "not training"
    for stage in STAGES:
        (tmp_path / stage).mkdir()
    for stage, *timed in ("dvae", (40, 1000.0), (100, 100.0)), ("gpt", (28, 500.0)):
        write_metrics(tmp_path, (stage, 0, {"kind": "start"}), *((stage, n, {"avg_ms": ms}) for n, ms in timed))
    assert (view := RunView(tmp_path)).state == "finished" and "۰۱:۰۰" in view.facts(TEXTS["fa"])[-2]
    states |= {"gpt": None, "speaker": {"finished": True, TAKEN_FROM: "base"}}
    assert RunView(tmp_path).state == "stopped" and RunView(tmp_path).stages == ["dvae", "gpt", "decoder"]
    leaving = XTTSConfig(model=ModelConfig("nano"), training=TrainingConfig(leave_out=("decoder", "gpt")))
    write_json(tmp_path / "config.json", leaving.to_dict())
    assert RunView(tmp_path).state == "finished" and RunView(tmp_path).stages == ["dvae", "decoder"], "has begun"
    assert [row[0] for row in Studio(tmp_path.parent).preset(tmp_path.name, None).stages] == ["dvae", "speaker"]


def test_curves_have_training_and_validation_loss_without_rolled_back_steps(tmp_path):
    write_metrics(tmp_path, *[("dvae", step, {"loss": 9, "reconstruction": step / 100}) for step in (10, 20, 30, 15)])
    append_line(tmp_path / "metrics.jsonl", '{"stage": "dvae", "step": 15, "kind": "validation", "reconstruction": 2}')
    write_metrics(tmp_path, ("gpt", 5, {"loss": 1, "text": 0.4, "codes": 0.5}))
    points = [(10, 0.1, "training"), (15, 0.15, "training"), (15, 2, "validation")]
    assert RunView(tmp_path).curves() == {"dvae": points, "gpt": [(5, 0.5, "training")]}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/locks")
def test_training_process_of_a_folder_is_found_by_any_process(tmp_path):
    folder = tmp_path / "run"
    # Like a process that a shell started in the background, it ignores Ctrl-C until its first step.
    holds = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    holds += "from myxtts.storage.run_folder import own_run_folder\n"
    holds += f"with own_run_folder({str(folder)!r}):\n"
    holds += " print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n" and processes.process_of(folder) == process.pid
            assert RunView(folder).running
            with pytest.raises(UserError, match="training already"):
                start_training(folder, [])
            stop_training(folder)
            process.wait(60)
        finally:
            process.kill()
    assert processes.process_of(folder) is None
    with pytest.raises(UserError, match="is not training"):
        stop_training(folder)
    with own_run_folder(folder):
        assert processes.process_of(folder) is not None


def test_failed_training_reports_the_message_of_the_command(tmp_path):
    folder = tmp_path / "run"
    start_training(folder, ["--train-data", str(tmp_path / "nothing")])
    end = time.monotonic() + 300
    while not (failed := RunView(folder).failed):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "nothing" in failed and "Traceback" not in failed and not failed.startswith("Error:")


def test_failure_is_found_by_another_server(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    output_path(folder).write_text("Stage dvae\nError: The disk is full.\nFree some.\n")
    assert RunView(folder).failed == "The disk is full.\nFree some." and RunView(folder).state == "failed"
    (folder / "metrics.jsonl").write_text("")
    later = output_path(folder).stat().st_mtime + 5
    os.utime(folder / "metrics.jsonl", (later, later))
    assert RunView(folder).failed is None  # somebody went on by hand


def test_dropped_files_become_a_data_set(tmp_path):
    (tmp_path / "up").mkdir()
    given = [tmp_path / "up" / name for name in ("a.wav", "a.txt", "b.WAV", "b.txt")]
    for file in given:
        file.write_bytes(b"sound or text")
    data = DataSets(tmp_path / "home")
    folder, audio = data.folder("mine"), str(given[0])
    assert not data.keep("mine", list(map(str, given)))
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "a.wav", "b.WAV", "b.txt"]
    assert data.choices() == [("mine", str(folder))] and runs_in(tmp_path / "home") == [] and not data.lists(folder)
    (listed := tmp_path / "up" / "metadata.csv").write_text("a|one")
    (subtitles := tmp_path / "up" / "a.en.srt").write_text("")
    assert not data.keep("listed", [str(listed), audio])
    assert (data.folder("listed") / "wavs/a.wav").read_bytes() == b"sound or text"
    assert data.keep("talk", [audio, str(subtitles)]) and data.keep("talk", [audio], is_heard=True)
    assert data.recordings("talk").is_dir() and not data.folder("talk").exists()
    for number in (1, 2):
        data.add_recording("mine", audio, " one two. ")
        assert (folder / f"recorded_000{number}.txt").read_text() == "one two.\n"
    (tmp_path / "b").mkdir()
    other = [str(shutil.copyfile(file, tmp_path / "b" / file.name)) for file in given[:2]]
    assert not data.keep("mine", other)  # the same files again
    Path(other[1]).write_bytes(b"a mended text")
    assert not data.keep("mine", other) and (folder / "a.txt").read_bytes() == b"a mended text"
    Path(other[0]).write_bytes(b"another sound")
    wrong = {
        ("mine", str(given[1])): "Add recordings",
        ("mine", audio, "/x/a.exe"): "a.exe",
        ("new", audio): "a has no text",
        ("mine", *other): "named a.wav",
        ("new", "/x/b.m4a"): "b.m4a.*ffmpeg",
    }
    wrong |= {("mine", audio, "/b/a.wav"): "named a.wav", ("mine", audio, str(listed)): "data set mine"}
    wrong |= {("mine", audio, str(subtitles)): "data set mine", ("../up", audio): "name of a data set"}
    for (name, *files), said in wrong.items():
        with pytest.raises(UserError, match=said):
            data.keep(name, files)
    for recording, words, said in ((audio, " ", "text of the recording"), ("/x/b.m4a", "One.", "b.m4a.*ffmpeg")):
        with pytest.raises(UserError, match=said):
            data.add_recording("mine", recording, words)
    assert not data.folder("new").exists()
    for made in ("failed/sources", ".set.0123456789ab.myxtts.tmp"):
        (data.home / made).mkdir(parents=True)
    assert [name for name, _ in data.choices()] == ["listed", "mine"] and data.place(" mine ") == str(folder)
    flags = Studio(tmp_path / "home").flags("new", "", dict.fromkeys(FLAGS) | dict(train_data="mine", val_data="/x"))
    assert {f"--train-data={folder}", "--val-data=/x"} <= {*flags}
    (folder / "a.txt").write_text("Guten Morgen, der Zug nach Hamburg hat heute Verspätung. " * 3, encoding="utf-8")
    language = lambda name: Studio(tmp_path).data_language(name and str(data.folder(name)), "nl")
    assert [language(name) for name in ("mine", "listed", "new", "")] == ["de", "nl", "nl", "nl"]


def test_command_is_followed_cancelled_and_fails_with_its_message(tmp_path, monkeypatch):
    ready = "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    popen = lambda words, run=subprocess.Popen, **options: run([sys.executable, "-c", ready + words[3]], **options)
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)
    known = Tasks()
    assert list(known.follow("a", "print('10 %\\r20 %'); print('done')"))[-1] == "20 %\ndone"
    with pytest.raises(UserError, match="^It is wrong.$"):
        list(known.follow("a", "print('Error: It is wrong.'); sys.exit(2)"))
    (left := temporary_path(tmp_path / "model")).mkdir()
    command = "a", "print('begun', flush=True); time.sleep(600)", f"--output={tmp_path / 'model'}"
    following = known.follow(*command)
    assert next(one for one in following if one) == "begun"
    assert next(known.follow(*command)) == "begun"  # joins it
    with pytest.raises(UserError, match="work on model is"):
        next(known.follow("a", "pass"))
    assert known.states["a"][0] == "working" and known.cancel("a") and known.states["a"][0] == "cancelling"
    with pytest.raises(UserError, match="Cancelled"):
        list(following)
    assert not known.cancel("a") and not left.exists(), "what the command was writing is removed"


def steps_and_rates(config):
    return {name: (stage.max_steps, stage.learning_rate) for name, stage in config.training.stages.items()}


WORDS = {"en": ("one two", "three"), "fa": ("سلام", "حال شما"), "am": ("ሰላም", "እንዴት ነው")}


@pytest.fixture(scope="module")
def converted_release(released, tmp_path_factory):
    """A converted model of the released shape, with a text row per vocabulary token. Tests must not change it."""
    from released_model import convert, write_release
    from test_convert_export import RELEASED_SHAPE

    from myxtts.text.tokenizer import XTTSTokenizer

    folder, known = tmp_path_factory.mktemp("release"), XTTSTokenizer.from_file(released / "vocab.json").num_tokens
    release = write_release(folder / "in", replace(RELEASED_SHAPE, num_text_tokens=known))
    assert convert("--from-coqui", release / "model.pth", "--output", folder / "out") == 0
    return folder / "out"


@pytest.mark.parametrize("language", WORDS)
def test_run_that_the_page_starts_has_the_steps_and_rates_of_the_recipe(
    tmp_path, tiny_corpus, converted_release, language, monkeypatch
):
    from myxtts.cli.train import build_parser, config_from_arguments
    from myxtts.runs.opening import open_run

    monkeypatch.setattr("myxtts.runs.opening.try_run", lambda *_: None)  # its seconds are not compared
    studio = Studio(home := tmp_path / "runs")
    shutil.copytree(converted_release, home / "released")
    recordings = recorded(tmp_path / "set", tiny_corpus, WORDS[language])
    from_base = dict.fromkeys(("base", "from_base"), "finetune_base.yaml")
    for source, recipe in {"": None, **from_base, "released": "finetune_xtts_v2.yaml"}.items():
        name = f"from_{source or 'nothing'}"
        preset = studio.preset(name, source)
        form = preset.values | dict(train_data=str(recordings), language=language)
        form |= {} if source else dict(model_size="nano", g2p="am" if language == "am" else "")
        flags = [*studio.flags(name, preset.recipe, form), "--checkpoint-dir", str(home / name), "--workers=a:1"]
        open_run(config_from_arguments(build_parser().parse_args(flags)))
        config = config_from_dict(read_json(home / name / "config.json"))
        expected = XTTSConfig.from_yaml(recipe) if recipe else XTTSConfig()
        assert steps_and_rates(config) == steps_and_rates(expected), source
        assert config.data.batch_size == expected.data.batch_size and config.data.language == language
        assert "am" in config.data.g2p or language != "am" or source == "released"
        assert config.training.workers == (), "a later start may have none"
        again = studio.preset(name, None)
        assert again.recipe == OWN and studio.flags(name, OWN, again.values) == [f"--config={home / name / OWN}"]


def test_form_of_a_run_sends_what_was_changed_and_no_size_beside_a_source(tmp_path):
    config = XTTSConfig(data=DataConfig(train_data="recordings", batch_size=3, g2p=("am",)), model=ModelConfig("nano"))
    (tmp_path / "run+1").mkdir()  # a name that only the command line gives
    write_json(tmp_path / "run+1/config.json", config.to_dict())
    found = Studio(tmp_path).preset("run+1", None).values
    assert [found[name] for name in "train_data batch_size model_size g2p".split()] == ["recordings", 3, "nano", "am"]
    assert found["language"] is None, "identified from the texts, in every part of the training"
    flags = Studio(tmp_path).flags("run+1", OWN, found | dict(data_gpu="0", keep=2.0))
    assert flags[1:] == ["--data-gpu=0"]
    with pytest.raises(UserError, match="The recipe sets --train-data"):
        Studio(tmp_path).flags("run+1", OWN, found | dict(train_data=""))
    write_json(tmp_path / "run+1/config.json", replace(config, training=TrainingConfig(strict=True)).to_dict())
    typed = Studio(tmp_path).preset("run+1", None).values | dict(strict=False, init_from="base", tune="dvae, g")
    assert "--no-strict" in Studio(tmp_path).flags("run+1", OWN, typed)
    assert [row[0] for row in Studio(tmp_path).stages("run+1", OWN, typed)] == ["dvae"]
    fresh = Studio(tmp_path).preset("new", "").values | dict(train_data=" --odd", max_steps="20", lr="", xla=False)
    flags = ["--train-data=--odd", "--language=en", "--max-steps=20", "--gradient-checkpointing"]
    assert sorted(Studio(tmp_path).flags("new", "", fresh | dict(gradient_checkpointing=True))) == sorted(flags)
    base = Studio(tmp_path).preset("new", "base")
    assert [row[:2] for row in base.stages] == [["dvae", 600], ["gpt", 400], ["decoder", 1500]]
    flags = Studio(tmp_path).flags("new", base.recipe, base.values | dict(model_size="tiny"))
    assert flags == ["--config=finetune_base.yaml"]
    released = Studio(tmp_path).preset("new", XTTS_V2)
    assert released.stages == [["gpt", "500 epochs", 3, "5.0e-06"]] and released.values["model_size"] == "big"


def test_plan_and_data_are_reported_by_the_commands(tmp_path, tiny_corpus):
    studio = Studio(tmp_path)
    *_, planned = studio.plan(["--model-size=nano", "--batch-size=2", f"--train-data={tiny_corpus}"], None)
    assert "MEMORY, MB:" in planned and "--" not in planned
    assert "accepted: 12" in studio.check_data(str(tiny_corpus), "en") and not list(tmp_path.iterdir())
    for bad in (str(tmp_path / "none"), "--help", ""):
        with pytest.raises(UserError) as reported:
            studio.check_data(bad, "en")
        assert "Traceback" not in str(reported.value)


def test_endpoints_are_the_same_in_both_languages_and_read_only_uploaded_files(tmp_path, page_client):
    (secret := tmp_path / "id_ed25519").write_text("private key")
    named, page, tried = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}, PREFIX["en"], []
    with page_client(None) as client:
        config, persian = (client.get(f"{prefix}/config").json() for prefix in PREFIX.values())
        names = [{function["api_name"] for function in one["dependencies"]} for one in (config, persian)]
        assert names[0] == names[1] >= {"make_data_set", "add_recording", "check_data", "plan", "start", "stop"}
        assert names[0] >= {"state", "speak", "compare", "evaluate", "models", "export", "import"}
        kinds = {one["id"]: one["type"] for one in config["components"]}
        for dependency in config["dependencies"]:
            inputs = [kinds[number] for number in dependency["inputs"]]
            if not {"audio", "file"} & {*inputs} or not dependency["api_name"]:
                continue
            data = [{"file": [named], "audio": named}.get(kind) for kind in inputs]
            tried.append(dependency["api_name"])
            answer = client.post(f"{page}/gradio_api/run/{tried[-1]}", json={"data": data})
            assert answer.status_code == 500 and "was not uploaded by a user" in answer.text, tried[-1]
    assert len(tried) > 2


def test_speaker_of_a_request_cannot_be_a_file(tmp_path):
    (secret := tmp_path / "secret.wav").write_bytes(b"RIFF")
    (studio := Studio(tmp_path))._load = lambda *_: Mock()
    with pytest.raises(UserError, match=f"base has no voice {secret}"):
        studio.speak("base", "One.", "en", None, str(secret), 0)


def test_lock_of_a_file_with_the_same_inode_elsewhere_is_not_a_run(tmp_path, monkeypatch):
    lock = f"1: FLOCK  ADVISORY  WRITE {os.getpid()} 00:99:{tmp_path.stat().st_ino} 0 EOF"
    monkeypatch.setattr("pathlib.Path.read_text", lambda path, **how: lock)
    assert processes.process_of(tmp_path) is None


def test_settings_have_labels_and_the_command_says_that_it_starts_before_slow_imports(tmp_path, capsys, monkeypatch):
    from myxtts.apps.studio.__main__ import main

    assert all({*FLAGS} <= {*texts} for texts in TEXTS.values())
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--runs", str(tmp_path), "--port", "0"]) == 2 and "Starting" in capsys.readouterr().out


@pytest.fixture
def page_client(tmp_path):
    """Makes a client of the page's app, at a local address."""
    pytest.importorskip("gradio", reason="needs the extra ui")
    from starlette.testclient import TestClient

    from myxtts.apps.studio.app import make_page_app

    app = lambda *secrets: make_page_app(Studio(tmp_path / "runs"), *secrets)
    return lambda *secrets: TestClient(app(*secrets), base_url="http://127.0.0.1:7860")


def test_page_of_this_machine_asks_for_the_token_that_it_printed(page_client):
    client = page_client(None, "right")
    files = {"files": ("a.txt", b"text")}
    assert client.get("/ui/config").status_code == 401
    assert client.post("/ui/gradio_api/upload", files=files).status_code == 401
    for path in ("/", "/?token=wrong", "/ui-fa/?token=wrong", "/ui/config"):
        assert client.get(path).status_code == 401, path
    assert client.get("/?token=right").status_code == 200 and client.get("/ui/config").status_code == 200
    assert client.get("/ui-fa/config").status_code == 200
    assert client.post("/ui/gradio_api/upload", files=files).status_code == 200


@pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra ui")
def test_page_on_a_server_without_a_key_asks_for_the_token_that_it_printed(tmp_path, capsys):
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from myxtts.apps.server.__main__ import _mount_page

    _mount_page(app := FastAPI(), tmp_path / "runs", None, "http://127.0.0.1:8000")
    client, address = TestClient(app, base_url="http://127.0.0.1:8000"), capsys.readouterr().out.split()[-1]
    assert client.get("/ui/").status_code == client.get("/ui-fa/config").status_code == 401
    assert client.get(address).status_code == client.get("/ui-fa/config").status_code == 200


def test_upload_from_a_foreign_site_is_refused(page_client):
    client, files = page_client(None), {"files": ("a.txt", b"text")}
    for origin, status in (("http://127.0.0.1:7860", 200), ("http://evil.example", 403), ("null", 403)):
        answer = client.post("/ui/gradio_api/upload", files=files, headers={"origin": origin})
        assert answer.status_code == status, origin


def test_wrong_passwords_are_limited(page_client):
    client = page_client("secret")
    tries = [client.post("/ui/login", data={"username": "a", "password": f"{n}"}).status_code for n in range(10)]
    assert set(tries) == {400}
    assert client.post("/ui/login", data={"username": "a", "password": "secret"}).status_code == 400
    assert page_client("secret").post("/ui/login", data={"username": "a", "password": "secret"}).status_code == 200


@pytest.mark.parametrize("separator", [":", "|", ","])
def test_check_does_not_quote_files_that_are_not_data_sets(tmp_path, separator):
    (path := tmp_path / "shadow").write_text("root:hash:20228\nsync:*:20228\n".replace(":", separator))
    try:
        reported = Studio(tmp_path).check_data(str(path), "en")
    except UserError as error:  # column 3 could be speakers
        reported = str(error).replace(str(path), "")
    assert reported.strip() and "root" not in reported and "hash" not in reported
