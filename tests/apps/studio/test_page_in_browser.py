"""Journeys through the page in Chromium, as a user with eyes, mouse and microphone takes them."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from page_browser import CHROMIUM, DRIVER, Page, free_port, page_server
from released_model import write_release

MISSING = [name for name in ("gradio", "selenium") if find_spec(name) is None]
MISSING += [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
PATIENCE_SECONDS = 1200
"""For what trains; machines may have much else to do."""


@pytest.fixture
def home(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def pictures():
    """Folder to keep screenshots in, where one is asked for."""
    folder = os.environ.get("MYXTTS_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return folder


def files_of(corpus):
    return [corpus / "metadata.csv", *sorted((corpus / "wavs").iterdir())]


def test_recordings_become_a_voice_that_is_heard_compared_and_exported(home, tiny_corpus, pictures):
    port, patience = free_port(), dict(seconds=PATIENCE_SECONDS)
    heard = tiny_corpus / "wavs/low_six.wav"
    with page_server(home, port), Page(port, heard=heard, pictures=pictures) as page:
        page.click("data_keep")
        page.wait_toast("Drop recordings first")
        page.write("data_name", "mine")
        page.drop("data_files", files_of(tiny_corpus))
        page.wait(lambda: len(page.find_all("data_files", "tr.file")) == 13, "13 files")
        page.click("data_keep")
        page.wait_value("data_report", "accepted: 12")
        page.wait(lambda: page.seconds_of("data_clip_2"), "three clips")
        page.picture("data")
        page.tab("train")
        page.write("train_run", "first")
        page.choose("train_model_size", "nano")
        page.write("train_batch_size", "4")
        page.write("train_max_steps", "2")
        page.click("train_start")
        page.wait_value("train_planned", "MEMORY", **patience)
        page.wait(
            lambda: "Nothing" in page.find("train_now").text and "2/2" in page.value("train_state"), "end", **patience
        )
        page.picture("trained")
        page.tab("speak")
        page.choose("speak_run", "first")
        page.write("speak_text", "one two.")
        page.click("speak_say")
        page.wait_toast("No voice")
        page.record("speak_recording", 2)
        page.click("speak_say")
        page.wait_value("speak_state", "s of speech", **patience)
        assert page.driver.execute_script("return window.myxtts_player.seconds") > 0
        page.wait(lambda: page.seconds_of("speak_sound"), "the sound")
        page.picture("spoken")
        page.tab("models")
        page.choose("export_run", "first")
        page.click("export")
        page.wait(lambda: len(page.find_all("export_files", "tr.file")) == 9, "exported files", **patience)
        page.picture("exported")
        assert not page.foreign_hosts()


def test_run_outlives_pages_and_servers_and_is_stopped_and_resumed(home, tiny_corpus, pictures):
    port, patience = free_port(), dict(seconds=PATIENCE_SECONDS)
    with page_server(home, port), Page(port, pictures=pictures) as page:
        page.tab("train")
        page.write("train_run", "long")
        page.write("train_train_data", str(tiny_corpus))
        page.choose("train_model_size", "nano")
        page.choose("train_stage", "dvae")
        page.write("train_batch_size", "2")
        page.write("train_max_steps", "100000")
        page.click("train_start")
        page.wait_value("train_state", "dvae", **patience)
    with page_server(home, port), Page(port, pictures=pictures) as page:
        page.tab("train")
        page.wait(lambda: "long" in page.find("train_now").text, "what trains")
        assert page.wait_value("train_run", "long") and page.value("train_max_steps") == "100000"
        page.click("train_start")
        page.wait_toast("already")
        with Page(port, "fa", pictures=pictures, size=(360, 900)) as other:
            other.tab("train")
            other.wait_value("train_run", "long")
            other.click("train_stop")
            other.wait_value("train_state", "آموزش نمی‌بیند", **patience)
            other.picture("persian")
        stopped = page.wait_value("train_state", "not training")
        page.click("train_start")
        page.wait(lambda: page.value("train_state").startswith("training · dvae"), "it again", **patience)
        page.wait(lambda: page.value("train_state").split()[3] > stopped.split()[4], "more steps", **patience)
        page.click("train_stop")
        page.wait_value("train_state", "not training", **patience)
        page.picture("stopped")


def test_what_is_wrong_is_told_in_a_sentence(home, tmp_path, pictures):
    port = free_port()
    with page_server(home, port), Page(port, pictures=pictures) as page:
        page.write("data_folder", str(tmp_path / "nowhere"))
        page.click("data_check")
        assert "Traceback" not in page.wait_toast("nowhere")
        page.write("data_name", "../up")
        page.drop("data_files", [__file__])
        page.click("data_keep")
        page.wait_toast("A data set's name")
        page.write("data_name", "up")
        page.click("data_keep")
        page.wait_toast("Files must be sound or text")
        page.tab("train")
        page.write("train_run", "bad")
        page.write("train_train_data", str(tmp_path / "nowhere"))
        page.click("train_start")
        page.wait_value("train_state", "nowhere", seconds=PATIENCE_SECONDS)
        page.picture("told")


def test_release_is_imported_and_refuses_a_language_that_it_does_not_speak(home, tiny_corpus, tmp_path, pictures):
    port, release = free_port(), write_release(tmp_path / "release")
    with page_server(home, port), Page(port, pictures=pictures, size=(360, 900)) as page:
        page.tab("models")
        page.click("import_box", "button")
        for source in ("nowhere/model.pth", release / "model.pth"):
            page.write("import_source", str(source))
            page.write("import_name", "released")
            page.click("import")
            if source == "nowhere/model.pth":
                page.wait_toast("nowhere")
        page.wait_value("import_log", "Wrote", seconds=PATIENCE_SECONDS)
        page.picture("imported")
        page.tab("speak")
        page.choose("speak_run", "released")
        page.write("speak_text", "hello.")
        page.choose("speak_language", "Amharic (am)")
        page.drop("speak_recording", [tiny_corpus / "wavs/low_six.wav"])
        page.wait(lambda: page.seconds_of("speak_recording"), "the recording")
        page.click("speak_say")
        page.wait_toast("no language tag [am]", seconds=PATIENCE_SECONDS)
        page.wait(lambda: page.value("speak_state") == "", "the state to be cleared")
        page.picture("language")
