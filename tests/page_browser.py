"""Runs the web page on its own server in a real browser, and uses it by mouse and keyboard."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from myxtts.apps.studio.texts import TEXTS

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"


def free_port():
    """Returns a port that no process listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def page_server(home, port):
    """Runs `myxtts ui` in its own process until the block ends; processes that it started continue."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_NUM_INTRAOP_THREADS": "1"}  # other tests run beside it
    command = [sys.executable, "-m", "myxtts", "ui", "--runs", str(home), "--port", str(port), "--no-token"]
    with open(home.parent / "ui.log", "a") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < end, (home.parent / "ui.log").read_text()[-2000:]
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def chromium(flags=()):
    """Returns a headless Chromium window; end it with `quit`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", *flags):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def within(elem_id, inside):
    """Returns a CSS selector for elements in an element that match `inside`: selectors separated by commas."""
    return ", ".join(f"#{elem_id} {one}".strip() for one in inside.split(","))


class Page:
    """A new window of a browser that shows the page."""

    def __init__(self, driver, port, language="en", size=(1100, 1400)):
        self.driver, self.before = driver, driver.current_window_handle
        driver.switch_to.new_window("window")
        driver.set_window_size(*size)
        driver.set_page_load_timeout(300)
        self.address = f"http://127.0.0.1:{port}/{'ui' if language == 'en' else 'ui-fa'}/"
        self.language = language
        self.driver.get(self.address)
        self.wait(lambda: self.find("speak_say").is_displayed(), "the page")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.driver.close()
        self.driver.switch_to.window(self.before)

    def wait(self, condition, what, seconds=90):
        """Waits until `condition` returns a true value, and returns it."""
        from selenium.common.exceptions import WebDriverException

        end, last = time.monotonic() + seconds, None
        while time.monotonic() < end:
            try:
                if found := condition():
                    return found
            except WebDriverException as error:
                last = error
            time.sleep(0.2)
        self.picture("failed")
        raise AssertionError(f"{what} did not come: {last or self.shown()}")

    def find(self, elem_id, inside=""):
        """Returns the element with an id or, given a selector `inside`, the first match in it."""
        return self.driver.find_element("css selector", within(elem_id, inside))

    def find_all(self, elem_id, inside):
        """Returns all elements that match the selector `inside` in the element with an id."""
        return self.driver.find_elements("css selector", within(elem_id, inside))

    def tab(self, name):
        """Opens a tab, from the menu if the window is too narrow to show it."""

        def opened():  # while the page is laid out, tabs may still move to the menu
            if not (shown := self.driver.find_elements("css selector", f"#tab_{name}-button")):
                self.driver.find_element("css selector", ".overflow-menu > button").click()
                hidden = self.driver.find_elements("css selector", ".overflow-dropdown button")
                shown = [one for one in hidden if one.text.strip() == TEXTS[self.language][name]]
            return bool(shown) and (shown[0].click() or True)

        self.wait(opened, f"tab {name}", 60)

    def click(self, elem_id, inside=""):
        """Clicks an element as soon as it exists and stays in its place, as what loads above it no longer moves it."""

        def clicked():
            element = self.find(elem_id, inside)
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            place = element.rect
            time.sleep(0.05)
            return element.rect == place and (element.click() or True)

        self.wait(clicked, f"{elem_id} to click", 60)

    def value(self, elem_id):
        """Returns the text of a box or line."""
        boxes = self.find_all(elem_id, "textarea, input")
        return boxes[0].get_property("value") if boxes else self.find(elem_id).text

    def write(self, elem_id, text):
        """Replaces the text of a box by keyboard input."""
        from selenium.webdriver.common.keys import Keys

        self.click(elem_id, "textarea, input")
        box = self.find(elem_id, "textarea, input")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(text)
        self.driver.execute_script("arguments[0].blur()", box)

    def choose(self, elem_id, text):
        """Chooses from a drop-down list; tries again if the list was reloaded in the meantime."""
        from selenium.webdriver.common.keys import Keys

        def chosen():
            self.click(elem_id, "input")
            box = self.find(elem_id, "input")
            box.send_keys(Keys.CONTROL, "a")
            box.send_keys(text)
            options = [one for one in self.find_all(elem_id, "[role=option]") if one.text.strip("✓ \n") == text]
            options[0].click() if options else box.send_keys(Keys.ENTER)
            self.driver.execute_script("arguments[0].blur()", box)
            time.sleep(0.5)
            return self.value(elem_id) == text

        self.wait(chosen, f"{text} in {elem_id}", 60)

    def drop(self, elem_id, files):
        """Adds files to an upload box."""
        self.find(elem_id, "input[type=file]").send_keys("\n".join(map(str, files)))

    def record(self, elem_id, seconds):
        """Records with the microphone."""
        if not self.find_all(elem_id, ".record-button"):
            self.click(elem_id, "[aria-label='Record audio']")
        self.click(elem_id, ".record-button")
        time.sleep(seconds)
        self.click(elem_id, ".stop-button")

    def wait_value(self, elem_id, *words, seconds=90):
        """Waits until a box contains the words; returns its text."""
        self.wait(lambda: all(word in self.value(elem_id) for word in words), f"{words} in {elem_id}", seconds)
        return self.value(elem_id)

    def shown(self):
        """Returns the error that is shown in the open tab."""
        return " ".join(one.text for one in self.driver.find_elements("css selector", ".state .wrong"))

    def wait_notice(self, *words, seconds=90):
        """Waits for an error with these words."""
        return self.wait(lambda: all(word in self.shown() for word in words) and self.shown(), f"{words}", seconds)

    def seconds_of(self, elem_id):
        """Returns the duration that a player shows, as text; 1 if it has audio but shows no duration, 0 if no audio."""
        found = self.find_all(elem_id, "audio, #duration")
        return len(found) and (found[-1].text or 1)

    def picture(self, name):
        """Saves a screenshot if `MYXTTS_PICTURES` names a folder."""
        if folder := os.environ.get("MYXTTS_PICTURES"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(f"{folder}/{name}.png")

    def foreign_hosts(self):
        """Returns the hosts other than this machine that the page sent requests to."""
        script = "return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).host)"
        return {host for host in self.driver.execute_script(script) if host and not host.startswith("127.0.0.1:")}
