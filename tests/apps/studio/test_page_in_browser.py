"""Use of the page in Chromium, with mouse, keyboard and microphone."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from page_browser import CHROMIUM, DRIVER, Page, chromium, free_port, page_server
from planted_talk import plant
from released_model import write_release

from myxtts.apps.studio.folders import VOTES
from myxtts.storage.files import read_csv

MISSING = [name for name in ("gradio", "selenium") if find_spec(name) is None]
MISSING += [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
PATIENCE_SECONDS = 1200
"""Time limit for tests that train, also on a busy machine."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Folder of the runs and port of a page that most tests share."""
    home, port = tmp_path_factory.mktemp("page") / "runs", free_port()
    with page_server(home, port):
        yield home, port


@pytest.fixture(scope="module")
def browser(tiny_corpus):
    """A Chromium that hears a clip instead of the microphone."""
    heard = f"--use-file-for-fake-audio-capture={tiny_corpus / 'wavs/low_six.wav'}"
    driver = chromium(["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", heard])
    yield driver
    driver.quit()


def test_page_opens_with_sound_and_fits_a_laptop_and_a_phone(served, browser):
    for language, size in (("en", (1280, 720)), ("fa", (390, 844))):
        with Page(browser, served[1], language, size) as page:
            page.click("speak_say")
            page.wait(lambda: page.seconds_of("speak_sound"), "sound", PATIENCE_SECONDS)
            page.picture(f"opened_{language}")
            width, height = page.driver.execute_script("return [innerWidth, innerHeight]")
            assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
            if language == "en":
                ends = [page.find(name).rect for name in ("speak_text", "speak_say", "speak_sound", "speak_speaker")]
                assert all(end["y"] + end["height"] <= height for end in ends)
                page.tab("compare")
                page.click("compare_which_1", "input[value=last]")
                page.write("compare_text", "One day.\n\nTwo days.")
                page.click("compare")
                page.wait(lambda: page.seconds_of("compare_sound_B"), "two voices", PATIENCE_SECONDS)
                for key, left in (("a", "Pairs left: 1"), ("s", "Vote saved")):
                    page.driver.find_element("css selector", "body").send_keys(key)
                    page.wait_value("vote_said", left)
                assert [one["text"] for one in read_csv(served[0] / VOTES)] == ["One day.", "Two days."]
                continue
            blocks = "[...document.querySelectorAll('.rtl, .rtl [dir]')]"
            directions = page.driver.execute_script(f"return {blocks}.map((e) => getComputedStyle(e).direction)")
            assert set(directions) == {"rtl"}
            page.tab("data")
            assert "رها کنید" in page.wait(lambda: page.find("data_files").text, "Gradio's own words")
            page.click("data_keep")
            page.wait_notice("نام مجموعه‌داده")


def test_recordings_become_a_data_set_and_a_voice_is_recorded_spoken_and_exported(served, browser, tiny_corpus):
    patience = dict(seconds=PATIENCE_SECONDS)
    with Page(browser, served[1]) as page:
        page.tab("data")
        page.click("data_keep")
        page.wait_notice("name of a data set")
        page.write("data_name", "mine")
        page.click("data_keep")
        page.wait_notice("Add recordings first")
        page.choose("data_language", "German (de)")
        page.drop("data_files", [tiny_corpus / "metadata.csv", *(tiny_corpus / "wavs").iterdir()])
        page.wait(lambda: len(page.find_all("data_files", "tr.file")) == 13, "13 files")
        page.click("data_keep")
        page.wait_value("data_report", "accepted: 12")
        assert "mine is ready" in page.value("data_keep_notice")
        page.click("data_clips", "[role=gridcell]")
        page.wait(lambda: page.seconds_of("data_heard"), "a clip")
        page.picture("data")
        page.tab("train")
        page.wait_value("train_train_data", "mine")
        page.wait_value("train_language", "German")
        page.write("train_run", "first")
        page.click("train_main", "button")
        page.write("train_max_steps", "2")
        page.wait(lambda: "600" not in page.find("train_stages").text, "the steps in the table")
        page.choose("train_init_from", "none")
        page.wait(lambda: page.value("train_max_steps") != "2", "the settings of a new model")
        page.choose("train_model_size", "nano")
        page.choose("train_stage", "dvae")
        page.write("train_batch_size", "2")
        page.write("train_max_steps", "2")
        page.click("train_plan")
        page.wait_value("train_plan_log", "TIME", **patience)
        page.tab("speak")
        page.write("speak_text", "one two.")
        page.click("speak_own_voice", "button")
        page.record("speak_recording", 2)
        page.click("speak_say")
        page.wait_value("speak_state", "s of speech", **patience)
        assert page.driver.execute_script("return window.myxtts_player.seconds") > 0
        page.wait(lambda: page.seconds_of("speak_sound"), "the sound")
        page.picture("spoken")
        page.tab("models")
        page.click("export")
        page.wait_value("export_notice", "base-onnx-float32 · Working")
        page.wait(lambda: len(page.find_all("export_files", "tr.file")) == 1, "the ZIP file", **patience)
        page.picture("exported")
        assert not page.foreign_hosts()


def test_recording_without_text_is_transcribed_corrected_and_moved_to_the_trash(served, browser, tmp_path):
    (home, port), hears = served, tmp_path / "hears.py"
    hears.write_text("print('what was heard of this sentence')")
    plant(tmp_path / "talk.wav", count=4)
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    with Page(browser, port) as page:
        page.tab("data")
        page.write("data_name", "talk")
        page.drop("data_files", [tmp_path / "talk.wav"])
        page.wait(lambda: page.find_all("data_files", "tr.file"), "the file")
        page.click("data_keep")
        page.wait_notice("talk has no text")
        page.write("data_recognizer", f"{sys.executable} {hears} {{wav}}")
        page.click("data_keep")
        page.wait(lambda: "what was heard" in page.find("data_clips").text, "texts", PATIENCE_SECONDS)
        page.click("data_clips", "[role=gridcell][aria-colindex='2']")
        cell = "[role=gridcell][aria-colindex='2']"
        boxes = lambda: page.find_all("data_clips", f"{cell} textarea, {cell} input")
        edit = lambda: ActionChains(page.driver).double_click(page.find("data_clips", cell)).perform()
        box = page.wait(lambda: boxes() or edit(), "a box to edit")[0]  # the table may be redrawn between the clicks
        box.send_keys(Keys.CONTROL, "a", Keys.NULL, "corrected", Keys.ENTER)
        page.click("data_save")
        page.wait_value("data_saved", "changed: 1")
        lists = [path.read_text() for path in (home / "_data/talk").glob("metadata_*.csv")]
        assert sum("|corrected|" in one for one in lists) == 1
        page.picture("transcribed")
        page.tab("models")
        page.choose("kept", "data set · talk")
        page.click("kept_delete")
        page.wait_value("kept_notice", "trash")
        assert (home / "_data/talk").is_dir()
        page.click("kept_sure")
        page.wait(lambda: (home / "_trash/talk").is_dir(), "the trash")


def test_errors_are_shown_and_a_release_is_imported(served, browser, tmp_path):
    with Page(browser, served[1], size=(360, 900)) as page:
        page.tab("compare")
        page.driver.find_element("css selector", "body").send_keys("b")
        page.wait_notice("Compare first")
        page.tab("data")
        page.write("data_folder", str(tmp_path / "nowhere"))
        page.click("data_check")
        assert "Traceback" not in page.wait_notice("nowhere")
        page.write("data_name", "../up")
        page.drop("data_files", [__file__])
        page.click("data_keep")
        page.wait_notice("name of a data set")
        page.write("data_name", "up")
        page.click("data_keep")
        page.wait_notice("A file must be audio or text")
        page.tab("train")
        (served[0] / "one").mkdir()
        (served[0] / "one/metrics.jsonl").write_text('{"stage": "gpt", "kind": "validation", "step": 5, "codes": 0.5}')
        page.write("train_run", "one")
        ends = lambda: page.find("train_losses_gpt", ".mark-line path").value_of_css_property("stroke-linecap")
        page.wait(lambda: ends() == "round", "a curve of one point")
        page.write("train_run", "bad")
        page.write("train_train_data", str(tmp_path / "nowhere"))
        page.click("train_start")
        page.wait_notice("nowhere", seconds=PATIENCE_SECONDS)
        page.picture("reported")
        page.tab("models")
        page.click("import_box", "button")
        page.write("import_name", "released")
        for source in ("nowhere/model.pth", write_release(tmp_path / "release") / "model.pth"):
            page.write("import_source", str(source))
            page.click("import")
            if source == "nowhere/model.pth":
                page.wait_notice("nowhere")
        page.wait_value("import_log", "Wrote", seconds=PATIENCE_SECONDS)
        page.picture("imported")


def test_run_survives_pages_and_servers_and_is_stopped_and_resumed(served, browser, tiny_corpus):
    (home, port), first_port, patience = served, free_port(), dict(seconds=PATIENCE_SECONDS)
    with page_server(home, first_port), Page(browser, first_port) as page:
        page.tab("train")
        page.write("train_run", "long")
        page.write("train_train_data", str(tiny_corpus))
        page.choose("train_init_from", "none")
        page.click("train_main", "button")
        page.choose("train_model_size", "nano")
        page.choose("train_stage", "dvae")
        page.write("train_batch_size", "2")
        page.write("train_max_steps", "100000")
        page.click("train_start")
        page.wait_value("train_state", "left in this stage", **patience)
        page.wait(lambda: page.find("train_losses_dvae").is_displayed(), "a curve of the stage", PATIENCE_SECONDS)
    with Page(browser, port) as page:
        page.tab("train")
        page.wait(lambda: "long" in page.find("train_now").text, "what trains")
        page.wait_value("train_run", "long")
        page.click("train_start")
        page.wait_notice("already")
        with Page(browser, port, "fa", (360, 900)) as other:
            other.tab("train")
            other.wait_value("train_run", "long")
            other.click("train_stop")
            other.wait_value("train_state", "متوقف", seconds=60)
            other.picture("persian")
        stopped = page.wait_value("train_state", "stopped")
        page.click("train_start")
        steps = lambda reported: int(re.search(r"dvae step (\d+)", reported)[1])
        page.wait(lambda: steps(page.value("train_state")) > steps(stopped), "more steps", **patience)
        page.click("train_stop")
        page.wait_value("train_state", "stopped", **patience)
        page.picture("stopped")
